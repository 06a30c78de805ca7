"""The command line that all benchmarks share: ``--pairs 9 --json FILE --quick``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks._rows import Row, facts, record, show, write


@dataclass(frozen=True)
class Settings:
    """How thorough to be."""

    pairs: int = 9
    quick: bool = False

    def size(self, full: int, least: int = 1) -> int:
        """Return how many operations to measure: all of them, or a twentieth to see whether the program works."""
        return max(full // 20, least) if self.quick else full

    def few(self) -> int:
        """Return how many pairs to take against the peers that no target speaks of."""
        return min(self.pairs, 3)


def run(name: str, about: str | None, answer: Callable[[Settings], list[Row]]) -> None:
    """Read the command line, measure, print, write. ``name`` is the module's own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--pairs", type=int, help="interleaved pairs; 9 by default, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; the figures are void")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    given = parser.parse_args()
    pairs = given.pairs if given.pairs is not None else 2 if given.quick else 9
    if pairs < 1:
        parser.error("--pairs must be at least 1")
    measured = facts()  # before, for the load of the machine is among them
    rows = answer(Settings(pairs, given.quick))
    show(rows)
    if given.json:
        write(given.json, record(name, rows, pairs=pairs, quick=given.quick, measured=measured))

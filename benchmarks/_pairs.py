"""Measuring two things in alternation, and printing what came out."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Comparison:
    """The outcome of alternating pairs: how many times as long as ours the peer took."""

    question: str
    peer: str
    ratio: float
    lowest: float
    highest: float
    ours: float
    theirs: float
    unit: str
    switches: float | None = None
    """Voluntary context switches of the process for each operation of ours."""

    def line(self) -> str:
        """Return it as a row of text."""
        switches = "" if self.switches is None else f"  {self.switches:.4f} switches"
        return (
            f"{self.question:44} {self.ratio:6.2f} x {self.peer} ({self.lowest:.2f} to {self.highest:.2f});"
            f" {self.ours:.3g} against {self.theirs:.3g} {self.unit}{switches}"
        )


def switches() -> int:
    """Return how often this process gave up the processor by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def compare(
    question: str,
    peer: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    pairs: int,
    operations: int,
    scale: float = 1e6,
    unit: str = "us an operation",
) -> Comparison:
    """Run ``theirs`` and ``ours`` in turn after one warm-up; each returns the seconds it took."""
    theirs(), ours()
    rows = []
    for _ in range(pairs):
        other = theirs()
        before = switches()
        own = ours()
        rows.append((other / own, own, other, (switches() - before) / operations))
    ratios = [row[0] for row in rows]
    return Comparison(
        question,
        peer,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(row[1] for row in rows) / operations * scale,
        statistics.median(row[2] for row in rows) / operations * scale,
        unit,
        statistics.median(row[3] for row in rows),
    )


def show(rows: list[Comparison], *, as_json: bool) -> None:
    """Print the rows as JSON or as a table."""
    if as_json:
        print(json.dumps({"python": platform.python_version(), "rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(f"CPython {platform.python_version()}; a ratio above 1 means that threadsched is faster")
    for row in rows:
        print(row.line())
    sys.stdout.flush()

"""The guard: measure the first five rows of the table of targets again and compare with what was recorded.

    python -m benchmarks.check                  exits with 1 if something became slower
    python -m benchmarks.check --record         measures, and writes the baseline for this version of Python
    python -m benchmarks.check --from-results   writes the baseline for every version from the committed results

A ratio may fall to 85 % of the recorded one; a count of context switches may rise by as much, and to 0.05 a job in any
case. Ratios against a peer in the same run hold on other machines too, more or less; on one that is busy nothing
holds, so whatever fails is measured once more before it counts. Not part of ``make test``: a clock decides.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import convoy, map, round_trip, throughput
from benchmarks._command import Settings
from benchmarks._rows import RESULTS, ROOT, Row, facts, minor, write

BASELINE = ROOT / "benchmarks" / "baseline.json"
SHARE = 0.85
SWITCHES = 0.05
"""Context switches a job that are always allowed: the target."""

GUARDED: dict[str, Callable[[Settings], list[Row]]] = {
    "throughput": throughput.target_rows,
    "convoy": convoy.target_rows,
    "round_trip": round_trip.target_rows,
    "map": map.target_rows,
}
# Whose switches are bounded; a round trip needs some, and for map nothing was promised.
SWITCHING = ("throughput", "convoy")
# Whose ratio is recorded; a pool after a seeded convoy is compared with one without, so that one says nothing.
RACING = ("throughput", "round_trip", "map")


@dataclass(frozen=True)
class Figures:
    """What is guarded, by ``benchmark key``."""

    ratios: dict[str, float] = field(default_factory=dict)
    switches: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, Iterable[Row]]) -> Figures:
        """Take from rows, by benchmark, what is guarded."""
        figures = cls()
        for benchmark, rows in found.items():
            for row in rows:
                name = f"{benchmark} {row.key}"
                if benchmark in RACING and row.ratio is not None:
                    figures.ratios[name] = row.ratio.median
                if benchmark in SWITCHING:
                    figures.switches[name] = row.figures["switches"]
        return figures

    def better(self, other: Figures) -> Figures:
        """Return the better of two measurements of each figure."""
        ratios = {name: max(value, other.ratios.get(name, value)) for name, value in self.ratios.items()}
        switches = {name: min(value, other.switches.get(name, value)) for name, value in self.switches.items()}
        return Figures(ratios, switches)


@dataclass(frozen=True)
class Verdict:
    """One figure beside its bound."""

    name: str
    what: str
    figure: float
    recorded: float | None
    bound: float
    holds: bool

    @property
    def benchmark(self) -> str:
        """The benchmark that has to be run again for it."""
        return self.name.partition(" ")[0]

    def line(self) -> str:
        """Return it as a row of text."""
        recorded = "not recorded" if self.recorded is None else f"recorded {self.recorded:.4g}"
        return (
            f"{'ok    ' if self.holds else 'FAILED'}  {self.name:24} {self.what:16} {self.figure:8.4g}"
            f"  bound {self.bound:.4g}, {recorded}"
        )


def judge(found: Figures, baseline: Figures) -> list[Verdict]:
    """Compare; a recorded figure that was not measured fails."""
    verdicts = []
    for name, recorded in baseline.ratios.items():
        figure = found.ratios.get(name, 0.0)
        verdicts.append(Verdict(name, "times as fast", figure, recorded, recorded * SHARE, figure >= recorded * SHARE))
    for name in {**baseline.switches, **found.switches}:
        known = baseline.switches.get(name)
        bound = SWITCHES if known is None else max(SWITCHES, known / SHARE)
        figure = found.switches.get(name, float("inf"))
        verdicts.append(Verdict(name, "switches a job", figure, known, bound, figure <= bound))
    return verdicts


def measure(names: Iterable[str], settings: Settings) -> Figures:
    """Measure these benchmarks."""
    return Figures.of({name: GUARDED[name](settings) for name in names})


def check(baseline: Figures, settings: Settings, measuring: Callable[[Iterable[str], Settings], Figures]) -> int:
    """Measure and compare, what fails a second time too; print, and return the exit status."""
    found = measuring(GUARDED, settings)
    verdicts = judge(found, baseline)
    again = {verdict.benchmark for verdict in verdicts if not verdict.holds}
    if again:
        print(f"once more: {', '.join(sorted(again))}", flush=True)
        verdicts = judge(found.better(measuring([name for name in GUARDED if name in again], settings)), baseline)
    for verdict in verdicts:
        print(verdict.line())
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def read_baseline(path: Path, version: str) -> Figures | None:
    """Return what was recorded for a version of Python, or None."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if version not in known:
        return None
    return Figures(known[version]["ratios"], known[version]["switches"])


def write_baseline(path: Path, version: str, figures: Figures, measured: Mapping[str, Any], pairs: int) -> None:
    """Record for one version of Python; the others stay."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[version] = {**asdict(figures), "pairs": pairs, "facts": measured}
    write(path, dict(sorted(known.items(), key=lambda pair: [int(part.strip("t")) for part in pair[0].split(".")])))


def record_from(results: Path, path: Path) -> list[str]:
    """Record for every version whose results are there; return which."""
    versions = []
    for directory in sorted(results.iterdir()) if results.exists() else ():
        if not all((directory / f"{name}.json").exists() for name in GUARDED):
            continue
        documents = {name: json.loads((directory / f"{name}.json").read_text(encoding="utf-8")) for name in GUARDED}
        found = {
            name: [Row.read(row) for row in document["rows"] if row["key"] in TARGETED[name]]
            for name, document in documents.items()
        }
        first = documents["throughput"]
        write_baseline(path, directory.name, Figures.of(found), first["facts"], first["pairs"])
        versions.append(directory.name)
    return versions


# Which rows of a benchmark's results are those of its target_rows().
TARGETED = {
    "throughput": ("one", "sixteen"),
    "convoy": ("one asleep", "one busy", "sixteen asleep", "sixteen busy"),
    "round_trip": ("pool",),
    "map": ("pool",),
}


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="measure and write the baseline of this version")
    parser.add_argument("--from-results", action="store_true", help="write the baseline from the committed results")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    given = parser.parse_args()
    settings = Settings(given.pairs, given.quick)
    if given.from_results:
        versions = record_from(RESULTS, given.baseline)
        print(f"recorded for {', '.join(versions) or 'no version: there are no results'}")
        return 0 if versions else 1
    if given.record:
        measured = facts()  # before, for the load of the machine is among them
        write_baseline(given.baseline, minor(), measure(GUARDED, settings), measured, settings.pairs)
        print(f"recorded for {minor()}")
        return 0
    baseline = read_baseline(given.baseline, minor())
    if baseline is None:
        print(f"nothing is recorded for Python {minor()}: run with --record where speed is as it should be")
        return 2
    return check(baseline, settings, measure)


if __name__ == "__main__":
    sys.exit(main())

"""Write the tables of docs/performance.md and README.md from the committed results.

    python -m benchmarks.report             writes them
    python -m benchmarks.report --check     says whether they are as they should be

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``. A test holds that the pages have what the
results say, so a figure can be changed by measuring alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._ladder import STEPS
from benchmarks._rows import RESULTS, ROOT, Row
from benchmarks._targets import HEADLINES, NONE, TARGETS, Results, figure, row_ratio, spread

PAGES = (ROOT / "docs" / "performance.md", ROOT / "README.md")
PLOTS = ROOT / "docs" / "plots"
VERSIONS = ("3.11", "3.13")

MARKED = re.compile(r"(?P<open><!-- figures: (?P<name>[a-z-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)

NOTHING = "*Not measured yet: `make bench-all` does.*\n"


# What the columns of figures are called.
HEADS = {
    "p99_ms_ratio": "p99 of the wait, ours by theirs",
    "started_ms_ratio": "p99 of the start, from the beginning",
    "p99_us": "p99, µs",
    "p99_us_theirs": "theirs",
    "switches": "switches a job",
}


class Report:
    """The results of each version of Python, and the tables made of them."""

    def __init__(self, documents: dict[str, dict[str, Any]], plots: Iterable[str] = ()) -> None:
        self.documents = documents
        self.plots = set(plots)
        self.results: dict[str, Results] = {
            version: {name: {row["key"]: Row.read(row) for row in document["rows"]} for name, document in known.items()}
            for version, known in documents.items()
        }
        self.versions = [*VERSIONS, *sorted(set(documents) - set(VERSIONS))]

    @classmethod
    def read(cls, results: Path = RESULTS, plots: Path = PLOTS) -> Report:
        """Read what is committed."""
        documents: dict[str, dict[str, Any]] = {}
        for path in sorted(results.glob("*/*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["quick"]:
                raise ValueError(f"{path} was measured with --quick: its figures are void")
            documents.setdefault(path.parent.name, {})[path.stem] = document
        return cls(documents, (path.name for path in plots.glob("*.svg")))

    def fill(self, page: str) -> str:
        """Return a page with every marked table as the results have it."""

        def table(match: re.Match[str]) -> str:
            return match["open"] + TABLES[match["name"]](self) + match["close"]

        return MARKED.sub(table, page)

    def measured(self, benchmark: str) -> bool:
        """Say whether any version has this benchmark."""
        return any(benchmark in known for known in self.results.values())

    def row(self, version: str, benchmark: str, key: str) -> Row | None:
        """Return one row, or None."""
        return self.results.get(version, {}).get(benchmark, {}).get(key)

    def keys(self, benchmark: str) -> list[str]:
        """Return the keys of a benchmark, in its order, whichever version has them."""
        found: dict[str, None] = {}
        for version in self.versions:
            found |= dict.fromkeys(self.results.get(version, {}).get(benchmark, {}))
        return list(found)

    def words(self, benchmark: str, key: str) -> Row:
        """Return a row of any version, for its words."""
        return next(row for version in self.versions if (row := self.row(version, benchmark, key)) is not None)

    # ---------------------------------------------------------------- the tables

    def targets(self) -> str:
        """The table of targets."""
        return markdown(
            ("work", "against", "target", *self.versions),
            [
                (
                    target.work,
                    target.against,
                    target.promise,
                    *(target.cell(self.results.get(version, {}), version) for version in self.versions),
                )
                for target in TARGETS
            ],
        )

    def ratios(self) -> str:
        """What the README shows."""
        if not self.measured("throughput"):
            return NOTHING
        rows = [
            (work, target.promise, *(target.cell(self.results.get(version, {}), version) for version in self.versions))
            for work, target, _ in HEADLINES
        ]
        head = ("against `ThreadPoolExecutor(4)`", "target", *(f"CPython {version}" for version in self.versions))
        return markdown(head, rows)

    def where(self) -> str:
        """Where and when the figures were taken."""
        lines = []
        for version in self.versions:
            known = self.documents.get(version)
            if not known:
                continue
            facts = [document["facts"] for document in known.values()]
            first = facts[0]
            commits = sorted({one["commit"] for one in facts})
            pairs = sorted({document["pairs"] for document in known.values()})
            lines.append(
                f"- CPython {first['python']} ({first['compiler']}), {first['system']}, {first['processor']}, "
                f"{first['cores']} cores; {' or '.join(map(str, pairs))} pairs; commit "
                f"{', '.join(f'`{commit}`' for commit in commits)}."
            )
        return "\n".join(lines) + "\n" if lines else NOTHING

    def compared(self, benchmark: str, keys: Sequence[str] | None = None, more: Sequence[str] = ()) -> str:
        """A benchmark's rows: question, peer, and for each version the ratio and what was measured."""
        chosen = [key for key in self.keys(benchmark) if keys is None or key in keys]
        if not chosen:
            return NOTHING

        def cells(version: str, key: str) -> tuple[str, ...]:
            row = self.row(version, benchmark, key)
            if row is None or row.ratio is None:
                return (NONE,) * (2 + len(more))
            times = f"{figure(row.ours or 0)} / {figure(row.theirs or 0)}"
            return (spread(row.ratio), times, *(figure(row.figures[name]) for name in more))

        head: list[str] = ["work", "against"]
        for version in self.versions:
            head += [version, "µs, ours / theirs", *(HEADS[name] for name in more)]
        return markdown(
            head,
            [
                (
                    (known := self.words(benchmark, key)).question,
                    known.peer or "",
                    *(cell for version in self.versions for cell in cells(version, key)),
                )
                for key in chosen
            ],
        )

    def peers(self) -> str:
        """Throughput, round trip and map against the peers that no target speaks of."""
        parts = []
        for benchmark, aimed in (("throughput", ("one", "sixteen")), ("round_trip", ("pool",)), ("map", ("pool",))):
            parts += [(benchmark, key) for key in self.keys(benchmark) if key not in aimed]
        if not parts:
            return NOTHING

        def cell(version: str, benchmark: str, key: str) -> str:
            row = self.row(version, benchmark, key)
            return NONE if row is None else spread(row_ratio(row))

        return markdown(
            ("work", "against", *self.versions),
            [
                (
                    self.words(benchmark, key).question,
                    self.words(benchmark, key).peer or "",
                    *(cell(version, benchmark, key) for version in self.versions),
                )
                for benchmark, key in parts
            ],
        )

    def features(self) -> str:
        """What each feature costs."""
        keys = self.keys("options_cost")
        if not keys:
            return NOTHING

        def cells(version: str, key: str) -> tuple[str, str]:
            row = self.row(version, "options_cost", key)
            if row is None or row.ours is None or row.theirs is None:
                return NONE, NONE
            return figure(row_ratio(row).median), f"{row.ours - row.theirs:+.2f}"

        head: list[str] = ["with"]
        for version in self.versions:
            head += [f"rate on {version}", "µs a job"]
        return markdown(
            head,
            [
                (
                    self.words("options_cost", key).question,
                    *(cell for version in self.versions for cell in cells(version, key)),
                )
                for key in keys
            ],
        )

    def gil(self) -> str:
        """Tasks that release the GIL."""
        return self.compared("gil_releasing", more=("p99_ms_ratio", "started_ms_ratio"))

    def convoy(self) -> str:
        """After a seeded hold."""
        return self.compared("convoy", more=("switches",))

    def late(self) -> str:
        """Lateness."""
        return self.compared("lateness", more=("p99_us", "p99_us_theirs"))

    def delayed(self) -> str:
        """Time and memory of a delayed job by kind."""
        names = ("ours", "context", "indexed")
        chosen = [key for key in self.keys("delayed") if key in names]
        if not chosen:
            return NOTHING

        def cells(version: str, key: str) -> tuple[str, ...]:
            row = self.row(version, "delayed", key)
            if row is None:
                return (NONE,) * 3
            return figure(row.ours or 0), figure(row.figures["cancel_us"]), figure(row.figures["bytes"])

        head: list[str] = ["one of a million"]
        for version in self.versions:
            head += [f"submit, µs, {version}", "cancel, µs", "bytes"]
        return markdown(
            head,
            [
                (
                    self.words("delayed", key).question,
                    *(cell for version in self.versions for cell in cells(version, key)),
                )
                for key in chosen
            ],
        )

    def floor(self) -> str:
        """The steps from the floor to the scheduler."""
        if not self.measured("floor"):
            return NOTHING
        head: list[str] = ["", "adds", "for"]
        for version in self.versions:
            head += [f"{version}: one, µs", "sixteen, µs"]
        rows = []
        for step in STEPS:
            times = []
            for version in self.versions:
                for crowd in ("one", "sixteen"):
                    row = self.row(version, "floor", f"{crowd} {step.number}")
                    times.append(NONE if row is None else figure(row.theirs or 0))
            rows.append((str(step.number), step.adds, step.why, *times))
        whole = []
        for version in self.versions:
            for crowd in ("one", "sixteen"):
                row = self.row(version, "floor", f"{crowd} 1")
                whole.append(NONE if row is None else figure(row.ours or 0))
        return markdown(head, [*rows, ("", "**the scheduler**", "", *whole)])

    def counts(self) -> str:
        """What the hot path executes."""
        keys = self.keys("counts")
        if not keys:
            return NOTHING
        names = ("bytecodes", "calls", "c_calls", "instructions")
        head: list[str] = ["phase"]
        for version in self.versions:
            head += [f"{version}: bytecodes", "calls", "C calls", "instructions"]
        rows = []
        for key in keys:
            cells = []
            for version in self.versions:
                row = self.row(version, "counts", key)
                for name in names:
                    own = None if row is None else row.figures.get(name)
                    other = None if row is None else row.figures.get(f"{name}_theirs")
                    cells.append(
                        NONE if own is None else f"{own:,.0f}" if other is None else f"{own:,.0f} / {other:,.0f}"
                    )
            rows.append((self.words("counts", key).question, *cells))
        return markdown(head, rows)

    def pictures(self) -> str:
        """The plots that there are."""
        from benchmarks._pictures import PICTURES

        known = [(name, words) for name, words in PICTURES.items() if name in self.plots]
        if not known:
            return "*Not drawn yet: `make bench-all` does.*\n"
        return "\n".join(f"![{words}](plots/{name})\n" for name, words in known)


TABLES: dict[str, Callable[[Report], str]] = {
    "targets": Report.targets,
    "ratios": Report.ratios,
    "where": Report.where,
    "peers": Report.peers,
    "features": Report.features,
    "gil": Report.gil,
    "convoy": Report.convoy,
    "lateness": Report.late,
    "delayed": Report.delayed,
    "floor": Report.floor,
    "counts": Report.counts,
    "plots": Report.pictures,
}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    given = parser.parse_args()
    report = Report.read()
    stale = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = report.fill(before)
        if after == before:
            continue
        stale.append(page.name)
        if not given.check:
            page.write_text(after, encoding="utf-8")
    print(f"{'stale' if given.check else 'written'}: {', '.join(stale) or 'nothing'}")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())

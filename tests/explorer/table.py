"""The page that says what was explored: made from a run, read back by the test that compares."""

import re
from collections.abc import Mapping

from tests.explorer.cases import COARSE, FINE, LINES, SECTIONS, Case, Section
from tests.explorer.install import Laboratory
from tests.explorer.operations import OPERATIONS
from tests.explorer.search import ANY, depth_first
from tests.support import ROOT

PAGE = ROOT / "docs" / "reference" / "explored.md"
DESIGN = ROOT / "docs" / "design.md"

BEGIN, END = "<!-- explored: begin -->\n", "<!-- explored: end -->\n"
POINTS = {
    FINE: "before each acquisition and after each release",
    COARSE: "before each acquisition",
    LINES: "as in the first table, and at every line that runs outside of the lock or moves a job",
}

Counts = dict[str, int]  # name of a case -> schedules


def count(place: Laboratory, section: Section) -> Counts:
    """Explore a section whole and return how many schedules each case has; AssertionError on one that fails."""
    counts = {}
    for case in section.cases:
        if not is_possible(place, case):
            continue
        turns = ANY if section.turns is None else section.turns
        found = depth_first(place, case.scenario(), section.bound, turns=turns)
        assert found.failure is None, found.report()
        assert found.complete
        counts[case.name] = found.schedules
    return counts


def is_possible(place: Laboratory, case: Case) -> bool:
    """Say whether a case can be explored here: a fork copies all fibers only if those are greenlets."""
    return place.quick is not place.threads or not any(OPERATIONS[name].forks for name in case.operations)


def bounds(section: Section) -> str:
    """Say up to what all schedules of a section's cases are run."""
    told = f"{section.bound} preemption{'s' * (section.bound != 1)}"
    if section.turns is not None:
        told += f" and {section.turns} turn{'s' * (section.turns != 1)}"
    return told


def body(section: Section, counts: Mapping[str, int]) -> str:
    """Return a section's table: a row for each first operation, or for each triple."""
    known = [case for case in section.cases if case.name in counts]
    total = sum(counts[case.name] for case in known)
    lines = [
        f"## {section.title}",
        "",
        f"{len(known):,} cases, {total:,} schedules: all those with at most {bounds(section)}. "
        f"Points: {POINTS[section.cases[0].granularity]}.",
        "",
    ]
    if len(section.cases[0].operations) == 2:
        lines += ["| operation | with, schedules |", "|---|---|"]
        rows: dict[str, list[str]] = {}
        for case in known:
            rows.setdefault(case.operations[0], []).append(f"`{case.operations[1]}` {counts[case.name]:,}")
        lines += [f"| `{first}` | {' · '.join(others)} |" for first, others in rows.items()]
    else:
        lines += ["| operations | workers, schedules |", "|---|---|"]
        grouped: dict[tuple[str, ...], list[str]] = {}
        for case in known:
            grouped.setdefault(case.operations, []).append(f"`{case.workers}` {counts[case.name]:,}")
        lines += [
            f"| {' '.join(f'`{name}`' for name in operations)} | {' · '.join(cells)} |"
            for operations, cells in grouped.items()
        ]
    return "\n".join(lines) + "\n"


def read_page(text: str) -> dict[str, Counts]:
    """Return the counts that a page has, by section."""
    found: dict[str, Counts] = {}
    for key, section in SECTIONS.items():
        counts: Counts = {}
        _, _, rest = text.partition(f"## {section.title}\n")
        first = section.cases[0]
        for left, right in re.findall(r"^\| (`.*`) \| (.*) \|$", rest.partition("\n## ")[0], re.M):
            operations = tuple(re.findall(r"`(\w+)`", left))
            for word, number in re.findall(r"`(\w+)` ([\d,]+)", right):
                if len(first.operations) == 2:
                    case = Case((*operations, word), first.workers, first.granularity)
                else:
                    case = Case(operations, int(word), first.granularity)
                counts[case.name] = int(number.replace(",", ""))
        found[key] = counts
    return found


def page(counts: Mapping[str, Counts]) -> str:
    """Return the whole page."""
    head = """# What was explored

Each number says in how many ways the steps of the operations, and of the workers beside them, were interleaved: the
real scheduler was run once for each, on simulated locks, threads and time, and audited after each. How and why is in
[the design](../design.md#interleavings). A *preemption* is a switch from a thread that could have gone on; whom to run
next when a thread is blocked or ends is free, and all of those choices were made too; where a bound on *turns* is
named, only so many of them in one schedule are other than the next in line. Where time matters to an operation, the
instant at which the clock moves is one of the choices.

The operations are in `tests/explorer/operations.py`, the stage on which they meet, and what must hold at the end, in
`tests/explorer/stage.py`. This page is written by `python -m tests.explorer table`; `make proof` explores every case
again and compares.

"""
    return head + "\n".join(body(section, counts.get(key, {})) for key, section in SECTIONS.items())


def summary(counts: Mapping[str, Counts]) -> str:
    """Return the small table for the design page."""
    lines = ["| explored | cases | schedules | all with at most |", "|---|---|---|---|"]
    for key, section in SECTIONS.items():
        known = counts.get(key, {})
        lines.append(f"| {section.title} | {len(known):,} | {sum(known.values()):,} | {bounds(section)} |")
    return "\n".join(lines) + "\n"


def write(counts: Mapping[str, Counts]) -> None:
    """Write the page, and the small table into the design page."""
    PAGE.write_text(page(counts), encoding="utf-8")
    text = DESIGN.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DESIGN.write_text(before + BEGIN + summary(counts) + END + after, encoding="utf-8")

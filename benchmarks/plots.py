"""Draw the pictures of docs/performance.md from the committed results, as small SVG files under docs/plots.

    python -m benchmarks.plots

Text stays text, and nothing in a file depends on when it was drawn, so that a picture changes with its figures alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._ladder import STEPS
from benchmarks._pictures import PICTURES
from benchmarks.growth import COUNTS, POLICIES, SIZES, STRUCTURES
from benchmarks.report import PLOTS, Report

OPERATIONS = {"submit": "submit", "cancel": "cancel", "run": "claim, run, settle"}


def pending(report: Report, version: str) -> Any:
    """Draw cost by pending jobs: a row for each structure, a column for each operation, a line for each policy."""
    from matplotlib import pyplot

    if report.row(version, "growth", f"pending lazy delayed {SIZES[0]}") is None:
        return None
    picture, axes = pyplot.subplots(len(STRUCTURES), len(OPERATIONS), figsize=(10, 5.6), sharex=True, sharey=True)
    for line, structure in zip(axes, STRUCTURES, strict=True):
        for axis, (operation, words) in zip(line, OPERATIONS.items(), strict=True):
            for policy in ("delayed", *POLICIES):
                rows = [report.row(version, "growth", f"pending {structure} {policy} {size}") for size in SIZES]
                points = [
                    (row.figures["n"], row.figures[operation])
                    for row in rows
                    if row is not None and operation in row.figures
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), marker=".", label=policy)
            axis.set(xscale="log", yscale="log", title=f"{words}, {structure}")
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("pending jobs")
    for line in axes:
        line[0].set_ylabel("µs each")
    handles, labels = axes[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    picture.tight_layout(rect=(0, 0.05, 1, 1))
    return picture


def crowds(report: Report) -> Any:
    """Draw cost by workers and by submitters, beside the standard pool."""
    from matplotlib import pyplot

    if not report.measured("growth"):
        return None
    picture, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, what in zip(axes, ("workers", "submitters"), strict=True):
        for version in report.versions:
            known = [(count, report.row(version, "growth", f"{what} {count}")) for count in COUNTS]
            rows = [(count, row) for count, row in known if row is not None]
            if not rows:
                continue
            counts = [count for count, _ in rows]
            axis.plot(counts, [row.ours for _, row in rows], marker=".", label=f"threadsched, {version}")
            axis.plot(counts, [row.theirs for _, row in rows], marker=".", ls="--", label=f"standard pool, {version}")
        axis.set(xscale="log", yscale="log", xlabel=what, xticks=COUNTS, xticklabels=COUNTS)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs a job")
    axes[0].legend(frameon=False, fontsize="small")
    picture.tight_layout()
    return picture


def floor(report: Report) -> Any:
    """Draw the time a job at each step, for one submitter."""
    from matplotlib import pyplot

    if not report.measured("floor"):
        return None
    versions = [version for version in report.versions if report.row(version, "floor", "one 1")]
    picture, axis = pyplot.subplots(figsize=(10, 4.4))
    height = 0.8 / max(len(versions), 1)
    words = [f"{step.number}  {step.adds}" for step in STEPS] + ["the scheduler"]
    for number, version in enumerate(versions):
        rows = [report.row(version, "floor", f"one {step.number}") for step in STEPS]
        times = [0.0 if row is None else row.theirs or 0.0 for row in rows]
        first = rows[0]
        times.append(0.0 if first is None else first.ours or 0.0)
        axis.barh([place + number * height for place in range(len(times))], times, height, label=version)
    axis.set_yticks([place + height / 2 * (len(versions) - 1) for place in range(len(words))], words)
    axis.invert_yaxis()
    axis.set_xlabel("µs a job, one submitter")
    axis.legend(frameon=False)
    axis.grid(axis="x", alpha=0.3)
    picture.tight_layout()
    return picture


DRAWN: dict[str, Callable[[Report], Any]] = {
    "pending-3.11.svg": lambda report: pending(report, "3.11"),
    "pending-3.13.svg": lambda report: pending(report, "3.13"),
    "crowds.svg": crowds,
    "floor.svg": floor,
}


def main() -> None:
    """Draw what the results are there for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="where the results are; benchmarks/results by default")
    parser.add_argument("--into", type=Path, default=PLOTS, help="where to draw; docs/plots by default")
    given = parser.parse_args()

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "threadsched", "font.size": 9})
    report = Report.read(given.results) if given.results else Report.read()
    for name in PICTURES:
        picture = DRAWN[name](report)
        if picture is None:
            print(f"not drawn: {name}, for its results are not there")
            continue
        given.into.mkdir(parents=True, exist_ok=True)
        picture.savefig(given.into / name, metadata={"Date": None})
        print(f"drawn: {name}")


if __name__ == "__main__":
    main()

"""What a benchmark found: rows, the facts about where it was measured, JSON, and a table to read."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""What is committed: one directory for each minor version, one file in it for each benchmark."""


@dataclass(frozen=True)
class Spread:
    """The median of several measurements, and the lowest and highest of them."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise ``values``, at least one."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])

    def inverted(self) -> Spread:
        """Return the spread of the reciprocals: of "times as fast", the share of the time."""
        return Spread(1 / self.median, 1 / self.highest, 1 / self.lowest)


@dataclass(frozen=True)
class Row:
    """One answer.

    ``ratio`` says how many times as fast as the peer ours is: their time over ours, so above 1 ours is faster,
    whatever was measured. ``figures`` holds whatever else the question asks for, by name.
    """

    key: str
    question: str
    peer: str | None = None
    ratio: Spread | None = None
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""
    pairs: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, known: dict[str, Any]) -> Row:
        """Return what :func:`write` wrote."""
        ratio = known.get("ratio")
        return cls(**{**known, "ratio": None if ratio is None else Spread(**ratio)})

    def cells(self) -> tuple[str, ...]:
        """Return it as the cells of a table."""
        ratio = "" if self.ratio is None else f"{self.ratio.median:.2f} x"
        spread = "" if self.ratio is None else f"({self.ratio.lowest:.2f} to {self.ratio.highest:.2f})"
        return (
            self.question,
            ratio,
            spread,
            "" if self.ours is None else f"{self.ours:.4g}",
            "" if self.theirs is None else f"{self.theirs:.4g}",
            self.unit,
            self.peer or "",
            "  ".join(f"{name}={figure:.4g}" for name, figure in self.figures.items()),
        )


def minor() -> str:
    """Return the running interpreter's minor version, with the flag of a build without the GIL."""
    free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{sys.version_info[0]}.{sys.version_info[1]}{free}"


def facts() -> dict[str, Any]:
    """Return where and of what the figures are."""
    return {
        "python": platform.python_version(),
        "minor": minor(),
        "implementation": platform.python_implementation(),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "compiler": platform.python_compiler(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "switch_interval": sys.getswitchinterval(),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    """Return the commit that was measured; a plus sign after it means that the package was changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "threadsched") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def record(
    benchmark: str, rows: Sequence[Row], *, pairs: int, quick: bool, measured: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the rows and the facts as one object for JSON; ``measured`` are the facts as they were before."""
    return {
        "benchmark": benchmark,
        "pairs": pairs,
        "quick": quick,
        "facts": facts() if measured is None else measured,
        "rows": [asdict(row) for row in rows],
    }


def write(path: Path, document: object) -> None:
    """Write JSON that reads well in a diff, all figures cut to six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_cut(document), indent=1) + "\n", encoding="utf-8")


def _cut(thing: Any) -> Any:
    if isinstance(thing, float):
        return float(f"{thing:.6g}")
    if isinstance(thing, dict):
        return {key: _cut(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_cut(value) for value in thing]
    return thing


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    print(f"CPython {platform.python_version()}; a ratio above 1 means that threadsched is faster")
    lines = [("", "ratio", "spread", "ours", "theirs", "unit", "against", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()

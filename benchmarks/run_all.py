"""Measure everything on several interpreters and write the results that the documentation is made from.

    python -m benchmarks.run_all --pairs 9                      all, on 3.11 and 3.13: about half an hour, idle machine
    python -m benchmarks.run_all --only throughput,map          some
    python -m benchmarks.run_all --quick                        whether it works; writes under build/

Each benchmark runs in a process of its own, on the interpreters by turns. One that fails is named at the end, and the
others go on. An interpreter that is not the running one gets its virtual environment from ``make``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks._rows import RESULTS, ROOT, minor

QUESTIONS = (
    "throughput",
    "convoy",
    "round_trip",
    "map",
    "gil_releasing",
    "options_cost",
    "delayed",
    "lateness",
    "wakeups",
    "floor",
    "growth",
    "counts",
)
VERSIONS = ("3.11", "3.13")

# Seconds that one benchmark may take on one interpreter: only one that hangs gets there.
PATIENCE = 1800


def interpreters(wanted: list[str]) -> dict[str, str]:
    """Return version to interpreter, each with the package and the peers installed, in the order wanted."""
    found = {minor(): sys.executable}
    missing = [version for version in wanted if version not in found]
    if missing:
        for path in output([sys.executable, str(ROOT / ".ci" / "pythons.py"), "others"]).split("\n"):
            version = path and output([path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            if version in missing:
                found[version] = output(["make", "-s", "bench-env", f"PYTHON={path}"]).split("\n")[-1]
    for version in wanted:
        if version not in found:
            print(f"NOT MEASURED on {version}: no such interpreter was found", file=sys.stderr)
    # In a fixed order of their own, whichever runs this.
    return {version: str(ROOT / found[version]) for version in wanted if version in found}


def output(command: list[str]) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def measure(name: str, version: str, python: str, into: Path, more: list[str]) -> bool:
    """Run one benchmark on one interpreter; say how it went."""
    print(f"\n== {name}, Python {version}", flush=True)
    start = perf_counter()
    target = into / version / f"{name}.json"
    command = [python, "-m", f"benchmarks.{name}", "--json", str(target), *more]
    try:
        status = subprocess.run(command, cwd=ROOT, check=False, timeout=PATIENCE).returncode
    except subprocess.TimeoutExpired:
        print(f"-- {name} on {version} was not done after {PATIENCE} s", flush=True)
        return False
    print(f"-- {perf_counter() - start:.0f} s{'' if status == 0 else f', FAILED with status {status}'}", flush=True)
    return status == 0


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(QUESTIONS), metavar="NAME,NAME", help="these benchmarks alone")
    parser.add_argument("--versions", default=",".join(VERSIONS), metavar="X.Y,X.Y", help="these interpreters alone")
    parser.add_argument("--into", type=Path, help="where to write; benchmarks/results, with --quick build/benchmarks")
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    into = (given.into or (ROOT / "build" / "benchmarks" if given.quick else RESULTS)).resolve()
    more = [*(["--pairs", str(given.pairs)] if given.pairs else []), *(["--quick"] if given.quick else [])]
    pythons = interpreters(given.versions.split(","))
    if not pythons:
        return 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5 and not given.quick:
        print(f"WARNING: the machine is busy (load {load:.1f}); figures taken now mean little", file=sys.stderr)
    start = perf_counter()
    failed = [
        f"{name} on {version}"
        for name in names
        for version, python in pythons.items()
        if not measure(name, version, python, into, more)
    ]
    print(f"\n{perf_counter() - start:.0f} s in all; written to {os.path.relpath(into)}")
    if failed:
        print(f"FAILED: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

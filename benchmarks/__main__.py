"""Run every benchmark in turn on this interpreter, each in a process of its own, and print the tables."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.run_all import QUESTIONS


def main() -> int:
    """Run them; what is given on the command line (``--pairs``, ``--quick``) goes to each."""
    for question in QUESTIONS:
        print(f"== {question}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{question}", *sys.argv[1:]], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

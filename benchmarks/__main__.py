"""Run every benchmark in turn, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

QUESTIONS = ("throughput", "delayed")


def main() -> int:
    """Run them; what is given on the command line goes to each."""
    for question in QUESTIONS:
        print(f"== {question}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{question}", *sys.argv[1:]], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

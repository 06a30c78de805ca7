"""Run the exhaustive tests in parts, side by side.

    python .ci/proof.py                  all parts; what a part has said is shown when it has ended
    python .ci/proof.py ARGUMENTS...     one part: pytest with these arguments

The parts are disjoint and together have every test that `make proof` selects. All of them draw from one seed, which
stands in the header of each. Ends with 1 if a part failed, and names it.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The longest first, so that the last one to end does not leave a processor idle for long.
PARTS: Mapping[str, Sequence[str]] = {
    "explorer": ["tests/explorer/"],
    "faults": ["tests/faults/"],
    "models": [
        "tests/test_stepped_model.py",
        "tests/test_threaded_model.py",
        "tests/test_core_model.py",
        "tests/test_core_moves_model.py",
        "tests/test_limits_model.py",
        "tests/test_dependencies_model.py",
    ],
    "reentrancy": ["tests/test_reentrancy.py"],
    "repeated": [
        "tests/test_bad_input.py",
        "tests/test_drop.py",
        "tests/test_memory.py",
        "tests/test_shutdown.py",
        "tests/test_threads.py",
    ],
    "strikes": [
        "tests/test_core_strikes.py",
        "tests/test_dependencies_strikes.py",
        "tests/test_flow_strikes.py",
        "tests/test_limits_strikes.py",
        "tests/test_time_limits_strikes.py",
    ],
}
REST = "all others"

EXHAUSTIVE = ["-m", "proof or hypothesis", "--timeout=600", "--durations=8"]


def parts() -> dict[str, list[str]]:
    """Return what pytest is to be told for each part."""
    named = [path for paths in PARTS.values() for path in paths]
    rest = ["tests", *[f"--ignore={path}" for path in named]]
    return {**{name: list(paths) for name, paths in PARTS.items()}, REST: rest}


def run(commands: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Run commands, `width` at a time; show what each wrote when it has ended, and return the names of the failed."""
    failed = []
    showing = threading.Lock()
    env = {"THREADSCHED_SEED": str(random.SystemRandom().randrange(2**32)), **os.environ, "THREADSCHED_PROOF": "1"}

    def one(name: str) -> None:
        began = time.monotonic()
        with showing:
            print(f"--> {name}", flush=True)
        done = subprocess.run(
            commands[name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
        )
        with showing:
            if done.returncode:
                failed.append(name)
            outcome = f"FAILED with {done.returncode}" if done.returncode else "passed"
            print(f"\n==> {name}: {outcome} after {time.monotonic() - began:.0f} s", flush=True)
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.flush()

    with ThreadPoolExecutor(width) as pool:
        ends = [pool.submit(one, name) for name in commands]
        try:
            for end in ends:
                end.result()
        except KeyboardInterrupt:  # those that run got it too
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def main(arguments: Iterable[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *EXHAUSTIVE]
    arguments = list(arguments)
    if arguments:
        return subprocess.run([*pytest, *arguments], env={**os.environ, "THREADSCHED_PROOF": "1"}).returncode
    commands = {name: [*pytest, "--quiet", "-p", "no:cacheprovider", *paths] for name, paths in parts().items()}
    # One more than processors, for some parts often wait: for the end of a process, or of a pause.
    failed = run(commands, (os.cpu_count() or 1) + 1)
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(commands)} parts of the proof passed")
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main(sys.argv[1:]))

"""What tests share: the session's seed, sampling of large matrices, and scripts in a child interpreter.

The fixtures are in conftest.py.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent

# Every random choice of a session comes from this one number. The report's header and each failure show it.
SEED = int(os.environ.get("THREADSCHED_SEED") or random.SystemRandom().randrange(2**32))

# How long a killed child may take to write its stacks.
DUMP_TIMEOUT = 5.0


def exhaustive() -> bool:
    """Return whether this session tests every case where others sample (`make proof`)."""
    return os.environ.get("THREADSCHED_PROOF", "") not in ("", "0")


class Size(int):
    """How much of something this session does; `whole` is what the exhaustive one does."""

    whole: int


def size(whole: int, sample: int) -> Size:
    """Return `whole` in an exhaustive session, and else `sample`."""
    chosen = Size(whole if exhaustive() else sample)
    chosen.whole = whole
    return chosen


def rng(name: str) -> random.Random:
    """Return a random generator that depends on the session's seed and on `name` alone."""
    return random.Random(f"{SEED}:{name}")


def sample(cases: Iterable[T], k: int, name: str = "") -> list[T]:
    """Return `k` of `cases` in their order, drawn with the session's seed.

    An exhaustive session gets all of them. `name` tells apart two matrices of the same size that should be
    sampled independently.
    """
    every = list(cases)
    if exhaustive() or k >= len(every):
        return every
    chosen = rng(f"sample:{name}:{len(every)}").sample(range(len(every)), k)
    return [every[index] for index in sorted(chosen)]


def run_script(
    source: str,
    *,
    timeout: float = 20.0,
    expect: int | None = 0,
    options: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `source` as a program in a fresh interpreter and return how it ended and what it wrote.

    The program is a file in an empty directory, which is also its working directory, so it imports the
    installed package and may use multiprocessing. It has no standard input. If it, or a process that it left
    behind and that holds its output open, is not done in time, it is asked for the stacks of its threads, its
    process group is killed and the test fails with all that was written.

    Args:
        source: The program; common indentation is removed.
        timeout: Seconds, below the 30 that a test may take.
        expect: The exit status without which the test fails; None accepts any. Killed by signal N is -N.
        options: More options for the interpreter.
        args: The program's arguments.
        env: Environment variables to set beside the inherited ones.
    """
    with tempfile.TemporaryDirectory(prefix="threadsched-") as directory:
        script = Path(directory, "script.py")
        script.write_text(textwrap.dedent(source), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *options, str(script), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            cwd=directory,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            stdout, stderr = _kill(process)
            pytest.fail(_describe(f"the script was not done after {timeout} s", stdout, stderr))
        except BaseException:
            _kill(process)
            raise
    if expect is not None and process.returncode != expect:
        pytest.fail(_describe(f"the script ended with {process.returncode}, not {expect}", stdout, stderr))
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    # faulthandler answers SIGABRT with the stacks of all threads, even when the main thread is blocked in C.
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGABRT)
    try:
        process.wait(DUMP_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=DUMP_TIMEOUT)
    except subprocess.TimeoutExpired:  # someone who left the process group holds the pipes open
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return "", "(lost: a process that could not be killed holds the output open)"


def _describe(what: str, stdout: str, stderr: str) -> str:
    return f"{what}\n--- its stdout ---\n{stdout.rstrip()}\n--- its stderr ---\n{stderr.rstrip()}"

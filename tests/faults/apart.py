"""Runs each trial in a forked child of this process: a fault may then hang or kill it, and a fork costs little.

Needs a process with one thread, so it is used by programs that a test starts, never inside a test.
"""

import faulthandler
import gc
import logging
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import IO

# Seconds: a trial takes some milliseconds; only one that hangs comes to this.
TRIAL_TIMEOUT = 15.0
NOT_REACHED = 3
FAILED = 4


def sweep(attempt: Callable[[int], bool], points: list[int]) -> None:
    """Call `attempt(at)` apart for each of the points; it returns False if that point is not there this time.

    Prints how many points there were; ends the process with 1, and says where, if an attempt failed or hung.
    """
    passed = 0
    wrong: list[str] = []
    for at in points:
        status, said = apart(lambda: 0 if attempt(at) else NOT_REACHED)  # noqa: B023 -- called at once
        passed += status != NOT_REACHED
        if status not in (0, NOT_REACHED):
            wrong.append(f"point {at}: status {status}\n{said}")
            if os.environ.get("THREADSCHED_SURVEY") is None:
                break
    if not wrong and passed < len(points) / 2 and len(points) > 20:
        wrong.append(f"only {passed} of {len(points)} points were reached")
    for text in wrong:
        print(text, file=sys.stderr)
    print(passed)
    if wrong:
        sys.exit(1)


def apart(trial: Callable[[], int]) -> tuple[int, str]:
    """Run a trial in a forked child; return its exit status (negative: the signal that ended it) and its stderr."""
    with tempfile.TemporaryFile() as told:
        sys.stdout.flush()
        gc.collect()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            os.dup2(told.fileno(), 2)
            faulthandler.dump_traceback_later(TRIAL_TIMEOUT, exit=True)
            status = FAILED
            try:
                status = trial()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        told.seek(0)
        return os.waitstatus_to_exitcode(ended), told.read().decode(errors="replace")


class Heard(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Trials:
    """The same trial many times, each in a forked child that goes through a real exit of the interpreter.

    The program calls `each` and goes on: that is the child, which leaves by coming to the program's end. The parent
    never comes back from `each`; it disturbs each child as it is told, judges it, and ends the process.
    """

    def __init__(self, seed: str, times: int, status: tuple[int, ...] = (0,)) -> None:
        self.seed = seed
        self.times = times
        self.status = status
        self._ready = -1

    def rng(self, number: int, whose: str) -> random.Random:
        """Return the generator of one trial, for the child or for who disturbs it."""
        return random.Random(f"{self.seed}:{number}:{whose}")

    def ready(self) -> None:
        """Tell the parent, in the child, that it may be disturbed from now on."""
        os.write(self._ready, b".")

    def each(
        self, judge: Callable[[str, str], None], disturb: Callable[[int, random.Random], None] | None = None
    ) -> random.Random:
        """Return in each child its random generator; `judge` its output and its stderr in the parent."""
        for number in range(self.times):
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                reader, self._ready = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(reader)
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    faulthandler.dump_traceback_later(TRIAL_TIMEOUT, exit=True)
                    return self.rng(number, "child")
                os.close(self._ready)
                if disturb is not None and os.read(reader, 1):
                    disturb(pid, self.rng(number, "parent"))
                os.close(reader)
                _, ended = os.waitpid(pid, 0)
                status = os.waitstatus_to_exitcode(ended)
                said, noise = (self._read(file) for file in (out, err))
                try:
                    assert status in self.status, f"ended with {status}, not {self.status}"
                    judge(said, noise)
                except AssertionError as error:
                    text = f"trial {number} of seed {self.seed!r}: {error}\n--- stdout\n{said}\n--- stderr\n{noise}"
                    sys.stderr.write(text + "\n")
                    sys.exit(1)
        print(self.times)
        sys.exit(0)

    @staticmethod
    def _read(file: IO[bytes]) -> str:
        file.seek(0)
        return file.read().decode(errors="replace")

"""Runs each trial in a forked child of this process: a fault may then hang or kill it, and a fork costs little.

Needs a process with one thread, so it is used by programs that a test starts, never inside a test.
"""

import faulthandler
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable

# Seconds: a trial takes some milliseconds; only one that hangs comes to this.
TRIAL_TIMEOUT = 15.0
NOT_REACHED = 3
FAILED = 4


def sweep(attempt: Callable[[int], bool], step: int, offset: int) -> None:
    """Call `attempt(at)` apart for each STEP-th point from OFFSET on, until it returns False: that point is not there.

    Prints how many points there were; ends the process with 1, and says where, if an attempt failed or hung.
    """
    at, passed = 1 + offset, 0
    wrong: list[str] = []
    while True:
        status, said = apart(lambda: 0 if attempt(at) else NOT_REACHED)
        if status == NOT_REACHED:
            break
        passed += 1
        if status:
            wrong.append(f"point {at}: status {status}\n{said}")
            if os.environ.get("THREADSCHED_SURVEY") is None:
                break
        at += step
        assert at < 50_000, "no end"
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

"""What the tests of jobs that wait for jobs share, whether they call `result()` or await."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.gates import PATIENCE, neighbours
from threadsched import Scheduler
from threadsched.testing import FakeClock

# How a wait for a delayed job ends when its scheduler is shut down.
SHUTDOWNS = pytest.mark.parametrize(("drain", "outcome"), [("all", 0), ("due", "cancelled"), ("none", "cancelled")])


class CustomError(Exception):
    pass


def whole(s: Scheduler) -> None:
    """Everything that stands for a wait is gone, and the pool serves."""
    assert s.wait_idle(PATIENCE)
    s.check()
    with neighbours(s):
        pass
    runtime = s._runtime
    assert (runtime.helpers, runtime.awaits, runtime.stand_in, runtime.core.left_behind) == ({}, {}, None, set())
    with runtime.lock:
        workers = list(runtime.workers.values())
    assert [(worker.depth, worker.adopted, worker.tasks) for worker in workers] == [(0, set(), {})] * len(workers)


def shut_down_under(
    s: Scheduler, clock: FakeClock, parent: Callable[[], Any], parked: threading.Event, drain: Any
) -> Any:
    """Shut down while `parent`, which has set `parked`, waits for a job that is due in 5 s; return what it returns."""
    job = s.submit(parent)
    assert parked.wait(PATIENCE)
    clock.advance(0)
    s.shutdown(wait=False, drain=drain)
    if drain == "all":
        clock.advance(5)
    outcome = job.result(PATIENCE)
    assert s.shutdown(timeout=PATIENCE)
    s.check()
    return outcome

"""What the tests of limits share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from threadsched import (
    Job,
    Scheduler,
    current_job,
)
from threadsched.testing import FakeClock

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])

# Real seconds that only a failure reaches.
PATIENCE = 5.0


class Starts:
    """Makes tasks that write down when they started, on a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.log: list[tuple[float, Any]] = []

    def task(self, name: Any = None, seconds: float = 0.0) -> None:
        self.log.append((self.clock.now(), name))
        job = current_job()
        if seconds and job is not None:
            job.sleep(seconds)

    @property
    def times(self) -> list[float]:
        return sorted(round(at, 9) for at, _ in self.log)

    @property
    def names(self) -> list[Any]:
        return [name for _, name in self.log]


class BeforePriority:
    """The priority order said by comparisons, which are counted."""

    def __init__(self) -> None:
        self.calls = 0

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        self.calls += 1
        return a.priority < b.priority


@contextmanager
def scheduler(workers: int = 4, **options: Any) -> Iterator[tuple[Scheduler, FakeClock, Starts]]:
    clock = FakeClock()
    made = Scheduler(workers, clock=clock, **options)
    try:
        yield made, clock, Starts(clock)
        made.check()
    finally:
        made.shutdown(wait=False, drain="none")
        for info in made.shutdown(wait=False).running:  # after a failure: what sleeps on the clock
            job = made.get(info.id)
            assert job is None or job.request_cancel()
        assert made.shutdown(timeout=PATIENCE)


@contextmanager
def busy(pool: Scheduler, **options: Any) -> Iterator[Job[None]]:
    """Keep one job running inside the block."""
    entered, leave = threading.Event(), threading.Event()

    def task() -> None:
        entered.set()
        assert leave.wait(PATIENCE)

    job = pool.options(**options).submit(task)
    assert entered.wait(PATIENCE)
    try:
        yield job
    finally:
        leave.set()
        job.exception(PATIENCE)

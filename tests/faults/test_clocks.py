"""Clocks of the user's that jump, go back, stand still or raise: never early, no spin, and the pool lives."""

import threading
import time

import pytest

from tests.gates import PATIENCE, logged
from threadsched import Scheduler


class Clock:
    """Reads what it is set to, or raises; counts how often it is read."""

    def __init__(self, reading: float = 1000.0) -> None:
        self.reading = reading
        self.sick: Exception | None = None
        self.readings = 0

    def now(self) -> float:
        self.readings += 1
        if self.sick is not None:
            raise self.sick
        return self.reading


def test_a_clock_that_goes_back_starts_nothing_early():
    """A job waits until the clock has come to its time again, however often it was set back in between."""
    clock = Clock()
    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.options(delay=0.02).submit(clock.now)
        for back in (999.0, 500.0, 0.0, -1e9):
            clock.reading = back
            assert not scheduler.submit(job.done).result(PATIENCE)
        clock.reading = job.run_at
        scheduler.submit(int).result(PATIENCE)  # somebody looks again
        assert job.result(PATIENCE) == 1000.02
        assert scheduler.submit(int, 7).result(PATIENCE) == 7
        scheduler.check()


def test_a_clock_that_leaps_starts_all_that_is_due():
    """After one leap forward every job whose time has come runs, in the policy's order, and the others do not."""
    clock = Clock()
    ran: list[int] = []
    with Scheduler(1, clock=clock) as scheduler:
        gate = threading.Event()
        scheduler.submit(gate.wait, PATIENCE)
        for number in range(5):
            scheduler.options(delay=3600 * (number + 1), priority=-number).submit(ran.append, number)
        clock.reading += 4 * 3600
        gate.set()
        scheduler.submit(int).result(PATIENCE)
        assert ran == [3, 2, 1, 0]
        scheduler.clear()


@pytest.mark.parametrize("short", [1e-9, 1e-12, 0.0009])
def test_a_clock_that_stands_still_keeps_nobody_busy(short: float):
    """Just before a job is due the clock stands still: the leader sleeps between its looks, and starts nothing."""
    clock = Clock(10.0)
    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.options(delay=short).submit(int)
        assert job.run_at > clock.reading
        scheduler.submit(int).result(PATIENCE)
        began, before = time.monotonic(), clock.readings
        assert not scheduler.wait_idle(0.1)
        # Three readings a look and a millisecond between looks: a leader that spins comes to thousands.
        assert clock.readings - before < 10 + 4 * (time.monotonic() - began) / 0.001
        assert not job.done()
        clock.reading = job.run_at
        assert job.result(PATIENCE) == 0


def test_a_clock_that_raises_now_and_then():
    """Whoever meets the clock's error is told or goes by the last reading; no worker is lost and no job."""
    clock = Clock()
    refused = 0
    jobs = []
    with logged() as records, Scheduler(2, clock=clock) as scheduler:
        for number in range(60):
            clock.sick = OSError("no clock") if number % 3 == 0 else None
            try:
                jobs.append(scheduler.options(retries=1, backoff=0).submit(int, number))
            except OSError:
                refused += 1
        clock.sick = None
        clock.reading += 1
        assert sorted(job.result(PATIENCE) for job in jobs) == [n for n in range(60) if n % 3]
        assert refused == 20
        stats = scheduler.stats()
        assert (stats.submitted, stats.workers, stats.replaced_workers) == (40, 2, 0)
        scheduler.check()
    assert all("the clock raised OSError: no clock" in text for text in records.of("ERROR"))

"""Whoever breaks into the keeping of time limits, on the same thread and at any point, leaves limits that can go on.

A signal handler or a finalizer that calls the scheduler, or Ctrl-C, is struck into each point of an operation. For the
time of an operation the test's own thread is the watcher, so that the watcher's steps can be struck too.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.gates import PATIENCE
from tests.injector import Injector
from tests.overruns import Late
from tests.support import sample
from threadsched import Job, Limit, Scheduler, SchedulerClosedError
from threadsched.testing import FakeClock, StepScheduler

pytestmark = pytest.mark.proof


class Case:
    """A scheduler with an overrun about to be noticed, jobs about to expire, and others."""

    def __init__(self, queue: Any) -> None:
        self.clock = FakeClock()
        self.s = Scheduler(2, clock=self.clock, queue=queue, limits={"one": Limit(1)}, max_pending=500)
        self.runtime: Any = self.s._runtime
        self.limits: Any = self.runtime.core.time_limits
        self.limits.watcher = self  # nobody else shall
        self.told: list[Any] = []
        self.broken = False
        self.wrong: list[BaseException] = []
        self.late, self.blocker = Late(), Late()
        self.overrun = self.s.options(timeout=1, limits="one").submit(self.late)
        self.known: list[Job[Any]] = [self.overrun, self.s.submit(self.blocker)]
        for gate in (self.late, self.blocker):
            gate.await_start()
        self.gone = [self.s.options(expires=1, priority=n % 3).submit(int, n) for n in range(3)]
        self.gone.append(self.s.options(expires=1, limits="one").submit(int))
        self.later = [self.s.options(timeout=5, expires=5).submit(int) for _ in range(3)]
        self.delayed = self.s.options(timeout=5, expires=5, delay=3).submit(int)
        self.child = self.s.options(after=self.gone[0]).submit(int)
        self.known += [*self.gone, *self.later, self.delayed, self.child]
        for job in (self.gone[1], self.overrun):
            job.add_done_callback(self.told.append)

    def submit(self) -> None:
        for options in ({"expires": 0.5}, {"timeout": 2, "limits": "one"}, {}):
            try:
                self.known.append(self.s.options(**options).submit(int))  # type: ignore[arg-type]
            except SchedulerClosedError:
                pass

    def cancel(self) -> None:
        for job in (self.gone[1], self.gone[2], self.later[0], self.delayed):
            job.cancel()
        self.overrun.request_cancel()

    def look(self) -> None:
        stats = self.s.stats()
        ended = stats.done + stats.failed + stats.cancelled
        assert stats.submitted == stats.pending + stats.running + ended, stats
        assert stats.pending == stats.delayed + stats.ready + stats.waiting, stats
        for job in self.known[:4]:
            job.explain()

    def watch(self) -> None:
        """Have a real watcher again, and let all limits come."""
        with self.runtime.lock:
            self.limits.watcher = None
        if self.limits.live:
            self.runtime.watch_limits()
        self.clock.jump(10)

    def verify(self) -> None:
        """See that every job ends, and that nothing is left of the limits."""
        self.s.check()
        self.watch()
        for gate in (self.late, self.blocker):
            gate.open()
        assert self.runtime.wait_told(PATIENCE)
        closed = self.s.closed
        if not closed:
            assert self.s.wait_idle(PATIENCE), "something hangs"
            self.s.check()
            after = self.s.options(timeout=9, expires=9, limits="one").submit(int, 7)
            assert after.result(PATIENCE) == 7
        self.s.shutdown(timeout=PATIENCE)
        for thread in (self.late.thread, self.blocker.thread):
            assert thread is not None
            thread.join(PATIENCE)
        report = self.s.shutdown(timeout=PATIENCE)
        assert report, report
        self.s.check()
        lost = [job for job in self.known if not job.done()]
        assert not lost, f"no end for {lost}"
        for job in self.known:
            if not job.cancelled():
                job.exception(0)  # or the log would tell of those that failed
        assert not self.limits.live, "a job is watched that has ended"
        assert not self.limits.away
        assert not self.runtime.written_off
        assert self.s.limits["one"].in_use == 0
        told = sorted(job.seq for job in self.told)
        # Ctrl-C may break off the callbacks of the thread that it strikes, as it does in any Future.
        assert told == sorted([self.gone[1].seq, self.overrun.seq]) or (self.broken and len(told) == len(set(told)))
        assert not self.wrong, self.wrong


def fire(case: Case) -> Callable[[], object]:
    case.clock._now = 1.0
    return lambda: case.runtime.fire(1.0)


def come_home(case: Case) -> Callable[[], object]:
    """Have the lost thread itself, from the end of its task on, run under the injector."""
    fire(case)()
    assert case.runtime.wait_told(PATIENCE)

    def operation() -> None:
        case.late.leave = functools.partial(sys.settrace, sys.gettrace())
        sys.settrace(None)
        case.late.open()
        assert case.late.thread is not None
        case.late.thread.join(PATIENCE)

    return operation


OPERATIONS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "fire": fire,
    "submit": lambda case: case.submit,
    "cancel": lambda case: case.cancel,
    "claim": lambda case: lambda: case.later[1].claim() and case.later[1].set_result(1),
    "look": lambda case: lambda: case.limits.first(2.0),
    "come home": come_home,
}


def interrupt(case: Case) -> None:
    case.broken = True
    raise KeyboardInterrupt


STRIKES: dict[str, Callable[[Case], object]] = {
    "submit": Case.submit,
    "cancel": Case.cancel,
    "stats": Case.look,
    "shutdown": lambda case: case.s.shutdown(wait=False),
    "shutdown none": lambda case: case.s.shutdown(wait=False, cancel_futures=True),
    "Ctrl-C": interrupt,
}


def strike_at(at: int, queue: str, operation: str, strike: str) -> tuple[bool, str]:
    case = Case(queue)
    call = OPERATIONS[operation](case)

    def hit() -> None:
        try:
            STRIKES[strike](case)
        except Exception as error:  # on whichever thread
            case.wrong.append(error)

    injector = Injector(hit, at, exact=True)
    try:
        injector.run(call)
    except KeyboardInterrupt:
        assert strike == "Ctrl-C"
        if case.later[1].running():
            case.later[1].set_result(1)  # who is interrupted inside claim() has to look
    except SchedulerClosedError:
        assert strike.startswith("shutdown")
    case.verify()
    return injector.struck, injector.where


def points_of(operation: str, queue: str) -> int:
    """Return how many points an operation has that is not struck.

    Counted the second time: from 3.12 on code that is traced for the first time may not show its instructions.
    """
    for _ in range(2):
        case = Case(queue)
        counter = Injector(lambda: None, -1, exact=True)
        counter.run(OPERATIONS[operation](case))
        case.verify()
    return counter.passed


# Ctrl-C strikes on the main thread, which is neither the watcher nor a worker; a stepped tick has a test of its own.
PAIRS = [
    (operation, strike)
    for operation in OPERATIONS
    for strike in STRIKES
    if strike != "Ctrl-C" or operation not in ("fire", "come home")
]


@pytest.mark.parametrize(("operation", "strike"), PAIRS)
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.timeout(600)
def test_time_limits_survive_a_strike(queue: str, operation: str, strike: str):
    """Wherever the strike falls, every job comes to one end, no limit is lost and none leaks."""
    wrong: dict[str, str] = {}
    points = points_of(operation, queue)
    assert points, "no point was found"
    for at in sample(range(1, points + 1), 2, f"{queue} {operation} {strike}"):
        where = f"point {at}"
        try:
            _, where = strike_at(at, queue, operation, strike)
        except (Exception, pytest.fail.Exception) as error:
            wrong.setdefault(where, repr(error))
    assert not wrong


class Ticks:
    """A stepped scheduler with jobs that have expired, overrun, or will."""

    def __init__(self, queue: Any) -> None:
        self.s = StepScheduler(4, queue=queue, limits={"one": Limit(1)})
        clock = self.s.clock
        assert isinstance(clock, FakeClock)
        self.clock = clock
        self.known = [self.s.options(timeout=1, expires=9, limits="one").submit(clock.advance, n) for n in (0, 2, 0)]
        self.known += [self.s.options(expires=1, timeout=9).submit(int) for _ in range(2)]
        self.known.append(self.s.options(delay=3, timeout=1, retries=1).submit(clock.advance, 1))
        self.known.append(self.s.options(after=self.known[3], timeout=1).submit(int))
        self.told: list[Any] = []
        self.known[4].add_done_callback(self.told.append)
        self.s.tick()
        self.s.tick()
        clock.advance(1)

    def verify(self) -> None:
        self.s._runtime.core.entering = None
        self.s._runtime.core.repair()
        for _ in range(40):
            self.s.tick()
            self.s.check()
            self.clock.advance(1)
        assert all(job.done() for job in self.known), self.known
        limits: Any = self.s._runtime.core.time_limits
        assert not limits.live
        assert not limits.away
        assert self.s.limits["one"].in_use == 0


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_ctrl_c_in_a_tick_leaves_jobs_that_end(queue: str):
    """Wherever it strikes, jobs with time limits end: one that it left running, by its timeout."""
    case = Ticks(queue)
    counter = Injector(lambda: None, -1, exact=True)
    counter.run(case.s.tick)
    case.verify()
    wrong: dict[str, str] = {}
    for at in sample(range(1, counter.passed + 1), 20, queue):
        case = Ticks(queue)
        injector = Injector(raise_interrupt, at, exact=True)
        with contextlib.suppress(KeyboardInterrupt):
            injector.run(case.s.tick)
        try:
            case.verify()
        except Exception as error:
            wrong.setdefault(f"{at} {injector.where}", repr(error))
    assert not wrong


def raise_interrupt() -> None:
    raise KeyboardInterrupt

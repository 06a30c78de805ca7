"""A program: strikes one worker's thread at every point of its way from birth to leaving. Run in a child process.

    python -m tests.faults.worker_sweep SCENE STRIKE QUEUE exact|lines STEP OFFSET [WAY]

What `tests.sweep` does to the calls of a user, this does to the worker's own loop. Every STEP-th point beginning with
OFFSET, of those that `numbers_of` chooses, is struck, each in a fresh pool of one. An exception is thrown only where
CPython can throw one (`exact`). Afterwards every accepted job must have ended, no task have run once too often, and the
pool must serve and leave. Prints how many points there were.
"""

import itertools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from types import FrameType
from typing import Any

from tests.faults.apart import sweep
from tests.faults.vehicles import VEHICLES, loud
from tests.injector import Injector, bounded, numbers_of
from threadsched import DependencyError, Job, Limit, Scheduler, SchedulerClosedError, WorkerDiedError
from threadsched._asyncio import AwaitedJobCancelledError
from threadsched.testing import FakeClock

POOL = "struck"
# Files of the standard library that call ours: the first function of a thread, and the callbacks of an event loop.
OUTSIDE = (f"python3.{sys.version_info.minor}/threading.py", f"python3.{sys.version_info.minor}/asyncio/")
PATIENCE = 5.0
TICK = 0.0002  # between two looks at something that another thread is about to do


class Poison(Exception):
    """Thrown into the worker's thread."""


class WorkerInjector(Injector):
    """Strikes the first thread that it sees, and no other."""

    def __init__(self, strike: Callable[[], object], at: int, *, exact: bool) -> None:
        super().__init__(strike, at, exact=exact)
        self.thread = 0
        self.exempt: FrameType | None = None

    def on_call(self, frame: FrameType, event: str, _: object) -> Any:
        here = threading.get_ident()
        self.thread = self.thread or here
        if here != self.thread:
            return None
        caller = frame.f_back
        by_python = caller is not None and caller.f_code.co_filename.rpartition("/lib/")[2].startswith(OUTSIDE)
        # No exception is thrown at the entry of the thread's first function, for nobody could answer for it, as for the
        # steps of Python's own before it; nor at that of what an event loop calls, where the loop swallows it.
        self.exempt = frame if self.exact and by_python else None
        return super().on_call(frame, event, _)

    def _pass(self, frame: FrameType) -> None:
        if frame is self.exempt:
            self.exempt = None
        else:
            super()._pass(frame)


class Round:
    """A pool of one whose worker comes through every branch of its loop, and the strike that meets it there."""

    def __init__(self, scene: str, strike: str, queue: Any, way: str) -> None:
        self.clock = FakeClock()
        self.scheduler = Scheduler(1, queue=queue, name=POOL, clock=self.clock, limits={"one": Limit(concurrency=1)})
        self.gate = threading.Event()
        self.jobs: dict[int, Job[Any]] = {}
        self.numbers = itertools.count()
        self.runs: Counter[int] = Counter()
        self.called: Counter[int] = Counter()
        self.watchers: list[threading.Thread] = []
        self.scene = getattr(self, f"scene_{scene}")
        self.strike_now = VEHICLES[way](getattr(self, f"strike_{strike}"))
        self.poisoned = strike == "poison"
        self.closing = strike.startswith("shutdown")
        self.spare = self.scheduler.options(delay=3600)

    def submit(self, task: Callable[[], Any] | None = None, /, **options: Any) -> Job[Any]:
        number = next(self.numbers)  # one C call: the strike submits as well

        def counted() -> Any:
            self.runs[number] += 1
            return task() if task is not None else number

        job = self.scheduler.options(**options).submit(counted)
        self.jobs[number] = job
        return job

    def watch(self, job: Job[Any]) -> None:
        """Add a callback, a thread in result() and one in wait()."""
        job.add_done_callback(lambda job: self.called.update([job.seq]))
        for ask in (lambda: job.exception(PATIENCE), lambda: wait([job], PATIENCE)):
            self.watchers.append(threading.Thread(target=swallow, args=(ask,), daemon=True))

    # What the worker comes through.

    def scene_ends(self) -> None:
        """Each way in which a job ends, watched and not."""
        self.submit()
        self.watch(self.submit())
        self.submit(fail)
        self.watch(self.submit(fail))
        self.submit(fail, retries=1, backoff=0)
        self.submit(lambda: self.clock.jump(10))
        self.submit(delay=5)
        victim = self.submit(delay=60)
        self.watch(victim)
        self.submit(victim.cancel)
        self.submit()

    def scene_rules(self) -> None:
        """Jobs that wait for a job, for a limit, and inside each other."""
        parent = self.submit(limits="one")
        self.submit(after=[parent])
        failed = self.submit(fail, limits="one", priority=1)
        self.watch(self.submit(after=[failed]))
        self.submit(after=[failed], after_any_outcome=True, limits="one")
        inner = self.submit(priority=9)
        self.submit(lambda: inner.result(), priority=6)

    def scene_coroutines(self) -> None:
        """Coroutines, one of which awaits a job."""
        inner = self.submit(priority=9)

        async def waits() -> Any:
            return await inner

        async def fails() -> None:
            raise ValueError("on purpose")

        self.submit(waits)  # a task that returns a coroutine
        self.submit(fails)
        self.submit()

    def scene_series(self) -> None:
        """A recurring job, armed again after each run."""

        def run() -> None:
            self.runs[-1] += 1

        series = self.scheduler.options(max_runs=3).every(5, run)
        for _ in range(3):
            self.submit(lambda: self.clock.jump(5))
        self.submit(series.cancel, priority=9)

    # What strikes.

    def strike_poison(self) -> None:
        raise Poison

    def strike_submit(self) -> None:
        try:
            self.submit()
            self.submit(priority=1)
            self.submit(delay=3).cancel()
        except SchedulerClosedError:
            pass

    def strike_cancel(self) -> None:
        for job in [*self.jobs.values()][1:4]:
            job.cancel()

    def strike_stats(self) -> None:
        stats = self.scheduler.stats()
        ended = stats.done + stats.failed + stats.cancelled
        assert stats.submitted == stats.pending + stats.running + ended, stats
        assert stats.pending == stats.delayed + stats.ready + stats.waiting, stats

    def strike_shutdown(self) -> None:
        self.scheduler.shutdown(wait=False)

    def strike_shutdown_due(self) -> None:
        self.scheduler.shutdown(wait=False, drain="due")

    def strike_shutdown_none(self) -> None:
        self.scheduler.shutdown(wait=False, cancel_futures=True)

    # One round.

    def attempt(self, at: int, exact: bool) -> Injector:
        """Strike at one point, if it is reached."""
        injector = WorkerInjector(self.strike_now, at, exact=exact)
        threading.settrace(injector.on_call)
        try:
            self.submit(lambda: self.gate.wait(PATIENCE))
            while not injector.thread:  # a thread counts as started just before it looks whether to be traced
                time.sleep(TICK)
            threading.settrace(None)  # type: ignore[arg-type]  # every thread but the worker, from here on
            self.go()
        except SchedulerClosedError:
            assert self.closing
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        try:
            self.verify(f"at point {at}")
        except BaseException as error:
            error.add_note(f"struck at point {at}: {injector.where}")
            raise
        return injector

    def go(self) -> None:
        while self.scheduler.stats().running + self.scheduler.stats().done + self.scheduler.stats().failed == 0:
            if self.scheduler.closed:
                break
            time.sleep(TICK)
        self.scene()
        for thread in self.watchers:
            thread.start()
        while not all(job._attached.tokens and job._attached.condition for job in self.watched()):
            if self.scheduler.closed or self.poisoned:
                break
            time.sleep(TICK)
        self.gate.set()

    def watched(self) -> list[Job[Any]]:
        return [job for job in self.jobs.values() if job._attached is not None and job._attached.callbacks]

    def verify(self, where: str) -> None:
        scheduler = self.scheduler
        self.gate.set()
        if not bounded(self.is_idle_but_for_the_clock, f"wait_idle {where}", 2 * PATIENCE):
            # Only for what is due later: the clock does not move if the strike took the job that moves it.
            self.clock.advance(100)
        assert bounded(lambda: scheduler.wait_idle(PATIENCE), f"wait_idle {where}"), (where, scheduler.snapshot())
        bounded(scheduler.check, f"check() {where}")
        if not self.closing:
            probe = scheduler.options(retries=1, backoff=0)  # the strike may meet this job
            assert bounded(lambda: probe.submit(int, 7).result(PATIENCE), f"submit {where}") == 7
            give_up = time.monotonic() + PATIENCE
            while scheduler.stats().workers != 1:  # the strike may have met the worker after that job
                assert time.monotonic() < give_up, (where, scheduler.stats())
                time.sleep(TICK)
        report = bounded(lambda: scheduler.shutdown(timeout=4), f"shutdown {where}")
        assert report, (where, report)
        for thread in self.watchers:
            if thread.ident is not None:
                thread.join(3)
                assert not thread.is_alive(), (where, "a waiter was not told")
        for number, job in self.jobs.items():
            assert job.done(), (where, job)
            assert self.runs[number] <= job.attempts, (where, job, self.runs[number])
            self.judge(number, job, where)
        assert all(count == 1 for count in self.called.values()), (where, self.called)
        stats = scheduler.stats()
        assert stats.submitted == stats.done + stats.failed + stats.cancelled, (where, stats)
        assert stats.replaced_workers <= self.poisoned, (where, stats)
        left = [thread for thread in threading.enumerate() if thread.name.startswith(POOL)]
        for thread in left:
            thread.join(3)
            assert not thread.is_alive(), (where, thread)
        scheduler.check()

    def is_idle_but_for_the_clock(self) -> bool:
        """Wait until nothing is left, or nothing but what is due later; return whether it is the former."""
        give_up = time.monotonic() + PATIENCE
        while not (idle := self.scheduler.wait_idle(0.01)) and time.monotonic() < give_up:
            stats = self.scheduler.stats()
            if stats.delayed == stats.pending and not stats.running:
                break
        return idle

    def judge(self, number: int, job: Job[Any], where: str) -> None:
        """A job that did not come to what its task says was struck itself."""
        if job.cancelled():
            return
        error = job.exception(0)
        if error is None:
            assert self.runs[number] == 1, (where, job)
        elif self.poisoned:
            assert isinstance(error, (Poison, WorkerDiedError, ValueError)), (where, job, error)
        else:
            # The last: of a coroutine that awaited a job which the strike cancelled.
            known = (ValueError, DependencyError, AwaitedJobCancelledError)
            assert isinstance(error, known) or self.closing, (where, job, error)


def fail() -> None:
    raise ValueError("on purpose")


def swallow(ask: Callable[[], object]) -> None:
    try:
        ask()
    except BaseException:
        return


def main(scene: str, strike: str, queue: str, mode: str, step: int, offset: int, way: str = "call") -> None:
    if strike != "poison":  # that may land where Python closes a generator, which reports it and goes on
        loud()
    logging.getLogger("threadsched").addHandler(logging.NullHandler())
    logging.getLogger("threadsched").propagate = False
    # Not struck: this process learns which points there are, and the layout of all code, which its children then know.
    points = numbers_of(Round(scene, strike, queue, way).attempt(0, mode == "exact").places)
    sweep(lambda at: Round(scene, strike, queue, way).attempt(at, mode == "exact").struck, points[offset::step])


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(int, sys.argv[5:7]), *sys.argv[7:])

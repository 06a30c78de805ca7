"""A program: sweeps one operation of a scheduler with one kind of strike. Run by test_reentrancy.py in a child process.

    python -m tests.sweep OPERATION STRIKE VARIANT exact|lines STEP OFFSET [WAY]

Every STEP-th point beginning with OFFSET is struck, each on a fresh scheduler, of those that `numbers_of` chooses in a
run without a strike: every place, three times at most. Afterwards nothing may hang, every
accepted job must end, and the books must be right. WAY says how the strike comes in (see `tests.faults.vehicles`); a
plain call without it. Prints how many points there were.
"""

import concurrent.futures
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.faults.vehicles import VEHICLES, loud
from tests.injector import Injector, bounded, numbers_of
from threadsched import Scheduler, SchedulerClosedError


class ByPriority:
    """A policy in Python, so that ordering can be broken into."""

    def before(self, a: Any, b: Any) -> bool:
        return bool(a.priority < b.priority)


VARIANTS: dict[str, dict[str, Any]] = {"lazy": {}, "indexed": {"queue": "indexed"}, "before": {"policy": ByPriority()}}


class Case:
    """One scheduler with a busy worker, some pending jobs, and the operation and strike to try on it."""

    def __init__(self, operation: str, strike: str, variant: str) -> None:
        self.scheduler = Scheduler(1, **VARIANTS[variant])
        self.gate = threading.Event()
        started = threading.Event()
        self.known: list[Any] = []

        def hold() -> None:
            started.set()
            self.gate.wait(10)

        self.known.append(self.scheduler.submit(hold))
        assert started.wait(5)
        self.ready = [
            self.scheduler.options(priority=number % 3, id="old" if number == 1 else None).submit(int, number)
            for number in range(4)
        ]
        self.delayed = [self.scheduler.options(delay=3600 + number % 2).submit(int) for number in range(3)]
        self.known += self.ready + self.delayed
        self.told: list[Any] = []
        if operation == "wait_idle":
            # One delayed job alone, so that the strike that cancels it makes the scheduler idle.
            self.gate.set()
            for job in self.delayed[1:]:
                job.cancel()
            for job in self.ready:
                job.result(5)
            self.known[0].result(5)
        self.awaited = self.delayed[0] if operation in ("result", "wait_idle") else None
        self.called: list[Any] = []
        self.watched = [] if self.awaited else [self.ready[1], self.delayed[1]]
        for job in self.watched:
            job.add_done_callback(self.called.append)
        self.waiting = [threading.Thread(target=await_end, args=(job,), daemon=True) for job in self.watched[:1]]
        self.waiting += [
            threading.Thread(target=concurrent.futures.wait, args=([job],), daemon=True) for job in self.watched[1:]
        ]
        for thread in self.waiting:
            thread.start()
        while self.watched and not all(job._attached.tokens or job._attached.condition for job in self.watched):
            time.sleep(0)
        self.operation: Callable[[], Any] = getattr(self, f"do_{operation}")
        self.strike: Callable[[], Any] = getattr(self, f"strike_{strike}")
        self.closed = operation.startswith("shutdown") or strike == "shutdown"
        self.comparing = variant == "before"
        self.answer: Any = None

    # What is struck.

    def do_submit(self) -> None:
        self.known.append(self.scheduler.submit(int))

    def do_submit_delayed(self) -> None:
        self.known.append(self.scheduler.options(delay=1800, id="mine").submit(int))

    def do_replace(self) -> None:
        self.known.append(self.scheduler.options(id="old", if_exists="replace", priority=0).submit(int))

    def do_cancel(self) -> None:
        self.answer = self.ready[1].cancel()

    def do_cancel_delayed(self) -> None:
        self.answer = self.scheduler.cancel(self.delayed[1].seq)

    def do_result(self) -> None:
        assert self.awaited is not None
        try:
            self.awaited.result()
        except concurrent.futures.CancelledError:
            pass

    def do_shutdown(self) -> None:
        self.scheduler.shutdown(wait=False)

    def do_shutdown_none(self) -> None:
        self.scheduler.shutdown(wait=False, cancel_futures=True)

    def do_shutdown_due(self) -> None:
        self.scheduler.shutdown(wait=False, drain="due")

    def do_shutdown_wait(self) -> None:
        self.gate.set()
        self.scheduler.shutdown(drain="due")

    def do_policy(self) -> None:
        self.scheduler.policy = ByPriority()

    def do_claim(self) -> None:
        try:
            if self.ready[0].claim():
                self.ready[0].set_result(1)
        except KeyboardInterrupt:
            # Who is interrupted inside claim() or set_result() has to look whether it happened.
            if self.ready[0].running():
                self.ready[0].set_result(1)
            raise

    def do_add_callback(self) -> None:
        self.delayed[0].add_done_callback(self.told.append)
        self.ready[2].add_done_callback(self.told.append)

    def do_wait_idle(self) -> None:
        self.scheduler.wait_idle()

    # What strikes.

    def strike_submit(self) -> None:
        try:
            self.known.append(self.scheduler.submit(int))
            self.known.append(self.scheduler.options(delay=900).submit(int))
        except SchedulerClosedError:
            pass
        except RuntimeError as error:
            # A handler that interrupts a before() cannot be told from a before() that calls the scheduler.
            if not self.comparing or "before() must not call the scheduler" not in str(error):
                raise

    def strike_cancel(self) -> None:
        self.ready[2].cancel()
        self.delayed[0].cancel()
        if self.operation != self.do_result:
            self.ready[1].cancel()

    def strike_stats(self) -> None:
        stats = self.scheduler.stats()
        ended = stats.done + stats.failed + stats.cancelled
        assert stats.submitted == stats.pending + stats.running + ended, stats
        assert stats.pending == stats.delayed + stats.ready + stats.waiting, stats
        self.scheduler.status_of(self.ready[0].seq)
        self.scheduler.get("mine")

    def strike_shutdown(self) -> None:
        self.scheduler.shutdown(wait=False)

    def strike_shutdown_none(self) -> None:
        self.closed = True
        self.scheduler.shutdown(wait=False, cancel_futures=True)

    def strike_interrupt(self) -> None:
        raise KeyboardInterrupt

    # What must hold afterwards.

    def verify(self, where: str) -> None:
        scheduler = self.scheduler
        bounded(scheduler.check, f"check() after {where}")
        if not self.closed:
            self.known.append(bounded(lambda: scheduler.submit(int), f"submit after {where}"))
        replaced = self.operation == self.do_replace and (holder := scheduler.get("old")) is not self.ready[1]
        if replaced and self.strike == self.strike_interrupt:
            assert holder is not None, (where, "the old one is gone, and the new one is not there")
        self.gate.set()
        if not scheduler.closed:
            # Whatever was struck, everything that is due must still run, and at once.
            for job in [job for job in self.known if job not in self.delayed and job.run_at <= job.submitted_at]:
                if not job.cancelled():
                    assert job.exception(5) is None, (where, job)
        report = bounded(lambda: scheduler.shutdown(cancel_futures=True, timeout=4), f"shutdown after {where}")
        assert report, (where, report)
        for job in self.known:
            assert job.done(), (where, job)
        for thread in self.waiting:
            thread.join(3)
            assert not thread.is_alive(), (where, "a waiter was not told", self.watched)
        told = [job.seq for job in self.called]
        assert len(told) == len(set(told)), (where, told)
        # An interrupt may break off the callbacks of the thread that it strikes, as it does in any Future.
        if self.strike != self.strike_interrupt:
            assert sorted(told) == [job.seq for job in self.watched], (where, told)
        if self.operation == self.do_add_callback and self.strike != self.strike_interrupt:
            assert sorted(job.seq for job in self.told) == sorted([self.ready[2].seq, self.delayed[0].seq]), where
        assert self.ready[1].cancelled() or not replaced, (where, "both ran")
        scheduler.check()
        stats = scheduler.stats()
        assert stats.submitted == stats.done + stats.failed + stats.cancelled, (where, stats)
        assert stats.submitted in (len(self.known), len(self.known) + 1), (where, stats, len(self.known))


def await_end(job: Any) -> None:
    try:
        job.exception(8)
    except concurrent.futures.CancelledError:
        pass


def attempt(case: Case, at: int, exact: bool, way: str) -> Injector:
    """Strike once, if that point is reached."""
    # A wait needs an end if the point is not reached, or if the strike leaves what is waited for alone.
    left_alone, over = threading.Event(), threading.Event()
    vehicle = VEHICLES[way](case.strike)

    def strike() -> None:
        vehicle()
        if case.awaited is not None and not case.awaited.done():
            left_alone.set()

    def end_the_wait() -> None:
        left_alone.wait(0.03)
        if not over.is_set():
            case.scheduler.clear()

    injector = Injector(strike, at, exact=exact)
    alarm = threading.Thread(target=end_the_wait, daemon=True)
    if case.awaited is not None:
        alarm.start()
    try:
        injector.run(case.operation)
    except KeyboardInterrupt:
        assert case.strike == case.strike_interrupt
    except SchedulerClosedError:
        assert case.closed
    if case.awaited is not None:
        over.set()
        left_alone.set()
        alarm.join()
    case.verify(f"{case.operation.__name__} struck by {case.strike.__name__} at point {at}: {injector.where}")
    return injector


def main(operation: str, strike: str, variant: str, mode: str, step: int, offset: int, way: str = "call") -> None:
    if strike != "interrupt":  # that may land where Python closes a generator, which reports it and goes on
        loud()
    faulthandler.dump_traceback_later(25, exit=True)
    sys.setswitchinterval(1e-4)
    exact = mode == "exact"
    points = numbers_of(attempt(Case(operation, strike, variant), 0, exact, way).places)
    chosen = points[offset % min(step, len(points)) :: step]  # at least one, of however few there are
    struck = sum(attempt(Case(operation, strike, variant), at, exact, way).struck for at in chosen)
    assert struck >= len(chosen) / 2, f"only {struck} of {len(chosen)} points were reached"
    print(struck)


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(int, sys.argv[5:7]), *sys.argv[7:])

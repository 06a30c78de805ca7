"""A write-off that comes in between: before the move, before a turn, in a sleep, between two attempts."""

import threading
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate
from threadsched import (
    Job,
    JobStatus,
    JobTimeoutError,
    Retry,
    Scheduler,
    current_job,
)
from threadsched import _waiting as waiting_module
from threadsched._runtime import Runtime
from threadsched._worker import current_worker
from threadsched.testing import FakeClock


def test_overrun_during_the_retry_decision_takes_it_over(clock: FakeClock):
    """An attempt that raised in time, and is written off while `give_up` is asked, is settled by the watcher alone."""
    asked: list[str] = []
    decided = threading.Event()

    def give_up(error: BaseException) -> bool:
        asked.append(type(error).__name__)
        if len(asked) == 1:
            clock.jump(1)
            assert decided.wait(PATIENCE)
        return False

    calls = iter([ValueError("in time")])

    def task() -> str:
        for error in calls:
            raise error
        return "second"

    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1, retry=Retry(1, 5, give_up=give_up)).submit(task)
        while len(asked) < 2 or job.status is not JobStatus.PENDING:
            threading.Event().wait(0.001)
        decided.set()
        while s._runtime.core.time_limits.away:
            threading.Event().wait(0.001)
        assert job.status is JobStatus.PENDING
        assert job.run_at == 6
        clock.advance(5)
        assert job.result(PATIENCE) == "second"
        assert asked == ["ValueError", "JobTimeoutError"]
        assert s.stats().retries == 1
        s.check()


@pytest.mark.parametrize("outcome", ["value", "error"])
def test_overrun_just_before_the_move_drops_the_outcome(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, outcome: str
):
    """Between the look at the clock and the move under the lock the right may go: then the move is not made."""
    with Scheduler(1, clock=clock) as s:
        settle = type(s._runtime)._settle
        threads: list[Any] = []

        def struck(runtime: Any, job: Job[Any], *args: Any) -> Any:
            if not threads:
                threads.append(threading.current_thread())
                clock.jump(1)
                assert isinstance(job.exception(PATIENCE), JobTimeoutError)
            return settle(runtime, job, *args)

        def task() -> str:
            if outcome == "error":
                raise ValueError("in time")
            return "in time"

        monkeypatch.setattr(type(s._runtime), "_settle", struck)
        gate = Gate()
        s.submit(gate)
        gate.await_start()
        job = s.options(timeout=1).submit(task)
        assert job._condition  # so that a value is not settled with the next claim
        gate.open()
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        assert s.submit(int).result(PATIENCE) == 0
        while s._runtime.core.time_limits.away or s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert isinstance(job.exception(0), JobTimeoutError)
        s.check()


def test_overrun_just_before_the_turn_parts_with_the_thread(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """Written off between the end of its task and its turn at the lock, the thread comes home and claims nothing."""
    turn = Runtime.turn
    threads: list[threading.Thread] = []

    def struck(runtime: Any, worker: Any, settled: Any, *args: Any) -> Any:
        if settled is not None and not threads:
            threads.append(threading.current_thread())
            clock.jump(1)
            assert isinstance(settled.exception(PATIENCE), JobTimeoutError)
        return turn(runtime, worker, settled, *args)

    monkeypatch.setattr(Runtime, "turn", struck)
    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1).submit(int)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert s.submit(int).result(PATIENCE) == 0
        assert s.stats().workers == 1
        s.check()


def test_overrun_just_before_a_sleep_ends_it(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """A `sleep()` that begins in the very moment of the write-off does not sleep."""
    make_token = waiting_module.make_token
    sleepers: list[Any] = []

    def struck() -> Any:
        worker = current_worker()
        if worker is not None and worker.job is not None and not sleepers:
            sleepers.append(worker)
            clock.jump(1)
            while not worker.overrun:
                threading.Event().wait(0.001)
        return make_token()

    monkeypatch.setattr(waiting_module, "make_token", struck)
    slept: list[bool] = []
    with Scheduler(1, clock=clock) as s:

        def task() -> None:
            job = current_job()
            assert job is not None
            slept.append(job.sleep(100))

        job = s.options(timeout=1).submit(task)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert slept == [False]


def test_sleep_of_the_next_attempt_is_its_own(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """The first attempt's thread, waking late, does not take the second one's sleep out of reach."""
    sleep_on = waiting_module.sleep_on
    second, first_out = threading.Event(), threading.Event()

    def slow(token: Any, timeout: float | None) -> bool:
        woken = bool(sleep_on(token, timeout))
        worker = current_worker()
        if worker is not None and worker.overrun:
            assert second.wait(PATIENCE)
        return woken

    monkeypatch.setattr(waiting_module, "sleep_on", slow)
    with Scheduler(1, clock=clock) as s:

        def task() -> bool:
            job = current_job()
            assert job is not None
            slept = job.sleep(100)
            if job.attempts == 2 and not slept:
                first_out.set()
            return slept

        job = s.options(timeout=50, retries=1, backoff=0).submit(task)
        clock.advance(50)
        while job.attempts < 2 or len(s._runtime.sleepers) != 1:
            threading.Event().wait(0.001)
        second.set()
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert job.request_cancel()
        assert job.result(PATIENCE) is False
        assert first_out.is_set()

"""Tasks that overrun on real threads: written off, replaced, dropped when they come home."""

import threading
from concurrent.futures import Future, wait
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Records
from tests.overruns import Late, home, overrun, threads_of
from tests.producers import Call
from threadsched import (
    Job,
    JobStatus,
    JobTimeoutError,
    Limit,
    QueueFullError,
    Scheduler,
    _coroutines,
    current_job,
)
from threadsched import _log as log_module
from threadsched.testing import FakeClock


def test_overrun_job_fails_and_its_worker_is_replaced(clock: FakeClock, log: Records):
    """The job fails, a successor with the next number serves, the lost thread is renamed, the log has its stack."""
    with Scheduler(1, clock=clock, name="pool") as s:
        gate, job = overrun(s, clock, id="slow")
        assert s.submit(int, 7).result(PATIENCE) == 7  # capacity is whole again
        assert gate.thread is not None
        assert gate.thread.name == "pool_0 (lost: slow)"
        assert [name for name in threads_of(s) if "telling" not in name and "watcher" not in name] == [
            "pool_0 (lost: slow)",
            "pool_1",
        ]
        stats = s.stats()
        assert (stats.workers, stats.lost_workers, stats.replaced_workers, stats.failed) == (1, 1, 1, 1)
        s.check()
        [line] = log.of("WARNING")
        assert "job 'slow' (Late) has run for its timeout of 1 s: its thread pool_0 is written off" in line
        assert "in __call__" in line
        assert s.wait_idle(PATIENCE)
        home(s, gate)
        assert isinstance(job.exception(0), JobTimeoutError)  # what it returned was dropped
        stats = s.stats()
        assert (stats.lost_workers, stats.replaced_workers, stats.done) == (0, 1, 1)
        s.check()
    assert threads_of(s) == []


def test_at_most_as_many_threads_are_lost_as_there_are_workers(clock: FakeClock, log: Records):
    """Further overruns fail their jobs on time, and their threads stay in the pool until one comes home."""
    with Scheduler(2, clock=clock) as s:
        lost = [overrun(s, clock)[0] for _ in range(2)]
        stuck = [overrun(s, clock)[0] for _ in range(2)]
        stats = s.stats()
        assert (stats.workers, stats.lost_workers, stats.replaced_workers) == (2, 2, 2)
        assert sum("has no successor" in line for line in log.of("WARNING")) == 2
        waits = s.options(priority=9).submit(int)
        expires = s.options(expires=1).submit(int)
        clock.jump(1)
        with pytest.raises(Exception, match="expired"):
            expires.result(PATIENCE)  # with every worker stuck
        assert not waits.done()
        s.check()
        home(s, lost[0])  # takes the place of one that is stuck
        assert waits.result(PATIENCE) == 0
        stats = s.stats()
        assert (stats.workers, stats.lost_workers, stats.replaced_workers) == (2, 2, 3)
        s.check()
        for gate in (*stuck, lost[1]):
            home(s, gate)
        assert s.submit(int).result(PATIENCE) == 0
        s.check()
    assert s.stats().lost_workers == 0


def test_stuck_worker_serves_again_when_it_is_through(clock: FakeClock):
    """A worker that could not be replaced goes on as the worker it was; what it brought is dropped."""
    with Scheduler(1, clock=clock) as s:
        lost, _ = overrun(s, clock)
        stuck, job = overrun(s, clock)
        waits = s.submit(int)
        stuck.open()
        assert waits.result(PATIENCE) == 0
        assert isinstance(job.exception(0), JobTimeoutError)
        assert stuck.thread is not None
        assert stuck.thread.name == "threadsched_1"
        s.check()
        home(s, lost)


def test_retry_runs_while_the_first_thread_is_still_out(clock: FakeClock):
    """An overrun with retries left is retried elsewhere; what the first thread brings is dropped, whenever it comes."""
    first, second = Late(), Late()
    calls = iter([first, second])
    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1, retries=1, backoff=0).submit(lambda: next(calls)("first" if not s.closed else 0))
        first.await_start()
        clock.jump(1)
        second.await_start()
        assert (job.attempts, job.status) == (2, JobStatus.RUNNING)
        home(s, first)
        assert job.status is JobStatus.RUNNING
        s.check()
        second.open()
        assert job.result(PATIENCE) == "first"
        s.check()


@pytest.mark.parametrize("how", ["returns", "raises", "stops"])
def test_late_outcome_does_not_touch_a_retry_in_backoff(clock: FakeClock, how: str):
    """The first thread comes home while the job waits for its retry: the retry happens all the same."""
    started, go = threading.Event(), threading.Event()

    def task() -> str:
        job = current_job()
        assert job is not None
        if job.attempts == 2:
            return "second"
        started.set()
        assert go.wait(PATIENCE)
        if how == "raises":
            raise OSError("late")
        if how == "stops":
            job.check_cancelled()
        return "first"

    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1, retries=1, backoff=10).submit(task)
        assert started.wait(PATIENCE)
        clock.jump(1)
        while job.status is not JobStatus.PENDING:
            clock.advance(0, timeout=PATIENCE)
        assert [reason.kind for reason in job.explain()] == ["retry"]
        go.set()
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert job.status is JobStatus.PENDING
        clock.advance(10)
        assert job.result(PATIENCE) == "second"
        s.check()


def test_cancel_token_is_the_attempts_own(clock: FakeClock):
    """The overrun attempt is asked to stop and its sleep ends; the next attempt is not asked."""
    seen: list[Any] = []
    over = threading.Event()

    def task() -> None:
        job = current_job()
        assert job is not None
        if job.attempts == 1:
            seen.append((job.cancel_requested, job.sleep(100), job.cancel_requested, job.sleep(100)))
            seen.append(current_job() is job)
            over.set()
        else:
            assert over.wait(PATIENCE)
            seen.append((job.cancel_requested, job.sleep(0)))

    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1, retries=1, backoff=0.5).submit(task)
        clock.advance(5)
        assert job.result(PATIENCE) is None
        assert seen == [(False, False, True, False), True, (False, True)]
        s.check()


def test_token_of_a_job_that_timed_out_for_good_is_set(clock: FakeClock):
    """Also for those who look from outside of the task."""
    with Scheduler(1, clock=clock) as s:
        gate, job = overrun(s, clock)
        assert job.cancel_requested
        home(s, gate)


def test_waiters_of_every_kind_are_told(clock: FakeClock):
    """`wait`, callbacks and `on_error` hear of an overrun as of any failure, once, and no worker is needed for it."""
    told: list[Any] = []
    with Scheduler(1, clock=clock, on_error=lambda job, error: told.append(("hook", job))) as s:
        gate = Late()
        job = s.options(timeout=1).submit(gate)
        job.add_done_callback(lambda job: told.append(("callback", job)))
        waiting = Call(wait, [job], PATIENCE)
        gate.await_start()
        while job._attached is None or job._attached.condition is None or not job._attached.condition.waiters:
            threading.Event().wait(0.001)
        clock.jump(1)
        assert waiting.outcome().done == {job}
        home(s, gate)
        assert sorted(what for what, _ in told) == ["callback", "hook"]


@pytest.mark.parametrize("where", ["callback", "hook", "log"])
def test_code_that_blocks_keeps_no_limit_from_being_kept(clock: FakeClock, where: str):
    """A callback, a hook or a log handler that hangs in the first overrun does not delay the next one."""
    blocked, entered = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        if not entered.is_set():
            entered.set()
            assert blocked.wait(PATIENCE)

    class Handler(Records):
        def emit(self, record: Any) -> None:
            hang()

    handler = Handler()
    with Scheduler(1, clock=clock, on_error=hang if where == "hook" else None) as s:
        try:
            if where == "log":
                log_module.logger.addHandler(handler)
            first, second = Late(), Late()
            job = s.options(timeout=1).submit(first)
            if where == "callback":
                job.add_done_callback(hang)
            first.await_start()
            pending = s.submit(int)
            clock.jump(1)
            assert entered.wait(PATIENCE)
            assert pending.result(PATIENCE) == 0  # the successor has not waited for it either
            other = s.options(timeout=1).submit(second)
            second.await_start()
            clock.jump(1)
            assert isinstance(other.exception(PATIENCE), JobTimeoutError)
            assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        finally:
            blocked.set()
            log_module.logger.removeHandler(handler)
        home(s, first)
        home(s, second)


# ---------------------------------------------------------------- what the thread keeps


def test_lost_thread_keeps_its_limits_until_it_is_home(clock: FakeClock):
    """Its room stays taken: the next job of the limit starts when the thread has come out of the task."""
    with Scheduler(3, clock=clock, limits={"one": Limit(1), "two": Limit(2)}) as s:
        gate, _ = overrun(s, clock, limits=["one", "two"])
        held = s.options(limits="one").submit(int)
        free = s.options(limits="two").submit(int)
        assert free.result(PATIENCE) == 0
        clock.advance(0)
        assert held.status is JobStatus.PENDING
        assert (s.limits["one"].in_use, s.limits["two"].in_use) == (1, 1)
        s.check()
        home(s, gate)
        assert held.result(PATIENCE) == 0
        clock.advance(0)
        assert (s.limits["one"].in_use, s.limits["two"].in_use) == (0, 0)
        s.check()


def test_retry_waits_for_the_room_that_its_first_attempt_keeps(clock: FakeClock):
    """With one place, the second attempt cannot start beside the thread of the first."""
    first = Late()
    calls = iter([first, lambda: "second"])
    with Scheduler(2, clock=clock, limits={"one": Limit(1)}) as s:
        job = s.options(timeout=1, retries=1, backoff=0, limits="one").submit(lambda: next(calls)())
        first.await_start()
        clock.jump(1)
        clock.advance(1)
        assert [reason.kind for reason in job.explain()] == ["limit"]
        s.check()
        home(s, first)
        assert job.result(PATIENCE) == "second"
        s.check()


@pytest.mark.parametrize("end", ["fails", "retried", "cancelled"])
def test_next_run_of_a_schedule_waits_for_the_lost_thread(clock: FakeClock, end: str):
    """However the run ended, no next one starts while a thread is still in the task."""
    gate = Late()
    calls = iter([gate])
    options: dict[str, Any] = {
        "fails": {},
        "retried": {"retries": 1, "backoff": 1},
        "cancelled": {"retries": 1, "backoff": 9},
    }[end]
    with Scheduler(2, clock=clock) as s:
        schedule = s.options(timeout=1, start=0, **options).every(10, lambda: next(calls, int)())
        gate.await_start()
        clock.jump(1)
        clock.advance(2)
        if end == "cancelled":
            assert s.clear() == 1
        clock.advance(97)
        assert schedule.runs == 0
        s.check()
        home(s, gate)
        clock.advance(0)
        assert schedule.runs >= 1
        clock.advance(10)
        assert schedule.runs >= 2
        schedule.cancel()
        s.check()


# ---------------------------------------------------------------- nested waits


def test_innocent_job_below_goes_on(clock: FakeClock):
    """A job that helped the one that overran gets its error when the thread returns, and settles as any."""
    inner, told = Late(), threading.Event()
    with Scheduler(1, clock=clock) as s:

        def outer() -> str:
            job = s.options(timeout=1).submit(inner)
            job.add_done_callback(lambda _: told.set())
            with pytest.raises(JobTimeoutError):
                job.result()
            return "went on"

        job = s.submit(outer)
        inner.await_start()
        clock.jump(1)
        assert told.wait(PATIENCE)
        assert s.submit(int).result(PATIENCE) == 0  # the thread of both is lost, and replaced
        assert job.status is JobStatus.RUNNING
        assert s.stats().lost_workers == 1
        s.check()
        home(s, inner)
        assert job.result(PATIENCE) == "went on"
        assert s.stats().lost_workers == 0
        s.check()


def test_outer_job_overruns_while_an_innocent_one_runs_on_its_thread(clock: FakeClock):
    """The job that the thread is in still settles; then what the outer one returns is dropped."""
    inner = Late()
    with Scheduler(1, clock=clock) as s:
        child: list[Job[Any]] = []

        def outer() -> Any:
            child.append(s.submit(inner, "mine"))
            return child[0].result()

        job = s.options(timeout=1).submit(outer)
        inner.await_start()
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        assert child[0].status is JobStatus.RUNNING
        s.check()
        home(s, inner)
        assert child[0].result(PATIENCE) == "mine"
        assert isinstance(job.exception(0), JobTimeoutError)
        s.check()


def test_lost_thread_does_not_help(clock: FakeClock):
    """It waits like a stranger, also if it slept in `result()` when it was written off; the pool runs the job."""
    ran_on: list[str] = []
    gate = Late()
    parent: Future[None] = Future()
    with Scheduler(1, clock=clock) as s:

        def child() -> str:
            ran_on.append(threading.current_thread().name)
            return "child"

        def waits_already() -> Any:
            return s.options(after=parent).submit(child).result()

        def waits_later() -> Any:
            gate()
            return s.submit(child).result()

        jobs = [s.options(timeout=1).submit(waits_already)]
        while not s._runtime.helpers:
            threading.Event().wait(0.001)
        clock.jump(1)
        assert isinstance(jobs[0].exception(PATIENCE), JobTimeoutError)
        assert not s._runtime.helpers
        s.check()
        parent.set_result(None)
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        jobs.append(s.options(timeout=1).submit(waits_later))
        gate.await_start()
        clock.jump(1)
        assert isinstance(jobs[1].exception(PATIENCE), JobTimeoutError)
        home(s, gate)
        assert len(ran_on) == 2
        assert not any("lost" in name for name in ran_on)
        s.check()


def test_stuck_worker_still_helps_itself(clock: FakeClock):
    """Without a successor nobody else could run what it waits for, so it does, and comes through."""
    gate, more = Late(), Late()
    with Scheduler(1, clock=clock) as s:
        lost, _ = overrun(s, clock)

        def task() -> None:
            gate()
            assert s.submit(more, "helped").result() == "helped"

        job = s.options(timeout=1).submit(task)
        gate.await_start()
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        gate.open()
        more.await_start()
        assert more.thread is gate.thread
        s.check()
        more.open()
        assert s.submit(int).result(PATIENCE) == 0
        s.check()
        home(s, lost)


def test_lost_thread_submits_like_a_stranger(clock: FakeClock):
    """It may wait for a place in a full queue, which a worker must not."""
    gate, answers = Late(), []
    with Scheduler(1, clock=clock, max_pending=1) as s:

        def task() -> None:
            filler = s.options(delay=5).submit(int)
            with pytest.raises(QueueFullError):
                s.submit(int)
            gate()
            answers.append(s.submit(int))
            assert filler.done()

        job = s.options(timeout=1).submit(task)
        gate.await_start()
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        gate.open()
        while not s._runtime.core.gate.line:  # type: ignore[union-attr]
            threading.Event().wait(0.001)
        clock.advance(5)
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        assert answers[0].result(PATIENCE) == 0


def test_submitter_that_runs_its_own_job_is_no_lost_worker(clock: FakeClock):
    """Under "caller_runs" the job fails on time; its submitter returns with the task, and no worker is replaced."""
    gate, blocker = Late(), Gate()
    with Scheduler(1, clock=clock, max_pending=1, on_full="caller_runs") as s:
        s.submit(blocker)
        blocker.await_start()
        filler = s.submit(int)
        call = Call(s.options(timeout=1).submit, gate)
        gate.await_start()
        [job] = [job for job in s._runtime.core.running.values() if job._fn is gate]
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        assert (s.stats().lost_workers, s.stats().replaced_workers) == (0, 0)
        s.check()
        gate.open()
        assert call.outcome() is job
        blocker.open()
        assert filler.result(PATIENCE) == 0
        assert not s._runtime.core.time_limits.away


def test_wait_that_begins_as_the_thread_is_written_off(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """A thread that is written off on its way into `result()` waits like anybody: nothing is kept of that wait."""
    refuse_to_block = _coroutines.refuse_to_block
    written_off = threading.Event()

    def late(awaited: Job[Any]) -> None:  # called between the look and the wait
        if current_job() is parents[0] and not written_off.is_set():
            clock.jump(1)
            assert isinstance(parents[0].exception(PATIENCE), JobTimeoutError)
            written_off.set()
        refuse_to_block(awaited)

    monkeypatch.setattr(_coroutines, "refuse_to_block", late)
    known = threading.Event()
    parents: list[Job[Any]] = []
    with Scheduler(1, clock=clock) as s:
        child = s.options(delay=3600).submit(int)

        def parent() -> int:
            assert known.wait(PATIENCE)
            return child.result()

        parents.append(s.options(timeout=1).submit(parent))
        known.set()
        assert written_off.wait(PATIENCE)
        clock.advance(0)
        s.check()
        assert s._runtime.awaits == {}
        clock.advance(3600)
        assert child.result(PATIENCE) == 0
        assert s.wait_idle(PATIENCE)
        s.check()

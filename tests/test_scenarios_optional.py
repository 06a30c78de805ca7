"""Optional scenarios of the catalogue that the design offers and that have no room of their own.

Those about limits, schedules, dependencies and the like stand beside the other tests of these.
"""

import math
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, in_thread, occupied
from tests.limits_support import scheduler
from tests.overruns import Late, home
from threadsched import Job, JobExpiredError, JobStatus, JobTimeoutError, Limit, Scheduler, Stats, current_job


def boom(text: str) -> None:
    raise ValueError(text)


def test_con_11_counters_follow_each_step():
    """The counts are right before, during (seen from inside too) and after jobs, and still after the shutdown."""
    s = Scheduler(2)
    assert s.stats() == Stats(*[0] * 14)
    with occupied(s) as (running,):
        during = s.submit(s.stats).result(PATIENCE)
        assert (during.running, during.done, during.pending, during.submitted) == (2, 0, 0, 2)
        assert (s.stats().running, s.stats().done) == (1, 1)
        with occupied(s):
            waiting = [s.submit(abs, -1), s.options(delay=3600).submit(abs, -1)]
            full = s.stats()
            assert (full.running, full.pending, full.ready, full.delayed, full.submitted) == (2, 2, 1, 1, 5)
            assert waiting[1].cancel()
            assert s.stats().cancelled == 1
    assert running.result(PATIENCE) is None
    failed = s.submit(boom, "told")
    assert isinstance(failed.exception(PATIENCE), ValueError)
    assert s.shutdown()
    after = s.stats()
    assert (after.running, after.pending, after.workers) == (0, 0, 0)
    assert (after.done, after.failed, after.cancelled, after.submitted) == (4, 1, 1, 6)


def test_con_12_threads_come_with_the_first_job():
    """A scheduler that nobody uses has no thread; the first submission starts them all, and idleness ends none."""
    before = threading.active_count()
    with Scheduler(3) as s:
        assert threading.active_count() == before
        assert s.submit(abs, -2).result(PATIENCE) == 2
        assert s.stats().workers == 3
        assert threading.active_count() == before + 3
        with occupied(s, 3):
            assert threading.active_count() == before + 3
        assert s.wait_idle(PATIENCE)
        assert threading.active_count() == before + 3


def test_can_11_the_request_reaches_the_task():
    """The running task sees that it is asked to stop, on the very job that was asked; its slot and count go with it."""
    with Scheduler(1) as s:
        entered, looked = threading.Event(), threading.Event()
        seen: list[object] = []

        def task() -> None:
            job = current_job()
            assert job is not None
            seen.append((job, job.cancel_requested))
            entered.set()
            assert looked.wait(PATIENCE)
            seen.append(job.cancel_requested)
            job.check_cancelled()

        job = s.submit(task)
        assert entered.wait(PATIENCE)
        assert job.request_cancel()
        assert s.stats().running == 1
        looked.set()
        assert s.wait_idle(PATIENCE)
        assert seen == [(job, False), True]
        assert job.status is JobStatus.CANCELLED
        assert (s.stats().running, s.stats().cancelled) == (0, 1)
        assert s.submit(abs, -3).result(PATIENCE) == 3


def test_shd_08_timed_wait_for_the_end():
    """Asked to wait for 0 or a little, the shutdown says truthfully that it has not ended; later, that it has."""
    s = Scheduler(1)
    with occupied(s) as (job,):
        for timeout in (0, 0.01):
            report = s.shutdown(timeout=timeout)
            assert not report
            assert [info.id for info in report.running] == [job.id]
    assert s.shutdown(timeout=PATIENCE)
    assert s.shutdown(timeout=0)


def test_rat_10_limited_or_not():
    """A limit says whether it lets a job start, and how many it holds back: used up, waited for, drained, cleared."""
    with scheduler(limits={"mail": Limit(rate=2)}) as (pool, clock, starts):

        def stands() -> tuple[bool, int]:
            info = pool.limits["mail"]
            return info.next_room_at is not None, info.waiting

        mail = pool.options(limits="mail")
        assert stands() == (False, 0)
        for _ in range(2):
            mail.submit(starts.task)
        clock.advance(0)
        assert stands() == (True, 0)  # used up, and nobody waits
        mail.submit(starts.task)
        clock.advance(0)
        assert stands() == (True, 1)
        clock.advance(1)
        assert stands() == (False, 0)  # the third has started, and one more could
        clock.advance(1)
        assert stands() == (False, 0)
        for _ in range(3):
            mail.submit(starts.task)
        clock.advance(0)
        assert stands() == (True, 1)
        assert pool.clear() == 1
        assert stands() == (True, 0)  # clearing the queue forgets no start
        clock.advance(1)
        assert stands() == (False, 0)


def test_err_02_error_hook():
    """The hook hears of each failure once, with its job; the jobs' own futures hold the errors all the same."""
    heard: list[tuple[Job[object], str]] = []
    with Scheduler(1, on_error=lambda job, error: heard.append((job, str(error)))) as s:
        jobs = [s.submit(boom, text) for text in ("first", "second")]
        assert s.wait_idle(PATIENCE)
        assert [str(job.exception(0)) for job in jobs] == ["first", "second"]
    assert heard == [(jobs[0], "first"), (jobs[1], "second")]


def test_err_03_stop_at_the_first_error():
    """A hook that pauses the scheduler stops it at the first error: no further job starts, and idle does not come."""
    failed = threading.Event()

    def stop(job: object, error: object) -> None:
        s.pause()
        failed.set()

    s = Scheduler(1, on_error=stop)
    gate = Gate()
    good, bad = s.submit(gate, 1), s.submit(boom, "stop here")
    later = s.submit(abs, -1)
    idle = in_thread(lambda: s.wait_idle(PATIENCE))
    gate.open()
    assert failed.wait(PATIENCE)
    assert (good.result(0), bad.status, later.status) == (1, JobStatus.FAILED, JobStatus.PENDING)
    assert [reason.kind for reason in later.explain()] == ["paused"]
    assert not s.wait_idle(0)
    assert s.clear() == 1
    assert s.shutdown()
    assert idle()
    assert later.cancelled()


def test_int_02_sleeping_tasks_are_woken_by_the_request():
    """Jobs asleep for long end at once when they are asked to, and the shutdown that waits for them returns."""
    with scheduler(2) as (pool, clock, _):  # where nobody moves the clock, so that they would sleep for ever
        asleep = threading.Barrier(3)

        def task() -> None:
            job = current_job()
            assert job is not None
            asleep.wait(PATIENCE)
            assert job.sleep(1e6) is False
            job.check_cancelled()

        jobs = [pool.submit(task) for _ in range(2)]
        asleep.wait(PATIENCE)
        report = pool.shutdown(wait=False, drain="none")
        assert sorted(info.id for info in report.running) == [1, 2]
        assert all(job.request_cancel() for job in jobs)
        assert pool.shutdown(timeout=PATIENCE)
        assert [job.status for job in jobs] == [JobStatus.CANCELLED] * 2
        assert clock.now() == 0


def sleep(seconds: float) -> str:
    """Sleep on the scheduler's clock, whatever is asked meanwhile: a task that does not look."""
    job = current_job()
    assert job is not None
    job.sleep(seconds)
    return "slept"


def test_tim_01_task_over_its_time():
    """Of two tasks with a limit of 0.3 s, the one that takes longer fails at that instant; the other has its result."""
    with scheduler(2) as (pool, clock, _):
        limited = pool.options(timeout=0.3)
        long, short = limited.submit(sleep, 0.4), limited.submit(sleep, 0.2)
        clock.advance(1)
        assert short.result(0) == "slept"
        error = long.exception(0)
        assert isinstance(error, JobTimeoutError)
        assert isinstance(error, TimeoutError)
        assert (long.status, long.info().finished_at) == (JobStatus.FAILED, 0.3)


def test_tim_02_each_job_by_its_own_limit():
    """There is no limit for all: jobs have those of their own options, or none, whatever others were given before."""
    with scheduler(3) as (pool, clock, _):
        usual = pool.options(timeout=0.2)
        roomy, tight, free = (
            pool.options(timeout=0.6).submit(sleep, 0.4),
            pool.options(timeout=0.05).submit(sleep, 0.1),
            pool.submit(sleep, 7),
        )
        clock.advance(10)
        over = usual.submit(sleep, 0.4)
        clock.advance(10)
        assert [job.result(0) for job in (roomy, free)] == ["slept", "slept"]
        assert [type(job.exception(0)) for job in (tight, over)] == [JobTimeoutError] * 2


def test_tim_03_timed_out_task_is_over_for_the_queue():
    """Though its thread goes on, idle is reached, the next job has a worker, and what the thread returns is dropped."""
    gate = Late()
    with scheduler(1) as (pool, clock, _):
        job = pool.options(timeout=5).submit(gate, "too late")
        gate.await_start()
        clock.advance(5, wait=False)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        assert pool.wait_idle(PATIENCE)
        assert pool.submit(abs, -1).result(PATIENCE) == 1
        assert (pool.stats().workers, pool.stats().lost_workers, pool.stats().running) == (1, 1, 0)
        home(pool, gate)
        assert pool.shutdown(timeout=PATIENCE)
        assert isinstance(job.exception(0), JobTimeoutError)


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (math.inf, ValueError), (math.nan, ValueError), ("1", TypeError)],
)
def test_tim_04_bad_limits_are_refused(value: Any, error: type[Exception]):
    """What is not positive and finite is refused by name when the options are made, for schedules too."""
    with Scheduler(1) as s:
        with pytest.raises(error, match="timeout must be"):
            s.options(timeout=value)
        assert s.stats().submitted == 0


def test_dly_05_start_deadline_missed():
    """Due a second ago with no grace: it is not run, its outcome says so, it has no start time; nothing else is."""
    with scheduler(1) as (pool, clock, starts):
        past = datetime.fromtimestamp(clock.wall() - 1, UTC)
        job = pool.options(at=past, expires=0).submit(starts.task)
        lenient = pool.options(at=past).submit(starts.task, "late, and run")
        clock.advance(10)
        with pytest.raises(JobExpiredError, match="had not started within 0 s"):
            job.result(0)
        assert (job.status, job.info().started_at, job.attempts) == (JobStatus.CANCELLED, None, 0)
        assert starts.names == ["late, and run"]
        assert (lenient.status, pool.stats().failed) == (JobStatus.DONE, 0)

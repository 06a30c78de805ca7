"""``timeout`` and ``expires`` in the core, stepped: exact instants, no threads."""

import concurrent.futures
import datetime
import gc
import math
import weakref
from typing import Any

import pytest

from threadsched import (
    DeadlinePolicy,
    DependencyError,
    InvariantError,
    Job,
    JobExpiredError,
    JobStatus,
    JobTimeoutError,
    Limit,
    Retry,
    Scheduler,
    current_job,
)
from threadsched._time_limits import limit_of
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])
NOON = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


def clock_of(s: StepScheduler) -> FakeClock:
    assert isinstance(s.clock, FakeClock)
    return s.clock


def take(s: StepScheduler, seconds: float, answer: object = None) -> object:
    """A task that lets time go by."""
    clock_of(s).advance(seconds)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def limits_of(s: StepScheduler | Scheduler) -> Any:
    return s._runtime.core.time_limits


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("timeout", 0, ValueError),
        ("timeout", -1, ValueError),
        ("timeout", math.nan, ValueError),
        ("timeout", math.inf, ValueError),
        ("timeout", datetime.timedelta(0), ValueError),
        ("timeout", True, TypeError),
        ("timeout", "1", TypeError),
        ("timeout", NOON, TypeError),
        ("expires", -0.5, ValueError),
        ("expires", math.nan, ValueError),
        ("expires", math.inf, ValueError),
        ("expires", datetime.timedelta(-1), ValueError),
        ("expires", NOON.replace(tzinfo=None), ValueError),
        ("expires", False, TypeError),
        ("expires", "soon", TypeError),
        ("deadline", NOON.replace(tzinfo=None), ValueError),
        ("deadline", datetime.date(2030, 1, 1), TypeError),
    ],
)
def test_bad_time_limits_are_refused_by_name(option: str, value: Any, error: type[Exception]):
    """What is no duration above its bound, nor (but for timeout) an aware datetime, is refused, naming the option."""
    with pytest.raises(error, match=option):
        StepScheduler().options(**{option: value})


def test_none_means_no_limit():
    """None is the default of all three, and makes a plain job."""
    s = StepScheduler()
    job = s.options(timeout=None, expires=None, deadline=None).submit(int)
    assert job._attached is None
    assert not limits_of(s).live


def test_durations_may_be_timedeltas():
    """A timedelta is as good as seconds."""
    s = StepScheduler()
    late = s.options(timeout=MINUTE).submit(take, s, 60)
    gone = s.options(expires=MINUTE, delay=100).submit(int)
    s.tick()
    s.tick()
    assert isinstance(late.exception(0), JobTimeoutError)
    assert gone.cancelled()


# ---------------------------------------------------------------- expires


@both
def test_job_that_has_not_started_by_its_expiry_is_cancelled(queue: str):
    """It ends CANCELLED with JobExpiredError at the very instant; a moment before it would have started."""
    s = StepScheduler(queue=queue)
    just, gone = (s.options(expires=2, priority=n, id=f"job {n}").submit(int) for n in (1, 2))
    clock_of(s).advance(1.999)
    s.tick()
    assert just.status is JobStatus.DONE
    clock_of(s).advance(0.001)
    assert s.tick() == []
    assert gone.status is s.status_of("job 2") is JobStatus.CANCELLED
    with pytest.raises(JobExpiredError, match=r"job 2. .int. expired: it had not started within 2 s") as caught:
        gone.result(0)
    assert isinstance(caught.value, concurrent.futures.CancelledError)
    assert s.stats().cancelled == 1
    s.check()


@pytest.mark.parametrize("place", ["delayed", "ready", "parent", "limit", "paused"])
def test_expiry_comes_wherever_the_job_waits(place: str):
    """A job expires in the delayed queue, in the ready one, behind a parent or a limit, and in a pause."""
    s = StepScheduler(limits={"one": Limit(1)})
    blocker = s.options(limits="one").submit(int)
    assert blocker.claim()
    parent = s.options(delay=100).submit(int)
    options: dict[str, Any] = {"delayed": {"delay": 50}, "parent": {"after": parent}, "limit": {"limits": "one"}}
    job = s.options(expires=5, **options.get(place, {})).submit(int)
    if place in ("paused", "ready"):
        s.pause()
    s.tick()
    assert job.explain()[-1].kind == "expires"
    assert job.explain()[-1].until == 5
    clock_of(s).advance(5)
    s.tick()
    assert isinstance(job._result, JobExpiredError)
    s.check()
    blocker.set_result(None)


def test_expired_job_frees_its_place_and_drops_what_it_held():
    """Its place among the pending is free, its arguments are gone, its dependents and callbacks are told."""

    class Argument:
        pass

    s = StepScheduler(max_pending=2)
    argument = Argument()
    gone = weakref.ref(argument)
    job = s.options(expires=1).submit(id, argument)
    dependent = s.options(after=job, delay=9).submit(int)
    told: list[Job[Any]] = []
    job.add_done_callback(told.append)
    del argument
    s.pause()
    clock_of(s).advance(1)
    s.tick()
    assert gone() is None
    assert told == [job]
    assert isinstance(dependent._result, DependencyError)
    s.submit(int)
    s.submit(int)
    s.check()


def test_expiry_ends_with_the_first_start():
    """A job in backoff does not expire: it has started."""
    s = StepScheduler()
    job = s.options(expires=2, retries=1, backoff=10).submit(take, s, 0, OSError())
    s.tick()
    clock_of(s).advance(9.5)
    s.tick()
    assert job.status is JobStatus.PENDING
    assert [reason.kind for reason in job.explain()] == ["retry"]
    clock_of(s).advance(1)
    s.tick()
    assert isinstance(job.exception(0), OSError)
    s.check()


def test_expires_zero_never_starts():
    """A job that may wait no time at all is cancelled by the next tick."""
    s = StepScheduler()
    job = s.options(expires=0).submit(int)
    assert s.tick() == []
    assert isinstance(job._result, JobExpiredError)


def test_a_claim_at_the_expiry_is_refused():
    """`claim()` starts a job as well: not from its expiry on."""
    s = StepScheduler()
    job, other = (s.options(expires=1).submit(int) for _ in range(2))
    assert other.claim()
    clock_of(s).advance(1)
    assert not job.claim()
    s.check()
    s.tick()
    assert isinstance(job._result, JobExpiredError)
    assert other.status is JobStatus.RUNNING  # who has claimed it has all the time
    other.set_result(None)
    s.check()


def test_expires_may_be_a_moment_of_the_wall_clock():
    """An aware datetime is turned into a reading of the scheduler's clock at the submission; a past one expires now."""
    s = StepScheduler(clock=FakeClock(100.0, wall=NOON))
    job = s.options(expires=NOON + MINUTE, delay=500).submit(int)
    past = s.options(expires=NOON - MINUTE).submit(int)
    assert job.explain()[-1].until == 160
    s.tick()
    assert isinstance(past._result, JobExpiredError)
    clock_of(s).advance(59.999)
    s.tick()
    assert job.status is JobStatus.PENDING
    clock_of(s).advance(0.001)
    s.tick()
    assert job.cancelled()


def test_deadline_may_be_a_moment_of_the_wall_clock():
    """It orders among relative ones, whatever the clocks show."""
    s = StepScheduler(clock=FakeClock(100.0, wall=NOON), policy=DeadlinePolicy())
    late = s.options(deadline=61).submit(int)
    early = s.options(deadline=NOON + MINUTE).submit(int)
    past = s.options(deadline=NOON - MINUTE).submit(int)
    assert (late.deadline, early.deadline, past.deadline) == (161, 160, 40)
    assert [ran.id for _ in range(3) for ran in s.tick()] == [past.id, early.id, late.id]


# ---------------------------------------------------------------- timeout


@both
def test_attempt_that_takes_its_timeout_fails(queue: str):
    """A task that ran for as long as its timeout fails with JobTimeoutError; one that is quicker is DONE."""
    s = StepScheduler(queue=queue)
    slow = s.options(timeout=2, name="slow").submit(take, s, 2, "late")
    quick = s.options(timeout=2).submit(take, s, 1.999, "in time")
    s.tick()
    s.tick()
    assert quick.result(0) == "in time"
    with pytest.raises(JobTimeoutError, match=r"job 1 .slow. ran longer than its timeout of 2 s") as caught:
        slow.result(0)
    assert isinstance(caught.value, TimeoutError)
    assert slow.explain()[0].detail.startswith("ended FAILED: JobTimeoutError")
    s.check()
    assert not limits_of(s).live


def test_error_that_comes_too_late_is_the_cause():
    """What a task raises after its time is dropped, and can be found behind the JobTimeoutError."""
    s = StepScheduler()
    error = OSError("late")
    job = s.options(timeout=1).submit(take, s, 1, error)
    s.tick()
    failure = job.exception(0)
    assert isinstance(failure, JobTimeoutError)
    assert failure.__cause__ is error


def test_timeout_counts_from_each_start():
    """Waiting does not count, and each attempt has all of its time; the pause before it is the usual one."""
    s = StepScheduler()
    spent = iter([3, 3, 2.5])
    job = s.options(timeout=3, retries=5, backoff=1, delay=100).submit(lambda: take(s, next(spent), "at last"))
    clock_of(s).advance(100)
    starts = []
    while not job.done():
        if s.tick():
            starts.append(job._started_at)
        clock_of(s).advance(0.5)
    assert starts == [100, 104, 109]
    assert job.result(0) == "at last"
    assert s.stats().retries == 2
    s.check()


def test_a_retry_may_refuse_timeouts():
    """`on` decides about JobTimeoutError as about any other error, and the notes tell of earlier attempts."""
    s = StepScheduler()
    never = s.options(timeout=1, retry=Retry(3, on=(ValueError,))).submit(take, s, 1)
    twice = s.options(timeout=1, retries=1, backoff=0).submit(take, s, 1)
    for _ in range(4):
        s.tick()
    assert never.attempts == 1
    assert twice.attempts == 2
    error = twice.exception(0)
    assert error is not None
    assert error.__notes__ == [f"attempt 1: JobTimeoutError: job {twice.id} (take) ran longer than its timeout of 1 s"]
    assert isinstance(never.exception(0), JobTimeoutError)


def test_running_job_says_until_when_it_may():
    """`explain()` of a running job ends with its timeout."""
    s = StepScheduler()
    seen: list[Any] = []

    def look() -> None:
        job = current_job()
        assert job is not None
        clock_of(s).advance(1)
        seen.extend(job.explain())
        assert not job.cancel_requested

    s.options(timeout=5, expires=1).submit(look)
    s.tick()
    assert [reason.kind for reason in seen] == ["running", "timeout"]
    assert (seen[1].detail, seen[1].until) == ("fails if it has not ended in 4 s, 5 s after its start", 5)


def test_a_claimed_job_has_no_time_limit():
    """Who takes a job by `claim()` may take as long as it likes."""
    s = StepScheduler()
    job = s.options(timeout=1, expires=1).submit(int)
    assert job.claim()
    clock_of(s).advance(10)
    s.tick()
    s.check()
    job.set_result("mine")
    assert job.result(0) == "mine"
    assert not limits_of(s).live


def test_nested_attempts_are_timed_each_by_its_own():
    """A job that is run inside another overruns alone if only it has a timeout; the outer one goes on."""
    s = StepScheduler(2)
    inner = s.options(timeout=1, priority=9).submit(take, s, 2)

    def wait() -> str:
        with pytest.raises(JobTimeoutError):
            inner.result()
        return "went on"

    outer = s.options(timeout=5).submit(wait)
    s.tick()
    assert isinstance(inner.exception(0), JobTimeoutError)
    assert outer.result(0) == "went on"
    both_late = s.options(priority=9, timeout=1).submit(take, s, 2)
    outer_late = s.options(timeout=1).submit(both_late.exception)
    s.tick()
    assert isinstance(both_late.exception(0), JobTimeoutError)
    assert isinstance(outer_late.exception(0), JobTimeoutError)
    s.check()


def test_recurring_runs_have_the_limits_of_their_schedule():
    """Each run has a timeout of its own, and one that expired counts as skipped."""
    s = StepScheduler()
    schedule = s.options(timeout=2, expires=1).every(10, take, s, 3)
    clock_of(s).advance(10)
    s.tick()
    s.tick()
    assert (schedule.runs, schedule.failures, schedule.skipped) == (1, 1, 0)
    clock_of(s).advance(7)
    blocker = s.options(priority=0).submit(take, s, 2)
    s.tick()
    s.tick()
    assert blocker.done()
    s.tick()
    assert (schedule.runs, schedule.failures, schedule.skipped) == (1, 1, 1)
    s.check()


# ---------------------------------------------------------------- the heap of limits


def test_short_jobs_leave_no_entries():
    """Ended jobs leave at most as many entries as there are live ones, and a few."""
    s = StepScheduler(100)
    hourly = s.options(timeout=3600, expires=3600)
    lives = [hourly.submit(int) for _ in range(10)]
    s.pause()
    for _ in range(5_000):
        hourly.submit(int).cancel()
    assert len(limits_of(s).armings._queue) <= 2 * 10 + 65
    s.resume()
    for _ in range(50):
        jobs = [hourly.submit(int) for _ in range(100)]
        s.tick()
    s.tick()
    assert all(job.done() for job in jobs + lives)
    assert len(limits_of(s).armings._queue) <= 65
    assert not limits_of(s).live
    s.check()


def test_limits_hold_no_ended_job():
    """A job with limits is gone when it has ended and nobody has it: no cycle waits for the collector."""
    s = StepScheduler()
    gc.disable()
    try:
        refs = []
        for value in ("done", OSError("failed")):
            job = s.options(timeout=9, expires=9).submit(take, s, 0, value)
            refs.append(weakref.ref(job))
            s.tick()
            job.exception(0)
        job = s.options(timeout=9, expires=9).submit(take, s, 0)
        refs.append(weakref.ref(job))
        job.cancel()
        del job
        value = None  # its traceback knows a frame of the task
        s.submit(int)
        s.tick()
        assert [ref() for ref in refs] == [None, None, None]
    finally:
        gc.enable()


def test_repair_arms_again_what_an_exception_left():
    """After an exception in the middle of a move the limits are rebuilt from the jobs."""
    s = StepScheduler()
    waits, gone = (s.options(expires=5).submit(int) for _ in range(2))
    gone.cancel()
    limits = limits_of(s)
    limits.live[gone.seq] = gone  # as if its end had been broken off here
    limits.disarm(limit_of(waits))
    with pytest.raises(InvariantError):
        s.check()
    s._runtime.core.repair()
    s.check()
    assert limits.due() == 5


@pytest.mark.parametrize("fault", ["not armed", "armed for nobody", "wrong time", "dead", "lost entry"])
def test_audit_notices(fault: str):
    """`check()` finds each way in which the heap of limits may be wrong."""
    s = StepScheduler()
    job = s.options(expires=5, delay=9).submit(int)
    limits, limit = limits_of(s), limit_of(job)
    s.check()
    if fault == "not armed":
        limits.disarm(limit)
    elif fault == "armed for nobody":
        del limits.live[job.seq]
    elif fault == "wrong time":
        limits.arm(limit, 6)
    elif fault == "dead":
        limits.live[77] = job
    else:
        limits.armings._queue.lane.clear()
    with pytest.raises(InvariantError):
        s.check()


def test_shutdown_keeps_the_limits():
    """Jobs drained after the door closed still expire, and one that overruns is not retried under "due"."""
    s = StepScheduler()
    slow = s.options(timeout=1, retries=3).submit(take, s, 1)
    gone = s.options(expires=1, delay=0.5).submit(int)
    s.shutdown()
    s.tick()
    s.tick()
    assert gone.cancelled()
    assert slow.status is JobStatus.PENDING
    s.shutdown(drain="due")
    assert isinstance(slow.exception(0), JobTimeoutError)
    s.check()


def test_caller_runs_is_under_the_timeout_too():
    """A task that its submitter runs, for the queue was full, fails like any other if it takes too long."""
    s = StepScheduler(max_pending=1, on_full="caller_runs")
    s.options(delay=9).submit(int)
    job = s.options(timeout=1, expires=1).submit(take, s, 1)
    assert isinstance(job.exception(0), JobTimeoutError)
    assert not limits_of(s).live
    s.check()


def test_refused_submission_leaves_no_limit():
    """A job that was not accepted is not watched."""
    s = StepScheduler(max_pending=1)
    s.options(delay=9, id="a").submit(int)
    for options in ({"id": "b"}, {"id": "a"}):
        with pytest.raises(Exception, match=r"pending|live"):
            s.options(timeout=1, expires=1, **options).submit(int)
    assert not limits_of(s).live
    s.check()


def test_attempt_that_an_interrupt_broke_off_fails_at_its_limit():
    """A stepped job left RUNNING by a Ctrl-C in our own code is ended by its timeout, and nothing is left behind."""
    s = StepScheduler()
    job = s.options(timeout=3).submit(int)
    s._runtime.core.promote(0.0)
    assert s._runtime.core.claim(0.0, s._slots[0]) is job
    clock_of(s).advance(3)
    s.tick()
    assert isinstance(job.exception(0), JobTimeoutError)
    assert s.shutdown()
    s.check()

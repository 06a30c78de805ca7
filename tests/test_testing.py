"""The clock that is moved by hand, with real workers, and the scheduler that is stepped."""

import datetime
import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from threadsched import (
    DuplicateJobError,
    FifoPolicy,
    JobStatus,
    Limit,
    RetryAfter,
    Scheduler,
    SchedulerClosedError,
    _clock,
    current_job,
)
from threadsched.testing import FakeClock, Ran, StepScheduler

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus


class Trace:
    """Tasks note here when and what they are."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.entries: list[tuple[float, object]] = []

    def __call__(self, what: object = None) -> None:
        self.entries.append((self.clock.now(), what))


# ---------------------------------------------------------------- the clock by itself


def test_clock_stands_until_it_is_moved():
    """Two readings are the same unless somebody moved the clock between them."""
    clock = FakeClock(100)
    assert (clock.now(), clock.now()) == (100.0, 100.0)
    clock.advance(1.5)
    assert clock.now() == 101.5
    clock.advance(datetime.timedelta(minutes=1))
    assert clock.now() == 161.5
    clock.jump(10)
    assert clock.now() == 171.5
    clock.advance(0)
    clock.advance(2, wait=False)
    assert clock.now() == 173.5


@pytest.mark.parametrize("start", [math.nan, "0", None, True])
def test_start_must_be_a_number(start: Any):
    """The first reading is a real number."""
    with pytest.raises((TypeError, ValueError), match="start"):
        FakeClock(start)


@pytest.mark.parametrize(
    ("seconds", "kind"), [(-1, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("1", TypeError)]
)
def test_clock_moves_forward_only(seconds: Any, kind: type[Exception]):
    """A step that is no duration is refused, and the clock stands where it stood."""
    clock = FakeClock()
    with pytest.raises(kind, match="seconds"):
        clock.advance(seconds)
    with pytest.raises(kind, match="seconds"):
        clock.jump(seconds)
    assert clock.now() == 0


# ---------------------------------------------------------------- with real workers


def test_delayed_jobs_run_at_their_time():
    """Each delayed job runs when the clock reaches its run_at, neither before nor after, in no real time."""
    clock = FakeClock()
    trace = Trace(clock)
    with Scheduler(2, clock=clock) as scheduler:
        for delay in (3600, 86400 * 365, 0.5, 3600):
            scheduler.options(delay=delay).submit(trace, delay)
        clock.advance(0.25)
        assert trace.entries == []
        clock.advance(3600)
        assert trace.entries == [(0.5, 0.5), (3600.0, 3600), (3600.0, 3600)]
        clock.advance(86400 * 365)
    assert trace.entries[3:] == [(86400 * 365.0, 86400 * 365)]


def test_retries_run_at_their_time():
    """A failing job is run again at exactly the times of its backoff, and after what RetryAfter says."""
    clock = FakeClock()
    trace = Trace(clock)

    def failing() -> None:
        job = current_job()
        assert job is not None
        trace((job.attempts, job.run_at))
        if job.attempts == 3:
            raise RetryAfter(100)
        raise ValueError("not yet")

    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.options(retries=3, backoff=10).submit(failing)
        clock.advance(1000)
        assert trace.entries == [(0, (1, 0)), (10, (2, 10)), (30, (3, 30)), (130, (4, 130))]
        assert isinstance(job.exception(timeout=0), ValueError)
        assert job.attempts == 4


def test_one_advance_steps_through_each_due_time():
    """A job that submits its successor runs five times within one advance, each time at its own time."""
    clock = FakeClock()
    trace = Trace(clock)
    with Scheduler(2, clock=clock) as scheduler:

        def run(left: int) -> None:
            trace(left)
            if left:
                scheduler.options(delay=10).submit(run, left - 1)

        scheduler.options(delay=10).submit(run, 4)
        clock.advance(55)
        assert trace.entries == [(10, 4), (20, 3), (30, 2), (40, 1), (50, 0)]
        assert clock.now() == 55


def test_jump_is_one_leap():
    """After a jump what was due on the way runs late, at the new reading."""
    clock = FakeClock()
    trace = Trace(clock)
    with Scheduler(1, clock=clock) as scheduler:
        for delay in (10, 20, 30):
            scheduler.options(delay=delay).submit(trace, delay)
        clock.advance(0)
        clock.jump(25)
        clock.advance(0)
        assert trace.entries == [(25, 10), (25, 20)]
        clock.advance(5)
    assert trace.entries[2:] == [(30, 30)]


def test_advance_without_waiting_returns_at_once():
    """With wait=False the clock moves in one leap though a worker is busy, and the jobs run by and by."""
    clock = FakeClock()
    free, started = threading.Event(), threading.Event()
    trace = Trace(clock)

    def hold() -> None:
        started.set()
        assert free.wait(5)

    with Scheduler(1, clock=clock) as scheduler:
        scheduler.submit(hold)
        assert started.wait(5)
        late = scheduler.options(delay=1).submit(trace)
        clock.advance(10, wait=False)
        assert clock.now() == 10
        assert not late.done()
        free.set()
        late.result(timeout=5)
    assert trace.entries == [(10, None)]


def test_advance_names_what_does_not_come_to_rest():
    """If a job runs on, advance gives up after its real timeout and names the job."""
    clock = FakeClock()
    free = threading.Event()

    def stubborn() -> None:
        assert free.wait(5)

    with Scheduler(1, clock=clock) as scheduler:
        scheduler.options(id="the stubborn one").submit(stubborn)
        try:
            with pytest.raises(TimeoutError, match="the stubborn one"):
                clock.advance(1, timeout=0.02)
        finally:
            free.set()
        clock.advance(0)


@pytest.mark.parametrize("call", ["advance", "rest"])
def test_job_cannot_advance_its_own_clock_and_wait(call: str):
    """A job that would wait for itself gets a RuntimeError, and the clock has not moved."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.submit(clock.advance, 5 if call == "advance" else 0)
        with pytest.raises(RuntimeError, match="cannot advance the clock"):
            job.result(timeout=5)
        assert clock.now() == 0


def test_job_may_move_its_clock_without_waiting():
    """A job may move the clock as long as it does not wait for the others."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as scheduler:
        scheduler.submit(clock.jump, 5).result(timeout=5)
        assert clock.now() == 5


def test_two_schedulers_share_a_clock():
    """One clock drives two schedulers through the due times of both, in the order of time."""
    clock = FakeClock()
    trace = Trace(clock)
    with Scheduler(1, clock=clock, name="a") as first, Scheduler(2, clock=clock, name="b") as second:
        for delay in (1, 3, 5):
            first.options(delay=delay).submit(trace, "a")
        for delay in (2, 3, 4):
            second.options(delay=delay).submit(trace, "b")
        clock.advance(6)
    assert [entry for entry in trace.entries if entry[0] != 3] == [(1, "a"), (2, "b"), (4, "b"), (5, "a")]
    assert sorted(entry[1] for entry in trace.entries if entry[0] == 3) == ["a", "b"]  # type: ignore[type-var]


def test_work_handed_from_one_scheduler_to_another_is_done_within_an_advance():
    """What a job of one scheduler submits to another on the same clock has run when advance returns."""
    clock = FakeClock()
    returned = threading.Event()
    seen: list[bool] = []

    def handed_over() -> None:
        # A twentieth of a second in which an advance that does not wait for this would return.
        seen.append(returned.wait(0.05))

    # The clock asks the first of them first; the work arrives there when it has been asked.
    with Scheduler(1, clock=clock, name="b") as second, Scheduler(1, clock=clock, name="a") as first:
        second.start()
        clock.advance(0)
        first.options(delay=1).submit(lambda: second.submit(handed_over))
        clock.advance(1)
        returned.set()
        second.wait_idle(5)
    assert seen == [False]


def test_dropped_scheduler_is_not_driven():
    """The clock keeps no scheduler alive, and goes on without it."""
    clock = FakeClock()
    scheduler = Scheduler(1, clock=clock)
    scheduler.submit(int).result(timeout=5)
    scheduler.shutdown()
    del scheduler
    clock.advance(5)
    assert clock.now() == 5


def test_task_sleeps_on_the_fake_clock():
    """current_job().sleep() ends when the clock has been moved far enough; the advance stops there."""
    clock = FakeClock()
    trace = Trace(clock)

    def task() -> bool:
        trace("before")
        job = current_job()
        assert job is not None
        slept = job.sleep(30)
        trace("after")
        return slept

    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.submit(task)
        clock.advance(10)
        assert not job.done()
        clock.advance(50)
        assert job.result(timeout=0) is True
        assert trace.entries == [(0, "before"), (30, "after")]


@pytest.mark.parametrize("due", ["a delayed job", "a rate", "a schedule"])
def test_what_falls_due_while_all_workers_sleep_waits_for_one(due: str):
    """With every worker asleep in a task, an advance goes on to the end of the first sleep; then what was due runs."""
    clock = FakeClock()
    with Scheduler(2, clock=clock, limits={"mail": Limit(rate=1, per=5)}) as s:
        trace = Trace(clock)

        def sleep(seconds: float) -> None:
            job = current_job()
            assert job is not None
            job.sleep(seconds)
            trace("slept")

        s.options(limits="mail").submit(sleep, 10)
        if due == "a rate":
            s.options(limits="mail").submit(trace)
        elif due == "a schedule":
            s.options(max_runs=1, start=5).every(100, trace)
        else:
            s.options(delay=5).submit(trace)
        s.submit(sleep, 12)
        clock.advance(20)
        assert trace.entries == [(10, "slept"), (10, None), (12, "slept")]


def test_sleep_on_the_fake_clock_ends_with_a_request_to_stop():
    """request_cancel wakes a sleeping task though no time passes."""
    clock = FakeClock()

    def task() -> bool:
        job = current_job()
        assert job is not None
        return job.sleep(30)

    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.submit(task)
        clock.advance(0)
        assert job.request_cancel()
        assert job.result(timeout=5) is False
        assert clock.now() == 0


class Slow(FakeClock):
    """Holds a worker between its reading of the clock and whatever it does with that."""

    def __init__(self) -> None:
        super().__init__()
        self.readings_left = -1
        self.reached, self.go = threading.Event(), threading.Event()

    def now(self) -> float:
        reading = super().now()
        if threading.current_thread().name.startswith("threadsched_"):
            self.readings_left -= 1
            if self.readings_left == 0:
                self.reached.set()
                assert self.go.wait(5)
        return reading


def test_jump_while_a_worker_holds_an_old_reading():
    """A worker that read the clock just before it was moved does not sleep over the due time."""
    clock = Slow()
    clock.readings_left = 1
    trace = Trace(clock)
    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.options(delay=1).submit(trace)
        assert clock.reached.wait(5)
        clock.jump(1)
        clock.go.set()
        try:
            clock.advance(0, timeout=1)
            assert job.done()
        finally:
            job.cancel()


def test_jump_while_a_task_holds_an_old_reading():
    """A task that is about to sleep when the clock is moved past its end does not sleep on."""
    clock = Slow()

    def task() -> bool:
        clock.readings_left = 2  # the end of the sleep, and what is left of it
        job = current_job()
        assert job is not None
        return job.sleep(1)

    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.submit(task)
        assert clock.reached.wait(5)
        clock.jump(1)
        clock.go.set()
        try:
            clock.advance(0, timeout=1)
            assert job.done()
        finally:
            job.request_cancel()


def month(workers: int) -> list[tuple[float, object]]:
    """Return what a month of three daily jobs did, each submitting its next day."""
    clock = FakeClock()
    trace = Trace(clock)
    day = 86400.0
    with Scheduler(workers, clock=clock) as scheduler:

        def daily(name: str) -> None:
            trace(name)
            if clock.now() < 29 * day:
                scheduler.options(delay=day).submit(daily, name)

        for number, name in enumerate(("backup", "report", "cleanup")):
            scheduler.options(delay=number * 3600 + 60).submit(daily, name)
        clock.advance(30 * day)
    return trace.entries


def test_a_month_of_daily_jobs_passes_in_no_time_and_always_alike():
    """A month of self-renewing daily jobs takes less than a second, and twenty runs leave one and the same trace."""
    began = time.monotonic()
    first = month(2)
    assert time.monotonic() - began < 1
    assert len(first) == 90
    assert first == sorted(first)  # type: ignore[type-var]
    assert [name for _, name in first[:3]] == ["backup", "report", "cleanup"]
    for _ in range(19):
        assert month(2) == first


def test_no_real_clock_is_read_under_a_fake_one(monkeypatch: pytest.MonkeyPatch):
    """With a fake clock nothing of a job depends on time.monotonic: a broken one breaks nothing."""

    def broken() -> float:
        raise OSError("no clock here")

    monkeypatch.setattr(_clock, "time", SimpleNamespace(monotonic=broken))
    clock = FakeClock()
    trace = Trace(clock)

    def failing() -> None:
        trace()
        raise ValueError

    with Scheduler(1, clock=clock) as scheduler:
        job = scheduler.options(retries=2, backoff=1).submit(failing)
        scheduler.options(delay=2).submit(trace, "delayed")
        clock.advance(10)
        assert isinstance(job.exception(timeout=0), ValueError)
    assert sorted(at for at, _ in trace.entries) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="no clock here"):  # the patch does reach the default clock
        Scheduler(1).submit(int)


# ---------------------------------------------------------------- the stepped scheduler


def test_tick_runs_one_job_in_each_slot_in_order():
    """A tick offers the ready jobs to slots 0, 1, …, one job each, on the calling thread."""
    scheduler = StepScheduler(2)
    thread = threading.current_thread()
    jobs = [scheduler.options(id=name).submit(threading.current_thread) for name in "abc"]
    assert scheduler.tick() == [Ran(0, "a", DONE), Ran(1, "b", DONE)]
    assert scheduler.tick() == [Ran(0, "c", DONE)]
    assert scheduler.tick() == []
    assert all(job.result(timeout=0) is thread for job in jobs)


def test_stepped_scheduler_shows_all_and_clears_as_the_threaded_one():
    """`snapshot`, `clear` and `closed` are those of the threaded scheduler."""
    s = StepScheduler()
    jobs = [s.options(id=name).submit(int) for name in ("ran", "ready")] + [
        s.options(id="delayed", delay=9).submit(int)
    ]
    s.tick()
    assert [(info.id, info.status) for info in s.snapshot()] == [
        ("ran", DONE),
        ("ready", PENDING),
        ("delayed", PENDING),
    ]
    assert s.clear() == 2
    assert [job.status for job in jobs] == [DONE, CANCELLED, CANCELLED]
    assert not s.closed
    assert s.shutdown()
    assert s.closed


def test_submission_during_a_tick_waits_for_the_next():
    """What a task submits is not run in the same tick, even with a free slot and the highest priority."""
    scheduler = StepScheduler(3)

    def parent() -> None:
        scheduler.options(id="child", priority=-1).submit(int)

    scheduler.options(id="parent").submit(parent)
    assert scheduler.tick() == [Ran(0, "parent", DONE)]
    assert scheduler.status_of("child") is PENDING
    assert scheduler.tick() == [Ran(0, "child", DONE)]


def test_retry_during_a_tick_waits_for_the_next():
    """A retry without a pause still waits for the next tick."""
    scheduler = StepScheduler(2)

    def failing() -> None:
        raise ValueError

    job = scheduler.options(id="a", retries=1, backoff=0).submit(failing)
    assert scheduler.tick() == [Ran(0, "a", PENDING)]
    assert scheduler.tick() == [Ran(0, "a", FAILED)]
    assert isinstance(job.exception(timeout=0), ValueError)


def test_submission_during_a_tick_waits_even_if_the_door_is_closed_then():
    """Closing the door from inside a task, draining "due", does not pull a newcomer into the running tick."""
    scheduler = StepScheduler(2)

    def parent() -> None:
        scheduler.options(id="child").submit(int)
        scheduler.shutdown(drain="due")

    scheduler.options(id="parent").submit(parent)
    assert scheduler.tick() == [Ran(0, "parent", DONE)]
    assert scheduler.tick() == [Ran(0, "child", DONE)]


def test_cancel_during_a_tick():
    """A task may cancel a job that is ready in the same tick; that one does not run."""
    scheduler = StepScheduler(2)
    scheduler.options(id="first").submit(lambda: scheduler.cancel("second"))
    second = scheduler.options(id="second").submit(int)
    assert scheduler.tick() == [Ran(0, "first", DONE)]
    assert second.cancelled()


def test_drain_ticks_and_advances():
    """drain() ticks, advances by its step, and ends when nothing is pending."""
    scheduler = StepScheduler(1)
    clock = scheduler.clock
    assert isinstance(clock, FakeClock)
    trace = Trace(clock)
    for delay in (0, 1, 2.5):
        scheduler.options(id=str(delay), delay=delay).submit(trace, delay)
    assert scheduler.drain(step=1) == [Ran(0, "0", DONE), Ran(0, "1", DONE), Ran(0, "2.5", DONE)]
    assert trace.entries == [(0, 0), (1, 1), (3, 2.5)]
    assert clock.now() == 4
    assert scheduler.drain() == []
    assert clock.now() == 4  # nothing pending: no tick, no step


def test_drain_is_limited():
    """drain() ticks at most `limit` times."""
    scheduler = StepScheduler(1)
    scheduler.options(id="far", delay=100).submit(int)
    assert scheduler.drain(step=1, limit=7) == []
    assert scheduler.clock.now() == 7
    assert scheduler.drain(step=datetime.timedelta(seconds=50), limit=0) == []
    assert scheduler.drain(step=datetime.timedelta(seconds=50), limit=3) == [Ran(0, "far", DONE)]
    with pytest.raises(ValueError, match="limit"):
        scheduler.drain(limit=-1)


def test_drain_needs_a_clock_that_can_be_advanced():
    """With a clock that only tells the time, drain() is a TypeError that names what it needs; ticks work."""

    class Plain:
        def now(self) -> float:
            return 5.0

    scheduler = StepScheduler(clock=Plain())
    job = scheduler.submit(int)
    with pytest.raises(TypeError, match=r"advance\(\)"):
        scheduler.drain()
    assert scheduler.tick() == [Ran(0, job.id, DONE)]
    assert job.submitted_at == 5.0


def test_any_exception_ends_that_job_alone():
    """Whatever a task raises in a tick, Ctrl-C's and the exit's exceptions too, is that job's failure."""
    scheduler = StepScheduler(5)

    def raising(kind: type[BaseException]) -> None:
        raise kind

    kinds = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError]
    jobs = [scheduler.submit(raising, kind) for kind in kinds]
    last = scheduler.submit(int)
    assert [ran.status for ran in scheduler.tick()] == [FAILED] * 4 + [DONE]
    assert [type(job.exception(timeout=0)) for job in jobs] == kinds
    assert last.result(timeout=0) == 0


def test_current_job_is_known_in_a_tick():
    """Inside a tick the task sees its own job, and nobody does outside."""
    scheduler = StepScheduler(1)
    job = scheduler.submit(current_job)
    scheduler.tick()
    assert job.result(timeout=0) is job
    assert current_job() is None


@pytest.mark.parametrize(
    ("drain", "after"), [("all", [DONE, DONE, DONE]), ("due", [DONE, CANCELLED, FAILED]), ("none", [CANCELLED] * 3)]
)
def test_shutdown_in_each_mode(drain: str, after: list[JobStatus]):
    """After a shutdown newcomers are refused; what is left runs in further ticks, as the mode says."""
    scheduler = StepScheduler(1)

    def flaky() -> None:
        job = current_job()
        assert job is not None
        if job.attempts == 1:
            raise ValueError("first")

    retried = scheduler.options(retries=1, backoff=5).submit(flaky)
    scheduler.tick()
    ready, delayed = scheduler.submit(int), scheduler.options(delay=3).submit(int)
    report = scheduler.shutdown(drain=drain)
    with pytest.raises(SchedulerClosedError, match=r"^cannot schedule new futures"):
        scheduler.submit(int)
    assert bool(report) is (report.pending == 0)
    scheduler.drain()
    scheduler.check()
    assert [ready.status, delayed.status, retried.status] == after
    if drain == "due":
        assert str(retried.exception()) == "first"
    assert scheduler.shutdown()


def test_shutdown_takes_the_executors_arguments():
    """cancel_futures is drain="none", an unknown mode a ValueError, and leaving a with block does not hang."""
    scheduler = StepScheduler(1)
    with pytest.raises(ValueError, match="some"):
        scheduler.shutdown(drain="some")
    job = scheduler.submit(int)
    assert scheduler.shutdown(cancel_futures=True)
    assert job.cancelled()
    with StepScheduler(1) as other:
        kept = other.submit(int)
    assert kept.status is PENDING
    assert other.drain() == [Ran(0, kept.id, DONE)]


def test_face_of_the_stepped_scheduler():
    """Ids, statuses, cancels, counts and policies work as on the threaded scheduler."""
    scheduler = StepScheduler(1)
    job = scheduler.options(id="a", delay=2).submit(int)
    assert scheduler.get("a") is job
    assert scheduler.status_of("a") is PENDING
    assert (scheduler.get("b"), scheduler.status_of("b")) == (None, None)
    with pytest.raises(DuplicateJobError):
        scheduler.options(id="a").submit(int)
    with pytest.raises(TypeError, match="a job's id"):
        scheduler.get(1.5)  # type: ignore[arg-type]
    policy = FifoPolicy()
    scheduler.policy = policy
    assert scheduler.policy is policy
    stats = scheduler.stats()
    assert (stats.pending, stats.delayed, stats.workers) == (1, 1, 0)
    assert scheduler.cancel("a") is True
    assert scheduler.cancel("a") is False
    assert scheduler.status_of("a") is CANCELLED
    scheduler.check()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"workers": 0}, ValueError, "workers must be greater than 0"),
        ({"workers": True}, TypeError, "workers"),
        ({"policy": FakeClock}, TypeError, "instance"),
        ({"policy": 3}, TypeError, "policy"),
        ({"queue": "fast"}, ValueError, "queue must be 'lazy' or 'indexed'"),
        ({"history": -1}, ValueError, "history"),
        ({"history": "1"}, TypeError, "history"),
        ({"clock": 3}, TypeError, "clock"),
    ],
)
@pytest.mark.parametrize("make", [Scheduler, StepScheduler])
def test_both_schedulers_refuse_the_same(make: Any, arguments: dict[str, Any], kind: type[Exception], words: str):
    """A bad argument is refused by the stepped scheduler as by the threaded one."""
    with pytest.raises(kind, match=words):
        make(**arguments)

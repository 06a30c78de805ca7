"""Limits by rate: exact starts in virtual time."""

import itertools

import pytest

from tests.limits_support import PATIENCE, Starts, both, busy, scheduler
from threadsched import (
    FifoPolicy,
    JobStatus,
    Limit,
    LimitInfo,
    RetryAfter,
    Scheduler,
    current_job,
)
from threadsched.testing import StepScheduler

# ---------------------------------------------------------------- by rate


@both
def test_rat_01_at_most_n_in_a_window(queue: str):
    """Two a second: of three quick jobs two start at once and the third exactly a second later."""
    with scheduler(limits={"mail": Limit(rate=2)}, queue=queue) as (pool, clock, starts):
        for _ in range(3):
            pool.options(limits="mail").submit(starts.task)
        clock.advance(10)
        assert starts.times == [0, 0, 1]


def test_rat_01_a_large_rate():
    """A thousand a second: of five thousand jobs a thousand start in each second."""
    stepped = StepScheduler(2000, limits={"mail": Limit(rate=1000)})
    for _ in range(5000):
        stepped.options(limits="mail").submit(int)
    ran = []
    for _ in range(7):
        ran.append(len(stepped.tick()) + len(stepped.tick()))
        stepped.clock.advance(0.5)
        ran[-1] += len(stepped.tick())
        stepped.clock.advance(0.5)
    assert ran == [1000, 1000, 1000, 1000, 1000, 0, 0]
    stepped.check()


def test_rat_02_spacing_holds_when_the_queue_runs_dry():
    """One in a tenth of a second: starts are that far apart although nothing ever waits in line."""
    with scheduler(limits={"mail": Limit(rate=1, per=0.1)}) as (pool, clock, starts):
        for pause in (0.0, 0.03, 0.0, 0.08, 0.25, 0.0):
            job = pool.options(limits="mail").submit(starts.task)
            while not job.done():
                clock.advance(0.01)
            clock.advance(pause)
        assert all(later >= earlier + 0.1 for (earlier, _), (later, _) in itertools.pairwise(starts.log))
        assert starts.times == [0, 0.1, 0.2, 0.3, 0.4, 0.65]


def test_rat_03_used_starts_outlive_idleness():
    """Two a second, one used: after 0.3 s of idleness one more starts at once, and the next when the first is over."""
    with scheduler(limits={"mail": Limit(rate=2)}) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        mail.submit(starts.task)
        clock.advance(0.3)
        mail.submit(starts.task)
        mail.submit(starts.task)
        clock.advance(5)
        assert starts.times == [0, 0.3, 1]


def test_rat_04_new_window_after_idleness():
    """Idle past the end of a used window, exactly two start at once and the third a window later."""
    with scheduler(limits={"mail": Limit(rate=2)}) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        for count in (2, 3):
            for _ in range(count):
                mail.submit(starts.task)
            clock.advance(1.5)
        clock.advance(5)
        assert starts.times == [0, 0, 1.5, 1.5, 2.5]


@both
def test_rat_05_number_and_rate_together(queue: str):
    """Five at once and ten a second, thirteen jobs of 0.3 s: five, then five, then three in the next window."""
    limits = {"api": Limit(concurrency=5, rate=10)}
    with scheduler(16, limits=limits, queue=queue) as (pool, clock, starts):
        for _ in range(13):
            pool.options(limits="api").submit(starts.task, None, 0.3)
        clock.advance(10)
        assert starts.times == [0] * 5 + [0.3] * 5 + [1] * 3


def test_rat_06_a_rate_counts_starts_only():
    """A job that outlives its window does not count in the next; a number beside the rate makes it wait."""
    limits = {"mail": Limit(rate=1, per=0.5), "serial": Limit(concurrency=1, rate=1, per=0.5)}
    for name, expected in (("mail", [0, 0.5]), ("serial", [0, 0.6])):
        with scheduler(limits=limits) as (pool, clock, starts):
            for _ in range(2):
                pool.options(limits=name).submit(starts.task, None, 0.6)
            clock.advance(3)
            assert starts.times == expected


def test_rat_07_submissions_from_tasks_count():
    """Jobs that submit the next one get no more than the rate either."""
    with scheduler(limits={"mail": Limit(rate=2)}) as (pool, clock, starts):

        def task(left: int) -> None:
            starts.task()
            if left:
                pool.options(limits="mail").submit(task, left - 1)

        pool.options(limits="mail").submit(task, 4)
        clock.advance(0.9)
        assert starts.times == [0, 0]
        clock.advance(5)
        assert starts.times == [0, 0, 1, 1, 2]


@both
def test_rat_08_cancelled_before_the_start_uses_none(queue: str):
    """Jobs that were cancelled while held, or before a worker looked, are as if they had never been."""
    with scheduler(2, limits={"mail": Limit(rate=1)}, queue=queue) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        mail.submit(starts.task, "first")
        clock.advance(0)
        held = [mail.submit(starts.task, "cancelled") for _ in range(5)]
        clock.advance(0.2)
        assert pool.stats().waiting == 5
        assert all(job.cancel() for job in held)
        delayed = pool.options(limits="mail", delay=0.3).submit(starts.task, "cancelled")
        assert delayed.cancel()
        clock.advance(0.3)
        assert pool.limits["mail"] == LimitInfo(Limit(rate=1), in_use=0, waiting=0, next_room_at=1.0)
        assert pool._runtime.next_due() is None  # nobody waits, so nobody has to be woken
        mail.submit(starts.task, "next")
        clock.advance(5)
        assert starts.log == [(0, "first"), (1, "next")]


@both
@pytest.mark.parametrize("per", [0.7, 1, 3])
@pytest.mark.parametrize("rate", [1, 2, 5])
def test_rat_09_sliding_window(queue: str, rate: int, per: float):
    """Whatever the rhythm of submissions, start i + n comes exactly when start i is ``per`` old, or when submitted."""
    limits = {"mail": Limit(rate=rate, per=per)}
    with scheduler(12, limits=limits, queue=queue) as (pool, clock, starts):
        expected: list[float] = []
        now = 0.0
        for count, pause in ((1, 0.1), (3, 0.2), (1, 0.1), (7, 2.0), (1, 0.35), (2, 9.0), (4, 0.0)):
            for _ in range(count):
                pool.options(limits="mail").submit(starts.task)
                earliest = expected[-rate] + per if len(expected) >= rate else 0.0
                expected.append(max(now, earliest, expected[-1] if expected else 0.0))
            clock.advance(pause)
            now = clock.now()
        clock.advance(60)
        times = [at for at, _ in starts.log]
        assert sorted(times) == pytest.approx(expected)
        times.sort()
        assert all(later >= earlier + per for earlier, later in zip(times, times[rate:], strict=False))


def test_rat_09_clear_does_not_forget_the_starts():
    """After the queue was cleared the window is as full as before."""
    with scheduler(limits={"mail": Limit(rate=2)}) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        for _ in range(6):
            mail.submit(starts.task, "old")
        clock.advance(0.4)
        assert pool.clear() == 4
        for _ in range(3):
            mail.submit(starts.task, "new")
        clock.advance(5)
        assert starts.log == [(0, "old"), (0, "old"), (1, "new"), (1, "new"), (2, "new")]


def test_each_attempt_counts():
    """A retry is a start like any other, and waits for the rate after its pause."""
    with scheduler(limits={"mail": Limit(rate=1, per=1)}) as (pool, clock, starts):

        def task(name: str) -> None:
            starts.task(name)
            job = current_job()
            assert job is not None
            if job.attempts < 3:
                raise RetryAfter(0.25)

        failing = pool.options(limits="mail", retries=5).submit(task, "failing")
        clock.advance(0.5)
        assert [(reason.kind, reason.until) for reason in failing.explain()] == [("limit", 1.0)]
        clock.advance(10)
        assert starts.log == [(0, "failing"), (1, "failing"), (2, "failing")]
        assert failing.attempts == 3


def test_run_at_stays_and_delays_count_first():
    """A delayed job is held from its own time on, and keeps the ``run_at`` it was given."""
    with scheduler(limits={"mail": Limit(rate=1, per=10)}) as (pool, clock, starts):
        pool.options(limits="mail").submit(starts.task, 0)
        late = pool.options(limits="mail", delay=3).submit(starts.task, 1)
        clock.advance(2)
        assert [reason.kind for reason in late.explain()] == ["delayed"]
        assert pool.stats().delayed == 1
        clock.advance(2)
        assert pool.stats().waiting == 1
        assert late.run_at == 3
        assert late.info().status is JobStatus.PENDING
        clock.advance(10)
        assert starts.log == [(0, 0), (10, 1)]
        assert late.info().started_at == 10


def test_rate_limited_group_wakes_exactly_when_it_may():
    """The idle pool sleeps until the window opens: the limits are asked at that instant, and not in between."""
    with scheduler(8, limits={"mail": Limit(rate=1, per=100)}) as (pool, clock, starts):
        runtime = pool._runtime
        with pytest.MonkeyPatch.context() as patch:
            rings: list[float] = []
            ring = runtime.limits.ring
            patch.setattr(runtime.limits, "ring", lambda now: (rings.append(now), ring(now)))
            for number in range(3):
                pool.options(limits="mail").submit(starts.task, number)
            clock.advance(0)
            assert runtime.next_due() == 100
            clock.advance(500)
        assert starts.log == [(0, 0), (100, 1), (200, 2)]
        assert rings == [100, 200]


def test_leader_is_woken_for_an_earlier_alarm():
    """A leader that sleeps for a far-off job is told of the window that opens before, also by a worker that goes on."""
    with scheduler(2, limits={"mail": Limit(rate=1, per=5)}) as (pool, clock, starts):
        pool.options(delay=1000).submit(starts.task, "far")
        clock.advance(0)
        with busy(pool):
            pool.options(limits="mail").submit(starts.task, 1).result(PATIENCE)
            pool.options(limits="mail").submit(starts.task, 2)
            pool.submit(starts.task, "plain").result(PATIENCE)
            assert pool._runtime.next_due() == 5
        clock.advance(5)
        assert starts.log == [(0, 1), (0, "plain"), (5, 2)]


def test_real_clock_wakes_for_the_window():
    """On the real clock a job held by a rate starts by itself, with no other event in the scheduler."""
    with Scheduler(3, limits={"mail": Limit(rate=1, per=0.05)}) as pool:
        mail = pool.options(limits="mail")
        jobs = [mail.submit(int) for _ in range(4)]
        for job in jobs:
            job.result(PATIENCE)
        times = sorted(job.info().started_at or 0.0 for job in jobs)
        assert all(later >= earlier + 0.05 for earlier, later in itertools.pairwise(times))
        pool.check()


def test_clock_that_goes_back_never_makes_it_early():
    """A start before a step back of the clock still counts for its whole window."""

    class Stepping:
        reading = 100.0

        def now(self) -> float:
            return self.reading

    clock = Stepping()
    stepped = StepScheduler(5, clock=clock, limits={"mail": Limit(rate=1)})
    for _ in range(3):
        stepped.options(limits="mail").submit(int)
    seen = []
    for clock.reading in (100.0, 50.0, 100.5, 101.0, 70.0, 101.5, 102.0):
        seen.append(len(stepped.tick()))
        stepped.check()
    assert seen == [1, 0, 0, 1, 0, 0, 1]
    clock.reading = 200.0
    double = StepScheduler(5, clock=clock, limits={"mail": Limit(rate=2)})
    seen = []
    for clock.reading, count in ((200.0, 1), (150.0, 1), (201.0, 1), (200.5, 1), (201.0, 0)):
        for _ in range(count):
            double.options(limits="mail").submit(int)
        seen.append(len(double.tick()))
        double.check()
    assert seen == [1, 1, 1, 0, 1]


def test_late_reading_neither_starts_early_nor_spins():
    """A worker that read the clock before another one did finds the window closed, and lets the others pass."""
    stepped = StepScheduler(9, limits={"mail": Limit(rate=1)})
    core, slots = stepped._runtime.core, stepped._slots
    for _ in range(3):
        stepped.options(limits="mail").submit(int)
    core.promote(0.0)
    first = core.claim(0.0, slots[0])
    assert first is not None
    assert core.claim(0.0, slots[1]) is None
    core.promote(1.0)  # by a worker that was quicker
    assert stepped.stats().ready == 1
    assert core.claim(0.999, slots[1]) is None
    assert core.alarm == 1.0
    assert core.promote(1.0) == 0
    second = core.claim(1.0, slots[1])
    assert second is not None
    for job in (first, second):
        core.finish(job, None, "int", 1.0)
    stepped.clock.advance(1)
    stepped.check()


def test_better_job_freed_by_another_limit_goes_before_those_sent():
    """Two were sent for the room in one limit when a better one gets free of its other limit: it goes first."""
    stepped = StepScheduler(9, limits={"one": Limit(1), "mail": Limit(rate=2)}, policy=FifoPolicy())
    core = stepped._runtime.core
    starts = Starts(stepped.clock)
    inside = stepped.options(limits="one").submit(int)
    assert inside.claim()
    for _ in range(2):
        stepped.options(limits="mail").submit(int)
    stepped.tick()
    stepped.options(limits=["one", "mail"]).submit(starts.task, "better")
    for n in range(3):
        stepped.options(limits="mail").submit(starts.task, n)
    stepped.tick()
    stepped.clock.advance(1)
    core.promote(1.0)
    assert stepped.stats().ready == 2
    inside.set_result(None)
    stepped.check()
    stepped.tick()
    assert starts.names == ["better", 0]
    stepped.drain()
    assert starts.names == ["better", 0, 1, 2]

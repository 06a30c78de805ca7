"""Limits by concurrency and by rate: who starts when, in virtual time, threaded and stepped."""

import itertools
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from tests.support import run_script
from threadsched import (
    FifoPolicy,
    InvariantError,
    Job,
    JobStatus,
    Limit,
    LimitInfo,
    PriorityPolicy,
    RetryAfter,
    Scheduler,
    ThreadschedError,
    UnknownLimitError,
    current_job,
)
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])

# Real seconds that only a failure reaches.
PATIENCE = 5.0


class Starts:
    """Makes tasks that write down when they started, on a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.log: list[tuple[float, Any]] = []

    def task(self, name: Any = None, seconds: float = 0.0) -> None:
        self.log.append((self.clock.now(), name))
        job = current_job()
        if seconds and job is not None:
            job.sleep(seconds)

    @property
    def times(self) -> list[float]:
        return sorted(round(at, 9) for at, _ in self.log)

    @property
    def names(self) -> list[Any]:
        return [name for _, name in self.log]


class BeforePriority:
    """The priority order said by comparisons, which are counted."""

    def __init__(self) -> None:
        self.calls = 0

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        self.calls += 1
        return a.priority < b.priority


@contextmanager
def scheduler(workers: int = 4, **options: Any) -> Iterator[tuple[Scheduler, FakeClock, Starts]]:
    clock = FakeClock()
    made = Scheduler(workers, clock=clock, **options)
    try:
        yield made, clock, Starts(clock)
        made.check()
    finally:
        made.shutdown(wait=False, drain="none")
        for info in made.shutdown(wait=False).running:  # after a failure: what sleeps on the clock
            job = made.get(info.id)
            assert job is None or job.request_cancel()
        assert made.shutdown(timeout=PATIENCE)


@contextmanager
def busy(pool: Scheduler, **options: Any) -> Iterator[Job[None]]:
    """Keep one job running inside the block."""
    entered, leave = threading.Event(), threading.Event()

    def task() -> None:
        entered.set()
        assert leave.wait(PATIENCE)

    job = pool.options(**options).submit(task)
    assert entered.wait(PATIENCE)
    try:
        yield job
    finally:
        leave.set()
        job.exception(PATIENCE)


# ---------------------------------------------------------------- what can be said


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, TypeError, "neither was given"),
        ({"rate": None}, TypeError, "neither was given"),
        ({"concurrency": 0}, ValueError, "concurrency must be greater than 0, not 0"),
        ({"concurrency": -3}, ValueError, "not -3"),
        ({"concurrency": 1.5}, TypeError, "concurrency must be an int, not 1.5"),
        ({"concurrency": True}, TypeError, "concurrency must be an int, not True"),
        ({"concurrency": "2"}, TypeError, "not '2'"),
        ({"rate": 0}, ValueError, "rate must be greater than 0, not 0"),
        ({"rate": -1}, ValueError, "not -1"),
        ({"rate": 2.5}, TypeError, "rate must be an int, not 2.5"),
        ({"rate": math.inf}, TypeError, "rate must be an int, not inf"),
        ({"rate": 1, "per": 0}, ValueError, "per must be greater than 0, not 0"),
        ({"rate": 1, "per": -1}, ValueError, "per must be greater than 0, not -1"),
        ({"rate": 1, "per": math.inf}, ValueError, "per must be finite, not inf"),
        ({"rate": 1, "per": math.nan}, ValueError, "per must be finite, not nan"),
        ({"rate": 1, "per": None}, TypeError, "per must be seconds"),
        ({"rate": 1, "per": "1"}, TypeError, "per must be seconds"),
        ({"concurrency": 1, "per": timedelta(0)}, ValueError, "per must be greater than 0"),
    ],
)
def test_rat_11_con_07_bad_limits_are_refused(arguments: dict[str, Any], error: type[Exception], said: str):
    """A limit that limits nothing, or whose numbers mean nothing, is refused by an error that names the value."""
    with pytest.raises(error, match=said):
        Limit(**arguments)


def test_limit_is_a_value():
    """A Limit compares, hashes, shows and pickles by its numbers, and cannot be changed."""
    limit = Limit(2, rate=10, per=timedelta(minutes=1))
    assert (limit.concurrency, limit.rate, limit.per) == (2, 10, 60.0)
    assert limit == Limit(2, 10, 60) != Limit(2)
    assert limit != (2, 10, 60.0)
    assert hash(limit) == hash(Limit(2, 10, Fraction(60)))
    assert repr(limit) == "Limit(concurrency=2, rate=10, per=60)"
    assert repr(Limit(rate=1)) == "Limit(rate=1, per=1)"
    assert pickle.loads(pickle.dumps(limit)) == limit
    with pytest.raises(AttributeError, match="cannot be changed"):
        limit.rate = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del limit.rate


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (["api"], "limits must be a mapping of names to Limits"),
        ({"api": 2}, "limit 'api' must be a Limit, not 2"),
        ({"api": Limit}, "limit 'api' must be a Limit"),
        ({1: Limit(1)}, "a limit's name must be a str, not 1"),
    ],
)
@pytest.mark.parametrize("make", [Scheduler, StepScheduler])
def test_bad_mapping_is_refused(make: Callable[..., Any], limits: Any, said: str):
    """A scheduler says what is wrong with its limits when it is made."""
    with pytest.raises(TypeError, match=said):
        make(1, limits=limits)


def test_unknown_name_is_refused():
    """A job cannot name a limit that is not there; the error names both it and those that are."""
    stepped = StepScheduler(limits={"api": Limit(1), "mail": Limit(1)})
    with pytest.raises(UnknownLimitError, match=r"unknown limit 'apy'; .* 'api', 'mail'; did you mean 'api'\?") as told:
        stepped.options(limits=["mail", "apy"])
    assert isinstance(told.value, ValueError)
    assert isinstance(told.value, ThreadschedError)
    with pytest.raises(UnknownLimitError, match="limits are: none"):
        StepScheduler().options(limits="api")
    assert stepped.stats().submitted == 0


@pytest.mark.parametrize("names", [3, b"api", ["api", 3], [None], [b"api"]])
def test_names_that_are_no_names_are_refused(names: Any):
    """What is neither a name nor names is a TypeError."""
    with pytest.raises(TypeError, match="limits"):
        StepScheduler(limits={"api": Limit(1)}).options(limits=names)


def test_names_are_copied_and_collapse():
    """A name given twice counts once, no names are no limits, and a str subclass is not kept."""

    class Shouting(str):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("looked at inside the scheduler")

        def __hash__(self) -> int:
            raise AssertionError("looked at inside the scheduler")

    stepped = StepScheduler(3, limits={"api": Limit(1), "mail": Limit(1)})
    jobs = [
        stepped.options(limits=names).submit(int)
        for names in (Shouting("api"), ["api", "api"], iter([Shouting("api")]), (), None)
    ]
    assert [job.claim() for job in jobs] == [True, False, False, True, True]
    assert stepped.limits["api"].in_use == 1


def test_subclass_of_limit_is_taken_by_its_numbers():
    """A subclass cannot make the scheduler call code of the user's under its lock."""

    class Lenient(Limit):
        __slots__ = ()

        @property
        def concurrency(self) -> int:  # type: ignore[override]
            raise AssertionError("asked")

    with pytest.raises((AssertionError, AttributeError)):
        StepScheduler(limits={"api": Lenient(1)})


# ---------------------------------------------------------------- by number


@both
def test_con_14_limit_for_one_function(queue: str):
    """With a limit of its own a function runs twice at a time, the third when one has ended; others pass."""
    with scheduler(limits={"resize": Limit(concurrency=2)}, queue=queue) as (pool, clock, starts):
        resize = pool.options(limits="resize")
        for number in range(3):
            resize.submit(starts.task, number, 5.0)
        pool.submit(starts.task, "other", 5.0)
        clock.advance(0)
        assert sorted(map(str, starts.names)) == ["0", "1", "other"]
        assert pool.stats().waiting == 1
        assert pool.stats().idle == 1  # the one held back keeps no worker
        assert pool.limits["resize"] == LimitInfo(Limit(2), in_use=2, waiting=1, next_room_at=None)
        clock.advance(5)
        assert starts.times == [0, 0, 0, 5]


@both
def test_f40_f24_held_jobs_do_not_block_those_behind(queue: str):
    """A hundred jobs at the head of the queue that wait for a limit leave the only worker to the one behind them."""
    with scheduler(2, limits={"api": Limit(concurrency=1)}, queue=queue) as (pool, clock, starts):
        with busy(pool, limits="api"):
            held = [pool.options(limits="api", priority=0).submit(starts.task) for _ in range(100)]
            assert pool.options(priority=9).submit(int).result(PATIENCE) == 0
            assert pool.stats().waiting == 100
            pool.check()
        clock.advance(0)
        assert [job.result(PATIENCE) for job in held] == [None] * 100


@pytest.mark.parametrize("ends", ["finish", "fail", "retry", "stop", "callback", "watched"])
@both
def test_room_comes_back_however_the_attempt_ends(queue: str, ends: str):
    """Done, failed, retried or stopped: the next job of the limit has the room at once."""
    with scheduler(1, limits={"api": Limit(concurrency=1)}, queue=queue) as (pool, clock, starts):
        api = pool.options(limits="api", retries=1 if ends == "retry" else 0, backoff=10)
        go = threading.Event()

        def task() -> None:
            job = current_job()
            assert job is not None
            assert go.wait(PATIENCE)
            if ends in ("fail", "retry") and job.attempts == 1:
                raise OSError("broken")
            if ends == "stop":
                job.request_cancel()
                job.check_cancelled()

        first = api.submit(task)
        if ends == "callback":
            first.add_done_callback(lambda job: starts.task("told"))
        if ends == "watched":
            _ = first._condition
        second = pool.options(limits="api").submit(starts.task)
        go.set()
        clock.advance(0)
        assert second.done()
        pool.check()
        clock.advance(20)
        assert first.done()
        first.cancelled() or first.exception()
        assert pool.limits["api"].in_use == 0


def test_slow_callback_does_not_keep_the_room_idle():
    """The room of a job is free before its done-callbacks run, and an idle worker is woken for the next one."""
    with scheduler(2, limits={"api": Limit(concurrency=1)}) as (pool, _, _):
        go, told, leave = threading.Event(), threading.Event(), threading.Event()
        first = pool.options(limits="api").submit(go.wait, PATIENCE)

        def callback(job: object) -> None:
            told.set()
            leave.wait(PATIENCE)

        first.add_done_callback(callback)
        held = pool.options(limits="api").submit(int)
        pool.submit(int).result(PATIENCE)  # the second worker has looked at the held one
        go.set()
        assert told.wait(PATIENCE)
        assert held.result(PATIENCE) == 0
        leave.set()


def test_limits_are_taken_together():
    """A job that needs two limits takes neither while one is full, so others may use the free one."""
    with scheduler(4, limits={"a": Limit(1), "b": Limit(1)}) as (pool, clock, starts):
        with busy(pool, limits="a"):
            both_of_them = pool.options(limits=["a", "b"], priority=0).submit(starts.task, "both")
            clock_free = pool.options(limits="b").submit(starts.task, "b")
            assert clock_free.result(PATIENCE) is None
            assert not both_of_them.running()
            assert pool.limits["b"] == LimitInfo(Limit(1), in_use=0, waiting=1, next_room_at=None)
            assert [reason.detail for reason in both_of_them.explain()] == ["limit 'a': 1 of 1 run"]
        assert both_of_them.result(PATIENCE) is None
        clock.advance(0)
        assert starts.names == ["b", "both"]


def test_jobs_that_need_each_others_limits_do_not_deadlock():
    """Philosophers round a table, each in need of two neighbouring limits, all eat."""
    count = 7
    with scheduler(count, limits={str(n): Limit(1) for n in range(count)}) as (pool, clock, starts):
        for _ in range(10):
            for n in range(count):
                pool.options(limits=[str(n), str((n + 1) % count)]).submit(starts.task, n, 1.0)
        clock.advance(60)
        assert len(starts.names) == 70
        assert {info.in_use for info in pool.limits.values()} == {0}


# ---------------------------------------------------------------- order


@both
@pytest.mark.parametrize("policy", [PriorityPolicy(), BeforePriority()], ids=["key", "before"])
def test_held_jobs_go_by_the_policy(queue: str, policy: Any):
    """When room comes the held job that the policy puts first has it, ties in submission order."""
    stepped = StepScheduler(20, limits={"mail": Limit(rate=1)}, policy=policy, queue=queue)
    starts = Starts(stepped.clock)
    for number, priority in enumerate([5, 3, 9, 3, 1, 5]):
        stepped.options(limits="mail", priority=priority).submit(starts.task, number)
    stepped.tick()
    assert stepped.stats().waiting == 5
    stepped.options(limits="mail", priority=2).submit(starts.task, 6)
    stepped.check()
    stepped.drain(limit=10)
    stepped.check()
    assert starts.log == [(0, 4), (1, 6), (2, 1), (3, 3), (4, 0), (5, 5), (6, 2)]


@both
def test_newcomer_that_ranks_first_overtakes_the_held(queue: str):
    """Room belongs to whom the policy puts first when it comes, not to whom was sent for it."""
    stepped = StepScheduler(1, limits={"mail": Limit(rate=1)}, queue=queue)
    starts = Starts(stepped.clock)
    for number in range(3):
        stepped.options(limits="mail").submit(starts.task, number)
    stepped.options(priority=0).submit(starts.task, "plain")
    assert [ran.id for ran in stepped.tick()] == [4]
    assert [ran.id for ran in stepped.tick()] == [1]
    assert stepped.tick() == []
    stepped.clock.advance(1)
    for _ in range(3):
        stepped.options(priority=1).submit(starts.task, "plain")
    stepped.tick()  # the second was sent, and the plain ones are before it
    assert stepped.stats().waiting == 1
    assert stepped.stats().ready == 3
    stepped.options(priority=0, limits="mail").submit(starts.task, "urgent")
    stepped.tick()
    assert starts.names[-1] == "urgent"
    stepped.check()
    stepped.drain()
    assert starts.names[-2:] == [1, 2]


@both
def test_policy_swap_reorders_the_held(queue: str):
    """Another policy orders those who are held by a limit too, the one already sent included."""
    stepped = StepScheduler(1, limits={"mail": Limit(rate=1)}, queue=queue)
    starts = Starts(stepped.clock)
    for number in range(5):
        stepped.options(limits="mail", priority=9 - number).submit(starts.task, number)
    for _ in range(5):
        stepped.tick()
    assert starts.names == [4]
    stepped.policy = FifoPolicy()
    stepped.check()
    stepped.clock.advance(1)
    stepped.tick()
    assert starts.names == [4, 0]
    stepped.policy = BeforePriority()
    stepped.clock.advance(1)
    with stepped._runtime.lock:
        stepped._runtime.core.promote(stepped.clock.now())  # one was sent by that policy
    stepped.policy = FifoPolicy()
    stepped.check()
    stepped.drain()
    assert starts.names == [4, 0, 1, 2, 3]


@both
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_job_that_is_given_another_rank_goes_by_it(queue: str, told: bool):
    """A held job whose key changed goes by its new key: when the limits are told at once, else when it comes up."""
    stepped = StepScheduler(9, limits={"mail": Limit(rate=1)}, queue=queue)
    starts = Starts(stepped.clock)
    jobs = [stepped.options(limits="mail").submit(starts.task, number) for number in range(5)]
    stepped.tick()
    core = stepped._runtime.core

    def rekey(job: Job[Any], priority: float) -> None:
        job._priority = job._key = priority
        if told:
            core.rekeyed(job, stepped.clock.now())
            stepped.check()

    rekey(jobs[1], 9)
    if told:
        rekey(jobs[4], 0)
        rekey(jobs[3], 1)
        rekey(jobs[3], 9.5)
    core.rekeyed(stepped.submit(int), 0.0)  # a job without limits is none of their business
    stepped.drain()
    assert starts.names == ([0, 4, 2, 1, 3] if told else [0, 2, 3, 4, 1])
    stepped.check()


def test_sent_job_that_is_given_a_worse_rank_lets_the_next_one_go():
    """Of two held jobs the one that was to go is ranked down before a worker takes it: the other one goes."""
    stepped = StepScheduler(1, limits={"mail": Limit(rate=1)})
    starts = Starts(stepped.clock)
    jobs = [stepped.options(limits="mail").submit(starts.task, number) for number in range(3)]
    for _ in range(3):
        stepped.tick()
    stepped.clock.advance(1)
    core = stepped._runtime.core
    with stepped._runtime.lock:
        core.promote(1.0)
    assert jobs[1]._place == "ready"
    # As a change of priority does: out of the ready queue, another key, in again.
    core.ready.keep(set(core.pending) - {jobs[1].seq})
    jobs[1]._priority = jobs[1]._key = 9
    core.ready.push((9, jobs[1].seq))
    core.rekeyed(jobs[1], 1.0)
    stepped.check()
    stepped.tick()
    assert starts.names == [0, 2]


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
    """The idle pool sleeps until the window opens: one worker's turn at that instant, none in between."""
    with scheduler(8, limits={"mail": Limit(rate=1, per=100)}) as (pool, clock, starts):
        runtime = pool._runtime
        turns: list[float] = []
        pool.start()
        clock.advance(0)
        turn = runtime.turn

        def counted(*args: Any) -> Any:
            turns.append(clock.now())
            return turn(*args)

        for worker in runtime.workers.values():
            assert worker.job is None
        runtime.turn = counted  # type: ignore[method-assign]  # workers that run already keep their own
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime.core), "ring", None, raising=False)
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


# ---------------------------------------------------------------- claim, cancel, explain


def test_claim_takes_part():
    """``job.claim()`` takes the room and counts as a start, and is refused while there is none."""
    stepped = StepScheduler(2, limits={"api": Limit(1), "mail": Limit(rate=1)})
    one, two = (stepped.options(limits="api").submit(int) for _ in range(2))
    assert one.claim()
    assert not two.claim()
    assert not one.claim()  # it runs already; its room stays
    assert stepped.limits["api"].in_use == 1
    assert two.status is JobStatus.PENDING
    assert stepped.tick() == []
    one.set_result(1)
    assert two.claim()
    two.set_exception(OSError("x"))
    assert two.exception() is not None
    three, four = (stepped.options(limits="mail").submit(int) for _ in range(2))
    assert three.claim()
    assert not four.claim()
    assert stepped.tick() == []
    stepped.clock.advance(1)
    assert four.claim()  # out of the line in which the tick had put it
    stepped.check()
    for job in (three, four):
        job.set_result(1)
    stepped.check()
    assert stepped.stats().pending == 0


def test_claimed_out_of_the_line_leaves_it_whole():
    """A held job that a caller takes leaves its place; the others, and the alarm, follow."""
    stepped = StepScheduler(9, limits={"mail": Limit(rate=1)})
    jobs = [stepped.options(limits="mail").submit(int) for _ in range(4)]
    stepped.tick()
    stepped.clock.advance(1)
    assert jobs[2].claim()
    stepped.check()
    assert [ran.id for ran in stepped.tick()] == []
    stepped.clock.advance(1)
    assert [ran.id for ran in stepped.tick()] == [2]
    jobs[2].set_result(None)
    stepped.clock.advance(1)
    assert jobs[3].claim()
    stepped.check()
    assert stepped._runtime.core.alarm == math.inf
    jobs[3].set_result(None)


def test_claim_makes_an_idle_worker_look():
    """A claim's effects on others, an alarm here, are seen to although no worker was awake."""
    with scheduler(2, limits={"mail": Limit(rate=1), "api": Limit(1)}) as (pool, clock, starts):
        with busy(pool, limits="api"):
            far = pool.options(limits=["api", "mail"]).submit(int)
            clock_job = pool.options(limits="mail", delay=100).submit(int)
            assert clock_job.claim()
            clock_job.set_result(0)
            held = pool.options(limits="mail").submit(starts.task)
            pool.submit(int).result(PATIENCE)
        clock.advance(3)
        assert far.done()
        assert held.done()


@both
def test_cancelling_the_held_sweeps(queue: str):
    """Ten thousand held jobs that are cancelled leave no more than a few dead entries, and no reference."""
    stepped = StepScheduler(1, limits={"api": Limit(1)}, queue=queue)
    blocker = stepped.options(limits="api").submit(int)
    assert blocker.claim()
    jobs = [stepped.options(limits="api", priority=n % 7).submit(int) for n in range(10_000)]
    stepped.tick()
    assert stepped.stats().waiting == 10_000
    for job in jobs[:-1]:
        job.cancel()
    stepped.check()
    group = stepped._runtime.limits.groups[("api",)]
    assert len(group.queue) < 200
    assert len(group.held) == 1
    assert jobs[-1].cancel()
    assert group.held == {}
    blocker.set_result(0)
    stepped.check()


def test_explain_and_stats_show_what_holds():
    """A held job names each limit without room, how full it is, and when it opens if that is known."""
    stepped = StepScheduler(9, limits={"api": Limit(2), "mail": Limit(rate=2, per=8)})
    claimed = [stepped.options(limits=["api", "mail"]).submit(int) for _ in range(2)]
    assert all(job.claim() for job in claimed)
    held = stepped.options(limits=["mail", "api"]).submit(int)
    ready = [reason.kind for reason in held.explain()]
    stepped.clock.advance(3)
    stepped.tick()
    assert stepped.stats().waiting == 1
    assert stepped.stats().pending == 1
    reasons = held.explain()
    assert [reason.kind for reason in reasons] == ["limit", "limit"]
    assert [reason.until for reason in reasons] == [None, 8]
    assert [reason.detail for reason in reasons] == [
        "limit 'api': 2 of 2 run",
        "limit 'mail': 2 started within 8 s; room in 5 s",
    ]
    assert stepped.limits["mail"] == LimitInfo(Limit(rate=2, per=8), in_use=2, waiting=1, next_room_at=8)
    assert stepped.limits["api"].waiting == 1
    with pytest.raises(TypeError):
        stepped.limits["api"] = None  # type: ignore[index]
    for job in claimed:
        job.set_result(0)
    stepped.clock.advance(5)
    assert len(stepped.tick()) == 1
    assert [reason.kind for reason in held.explain()] == ["ended"]
    assert ready == ["delayed"] or ready == ["queued"] or ready == ["limit", "limit"]


def test_job_in_line_behind_a_free_limit_is_queued():
    """A job whose limits have room and which only lacks a worker says so."""
    with scheduler(1, limits={"api": Limit(1)}) as (pool, _, _), busy(pool):
        job = pool.options(limits="api").submit(int)
        assert [reason.kind for reason in job.explain()] == ["queued"]


# ---------------------------------------------------------------- shutdown, fork


def test_shutdown_due_runs_what_waits_for_a_limit():
    """Under "due" a job held by a limit runs, at its time; what is delayed is cancelled."""
    with scheduler(2, limits={"mail": Limit(rate=1, per=3)}) as (pool, clock, starts):
        jobs = [pool.options(limits="mail").submit(starts.task, n) for n in range(3)]
        late = pool.options(limits="mail", delay=1).submit(starts.task, "late")
        clock.advance(0)
        pool.shutdown(wait=False, drain="due")
        clock.advance(10)
        assert pool.shutdown()
        assert [job.status for job in jobs] == [JobStatus.DONE] * 3
        assert late.cancelled()
        assert starts.log == [(0, 0), (3, 1), (6, 2)]


def test_shutdown_all_waits_for_the_window():
    """Under "all" the workers stay until the rate has let everything run."""
    with scheduler(2, limits={"mail": Limit(rate=1, per=3)}) as (pool, clock, starts):
        for n in range(3):
            pool.options(limits="mail").submit(starts.task, n)
        pool.shutdown(wait=False)
        clock.advance(10)
        assert pool.shutdown()
        assert starts.times == [0, 3, 6]


def test_shutdown_none_cancels_the_held():
    """Under "none" held jobs are cancelled like all that is pending."""
    with scheduler(2, limits={"mail": Limit(rate=1, per=3)}) as (pool, clock, starts):
        jobs = [pool.options(limits="mail").submit(starts.task, n) for n in range(5)]
        clock.advance(0)
        assert pool.shutdown(drain="none")
        assert sum(job.cancelled() for job in jobs) == 4
        assert pool.stats().waiting == 0


@pytest.mark.subprocess
def test_fork_starts_with_fresh_limits():
    """In the child nothing is inside a limit and nothing has started; the parent goes on untouched."""
    run_script("""
        import os, threading
        from threadsched import Limit, Scheduler

        pool = Scheduler(2, limits={"api": Limit(1), "mail": Limit(rate=1, per=3600)})
        entered, leave = threading.Event(), threading.Event()
        def task():
            entered.set()
            leave.wait(10)
        first = pool.options(limits=["api", "mail"]).submit(task)
        assert entered.wait(10)
        held = pool.options(limits=["api", "mail"]).submit(int)
        while not pool.stats().waiting:
            pool.submit(int).result(10)
        child = os.fork()
        if child == 0:
            assert held.cancelled()
            assert pool.limits["api"].in_use == 0
            assert pool.limits["mail"].next_room_at is None
            assert pool.options(limits=["api", "mail"]).submit(int).result(10) == 0
            pool.check()
            pool.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pool.limits["api"].in_use == 1
        leave.set()
        assert first.result(10) is None
        pool.check()
        pool.shutdown(drain="none")
    """)


# ---------------------------------------------------------------- seams and faults


def test_written_off_thread_keeps_its_room_until_it_comes_home():
    """A job that moves on while its thread still runs leaves the room to the thread, even over a retry."""
    stepped = StepScheduler(2, limits={"api": Limit(1), "wide": Limit(2)})
    limits, core = stepped._runtime.limits, stepped._runtime.core
    job = stepped.options(limits=["api", "wide"], retries=1, backoff=1).submit(int)
    plain = stepped.submit(int)
    assert limits.keep_room(plain) is None
    limits.give_back(None, 0.0)
    core.promote(0.0)
    assert core.claim(0.0, stepped._slots[0]) is job
    kept = limits.keep_room(job)
    assert core.retry(job, 1.0, job._key, 0.0)
    stepped.check()
    assert stepped.limits["api"].in_use == 1
    stepped.clock.advance(5)
    stepped.tick()
    assert job.status is JobStatus.PENDING
    assert stepped.stats().waiting == 1
    other = stepped.options(limits="wide").submit(int)
    stepped.tick()
    assert other.done()
    core.repair()
    stepped.check()
    assert stepped.limits["api"].in_use == 1
    limits.give_back(kept, 5.0)
    limits.give_back(kept, 5.0)
    stepped.check()
    assert [ran.id for ran in stepped.tick()] == [job.id]
    assert stepped.limits["api"].in_use == 0


def test_dead_worker_gives_its_room_back():
    """A worker that dies outside of any task takes no room with it."""
    with scheduler(2, limits={"api": Limit(1)}) as (pool, clock, _):
        runtime = pool._runtime
        struck = threading.Event()
        started = type(runtime.limits.group(("api",))).started

        def strike(group: Any, job: Job[Any], now: float) -> None:
            if not struck.is_set():
                struck.set()
                raise SystemError("out of the blue")
            started(group, job, now)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime.limits.group(("api",))), "started", strike)
            doomed = pool.options(limits="api").submit(int)
            assert "SystemError" in str(doomed.exception(PATIENCE))
            assert pool.options(limits="api").submit(int).result(PATIENCE) == 0
        clock.advance(0)
        assert pool.limits["api"].in_use == 0


@pytest.mark.parametrize("where", ["may_start", "held", "_line_up", "_park", "_look", "_send"])
@both
def test_exception_inside_a_move_loses_nothing(queue: str, where: str):
    """Whatever is broken off inside the limits, every job still runs and no room leaks."""
    stepped = StepScheduler(3, limits={"a": Limit(1), "b": Limit(rate=2)}, queue=queue)
    limits = stepped._runtime.limits
    owner: Any = type(limits.group(("a",))) if where == "may_start" else type(limits)
    whole = getattr(owner, where)
    for strike in range(12):
        left = [strike]

        def broken(*args: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            answer = whole(*args)
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return answer

        jobs = [stepped.options(limits=names).submit(int) for names in ("a", "b", ["a", "b"], ["a", "b"], "b", "b")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, where, broken)
            for _ in range(4):
                try:
                    stepped.drain(step=0.5, limit=2)
                except KeyboardInterrupt:
                    continue
        for _ in range(3):
            stepped.drain(step=0.5, limit=10)
        lost = [job for job in jobs if not job.done() and not job.running()]
        assert lost == []


@both
def test_cancel_that_breaks_in_while_room_is_asked_for(queue: str):
    """A finalizer that cancels the very job that is asking for room, or is being held, leaves nothing behind."""
    for where in ("may_start", "_hold", "held", "_line_up"):
        stepped = StepScheduler(2, limits={"a": Limit(1), "b": Limit(1)}, queue=queue)
        limits, core = stepped._runtime.limits, stepped._runtime.core
        blocker = stepped.options(limits="a").submit(int)
        assert blocker.claim()
        for names, after in (("b", True), ("a", True), ("a", False), (["a", "b"], True)):
            job = stepped.options(limits=names).submit(int)
            owner: Any = {"may_start": type(limits.group(("a",))), "_hold": type(core)}.get(where, type(limits))
            whole = getattr(owner, where)

            def broken_into(*args: Any, job: Job[Any] = job, whole: Any = whole, after: bool = after) -> Any:
                if after:
                    answer = whole(*args)
                    job.cancel()
                    return answer
                job.cancel()
                return whole(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, where, broken_into)
                stepped.tick()
            assert job.done()
            stepped.check()
        blocker.set_result(None)
        stepped.check()
        assert stepped.limits["a"].in_use == stepped.limits["b"].in_use == 0
        assert stepped.stats().waiting == 0


def test_room_that_comes_while_a_job_is_being_held_is_not_missed():
    """A finalizer that settles the job inside just as another one is refused lets that one go."""
    for where in ("_hold", "held", "_line_up"):
        stepped = StepScheduler(2, limits={"a": Limit(1)})
        limits, core = stepped._runtime.limits, stepped._runtime.core
        blocker = stepped.options(limits="a").submit(int)
        assert blocker.claim()
        job = stepped.options(limits="a").submit(int)
        owner: Any = type(core) if where == "_hold" else type(limits)
        whole = getattr(owner, where)

        def broken_into(*args: Any, whole: Any = whole, blocker: Job[Any] = blocker) -> Any:
            if not blocker.done():
                blocker.set_result(None)
            return whole(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, where, broken_into)
            assert [ran.id for ran in stepped.tick()] == [job.id]
        stepped.check()


def test_claim_that_breaks_in_does_not_exceed_the_limit():
    """A finalizer that claims another job between the look and the start of one finds the place taken."""
    stepped = StepScheduler(2, limits={"a": Limit(1)})
    core = stepped._runtime.core
    first, second = (stepped.options(limits="a").submit(int) for _ in range(2))
    claimed = []
    fits = type(stepped._runtime.limits.gates["a"]).fits

    def broken_into(gate: Any, now: float) -> bool:
        answer = fits(gate, now)
        if not claimed:
            claimed.append(None)
            claimed[0] = second.claim()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(stepped._runtime.limits.gates["a"]), "fits", broken_into)
        core.promote(0.0)
        assert core.claim(0.0, stepped._slots[0]) is first
    assert claimed == [False]
    stepped.check()
    core.finish(first, None, "x", 0.0)
    assert len(stepped.tick()) == 1


def test_policy_swapped_in_the_middle_of_a_move():
    """A finalizer that assigns a policy whose keys do not compare with the old ones: the lines are rebuilt."""

    class Pairs:
        def key(self, job: Job[Any]) -> tuple[float, str]:
            return (-job.priority, "x")

    stepped = StepScheduler(9, limits={"a": Limit(1)})
    limits = stepped._runtime.limits
    blocker = stepped.options(limits="a").submit(int)
    assert blocker.claim()
    starts = Starts(stepped.clock)
    for n in range(4):
        stepped.options(limits="a", priority=n).submit(starts.task, n)
    whole = type(limits)._find_place
    swapped: list[bool] = []

    def broken_into(keeper: Any, group: Any) -> None:
        if not swapped and len(group.held) == 3:
            swapped.append(True)
            stepped.policy = Pairs()
        whole(keeper, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(limits), "_find_place", broken_into)
        stepped.tick()
    stepped.check()
    blocker.set_result(None)
    stepped.drain()
    assert sorted(starts.names) == [0, 1, 2, 3]
    stepped.check()


def test_before_that_raises_in_a_line_is_reported_and_harmless(caplog: pytest.LogCaptureFixture):
    """A ``before`` that fails while held jobs are lined up is logged and replaced by submission order."""

    class Moody:
        moody = False

        def before(self, a: Job[Any], b: Job[Any]) -> bool:
            if self.moody:
                raise ValueError("not today")
            return False

    policy = Moody()
    stepped = StepScheduler(9, policy=policy, limits={"a": Limit(rate=1)})
    starts = Starts(stepped.clock)
    for n in range(4):
        stepped.options(limits="a").submit(starts.task, n)
    policy.moody = True
    stepped.drain()
    assert starts.names == [0, 1, 2, 3]
    assert "not today" in caplog.text
    stepped.check()


def test_audit_notices_a_leak():
    """The audit is no formality: room that nobody uses, and a line that nobody lets go, are found."""
    stepped = StepScheduler(2, limits={"a": Limit(1)})
    gate = stepped._runtime.limits.gates["a"]
    gate.inside[99] = None
    with pytest.raises(InvariantError, match="limit 'a' counts 1 inside, and 0 run"):
        stepped.check()
    del gate.inside[99]
    stepped.check()
    blocker, _held = (stepped.options(limits="a").submit(int) for _ in range(2))
    assert blocker.claim()
    stepped.tick()
    stepped.check()
    gate.parked.clear()
    with pytest.raises(InvariantError, match="parked at 0 gates"):
        stepped.check()


# ---------------------------------------------------------------- cost


@both
def test_cost_of_a_freed_place_does_not_grow_with_the_held(queue: str):
    """With ten thousand held jobs a place that comes free asks one of them, and takes some log n comparisons."""
    policy = BeforePriority()
    stepped = StepScheduler(20_000, policy=policy, limits={"a": Limit(1), "b": Limit(3)}, queue=queue)
    limits = stepped._runtime.limits
    count = 10_000
    blockers = [stepped.options(limits="a").submit(int)]
    assert blockers[0].claim()
    for n in range(count):
        names = ("a", ["a", "b"])[n % 2]
        stepped.options(limits=names, priority=(n * 7919) % count).submit(int)
    stepped.tick()
    assert stepped.stats().waiting == count
    asked: list[int] = []
    may_start = type(limits.group(("a",))).may_start
    core = stepped._runtime.core

    def counted(group: Any, job: Job[Any], now: float) -> bool:
        asked.append(job.seq)
        return may_start(group, job, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(limits.group(("a",))), "may_start", counted)
        policy.calls = 0
        blockers[0].set_result(None)
        rounds = 200
        for _ in range(rounds):
            job = core.claim(0.0, None)
            assert job is not None
            assert core.claim(0.0, None) is None
            core.finish(job, None, "x", 0.0)
    assert len(asked) <= rounds + 1
    assert policy.calls / rounds <= 8 * math.log2(count)
    stepped.check()


def test_cost_with_many_sets_of_limits():
    """Two thousand customers with a limit each beside a common one: a freed common place looks at a few of them."""
    customers = 2000
    limits = {"all": Limit(1), **{f"c{n}": Limit(1) for n in range(customers)}}
    policy = BeforePriority()
    stepped = StepScheduler(2 * customers, policy=policy, limits=limits)
    core, keeper = stepped._runtime.core, stepped._runtime.limits
    blocker = stepped.options(limits="all").submit(int)
    assert blocker.claim()
    for n in range(customers):
        stepped.options(limits=["all", f"c{n}"], priority=(n * 7919) % customers).submit(int)
    stepped.tick()
    moves: list[str] = []
    park = type(keeper)._park

    def counted(limits: Any, group: Any, gate: Any) -> None:
        moves.append(gate.name)
        park(limits, group, gate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(keeper), "_park", counted)
        policy.calls = 0
        blocker.set_result(None)
        for _ in range(100):
            job = core.claim(0.0, None)
            assert job is not None
            core.finish(job, None, "x", 0.0)
    assert len(moves) <= 300
    assert policy.calls / 100 <= 8 * math.log2(customers)
    stepped.check()

"""Limits by number, the order among the held, claim, cancel, shutdown, fork: threaded and stepped."""

import math
import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from tests.limits_support import PATIENCE, BeforePriority, Starts, both, busy, scheduler
from tests.support import run_script
from threadsched import (
    FifoPolicy,
    Job,
    JobStatus,
    Limit,
    LimitInfo,
    PriorityPolicy,
    Scheduler,
    ThreadschedError,
    UnknownLimitError,
    current_job,
)
from threadsched.testing import StepScheduler

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
    assert stepped._runtime.core.alarm is None
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

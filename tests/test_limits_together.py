"""Limits beside the other features: nested waits, full queues, other priorities, parents, schedules, pauses."""

import itertools
import threading
from contextlib import contextmanager

import pytest

from tests.limits_support import PATIENCE, BeforePriority, both, busy, scheduler
from threadsched import DeadlockError, FifoPolicy, Limit, QueueFullError, current_job
from threadsched.testing import FakeClock, StepScheduler


@both
def test_wait_for_a_limit_that_this_thread_holds_is_refused(queue):
    with scheduler(2, queue=queue, limits={"db": Limit(concurrency=1)}) as (pool, _, _):
        db = pool.options(limits="db")
        inner = []

        def outer():
            inner.append(db.submit(int))
            return inner[0].result()

        job = db.submit(outer)
        with pytest.raises(DeadlockError, match="waits for limit 'db', held by this thread"):
            job.result(PATIENCE)
        assert inner[0].result(PATIENCE) == 0


@both
def test_helper_runs_a_job_once_the_limit_has_room(queue):
    with scheduler(1, queue=queue, limits={"mail": Limit(rate=1, per=5.0)}) as (pool, clock, _):
        mail = pool.options(limits="mail")
        mail.submit(int).result(PATIENCE)

        def outer():
            return mail.submit(clock.now).result()

        job = pool.submit(outer)
        clock.advance(4)
        assert not job.done()
        clock.advance(4)
        assert job.result(PATIENCE) == 5


@both
def test_coroutine_awaits_a_job_that_a_rate_holds(queue):
    with scheduler(1, queue=queue, limits={"mail": Limit(rate=1, per=5.0)}) as (pool, clock, _):
        mail = pool.options(limits="mail")
        mail.submit(int).result(PATIENCE)

        async def outer():
            return await mail.submit(clock.now)

        job = pool.submit(outer)
        clock.advance(4)
        assert not job.done()
        clock.advance(4)
        assert job.result(PATIENCE) == 5


@both
def test_helper_is_rung_when_another_thread_leaves_the_limit(queue):
    with scheduler(2, queue=queue, limits={"db": Limit(concurrency=1)}) as (pool, _, _):
        db = pool.options(limits="db")
        with busy(pool, limits="db"):
            started = threading.Event()

            def outer():
                job = db.submit(int)
                started.set()
                return job.result()

            waiting = pool.submit(outer)
            assert started.wait(PATIENCE)
            pool.check()
        assert waiting.result(PATIENCE) == 0


@both
def test_caller_runs_only_with_room(queue):
    limits = {"db": Limit(concurrency=1), "mail": Limit(rate=2, per=10.0)}
    with scheduler(1, queue=queue, limits=limits, max_pending=1, on_full="caller_runs") as (pool, _, _):
        both_of_them = pool.options(limits=["db", "mail"])
        with busy(pool, limits="mail"):
            pool.submit(int)
            here = both_of_them.submit(threading.get_ident)
            assert here.result(0) == threading.get_ident()
            with pytest.raises(QueueFullError):
                both_of_them.submit(int)
            assert pool.limits["db"].in_use == 0
            assert pool.limits["mail"].in_use == 1
            assert pool.options(limits="db").submit(lambda: pool.limits["db"].in_use).result(0) == 1
            pool.check()


@both
@pytest.mark.parametrize("policy", [None, BeforePriority(), FifoPolicy()], ids=["trusted", "before", "fifo"])
def test_held_job_gets_another_priority(queue, policy):
    with scheduler(3, queue=queue, policy=policy, limits={"db": Limit(concurrency=1)}) as (pool, _, starts):
        db = pool.options(limits="db")
        with busy(pool, limits="db"):
            jobs = [db.submit(starts.task, number) for number in range(6)]
            assert jobs[4].set_priority(-5)
            pool.check()
            assert jobs[0].set_priority(7)
            assert jobs[2].set_priority(-7)
            pool.check()
        pool.wait_idle(PATIENCE)
        assert starts.names == ([0, 1, 2, 3, 4, 5] if type(policy) is FifoPolicy else [2, 4, 1, 3, 5, 0])


@both
def test_priority_of_the_first_to_wake_by_a_rate(queue):
    with scheduler(2, queue=queue, limits={"mail": Limit(rate=1, per=1.0)}) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        jobs = [mail.submit(starts.task, number) for number in range(4)]
        clock.advance(0)
        jobs[3].set_priority(-1)
        pool.check()
        clock.advance(10)
        assert starts.log == [(0, 0), (1, 3), (2, 1), (3, 2)]


@both
def test_parents_first_and_the_limit_last(queue):
    with scheduler(2, queue=queue, limits={"mail": Limit(rate=1, per=5.0)}) as (pool, clock, starts):
        pool.options(limits="mail").submit(starts.task, "first")
        parent = pool.options(delay=2).submit(starts.task, "parent")
        child = pool.options(limits="mail", after=parent).submit(starts.task, "child")
        clock.advance(1)
        assert [reason.kind for reason in child.explain()] == ["parent"]
        clock.advance(2)
        assert [reason.kind for reason in child.explain()] == ["limit"]
        pool.pause()
        assert [reason.kind for reason in child.explain()] == ["paused", "limit"]
        pool.resume()
        clock.advance(5)
        assert starts.log == [(0, "first"), (2, "parent"), (5, "child")]


@both
def test_schedule_under_a_limit(queue):
    with scheduler(2, queue=queue, limits={"mail": Limit(rate=1, per=3.0)}) as (pool, clock, starts):
        schedule = pool.options(limits="mail", start=0).every(2, starts.task)
        clock.advance(1)
        pool.check()
        clock.advance(1.5)
        assert pool.stats().waiting == 1
        schedule.pause()
        schedule.resume()
        pool.check()
        schedule.pause()
        clock.advance(3)
        pool.check()
        other = pool.options(limits="mail").submit(starts.task, "other")
        clock.advance(0)
        assert other.done()
        schedule.resume()
        clock.advance(10)
        pool.check()
        times = starts.times
        assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(times))
        assert len(times) > 4
        schedule.cancel()


@both
def test_paused_past_the_alarm(queue):
    with scheduler(2, queue=queue, limits={"mail": Limit(rate=1, per=1.0)}) as (pool, clock, starts):
        mail = pool.options(limits="mail")
        for number in range(3):
            mail.submit(starts.task, number)
        clock.advance(0.5)
        pool.pause()
        clock.advance(5)
        pool.check()
        assert starts.names == [0]
        pool.resume()
        clock.advance(5)
        assert starts.log == [(0, 0), (5.5, 1), (6.5, 2)]


@both
def test_stepped_nested_wait_under_a_limit(queue):
    stepped = StepScheduler(2, clock=FakeClock(), queue=queue, limits={"db": Limit(concurrency=1)})
    db = stepped.options(limits="db")
    jobs = []

    def outer():
        jobs.append(db.submit(int))
        return jobs[0].result()

    inside = db.submit(outer)
    free = stepped.submit(lambda: db.submit(current_job).result() is not None)
    stepped.tick()
    assert isinstance(inside.exception(0), DeadlockError)
    assert "limit 'db'" in str(inside.exception(0))
    stepped.check()
    stepped.drain()
    stepped.check()
    assert jobs[0].result(0) == 0
    assert free.result(0) is True


@both
def test_repair_leaves_the_held_where_they_are(queue):
    stepped = StepScheduler(3, clock=FakeClock(), queue=queue, limits={"mail": Limit(rate=1, per=1.0)})
    mail = stepped.options(limits="mail")
    jobs = [mail.submit(int) for _ in range(4)]
    stepped.tick()
    core = stepped._runtime.core
    core.ready.untidy = core.delayed.untidy = True
    with stepped._runtime.lock:
        core.repair()
    stepped.check()
    assert len(core.waiting) == 3
    for _ in range(3):
        stepped.clock.advance(1)
        stepped.tick()
    assert all(job.done() for job in jobs)


@both
def test_coroutine_that_awaits_what_its_own_place_holds_back(queue):
    with scheduler(2, queue=queue, limits={"db": Limit(concurrency=1)}) as (pool, _, _):
        db = pool.options(limits="db")
        inner = []

        async def outer():
            inner.append(db.submit(int))
            return await inner[0]

        with pytest.raises(DeadlockError, match="waits for limit 'db', held by that job alone"):
            db.submit(outer).result(PATIENCE)
        assert inner[0].result(PATIENCE) == 0


@both
def test_helper_goes_before_those_who_were_sent_and_have_no_worker(queue):
    with scheduler(1, queue=queue, limits={"db": Limit(concurrency=1)}) as (pool, _, starts):
        db = pool.options(limits="db")

        def outer():
            jobs = [db.submit(starts.task, number) for number in range(3)]
            # All are refused and line up; when the claim is settled the first is sent, and finds no worker.
            with busy_claim(db.submit(int)), pool._runtime.lock:
                for job in jobs:
                    assert not pool._runtime.core.claim_given(job, 0.0, current_job()._place)
            return jobs[2].result()

        assert pool.submit(outer).result(PATIENCE) is None
        pool.wait_idle(PATIENCE)
        assert starts.names == [2, 0, 1]


@contextmanager
def busy_claim(job):
    assert job.claim()
    yield
    job.set_result(None)

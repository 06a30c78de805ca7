"""What the lock guards is changed inside it, and nothing foreign runs there: looked at in every kind of use.

A lock that somebody forgets shows in a race, once in a million runs. Here it shows at the first.
"""

import asyncio
import concurrent.futures
import datetime
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lock_watch import LockWatch, lock_watch
from threadsched import Limit, QueueFullError, Retry, RetryAfter, Scheduler, current_job
from threadsched.testing import FakeClock, StepScheduler

PATIENCE = 5.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockWatch]:
    with lock_watch(monkeypatch) as watch:
        yield watch


class Clock(FakeClock):
    """A fake clock that is foreign code."""

    watch: LockWatch

    def now(self) -> float:
        watch = getattr(self, "watch", None)
        if watch is not None:
            watch.outside("the clock")
        return super().now()


class Bench:
    """A watched scheduler on a watched clock, and foreign code to give it."""

    def __init__(self, watch: LockWatch, **options: Any) -> None:
        self.watch = watch
        self.clock = Clock()
        self.clock.watch = watch
        self.errors: list[Any] = []
        options.setdefault("on_error", watch.foreign(lambda job, error: self.errors.append(job), "on_error"))
        self.s = Scheduler(2, clock=self.clock, **options)
        watch.over(self.s)

    def task(self, call: Callable[..., Any] = int) -> Callable[..., Any]:
        return self.watch.foreign(call, "a task")

    def callback(self, call: Callable[..., Any] = lambda job: None) -> Callable[..., Any]:
        return self.watch.foreign(call, "a callback")

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        self.s.shutdown()


def boom(*args: Any) -> None:
    raise ValueError("boom")


def quietly(job: Any) -> None:
    job.exception(PATIENCE)


# ---------------------------------------------------------------- jobs and their ends


def test_submit_run_and_settle(watch: LockWatch):
    """Jobs that succeed and fail, with arguments that are foreign code when they go, with callbacks and without."""
    with Bench(watch) as bench:
        jobs = []
        for number in range(6):
            job = bench.s.submit(bench.task(boom if number % 3 == 2 else lambda thing: None), watch.thing())
            if number % 2:
                job.add_done_callback(bench.callback())
            jobs.append(job)
        for job in jobs:
            quietly(job)
        jobs[0].add_done_callback(bench.callback())
        del job
        jobs.clear()
        assert bench.s.wait_idle(PATIENCE)
        bench.s.check()
    assert len(bench.errors) == 2


def test_results_are_things(watch: LockWatch):
    """A result and an error that nobody holds go outside the lock."""
    with Bench(watch) as bench:

        class HoldingError(ValueError):
            def __init__(self) -> None:
                self.thing = watch.thing()

        def fails() -> None:
            raise HoldingError

        def recovers() -> None:
            job = current_job()
            assert job is not None
            if job.attempts < 2:
                raise HoldingError

        jobs = [bench.s.submit(bench.task(watch.thing)) for _ in range(4)]
        jobs += [bench.s.options(retries=1, backoff=0).submit(bench.task(recovers)) for _ in range(4)]
        for job in jobs[::2]:
            job.add_done_callback(bench.callback())
        jobs += [bench.s.options(retries=1, backoff=0).submit(bench.task(fails)) for _ in range(2)]
        for job in jobs:
            quietly(job)
        del job
        jobs.clear()
        assert bench.s.wait_idle(PATIENCE)


def test_delays_and_retries(watch: LockWatch):
    """Delayed jobs, retries with and without a rule of the user's, exact pauses, and giving up."""
    with Bench(watch) as bench:
        attempts: list[int] = []

        def flaky() -> int:
            attempts.append(1)
            if len(attempts) < 3:
                raise RetryAfter(2)
            return 1

        rule = Retry(2, 1.0, give_up=watch.foreign(lambda error: False, "give_up"))
        retried = bench.s.options(retry=rule).submit(bench.task(boom))
        exact = bench.s.options(retries=3).submit(bench.task(flaky))
        delayed = [bench.s.options(delay=delay).submit(bench.task()) for delay in (3, 1, 2)]
        bench.clock.advance(10)
        assert exact.result(PATIENCE) == 1
        assert [job.result(PATIENCE) for job in delayed] == [0, 0, 0]
        quietly(retried)


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_cancel(watch: LockWatch, queue: Any):
    """Cancels of delayed, ready, running and ended jobs, one by one and all at once, watched in every way."""
    with Bench(watch, queue=queue) as bench:
        gate, begun = threading.Event(), threading.Barrier(3)

        def hold() -> None:
            begun.wait(PATIENCE)
            gate.wait(PATIENCE)

        running = [bench.s.options(retries=1).submit(bench.task(hold)) for _ in range(2)]
        begun.wait(PATIENCE)
        make = [lambda: bench.s.submit, lambda: bench.s.options(delay=5, id="mine").submit]
        for submit in make:
            job = submit()(bench.task(), watch.thing())
            job.add_done_callback(bench.callback())
            assert job.cancel()
            job = submit()(bench.task(), watch.thing()) if submit is make[0] else job
            waiter = threading.Thread(target=concurrent.futures.wait, args=([job],))
            waiter.start()
            job.cancel()
            waiter.join(PATIENCE)
        assert not running[0].cancel()
        jobs = [bench.s.options(delay=delay).submit(bench.task(), watch.thing()) for delay in (0, 5) for _ in range(5)]
        jobs[3].add_done_callback(bench.callback())
        del job, jobs
        assert bench.s.clear() == 10
        gate.set()
        assert bench.s.wait_idle(PATIENCE)
        assert not running[0].cancel()


def test_many_cancels_sweep(watch: LockWatch):
    """The sweep that mass cancelling brings about is made inside the lock."""
    with Bench(watch) as bench:
        jobs = [bench.s.options(delay=5).submit(bench.task()) for _ in range(200)]
        for job in jobs:
            assert bench.s.cancel(job.id)


def test_asking_a_running_task_to_stop(watch: LockWatch):
    """A task that sleeps on the scheduler's clock, one that is woken by a request, and one that stops itself."""
    with Bench(watch) as bench:
        begun = threading.Event()

        def sleeps(seconds: float) -> bool:
            job = current_job()
            assert job is not None
            begun.set()
            went_by = job.sleep(seconds)
            job.check_cancelled()
            return went_by

        whole = bench.s.submit(bench.task(sleeps), 2)
        bench.clock.advance(3)
        assert whole.result(PATIENCE) is True
        begun.clear()
        stopped = bench.s.submit(bench.task(sleeps), 1000)
        assert begun.wait(PATIENCE)
        assert stopped.request_cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            stopped.result(PATIENCE)
        pending = bench.s.options(delay=5).submit(bench.task())
        assert pending.request_cancel()


def test_wait_and_as_completed(watch: LockWatch):
    """Jobs watched by the standard library's functions, whatever becomes of them."""
    with Bench(watch) as bench:
        gate = threading.Event()
        jobs = [bench.s.submit(bench.task(gate.wait), PATIENCE), bench.s.submit(bench.task(boom))]
        cancelled = bench.s.options(delay=50).submit(bench.task())
        retried = bench.s.options(retries=1, backoff=0).submit(bench.task(boom))
        late = threading.Thread(target=lambda: list(concurrent.futures.as_completed([*jobs, cancelled, retried])))
        late.start()
        concurrent.futures.wait([jobs[1]], timeout=PATIENCE)
        cancelled.cancel()
        gate.set()
        concurrent.futures.wait([*jobs, cancelled, retried], timeout=PATIENCE)
        late.join(PATIENCE)


def test_waits_with_and_without_an_end(watch: LockWatch):
    """Waits for a result, for idleness and for room, in time and out of time."""
    with Bench(watch) as bench:
        gate = threading.Event()
        job = bench.s.submit(bench.task(gate.wait), PATIENCE)
        with pytest.raises(TimeoutError):
            job.result(0.001)
        assert bench.s.wait_idle(0.001) is False
        delayed = bench.s.options(delay=50).submit(bench.task())
        assert bench.s.wait_below(1, 0.001) is False
        waits = [
            threading.Thread(target=call, args=args)
            for call, args in (
                (bench.s.wait_idle, (PATIENCE,)),
                (bench.s.wait_below, (1, PATIENCE)),
                (job.result, (PATIENCE,)),
                (job.result, ()),
            )
        ]
        for thread in waits:
            thread.start()
        delayed.cancel()
        gate.set()
        for thread in waits:
            thread.join(PATIENCE)
        assert bench.s.wait_below(1, PATIENCE)


def test_claiming_by_hand(watch: LockWatch):
    """A job claimed, settled either way, and one that cannot be had."""
    with Bench(watch) as bench:
        jobs = [bench.s.options(delay=50).submit(bench.task(), watch.thing()) for _ in range(3)]
        jobs[0].add_done_callback(bench.callback())
        for job in jobs[:2]:
            assert job.claim()
            assert not job.claim()
        jobs[0].set_result(watch.thing())
        jobs[1].set_exception(ValueError("by hand"))
        jobs[2].cancel()
        assert not jobs[2].claim()
        quietly(jobs[1])
        del job
        jobs.clear()


# ---------------------------------------------------------------- order


class ByKey:
    def __init__(self, watch: LockWatch) -> None:
        self.watch = watch

    def key(self, job: Any) -> float:
        self.watch.outside("a policy's key")
        return -float(job.priority)


class ByBefore:
    """The exception: `before` runs inside the lock."""

    def before(self, a: Any, b: Any) -> bool:
        return bool(a.priority > b.priority)


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_policies_and_priorities(watch: LockWatch, queue: Any):
    """Keys are computed outside the lock, at submission, at a retry, at a swap and at a change of priority."""
    with Bench(watch, queue=queue, policy=ByKey(watch)) as bench:
        bench.s.pause()
        jobs = [bench.s.options(priority=number % 3).submit(bench.task()) for number in range(6)]
        jobs.append(bench.s.options(retries=2, backoff=1).submit(bench.task(boom)))
        assert jobs[2].set_priority(9)
        bench.s.policy = ByBefore()
        assert jobs[3].set_priority(7)
        bench.s.policy = ByKey(watch)
        bench.s.resume()
        bench.clock.advance(5)
        for job in jobs:
            quietly(job)


def test_a_policy_that_fails(watch: LockWatch):
    """A submission that its policy breaks is withdrawn inside the lock."""

    class Failing(ByBefore):
        failing = False

        def before(self, a: Any, b: Any) -> bool:
            if self.failing:
                raise LookupError
            return super().before(a, b)

    policy = Failing()
    with Bench(watch, policy=policy) as bench:
        bench.s.pause()
        bench.s.submit(bench.task())
        policy.failing = True
        with pytest.raises(LookupError):
            bench.s.submit(bench.task(), watch.thing())
        policy.failing = False
        bench.s.resume()


# ---------------------------------------------------------------- what holds jobs back


@pytest.mark.parametrize("on_full", ["block", "reject", "drop_oldest", "drop_lowest", "caller_runs"])
def test_a_full_queue(watch: LockWatch, on_full: Any):
    """Whatever a full queue does with a newcomer and with those in it."""
    with Bench(watch, queue="indexed", max_pending=2, on_full=on_full, policy=ByKey(watch)) as bench:
        gate, begun = threading.Event(), threading.Barrier(3)

        def hold() -> None:
            begun.wait(PATIENCE)
            gate.wait(PATIENCE)

        for _ in range(2):
            bench.s.submit(bench.task(hold))
        begun.wait(PATIENCE)
        task = bench.task(lambda thing: None)
        jobs = [bench.s.options(priority=5).submit(task, watch.thing()) for _ in range(2)]
        jobs[0].add_done_callback(bench.callback())
        newcomers = bench.s.options(priority=6, submit_timeout=0.001, id="mine")
        if on_full in ("block", "reject"):
            with pytest.raises(QueueFullError):
                newcomers.submit(task, watch.thing())
        else:
            jobs.append(newcomers.submit(task, watch.thing()))
            assert jobs[2].done() is (on_full == "caller_runs")
            if on_full == "drop_lowest":
                assert bench.s.options(priority=1).submit(task, watch.thing()).cancelled()
        if on_full == "block":
            blocked = threading.Thread(target=bench.s.submit, args=(task, watch.thing()))
            blocked.start()
            while not bench.s._runtime.core.gate.line:  # type: ignore[union-attr]
                time.sleep(0)
            jobs[1].cancel()
            blocked.join(PATIENCE)
        del jobs
        gate.set()
        assert bench.s.wait_idle(PATIENCE)


def test_limits(watch: LockWatch):
    """Limits by number and by rate, with jobs that wait for them, are cancelled there, and are moved there."""
    limits = {"one": Limit(concurrency=1), "slow": Limit(rate=1, per=10.0)}
    with Bench(watch, limits=limits) as bench:
        gate = threading.Event()
        jobs = [bench.s.options(limits="one").submit(bench.task(gate.wait), PATIENCE) for _ in range(4)]
        jobs += [bench.s.options(limits=["one", "slow"], priority=number).submit(bench.task()) for number in range(4)]
        jobs[3].cancel()
        jobs[4].set_priority(9)
        bench.s.policy = ByKey(watch)
        gate.set()
        bench.clock.advance(60)
        assert bench.s.wait_idle(PATIENCE)
        assert bench.s.limits["one"].in_use == 0
        jobs[5].explain()


def test_dependencies(watch: LockWatch):
    """Jobs that wait for jobs and for other futures, which end well, badly, or are given up."""
    with Bench(watch) as bench:
        foreign: concurrent.futures.Future[int] = concurrent.futures.Future()
        parents = [bench.s.options(delay=1).submit(bench.task()), bench.s.options(delay=1).submit(bench.task(boom))]
        children = [bench.s.options(after=parent).submit(bench.task(), watch.thing()) for parent in (*parents, foreign)]
        children.append(bench.s.options(after=parents, after_any_outcome=True).submit(bench.task()))
        children.append(bench.s.options(after=children[1]).submit(bench.task()))
        children[4].add_done_callback(bench.callback())
        given_up = bench.s.options(after=children[2]).submit(bench.task())
        given_up.explain()
        given_up.cancel()
        bench.clock.advance(2)
        foreign.set_result(1)
        for job in (*children, parents[1]):
            concurrent.futures.wait([job], PATIENCE)
        quietly(parents[1])


def test_time_limits(watch: LockWatch):
    """A task that runs too long, whose thread is lost and comes home; a job that is not started in time; a retry."""
    with Bench(watch) as bench:
        gate, started = threading.Event(), threading.Event()

        def stays(thing: Any) -> None:
            started.set()
            gate.wait(PATIENCE)

        late = bench.s.options(timeout=1).submit(bench.task(stays), watch.thing())
        late.add_done_callback(bench.callback())
        assert started.wait(PATIENCE)
        bench.clock.jump(1)
        assert isinstance(late.exception(PATIENCE), TimeoutError)
        gate.set()
        again = bench.s.options(timeout=5, retries=1).submit(bench.task(boom))
        bench.clock.advance(1)
        quietly(again)
        bench.s.pause()
        expired = bench.s.options(expires=1).submit(bench.task(), watch.thing())
        expired.add_done_callback(bench.callback())
        bench.clock.advance(1)
        assert expired.cancelled()


# ---------------------------------------------------------------- schedules and the wall clock


def test_schedules(watch: LockWatch):
    """Recurring jobs: runs, failures, a pause, a run by hand, an end; and a schedule that the shutdown ends."""
    with Bench(watch) as bench:
        schedules = [
            bench.s.every(1, bench.task()),
            bench.s.options(mode="delay", max_failures=2).every(1, bench.task(boom)),
            bench.s.options(max_runs=2, jitter=0.1).every(1, bench.task()),
            bench.s.cron("* * * * *", bench.task()),
        ]
        bench.clock.advance(3)
        schedules[0].pause()
        bench.clock.advance(2)
        schedules[0].resume()
        schedules[0].run_now()
        bench.clock.advance(100)
        assert schedules[2].runs == 2
        assert bench.s.schedules()
        schedules[0].cancel()
        job = bench.s.options(
            at=datetime.datetime.fromtimestamp(bench.clock.wall(), datetime.UTC) + datetime.timedelta(seconds=50)
        ).submit(bench.task())
        bench.clock.step_wall(20)
        bench.clock.advance(60)
        assert job.result(PATIENCE) == 0


# ---------------------------------------------------------------- jobs that wait for jobs


def test_nested_waits(watch: LockWatch):
    """Tasks that wait for tasks of their own pool: helped, delayed, and deadlocked."""
    with Bench(watch) as bench:

        def outer(depth: int) -> int:
            return 0 if depth == 0 else bench.s.submit(bench.task(outer), depth - 1).result() + 1  # type: ignore[no-any-return]

        assert [job.result(PATIENCE) for job in [bench.s.submit(bench.task(outer), 5) for _ in range(3)]] == [5] * 3
        known: list[Any] = []
        begun = threading.Event()

        def waits_for_delayed() -> int:
            begun.set()
            return known[0].result()  # type: ignore[no-any-return]

        known.append(bench.s.options(delay=5).submit(bench.task()))
        waiting = bench.s.submit(bench.task(waits_for_delayed))
        assert begun.wait(PATIENCE)
        bench.clock.advance(6)
        assert waiting.result(PATIENCE) == 0
        ring: list[Any] = []
        met = threading.Barrier(2)

        def in_a_ring(other: int) -> None:
            met.wait(PATIENCE)
            ring[other].result()

        bench.s.pause()
        ring += [bench.s.submit(bench.task(in_a_ring), 1), bench.s.submit(bench.task(in_a_ring), 0)]
        bench.s.resume()
        for job in ring:
            quietly(job)


def test_coroutines(watch: LockWatch):
    """Coroutine tasks, ones that await jobs of their own scheduler, and jobs awaited from outside."""
    with Bench(watch) as bench:

        async def awaits() -> int:
            watch.outside("a coroutine")
            await asyncio.sleep(0)
            return int(await bench.s.submit(bench.task()))

        async def main() -> None:
            jobs = [bench.s.submit(bench.task(awaits)) for _ in range(4)]
            assert await asyncio.gather(*jobs) == [0] * 4
            given_up = asyncio.ensure_future(wrap(bench.s.options(delay=50).submit(bench.task())))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up

        async def wrap(job: Any) -> Any:
            return await job

        asyncio.run(main())


def test_stepped_scheduler(watch: LockWatch):
    """The stepped scheduler keeps to the same rules, though nobody else may be there."""
    clock = Clock()
    clock.watch = watch
    scheduler = StepScheduler(2, clock=clock)
    watch.over(scheduler)
    task = watch.foreign(lambda thing: None, "a task")
    jobs = [scheduler.options(delay=delay, retries=1).submit(task, watch.thing()) for delay in (0, 0, 1, 2)]
    jobs.append(scheduler.submit(watch.foreign(boom, "a task")))
    jobs[0].add_done_callback(watch.foreign(lambda job: None, "a callback"))
    jobs[3].add_done_callback(watch.foreign(lambda job: None, "a callback"))
    scheduler.every(1, watch.foreign(int, "a task"))
    child = scheduler.options(after=jobs[2]).submit(watch.foreign(int, "a task"))
    scheduler.tick()
    jobs[3].cancel()
    scheduler.drain(limit=5)
    assert child.result(0) == 0
    quietly(jobs[4])
    scheduler.shutdown()


def test_map(watch: LockWatch):
    """A map read to its end, one that is closed early, and one with a window."""
    with Bench(watch) as bench:
        assert list(bench.s.map(bench.task(lambda n: n), range(5))) == list(range(5))
        windowed = bench.s.map(bench.task(lambda n: n), range(100), buffersize=2)
        assert next(windowed) == 0
        windowed.close()  # type: ignore[attr-defined]


# ---------------------------------------------------------------- looking, pausing, ending


def test_looking_inside(watch: LockWatch):
    """Stats, snapshots, reasons and records of jobs in every state."""
    with Bench(watch) as bench:
        ended = bench.s.submit(bench.task())
        quietly(ended)
        bench.s.pause()
        jobs = [ended, bench.s.submit(bench.task()), bench.s.options(delay=5, id="mine").submit(bench.task())]
        for job in jobs:
            assert job.explain()
            assert job.info().id == job.id
            bench.s.status_of(job.id)
            bench.s.get(job.id)
        assert len(bench.s.snapshot()) == 3
        assert bench.s.stats().submitted == 3
        bench.s.check()
        bench.s.resume()
        jobs[2].cancel()


class CountedLock:
    """A lock that counts how often it was entered."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.entered = lock, 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.entered += 1

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())


LOOKS: dict[str, Callable[[Scheduler, Any], object]] = {
    "stats": lambda s, job: s.stats(),
    "info": lambda s, job: job.info(),
    "snapshot": lambda s, job: s.snapshot(),
    "limits": lambda s, job: s.limits,
    "check": lambda s, job: s.check(),
    "schedules": lambda s, job: s.schedules(),
    "next_run": lambda s, job: s.schedules()[0].next_run,
    "its run": lambda s, job: s.schedules()[0].job,
}


@pytest.mark.parametrize("look", list(LOOKS))
def test_what_is_seen_is_of_one_instant(look: str):
    """Whatever looks at more than one field looks inside the lock."""
    with Scheduler(1, limits={"one": Limit(concurrency=1)}) as scheduler:
        job = scheduler.options(limits="one").submit(int)
        assert job.result(PATIENCE) == 0
        scheduler.every(1000, int)
        runtime = scheduler._runtime
        counted = CountedLock(runtime.lock)
        runtime.lock = counted
        try:
            LOOKS[look](scheduler, job)
        finally:
            runtime.lock = counted.lock
        assert counted.entered


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shutdown(watch: LockWatch, drain: Any):
    """Each mode of shutdown, with jobs in every place, and a second call that is more drastic."""
    bench = Bench(watch)
    gate, begun = threading.Event(), threading.Barrier(3)

    def hold() -> None:
        begun.wait(PATIENCE)
        gate.wait(PATIENCE)

    for _ in range(2):
        bench.s.submit(bench.task(hold))
    begun.wait(PATIENCE)
    attempted = threading.Event()
    jobs = [bench.s.options(delay=delay).submit(bench.task(lambda thing: None), watch.thing()) for delay in (0, 0, 50)]
    jobs.append(bench.s.options(after=jobs[2]).submit(bench.task()))
    jobs.append(bench.s.options(after=jobs[0]).submit(bench.task()))
    for job in jobs:
        job.add_done_callback(bench.callback())
    bench.s.every(1, bench.task())
    assert not bench.s.shutdown(wait=False, drain=drain)
    assert not bench.s.shutdown(timeout=0.001, drain=drain)
    gate.set()
    if drain == "all":
        bench.clock.advance(60)
    del job, jobs
    bench.s.shutdown()
    bench.s.shutdown(cancel_futures=True)
    assert not attempted.is_set()
    bench.s.check()


def test_shutdown_of_a_job_in_backoff(watch: LockWatch):
    """A job that waits for its retry is failed by a shutdown that drains what is due."""
    bench = Bench(watch)
    job = bench.s.options(retries=1, backoff=50).submit(bench.task(boom), watch.thing())
    bench.clock.advance(1)
    bench.s.shutdown(drain="due")
    quietly(job)


def test_a_worker_that_dies(watch: LockWatch, monkeypatch: pytest.MonkeyPatch):
    """A fault in our own loop: the job that the worker had is settled, and the worker replaced."""
    with Bench(watch) as bench:
        runtime = bench.s._runtime
        turn, struck = runtime.turn, []

        def dies(worker: Any, *args: Any) -> Any:
            job = turn(worker, *args)
            if job is not None and len(struck) < 2:
                struck.append(job)
                raise MemoryError
            return job

        monkeypatch.setattr(type(runtime), "turn", staticmethod(dies))
        jobs = [
            bench.s.options(retries=1, backoff=0).submit(bench.task(lambda thing: None), watch.thing())
            for _ in range(3)
        ]
        for job in jobs:
            job.add_done_callback(bench.callback())
            quietly(job)
        assert bench.s.stats().replaced_workers == 2


def test_an_initializer_that_fails(watch: LockWatch, caplog: pytest.LogCaptureFixture):
    """A broken scheduler fails what is pending, outside the lock where callbacks run."""
    begun = threading.Event()

    def initializer() -> None:
        watch.outside("the initializer")
        begun.wait(PATIENCE)
        raise ValueError("no")

    bench = Bench(watch, initializer=initializer)
    job = bench.s.submit(bench.task(), watch.thing())
    job.add_done_callback(bench.callback())
    begun.set()
    quietly(job)
    bench.s.shutdown()


def test_watch_sees_what_it_looks_for(monkeypatch: pytest.MonkeyPatch):
    """A change without the lock and foreign code inside it are both found: the other tests can fail."""
    with pytest.raises(AssertionError, match=r"pending\.clear without the lock[\s\S]*a task inside the lock"), \
            lock_watch(monkeypatch) as watch:  # fmt: skip
        bench = Bench(watch)
        bench.s._runtime.core.pending.clear()
        with bench.s._runtime.lock:
            bench.task()()
        bench.s.shutdown()

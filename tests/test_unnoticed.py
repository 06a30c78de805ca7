"""Faults that were seeded by hand, or found by a sweep, and that no other test noticed: one test for each."""

import asyncio
import concurrent.futures
import datetime
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from tests.gates import PATIENCE, Gate
from threadsched import DeadlockError, DependencyError, Job, JobStatus, Scheduler, _locks, current_job
from threadsched._arming import Armable, Armings
from threadsched._core import SWEEP_SLACK, Core
from threadsched._dependencies import dependents_of
from threadsched._gate import Gate as Places
from threadsched._locks import holds
from threadsched._waiting import Waiting
from threadsched.testing import FakeClock, StepScheduler


def soon(condition: Callable[[], object]) -> None:
    """Wait until a thread has come so far."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Refusing:
    """A rule that refuses a submission by an exception, as the run of a schedule does that is not wanted any more."""

    def admits(self, job: Job[Any]) -> bool:
        raise LookupError

    def may_start(self, job: Job[Any], now: float) -> bool:
        return True

    def started(self, job: Job[Any], now: float) -> None:
        pass

    def ended(self, job: Job[Any], now: float) -> None:
        pass


def test_a_refused_submission_that_is_not_withdrawn_is_held_back_nowhere():
    """Ctrl-C that strikes as a refused submission is about to be withdrawn leaves nothing among the waiting."""
    core = Driver().core
    job = make_job()
    job._attach().rules = (Refusing(),)
    job._key = 5
    with pytest.raises(LookupError):
        core.enter(job, next(core.numbers))
    # Here strikes Ctrl-C: no withdraw().
    core.entering = None  # as the next turn does
    core.check_invariants()
    assert not core.waiting


def test_wait_below_that_is_interrupted_before_it_sleeps_stands_on_no_list(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C between the registration and the sleep: nobody is waited for, and nobody pays for a gate."""

    def struck(self: Waiting, token: object, registry: object, timeout: object) -> bool:
        raise KeyboardInterrupt

    with Scheduler(1) as s:
        s.options(delay=60).submit(int)
        with monkeypatch.context() as patch:
            patch.setattr(Waiting, "_wait_on", struck)
            with pytest.raises(KeyboardInterrupt):
                s.wait_below(1)
        s.check()
        assert s._runtime.core.gate is None
        s.clear()


# ---------------------------------------------------------------- a full queue


def strike_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let Ctrl-C strike at the next entry to a method, once."""
    method, struck = getattr(owner, name), []

    def call(*args: Any) -> Any:
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return method(*args)

    monkeypatch.setattr(owner, name, call)


def test_a_producer_struck_as_it_gives_up_keeps_no_place(monkeypatch: pytest.MonkeyPatch):
    """Its time had run out, and Ctrl-C came as it was about to leave the line: the next place is somebody else's."""
    with Scheduler(1, max_pending=1) as s:
        s.pause()
        first = s.submit(int)
        with monkeypatch.context() as patch:
            strike_once(patch, Places, "withdraw")
            with pytest.raises(KeyboardInterrupt):
                s.options(submit_timeout=0.01).submit(int)
        assert first.cancel()
        assert s.options(submit_timeout=0).submit(int).cancel()
        s.check()


def test_a_newcomer_whose_drop_is_broken_off_is_held_back_nowhere(monkeypatch: pytest.MonkeyPatch):
    """It was about to be dropped as the last of all: after Ctrl-C it has not been there at all."""
    with Scheduler(1, max_pending=1, on_full="drop_lowest", queue="indexed") as s:
        s.pause()
        first = s.submit(int)
        with monkeypatch.context() as patch:
            strike_once(patch, Core, "_left_queue")
            with pytest.raises(KeyboardInterrupt):
                s.options(priority=9, id="mine").submit(int)
        s.check()
        assert s.stats().waiting == 0
        assert s.get("mine") is None
        assert first.cancel()


class Hooked:
    """The lock, and what is to be done as soon as it is free again."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.then: Callable[[], object] | None = None

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()
        then, self.then = self.then, None
        if then is not None:
            then()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())


def test_a_place_that_becomes_free_as_its_producer_queues_is_granted(monkeypatch: pytest.MonkeyPatch):
    """The producer finds the queue full and stands in line in one hold of the lock: in between comes nobody."""
    with Scheduler(1, max_pending=1) as s:
        s.pause()
        s.submit(int)
        take, runtime = Places.take, s._runtime
        lock: Any = Hooked(runtime.lock)
        granted: list[bool] = []

        def refused(places: Places, job: Job[Any], pending: Any) -> bool:
            def free_it() -> None:
                s.clear()
                granted.append(job in places.grants)

            taken = take(places, job, pending)
            if not taken:
                lock.then = free_it
            return taken

        monkeypatch.setattr(Places, "take", refused)
        runtime.lock = lock
        try:
            job = s.options(submit_timeout=PATIENCE).submit(int)
        finally:
            runtime.lock = lock.lock
        assert granted == [True]
        s.resume()
        assert job.result(PATIENCE) == 0


# ---------------------------------------------------------------- jobs that wait for jobs


def test_a_worker_that_waited_once_hides_no_ring_later():
    """A thread that has parked and gone on waits for nothing: what its coroutine awaits now is followed instead."""
    with Scheduler(2) as s:
        barrier = threading.Barrier(2)

        def parks() -> None:
            barrier.wait(PATIENCE)  # one on each worker
            s.options(delay=0.001).submit(int).result()

        for job in [s.submit(parks) for _ in range(2)]:
            job.result(PATIENCE)
        gate = Gate()

        def asks(other: Job[Any]) -> None:
            gate()
            other.result()

        async def awaits() -> None:
            me = current_job()
            job = s.submit(asks, me)
            gate.await_start()
            waiting = asyncio.ensure_future(_await(job))
            await asyncio.sleep(0)  # it has been noted by now
            gate.open()
            await waiting

        with pytest.raises(DeadlockError):
            s.submit(awaits).result(PATIENCE)


async def _await(job: Job[Any]) -> Any:
    return await job


def test_a_waiting_worker_that_starts_a_job_hands_the_watch_to_another_that_waits():
    """Both workers wait inside a task; while one of them runs what it waited for, the other's job starts on time."""
    with Scheduler(2) as s:
        gate, second = Gate(), threading.Event()
        first = s.submit(lambda: s.options(delay=0.05).submit(gate).result())
        soon(lambda: s._runtime.stand_in)
        other = s.submit(lambda: s.options(delay=0.1).submit(second.set).result())
        try:
            gate.await_start()
            assert second.wait(PATIENCE)
        finally:
            gate.open()
        first.result(PATIENCE)
        other.result(PATIENCE)


# ---------------------------------------------------------------- outcomes


def test_a_job_that_is_not_retried_after_all_was_due_when_it_was_due():
    """A retry that is decided and then refused leaves no trace in `run_at`."""

    def fails() -> None:
        job = current_job()
        assert job is not None
        job.cancel()
        raise ValueError

    s = StepScheduler()
    job = s.options(retries=1, backoff=5).submit(fails)
    s.tick()
    assert job.status is JobStatus.FAILED
    assert job.run_at == 0
    assert isinstance(job.exception(0), ValueError)


# ---------------------------------------------------------------- many jobs at once


def test_a_map_that_is_broken_off_between_queue_and_map_is_withdrawn(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C behind the queue entry of the second input: nothing is on its way in any more."""
    enter, calls = Core.enter, []

    def struck(core: Core, job: Job[Any], seq: int) -> bool:
        answer = enter(core, job, seq)
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answer

    s = StepScheduler()
    with monkeypatch.context() as patch:
        patch.setattr(Core, "enter", struck)
        with pytest.raises(KeyboardInterrupt):
            s.options(delay=5).map(int, ["1", "2", "3"])
    core = s._runtime.core
    assert len(calls) == 2
    assert core.entering is None
    assert core.delayed.untidy  # it has an entry that nobody counted
    assert not core.pending
    s.check()


def test_jobs_of_a_map_that_are_cancelled_are_swept():
    """A map is through with entering: a later cancel sweeps, although no worker has had a turn."""
    s = StepScheduler()
    s.map(int, range(10 * SWEEP_SLACK))
    assert s.clear() == 10 * SWEEP_SLACK
    assert len(s._runtime.core.delayed) <= 2 * SWEEP_SLACK  # in a stepped scheduler all enter here


# ---------------------------------------------------------------- schedules


def test_a_run_that_is_decided_as_its_schedule_is_paused_is_not_submitted():
    """The policy is asked for a key while the run is on its way, and pauses the schedule: the run is decided anew."""

    class Pauses:
        schedule: Any = None

        def key(self, job: Job[Any]) -> int:
            if self.schedule is not None:
                self.schedule.pause()
            return 1

    policy = Pauses()
    s = StepScheduler(policy=policy)
    schedule = s.every(1, int)
    policy.schedule = schedule
    assert isinstance(s.clock, FakeClock)
    s.clock.advance(1)
    assert s.tick() == []
    assert schedule.paused
    assert schedule.job is None
    assert s.stats().pending == 0


def test_callbacks_of_a_run_whose_schedule_is_cancelled_are_called_outside_of_the_lock():
    """And before `cancel()` returns."""
    s = StepScheduler(1)
    s.every(1, int)
    second = s.every(1, int)
    assert isinstance(s.clock, FakeClock)
    s.clock.advance(1)
    s.tick()
    held: list[bool] = []
    job = second.job
    assert job is not None
    job.add_done_callback(lambda _: held.append(holds(s._runtime.lock)))
    assert second.cancel()
    assert held == [False]


# ---------------------------------------------------------------- clocks


class Settable:
    """A clock whose wall clock somebody sets, and who does not say so."""

    ahead = 1e9

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.monotonic() + self.ahead

    def at(self, seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.wall() + seconds, datetime.UTC)


def test_a_schedule_whose_making_finds_the_wall_clock_set_wakes_who_sleeps_until_the_old_time():
    """The job that is due by the new time starts now, and not when the leader wakes of itself."""
    clock = Settable()
    with Scheduler(1, clock=clock) as s:
        job = s.options(at=clock.at(3600)).submit(int)
        soon(lambda: s.stats().idle)
        clock.ahead += 3600
        s.options(start=clock.at(36_000)).every(60, int)  # looks at the wall clock, and is not the first to be due
        assert job.result(PATIENCE) == 0


# ---------------------------------------------------------------- threads


def test_async_with_whose_waiting_thread_cannot_be_started_closes_the_door(monkeypatch: pytest.MonkeyPatch):
    """The wait fails, the scheduler is closed all the same."""

    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        async with s:
            monkeypatch.setattr(_locks, "start_thread", refuse)

    s = Scheduler(1)
    with pytest.raises(RuntimeError, match="can't start"):
        asyncio.run(main())
    assert s.closed


def test_a_number_that_is_given_away_while_workers_are_started_is_not_started(monkeypatch: pytest.MonkeyPatch):
    """Between two starts a worker is written off, and its post goes to a new number: never more than asked for."""
    start = _locks.start_thread

    def starts(target: Any, args: Any, name: str) -> Any:
        thread = start(target, args, name)
        if s._runtime.posts == [0, 1]:
            with s._runtime.lock:
                s._runtime.posts[1] = 2
        return thread

    with Scheduler(2) as s:
        monkeypatch.setattr(_locks, "start_thread", starts)
        s.start()
        assert s._runtime.launched == {0}
        s.start()
        assert s._runtime.launched == {0, 2}


# ---------------------------------------------------------------- what breaks in, on the same thread


class Broken(list[Any]):
    """A list into whose next append somebody breaks, as a finalizer does."""

    then: Callable[[], object] | None = None

    def append(self, item: Any) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()
        super().append(item)


def break_into_the_wait_for(job: Job[Any]) -> None:
    """Have the job cancelled by the very thread that is about to register for its end."""
    with job._runtime.lock:
        tokens = job._attach().tokens = Broken()
    tokens.then = job.cancel


@pytest.mark.parametrize("awaits", [False, True])
def test_a_job_that_ends_while_a_worker_registers_to_wait_for_it_is_seen(awaits: bool):
    """The bell is looked at once more after it was hung up: who broke in rang for nobody."""
    with Scheduler(1) as s:
        far = s.options(delay=600).submit(int)
        break_into_the_wait_for(far)
        job: Job[Any] = s.submit(_await, far) if awaits else s.submit(far.result)
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(PATIENCE)


def test_a_limit_that_is_armed_while_the_watcher_lies_down_is_kept():
    """The watcher looks once more after it has lain down: who broke in found nobody to wake."""
    with Scheduler(1) as s:
        s.pause()
        limits, jobs = s._runtime.core.time_limits, []
        first = s.options(expires=600).submit(int)
        soon(lambda: limits.asleep)
        with s._runtime.lock:
            asleep = limits.asleep = Broken(limits.asleep)
            limits.wake = _locks.make_waker(asleep)
        asleep.then = lambda: jobs.append(s.options(expires=0.01).submit(int))
        s.options(expires=500).submit(int)  # wakes the watcher
        soon(lambda: jobs)
        with pytest.raises(concurrent.futures.CancelledError):
            jobs[0].result(PATIENCE)
        assert not first.done()
        s.clear()


def test_a_parent_that_ends_while_a_dependent_registers_with_it_is_seen():
    """The dependent looks once more after it stands on the parent's list, which was told already."""

    class Told(dict[int, Job[Any]]):
        def __setitem__(self, seq: int, job: Job[Any]) -> None:
            parent.cancel()
            super().__setitem__(seq, job)

    with Scheduler(1) as s:
        parent = s.options(delay=600).submit(int)
        with s._runtime.lock:
            dependents_of(parent, s._runtime.core).waiting = Told()
        job = s.options(after=parent).submit(int)
        with pytest.raises(DependencyError):
            job.result(PATIENCE)


def test_ctrl_c_while_a_foreign_parent_is_asked_how_it_ended_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch):
    """It goes on to whoever ended the future, and the dependent hears how that really ended."""
    with Scheduler(1) as s:
        parent: concurrent.futures.Future[int] = concurrent.futures.Future()
        job = s.options(after=parent).submit(int)
        with monkeypatch.context() as patch:
            strike_once(patch, concurrent.futures.Future, "exception")
            with pytest.raises(KeyboardInterrupt):
                parent.set_result(1)
        assert job.result(PATIENCE) == 0


def test_a_priority_that_is_broken_off_before_its_entry_loses_no_job():
    """Ctrl-C at the entry of the push: the job stands where it stood."""
    with Scheduler(1) as s:
        s.pause()
        job = s.submit(int)
        ready = s._runtime.core.ready
        push = ready.push

        def struck(entry: Any) -> None:
            ready.push = push
            raise KeyboardInterrupt

        ready.push = struck
        with pytest.raises(KeyboardInterrupt):
            job.set_priority(1)
        s.resume()
        assert job.result(PATIENCE) == 0


def test_a_replacement_that_is_broken_off_leaves_one_of_the_two():
    """Ctrl-C as the old job is put down to give way: the new one is in by then, or the old one stays."""

    class Struck(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            if not struck:
                struck.append(item)
                raise KeyboardInterrupt

    struck: list[Any] = []
    with Scheduler(1) as s:
        s.pause()
        s.options(id="mine").submit(int)
        with s._runtime.lock:
            s._runtime.core.outbox = Struck()
        with pytest.raises(KeyboardInterrupt):
            s.options(id="mine", if_exists="replace").submit(int)
        assert struck
        soon(lambda: s.stats().cancelled == 1)
        assert s.stats().pending == 1
        assert s.get("mine") is not None


def test_a_thing_that_is_armed_while_others_are_swept_stays_armed():
    """Its ticket is known before its entry stands in the queue, so a sweep in between keeps that."""
    armings = Armings()
    others = [Armable() for _ in range(4 * SWEEP_SLACK)]
    for number, other in enumerate(others):
        armings.arm(other, number)
    queue = armings._queue
    push = queue.push

    def swept(entry: Any) -> None:
        queue.push = push
        push(entry)
        for other in others:
            armings.disarm(other)

    queue.push = swept
    thing = Armable()
    armings.arm(thing, 1000)
    assert armings.due() == 1000
    assert armings.first(1000) is thing

"""The narrow moments of waiting: what comes between a look and a registration, or just as the time runs out.

Each is made to happen by a container or a function that strikes there, on the same thread, as a handler would.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from threadsched import Job, Scheduler, _waiting, current_job
from threadsched._locks import make_token
from threadsched._worker import Worker
from threadsched.testing import FakeClock, StepScheduler

PATIENCE = 5.0


class StrikingList(list[Any]):
    """A list that calls `strike` just before the first append."""

    def __init__(self, strike: Callable[[], object]) -> None:
        super().__init__()
        self.strike: Callable[[], object] | None = strike

    def append(self, item: Any) -> None:
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        super().append(item)


class StrikingDict(dict[Any, Any]):
    """A dict that calls `strike` just before the first store."""

    def __init__(self, strike: Callable[[], object]) -> None:
        super().__init__()
        self.strike: Callable[[], object] | None = strike

    def __setitem__(self, key: Any, value: Any) -> None:
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        super().__setitem__(key, value)


def running_out(monkeypatch: pytest.MonkeyPatch, strike: Callable[[], object]) -> None:
    """Let the next sleep end without a wake-up, and `strike` just as it does."""

    def sleep_on(token: Any, timeout: float | None) -> bool:
        monkeypatch.undo()
        strike()
        return False

    monkeypatch.setattr(_waiting, "sleep_on", sleep_on)


# ---------------------------------------------------------------- between the look and the registration


def test_job_that_ends_while_its_waiter_registers_is_seen():
    """A handler that cancels the job just before the waiter stands on its list does not leave the waiter asleep."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    job._attach().tokens = StrikingList(job.cancel)
    assert scheduler._runtime.wait_for_end(job, 0) is True


def test_callback_that_is_added_while_the_job_ends_is_called_once():
    """A handler that cancels the job just before the callback stands on its list does not leave it uncalled."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    job._attach().callbacks = StrikingList(job.cancel)
    called: list[Any] = []
    job.add_done_callback(called.append)
    assert called == [job]


def test_idleness_that_comes_while_its_waiter_registers_is_seen():
    """A handler that cancels the last job just before the waiter stands on its list is no reason to sleep."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    runtime = scheduler._runtime
    runtime.idle_waiters = StrikingList(job.cancel)
    assert runtime.wait_idle(0) is True
    assert runtime.idle_waiters == []


def test_last_worker_that_leaves_while_its_waiter_registers_is_seen():
    """Whoever waits for the workers to leave looks after it has registered."""
    runtime = StepScheduler()._runtime
    runtime.launched.add(0)
    runtime.exit_waiters = StrikingList(lambda: runtime.launched.discard(0))
    assert runtime.wait_left(0) is True
    assert runtime.exit_waiters == []


def test_request_to_stop_that_comes_while_the_sleep_registers_ends_it():
    """A handler that asks the task to stop just before its sleep can be found makes the sleep return at once."""
    with Scheduler(1) as scheduler:

        def task() -> bool:
            job = current_job()
            assert job is not None
            scheduler._runtime.sleepers = StrikingDict(job.request_cancel)
            return job.sleep(1000)

        assert scheduler.submit(task).result(PATIENCE) is False


# ---------------------------------------------------------------- just as the time runs out


def test_result_that_comes_as_the_time_runs_out_is_a_result(monkeypatch: pytest.MonkeyPatch):
    """A waiter that was released between its timeout and its look was woken: no TimeoutError."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    running_out(monkeypatch, scheduler.tick)
    assert job.result(0) == 0


def test_idleness_that_comes_as_the_time_runs_out_counts(monkeypatch: pytest.MonkeyPatch):
    """wait_idle that was released between its timeout and its look says True."""
    scheduler = StepScheduler()
    scheduler.submit(int)
    running_out(monkeypatch, scheduler.tick)
    assert scheduler._runtime.wait_idle(0) is True


def test_wait_whose_time_ran_out_leaves_nothing_registered():
    """Whoever gave up waiting stands on no list: its token must not be taken for somebody who can be woken."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    runtime = scheduler._runtime
    assert runtime.wait_for_end(job, 0) is False
    assert runtime.wait_idle(0) is False
    assert runtime.wait_below(1, 0) is False
    runtime.launched.add(0)
    assert runtime.wait_left(0) is False
    assert (job._attach().tokens, runtime.idle_waiters, runtime.exit_waiters) == ([], [], [])
    assert runtime.core.gate is None


def test_one_who_gives_up_waiting_for_room_takes_it_from_no_other():
    """Whoever waits for fewer pending jobs is woken, although another one who did so has gone."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    job = scheduler.submit(int)
    answers: list[bool] = []
    other = threading.Thread(target=lambda: answers.append(runtime.wait_below(1, PATIENCE)))
    other.start()
    while runtime.core.gate is None or not runtime.core.gate.below:
        time.sleep(0)
    assert runtime.wait_below(1, 0) is False
    job.cancel()
    other.join(PATIENCE)
    assert answers == [True]
    assert runtime.core.gate is None


@pytest.mark.parametrize("signalled", [False, True])
def test_leader_whose_time_ran_out_keeps_its_token_held(signalled: bool, monkeypatch: pytest.MonkeyPatch):
    """Taken off the watch and released just as its time ran out, or not: afterwards the token is held and nowhere."""
    clock = FakeClock()
    runtime = StepScheduler(clock=clock)._runtime
    worker = Worker(runtime, 0)
    worker.due = 0.0
    runtime.watch.append(worker.token)
    running_out(monkeypatch, runtime._wake_watch if signalled else lambda: None)
    runtime.sleep_as_watch(worker)
    assert runtime.watch == []
    assert worker.token.acquire(False) is False


# ---------------------------------------------------------------- what is idle, what is quiet


def test_scheduler_with_a_running_job_is_not_idle():
    """Nothing pending is not enough: a job that runs is waited for too."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    job = scheduler.submit(int)
    assert runtime.wait_idle(0) is False
    assert job.claim()
    assert runtime.wait_idle(0) is False
    job.set_result(1)
    assert runtime.wait_idle(0) is True


def test_scheduler_is_quiet_until_something_is_due():
    """With something due at the very instant asked about it is not quiet; a moment before it is."""
    clock = FakeClock()
    scheduler = StepScheduler(clock=clock)
    runtime = scheduler._runtime
    scheduler.options(delay=5).submit(int)
    with runtime.lock:
        assert runtime._quiescent_locked(5.0)  # nobody is there who could take it
        runtime.idle.append(make_token())
        assert runtime._quiescent_locked(4.9)
        assert not runtime._quiescent_locked(5.0)
        runtime.sleepers[make_token()] = (3.0, Worker(runtime, 0))
        assert runtime._quiescent_locked(2.9)
        assert not runtime._quiescent_locked(3.0)
        runtime.idle.clear()


def test_scheduler_with_a_worker_awake_is_not_quiet():
    """Every worker that was started has to sleep, on whichever list."""
    runtime = StepScheduler()._runtime
    with runtime.lock:
        runtime.launched.update((0, 1, 2))
        for place in (runtime.idle, runtime.watch):
            assert not runtime._quiescent_locked(0.0)
            place.append(make_token())
        assert not runtime._quiescent_locked(0.0)
        worker = Worker(runtime, 2)
        runtime.sleepers[make_token()] = (9.0, worker)
        assert not runtime._quiescent_locked(0.0)  # that one is no member of the pool
        runtime.workers[2] = worker
        assert runtime._quiescent_locked(0.0)
        runtime.core.outbox.append((None, None))
        assert not runtime._quiescent_locked(0.0)
        runtime.launched.clear()
        runtime.workers.clear()
        runtime.core.outbox.clear()


# ---------------------------------------------------------------- a shutdown that cancels, and the woken


@pytest.fixture
def no_switch() -> Iterator[None]:
    """Give no thread a turn before the running one waits (where there is a GIL)."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("submitted", [1, 3])
def test_worker_that_was_woken_has_its_job_before_a_shutdown_cancels(
    submitted: int, no_switch: None, monkeypatch: pytest.MonkeyPatch
):
    """An idle worker gets the first of the jobs that were submitted just before, although it had no turn yet."""
    monkeypatch.setattr(_waiting, "TURN", 600.0)  # a claim ends the wait, not the time
    scheduler = Scheduler(1)
    assert scheduler.submit(int).result(PATIENCE) == 0
    runtime = scheduler._runtime
    while not runtime.idle:
        time.sleep(0)
    jobs = [scheduler.submit(int) for _ in range(submitted)]
    scheduler.shutdown(cancel_futures=True)
    assert jobs[0].result(0) == 0


def test_shutdown_that_cancels_waits_for_no_busy_worker(monkeypatch: pytest.MonkeyPatch):
    """If no worker is on its way, nobody is waited for: all that is pending is cancelled at once."""
    monkeypatch.setattr(_waiting, "TURN", 600.0)
    scheduler = Scheduler(1)
    begun, gate = threading.Event(), threading.Event()

    def task() -> bool:
        begun.set()
        return gate.wait(PATIENCE)

    running = scheduler.submit(task)
    assert begun.wait(PATIENCE)
    jobs: list[Job[Any]] = [scheduler.submit(int) for _ in range(3)]
    jobs[0].add_done_callback(lambda job: gate.set())
    scheduler.shutdown(cancel_futures=True)
    assert all(job.cancelled() for job in jobs)
    assert running.result(0) is True

"""The order of an ending: first the move, then whoever waits; and whom a retry or a cancel has to wake."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from threadsched import Job, Scheduler
from threadsched._arming import Armable, Ring
from threadsched._locks import make_token
from threadsched.testing import FakeClock, StepScheduler

PATIENCE = 5.0


class Token:
    """What a waiter sleeps on; writes down what its job looked like when it was released."""

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        self.seen: list[tuple[bool, Any]] = []

    def locked(self) -> bool:
        return not self.seen

    def release(self) -> None:
        self.seen.append((self.job.done(), self.job._result))


def boom() -> None:
    raise LookupError("gone")


WAYS: dict[str, Callable[[StepScheduler, Job[Any]], object]] = {
    "tick": lambda scheduler, job: scheduler.tick(),
    "cancel": lambda scheduler, job: job.cancel(),
    "clear": lambda scheduler, job: scheduler.shutdown(drain="none"),
    "set_result": lambda scheduler, job: (job.claim(), job.set_result(1)),
    "set_exception": lambda scheduler, job: (job.claim(), job.set_exception(LookupError())),
}


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "watched"])
@pytest.mark.parametrize("failing", [False, True], ids=["done", "failed"])
@pytest.mark.parametrize("way", list(WAYS))
def test_waiters_are_woken_when_the_outcome_is_there(way: str, failing: bool, watched: bool):
    """Whoever waits for a job is released once, after the end is visible, with its outcome in place."""
    scheduler = StepScheduler()
    job = scheduler.submit(boom if failing else int)
    if watched:
        assert job._condition  # as concurrent.futures.wait would ask for it
    token = Token(job)
    job._attach().tokens.append(token)
    WAYS[way](scheduler, job)
    assert token.seen == [(True, job._result)]
    assert job._attach().tokens == []
    job.cancelled() or job.exception(0)


@pytest.mark.parametrize(("run_at", "wakes"), [(2.0, True), (4.0, True), (6.0, False)])
def test_retry_wakes_the_leader_if_it_is_due_first(run_at: float, wakes: bool):
    """A retry due before what the leader waits for wakes it: the worker that failed may go on with another job."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    scheduler.options(delay=5).submit(int)
    job = scheduler.submit(boom)
    runtime.core.promote(0.0)
    assert runtime.core.claim(0.0, None) is job
    leader = make_token()
    runtime.watch.append(leader)
    ranking = runtime.core.ranking
    assert runtime.retry(job, run_at, ranking, ranking.key_of(job), 1.0, LookupError(), "text") is True
    assert leader.acquire(False) is wakes
    runtime.watch.clear()
    job.cancel()


@pytest.mark.parametrize("ask", ["cancel", "request_cancel"])
def test_job_that_was_cancelled_while_it_ran_is_not_retried(ask: str):
    """A cancel of a running job is False and changes nothing, except that this attempt is the last."""
    scheduler = StepScheduler()
    answers: list[bool] = []

    def task() -> None:
        answers.append(getattr(job, ask)())
        raise LookupError

    job = scheduler.options(retries=3, backoff=0).submit(task)
    scheduler.tick()
    assert answers == [ask == "request_cancel"]
    assert isinstance(job.exception(0), LookupError)
    assert job.attempts == 1


def test_all_who_wait_for_idleness_are_woken_by_the_last_end():
    """However many wait for nothing to be pending or running, the end of the last job wakes every one of them."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    jobs = [scheduler.submit(int) for _ in range(2)]
    tokens = [make_token() for _ in range(3)]
    runtime.idle_waiters.extend(tokens)
    assert jobs[0].claim()
    jobs[1].cancel()
    assert not any(token.acquire(False) for token in tokens)
    jobs[0].set_result(1)
    assert all(token.acquire(False) for token in tokens)


def test_last_pending_job_of_a_closed_scheduler_wakes_every_sleeper():
    """When nothing is left to come, all workers have to look: a cancel of the last pending job wakes each of them."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    jobs = [scheduler.options(delay=delay).submit(int) for delay in (5, 6)]
    runtime.close("all")
    tokens = [make_token() for _ in range(3)]
    runtime.idle.extend(tokens[:2])
    runtime.watch.append(tokens[2])
    jobs[0].cancel()
    assert not any(token.acquire(False) for token in tokens[:2])
    jobs[1].cancel()
    assert all(token.acquire(False) for token in tokens[:2])
    assert runtime.idle == runtime.watch == []


def test_cancel_that_is_interrupted_leaves_the_telling_to_a_worker(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C between a cancel and its callbacks: a sleeping worker is woken to call them, once."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    called: list[Any] = []
    for cancel in (lambda job: job.cancel(), lambda job: runtime.cancel_batch([job])):
        job = scheduler.options(delay=5).submit(int)
        job.add_done_callback(called.append)
        sleeper = make_token()
        runtime.idle.append(sleeper)

        def interrupted() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(runtime), "drain_outbox", staticmethod(interrupted))
            with pytest.raises(KeyboardInterrupt):
                cancel(job)
        assert job.cancelled()
        assert sleeper.acquire(False)
        assert called == []
        runtime.drain_outbox()
        runtime.drain_outbox()
        assert called == [job]
        called.clear()


class Releasing:
    """A rule that lets another job go when its own has started."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.held: Job[Any] | None = None

    def admits(self, job: Job[Any]) -> bool:
        return self.held is not job or job.seq not in self.core.pending

    def may_start(self, job: Job[Any], now: float) -> bool:
        return True

    def started(self, job: Job[Any], now: float) -> None:
        assert self.held is not None
        held, self.held = self.held, None
        self.core.release(held)

    def ended(self, job: Job[Any], now: float) -> None:
        pass


def test_claim_by_hand_wakes_somebody_for_what_it_let_go():
    """A job that a claim by hand lets go is seen to: a sleeper is woken to look at the queue."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    core = runtime.core
    rule = Releasing(core)
    job, held = [scheduler.options(delay=delay).submit(int) for delay in (5, 1)]
    job._attach().rules = (rule,)
    with runtime.lock:
        core._left_queue(held)
        core._hold(held)
    rule.held = held
    sleeper = make_token()
    runtime.idle.append(sleeper)
    assert job.claim()
    assert core.waiting == {}
    assert sleeper.acquire(False)
    job.set_result(1)
    held.cancel()


def test_outbox_that_two_empty_at_once_loses_nothing():
    """An entry that another one dealt with meanwhile is not taken off a second time, and what came after it is kept."""

    class Thing(Armable):
        looked = 0

        def proceed(self, runtime: Any) -> None:
            self.looked += 1
            if self.looked == 1:
                runtime.drain_outbox()  # as a worker would at the same moment
                job.cancel()

    scheduler = StepScheduler()
    runtime = scheduler._runtime
    called: list[Any] = []
    job = scheduler.options(delay=5).submit(int)
    job.add_done_callback(called.append)
    thing = Thing()
    runtime.core.outbox.append(Ring(thing))
    runtime.drain_outbox()
    assert thing.looked == 2
    assert called == [job]
    assert not runtime.core.outbox


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "watched"])
def test_job_that_was_settled_and_not_told_is_told_again(watched: bool):
    """Whoever cleans up after a worker that died between a job's end and its telling tells everybody, once."""

    class Waiter:
        def add_result(self, job: Any) -> None:
            told.append("waiter")

    scheduler = StepScheduler()
    runtime = scheduler._runtime
    told: list[str] = []
    job = scheduler.submit(int)
    job.add_done_callback(lambda job: told.append("callback"))
    token = Token(job)
    job._attach().tokens.append(token)
    if watched:
        job._condition.waiters.append(Waiter())
    with runtime.lock:
        runtime.core.promote(0.0)
        assert runtime.core.claim(0.0, None) is job
        assert runtime.core.finish(job, 1, "int", 0.0)
    runtime.tell_again(job)
    runtime.tell_again(job)
    assert token.seen == [(True, 1)]
    assert told == (["waiter"] if watched else []) + ["callback"]


def test_late_callback_runs_outside_the_lock():
    """A callback that is added to an ended job runs at once, and may wait for another thread."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    scheduler.tick()
    answers: list[Any] = []

    def callback(job: Any) -> None:
        thread = threading.Thread(target=lambda: answers.append(scheduler.stats().done), daemon=True)
        thread.start()
        thread.join(PATIENCE)

    job.add_done_callback(callback)
    assert answers == [1]


def test_job_due_at_the_instant_of_a_draining_shutdown_runs():
    """What is due at the very reading at which the door closes counts as due; what comes later is cancelled."""
    clock = FakeClock()
    scheduler = Scheduler(1, clock=clock)
    begun, gate = threading.Event(), threading.Event()

    def task() -> None:
        begun.set()
        gate.wait(PATIENCE)

    scheduler.submit(task)
    assert begun.wait(PATIENCE)
    due, later = [scheduler.options(delay=delay).submit(int) for delay in (5.0, 5.5)]
    clock.jump(5.0)
    scheduler.shutdown(wait=False, drain="due")
    gate.set()
    scheduler.shutdown()
    assert due.result(0) == 0
    assert later.cancelled()

"""Waking early: a worker for a job that is only being made, and whoever waits for a job that is about to end."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE
from tests.hand import Hand, HandClock, woken
from threadsched import Limit, PriorityPolicy, Scheduler, _outcome, _waiting
from threadsched._locks import holds, release_all
from threadsched._worker import Worker


class StrikingClock(HandClock):
    """A clock that does something when it is read, as a submission does after it has woken a worker ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.strike: Callable[[], object] | None = None

    def now(self) -> float:
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        return super().now()


@pytest.fixture
def hand() -> Iterator[Hand]:
    hand = Hand(clock=StrikingClock())
    yield hand
    hand.free()


def sleepers(hand: Hand, count: int) -> list[Any]:
    """Put other sleeping workers on the idle stack; the last is woken first."""
    return [hand.sleeper(hand.runtime.idle) for _ in range(count)]


def awake(tokens: list[Any]) -> list[bool]:
    return [woken(token) for token in tokens]


# ---------------------------------------------------------------- a worker, ahead of its job


def test_worker_is_awake_before_its_job_is_made(hand: Hand):
    """When the clock is read for the new job, the last that fell asleep is on its way, and no other."""
    tokens = sleepers(hand, 3)
    found: list[list[bool]] = []
    hand.clock.strike = lambda: found.append(awake(tokens))
    hand.scheduler.submit(int)
    assert found == [[False, False, True]]
    assert awake(tokens) == [False, False, False]  # the new job in the queue wakes no second


def test_turn_that_came_before_the_job_means_another_wake_up(hand: Hand):
    """Whoever took a turn meanwhile was perhaps the one that was woken, and has found nothing."""
    tokens = sleepers(hand, 2)
    hand.clock.strike = hand.turn
    job = hand.scheduler.submit(int)
    assert awake([*tokens, hand.worker.token]) == [False, True, True]
    assert hand.turn() is job


def test_submission_while_another_woke_ahead_wakes_a_worker_of_its_own(hand: Hand):
    """Two jobs are to start at once, not one after the other's worker has come."""
    tokens = sleepers(hand, 3)
    hand.clock.strike = lambda: hand.scheduler.submit(int)
    hand.scheduler.submit(int)
    assert awake(tokens) == [False, True, True]


def test_each_of_several_submissions_wakes_a_worker(hand: Hand):
    """Though the first that was woken has not come yet."""
    tokens = sleepers(hand, 3)
    for _ in range(2):
        hand.scheduler.submit(int)
    assert awake(tokens) == [False, True, True]


def test_refused_submission_leaves_the_next_one_its_wake_up(hand: Hand):
    """Who was woken for it has not come yet, and the next job may be for another to take."""
    tokens = sleepers(hand, 2)

    def fail() -> None:
        raise KeyboardInterrupt

    hand.clock.strike = fail
    with pytest.raises(KeyboardInterrupt):
        hand.scheduler.submit(int)
    assert awake(tokens) == [False, True]
    hand.scheduler.submit(int)
    assert awake(tokens) == [True, False]


def test_worker_that_died_on_its_way_is_made_up_for(hand: Hand, monkeypatch: pytest.MonkeyPatch):
    """Even if it gets no successor: the job wakes somebody else, as if nobody had been woken ahead."""
    tokens = sleepers(hand, 3)
    monkeypatch.setattr(type(hand.runtime), "replace", lambda runtime, who: None)
    dying = Worker(hand.runtime, 7)

    def die() -> None:
        _outcome.worker_died(hand.runtime, dying, LookupError())
        hand.runtime.manned = True  # as if another submission had seen to that already

    hand.clock.strike = die
    hand.scheduler.submit(int)
    assert awake(tokens) == [True, True, True]  # ahead, by the clean-up, and for the job


@pytest.mark.parametrize("how", ["delayed", "limited", "marked", "policy", "closed"])
def test_nobody_is_woken_ahead(how: str):
    """Not for a job that may have to wait, nor where another is about to hold the lock, nor in a closed scheduler."""
    hand = Hand(clock=StrikingClock(), limits={"one": Limit(concurrency=1)})
    options: dict[str, Any] = {"delayed": {"delay": 5}, "limited": {"limits": "one"}}.get(how, {})
    submit = hand.scheduler.options(**options).submit
    if how == "policy":
        hand.scheduler.policy = Backwards()
    if how == "closed":
        hand.scheduler.shutdown(wait=False)
    tokens = sleepers(hand, 1)
    if how == "marked":
        hand.runtime.mark = hand
    found: list[list[bool]] = []
    hand.clock.strike = lambda: found.append(awake(tokens))
    if how == "closed":
        with pytest.raises(RuntimeError, match="shut down"):
            submit(int)
    else:
        submit(int)
    assert found == [[False]]
    hand.free()


class Backwards(PriorityPolicy):
    """A policy of a user's, which may have to look at the job."""

    def key(self, job: Any) -> Any:
        return -job.priority


def test_worker_that_somebody_else_has_woken_is_not_to_come(hand: Hand):
    """It was seen on the stack without the lock, and is gone: then the job wakes somebody when it is there."""
    assert hand.runtime._wake_ahead() is None
    assert hand.runtime.coming is None
    assert hand.runtime.mark is None


def test_fork_forgets_who_is_to_come(hand: Hand):
    """Nobody is in the child."""
    sleepers(hand, 1)
    hand.scheduler.submit(int)
    assert hand.runtime.coming is not None
    with hand.runtime.lock:
        hand.runtime.start_afresh()
    assert hand.runtime.coming is None


# ---------------------------------------------------------------- who waits, ahead of the end


class Bystander:
    """A token that writes down how its job stood when it was released, and whether the lock was held."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.seen: list[tuple[str, bool]] = []

    def locked(self) -> bool:
        return not self.seen

    def release(self) -> None:
        self.seen.append((self.job._state, holds(self.job._runtime.lock)))


def await_registration(job: Any) -> None:
    while not (job._attached and job._attached.tokens):
        time.sleep(0)


@pytest.mark.parametrize("callbacks", [False, True])
def test_waiter_is_woken_in_the_hold_that_ends_the_job(hand: Hand, callbacks: bool):
    """Ahead of the end, and not out of the lock: whoever looks again finds that it has come."""
    job = hand.scheduler.submit(int)
    assert hand.turn() is job
    token = Bystander(job)
    job._attach().tokens.append(token)
    if callbacks:
        job.add_done_callback(lambda job: None)
    hand.turn(job, 7)
    assert token.seen == [("RUNNING", True)]
    assert job.result(0) == 7


def test_waiter_that_was_woken_in_vain_waits_on(hand: Hand, monkeypatch: pytest.MonkeyPatch):
    """An exception broke the end off just after: the job runs on, and whoever waits is not told that it ended."""
    job = hand.scheduler.submit(int)
    assert hand.turn() is job
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(hand.runtime.wait_for_end(job, None)))
    thread.start()
    await_registration(job)

    def broken_off(*args: object) -> bool:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(hand.runtime.core), "finish", broken_off)
        with pytest.raises(MemoryError):
            hand.turn(job, 0)
    await_registration(job)
    assert said == []
    hand.turn(job, 0)
    thread.join(PATIENCE)
    assert said == [True]


def test_time_of_a_waiter_runs_on_when_it_was_woken_in_vain(hand: Hand, monkeypatch: pytest.MonkeyPatch):
    """Its timeout is that of the whole wait, and not of each sleep."""
    job = hand.scheduler.submit(int)
    now = 0.0
    asked: list[float] = []

    def sleep(token: Any, timeout: float) -> bool:
        nonlocal now
        asked.append(timeout)
        if len(asked) == 1:
            now += 0.25
            release_all(job._attach().tokens)
            return True
        now += timeout
        return False

    monkeypatch.setattr(_waiting, "monotonic", lambda: now)
    monkeypatch.setattr(_waiting, "sleep_on", sleep)
    assert hand.runtime.wait_for_end(job, 1.0) is False
    assert asked == [1.0, 0.75]
    assert job._attach().tokens == []


def test_a_hundred_round_trips():
    """Each ends, with workers and the submitter asleep in turn."""
    with Scheduler(4) as scheduler:
        assert [scheduler.submit(abs, -number).result(PATIENCE) for number in range(100)] == list(range(100))
        scheduler.check()

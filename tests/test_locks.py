"""Tokens, wakers, stepping aside, and the condition of a job."""

import contextvars
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from threadsched import _locks


class Owner:
    """Has a lock and a mark, as the runtime has."""

    def __init__(self) -> None:
        self.lock = _locks.make_lock()
        self.mark: object = None


class CountingTime:
    """Stands for the module `time`: counts the sleeps and, after some of them, does something."""

    def __init__(self, after: int | None = None, then: Any = None) -> None:
        self.sleeps: list[float] = []
        self._after, self._then = after, then

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if len(self.sleeps) == self._after:
            self._then()


def in_thread(call: Any) -> Any:
    """Return what `call` returns on another thread."""
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    thread.join(5)
    return answer[0]


def test_lock_may_be_entered_again_by_its_holder():
    """A handler on the holding thread enters the lock a second time; another thread does not get in."""
    lock = _locks.make_lock()
    with lock, lock:
        assert _locks.holds(lock)
        assert in_thread(lambda: _locks.holds(lock)) is False
        assert in_thread(lambda: lock.acquire(False)) is False
    assert not _locks.holds(lock)


def test_token_remembers_a_release():
    """A release that comes before the sleep is remembered, once."""
    token = _locks.make_token()
    token.release()
    assert _locks.sleep_on(token, None) is True
    assert _locks.sleep_on(token, 0) is False


def test_token_wakes_a_sleeper():
    """A sleeping thread is woken by one release."""
    token = _locks.make_token()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(_locks.sleep_on(token, None)))
    thread.start()
    token.release()
    thread.join(5)
    assert woken == [True]


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -1e300, 0.001])
def test_sleep_that_is_over_is_false(timeout: float):
    """A sleep without a release ends False; a negative time does not wait at all."""
    assert _locks.sleep_on(_locks.make_token(), timeout) is False


@pytest.mark.parametrize("timeout", [threading.TIMEOUT_MAX * 2, 1e300, float("inf")])
def test_sleep_longer_than_the_platform_knows(timeout: float):
    """A wait beyond what the platform can express is cut, not refused."""
    token = _locks.make_token()
    token.release()
    assert _locks.sleep_on(token, timeout) is True


def test_waker_pops_the_last_and_releases_it():
    """Each call takes the newest token off the list and wakes its owner; nobody left is an IndexError, every time."""
    tokens = [_locks.make_token() for _ in range(3)]
    standing = list(tokens)
    wake = _locks.make_waker(standing)
    wake()
    assert standing == tokens[:2]
    assert [token.locked() for token in tokens] == [True, True, False]
    wake()
    wake()
    assert standing == []
    assert not any(token.locked() for token in tokens)
    for _ in range(3):
        with pytest.raises(IndexError):
            wake()
    late = _locks.make_token()
    standing.append(late)
    wake()
    assert not late.locked()
    assert standing == []


def test_release_all_may_be_repeated():
    """Every sleeper is woken and the list emptied; a token that is awake already does no harm."""
    tokens = [_locks.make_token() for _ in range(3)]
    tokens[1].release()
    standing = list(tokens)
    _locks.release_all(standing)
    assert standing == []
    assert not any(token.locked() for token in tokens)
    _locks.release_all(standing)
    again = list(tokens)
    _locks.release_all(again)
    assert again == []


def test_step_aside_returns_at_once_for_the_holder(monkeypatch: pytest.MonkeyPatch):
    """Who holds the lock already, as a handler does, never steps aside from itself."""
    time = CountingTime()
    monkeypatch.setattr(_locks, "time", time)
    monkeypatch.setattr(_locks, "GIL", True)
    owner = Owner()
    owner.mark = object()
    with owner.lock:
        _locks.step_aside(owner)
    assert time.sleeps == []


def test_step_aside_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """A mark that stays, by an accident of whoever set it, costs a bounded number of short naps."""
    time = CountingTime()
    monkeypatch.setattr(_locks, "time", time)
    monkeypatch.setattr(_locks, "GIL", True)
    owner = Owner()
    owner.mark = object()
    _locks.step_aside(owner)
    assert time.sleeps == [_locks.ASIDE] * _locks.ASIDE_ROUNDS
    assert owner.mark is not None


def test_step_aside_ends_with_the_mark(monkeypatch: pytest.MonkeyPatch):
    """As soon as the mark is gone the thread goes on."""
    owner = Owner()
    owner.mark = object()
    time = CountingTime(3, lambda: setattr(owner, "mark", None))
    monkeypatch.setattr(_locks, "time", time)
    monkeypatch.setattr(_locks, "GIL", True)
    _locks.step_aside(owner)
    assert len(time.sleeps) == 3


def test_step_aside_is_off_without_a_gil(monkeypatch: pytest.MonkeyPatch):
    """Without a GIL there is no convoy to avoid."""
    time = CountingTime()
    monkeypatch.setattr(_locks, "time", time)
    monkeypatch.setattr(_locks, "GIL", False)
    _locks.step_aside(SimpleNamespace(lock=_locks.make_lock(), mark=object()))
    assert time.sleeps == []


def test_thread_is_a_daemon_in_an_empty_context():
    """A worker's thread has its name, holds up no exit, and inherits no context variable."""
    variable = contextvars.ContextVar("variable", default="empty")
    variable.set("the starter's")
    seen: list[Any] = []

    def note(word: str) -> None:
        thread = threading.current_thread()
        seen.extend([word, variable.get(), thread.name, thread.daemon])

    _locks.start_thread(note, ("hello",), "pool_0").join(5)
    assert seen == ["hello", "empty", "pool_0", True]


def test_job_condition_is_a_lock_with_waiters():
    """The condition of a job is entered and left like a lock, more than once, and carries the list of waiters."""
    condition = _locks.JobCondition()
    assert condition.waiters == []
    with condition, condition:
        condition.waiters.append("somebody")
        assert _locks.holds(condition)
        assert in_thread(lambda: condition.acquire(blocking=False)) is False
    assert not _locks.holds(condition)
    assert in_thread(lambda: condition.acquire(blocking=False)) is True
    assert _locks.JobCondition().waiters == []  # each has its own

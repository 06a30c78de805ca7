"""Bounded queues, threads that submit to a full one, and a way to know that they sleep there."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE
from threadsched import Scheduler, _full, _waiting


def make(on_full: Any, max_pending: int = 1, workers: int = 1, **more: Any) -> Scheduler:
    """Return a scheduler with a bounded queue, in which every rule of `on_full` is possible."""
    more.setdefault("queue", "indexed")
    return Scheduler(workers, max_pending=max_pending, on_full=on_full, **more)


def line(s: Scheduler) -> dict[Any, Any]:
    """Return the producers that stand before a full queue, first come first."""
    gate = s._runtime.core.gate
    assert gate is not None
    return gate.line


class Asleep:
    """Counts the threads that go to sleep in `sleep_on` of a module of the package."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any = _full) -> None:
        self._count = threading.Semaphore(0)
        sleep_on = module.sleep_on

        def counted(token: Any, timeout: float | None) -> bool:
            self._count.release()
            return bool(sleep_on(token, timeout))

        monkeypatch.setattr(module, "sleep_on", counted)

    def await_one(self) -> None:
        """Wait until one more thread is registered and about to sleep."""
        assert self._count.acquire(timeout=PATIENCE), "nobody went to sleep"


def asleep_waiting(monkeypatch: pytest.MonkeyPatch) -> Asleep:
    """Count those that sleep in `wait_idle`, `wait_below` and `result` instead."""
    return Asleep(monkeypatch, _waiting)


class Call:
    """A call made by a thread of its own, and what came of it."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._fn, self._args = fn, args
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._fn(*self._args)
        except BaseException as error:
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def outcome(self) -> Any:
        """Wait for the call to return, and return its value or raise its error."""
        self._thread.join(PATIENCE)
        assert self.over, "the call did not return"
        if self.error is not None:
            raise self.error
        return self.value


@contextlib.contextmanager
def hasty_switches() -> Iterator[None]:
    """Let threads switch every microsecond inside the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(*calls: Callable[[], Any]) -> list[Call]:
    """Make calls from one thread each, all released by one barrier, and wait for them."""
    barrier = threading.Barrier(len(calls))

    def run(fn: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return fn()

    made = [Call(run, fn) for fn in calls]
    for call in made:
        call._thread.join(6 * PATIENCE)
        assert call.over, "a call did not return"
    return made

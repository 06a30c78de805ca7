"""A scheduler that notices what is done without its lock, and what is done inside it and should not be.

What the lock guards is replaced by containers that look, at every change and whenever they are gone through, whether
the thread that does it holds the lock; the core's methods, a job's moves and what ends in ``_locked`` look likewise.
Foreign code (tasks, callbacks, hooks, clocks, finalizers) is wrapped to look that the lock is *not* held. What is found
is gathered, for much of it is raised where it is swallowed.
"""

import collections
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from threadsched import Job, Scheduler
from threadsched._gate import Gate
from threadsched._locks import holds, make_waker
from threadsched._series import Series
from threadsched.testing import StepScheduler

CHANGES: dict[type, tuple[str, ...]] = {
    dict: (
        "__setitem__",
        "__delitem__",
        "pop",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "values",
        "items",
        "__iter__",
    ),
    list: ("append", "pop", "remove", "clear", "insert", "extend", "__setitem__", "__delitem__"),
    set: ("add", "discard", "remove", "clear", "pop", "update"),
    collections.deque: ("append", "appendleft", "pop", "popleft", "clear", "extend"),
}

CORE_FIELDS = ("pending", "running", "waiting", "series", "outbox", "left_behind", "named", "_ended", "_ended_ids")
SHARED_FIELDS = (
    "workers", "launched", "idle", "watch", "helpers", "sleepers", "awaits", "exit_waiters", "idle_waiters",
    "quiet_waiters", "turn_waiters", "told_waiters", "tellers", "written_off",
)  # fmt: skip
CORE_METHODS = (
    "reserve", "enter", "enter_delayed", "enter_many", "withdraw", "withdraw_many", "release", "readmit", "rekeyed",
    "promote", "turn", "claim", "claim_one", "claim_given",
    "could_start", "finish", "fail", "retry", "stop", "cancel", "sweep", "repair", "rebuild_ready", "ring", "next_due",
    "close", "pause", "rerank", "check_invariants", "find", "status_of",
)  # fmt: skip
MOVES = ("_claim", "_finish", "_fail", "_retry", "_cancel", "_attach")


class LockWatch:
    """Gathers what went against the rules of one scheduler's lock."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.looks = 0
        self.lock: Any = None

    def within(self, what: str) -> None:
        """Note what is done without the lock."""
        self.looks += 1
        if self.lock is not None and not holds(self.lock):
            self.faults.append(f"{what} without the lock, by {_callers()}")

    def outside(self, what: str) -> None:
        """Note foreign code that runs inside the lock."""
        self.looks += 1
        if self.lock is not None and holds(self.lock):
            self.faults.append(f"{what} inside the lock, by {_callers()}")

    def foreign(self, call: Callable[..., Any], what: str = "") -> Callable[..., Any]:
        """Wrap a piece of foreign code."""
        name = what or getattr(call, "__name__", repr(call))

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.outside(name)
            return call(*args, **kwargs)

        watched.__qualname__ = name
        return watched

    def thing(self) -> Any:
        """Return an object whose end is foreign code."""

        class Thing:
            def __del__(thing) -> None:
                self.outside("a finalizer")

        return Thing()

    def container(self, original: Any, name: str) -> Any:
        """Return a copy of a container that looks at each change."""
        kind = next(kind for kind in CHANGES if isinstance(original, kind))

        def checked(method: str) -> Callable[..., Any]:
            change = getattr(kind, method)

            def call(container: Any, *args: Any) -> Any:
                self.within(f"{name}.{method}")
                return change(container, *args)

            return call

        watched = type(f"Watched{kind.__name__}", (kind,), {method: checked(method) for method in CHANGES[kind]})
        return watched(original, original.maxlen) if isinstance(original, collections.deque) else watched(original)

    def over(self, scheduler: Scheduler | StepScheduler) -> None:
        """Begin to watch a scheduler that has no worker yet."""
        runtime = scheduler._runtime
        core: Any = runtime.core
        with runtime.lock:
            assert not runtime.launched
            for owner, fields in ((core, CORE_FIELDS), (runtime, SHARED_FIELDS)):
                for field in fields:
                    setattr(owner, field, self.container(getattr(owner, field), field))
            core.alarms.things = self.container(core.alarms.things, "alarms.things")
            runtime._wake_idle = make_waker(runtime.idle)
            runtime._wake_watch = make_waker(runtime.watch)
            self._watch_methods(core, CORE_METHODS)
            self._watch_methods(runtime, [method for method in dir(runtime) if method.endswith("_locked")])
            self.lock = runtime.lock

    def _watch_methods(self, owner: Any, methods: Iterable[str]) -> None:
        """Give an object, which has no dictionary, a class whose methods look first."""
        plain = type(owner)

        def checked(method: str) -> Callable[..., Any]:
            call = getattr(plain, method)

            def run(it: Any, *args: Any, **kwargs: Any) -> Any:
                self.within(f"{plain.__name__}.{method}")
                return call(it, *args, **kwargs)

            return run

        owner.__class__ = type(plain.__name__, (plain,), {"__slots__": (), **{name: checked(name) for name in methods}})


def _callers() -> str:
    frames = []
    frame = sys._getframe(3)
    while frame is not None and len(frames) < 4:
        frames.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(frames)


@contextmanager
def lock_watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockWatch]:
    """Watch the schedulers that `over` is called with inside the block; fail at its end if anything was found."""
    watch = LockWatch()
    for move in MOVES:
        monkeypatch.setattr(Job, move, _checked_move(watch, move))

    def assign(series: Series, name: str, value: object) -> None:
        if getattr(series, "number", 0):  # registered: others may see it
            watch.within(f"schedule.{name}")
        object.__setattr__(series, name, value)

    monkeypatch.setattr(Series, "__setattr__", assign)
    make = Gate.__init__

    def made(gate: Any, *args: Any) -> None:
        make(gate, *args)
        for field in ("line", "grants", "below", "wanted"):
            setattr(gate, field, watch.container(getattr(gate, field), f"gate.{field}"))

    monkeypatch.setattr(Gate, "__init__", made)
    gc.disable()  # it may end foreign objects anywhere, inside the lock too
    try:
        yield watch
    finally:
        gc.enable()
    assert watch.looks, "nothing was watched"
    assert not watch.faults, "\n".join(dict.fromkeys(watch.faults))


def _checked_move(watch: LockWatch, move: str) -> Callable[..., Any]:
    call = getattr(Job, move)

    def checked(job: Job[Any], *args: Any, **kwargs: Any) -> Any:
        runtime = job._runtime
        accepted = hasattr(job, "_seq")
        if runtime is not None and runtime.lock is watch.lock and accepted:
            watch.within(f"job.{move}")
            before = job._attached
            answer = call(job, *args, **kwargs)
            if move == "_attach" and before is None:
                answer.tokens = watch.container(answer.tokens, "tokens")
            return answer
        return call(job, *args, **kwargs)

    return checked

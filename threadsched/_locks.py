"""The only place that makes locks and threads, and that knows how they behave.

**The lock** is an ``RLock``, entered only as ``with lock:``. A signal handler or a finalizer can call the scheduler on
the thread that holds it, at any instruction: with a plain ``Lock`` that is a deadlock, and with a ``Condition``'s
Python ``__enter__`` a Ctrl-C leaves it locked. ``with`` on the C lock has neither hole.

**A token** is a raw lock that is born held. Its owner sleeps by acquiring it, somebody else wakes it by one release.
Unlike ``Condition.notify`` the release is remembered when it comes before the sleep, so no wake-up is lost between
"nothing to do" and the sleep. A token is released once, by whoever took it off the list it stood on.

**The convoy.** On an interpreter with a GIL, a thread that is switched out inside the critical section leaves the
others queueing on the lock. A woken waiter then owns the lock without having the GIL, the thread that has the GIL runs
into the lock and waits in turn, and from there on *every* hold costs a context switch, for as long as the load lasts.
Who enters a hot section therefore says so first:

    if owner.mark is not None:
        step_aside(owner)
    owner.mark = me
    with owner.lock:
        try:
            ...
        finally:
            if owner.mark is me:
                owner.mark = None

and who finds a mark sleeps for a moment instead of queueing, a bounded number of times. The mark is set *before* the
lock is asked for: a woken waiter has not marked yet, so with a mark set inside the section a convoy that has formed
once never ends. The mark is a hint. It may be overwritten, lost or stale; correctness never rests on it, and fairness
is not promised. Rejected after measuring: never queueing at all, a registry of queued threads, submitting through a
lock-free deque. Without a GIL there is no such convoy, and :func:`step_aside` returns at once.
"""

from __future__ import annotations

import contextvars
import operator
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

# Seconds: long enough for the holder to be scheduled and leave, short against a switch interval (5 ms).
ASIDE = 50e-6
# 20 x 50 us is a fifth of a switch interval; after that the thread queues like anybody else.
ASIDE_ROUNDS = 20

# Sleeps that a thread remembers the lag of. Many make a wake-up that is early rare, few follow a change soon.
LAGS = 16
LAG_SHARE = 0.9
# Seconds. What is more is no lag of the system: others had the interpreter.
LAG_MOST = 200e-6


GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


class Marked(Protocol):
    """What has a lock and the convoy's mark."""

    lock: Any
    mark: object


def make_lock() -> Any:
    """Return the scheduler's lock."""
    return threading.RLock()


def holds(lock: Any) -> bool:
    """Say whether this thread is inside ``lock``."""
    owned: bool = lock._is_owned()
    return owned


def make_token() -> Any:
    """Return a token, held: acquiring it sleeps until somebody releases it."""
    token = threading.Lock()
    token.acquire()
    return token


def sleep_on(token: Any, timeout: float | None) -> bool:
    """Sleep until the token is released (True) or ``timeout`` seconds went by (False); None waits for ever.

    A wait longer than the platform can express is cut short: the caller looks at its own clock again anyway.
    """
    if timeout is None:
        woken: bool = token.acquire()
    else:
        woken = token.acquire(True, min(max(timeout, 0.0), threading.TIMEOUT_MAX))
    return woken


class Lag:
    """How late the system ends the sleeps of one thread, learned from the last few; of that thread alone.

    It means to be late, to bundle timers (Linux by 50 us), and to wake a thread takes it as long again. Most of the
    least that it has added of late it adds to the next sleep, too.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LAGS)

    def lead(self) -> float:
        """Return by how many seconds to ask for less, so as to be woken on time and hardly ever early."""
        return min(self._last) * LAG_SHARE if self._last else 0.0

    def learn(self, seconds: float) -> None:
        """Take note of how late a sleep ended."""
        self._last.append(min(max(seconds, 0.0), LAG_MOST))


def make_waker(tokens: list[Any]) -> Callable[[], object]:
    """Return a function that pops the last token and releases it, or raises IndexError when there is none.

    It is one C call, so that no signal, finalizer or Ctrl-C can come between.
    """
    return map(operator.methodcaller("release"), iter(tokens.pop, None)).__next__


def on_main_thread() -> bool:
    """Say whether this is the thread on which Ctrl-C strikes."""
    return threading.current_thread() is threading.main_thread()


def release_all(tokens: list[Any]) -> None:
    """Wake every sleeper on the list and empty it. May be repeated: a token that is awake already is left alone."""
    for token in tokens:
        if token.locked():
            try:
                token.release()
            except RuntimeError:  # a handler on this thread came between
                continue
    tokens.clear()


def step_aside(owner: Marked) -> None:
    """Let the marked thread through; return at once on the thread that holds the lock, or where there is no GIL."""
    if not GIL or holds(owner.lock):
        return
    for _ in range(ASIDE_ROUNDS):
        time.sleep(ASIDE)
        if owner.mark is None:
            return


def start_thread(target: Callable[..., object], args: tuple[object, ...], name: str) -> threading.Thread:
    """Start a daemon thread in an empty context; RuntimeError if the platform refuses one."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    contextvars.Context().run(thread.start)
    return thread


def join_thread(thread: threading.Thread, timeout: float | None) -> None:
    """Wait for a thread to end, at most as long as the platform can express."""
    thread.join(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class JobCondition(type(threading.RLock())):  # type: ignore[misc]  # the C class has no public name
    """The ``_condition`` of one job, made only when ``concurrent.futures.wait`` or ``as_completed`` ask for it.

    Ten times cheaper than a ``Condition``, and all that those functions need: they enter and leave it, and append to
    ``waiters``. Entering and leaving stay C code, so that Ctrl-C cannot come between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Any] = []
        self.told = 0  # how many of them have been told that the job ended
        # How many are to be told. Whoever comes later found the job ended, and does not wait for it to be told.
        self.to_tell: int | None = None

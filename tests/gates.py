"""Where the threads of a test meet: gates that tasks wait at, logs that are kept, ends of objects waited for.

All waiting is bounded by PATIENCE, which only a failing test reaches.
"""

import contextlib
import gc
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from threadsched import Job, Scheduler

PATIENCE = 5.0


class Gate:
    """A task that says when it has started, and returns its argument once somebody has opened it."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.opened = threading.Event()

    def __call__(self, value: Any = None) -> Any:
        self.started.set()
        if not self.opened.wait(PATIENCE):
            raise AssertionError("nobody opened the gate")
        return value

    def await_start(self) -> None:
        """Wait until a worker stands at the gate."""
        assert self.started.wait(PATIENCE), "no worker came to the gate"

    def open(self) -> None:
        """Let every worker pass, now and later."""
        self.opened.set()


@contextlib.contextmanager
def occupied(scheduler: Scheduler, count: int = 1) -> Iterator[list[Job[Any]]]:
    """Keep `count` workers busy inside the block; gives the jobs that do it."""
    gates = [Gate() for _ in range(count)]
    try:
        jobs = [scheduler.options(priority=-1e9).submit(gate) for gate in gates]
        for gate in gates:
            gate.await_start()
        yield jobs
    finally:
        for gate in gates:
            gate.open()


@contextlib.contextmanager
def neighbours(s: Scheduler) -> Iterator[None]:
    """Submit ordinary jobs before and after the block; all of them must run, and the books must balance."""
    before = [s.submit(pow, 2, number) for number in range(3)]
    yield
    after = [s.submit(pow, 3, number) for number in range(3)]
    assert [job.result(PATIENCE) for job in before + after] == [1, 2, 4, 1, 3, 9]
    s.check()


class Records(logging.Handler):
    """Keeps what the package's logger says as (level name, text), the traceback's text included."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, self.format(record)))
        record.exc_info = None  # a handler after this one must not keep the frames of a test alive

    def of(self, level: str) -> list[str]:
        """Return the texts logged at this level."""
        return [text for name, text in self.lines if name == level]


@contextlib.contextmanager
def logged() -> Iterator[Records]:
    """Gather what the package logs inside the block."""
    handler = Records()
    logger = logging.getLogger("threadsched")
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class Thing:
    """An object that can be referred to weakly."""


def end_of(thing: object) -> threading.Event:
    """Return an event that is set when `thing` is collected."""
    gone = threading.Event()
    weakref.finalize(thing, gone.set).atexit = False
    return gone


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the cyclic collector off inside the block, so that what is in a cycle stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Give a function by which any thread strikes the main thread with one KeyboardInterrupt.

    A signal that comes just before its thread falls asleep does not wake it, so the signal is repeated until
    it has been seen.
    """
    main = threading.main_thread().ident
    assert main is not None
    seen = threading.Event()

    def handler(*_: object) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    def strike() -> None:
        for _ in range(500):
            signal.pthread_kill(main, signal.SIGINT)
            if seen.wait(0.01):
                return
        raise AssertionError("the main thread did not see the signal")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield strike
    finally:
        signal.signal(signal.SIGINT, before)


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run `call` in a thread; the function returned joins it and gives its value or raises its error."""
    outcome: list[tuple[bool, Any]] = []

    def body() -> None:
        try:
            outcome.append((True, call()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the other thread did not come back"
        good, value = outcome.pop()
        if good:
            return value
        raise value

    return join

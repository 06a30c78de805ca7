"""Puts the simulated locks, threads and time into the package, and takes them out again.

The package makes its locks and threads in ``_locks`` and reads its clocks in few places, all by the name of a module or
of a function; those names are replaced, and nothing of the package is copied or changed. Beside them: the blocking
queue of helpers, what ``concurrent.futures.wait`` and ``as_completed`` use, and what would make two runs of one
schedule differ (the address of an object where it decides an order, exit hooks, the collector).
"""

import asyncio
import concurrent.futures._base as futures
import contextlib
import gc
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import threadsched
from tests.explorer import primitives
from tests.explorer.crews import Crew, GreenletCrew, ThreadCrew, greenlet
from tests.explorer.kernel import Failure, Kernel, Strategy
from tests.explorer.loops import SimLoop
from tests.explorer.primitives import SIM_THREADING, Namespace, SimJobCondition, SimQueue
from threadsched import (
    _clock,
    _exit,
    _full,
    _helping,
    _job,
    _locks,
    _map,
    _scheduler,
    _shared,
    _waiting,
    _watcher,
    _worker,
)

assert threadsched  # its modules, all of them loaded

# Schedules between two collections: what a run leaves behind in cycles is small.
COLLECT = 400

SIM_TIME = Namespace(time, monotonic=primitives.monotonic, sleep=primitives.sleep)


class NoHooks:
    """``atexit`` for the time of an exploration: a run leaves no hook behind."""

    @staticmethod
    def register(hook: Callable[[], None]) -> None:
        return

    @staticmethod
    def unregister(hook: Callable[[], None]) -> None:
        return


class NoVirtualClock:
    """``_clock.VirtualClock``, of which there is none here: to ask a protocol takes long."""


def number_of(thing: Any) -> int:
    """``id`` and ``hash`` of a job, the same in every run of a schedule."""
    known = thing.__dict__
    if "explorer_number" not in known:
        kernel = primitives.active
        known["explorer_number"] = kernel.numbered = kernel.numbered + 1
    number: int = known["explorer_number"]
    return number


def abandon(runtime: Any) -> None:
    """What a dropped scheduler's finalizer calls; not in a run that is being unwound."""
    kernel = runtime.lock.kernel
    if not (kernel.over or kernel.unwinding):
        _abandon(runtime)


_abandon = _exit.abandon


REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (_locks, "threading", SIM_THREADING),
    (_locks, "time", SIM_TIME),
    (_locks, "GIL", False),  # nobody steps aside: a hint on which nothing rests
    (_locks.Lag, "lead", float),  # the simulated clock is never late
    (_locks, "JobCondition", SimJobCondition),
    (_shared, "VirtualClock", NoVirtualClock),
    (_scheduler, "VirtualClock", NoVirtualClock),
    (_clock, "time", SIM_TIME),
    (_watcher, "threading", SIM_THREADING),
    (_worker, "threading", SIM_THREADING),
    (_full, "threading", SIM_THREADING),
    (_helping, "threading", SIM_THREADING),
    (_helping, "queue", Namespace(queue, SimpleQueue=SimQueue)),
    (_exit, "atexit", NoHooks),
    (_exit, "abandon", abandon),
    (_exit, "get_ident", primitives.get_ident),
    (_exit, "monotonic", primitives.monotonic),
    (_full, "monotonic", primitives.monotonic),
    (_map, "monotonic", primitives.monotonic),
    (_waiting, "monotonic", primitives.monotonic),
    (_watcher, "monotonic", primitives.monotonic),
    (asyncio, "new_event_loop", SimLoop),
    (futures, "threading", SIM_THREADING),
    (futures, "time", SIM_TIME),
    (futures, "id", number_of),
    (_job.Job, "__hash__", number_of),
)


class Log(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))


class Laboratory:
    """Where schedules run, one after another; made by :func:`laboratory`."""

    def __init__(self) -> None:
        locals = [
            value
            for name, module in sys.modules.items()
            if name.startswith("threadsched")
            for value in vars(module).values()
            if isinstance(value, threading.local)
        ]
        self.threads: Crew = ThreadCrew(locals)
        self.quick: Crew = self.threads if greenlet is None else GreenletCrew(locals)
        self.log = Log()
        self.runs = 0

    def run(
        self,
        body: Callable[[Kernel], None],
        strategy: Strategy,
        *,
        explore_time: bool = False,
        coarse: bool = False,
        lines: Any = None,
        told: list[str] | None = None,
        threads: bool = False,
    ) -> tuple[Failure | None, Kernel]:
        """Run one schedule. What was logged at ERROR or above is a failure: the package mended a fault of its own.

        ``threads``: the fibers have to be real threads.
        """
        self.runs += 1
        if self.runs % COLLECT == 0:
            gc.collect()
        crew = self.threads if threads or lines is not None else self.quick
        kernel = Kernel(strategy, explore_time=explore_time, coarse=coarse, crew=crew, log=told)
        if lines is not None:
            lines.watch(kernel)
        self.log.records.clear()
        _exit._live.clear()  # what earlier runs left, which a fork would look through
        primitives.activate(kernel)
        try:
            failure = kernel.run(lambda: body(kernel))
        finally:
            primitives.activate(None)
        if failure is None:
            loud = [text for level, text in self.log.records if level >= logging.ERROR and not kernel.expected(text)]
            if loud:
                failure = Failure("log", loud[0])
        kernel.forget()
        return failure, kernel


@contextlib.contextmanager
def laboratory() -> Iterator[Laboratory]:
    """Put the simulated things in place for the time of a ``with`` block."""
    place = Laboratory()
    kept = [(owner, name, vars(owner).get(name, place)) for owner, name, _ in REPLACED]
    logger = logging.getLogger("threadsched")
    propagated, collecting = logger.propagate, gc.isenabled()
    for owner, name, value in REPLACED:
        setattr(owner, name, value)
    logger.addHandler(place.log)
    logger.propagate = False
    gc.disable()  # a finalizer must come where the schedule says, which those by reference count do
    gc.collect()
    gc.freeze()  # what is there already need not be looked through again and again
    try:
        yield place
    finally:
        for owner, name, value in kept:
            if value is place:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        logger.removeHandler(place.log)
        logger.propagate = propagated
        gc.unfreeze()
        if collecting:
            gc.enable()
        place.quick.dismiss()
        place.threads.dismiss()
        gc.collect()

"""A program: has the k-th allocation of an operation fail, for each k until the operation gets through.

    python -m tests.faults.memory_sweep PREFIX WIDTH STEP OFFSET

All operations are tried whose names begin with PREFIX. From the k-th allocation on, WIDTH of them fail (0: all, until
the operation has come back). `_testcapi.set_nomemory` counts the allocations of every thread, so the others are parked
in C code meanwhile: the core alone, the caller's side with the worker inside a task, the worker's side with the caller
asleep on a raw lock.
"""

import _testcapi  # type: ignore[import-not-found]  # CPython's own, where it is installed
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.faults.apart import Heard, apart
from tests.injector import bounded
from tests.test_core_strikes import OPERATIONS as CORE_OPERATIONS
from tests.test_core_strikes import Scene
from threadsched import Job, Limit, Scheduler, WorkerDiedError

PATIENCE = 5.0
HEARD = Heard()

# An operation counts as through once this many in a row met no failure: a cached object may stand in for one.
THROUGH = 12
# What may come out of an operation that lacked memory, or out of a job that did.
GOT_THROUGH, RAISED = 0, 2  # not 1, with which faulthandler ends who hangs


# Out of a call for which there was no memory; CPython itself loses its MemoryError here and there.
LACKING = (MemoryError, SystemError)
# Out of a job.
FAILURES = (*LACKING, WorkerDiedError, RuntimeError)


def unmade() -> int:
    """Count the callbacks for whose call there was no memory: they count as raised, and that is logged."""
    return sum("done-callback" in text and "MemoryError" in text for text in HEARD.texts)


def fail_from(k: int, width: int) -> None:
    """Have allocations fail from the k-th of now on."""
    _testcapi.set_nomemory(k, k + width if width else 0)


# ---------------------------------------------------------------- the core


def core(operation: str, k: int, width: int) -> int:
    """Any operation of the core on one thread."""
    scene = Scene("lazy")
    call = CORE_OPERATIONS[operation](scene)
    status = GOT_THROUGH
    fail_from(k, width)
    try:
        call()
    except LACKING:
        status = RAISED
        scene.driver.core.entering = None  # as the scheduler undoes a submission
    finally:
        _testcapi.remove_mem_hooks()
    # What was broken off may be missing in the counts and in the history, never in the maps.
    scene.settle(counted=False)
    return status


# ---------------------------------------------------------------- the caller's side


class Beside:
    """A scheduler whose one worker is inside a task, on a raw lock, and jobs of every kind behind it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1, limits={"one": Limit(concurrency=1)}, max_pending=100)
        self.gate = threading.Lock()
        self.gate.acquire()
        started = threading.Lock()
        started.acquire()

        def hold() -> None:
            started.release()
            self.gate.acquire()

        self.jobs: list[Job[Any]] = [self.scheduler.submit(hold)]
        started.acquire()
        self.jobs += [self.scheduler.options(priority=number % 3).submit(int, number) for number in range(5)]
        self.later = [
            self.scheduler.options(delay=3600 + number, id=f"later {number}").submit(int) for number in range(3)
        ]
        self.called = {job.seq: 0 for job in (self.jobs[2], self.later[1])}
        self.jobs[2].add_done_callback(self.count)
        self.later[1].add_done_callback(self.count)
        self.jobs += self.later
        self.made: list[Any] = []
        self.last: Any = None
        # Have the source lines of the stacks read: without memory for that, 3.12 and 3.13 crash inside of `tokenize`.
        self.scheduler.snapshot()

    def count(self, job: Any) -> None:
        self.called[job.seq] += 1  # needs no memory

    def verify(self, unlogged: int) -> None:
        """Nothing is lost or locked, what raised did not happen; `unlogged` callbacks may be lost without a word."""
        self.made += [] if self.last is None else [self.last]
        bounded(self.scheduler.check, "check()")
        assert bounded(self.scheduler.stats, "stats()").submitted == len(self.jobs) + len(self.made)
        self.made.append(bounded(lambda: self.scheduler.submit(int), "a submit"))
        self.gate.release()
        for job in [*self.jobs, *self.made]:
            if not job.cancelled() and job.run_at <= job.submitted_at + 100:
                assert bounded(lambda: job.exception(PATIENCE), f"the end of {job!r}") is None  # noqa: B023 -- called at once
        report = bounded(lambda: self.scheduler.shutdown(cancel_futures=True, timeout=PATIENCE), "shutdown")
        assert report, report
        assert report.pending == 0
        assert all(job.done() for job in [*self.jobs, *self.made])
        lost = len(self.called) - sum(self.called.values()) - unmade()
        assert 0 <= lost <= unlogged, (self.called, HEARD.texts)
        assert max(self.called.values()) <= 1
        self.scheduler.check()


CALLS: dict[str, Callable[[Beside], object]] = {
    "submit": lambda one: setattr(one, "last", one.scheduler.submit(int)),
    "submit delayed": lambda one: setattr(one, "last", one.scheduler.options(delay=1800, id="mine").submit(int)),
    "submit after": lambda one: setattr(one, "last", one.scheduler.options(after=[one.jobs[1]]).submit(int)),
    "submit limited": lambda one: setattr(one, "last", one.scheduler.options(limits="one").submit(int)),
    "cancel": lambda one: one.jobs[1].cancel(),
    "cancel watched": lambda one: one.jobs[2].cancel(),
    "cancel delayed": lambda one: one.scheduler.cancel("later 1"),
    "set_priority": lambda one: one.jobs[3].set_priority(9),
    "clear": lambda one: one.scheduler.clear(),
    "stats": lambda one: (one.scheduler.stats(), one.scheduler.snapshot()),
}


def call(operation: str, k: int, width: int) -> int:
    """An operation of the public face, while the worker is inside a task."""
    one = Beside()
    action = CALLS[operation]
    status = GOT_THROUGH
    fail_from(k, width)
    try:
        action(one)
    except LACKING:
        status = RAISED
    except RuntimeError as error:  # what Python's files say where there is no memory for a lock of theirs
        if not str(error).startswith("can't allocate"):
            raise
        status = RAISED
    finally:
        _testcapi.remove_mem_hooks()
    if status is RAISED and operation.startswith("submit"):
        assert one.last is None
    # The call of a callback may lack memory, and then the line in the log that tells of it: MemoryError tells it.
    one.verify(unlogged=1 if width > 1 and status is RAISED else 0)
    return status


# ---------------------------------------------------------------- the worker's side


def work(scene: str, k: int, width: int) -> int:
    """What a worker does after a task: it settles that job and goes on."""
    scheduler = Scheduler(1)
    turn, arrived = threading.Lock(), threading.Lock()
    turn.acquire()
    arrived.acquire()
    runs: list[str] = []

    def first() -> None:
        runs.append("first")
        if len(runs) > 1:
            return  # the retry
        turn.acquire()
        fail_from(k, width)
        if scene in ("fail", "retry"):
            raise ValueError("on purpose")

    def second() -> None:
        _testcapi.remove_mem_hooks()
        runs.append("second")
        arrived.release()

    jobs: list[Any] = [scheduler.options(retries=1 if scene == "retry" else 0, backoff=0).submit(first)]
    called = [0]

    def count(_: Any) -> None:
        called[0] += 1

    if scene == "tell":
        jobs[0].add_done_callback(count)
    if scene == "condition":
        jobs[0]._condition  # noqa: B018 -- as wait() makes it
    jobs += [scheduler.options(priority=9).submit(second), scheduler.options(priority=10).submit(int)]
    jobs += [scheduler.options(delay=0.001).submit(int) for _ in range(scene == "promote")]
    turn.release()
    through = arrived.acquire(timeout=0.5)
    _testcapi.remove_mem_hooks()
    # Whatever died, the next submission finds a pool.
    try:
        bounded(lambda: scheduler.submit(int).exception(PATIENCE), "a submit afterwards")
    except AssertionError:
        bounded(lambda: scheduler.submit(int).exception(PATIENCE), "a second submit afterwards")
    status = GOT_THROUGH
    for job in jobs:
        error = bounded(lambda: job.exception(PATIENCE), f"the end of {job!r}")  # noqa: B023 -- called at once
        if isinstance(error, FAILURES):
            status = RAISED
        else:
            assert error is None or isinstance(error, ValueError), error
    assert runs.count("first") <= jobs[0].attempts
    assert runs.count("second") == jobs[1].attempts if jobs[1].exception() is None else runs.count("second") <= 1
    assert bounded(lambda: scheduler.shutdown(timeout=PATIENCE), "shutdown")
    assert called[0] + unmade() == (scene == "tell"), (called, HEARD.texts)
    scheduler.check()
    stats = scheduler.stats()
    assert stats.submitted == stats.done + stats.failed + stats.cancelled
    return RAISED if stats.replaced_workers or not through else status


WORK = ("settle", "fail", "retry", "tell", "condition", "promote")

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    **{f"core: {name}": lambda k, width, name=name: core(name, k, width) for name in CORE_OPERATIONS},  # type: ignore[misc]
    **{f"call: {name}": lambda k, width, name=name: call(name, k, width) for name in CALLS},  # type: ignore[misc]
    **{f"work: {name}": lambda k, width, name=name: work(name, k, width) for name in WORK},  # type: ignore[misc]
}


def main(operations: list[str], width: int, step: int, offset: int) -> None:
    logging.getLogger("threadsched").addHandler(HEARD)
    logging.getLogger("threadsched").propagate = False
    wrong = []
    for operation in operations:
        k, through, met = offset, 0, 0
        while through < max(THROUGH // step, 2):
            status, said = apart(lambda: OPERATIONS[operation](k, width))  # noqa: B023 -- called at once
            met += status == RAISED
            through = through + 1 if status == GOT_THROUGH else 0
            if status not in (GOT_THROUGH, RAISED):
                wrong.append(f"{operation}: allocation {k}, width {width}: status {status}\n{said}")
                if os.environ.get("THREADSCHED_SURVEY") is None:
                    break
            k += step
        print(operation, k, met)
    for text in wrong:
        print(text, file=sys.stderr)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    # The coverage's tracer, if there is one, wants memory at each line: it would take the failures, and dies of them.
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    chosen = [name for name in OPERATIONS if name.startswith(sys.argv[1])]
    main(chosen, *map(int, sys.argv[2:5]))

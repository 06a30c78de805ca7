"""What a worker thread does outside of the lock: run tasks, carry their outcomes home, sleep, leave.

A worker's round is one hold of the lock (``Runtime.turn``: settle the last job, promote, claim the next) and one run
of a task. It keeps its own references to a task's function and arguments until that hold is over, so that the last
one is never dropped inside it, and clears them before it sleeps, so that an idle pool keeps nothing alive.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextvars import Context
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any

from threadsched import _coroutines, _locks, _log
from threadsched._job import Job, task_name
from threadsched._time_limits import Attempt

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


# What a turn without a job tells the worker to do.
IDLE = "idle"
"""Sleep until woken."""
WATCH = "watch"
"""Sleep until woken, or until the head of the delayed heap is due."""
TELL = "tell"
"""The settled job has callbacks: run them, then come again."""
CONDITION = "condition"
"""The finished job is watched by ``wait``, or came too late: settle it as that asks, then come again."""
CLEAR = "clear"
"""A shutdown left jobs to give up: help with that, then come again."""
AGAIN = "again"
"""Let go of the settled job, then lie down: who is asleep must hold nothing, for a finalizer may run then."""
OUTBOX = "outbox"
"""Cancelled jobs have watchers that were not told yet: tell them, then come again."""
LEAVE = "leave"
"""End the thread."""


# How often a dying worker tries to leave the pool whole: each try outlives one more exception.
TRIES = 20


class _Here(threading.local):
    worker: Worker | None = None


_here = _Here()


def current_worker() -> Worker | None:
    """Return the worker whose thread this is, of whichever scheduler."""
    return _here.worker


def current_job() -> Job[Any] | None:
    """Return the job that this thread is running, or None outside of a task.

    Through it a task can see that somebody wants it to stop (``cancel_requested``, ``check_cancelled()``), sleep so
    that such a request wakes it (``sleep(seconds)``), and know its attempt (``attempts``). Cost: O(1), no lock.
    """
    worker = _here.worker
    if worker is None:
        return None
    job = worker.job
    if job is not None and job is worker.driven:
        # On the loop: one of several coroutines that it serves.
        known = _coroutines.job_here.get()
        here = None if known is None else known()
        if here is not None and (here._place is worker or here in worker.tasks.values()):
            return here
    return job


@contextlib.contextmanager
def on_slot(slot: Worker, job: Job[Any]) -> Iterator[None]:
    """Make the calling thread look like a worker that runs ``job``, for the stepped scheduler."""
    before = _here.worker
    _here.worker, slot.job = slot, job
    try:
        yield
    finally:
        _here.worker, slot.job = before, None


class Worker:
    """One thread of the pool and what it is doing."""

    __slots__ = (
        "adopted",
        "attempt",
        "dead",
        "depth",
        "detached",
        "driven",
        "due",
        "generation",
        "ident",
        "job",
        "lag",
        "loop",
        "name",
        "number",
        "order",
        "overrun",
        "parked",
        "runtime",
        "settled",
        "tasks",
        "thread",
        "token",
    )

    def __init__(self, runtime: Runtime, number: int) -> None:
        self.runtime = runtime
        self.number = number
        self.name = f"{runtime.name}_{number}"
        self.generation = runtime.generation
        self.token = _locks.make_token()  # Released by whoever takes it off runtime.idle or runtime.watch.
        self.job: Job[Any] | None = None
        self.settled: Job[Any] | None = None  # what the last turn settled
        self.driven: Job[Any] | None = None  # the job whose coroutine its loop is run for
        self.tasks: dict[Any, Job[Any]] = {}  # asyncio task -> the job that was adopted by the loop
        self.adopted: set[int] = set()  # numbers of jobs awaited on the loop that run there; guarded by the lock
        self.dead = False  # it died outside of any task, and counts as replaced
        self.depth = 0  # jobs on this thread beside the one that it claimed in its own round; guarded by the lock
        self.parked: Job[Any] | None = None  # what it sleeps for inside a task; guarded by the lock
        # Of the job with a timeout that this thread claimed last and has not settled. Of its own thread alone.
        self.attempt: Attempt | None = None
        self.overrun: list[Attempt] = []  # attempts that were written off and whose task is still on this thread
        # Written off with its thread, or in the child of a fork: it is no member of the pool. Guarded by the lock.
        self.detached = False
        self.order = IDLE  # what the last turn said
        self.due = 0.0  # with WATCH: until when to sleep
        self.lag = _locks.Lag()  # of its sleeps with a timeout
        self.ident = 0
        self.loop: Any = None  # the event loop of this thread, made for the first coroutine
        self.thread: threading.Thread | None = None

    @property
    def stuck(self) -> bool:
        """Whether its thread is in a task that was written off, and no coroutine."""
        return None in [one.stopper for one in self.overrun]

    def main(self) -> None:
        """Serve until told to leave; whatever happens, leave the scheduler whole.

        What breaks that off, ours, a lack of memory, or thrown into this thread, ends the worker and not the pool. Each
        step of the end may be done twice, so it is begun again if another exception meets it there.
        """
        runtime = self.runtime
        cause: BaseException | None = None
        tries = 0
        while tries < TRIES:
            tries += 1
            try:
                if cause is not None:
                    runtime.worker_died(self, cause)
                else:
                    self.live()
                _coroutines.close(self)
                runtime.leave(self)
                break
            except BaseException as error:
                cause = error if cause is None else cause
        cause = None  # its traceback knows this frame

    def live(self) -> None:
        """Arrive, and serve if that is to be."""
        runtime = self.runtime
        _here.worker = self
        self.ident = threading.get_ident()
        self.thread = threading.current_thread()
        if runtime.arrive(self) and runtime.initialise():
            self.serve()

    def serve(self) -> None:
        """Turn and run, turn and run."""
        runtime = self.runtime
        turn, clock = runtime.turn, runtime.now
        settled: Job[Any] | None = None
        result: Any = None
        fn: Any = None
        name = ""
        empty = Context()
        while True:
            try:
                now = clock()
            except BaseException as error:
                now = runtime.clock_raised(error)
            job = turn(self, settled, result, name, now)
            if job is None:
                if settled is not None:
                    self.carry_home(settled, result, name)
                # Nothing of the last job may outlive it here, and now the lock is free.
                fn = args = context = result = settled = self.settled = None
                if empty:
                    empty = Context()
                if self.order is AGAIN:
                    runtime.lie_down(self, now)
                if not self.rest() or (self.detached and not runtime.come_home(self)):
                    return
                continue
            # The references of the last job are replaced here, and not under the lock; those of this job are kept
            # until it is settled, for then the job drops its own.
            settled = None
            known = job._fn is fn  # the task of the job before: its name is at hand, which is worth most for a built-in
            fn, args, context = job._fn, job._args, job._result
            try:
                # run_task(), without its call; and without a list and a tuple of what to call with, a twentieth of what
                # such a job costs, where there is at most one argument.
                if context is not None:
                    context = own_context(job)
                else:
                    if empty:
                        empty = Context()  # a task has left something in the last one
                    context = empty
                if not args:
                    result = context.run(fn)
                elif len(args) == 1:
                    result = context.run(fn, args[0])
                else:
                    result = context.run(fn, *args)
                if type(result) is CoroutineType:
                    empty = Context()  # what that leaves on the loop may go on in the other
                    result = _coroutines.run(self, result, context)
            except BaseException as error:  # a task may raise anything; it is that job's failure and nobody else's
                runtime.attempt_failed(job, error, self.attempt)
                self.attempt = None
                fn = args = context = result = None  # nothing is settled that would drop them under the lock
            else:
                settled = job
                if not known:
                    name = fn.__qualname__ if type(fn) is FunctionType else task_name(fn)
            if self.detached:
                # Written off; or it woke up in the child of a fork, and the pool it belonged to is not here.
                if settled is not None:
                    self.order = CONDITION
                    self.carry_home(settled, result, name)
                fn = args = context = result = settled = job = None
                if not runtime.come_home(self):
                    return
            job = None

    def carry_home(self, settled: Job[Any], result: Any, name: str) -> None:
        """Do for a settled job what the turn could not do under the lock."""
        if self.order is CONDITION:
            self.runtime.finish(settled, result, name, self.attempt)
            self.attempt = None
        elif self.order is TELL:
            self.runtime.run_callbacks(settled)

    def rest(self) -> bool:
        """Do what the last turn ordered instead of a job; False means to leave."""
        runtime, order = self.runtime, self.order
        if order is IDLE:
            self.token.acquire()
        elif order is WATCH:
            runtime.sleep_as_watch(self)
        elif order is OUTBOX:
            runtime.drain_outbox()
        elif order is CLEAR:
            runtime.give_up_rest()
        return order is not LEAVE


def own_context(job: Job[Any]) -> Context:
    """Return the context for one attempt: a copy if another attempt may follow, which must not see what this sets."""
    context: Context | None = job._result
    if context is None:
        return Context()
    return context if job._options.retry is None else context.copy()


def run_task(fn: Any, args: tuple[Any, ...], context: Context) -> Any:
    """Run one attempt, a coroutine that the task returned included, and return the value; raises what it raises."""
    result = context.run(fn, *args)
    if type(result) is CoroutineType:
        worker = _here.worker
        assert worker is not None  # tasks run on workers, and on slots that look like one
        return _coroutines.run(worker, result, context)
    return result


# Code whose frames are the outermost of a task's traceback and not the task's.
OUTER_CODE = {run_task.__code__, Worker.serve.__code__, _coroutines.run.__code__}


def call_hook(what: str, hook: Any, *args: object) -> None:
    """Call foreign code that must not harm the caller; what it raises is logged."""
    try:
        hook(*args)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _locks.on_main_thread():
            raise  # Ctrl-C, which merely struck here: it is told of by itself
        _log.report(logging.ERROR, "%s raised %s", what, _log.describe_error(error), error=error)

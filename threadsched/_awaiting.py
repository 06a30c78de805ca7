"""Awaiting on a worker's own loop: what ``_helping`` is for ``result()``, for coroutines that ``await`` a job.

A coroutine runs on the loop of its worker, and may await a job of the same scheduler while every other worker waits as
well. Such a job is claimed here and now: a coroutine becomes one more task of this loop, a function is run inline. One
that is not due yet is told by the same bells as a parked worker's, whose ring is a callback of the loop.

A job that was taken in this way belongs to whoever awaits it: if that is cancelled, or ends without waiting, the job is
asked to stop, and the worker serves its loop until it has.

Locking: ``LoopWait`` lives on the thread of the loop; ``release`` alone is called from others, with the lock held. It
calls ``call_soon_threadsafe`` of a loop that the worker made, which is code of the standard library's and no user's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from threadsched import _coroutines, _locks
from threadsched._errors import DeadlockError, NestingError
from threadsched._helping import DEPTH, Helping, could_start, describe_ring, is_due, needed, told
from threadsched._job import READY, Job, task_name
from threadsched._time_limits import Attempt
from threadsched._worker import Worker, current_job, current_worker, own_context

if TYPE_CHECKING:
    import asyncio


class Awaiting(Helping):
    """The room of coroutines that wait for jobs."""

    __slots__ = ()

    def wait_on_loop(
        self, job: Job[Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]
    ) -> LoopWait | None:
        """Return the wait of the running coroutine for a job, or None where the loop is not that of one of our workers.

        The future is resolved when the job has ended.
        """
        worker, waiter = current_worker(), current_job()
        if worker is None or waiter is None or worker.runtime is not self or worker.loop is not loop:
            return None
        if worker.detached:
            return None  # its thread was written off, and does not help
        return LoopWait(self, worker, waiter, job, future)


class LoopWait:
    """One open ``await`` of a job on a worker's loop; a bell, as those of parked helpers are."""

    __slots__ = ("attempt", "due", "future", "job", "runtime", "task", "timer", "waiter", "worker")

    sleeps = False

    def __init__(
        self, runtime: Awaiting, worker: Worker, waiter: Job[Any], job: Job[Any], future: asyncio.Future[Any]
    ) -> None:
        self.runtime = runtime
        self.worker = worker
        self.waiter = waiter
        self.job = job
        self.task: Job[Any] | None = None  # what it has claimed, until that runs or has ended; the thread's own
        self.future = future
        # Every such wait watches the delayed heap for itself. One could not stand in for the others, as a parked helper
        # does: its loop may be busy, or blocked by a function that runs on it.
        self.timer: asyncio.TimerHandle | None = None
        self.due: float | None = None  # the head of the delayed heap when it last looked
        self.attempt: Attempt | None = None  # of the job with a timeout that it claimed last

    # ---------------------------------------------------------------- a bell

    def watches(self, due: float | None) -> bool:
        """Whether it will look by itself when a job is due that now heads the delayed heap. Lock held."""
        return due is None or (self.due is not None and self.due <= due)

    def locked(self) -> bool:
        """As a token: whether a release would do anything."""
        return True

    def release(self) -> None:
        """Have the loop look again; until then the worker does not count as asleep. Lock held."""
        try:
            self.worker.loop.call_soon_threadsafe(self._rung)
        except (RuntimeError, AttributeError):  # the loop is closed
            pass
        self.runtime.helpers.pop(id(self), None)

    def wanted(self) -> bool:
        """Whether there is something ready that could be run here. Lock held."""
        return any(one._place is READY or could_start(one) for one in needed(self.job))

    # ---------------------------------------------------------------- on the loop's thread

    def start(self) -> None:
        """Begin to wait; raises DeadlockError or NestingError instead where that could never end."""
        self.runtime.note_wait(self.waiter, self.job)
        self._look()

    def end(self) -> None:
        """Wait no longer."""
        with self.runtime.lock:
            self._unpark_locked()
        self.runtime.forget_wait(self.waiter, self.job)

    def _rung(self) -> None:
        if self.future.done():
            return
        try:
            self._look()
        except BaseException as error:  # also what was thrown into this thread: the loop would only log it
            if not self.future.done():
                self.future.set_exception(error)

    def _look(self) -> None:
        """Start what the job needs, or park; whatever strikes, no job stays claimed that nobody runs."""
        try:
            self._start_needed()
        except BaseException as error:
            task, self.task = self.task, None
            if task is not None and task not in self.worker.tasks.values():
                self.runtime.salvage(self.worker, task, error, self.attempt)
            raise

    def _start_needed(self) -> None:
        """Start what the job needs, until it has ended or there is nothing to start; then park."""
        runtime, core = self.runtime, self.runtime.core
        while True:
            if core.outbox or core.ranking.faults:
                runtime.drain_outbox()
            now = runtime.read_clock()
            with runtime.lock:
                self._unpark_locked()
                if runtime._fell_due_locked(now):
                    continue
                ended = self.job.done()
                ring = None if ended else runtime.ring_locked(self.job, lambda one: one is self.waiter)
                look = not runtime.stepped and (len(core.delayed) or core.alarm is not None)
                moved = core.promote(now) if look else 0
                too_deep = self.worker.depth >= DEPTH and any(is_due(one, now) for one in needed(self.job))
                task = None if ended or ring is not None or too_deep else self._claim_locked(now)
                stuck = runtime.stepped and self.job._state == "PENDING" and task is None
                # None has it but the job that waits: it would hold that until the end of what it waits for.
                lacks = None if task is not None else runtime.used_up_locked(self.job, lambda one: one is self.waiter)
                if not ended and ring is None and task is None and lacks is None and not stuck and not too_deep:
                    self._park_locked(now)
                runtime._pass_on_locked(moved)
                clear = runtime._unclear_locked()
            if ended:
                if not self.future.done():
                    self.future.set_result(None)
                return
            if ring is not None:
                raise DeadlockError(describe_ring(self.waiter, ring))
            if too_deep:
                raise NestingError(f"{told(self.job)} is not awaited on this thread: {DEPTH} jobs wait there already")
            if lacks is not None:
                raise DeadlockError(
                    f"{told(self.waiter)} waits for {told(self.job)}, which waits for {lacks}, held by that job alone"
                )
            if stuck:
                raise DeadlockError(
                    f"{told(self.waiter)} waits for {told(self.job)}, which cannot start during this tick"
                )
            if task is None:
                if clear:
                    runtime.give_up_rest()
                self._set_timer()
                return
            self._run(task)
            self.task = None

    def _claim_locked(self, now: float) -> Job[Any] | None:
        worker = self.worker
        if worker.detached:
            return None
        before = worker.attempt
        for one in list(needed(self.job)):
            # Not a job of which a written-off coroutine is still being cancelled here: one thread, one attempt.
            if any(attempt.job is one for attempt in worker.overrun):
                continue
            self.task = one  # before the claim, as a parked helper does
            if is_due(one, now) and self.runtime.core.claim_given(one, now, worker):
                worker.adopted.add(one._seq)
                self.attempt, worker.attempt = worker.attempt, before
                return one
        self.task = None
        return None

    def _park_locked(self, now: float) -> None:
        """Register wherever it can be rung from; as a helper does."""
        runtime = self.runtime
        due = runtime.core.next_due()
        self.job._attach().tokens.append(self)
        if self.worker.detached:
            if self.job.done():
                self.release()
            return  # nobody rings for a thread that was written off, but whoever ends the job
        runtime.helpers[id(self)] = self
        self.due = due
        if self.job.done() or runtime.core.next_due() != due or (not runtime.core.halted and self.wanted()):
            self.release()
        elif runtime.quiet_waiters and runtime._quiescent_locked(now):
            _locks.release_all(runtime.quiet_waiters)

    def _unpark_locked(self) -> None:
        attached = self.job._attached
        if attached is not None and self in attached.tokens:
            attached.tokens.remove(self)
        self.runtime.helpers.pop(id(self), None)
        self.due = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _set_timer(self) -> None:
        if self.due is None:
            return
        left = self.due - self.runtime.read_clock()
        if not self.runtime.virtual or left <= 0:
            # Looked at again once a day: a loop's timers cannot be further off than its selector can express.
            self.timer = self.worker.loop.call_later(min(max(left, 0.0), 86_400.0), self._rung)

    # ---------------------------------------------------------------- running what was claimed

    def _run(self, task: Job[Any]) -> None:
        """Call the function of a claimed job; if that gives a coroutine, make it a task of this loop."""
        worker, before, attempt = self.worker, self.worker.job, self.attempt
        self.attempt = None
        context = own_context(task)
        fn, args = task._fn, task._args
        try:
            worker.depth += 1
            worker.job = task
            try:
                result = context.run(fn, *args)
            finally:
                worker.job = before
                worker.depth -= 1
            if type(result) is CoroutineType:
                _coroutines.adopt(worker, task, result, context, self._make_ending(attempt))
                return
        except BaseException as error:
            self.runtime.attempt_failed(task, error, attempt)
        else:
            self.runtime.finish(task, result, task_name(fn), attempt)
        self._let_go(task)

    def _make_ending(self, attempt: Attempt | None) -> Callable[[Job[Any], BaseException | None, Any], None]:
        return lambda task, error, result: self._adopted_done(task, attempt, error, result)

    def _adopted_done(self, task: Job[Any], attempt: Attempt | None, error: BaseException | None, result: Any) -> None:
        """A coroutine that was claimed here has ended."""
        _spoil, _arguments, _context = task._fn, task._args, task._result  # not to be dropped under the lock
        if error is None:
            name = task._fn if type(task._fn) is str else task_name(task._fn)  # it may have ended long since
            self.runtime.finish(task, result, name, attempt)
        else:
            self.runtime.attempt_failed(task, error, attempt)
        self._let_go(task)  # if it is to be retried, this wait is parked and watches for that

    def _let_go(self, task: Job[Any]) -> None:
        with self.runtime.lock:
            self.worker.adopted.discard(task._seq)
            if task.done():
                self.runtime.core.left_behind.discard(task._seq)

"""How a job ends, and who is told: the terminal moves of the core, waiters, callbacks and hooks around them.

A move is decided under the lock by the core and has one winner; the winner tells. A worker's fast path, a success that
nobody watches, is in ``Runtime.turn``; everything else comes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from threadsched import _dependencies, _locks, _log, _numbers, _outcome
from threadsched._arming import Ring
from threadsched._errors import IllegalMoveError, JobTimeoutError
from threadsched._job import CANCELLED, DELAYED, Failure, Job
from threadsched._locks import holds
from threadsched._policy import Ranking
from threadsched._time_limits import Attempt, Right, WrittenOff
from threadsched._waiting import Waiting
from threadsched._worker import call_hook

if TYPE_CHECKING:
    from threadsched._runtime import Runtime

# Jobs given up in one hold of the lock by a shutdown: enough to be quick, few enough to let others in.
BATCH = 256


class Ending(Waiting):
    """The room of outcomes."""

    __slots__ = ()

    # ``right``: of whom a job with a timeout is settled by; without it there is nobody else.
    # A move is handed on as a partial and not as a function made for it: without the memory for one, CPython 3.12 and
    # 3.13 give its code back once too often, and crash where they come to it next.

    def finish(self, job: Job[Any], result: object, name: str, right: Attempt | None = None) -> bool:
        """Settle a job as DONE apart from any claim; tells waiters and callbacks."""
        now = self.read_clock()
        if right is not None and right.job is not job:
            right = None
        if right is not None and right.late(job, now):
            _outcome.attempt_came_late(self, right)
            return False
        won = self._settle(job, partial(self.core.finish, job, result, name, now), right)
        if right is not None and right.over:
            self.attempt_came_home(right)
        return won

    def attempt_came_home(self, attempt: Attempt) -> None:
        """Take note that the thread of a written-off attempt is out of the task: whoever waited for that may go on."""
        now = self.read_clock()
        with self.lock:
            if self.core.time_limits.away.pop(id(attempt), None) is None:
                return  # it is known, or we are in the child of a fork
            attempt.home = True
            if attempt in attempt.worker.overrun:
                attempt.worker.overrun.remove(attempt)
            self.limits.give_back(attempt.kept, now)
            for rule in attempt.rules:
                rule.came_home(attempt.job, now)
            if self.helpers:
                self._ring_helpers_locked()
            self._settled_locked()
            self._tell_left_locked()
        self.drain_outbox()

    def fail(self, job: Job[Any], error: BaseException, text: str, right: Right | None = None) -> bool:
        """Settle a job as FAILED; tells waiters, callbacks and ``on_error``."""
        now = self.read_clock()
        # Three names and no tuple, here and below: on its way out of a lock CPython needs one of three itself, and must
        # find that at hand where memory has run out, or the lock stays held.
        spoil, arguments, context = job._fn, job._args, job._result
        failure = Failure(job, error)
        try:
            won = self._settle(job, partial(self._fail_locked, job, failure, text, now, right), right)
        finally:
            if job._result is not failure:
                failure.seen = True  # it came to nothing, so there is nothing to look at
        del spoil, arguments, context
        if won and self.on_error is not None:
            call_hook("on_error", self.on_error, job, error)
        return won

    def _fail_locked(self, job: Job[Any], failure: Failure, text: str, now: float, right: Right | None) -> bool:
        won = self.core.fail(job, failure, text, now)
        if won and right is not None and isinstance(failure.error, JobTimeoutError):
            job._attach().stop = True  # for those who look from outside of the task
        return won

    def stop(self, job: Job[Any], right: Right | None = None) -> bool:
        """Settle a running job as CANCELLED."""
        name, now = job.name, self.read_clock()
        spoil, arguments, context = job._fn, job._args, job._result
        won = self._settle(job, partial(self.core.stop, job, name, now), right)
        del spoil, arguments, context
        return won

    def _settle(self, job: Job[Any], move: Callable[[], bool], right: Right | None = None) -> bool:
        """Make a terminal move and tell everybody; under the job's condition if it has one."""
        try:
            while True:
                attached = job._attached
                condition = None if attached is None else attached.condition
                if condition is None:
                    with self.lock:
                        attached = job._attached
                        if attached is not None and attached.condition is not None:
                            continue  # made just now: take it first
                        won = self._may_move_locked(right) and move()
                        if won and attached is not None:
                            _locks.release_all(attached.tokens)
                        self._settled_locked()
                else:
                    with condition:
                        with self.lock:
                            won = self._may_move_locked(right) and move()
                            if won and attached is not None:
                                _locks.release_all(attached.tokens)
                            self._settled_locked()
                        if won:
                            _outcome.tell_waiters(job, condition)
                if won:
                    if attached is not None:
                        attached.error = None  # of an earlier attempt, with all that its traceback holds
                    self.run_callbacks(job)
                    if self.core.outbox:
                        self.drain_outbox()  # jobs that depended on this one; the schedule that it was a run of
                return won
        except BaseException:
            self._hand_on([job])
            raise

    def _may_move_locked(self, right: Right | None) -> bool:
        """Whether a job with a timeout is still the caller's; if it was written off, its thread keeps its room."""
        if right is None:
            return True
        if not right.may_settle():
            return False
        if type(right) is WrittenOff:
            right.depart(self.limits)
        return True

    def attempt_failed(self, job: Job[Any], error: BaseException, right: Right | None = None) -> None:
        """Decide what comes after an attempt that raised: another one, FAILED, or CANCELLED."""
        _outcome.attempt_failed(self, job, error, right)

    def retry(
        self,
        job: Job[Any],
        run_at: float,
        ranking: Ranking,
        key: object,
        now: float,
        error: BaseException,
        text: str,
        right: Right | None = None,
    ) -> bool | None:
        """RUNNING → PENDING if a retry is still wanted; None if the key is of a ranking that is not in force."""
        with self.lock:
            core = self.core
            if core.ranking is not ranking:
                return None
            attached = job._attach()
            if attached.no_retry or core.drain != "all" or core.broken or core.running.get(job._seq) is not job:
                return False
            if not self._may_move_locked(right):
                return False
            attached.trail = (*attached.trail, f"attempt {job._attempts}: {text}")
            attached.error = error
            if core.retry(job, run_at, key, now):
                self._new_head_locked()
            self._settled_locked()
            return True

    def cancel(self, job: Job[Any]) -> bool:
        """Cancel a pending job; True only for the call that did it. Of a running one, forbid further attempts."""
        fn = job._fn
        name = fn.__qualname__ if type(fn) is FunctionType else job.name
        core = self.core
        try:
            now = self.now()
        except BaseException as error:
            now = self.clock_raised(error)
        try:
            with self.lock:
                # The spoils go when this frame ends: their last references, when the lock is free.
                spoils = core.cancel(job, name, now)
                if spoils is None:
                    if job._state == "RUNNING":
                        job._attach().no_retry = True
                    return False
                if job._attached is not None:
                    self._ended_locked(job)
                if core.closed or core.keepers or core.released or self.idle_waiters:
                    self._gave_up_locked()
            if core.outbox:
                self.drain_outbox()
        except BaseException:
            self._hand_on([job])
            raise
        return True

    def _hand_on(self, jobs: list[Job[Any]]) -> None:
        """An exception struck while jobs were ended: a worker tells whoever waits for what was decided."""
        with self.lock:
            for job in jobs:
                if job.done():
                    self._ended_locked(job)
            self._gave_up_locked()
            if self.core.outbox:
                self._wake_locked()

    def _ended_locked(self, job: Job[Any]) -> None:
        """Wake who waits for a job that has ended; its watchers, if any are left, are told outside the lock."""
        attached = job._attached
        if attached is not None:
            _locks.release_all(attached.tokens)
            condition = attached.condition
            untold = condition is not None and condition.told < len(condition.waiters)
            if attached.callbacks or untold or job._state is CANCELLED:
                self.core.outbox.append(job)

    def _gave_up_locked(self) -> None:
        """Jobs were cancelled: tell who waits for the last one, workers of a closed scheduler among them."""
        self._settled_locked()
        if self.core.closed and not self.core.pending:
            self._wake_all_locked()
            self._tell_left_locked()
            self._tell_left_locked()

    def tell_again(self, job: Job[Any]) -> None:
        """Tell everybody that a job has ended, in case a worker that died after settling it had not; once each."""
        with self.lock:
            attached = job._attached
            condition = None if attached is None else attached.condition
            if attached is not None:
                _locks.release_all(attached.tokens)
        if condition is not None:
            with condition:
                _outcome.tell_waiters(job, condition)
        self.run_callbacks(job)

    def cancel_batch(self, jobs: list[Job[Any]], reason: CancelledError | None = None) -> int:
        """Cancel those that are pending, in one hold of the lock; return how many. Tells whoever watches them.

        ``reason`` is what their ``result()`` raises, a CancelledError without more by default.
        """
        cancelled = self._cancel_now(jobs, reason)
        try:
            self.drain_outbox()
        except BaseException:
            self._hand_on(jobs)
            raise
        return cancelled

    def _cancel_now(self, jobs: list[Job[Any]], reason: CancelledError | None) -> int:
        named = [(job, job.name) for job in jobs]
        now = self.read_clock()
        spoils = []
        try:
            with self.lock:
                core = self.core
                for job, name in named:
                    taken = core.cancel(job, name, now, reason)
                    if taken is not None:
                        spoils.append(taken)
                        self._ended_locked(job)
                self._gave_up_locked()
        except BaseException:
            self._hand_on(jobs)
            raise
        cancelled = len(spoils)
        del spoils  # their last references, now that the lock is free
        return cancelled

    def request_cancel(self, job: Job[Any]) -> bool:
        """Cancel if pending; else set the token that the task may look at, end its ``sleep()``, cancel a coroutine."""
        if self.cancel(job):
            return True
        with self.lock:
            if job._state != "RUNNING":
                return False
            attached = job._attach()
            attached.stop = attached.no_retry = True
            if attached.sleeper is not None and self.sleepers.pop(attached.sleeper, None) is not None:
                attached.sleeper.release()
            stopper = attached.stopper
        if stopper is not None:
            stopper()
        return True

    def claim_for_caller(self, job: Job[Any]) -> bool:
        """``job.claim()``."""
        now = self.read_clock()
        with self.lock:
            claimed = self.core.claim_one(job, now)
            self._settled_locked()
        if self.core.outbox:
            self.drain_outbox()  # parents that it waited for
        return claimed

    def settle_claimed(self, job: Job[Any], result: object, error: BaseException | None) -> None:
        """``set_result`` and ``set_exception``, for who claimed the job."""
        if job._state != "RUNNING" or job._place is not None:
            raise IllegalMoveError(f"{job!r} is not claimed by its caller")
        if error is not None:
            won = self.fail(job, error, _log.describe_error(error))
        else:
            spoil, arguments, context = job._fn, job._args, job._result
            won = self.finish(job, result, job.name)
            del spoil, arguments, context
        if not won:
            raise IllegalMoveError(f"{job!r} was settled by somebody else")

    def drain_outbox(self) -> None:
        """Cancel whom a parent's end dooms, let schedules proceed, tell watchers, drop what was left to drop.

        Each entry stays in the outbox until it is dealt with, so that an interrupt in between loses nothing; workers
        drain it too.
        """
        outbox = self.core.outbox
        if outbox and holds(self.lock):
            # We are a handler or finalizer that interrupted the scheduler on this thread: callbacks are not for here.
            with self.lock:
                self._wake_locked()
            return
        self.log_faults()
        while True:
            try:
                item = outbox[0]
            except IndexError:
                return
            if type(item) is Ring:
                item.thing.proceed(cast("Runtime", self))
            elif type(item) is Job:
                if not self._tell_ended(item):
                    return
            elif item[0] is not None:
                self._cancel_now([item[0]], item[1])  # its own dependents join the outbox: no recursion
            with self.lock:
                # Entries leave at the front and under the lock alone: if it is not there, somebody else was faster.
                mine = bool(outbox) and outbox[0] is item
                if mine:
                    outbox.popleft()
            if mine and type(item) is Job:
                self.run_callbacks(item)
            elif self.quiet_waiters:
                with self.lock:
                    _locks.release_all(self.quiet_waiters)  # they look again

    def drain_or_leave(self) -> None:
        """Drain the outbox for a caller whose own move is made: lack of memory must not look like that move's failure.

        A worker does it then, or whoever moves something next.
        """
        try:
            try:
                self.drain_outbox()
            except Exception:
                with self.lock:
                    self._wake_locked()
        except Exception:  # not even for that
            return

    def _tell_ended(self, job: Job[Any]) -> bool:
        """Tell the watchers of a job that has ended; False if that has to be left to another thread."""
        attached = job._attached
        condition = None if attached is None else attached.condition
        if condition is not None:
            if holds(condition):
                # We interrupted wait() itself on this thread.
                _locks.start_thread(self.drain_outbox, (), f"{self.name} (telling)")
                return False
            with condition:
                _outcome.tell_waiters(job, condition)  # each once, whoever begins
        return True

    def add_callback(self, job: Job[Any], fn: Callable[[Any], object]) -> None:
        """Register a done-callback, or call it now."""
        if not callable(fn):
            raise TypeError(f"a done-callback must be callable, not {_numbers.describe(fn)}")
        with self.lock:
            job._attach().callbacks.append(fn)
            # Look after registering: a handler on this thread may have cancelled the job in between.
            ended = job.done()
        if ended:
            self.run_callbacks(job)

    def forget_callback(self, job: Job[Any], fn: Callable[[Any], object]) -> None:
        """Take a callback of ours off a job again, if the job has not ended. O(callbacks)."""
        with self.lock:
            callbacks = job._attach().callbacks
            if job.done():
                return  # they are being called
            for index, callback in enumerate(callbacks):
                if callback is fn:  # not ==, which is the other callbacks' code
                    del callbacks[index]
                    return

    def run_callbacks(self, job: Job[Any]) -> None:
        """Call each done-callback once, in the order they were added. No lock held."""
        attached = job._attached
        if attached is None or not attached.callbacks:
            return
        # Both before the first is taken off: this may lack memory, and a Ctrl-C may take the callback with it.
        what = f"a done-callback of job {job.id!r}"
        if isinstance(job._result, Failure):
            job._result.seen = True
        while attached.callbacks:
            try:
                callback = attached.callbacks.pop(0)
            except IndexError:
                return
            call_hook(what, callback, job)

    def condition_of(self, job: Job[Any]) -> _locks.JobCondition:
        """Return the job's condition, made on first use."""
        with self.lock:
            attached = job._attach()
            if attached.condition is None:
                attached.condition = _locks.JobCondition()
            return attached.condition

    def give_up_rest(self) -> None:
        """Do what a shutdown's mode says with the jobs that will not be started, a batch per hold of the lock.

        One thread does it; a worker takes over if that one is interrupted.
        """
        if holds(self.lock):
            return  # inside a handler or finalizer: the workers were woken, and do it
        while True:
            mine = False
            try:
                with self.lock:
                    mode = self.core.drain
                    if self.clearing or mode == "all":
                        return
                    self.clearing = mine = True
                    jobs = list(self.core.pending.values())
                    waiting = _dependencies.given_up(self.core, mode, self.due_until)
                if mode == "due":
                    jobs = [job for job in jobs if job._place is DELAYED and job._run_at > self.due_until]
                # Dependents before their parents, whose end could let them go: a worker could take one then. Some come
                # again among the others; a second cancel does nothing.
                for doomed in (waiting, jobs):
                    for start in range(0, len(doomed), BATCH):
                        self._give_up(doomed[start : start + BATCH], mode)
            finally:
                if mine:
                    # A plain store, before anything that could be interrupted: nobody else clears while it is set.
                    self.clearing = False
                    self._wake_closed()
            with self.lock:
                if self.core.drain == mode:
                    self.cleared = mode
                    return

    def _wake_closed(self) -> None:
        """Who sleeps in a closed scheduler looks whether anything is left to do."""
        with self.lock:
            if self.core.closed:
                self._wake_all_locked()
                self._tell_left_locked()

    def _give_up(self, jobs: list[Job[Any]], mode: str) -> None:
        if mode == "due":
            for job in jobs:
                attached = job._attached
                if attached is not None and attached.error is not None:
                    _outcome.fail_in_backoff(self, job, attached.error)
        self.cancel_batch(jobs)

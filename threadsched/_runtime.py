"""The lock's user: it joins the thread-free core to workers, waiters and a clock.

Locking
-------
``lock`` guards everything in the block marked so in ``Runtime.__init__``, the core and every job's fields. It is one
``RLock``, entered only as ``with self.lock:`` (see ``_locks``, also for the mark that hot sections set). Under it only
our own memory is changed. Never: tasks, callbacks, hooks, logging, clocks, starting or joining threads, dropping the
last reference to a user's object. Decide under the lock, act outside it.

The order of locks is: a job's condition (where one exists), then ``lock``.

Waiting
-------
Each worker sleeps on a token of its own. ``idle`` is a stack, so the last to fall asleep is the first to be woken. At
most one token stands on ``watch``: that of the *leader*, who sleeps until the head of the delayed heap is due. All
others sleep without a timeout, and an idle pool with nothing delayed makes no wake-up at all.

- A token stands on at most one list, and is released only by whoever took it off.
- A new ready job wakes one sleeper, an idle one rather than the leader.
- A new head of the delayed heap wakes the leader, or makes an idle worker the leader.
- A worker that takes a job wakes the next sleeper if more is ready, and hands the watch on if it had it.
- A worker that finds nothing registers, *looks again*, and only then sleeps. So a wake-up that comes in between,
  be it from a finalizer on this very thread, is either seen or remembered by the token.
"""

from __future__ import annotations

import logging
import contextvars
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import FunctionType
from typing import Any, NoReturn

from threadsched import _exit, _inspect, _locks, _log, _outcome
from threadsched._clock import Clock, VirtualClock
from threadsched._core import Core
from threadsched._errors import (
    BrokenSchedulerError,
    IllegalMoveError,
    InterpreterExitRuntimeError,
    SchedulerClosedError,
)
from threadsched._job import DELAYED, Failure, Job
from threadsched._locks import holds, make_token, make_waker, sleep_on, step_aside
from threadsched._options import Options
from threadsched._policy import BeforeRaisedError, OrderingPolicy, Ranking
from threadsched._records import JobInfo, Reason
from threadsched._worker import CLEAR, CONDITION, IDLE, LEAVE, OUTBOX, TELL, WATCH, Worker, call_hook, current_worker

copy_context = contextvars.copy_context

# Jobs given up in one hold of the lock by a shutdown: enough to be quick, few enough to let others in.
BATCH = 256

# Seconds: two switch intervals, in which a thread that wants the GIL gets it.
TURN = 0.01


class Runtime:
    """A scheduler without its face. Jobs, workers, submitters and hooks hold this, never the ``Scheduler``, so that
    dropping the scheduler is noticed although jobs are pending.
    """

    def __init__(
        self,
        *,
        width: int,
        ranking: Ranking,
        clock: Clock,
        name: str = "threadsched",
        queue: str = "lazy",
        history: int = 1000,
        on_error: Callable[[Job[Any], BaseException], object] | None = None,
        initializer: Callable[[], object] | None = None,
        exit_timeout: float = 10.0,
        stepped: bool = False,
    ) -> None:
        # Set once.
        self.width = width
        self.name = name
        self.clock = clock
        self.now = clock.now
        self.virtual = isinstance(clock, VirtualClock)
        self.on_error = on_error
        self.initializer = initializer
        self.exit_timeout = exit_timeout
        self.stepped = stepped
        # The lock, and the hint of who is about to hold it.
        self.lock = _locks.make_lock()
        self.mark: object = None
        # Guarded by lock.
        self.core = Core(ranking, queue, history, stepped=stepped)
        self.workers: dict[int, Worker] = {}  # number -> worker, from its arrival to its leaving
        self.launched: set[int] = set()  # numbers whose thread was started and has not left
        self.manned = stepped  # every worker was launched: submissions need not look
        self.idle: list[Any] = []  # Stack of tokens.
        self.watch: list[Any] = []  # No token or the leader's.
        self.sleepers: dict[Any, float] = {}  # token -> until when, of tasks in job.sleep()
        self.outbox: deque[Job[Any]] = deque()  # cancelled jobs whose watchers must still be told
        self.clearing = False  # somebody is giving up what a shutdown leaves unstarted
        self.broken: BaseException | None = None
        self.exiting = False  # the door was closed by the interpreter's exit
        self.generation = 0  # one more in each child of a fork
        self.lost = 0  # workers that could not be started at the last try
        self.replaced = 0
        self.last_reading = 0.0  # of the clock, at the last turn
        self.exit_hook: Callable[[], None] | None = None
        # Tokens of threads that wait: for all workers to have left (released by the last), for nothing to be pending
        # or running (by whoever ends the last job), for every worker to be asleep (by the last that falls asleep).
        self.exit_waiters: list[Any] = []
        self.idle_waiters: list[Any] = []
        self.quiet_waiters: list[Any] = []
        self.turn_waiters: list[Any] = []  # ... for the next claim, see let_woken_claim
        self._wake_idle = make_waker(self.idle)
        self._wake_watch = make_waker(self.watch)

    # ---------------------------------------------------------------- in

    def submit(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, options: Options) -> Job[Any]:
        """Accept a job: the hot path, a few C calls long inside the lock."""
        if type(fn) is FunctionType:
            if fn.__code__.co_flags & _CO_COROUTINE:
                _outcome.refuse_coroutine(fn)
        else:
            _outcome.check_task(fn)
        if not self.manned:
            self.man()
        context = copy_context() if options.context else None
        job: Job[Any] = Job(self, fn, args, kwargs or None, options, context or None, self.now())
        core = self.core
        while True:
            ranking = core.ranking
            if ranking.trusted:
                seq = 0
            else:
                with self.lock:
                    seq = job._seq = next(core.numbers)  # a policy of the user's may look at job.seq
            job._key = ranking.key_of(job)
            if self.mark is not None:
                step_aside(self)
            self.mark = job
            with self.lock:
                try:
                    if core.closed or self.broken is not None:
                        self._refuse()
                    if core.ranking is not ranking:
                        continue  # swapped since the key was computed
                    seq = seq or next(core.numbers)
                    if options.id is not None:
                        core.reserve(job, options.id)
                    if core.enter(job, seq):
                        self._new_head_locked()
                    elif self.idle or self.watch:
                        self._wake_locked()
                    # Linearization point of a submission: all before can be undone, nothing comes after.
                    core.pending[seq] = job
                    core.entering = None
                    return job
                except BaseException as error:
                    self._undo_locked(job, options.id)
                    if isinstance(error, BeforeRaisedError):
                        raise error.error from None
                    raise
                finally:
                    if self.mark is job:
                        self.mark = None

    def _refuse(self) -> NoReturn:
        if self.broken is not None:
            raise BrokenSchedulerError(f"the initializer of scheduler {self.name!r} failed") from self.broken
        if self.exiting:
            raise InterpreterExitRuntimeError(f"cannot schedule new futures: the interpreter of {self.name!r} exits")
        raise SchedulerClosedError(f"cannot schedule new futures: scheduler {self.name!r} was shut down")

    def _undo_locked(self, job: Job[Any], id: str | None) -> None:
        """Leave nothing behind of a submission that was broken off: its heap entry is dead, its id free again."""
        core = self.core
        core.entering = None
        if id is not None and core.named.get(id) is job and getattr(job, "_seq", None) not in core.pending:
            core.named.pop(id, None)

    def set_policy(self, policy: OrderingPolicy) -> None:
        """Order pending and future jobs by another policy; keys are computed outside the lock, then all at once."""
        ranking = Ranking(policy)
        keys: dict[int, object] = {}
        missing: list[Job[Any]] = []
        while True:
            # Each round is for what was submitted during the one before, so the rounds shrink.
            for job in missing:
                keys[job._seq] = ranking.key_of(job)
            with self.lock:
                missing = self.core.rerank(ranking, keys)
            if not missing:
                break
        self.log_faults()

    # ---------------------------------------------------------------- wake-ups, lock held

    def _wake_locked(self) -> None:
        """Something became ready: wake one sleeper."""
        if self.idle:
            try:
                self._wake_idle()
                return
            except IndexError:  # a finalizer on this thread was faster
                pass
        if self.watch:
            try:
                self._wake_watch()
            except IndexError:
                pass

    def _new_head_locked(self) -> None:
        """The delayed heap has an earlier head, or lost its leader: somebody must set a new alarm."""
        if self.watch:
            try:
                self._wake_watch()
                return
            except IndexError:
                pass
        if self.idle:
            try:
                self._wake_idle()
            except IndexError:
                pass

    def _wake_all_locked(self) -> None:
        while self.idle or self.watch:
            self._wake_locked()

    def _settled_locked(self) -> None:
        """A job ended: tell who waits for the last one."""
        if self.idle_waiters and not self.core.pending and not self.core.running:
            _locks.release_all(self.idle_waiters)

    # ---------------------------------------------------------------- a worker's hold of the lock

    def turn(self, worker: Worker, settled: Job[Any] | None, result: object, name: str, now: float) -> Job[Any] | None:
        """Settle a finished job, promote what is due, claim the next; or say in ``worker.order`` what to do instead.

        Settling and claiming share one hold, unless the settled job has callbacks or is watched: then the worker
        comes again, so that a slow callback never sits on a claimed job.
        """
        core = self.core
        if self.mark is not None:
            step_aside(self)
        self.mark = worker
        with self.lock:
            try:
                worker.job = None
                self.last_reading = now
                if settled is not None:
                    attached = settled._attached
                    if attached is None:
                        core.finish(settled, result, name, now)
                    elif attached.condition is not None:
                        worker.order = CONDITION
                        return None
                    elif core.finish(settled, result, name, now):
                        _locks.release_all(attached.tokens)
                        if attached.callbacks:
                            worker.order = TELL
                            return None
                if self.outbox:
                    worker.order = OUTBOX
                    return None
                delayed = core.delayed
                moved = core.promote(now) if delayed.lane or delayed.heap else 0
                job = core.claim(now, worker)
                if job is not None:
                    worker.job = job
                    if self.idle or self.watch:
                        self._pass_on_locked(moved)
                    if self.turn_waiters:
                        _locks.release_all(self.turn_waiters)
                    return job
                self._rest_locked(worker, now)
                return None
            finally:
                if self.mark is worker:
                    self.mark = None

    def _pass_on_locked(self, moved: int) -> None:
        """Before running a job: wake who is needed for the rest, and hand the watch on."""
        core = self.core
        ready = len(core.ready)
        for _ in range(min(max(moved, 1), ready)):
            self._wake_locked()
        if len(core.delayed) and not self.watch and self.idle:
            self._new_head_locked()

    def _rest_locked(self, worker: Worker, now: float) -> None:
        """Nothing to claim: decide whether to leave, help, watch or sleep, and register for that."""
        core = self.core
        self._settled_locked()
        if core.closed:
            if not core.pending:
                worker.order = LEAVE
                self._wake_all_locked()
                return
            if not self.clearing and core.drain != "all" and (core.drain == "none" or len(core.delayed)):
                worker.order = CLEAR
                return
        due = core.next_due()
        token = worker.token
        if due is not None and not self.watch:
            worker.order, worker.due = WATCH, due
            place = self.watch
        else:
            worker.order = IDLE
            place = self.idle
        place.append(token)
        # Look again: what a finalizer on this thread did since the first look found nobody to wake.
        if len(core.ready) or core.next_due() != due or (core.closed and not core.pending):
            try:
                place.remove(token)
            except ValueError:
                token.acquire()  # taken off and released meanwhile
            worker.order = ""
            return
        if self.quiet_waiters and self._quiescent_locked(now):
            _locks.release_all(self.quiet_waiters)

    def sleep_as_watch(self, worker: Worker) -> None:
        """Sleep as the leader until the watched job is due or somebody wakes us."""
        due = worker.due
        timeout = None if self.virtual or due is None else due - self.read_clock()
        if sleep_on(worker.token, timeout):
            return
        with self.lock:
            try:
                self.watch.remove(worker.token)
                return
            except ValueError:
                pass
        worker.token.acquire()  # signalled just as the time ran out: that counts as a wake-up

    def read_clock(self) -> float:
        """Return the clock's reading, or the last one if the clock raises."""
        try:
            return self.now()
        except Exception as error:  # the user's clock
            return self.clock_raised(error)

    def clock_raised(self, error: Exception) -> float:
        """Log a clock's failure and go by the last turn's reading: a bad clock must not stop the pool."""
        _log.report(logging.ERROR, "the clock raised %s", _log.describe_error(error), error=error)
        return self.last_reading

    # ---------------------------------------------------------------- ends

    def finish(self, job: Job[Any], result: object, name: str) -> bool:
        """Settle a job as DONE apart from any claim; tells waiters and callbacks."""
        now = self.read_clock()
        return self._settle(job, lambda: self.core.finish(job, result, name, now))

    def fail(self, job: Job[Any], error: BaseException, text: str) -> bool:
        """Settle a job as FAILED; tells waiters, callbacks and ``on_error``."""
        failure = Failure(job, error)
        now = self.read_clock()
        spoils = (job._fn, job._args, job._kwargs, job._context)
        won = self._settle(job, lambda: self.core.fail(job, failure, text, now))
        del spoils
        if not won:
            failure.seen = True
        elif self.on_error is not None:
            call_hook("on_error", self.on_error, job, error)
        return won

    def stop(self, job: Job[Any]) -> bool:
        """Settle a running job as CANCELLED."""
        name, now = job.name, self.read_clock()
        spoils = (job._fn, job._args, job._kwargs, job._context)
        won = self._settle(job, lambda: self.core.stop(job, name, now))
        del spoils
        return won

    def _settle(self, job: Job[Any], move: Callable[[], bool]) -> bool:
        """Make a terminal move and tell everybody; under the job's condition if it has one."""
        while True:
            attached = job._attached
            condition = None if attached is None else attached.condition
            if condition is None:
                with self.lock:
                    attached = job._attached
                    if attached is not None and attached.condition is not None:
                        continue  # made just now: take it first
                    won = move()
                    if won and attached is not None:
                        _locks.release_all(attached.tokens)
                    self._settled_locked()
            else:
                with condition:
                    with self.lock:
                        won = move()
                        if won and attached is not None:
                            _locks.release_all(attached.tokens)
                        self._settled_locked()
                    if won:
                        _outcome.tell_waiters(job, condition)
            if won:
                self.run_callbacks(job)
            return won

    def attempt_failed(self, job: Job[Any], error: BaseException) -> None:
        """Decide what comes after an attempt that raised: another one, FAILED, or CANCELLED."""
        _outcome.attempt_failed(self, job, error)

    def retry(self, job: Job[Any], run_at: float, key: object, error: BaseException, text: str) -> bool:
        """RUNNING → PENDING if a retry is still wanted."""
        with self.lock:
            core = self.core
            attached = job._attach()
            if attached.no_retry or core.drain != "all" or core.running.get(job._seq) is not job:
                return False
            attached.trail.append(f"attempt {job._attempts}: {text}")
            attached.error = error
            if core.retry(job, run_at, key):
                self._new_head_locked()
            return True

    def cancel(self, job: Job[Any]) -> bool:
        """Cancel a pending job; True only for the call that did it. Of a running one, forbid further attempts."""
        if self.cancel_batch([job]):
            return True
        with self.lock:
            if job._state == "RUNNING":
                job._attach().no_retry = True
        return False

    def cancel_batch(self, jobs: list[Job[Any]]) -> int:
        """Cancel those that are pending, in one hold of the lock; return how many. Tells whoever watches them."""
        named = [(job, job.name) for job in jobs]
        now = self.read_clock()
        spoils = []
        with self.lock:
            core = self.core
            for job, name in named:
                taken = core.cancel(job, name, now)
                if taken is None:
                    continue
                spoils.append(taken)
                attached = job._attached
                if attached is not None:
                    _locks.release_all(attached.tokens)
                    self.outbox.append(job)
            self._settled_locked()
            if core.closed and not core.pending:
                self._wake_all_locked()
        cancelled = len(spoils)
        del spoils  # their last references, now that the lock is free
        self.drain_outbox()
        return cancelled

    def drain_outbox(self) -> None:
        """Tell the watchers of cancelled jobs. Each job stays in the outbox until it is told, so that an interrupt in
        between loses nothing; workers drain it too.
        """
        if self.outbox and holds(self.lock):
            # We are a handler or finalizer that interrupted the scheduler on this thread: callbacks are not for here.
            with self.lock:
                self._wake_locked()
            return
        while True:
            try:
                job = self.outbox[0]
            except IndexError:
                return
            attached = job._attached
            condition = None if attached is None else attached.condition
            if condition is not None:
                if holds(condition):
                    # We interrupted wait() itself: another thread must tell.
                    _locks.start_thread(self.drain_outbox, (), f"{self.name} (telling)")
                    return
                with condition:
                    if job._tell_cancelled():
                        _outcome.tell_waiters(job, condition)
            try:
                self.outbox.remove(job)
            except ValueError:  # somebody else told it at the same time
                continue
            self.run_callbacks(job)

    def run_callbacks(self, job: Job[Any]) -> None:
        """Call each done-callback once, in the order they were added. No lock held."""
        attached = job._attached
        while attached is not None and attached.callbacks:
            try:
                callback = attached.callbacks.pop(0)
            except IndexError:
                return
            call_hook(f"a done-callback of job {job.id!r}", callback, job)

    def give_up_rest(self) -> None:
        """Do what a shutdown's mode says with the jobs that will not be started, a batch per hold of the lock.

        One thread does it; a worker takes over if that one is interrupted.
        """
        if holds(self.lock):
            return  # inside a handler or finalizer: the workers were woken, and do it
        while True:
            with self.lock:
                mode = self.core.drain
                if self.clearing or mode == "all":
                    return
                self.clearing = True
                jobs = list(self.core.pending.values())
            try:
                if mode == "due":
                    jobs = [job for job in jobs if job._place is DELAYED]
                for start in range(0, len(jobs), BATCH):
                    self._give_up(jobs[start : start + BATCH], mode)
            finally:
                with self.lock:
                    self.clearing = False
                    if self.core.closed:
                        self._wake_all_locked()
            if self.core.drain == mode:
                return

    def _give_up(self, jobs: list[Job[Any]], mode: str) -> None:
        if mode == "due":
            for job in jobs:
                attached = job._attached
                if attached is not None and attached.error is not None:
                    _outcome.fail_in_backoff(self, job, attached.error)
        self.cancel_batch(jobs)

    # ---------------------------------------------------------------- Future's face

    def add_callback(self, job: Job[Any], fn: Callable[[Any], object]) -> None:
        """Register a done-callback, or call it now."""
        if not callable(fn):
            raise TypeError(f"a done-callback must be callable, not {fn!r}")
        with self.lock:
            if not job.done():
                job._attach().callbacks.append(fn)
                return
            if isinstance(job._result, Failure):
                job._result.seen = True
        call_hook(f"a done-callback of job {job.id!r}", fn, job)

    def condition_of(self, job: Job[Any]) -> _locks.JobCondition:
        """Return the job's condition, made on first use."""
        with self.lock:
            attached = job._attach()
            if attached.condition is None:
                attached.condition = _locks.JobCondition()
            return attached.condition

    def wait_for_end(self, job: Job[Any], timeout: float | None) -> bool:
        """Sleep until the job has ended; False if ``timeout`` real seconds passed first."""
        token = make_token()
        if self.mark is not None:
            step_aside(self)
        self.mark = token
        with self.lock:
            try:
                if job.done():
                    return True
                tokens = job._attach().tokens
                tokens.append(token)
            finally:
                if self.mark is token:
                    self.mark = None
        return self._wait_on(token, tokens, timeout)

    def _wait_on(self, token: Any, registry: list[Any], timeout: float | None) -> bool:
        """Sleep on a registered token and take it off its list again, whatever ends the sleep."""
        woken = False
        try:
            if holds(self.lock):
                raise RuntimeError("cannot wait here: this code interrupted the scheduler on its own thread")
            if timeout is None:
                woken = sleep_on(token, None)
            else:
                deadline = monotonic() + timeout
                while not (woken := sleep_on(token, deadline - monotonic())) and monotonic() < deadline:
                    pass  # a wait longer than the platform can express is made in pieces
        finally:
            if not woken:
                with self.lock:
                    if token in registry:
                        registry.remove(token)
                    else:
                        woken = True  # released just as the time ran out
        return woken

    def claim_for_caller(self, job: Job[Any]) -> bool:
        """``job.claim()``."""
        now = self.read_clock()
        with self.lock:
            return self.core.claim_one(job, now)

    def settle_claimed(self, job: Job[Any], result: object, error: BaseException | None) -> None:
        """``set_result`` and ``set_exception``, for who claimed the job."""
        if job._state != "RUNNING" or job._place is not None:
            raise IllegalMoveError(f"{job!r} is not claimed by its caller")
        if error is not None:
            won = self.fail(job, error, _log.describe_error(error))
        else:
            spoils = (job._fn, job._args, job._kwargs, job._context)
            won = self.finish(job, result, job.name)
            del spoils
        if not won:
            raise IllegalMoveError(f"{job!r} was settled by somebody else")

    def request_cancel(self, job: Job[Any]) -> bool:
        """Cancel if pending; else set the token that the task may look at, and wake it from ``sleep()``."""
        if self.cancel(job):
            return True
        with self.lock:
            if job._state != "RUNNING":
                return False
            attached = job._attach()
            attached.stop = attached.no_retry = True
            if attached.sleeper is not None and self.sleepers.pop(attached.sleeper, None) is not None:
                attached.sleeper.release()
            return True

    def sleep(self, job: Job[Any], seconds: float) -> bool:
        """``job.sleep()``: on a virtual clock until it is moved, else in real time."""
        worker = current_worker()
        if worker is None or worker.job is not job:
            raise RuntimeError(f"{job!r} can sleep inside its own task only")
        until = self.read_clock() + seconds
        while not job.cancel_requested:
            left = until - self.read_clock()
            if left <= 0:
                return True
            token = make_token()
            try:
                with self.lock:
                    attached = job._attach()
                    attached.sleeper = token
                    self.sleepers[token] = until
                    if attached.stop:
                        return False
                    if self.quiet_waiters and self._quiescent_locked(until - left):
                        _locks.release_all(self.quiet_waiters)
                sleep_on(token, None if self.virtual else left)
            finally:
                with self.lock:
                    self.sleepers.pop(token, None)
                    attached.sleeper = None
        return False

    # ---------------------------------------------------------------- waiting for a state

    def wait_idle(self, timeout: float | None) -> bool:
        """Sleep until nothing is pending or running."""
        token = make_token()
        with self.lock:
            if not self.core.pending and not self.core.running:
                return True
            self.idle_waiters.append(token)
        return self._wait_on(token, self.idle_waiters, timeout)

    def wait_left(self, timeout: float | None) -> bool:
        """Sleep until every worker has left."""
        token = make_token()
        with self.lock:
            if not self.launched:
                return True
            self.exit_waiters.append(token)
        return self._wait_on(token, self.exit_waiters, timeout)

    def _quiescent_locked(self, now: float) -> bool:
        """Whether every worker sleeps and nothing is due at ``now``."""
        asleep = len(self.idle) + len(self.watch) + len(self.sleepers)
        due = self.core.next_due()
        return (
            asleep >= len(self.launched)
            and not len(self.core.ready)
            and (due is None or due > now)
            and not self.outbox
            and all(until > now for until in self.sleepers.values())
        )

    def next_due(self) -> float | None:
        """Return when the next job is due or the next ``job.sleep()`` over (for a virtual clock)."""
        with self.lock:
            times = list(self.sleepers.values())
            due = self.core.next_due()
        if due is not None:
            times.append(due)
        return min(times, default=None)

    def look_again(self) -> None:
        """Make the leader read the clock, and end the sleeps that are over (for a virtual clock)."""
        now = self.read_clock()
        with self.lock:
            if len(self.core.delayed):
                self._new_head_locked()
            for token, until in list(self.sleepers.items()):
                if until <= now and self.sleepers.pop(token, None) is not None:
                    token.release()

    def wait_quiescent(self, timeout: float) -> bool:
        """Sleep until every worker sleeps and nothing is due (for a virtual clock)."""
        deadline = monotonic() + timeout
        while True:
            now = self.read_clock()
            token = make_token()
            with self.lock:
                if self._quiescent_locked(now):
                    return True
                self.quiet_waiters.append(token)
            if not self._wait_on(token, self.quiet_waiters, deadline - monotonic()):
                return False

    def busy(self) -> str:
        """Name what runs."""
        with self.lock:
            running = list(self.core.running.values())
        return ", ".join(repr(job) for job in running) or f"a worker of {self.name!r}"

    def on_worker(self) -> bool:
        """Say whether the calling thread is one of our workers."""
        worker = current_worker()
        return worker is not None and worker.runtime is self

    # ---------------------------------------------------------------- the pool

    def man(self, *, replacing: bool = False) -> None:
        """Start the workers that are missing; raise if there is none then.

        Workers count themselves in as their first act, so a thread started twice for one number, after an interrupted
        start, finds its place taken and ends.
        """
        if not replacing and (self.core.closed or self.broken is not None):
            self._refuse()
        failure: BaseException | None = None
        while failure is None:
            with self.lock:
                missing = [number for number in range(self.width) if number not in self.launched]
                if not missing:
                    self.manned, self.lost = True, 0
                    break
                number = missing[0]
                self.launched.add(number)
            try:
                worker = Worker(self, number)
                _locks.start_thread(worker.main, (), worker.name)
            except BaseException as error:
                with self.lock:
                    if number not in self.workers:
                        self.launched.discard(number)
                        self.lost = len(missing)
                failure = error
        _exit.cover_child_process(self)
        if failure is None:
            return
        with self.lock:
            alive = len(self.launched)
        if not alive or not isinstance(failure, RuntimeError):
            raise failure
        _log.report(
            logging.WARNING,
            "scheduler %r runs with %d of %d workers, for a thread could not be started: %s",
            self.name, alive, self.width, _log.describe_error(failure),
        )  # fmt: skip

    def arrive(self, worker: Worker) -> bool:
        """Count a worker in; False if its number is taken or its pool is not here any more."""
        with self.lock:
            if worker.generation != self.generation or worker.number in self.workers:
                return False
            self.workers[worker.number] = worker
            self.launched.add(worker.number)
            return True

    def initialise(self) -> bool:
        """Run the user's initializer; if it raises, break the scheduler: nothing can run, so nothing may wait."""
        if self.initializer is None:
            return True
        try:
            self.initializer()
            return True
        except BaseException as error:
            self.break_down(error)
            return False

    def break_down(self, error: BaseException) -> None:
        """Refuse submissions from now on and fail what is pending."""
        with self.lock:
            first = self.broken is None
            self.broken = self.broken or error
            self.core.closed = self.core.halted = True
            doomed = list(self.core.pending.values())
        if first:
            _log.report(
                logging.CRITICAL,
                "the initializer of scheduler %r raised %s: it runs nothing any more",
                self.name, _log.describe_error(error), error=error,
            )  # fmt: skip
        for job in doomed:
            broken = BrokenSchedulerError(f"the initializer of scheduler {self.name!r} failed")
            broken.__cause__ = error
            self.fail(job, broken, _log.describe_error(broken))
        with self.lock:
            self._wake_all_locked()

    def worker_died(self, worker: Worker, error: BaseException) -> None:
        """Settle what a dying worker had in hand, make the structures whole, and start its successor."""
        if worker.generation != self.generation:
            return
        _outcome.worker_died(self, worker, error)

    def leave(self, worker: Worker) -> None:
        """Count a worker out; the last one tells those who wait for that."""
        with self.lock:
            if worker.generation != self.generation:
                return
            if self.workers.get(worker.number) is worker:
                del self.workers[worker.number]
                self.launched.discard(worker.number)
            last = not self.launched
            if last:
                _locks.release_all(self.exit_waiters)
        self.drain_outbox()
        if last and self.core.closed:
            _exit.forget(self)

    def start_afresh(self) -> list[Job[Any]]:
        """In the child of a fork, lock held: forget workers, waiters and jobs; return the jobs. Same rules, no content."""
        jobs = [*self.core.running.values(), *self.core.pending.values()]
        self.generation += 1
        self.core.reset()
        self.workers.clear()
        self.launched.clear()
        self.sleepers.clear()
        self.outbox.clear()
        for registry in (
            self.idle,
            self.watch,
            self.exit_waiters,
            self.idle_waiters,
            self.quiet_waiters,
            self.turn_waiters,
        ):
            registry.clear()
        self.mark = None
        self.manned = self.stepped
        self.clearing = False
        self.lost = self.replaced = 0
        return jobs

    def log_faults(self) -> None:
        """Report what a policy's ``before`` raised outside of a submission."""
        faults = self.core.ranking.faults
        while faults:
            error = faults.pop()
            _log.report(logging.ERROR, "the policy's before() raised %s; submission order was used instead",
                        _log.describe_error(error), error=error)  # fmt: skip

    # ---------------------------------------------------------------- closing

    def let_woken_claim(self) -> None:
        """Before a shutdown that cancels: let a worker that was woken for a job have it.

        Without this, submissions followed by that shutdown on one thread would be cancelled to the last, although
        workers idle: they are awake, and merely had no turn at the GIL.
        """
        token = make_token()
        with self.lock:
            asleep = len(self.idle) + len(self.watch) + len(self.sleepers)
            at_work = sum(worker.job is not None for worker in self.workers.values())
            if not len(self.core.ready) or asleep + at_work >= len(self.launched):
                return
            self.turn_waiters.append(token)
        sleep_on(token, TURN)

    def close(self, drain: str) -> None:
        """Close the door and sharpen the mode; safe at any instruction. The rest is given up by whoever comes first,
        the caller or a worker.
        """
        now = self.read_clock()
        with self.lock:
            core = self.core
            if drain == "due" and core.drain == "all":
                core.promote(now)  # what is due now still runs
            core.close(drain)
            self._wake_all_locked()

    def info_of(self, job: Job[Any]) -> JobInfo:
        """``job.info()``."""
        return _inspect.info_of(self, job)

    def explain(self, job: Job[Any]) -> list[Reason]:
        """``job.explain()``."""
        return _inspect.explain(self, job)


_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE

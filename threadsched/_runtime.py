"""The lock's user on the hot path: submissions, and a worker's turn at the lock.

A :class:`Runtime` is a scheduler without its face, assembled from one room for each concern: ``_shared`` (the lock,
what it guards, wake-ups), ``_waiting``, ``_ending``, ``_helping``, ``_awaiting``, ``_pool``, ``_watcher``, and this
one, which joins the thread-free core to the workers. The rules of the lock stand at the top of ``_shared``.
"""

from __future__ import annotations

import contextvars
from functools import partial
from types import FunctionType
from typing import Any

from threadsched import _dependencies, _full, _inspect, _locks, _outcome, _reorder, _time_limits
from threadsched._core import IdTakenError
from threadsched._job import DELAYED, PENDING, READY, Job, new_job
from threadsched._locks import step_aside
from threadsched._options import Options
from threadsched._policy import BY_PRIORITY, BeforeRaisedError, OrderingPolicy
from threadsched._records import JobInfo, Reason
from threadsched._series import Run
from threadsched._time_limits import UnwatchedError
from threadsched._watcher import Watching
from threadsched._worker import AGAIN, CLEAR, CONDITION, IDLE, LEAVE, OUTBOX, TELL, WATCH, Worker

copy_context = contextvars.copy_context


class Runtime(Watching):
    """A scheduler without its face.

    Jobs, workers, submitters and hooks hold this, never the ``Scheduler``, so that dropping the scheduler is noticed
    although jobs are pending.
    """

    __slots__ = ()

    def submit(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, delay: float
    ) -> Job[Any]:
        """Accept a job: the hot path, a few C calls long inside the lock.

        It is the plain case of :meth:`enter`, which what has to be asked about goes through, job or scheduler.
        """
        if type(fn) is not FunctionType and not callable(fn):
            raise _outcome.no_task(fn)
        core = self.core
        ranking = core.door
        ahead = None
        if self.idle and not (delay or ranking is None or options.special or self.mark or self.coming):
            ahead = self._wake_ahead()
        job: Job[Any] = new_job(Job)
        job._runtime = self
        job._fn = partial(fn, **kwargs) if kwargs else fn
        job._args = args
        job._result = (copy_context() or None) if options.context else None
        job._options = options.lasting
        job._priority = priority = options.priority
        job._state = PENDING
        job._attempts = 0
        job._started_at = job._attached = None
        clock = self.now
        job._submitted_at = now = clock()
        if delay:
            job._run_at = now + delay
            job._place = DELAYED
        else:
            job._run_at = now
            job._place = READY
        if ranking is None or options.special:
            return self.enter(job, options.delayed(delay))
        key_of = ranking.key_of
        key = job._key = priority if key_of is BY_PRIORITY else key_of(job)  # by priority in the main
        if self.mark is not None:
            step_aside(self)
        self.mark = job
        with self.lock:
            outer = core.entering
            try:
                if core.door is ranking and self.manned:
                    seq = next(core.numbers)
                    if delay:
                        if core.enter_delayed(job, seq):
                            self._new_head_locked()
                    else:
                        # Core.enter(), without its call.
                        core.entering = job
                        core.latest = job._seq = seq
                        ready = core.ready
                        level = ready.level
                        if key is ready.open_rank and level and level[-1] < seq:
                            level.append(seq)
                        else:
                            ready.push((key, seq))
                        if (self.idle or self.watch) and (ahead is None or ahead is not self.coming):
                            self._wake_locked()
                    # Linearization point of a submission: all before can be undone, nothing comes after.
                    core.pending[seq] = job
                    core.entering = outer
                    return job
            except BaseException:
                self._withdraw_locked(job, outer)
                raise
            finally:
                if self.mark is job:
                    self.mark = None
        return self.enter(job, options.delayed(delay))

    def enter(self, job: Job[Any], options: Options, *, held: bool = False) -> Job[Any]:
        """Accept a job that was made, whatever it is and however the scheduler stands.

        ``held`` is one that a full queue held up before, and for which there is a place now (see ``_full``).
        """
        if options.special and not held:
            self._dress(job, options)
        core = self.core
        while True:
            if not self.manned:
                self.man()
            ranking = core.ranking
            seq = 0
            if not ranking.trusted:
                with self.lock:
                    ranking.refuse_in_before()
                    seq = job._seq = next(core.numbers)  # a policy of the user's may look at job.seq
            job._key = ranking.key_of(job)
            if self.mark is not None:
                step_aside(self)
            self.mark = job
            with self.lock:
                outer = core.entering
                try:
                    if core.closed:  # as one whose initializer failed is, too
                        self._refuse()
                    if core.ranking is not ranking:
                        continue  # swapped since the key was computed
                    if not self.launched and not self.stepped:
                        self.manned = False
                        continue  # the start that we relied on failed on another thread
                    # A run of a schedule is never held up: it goes by its own times, one at a time.
                    gate = core.gate
                    if gate is not None and type(options.timing) is not Run and not gate.admits(job, core.pending):
                        break  # full
                    if not seq:
                        seq = next(core.numbers)
                    if options.id is not None:
                        core.reserve(job, options.id)
                    if core.enter(job, seq):
                        self._new_head_locked()
                    elif (self.idle or self.watch) and job._place is READY:
                        self._wake_locked()
                    core.pending[seq] = job  # Linearization point, as in submit().
                    core.entering = outer
                    return job
                except BaseException as error:
                    self._withdraw_locked(job, outer)
                    if isinstance(error, UnwatchedError):
                        self.manned = False
                        continue
                    if isinstance(error, IdTakenError):
                        raise  # before it entered anything; whoever catches this may go on with the job
                    # Without a number it was refused before it entered, and no list has it.
                    if job._attached is not None and hasattr(job, "_seq") and seq not in core.pending:
                        _time_limits.detach(job)
                        _dependencies.detach(job)
                    if isinstance(error, BeforeRaisedError):
                        raise error.error from None
                    raise
                finally:
                    if self.mark is job:
                        self.mark = None
        if held:
            raise _full.StillFullError
        return _full.make_room(self, job, options)

    def _withdraw_locked(self, job: Job[Any], outer: Job[Any] | None) -> None:
        """Undo a submission that was broken off; begun again should another exception meet it there."""
        core = self.core
        try:
            core.withdraw(job, outer)
            if core.gate is not None:
                core.gate.withdraw(job, core.pending)
        except BaseException:
            core.withdraw(job, outer)
            if core.gate is not None:
                core.gate.withdraw(job, core.pending)
            raise

    def _dress(self, job: Job[Any], options: Options) -> None:
        """Give a new job what few jobs have."""
        if options.deadline is not None:
            deadline = options.deadline
            job._deadline = deadline.on_clock(job._submitted_at, self.wall.look(self) if deadline.wall else 0.0)
        if options.after:
            _dependencies.attach(self, job, options)
        if options.timing is not None:
            options.timing.attach(self, job)
        if options.timeout is not None or options.expires is not None:
            expires = options.expires
            offset = self.wall.look(self) if expires is not None and expires.wall else 0.0
            _time_limits.attach(self.core.time_limits, job, options.timeout, expires, offset)
            self.watch_limits()
        if options.limits:  # last of the rules: it takes something when it allows
            attached = job._attach()
            attached.rules = (*attached.rules, self.limits.group(options.limits))

    def set_policy(self, policy: OrderingPolicy) -> None:
        """Order pending and future jobs by another policy."""
        _reorder.set_policy(self, policy)

    def set_priority(self, job: Job[Any], priority: float) -> bool:
        """``job.set_priority()``."""
        return _reorder.set_priority(self, job, priority)

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
                worker.job = self.coming = None
                self.last_reading = now
                core.entering = None  # heals what an interrupted submission may have left
                plain = None
                if settled is not None:
                    attached = settled._attached
                    if attached is None:
                        plain = settled
                    else:
                        worker.settled = settled  # until the next turn: should this thread die before everybody is told
                        late = worker.attempt is not None and worker.attempt.late(settled, now)
                        if late or attached.condition is not None:
                            worker.order = CONDITION
                            return None
                        # Who waits is woken already: to come takes them longer than all that is left of this hold.
                        _locks.release_all(attached.tokens)
                        if core.finish(settled, result, name, now):
                            worker.attempt = None
                            _spoil, attached.error = attached.error, None  # dropped when this frame ends, unlocked
                            if attached.callbacks:
                                self._settled_locked()
                                worker.order = TELL
                                return None
                        worker.settled = None
                moved = 0
                if core.timed or core.outbox or core.ranking.faults:
                    if core.alarms.things:
                        core.ring(now)
                    if core.outbox or core.ranking.faults:
                        worker.order = OUTBOX if plain is None else CONDITION
                        return None
                    moved = core.promote(now)
                job = core.turn(plain, result, name, now, worker)
                if job is not None:
                    if job is plain:  # somebody broke in and attached something to it
                        return self.turn(worker, settled, result, name, now)
                    worker.job = job
                    if self.idle or self.watch or self.helpers:
                        ready = core.ready
                        if ready.level or ready.lane or ready.heap or core.timed or core.keepers:
                            self._pass_on_locked(moved)
                    if self.turn_waiters:
                        _locks.release_all(self.turn_waiters)
                    return job
                if settled is not None:
                    if core.released or self.idle_waiters:
                        self._tell_idle_locked()
                    if core.keepers:
                        self._mind_keepers_locked(resting=True)
                    worker.order = AGAIN
                    return None
                self._rest_locked(worker, now)
                return None
            finally:
                if self.mark is worker:
                    self.mark = None

    def lie_down(self, worker: Worker, now: float) -> None:
        """Let a worker rest whose last turn found nothing after it had settled a job, and who holds nothing now.

        ``now`` is the reading of that turn. Anything that came meanwhile means another turn.
        """
        core = self.core
        if self.mark is not None:
            step_aside(self)
        self.mark = worker
        with self.lock:
            try:
                worker.order = ""
                if not core.outbox and not core.ranking.faults:
                    self._rest_locked(worker, now)
            finally:
                if self.mark is worker:
                    self.mark = None

    def _rest_locked(self, worker: Worker, now: float) -> None:
        """Nothing to claim: decide whether to leave, help, watch or sleep, and register for that."""
        core = self.core
        if core.released or self.idle_waiters:
            self._tell_idle_locked()
        if core.keepers:
            self._mind_keepers_locked(resting=True)
        if core.closed:
            if not core.pending:
                worker.order = LEAVE
                self._wake_all_locked()
                return
            if self._unclear_locked():
                worker.order = CLEAR
                return
        due = core.next_due() if core.timed else None
        token = worker.token
        if due is None:
            worker.order = IDLE
            place = self.idle
        elif not self.watch:
            worker.order, worker.due = WATCH, due
            self.watched = due
            place = self.watch
        else:
            worker.order = self._deputise_locked(worker)
            place = self.idle
        place.append(token)
        # Look again: what a finalizer on this thread did since the first look found nobody to wake.
        ready = core.ready
        if (
            ((ready.level or ready.lane or ready.heap) and not core.halted)
            or (core.timed and core.next_due() != due)
            or (core.closed and not core.pending)
        ):
            try:
                place.remove(token)
            except ValueError:
                token.acquire()  # taken off and released meanwhile
            worker.order = ""
            return
        if self.quiet_waiters and self._quiescent_locked(now):
            _locks.release_all(self.quiet_waiters)

    def _deputise_locked(self, worker: Worker) -> str:
        """Make a worker that falls asleep beside the leader its deputy, unless there is one; return its order.

        It sleeps until the one after the head is due. So the leader, when it takes the head, need wake nobody to set
        the next alarm, which would delay that job by a system call and a fight for the interpreter.
        """
        deputy = self.deputy
        if self.virtual or (
            deputy is not None and deputy is not worker and deputy.order is WATCH and deputy.token in self.idle
        ):
            return IDLE
        second = self.core.delayed.second()
        if second is None:
            return IDLE
        self.deputy, worker.due = worker, second[0]
        return WATCH

    def close(self, drain: str) -> None:
        """Close the door and sharpen the mode; safe at any instruction.

        The rest is given up by whoever comes first, the caller or a worker.
        """
        now = self.read_clock()
        with self.lock:
            if drain == "due" and self.core.drain == "all":
                self.due_until = now  # what was due by now still runs
            self.core.close(drain)
            dropped = list(self.core.series.values())
            self._wake_all_locked()
        for series in dropped:
            series.leave(self)

    def pause(self) -> None:
        """Start nothing any more; what runs goes on, and so does time."""
        with self.lock:
            self.core.pause(True)

    def resume(self) -> None:
        """Start jobs again, and wake as many workers as there are jobs for."""
        with self.lock:
            self.core.pause(False)
            for _ in range(min(len(self.core.ready), len(self.idle) + len(self.watch))):
                self._wake_locked()
            self._ring_helpers_locked()
            if self.core.alarms.things:
                self._new_head_locked()  # runs fell due meanwhile

    def info_of(self, job: Job[Any]) -> JobInfo:
        """``job.info()``."""
        return _inspect.info_of(self, job)

    def explain(self, job: Job[Any]) -> list[Reason]:
        """``job.explain()``."""
        return _inspect.explain(self, job)

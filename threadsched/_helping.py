"""Helping: a worker that waits for a job of its own scheduler runs that job right there, so nested waits end.

**What it runs.** The job it waits for, or an open parent of that one, and nothing else: anything else could take long,
or wait for this very thread. Such a job is claimed like any other, runs in its own context, settles like any other.

**When there is nothing to run** (the job is delayed, in backoff, held back, or runs elsewhere) the worker parks: its
*bell* stands among the job's waiters and in ``Shared.helpers``. Whoever makes the job ready wakes an idle worker, and
rings for the helper if there is none. If nobody watches the delayed heap, a helper stands in and sleeps until its head
is due; so a delayed job starts on time though every worker waits.

A thread that was written off (see ``_watcher``) does not help and is not rung for: it merely waits.

**What could never end is refused.** Before it waits, it is followed to its end: a running job leads to what its thread
is parked for or what its coroutine awaits, a pending one to its open parents. If that leads back to this thread, the
wait gets :class:`DeadlockError` and nothing else changes. Whoever would close a ring is told.

This code assumes: a job in ``running`` whose ``_place`` is a worker stands on the stack of that thread, or is a
coroutine on its loop. Locking: as everywhere; the names of the jobs are asked for outside the lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from threadsched import _coroutines, _locks, _outcome, _worker
from threadsched._ending import Ending
from threadsched._errors import DeadlockError, NestingError
from threadsched._job import DELAYED, READY, WAITING, Job, task_name
from threadsched._worker import Worker, current_job, current_worker, own_context

if TYPE_CHECKING:
    from threadsched._shared import Shared
    from threadsched._time_limits import Attempt

# Jobs on one thread, one waiting for the next. Each costs about four frames of the interpreter's 1000.
DEPTH = 100


class Bell:
    """What wakes a parked helper; it may be rung any number of times.

    It stands on several lists at once, so unlike a token it must bear being released by two of them.
    """

    __slots__ = ("due", "job", "queue", "runtime", "task", "worker")

    sleeps = True  # a thread does, so it can stand in for the watch

    def __init__(self, runtime: Shared, worker: Worker, job: Job[Any]) -> None:
        self.runtime = runtime
        self.worker = worker
        self.job = job  # what it waits for
        self.task: Job[Any] | None = None  # what it claims, runs and settles meanwhile; the thread's own
        self.due: float | None = None  # when it stands in for the watch: until when to sleep
        self.queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def watches(self, due: float | None) -> bool:
        """Whether it will look by itself when that is due; only the one that stands in does. Lock held."""
        return False

    def locked(self) -> bool:
        """As a token: whether a release would do anything."""
        return True

    def release(self) -> None:
        """Wake the helper, which from now on does not count as asleep. Lock held."""
        self.queue.put(None)
        self.runtime.helpers.pop(id(self), None)
        if self.runtime.stand_in is self:
            self.runtime.stand_in = None

    def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
        """Sleep until rung."""
        try:
            self.queue.get(blocking, None if timeout < 0 else timeout)
        except queue.Empty:
            return False
        return True

    def wanted(self) -> bool:
        """Whether there is something ready that this helper may run. Lock held."""
        return any(one._place is READY or could_start(one) for one in needed(self.job))


def needed(job: Job[Any]) -> Iterator[Job[Any]]:
    """Give the job, and those that have to end before it may start, as far as they are pending. Lock held."""
    seen = set()
    stack = [job]
    while stack:
        one = stack.pop()
        if one._state == "PENDING" and one._seq not in seen:
            seen.add(one._seq)
            yield one
            stack += open_parents(one)


def open_parents(job: Job[Any]) -> list[Job[Any]]:
    """Return the jobs whose end a job waits for: a rule that knows such has them in a dict ``own``. Lock held."""
    if job._attached is None:
        return []
    return [parent for rule in job._attached.rules for parent in list(getattr(rule, "own", {}).values())]


def is_due(job: Job[Any], now: float) -> bool:
    """Whether a pending job only needs somebody to run it. Lock held."""
    place = job._place
    return place is READY or (place is DELAYED and job._run_at <= now) or could_start(job)


def could_start(job: Job[Any]) -> bool:
    """Whether a job could start past a line in which nobody before it comes forward. Lock held."""
    return job._place is WAITING and bool(job._runtime.core.could_start(job))


class Helping(Ending):
    """The room of workers that wait for jobs."""

    __slots__ = ()

    def help(self, job: Job[Any]) -> None:
        """Before the calling thread waits for a job without a timeout: if it is a worker, see that the job ends.

        Returns when the job has ended, or at once on any other thread.

        Raises:
            DeadlockError: no thread could ever end this wait.
            NestingError: too many jobs wait on this thread already.
            RuntimeError: inside a running event loop, for a coroutine: it would have to run on that very loop.
        """
        worker = current_worker()
        if worker is None or worker.runtime is not self or worker.job is None:
            self._refuse_between_ticks(job)
            return
        _coroutines.refuse_to_block(job)
        waiter, before, bell = current_job() or worker.job, worker.job, Bell(self, worker, job)
        depth, attempt = worker.depth, worker.attempt
        result: Any = None
        try:
            self.note_wait(waiter, job)
            # From the caller's task to the one that is run here there are two frames: result(), and this.
            while (task := self._next_for(bell, waiter)) is not None:
                fn, args, context = task._fn, task._args, own_context(task)
                worker.job = task
                try:
                    result = context.run(fn, *args)
                    if type(result) is CoroutineType:
                        result = _coroutines.run(worker, result, context)
                except BaseException as error:  # as on the worker's own round
                    worker.job = None
                    self.attempt_failed(task, error, worker.attempt)
                else:
                    worker.job = None
                    self.finish(task, result, task_name(fn), worker.attempt)
                worker.attempt = attempt
                bell.task = None
                self._come_back(worker, before, task)
                fn = args = context = result = task = None  # type: ignore[assignment]
        except BaseException as error:
            right, worker.attempt = worker.attempt, attempt
            self._struck(bell, before, depth, error, right)
            raise
        finally:
            try:
                self._stop_waiting(bell, waiter)
            except BaseException:  # struck in there: it may be done twice
                self._stop_waiting(bell, waiter)
                raise
            finally:
                # An error's traceback may hold this frame.
                del job, waiter, before, attempt, bell, worker

    def _refuse_between_ticks(self, job: Job[Any]) -> None:
        if self.stepped and threading.get_ident() == self.ticker and not job.done():
            raise DeadlockError(f"{job!r} cannot end while this thread waits for it: call tick() first")

    def _come_back(self, worker: Worker, before: Job[Any], task: Job[Any]) -> None:
        """Go on as the job that waited, after another one was run on this thread."""
        worker.job = before
        with self.lock:
            worker.depth -= 1
            if task.done():  # else it was retried, and may have been claimed again since
                self.core.left_behind.discard(task._seq)
        if worker.generation != self.generation:
            raise RuntimeError(f"{task!r} came back in the child of a fork, where its scheduler is not")

    def _struck(self, bell: Bell, before: Job[Any], depth: int, error: BaseException, right: Attempt | None) -> None:
        """The wait ends by an exception: leave the thread as it was, and no job on it that nobody runs."""
        worker, task = bell.worker, bell.task
        worker.job, bell.task = before, None
        with self.lock:
            worker.depth = depth
        if task is not None:
            self.salvage(worker, task, error, right)

    def salvage(self, worker: Worker, job: Job[Any], error: BaseException, right: Attempt | None = None) -> None:
        """An exception struck outside of any task while this thread had a job in hand: fail or retry that."""
        with self.lock:
            lost = job._place is worker and self.core.running.get(job._seq) is job
        if lost:
            self.attempt_failed(job, _outcome.death_of(worker, job, error), right)
        if right is not None and right.job is job and right.over:
            self.attempt_came_home(right)
        with self.lock:
            worker.adopted.discard(job._seq)
            if job.done():
                self.core.left_behind.discard(job._seq)

    # ---------------------------------------------------------------- who waits for whom

    def note_wait(self, waiter: Job[Any], job: Job[Any]) -> None:
        """Remember that one job waits for another; not of a written-off attempt, whose job has moved on."""
        with self.lock:
            if self.is_overrun_here(waiter):
                return
            self.awaits.setdefault(waiter._seq, []).append(job)

    def forget_wait(self, waiter: Job[Any], job: Job[Any]) -> None:
        """Forget it again."""
        if self.is_overrun_here(waiter):
            return  # forgotten when it was written off; what is noted now is another attempt's
        with self.lock:
            awaited = self.awaits.get(waiter._seq, [])
            for index, one in enumerate(awaited):
                if one is job:
                    del awaited[index]
                    break
            if not awaited:
                self.awaits.pop(waiter._seq, None)

    def _stop_waiting(self, bell: Bell, waiter: Job[Any]) -> None:
        with self.lock:
            self._unpark_locked(bell)
        self.forget_wait(waiter, bell.job)

    def ring_locked(self, job: Job[Any], closes: Callable[[Job[Any]], bool]) -> list[Job[Any]] | None:
        """Follow what a job waits for; return the way to the first one that ``closes`` a ring, or None.

        A running job waits for what its thread is parked for, or for what it awaits itself; a pending one for its open
        parents. O(jobs on the way).
        """
        came_from: dict[int, Job[Any] | None] = {job._seq: None}
        stack = [job]
        while stack:
            one = stack.pop()
            following: list[Job[Any]] = []
            if one._state == "RUNNING":
                if closes(one):
                    return _way_to(one, came_from)
                parked = getattr(one._place, "parked", None)
                following = self.awaits.get(one._seq, []) if parked is None else [parked]
            elif one._state == "PENDING":
                following = open_parents(one)
            for after in following:
                if after._seq not in came_from:
                    came_from[after._seq] = one
                    stack.append(after)
        return None

    def used_up_locked(self, job: Job[Any], closes: Callable[[Job[Any]], bool]) -> str | None:
        """Name what a held job lacks if all jobs that have it are such as cannot go on before it ends.

        A rule that hands out room says in ``holders(job)`` what has none, as (name, jobs that have it). Lock held.
        """
        for rule in job._attached.rules if job._attached is not None and job._place is WAITING else ():
            for name, jobs in getattr(rule, "holders", _no_holders)(job):
                if jobs and all(closes(one) for one in jobs):
                    return str(name)
        return None

    # ---------------------------------------------------------------- what to do next

    def _next_for(self, bell: Bell, waiter: Job[Any]) -> Job[Any] | None:
        """Claim what the awaited job needs, or sleep until there is something; None once it has ended."""
        core, worker, job = self.core, bell.worker, bell.job
        while True:
            if core.outbox or core.ranking.faults:
                self.drain_outbox()
            now = self.read_clock()
            lacks = None
            with self.lock:
                self._unpark_locked(bell)
                if job.done() or worker.detached:
                    self._pass_on_locked(0)
                    return None
                if self._fell_due_locked(now):
                    continue
                ring = self.ring_locked(job, lambda one: one._place is worker)
                moved = core.promote(now) if not self.stepped and (len(core.delayed) or core.alarm is not None) else 0
                due = any(is_due(one, now) for one in needed(job))
                task = self._claim_needed_locked(bell, now) if due and ring is None else None
                if task is not None:
                    self._pass_on_locked(moved)
                    return task
                too_deep = due and ring is None and worker.depth >= DEPTH
                lacks = self.used_up_locked(job, lambda one: one._place is worker)
                refused = ring is not None or too_deep or lacks is not None or self.stepped
                if not refused:
                    self._park_locked(bell, now)
                self._pass_on_locked(moved)
                clear = self._unclear_locked()
            if refused:
                self._refuse_wait(waiter, job, ring, lacks, too_deep=too_deep)
            if clear:
                self.give_up_rest()
            self._sleep_parked(bell)

    def _claim_needed_locked(self, bell: Bell, now: float) -> Job[Any] | None:
        """Claim the job, or an open parent of it, for this thread, if one is due and may start."""
        worker = bell.worker
        if worker.depth < DEPTH:
            for one in list(needed(bell.job)):
                bell.task = one  # before the claim: whatever strikes from then on, the job is known to be in hand
                if is_due(one, now) and self.core.claim_given(one, now, worker):
                    worker.depth += 1
                    return one
            bell.task = None
        return None

    def _refuse_wait(
        self, waiter: Job[Any], job: Job[Any], ring: list[Job[Any]] | None, lacks: str | None, *, too_deep: bool
    ) -> NoReturn:
        if too_deep:
            raise NestingError(f"{told(job)} is not started on this thread: {DEPTH} jobs wait one for another there")
        if ring is not None:
            raise DeadlockError(describe_ring(waiter, ring))
        if lacks is not None:
            raise DeadlockError(f"{told(waiter)} waits for {told(job)}, which waits for {lacks}, held by this thread")
        raise DeadlockError(f"{told(waiter)} waits for {told(job)}, which cannot start during this tick")

    # ---------------------------------------------------------------- asleep

    def _park_locked(self, bell: Bell, now: float) -> None:
        """Let the bell be rung by whoever ends the job, makes it ready, or sets an earlier alarm."""
        core = self.core
        due = core.next_due()
        bell.job._attach().tokens.append(bell)
        self.helpers[id(bell)] = bell
        bell.worker.parked = bell.job
        bell.due = None
        if due is not None and not self.watch and self.stand_in is None:
            self.stand_in, bell.due = bell, due
        # Look again, as a worker does that goes idle: what a finalizer did meanwhile on this thread rang for nobody.
        if bell.job.done() or core.next_due() != due or (not core.halted and bell.wanted()):
            bell.release()
        elif self.quiet_waiters and self._quiescent_locked(now):
            _locks.release_all(self.quiet_waiters)

    def _unpark_locked(self, bell: Bell) -> None:
        attached = bell.job._attached
        if attached is not None and bell in attached.tokens:
            attached.tokens.remove(bell)
        self.helpers.pop(id(bell), None)
        if self.stand_in is bell:
            self.stand_in = None
        bell.worker.parked = None

    def _sleep_parked(self, bell: Bell) -> None:
        # As the watch does: the clock is read again after the registration, for a virtual one may have been moved.
        timeout = None if bell.due is None else bell.due - self.read_clock()
        _locks.sleep_on(bell, None if self.virtual and timeout is not None and timeout > 0 else timeout)


_worker.OUTER_CODE.add(Helping.help.__code__)


def _no_holders(job: Job[Any]) -> tuple[()]:
    return ()


def _way_to(job: Job[Any], came_from: dict[int, Job[Any] | None]) -> list[Job[Any]]:
    way = [job]
    while (before := came_from[way[-1]._seq]) is not None:
        way.append(before)
    return way[::-1]


def told(job: Job[Any]) -> str:
    """Name a job in a sentence. Runs foreign code, so never under the lock."""
    return f"job {job.id!r} ({job.name})"


def describe_ring(waiter: Job[Any], ring: list[Job[Any]]) -> str:
    """Say who waits for whom, from the job that would have closed the ring back to its thread."""
    if ring == [waiter]:
        return f"{told(waiter)} would wait for itself for ever"
    chain = ", which waits for ".join(told(job) for job in ring)
    end = "" if ring[-1] is waiter else f", on whose thread {told(waiter)} runs"
    return f"{told(waiter)} would wait for ever: it waits for {chain}{end}"

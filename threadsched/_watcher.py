"""The watch of the time limits, and what becomes of a thread whose task has run too long.

**The watcher** is one daemon thread, which exists while a job with ``timeout`` or ``expires`` is live. Workers cannot
do its work: all of them may be busy, or stuck. It sleeps until the next limit, with nothing but a weak reference to
the scheduler, and leaves when there has been nothing to watch for a moment.

**Nobody's code runs on it**, for a callback or a log handler that blocks must not keep the next limit from being kept.
It decides under the lock, and whatever follows from that is done by a *teller*, a short-lived thread for each overrun
and for each batch of jobs that expired: cancelling coroutines, starting the successor, the retry or the failure, the
callbacks, the log, dropping what the job held. If no thread can be started, the watcher has to do it after all.

**Writing off.** A task that has run too long cannot be stopped. What can be done is to take everything else from it:

1. The watcher writes the attempt off: its right to settle the job is gone (see ``_time_limits``), its ``sleep()`` is
   ended, and the thread is *lost*: it is renamed, leaves the pool, and its place goes to a successor with the next
   number. A coroutine is cancelled on its loop instead, and its thread stays. As many threads may be lost at a time as
   there are workers; further ones stay in the pool, stuck.
2. A teller settles the job.
3. The thread comes out of the task. What it brings is dropped, and what waited for it is let go (its room in the
   limits, the next run of its schedule). With the thread there may be other jobs, which wait on it for the one that was
   written off: they are innocent, still own their place and go on.
4. When the last of them has ended, the thread *comes home*: it takes the place of a worker that is missing or stuck, or
   ends.

While it is lost, a thread does not help where it waits, counts as a stranger where it submits, and is waited for by
nobody: a shutdown names it in its report, the interpreter's exit in the log.

In a stepped scheduler ``tick`` keeps the time, and everything is done on its thread.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadsched import _coroutines, _inspect, _locks, _log, _outcome
from threadsched._locks import make_token, sleep_on
from threadsched._pool import Pool
from threadsched._time_limits import Attempt, TimeLimit, WrittenOff
from threadsched._worker import Worker

if TYPE_CHECKING:
    from threadsched._job import Job

# Seconds that the watcher stays with nothing to watch: a stream of single jobs shall not start one each.
LINGER = 0.05
# Jobs cancelled in one hold of the lock, as in a shutdown.
BATCH = 256
# Real seconds that an overrun job waits for its log line, so that whoever learns of the end finds it there; then it
# fails all the same.
LOG_PATIENCE = 0.2


class Watching(Pool):
    """The room of the time limits."""

    __slots__ = ()

    # ---------------------------------------------------------------- the watcher

    def watch_limits(self) -> None:
        """Start the watcher, if there is none; raises what starting a thread raises."""
        limits = self.core.time_limits
        token = make_token()
        with self.lock:
            limits.wanted = False
            if limits.watched:
                return
            limits.watcher = token
        try:
            self.watcher = _locks.start_thread(
                _watch, (weakref.ref(self, _Waker(token)), token), f"{self.name} (watcher)"
            )
        except BaseException:
            with self.lock:
                if limits.watcher is token:
                    limits.watcher = None  # should it have been started all the same, it leaves
            raise

    def look_at_limits(self, token: Any, seen: int) -> tuple[float | None, int] | None:
        """Do what is due; return how long to sleep, and what ``seen`` is at the next look; or None to leave.

        ``seen`` says how many jobs there had been when nothing was to be watched; -1 if something was.
        """
        limits = self.core.time_limits
        with self.lock:
            limits.until = -math.inf  # awake: it looks again before it sleeps
            if token in limits.asleep:
                limits.asleep.remove(token)
            elif not token.locked():
                token.acquire()  # rung since
        while True:
            now = self.read_clock()
            self.fire(now)
            with self.lock:
                if limits.watcher is not token:
                    return None
                nothing = not limits.live
                if nothing and (limits.admitted == seen or self.core.closed):
                    limits.watcher = None
                    return None
                due = limits.due()
                if due is not None and due <= now:
                    continue
                limits.lingering = nothing
                limits.until = math.inf if due is None else due
                limits.asleep.append(token)
                # Look again: what a finalizer on this thread did since the first look found nobody to ring.
                if limits.due() != due or nothing is bool(limits.live):
                    limits.asleep.clear()
                    continue
                seen = limits.admitted if nothing else -1
                _locks.release_all(self.quiet_waiters)  # they look again
            if due is None:
                return LINGER if nothing else None, seen
            # Read after the registration: a virtual clock may have been moved since, when nobody was there to be rung.
            left = due - self.read_clock()
            return None if self.virtual and left > 0 else left, seen

    # ---------------------------------------------------------------- limits that have come

    def fire(self, now: float) -> None:
        """Cancel what expired by ``now`` and write off what has run too long; have everybody told."""
        while self._fire_some(now):
            continue

    def _fire_some(self, now: float) -> bool:
        core, limits = self.core, self.core.time_limits
        overruns: list[Attempt] = []
        spoils: list[Any] = []
        job = limit = written_off = attempt = None  # some names are dropped below
        with self.lock:
            for _ in range(BATCH):
                limit = limits.first(now)
                if limit is None:
                    break
                job = limits.live.get(limit.seq)
                if job is not None and core.pending.get(limit.seq) is job and job._attempts == 0:
                    spoils.append(core.cancel(job, limit.name, now, limit.expired()))
                    self._ended_locked(job)
                elif self.stepped and job is not None and core.running.get(limit.seq) is job and limit.attempt:
                    attempt = limit.attempt
                    break
                elif job is not None and (written_off := self._write_off_locked(limit, job)) is not None:
                    overruns.append(written_off)
                limits.disarm(limit)
            del job, limit, written_off
            if spoils:
                self._gave_up_locked()
            # Before the lock is free, so that the scheduler never looks quiescent in between.
            keys = [object() for _ in range(bool(spoils) + 2 * len(overruns))]
            if not self.stepped:
                self.tellers.update(dict.fromkeys(keys))
        done = bool(keys or attempt)
        if spoils:
            self._tell(keys.pop(), self._drop, spoils)
        if attempt is not None:
            # An interrupt in our own code broke it off, for a tick does not come back before its tasks are through. It
            # is armed until it has failed, should this be broken off as well.
            _outcome.attempt_came_late(self, attempt)
        while overruns:
            self._tell_overrun([overruns.pop()], keys.pop(), keys.pop())
        return done

    def _drop(self, spoils: list[Any]) -> None:
        """Tell who watches the jobs that expired, and drop what they held."""
        spoils.clear()
        self.drain_outbox()

    def _write_off_locked(self, limit: TimeLimit, job: Job[Any]) -> Attempt | None:
        """Take the right to settle its job from an attempt, and its place in the pool from its thread."""
        attempt = limit.attempt
        if attempt is None or attempt.over or self.core.running.get(limit.seq) is not job:
            return None
        worker, attached = attempt.worker, job._attach()
        attempt.stopper, attached.stopper = attached.stopper, None
        attempt.over = True
        self.core.time_limits.away[id(attempt)] = attempt
        worker.overrun.append(attempt)
        if attached.sleeper is not None and self.sleepers.pop(attached.sleeper, None) is not None:
            attached.sleeper.release()
        self.awaits.pop(job._seq, None)
        if attempt.stopper is not None:
            attempt.fate = f"its coroutine on {worker.name} is cancelled"
        elif self._lose_locked(worker, job):
            attempt.fate = f"its thread {worker.name} is written off"
        else:
            attempt.fate = f"its thread {worker.name} goes on and has no successor"
        return attempt

    def _lose_locked(self, worker: Worker, job: Job[Any]) -> bool:
        """Part with the thread of a written-off attempt; False if it has to stay, or was parted with before."""
        if self.workers.get(worker.number) is not worker or len(self.written_off) >= self.width:
            self._tell_left_locked()
            return worker.detached
        self._part_locked(worker)
        self.posts[self.posts.index(worker.number)] = next(self.numbers)
        self.manned = False
        self.replaced += not self.core.closed or bool(self.core.pending)
        if worker.thread is not None:
            worker.thread.name = f"{worker.name} (lost: {job.id})"
        self._tell_left_locked()
        return True

    def _part_locked(self, worker: Worker) -> None:
        """Make a worker no member of the pool."""
        worker.detached = True
        del self.workers[worker.number]
        self.launched.discard(worker.number)
        self.written_off[worker.number] = worker
        for bell in list(self.helpers.values()):
            if bell.worker is worker:
                bell.release()  # it helps no longer

    # ---------------------------------------------------------------- homecoming

    def come_home(self, worker: Worker) -> bool:
        """Decide on a thread that was written off and has nothing in hand any more: True if it serves again.

        False as well in the child of a fork, where its pool is not.
        """
        with self.lock:
            if self.written_off.pop(worker.number, None) is not worker:
                return False
            missing = [number for number in self.posts if number not in self.launched]
            stuck = [one.number for one in self.workers.values() if one.stuck]
            if (self.core.closed and not self.core.pending) or not (missing or stuck):
                return False
            if not missing:
                self._part_locked(self.workers[stuck[0]])
                self.replaced += 1
                missing = stuck
            self.posts[self.posts.index(missing[0])] = worker.number
            self.launched.add(worker.number)
            self.workers[worker.number] = worker
            worker.detached = False
            self.manned = len(self.launched) >= self.width
            if worker.thread is not None:
                worker.thread.name = worker.name
            return True

    # ---------------------------------------------------------------- telling

    def _tell(self, key: object, tell: Callable[..., None], *args: Any) -> None:
        """Have a teller, which is counted under ``key``, do what may run foreign code."""
        if not self.stepped:
            try:
                _locks.start_thread(self._run_teller, (key, tell, args), f"{self.name} (telling)")
                return
            except Exception:  # no thread to be had: then here
                pass
        self._run_teller(key, tell, args)

    def _run_teller(self, key: object, tell: Callable[..., None], args: tuple[Any, ...]) -> None:
        with self.lock:
            if key in self.tellers:
                self.tellers[key] = threading.current_thread()
        try:
            tell(*args)
        finally:
            del args
            with self.lock:
                self.tellers.pop(key, None)
                if not self.tellers:
                    _locks.release_all(self.told_waiters)
                _locks.release_all(self.quiet_waiters)  # they look again

    def wait_told(self, timeout: float | None) -> bool:
        """Sleep until no teller is at work; at once on a teller, which would wait for itself."""
        deadline = None if timeout is None else monotonic() + timeout
        token = make_token()
        with self.lock:
            threads = [thread for thread in self.tellers.values() if thread is not None]
            if threading.current_thread() in threads:
                return True
            threads = [thread for thread in threads if thread is not self.watcher]
            self.told_waiters.append(token)
            told = not self.tellers and self._forget(token, self.told_waiters)
        if not told and not self._wait_on(token, self.told_waiters, timeout):
            return False
        for thread in threads:
            _locks.join_thread(thread, None if deadline is None else max(deadline - monotonic(), 0.1))
        return True

    def _tell_overrun(self, box: list[Attempt], log_key: object, key: object) -> None:
        """See to one overrun: stop its coroutine, log where it stands, settle its job.

        The attempt is in a box, so that a teller has the last reference to it and to its job.
        """
        attempt = box[0]
        # Now: the coroutine may react to what comes next.
        frames = _coroutines.frames_of(attempt.stopper)
        if attempt.stopper is not None:
            attempt.stopper()
        what = f"job {attempt.limit.told} has run for its timeout of {attempt.limit.timeout:g} s: {attempt.fate}"
        logged = make_token()
        self._tell(log_key, self._log_overrun, what, frames, attempt, logged)
        del attempt
        self._tell(key, self._settle_overrun, box, logged)

    def _log_overrun(self, what: str, frames: Any, attempt: Attempt, logged: Any) -> None:
        try:
            if not frames:
                # A function's stack is read here, and not on the watcher, for that may run finalizers.
                frames = _inspect.frames_of(attempt.worker)
                if attempt.home:
                    frames = []  # of whatever that thread does by now
            stack = _inspect.format_frames(frames) or "(no stack)"
            _log.report(logging.WARNING, "%s; it stands at\n%s", what, stack)
        finally:
            logged.release()

    def _settle_overrun(self, box: list[Attempt], logged: Any) -> None:
        attempt = box.pop()
        self._replace()
        sleep_on(logged, LOG_PATIENCE)
        self.attempt_failed(attempt.job, attempt.limit.timed_out(), WrittenOff(self.core, attempt))
        self._replace()  # the job may be back in the queue of a scheduler that had nothing more to do

    def _replace(self) -> None:
        """Start the successors that are missing."""
        if not self.manned:
            self.replace(f"a written-off worker of {self.name!r}")


class _Waker:
    """Wakes the watcher of a scheduler that is no more; the callback of its weak reference."""

    def __init__(self, token: Any) -> None:
        self.token = token

    def __call__(self, _: object) -> None:
        _locks.release_all([self.token])


def _watch(reference: weakref.ref[Watching], token: Any) -> None:
    """The watcher's thread: look, sleep, look again; the scheduler is held during the look alone."""
    seen = -1
    while True:
        runtime = reference()
        sleep = None if runtime is None else runtime.look_at_limits(token, seen)
        del runtime
        if sleep is None:
            return
        timeout, seen = sleep
        sleep_on(token, timeout)

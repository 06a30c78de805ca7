"""Waiting: for a job to end, for the scheduler to be idle or empty of workers, for time to pass inside a task.

Whoever waits registers a token of its own under the lock, looks again, and sleeps; whoever makes the state true
releases it. What a *caller* waits runs on real time; what a task sleeps, on the scheduler's clock. A virtual clock is
served here too: it asks when something is due, has the workers look again, and waits until all of them sleep.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from threadsched import _locks
from threadsched._job import Job
from threadsched._locks import holds, make_token, sleep_on, step_aside
from threadsched._shared import Shared
from threadsched._worker import Worker, current_worker

# Seconds: two switch intervals, in which a thread that wants the GIL gets it.
TURN = 0.01


class Waiting(Shared):
    """The room of those who sleep."""

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
                    continue  # a wait longer than the platform can express is made in pieces
        finally:
            if not woken:
                with self.lock:
                    if token in registry:
                        registry.remove(token)
                    else:
                        woken = True  # released just as the time ran out
        return woken

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
        self._wait_on(token, self.turn_waiters, TURN)

    def sleep_as_watch(self, worker: Worker) -> None:
        """Sleep as the leader until the watched job is due or somebody wakes us."""
        # The clock is read again, after the registration: a virtual one may have been moved since the turn began,
        # when nobody was there to be woken.
        timeout = None if worker.due is None else worker.due - self.read_clock()
        if sleep_on(worker.token, None if self.virtual and timeout is not None and timeout > 0 else timeout):
            return
        with self.lock:
            try:
                self.watch.remove(worker.token)
                return
            except ValueError:
                pass
        worker.token.acquire()  # signalled just as the time ran out: that counts as a wake-up

    def sleep(self, job: Job[Any], seconds: float) -> bool:
        """``job.sleep()``: on a virtual clock until it is moved, else in real time."""
        worker = current_worker()
        if worker is None or worker.job is not job:
            raise RuntimeError(f"{job!r} can sleep inside its own task only")
        if self.stepped and self.virtual and not job.cancel_requested:
            raise RuntimeError(f"{job!r} cannot sleep in a stepped scheduler: nobody could move its clock meanwhile")
        until = self.read_clock() + seconds
        while not job.cancel_requested:
            token = make_token()
            try:
                with self.lock:
                    attached = job._attach()
                    attached.sleeper = token
                    self.sleepers[token] = until
                    if attached.stop:
                        return False
                # Read after the registration, as in sleep_as_watch.
                left = until - self.read_clock()
                if left <= 0:
                    return True
                with self.lock:
                    if self.quiet_waiters and self._quiescent_locked(until - left):
                        _locks.release_all(self.quiet_waiters)
                sleep_on(token, None if self.virtual else left)
            finally:
                with self.lock:
                    self.sleepers.pop(token, None)
                    job._attach().sleeper = None
        return False

    def _quiescent_locked(self, now: float) -> bool:
        """Whether every worker sleeps and nothing is due at ``now``."""
        asleep = len(self.idle) + len(self.watch) + len(self.sleepers)
        due = self.core.next_due()
        return (
            asleep >= len(self.launched)
            and (self.core.halted or not len(self.core.ready))
            and (due is None or due > now)
            and not self.core.outbox
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
            if self.core.next_due() is not None:
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

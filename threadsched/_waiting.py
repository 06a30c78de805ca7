"""Waiting: for a job to end, for the scheduler to be idle or empty of workers, for time to pass inside a task.

Whoever waits registers a token of its own under the lock, looks again, and sleeps; whoever makes the state true, or is
about to in the same hold of the lock, releases it. What a *caller* waits runs on real time; what a task sleeps, on the
scheduler's clock. A virtual clock is served here too: it asks when something is due, has the workers look again, and
waits until all of them sleep.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from threadsched import _locks
from threadsched._gate import Gate
from threadsched._job import Job
from threadsched._locks import holds, make_token, sleep_on, step_aside
from threadsched._shared import Shared
from threadsched._worker import Worker, current_worker

if TYPE_CHECKING:
    from threadsched._runtime import Runtime

# Seconds: two switch intervals, in which a thread that wants the GIL gets it.
TURN = 0.01
# Seconds that a leader sleeps at least if the clock reads as it did a moment ago: one that stands still just before a
# job is due, or is coarse, must not keep a worker busy looking at it.
STILL = 0.001


class Waiting(Shared):
    """The room of those who sleep."""

    __slots__ = ()

    def wait_for_end(self, job: Job[Any], timeout: float | None) -> bool:
        """Sleep until the job has ended; False if ``timeout`` real seconds passed first."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            token = make_token()
            if self.mark is not None:
                step_aside(self)
            self.mark = token
            with self.lock:
                try:
                    tokens = job._attach().tokens
                    tokens.append(token)
                    # Look after registering: a handler on this thread may have cancelled the job in between.
                    if job.done():
                        return True
                finally:
                    if self.mark is token:
                        self.mark = None
            if not self._wait_on(token, tokens, None if deadline is None else deadline - monotonic()):
                return False
            if job.done():
                return True
            # We were woken by who is about to end the job, and holds the lock until it has, or could not.

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
            self.idle_waiters.append(token)
            if not self.core.pending and not self.core.running:
                return self._forget(token, self.idle_waiters)
        return self._wait_on(token, self.idle_waiters, timeout)

    def wait_below(self, pending: int, timeout: float | None) -> bool:
        """Sleep until fewer than ``pending`` jobs are pending."""
        token = make_token()
        gate: Gate | None = None
        try:
            with self.lock:
                core = self.core
                if len(core.pending) < pending:
                    return True
                gate = core.gate = core.gate or Gate(None)
                gate.wanted[token] = pending
                gate.below.append(token)
            return self._wait_on(token, gate.below, timeout)
        finally:
            if gate is not None:
                with self.lock:
                    self._forget(token, gate.below)  # Ctrl-C may have struck before the sleep began
                    gate.wanted.pop(token, None)
                    if gate.limit is None and not gate.below:
                        core.gate = None  # nobody pays for it any more

    def _forget(self, token: Any, registry: list[Any]) -> bool:
        """Take a token off a list that a handler on this thread may have emptied already; always True."""
        if token in registry:
            registry.remove(token)
        return True

    def wait_left(self, timeout: float | None) -> bool:
        """Sleep until every worker has left."""
        token = make_token()
        with self.lock:
            self.exit_waiters.append(token)
            if self._left_locked():
                return self._forget(token, self.exit_waiters)
        return self._wait_on(token, self.exit_waiters, timeout)

    def let_woken_claim(self) -> None:
        """Before a shutdown that cancels: let a worker that was woken for a job have it.

        Without this, submissions followed by that shutdown on one thread would be cancelled to the last, although
        workers idle: they are awake, and merely had no turn at the GIL.
        """
        token = make_token()
        with self.lock:
            asleep = len(self.idle) + len(self.watch) + self._sleepers_locked()
            at_work = sum(worker.job is not None for worker in self.workers.values())
            if not len(self.core.ready) or asleep + at_work >= len(self.launched):
                return
            self.turn_waiters.append(token)
        self._wait_on(token, self.turn_waiters, TURN)

    def sleep_as_watch(self, worker: Worker) -> None:
        """Sleep as the leader, or its deputy, until what we watch is due or somebody wakes us."""
        lead = worker.lag.lead()
        # The clock is read again, after the registration: a virtual one may have been moved since the turn began,
        # when nobody was there to be woken.
        now = self.read_clock()
        timeout = worker.due - now
        # Asked for so much earlier, the system wakes us on time. Should it be early indeed, we sleep again, for the
        # rest as it is: what is that short may end without a sleep, and tells nothing of those.
        whole = not self.virtual and timeout > 2 * lead
        if whole:
            timeout -= lead
        if 0 < timeout < STILL and now == self.last_reading:
            timeout = STILL
        began = monotonic()
        if sleep_on(worker.token, None if self.virtual and timeout > 0 else timeout):
            return
        if whole:
            worker.lag.learn(monotonic() - began - timeout)
        with self.lock:
            for tokens in (self.watch, self.idle):
                if worker.token in tokens:
                    tokens.remove(worker.token)
                    return
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
                    self.sleepers[token] = (until, worker)
                    if attached.stop or self.is_overrun_here(job):
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
                    attached = job._attach()
                    if attached.sleeper is token:  # else it is that of another attempt
                        attached.sleeper = None
        return False

    def _quiescent_locked(self, now: float) -> bool:
        """Whether every worker sleeps and nothing is due at ``now`` that any of them could take or promote."""
        asleep = len(self.idle) + len(self.watch) + self._sleepers_locked()
        asleep += self._helpers_asleep_locked() if self.helpers else 0
        asleep += sum(worker.stuck and worker.parked is None for worker in self.workers.values())
        due, limit = self.core.next_due(), self.core.time_limits.due()
        free = self.idle or self.watch  # else nobody is there who could take what is ready
        return (
            asleep >= len(self.launched)
            and (self.core.halted or not free or not len(self.core.ready))
            and (due is None or due > now or not (free or self.helpers))
            and (limit is None or limit > now)  # which the watcher looks after, not they
            and not self.core.outbox
            and not self.tellers
            and all(until > now for until, _ in self.sleepers.values())
        )

    def _sleepers_locked(self) -> int:
        """Count the workers in ``job.sleep()``; a thread that was written off, or a submitter's own, is none."""
        return sum(self.workers.get(worker.number) is worker for _, worker in self.sleepers.values())

    def _helpers_asleep_locked(self) -> int:
        """Count the workers that wait inside a task: those whose thread sleeps, or whose coroutines all await jobs."""
        sleeping: set[int] = set()
        waiting: dict[Any, set[int]] = {}  # worker -> the jobs on its loop that await others
        for bell in self.helpers.values():
            if bell.sleeps:
                sleeping.add(bell.worker.number)
            else:
                waiting.setdefault(bell.worker, set()).add(bell.waiter._seq)
        sleeping.update(worker.number for worker in waiting if len(waiting[worker]) > len(worker.adopted))
        return len(sleeping)

    def next_due(self) -> float | None:
        """Return when the next job is due or the next ``job.sleep()`` over, if that is to come (for a virtual clock).

        What has been due for long waits for a worker, which only a sleep that is over can set free.
        """
        now = self.read_clock()
        with self.lock:
            times = [until for until, _ in self.sleepers.values()]
            due = [self.core.next_due(), self.core.time_limits.due()]
        times += [time for time in due if time is not None and time > now]
        return min(times, default=None)

    def look_again(self) -> None:
        """Make the leader read the clock, and end the sleeps that are over (for a virtual clock)."""
        now = self.read_clock()
        with self.lock:
            if self.core.next_due() is not None:
                self._new_head_locked()
            limits = self.core.time_limits
            limit = limits.due()
            # Also where the limit it sleeps until is no more: else it would go on to count on waking up for that.
            if limits.until <= now or (limit is not None and limit <= now):
                limits.ring()
            for bell in list(self.helpers.values()):
                if bell.due is not None and bell.due <= now:
                    bell.release()
            for token in list(self.sleepers):
                sleeper = self.sleepers.get(token)
                if sleeper is not None and sleeper[0] <= now and self.sleepers.pop(token, None) is not None:
                    token.release()

    def look_at_wall(self) -> None:
        """Re-time what follows the wall clock, which was set (for a virtual clock)."""
        if self.wall.busy:
            runtime = cast("Runtime", self)
            self.wall.look(runtime)
            runtime.drain_outbox()  # the workers may all be inside a task

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

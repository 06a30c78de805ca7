"""The wall clock, and what follows it: jobs with ``at=`` and cron schedules.

Everything else runs on a clock that nobody can set. These few are *planned* on the wall clock, as seconds since 1970,
and *armed* on the scheduler's clock like anything else, by ``armed = planned - offset``, where the offset is what the
wall clock was ahead at the last look. When somebody sets the wall clock (NTP, an operator, a machine that wakes up)
the offset moves, and all of them are re-timed.

Nothing tells a process that its wall clock was set, so somebody has to look: while there is anything to follow it, the
leader wakes every PERIOD seconds; otherwise nobody does. A clock that can say so itself (``FakeClock.step_wall``) is
not asked. The offset is measured between two readings of the scheduler's clock, so that a thread that loses the
processor in between does not take that for a step.

Locking: the fields below *Guarded* belong to the scheduler's lock. Both clocks are foreign code, read outside of it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from threadsched import _log
from threadsched._arming import Armable
from threadsched._job import DELAYED, READY, WAITING, Job

if TYPE_CHECKING:
    from threadsched._core import Core
    from threadsched._runtime import Runtime

# Seconds between two looks, on the scheduler's clock: a step is noticed within this time.
PERIOD = 30.0
# Seconds by which the offset must have moved: more than a careful reading is ever off, less than anybody notices.
TOLERANCE = 0.05
# Seconds: a reading whose brackets lie closer together is good enough; else the best of TRIES is taken.
CLOSE = 1e-3
TRIES = 5
# A float of seconds since 1970 is good to a quarter of a microsecond. Rounded to whole ones, sums come out even.
DIGITS = 6


class WallWatch(Armable):
    """Follows the wall clock for one scheduler. Also a rule of the jobs with ``at``: it is told when they start."""

    def __init__(self, clock: object) -> None:
        # Set once.
        self._wall: Any = getattr(clock, "wall", None) or time.time
        self._told = callable(getattr(clock, "step_wall", None))
        # Guarded by the scheduler's lock.
        self.offset = 0.0  # of the wall clock ahead of the scheduler's, by which everything here is timed
        self.changes = 0  # of the offset
        self.jobs: dict[int, Job[Any]] = {}  # seq -> pending job with ``at``
        self.followers: dict[int, Any] = {}  # number -> cron series

    @property
    def busy(self) -> bool:
        """Whether anything follows the wall clock."""
        return bool(self.jobs or self.followers)

    def reset(self) -> None:
        """Forget everything, in the child of a fork."""
        self.jobs.clear()
        self.followers.clear()
        self.ticket = 0

    # ---------------------------------------------------------------- looking

    def measure(self, runtime: Runtime) -> float:
        """Return how far the wall clock is ahead of the scheduler's; the last offset if it raises."""
        best = float("inf")
        before = runtime.read_clock()
        offset = self.offset if self.busy else time.time() - before
        try:
            for _ in range(TRIES):
                wall = float(self._wall())
                after = runtime.read_clock()
                if after - before < best:
                    best, offset = after - before, round(wall - (before + after) / 2, DIGITS)
                if best < CLOSE:
                    break
                before = after
        except Exception as error:  # the user's clock
            _log.report(logging.ERROR, "the wall clock raised %s", _log.describe_error(error), error=error)
        return offset

    def look(self, runtime: Runtime) -> float:
        """Read both clocks, re-time everything if the wall clock was set, and return the offset."""
        while True:
            known = self.changes
            offset = self.measure(runtime)
            with runtime.lock:
                if self.changes != known:
                    continue  # another thread saw a step meanwhile, perhaps one that came after our reading
                moved = offset - self.offset
                if self.busy and abs(moved) <= TOLERANCE:
                    return self.offset
                self.offset = offset
                self.changes += 1
                if not self.busy:
                    return offset
                jobs = self._retime_locked(runtime, offset)
                followers = list(self.followers.values())
                break
        self._rank_anew(runtime, jobs)
        for series in followers:
            series.wall_stepped(runtime, moved)
        return offset

    def _retime_locked(self, runtime: Runtime, offset: float) -> list[Job[Any]]:
        """Move what waits for its time. The delayed queue is rebuilt by whoever looks at it next: O(n log n)."""
        moved = []
        core = runtime.core
        for job in list(self.jobs.values()):
            if job._seq not in core.pending and job is not core.entering:
                self.jobs.pop(job._seq, None)  # its submission was broken off
            elif _unranked(core, job):  # else its time has come already
                job._run_at = max(round(job._options.timing.planned - offset, DIGITS), job._submitted_at)
                moved.append(job)
        if moved:
            core.delayed.untidy = True
            runtime._new_head_locked()
        return moved

    def _rank_anew(self, runtime: Runtime, jobs: list[Job[Any]]) -> None:
        """A policy may rank by ``run_at``: compute the keys again, outside the lock, for jobs in no ranked queue."""
        for job in jobs:
            ranking = runtime.core.ranking
            try:
                key = ranking.key_of(job)
            except Exception as error:  # the policy's: the job keeps its old rank
                _log.report(
                    logging.ERROR, "the policy raised %s for a re-timed job", _log.describe_error(error), error=error
                )
                continue
            with runtime.lock:
                if runtime.core.ranking is ranking and _unranked(runtime.core, job):
                    job._key = key

    def keep_looking_locked(self, runtime: Runtime, now: float) -> None:
        """See to the next look, if there is anything to look for and nobody will tell us."""
        if self.busy and not self.ticket and not self._told and runtime.core.arm(self, now + PERIOD):
            runtime._new_head_locked()

    def proceed(self, runtime: Runtime) -> None:
        """Look, and look again in PERIOD seconds."""
        self.look(runtime)
        now = runtime.read_clock()
        with runtime.lock:
            self.keep_looking_locked(runtime, now)

    # ---------------------------------------------------------------- as a rule of jobs with ``at``

    def attach(self, runtime: Runtime, job: Job[Any], planned: float) -> None:
        """Time a job that is about to be submitted, and be a rule of it."""
        self._time(job, planned, self.look(runtime))
        attached = job._attach()
        attached.rules = (self, *attached.rules)  # first: it follows the clock while it waits for a parent, too

    def admits(self, job: Job[Any]) -> bool:
        """Follow a job that is about to be accepted; time it again, the wall clock may have been set meanwhile."""
        if job._attempts == 0:
            self._time(job, job._options.timing.planned, self.offset)
            self.jobs[job._seq] = job
            self.keep_looking_locked(job._runtime, job._submitted_at)
        return True

    def _time(self, job: Job[Any], planned: float, offset: float) -> None:
        run_at = round(planned - offset, DIGITS)
        late = run_at <= job._submitted_at
        job._run_at = job._submitted_at if late else run_at
        if job._place is not WAITING:  # else another rule holds it, and it will be placed when let go
            job._place = READY if late else DELAYED

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Allow whatever is due."""
        return True

    def started(self, job: Job[Any], now: float) -> None:
        """Stop following: a retry counts on the scheduler's clock."""
        self.jobs.pop(job._seq, None)

    def ended(self, job: Job[Any], now: float) -> None:
        """Stop following."""
        self.jobs.pop(job._seq, None)

    def audit(self, runtime: Runtime) -> str | None:
        """Return what is wrong, or None. Lock held."""
        if not all(seq in runtime.core.pending for seq in self.jobs):
            return "the wall clock's watch follows a job that is not pending"
        if self.busy and not self.ticket and not self._told and not _rung(self, runtime):
            return "something follows the wall clock and nobody looks at it"
        return None


def _unranked(core: Core, job: Job[Any]) -> bool:
    """Say whether a pending job stands in no queue that goes by keys: not in the ready one, nor in a keeper's line."""
    if job._place is WAITING:
        return not any(keeper.holds(job) for keeper in core.keepers)
    return job._place is DELAYED


def _rung(thing: Armable, runtime: Runtime) -> bool:
    return any(getattr(item, "thing", None) is thing for item in runtime.core.outbox)

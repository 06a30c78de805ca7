"""How long a job may run, and how long it may wait for its start: the options ``timeout`` and ``expires``.

Part of the core, called like it: lock held (or nothing, in tests), no thread, no clock, no foreign code. What is done
when a limit has come stands in ``_watcher``.

A job with one of the options has a :class:`TimeLimit` among its rules. It is armed for one instant at a time: until
the first start for the job's expiry, from each start on for the end of that attempt, and for nothing in between. Like
every queue here that of the limits deletes lazily (see ``_arming``): a million short jobs with a timeout of an hour
leave no more dead entries than there are living ones.

**The right to settle** a job with a timeout belongs to an attempt, not to a thread. Each start makes an
:class:`Attempt`, which its thread shows when it comes back. If the attempt was *written off* meanwhile, its right has
gone to whoever did that (:class:`WrittenOff`), and what the thread brings is dropped, also if the job was retried and
runs again by then. Until its thread is *home*, a written-off attempt stands in ``away``: it keeps its room in the
limits, and a recurring job has no next run.

Invariants, audited by ``check()``
----------------------------------
- ``live`` holds the jobs with time limits that have not ended, but for those whose limits are over for good.
- A limit is armed exactly if its job waits for its first start and expires, or runs an attempt that may be written off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from threadsched._arming import Armable, Armings
from threadsched._errors import JobExpiredError, JobTimeoutError
from threadsched._job import Job
from threadsched._options import When
from threadsched._records import Reason

if TYPE_CHECKING:
    from threadsched._core import Core


class UnwatchedError(Exception):
    """Raised inside a submission when nobody watches the time limits; nobody outside sees it."""


class Attempt:
    """One start of a job with a timeout, and the right to settle the job for it."""

    __slots__ = ("at", "fate", "home", "job", "kept", "limit", "over", "rules", "spent", "stopper", "worker")

    def __init__(self, limit: TimeLimit, job: Job[Any], worker: Any, at: float) -> None:
        self.limit = limit
        self.job = job
        self.worker = worker  # whose thread is in the task
        self.at = at  # when it has run too long
        self.spent = False  # the job has moved on
        self.over = False  # written off: what the thread brings is dropped
        self.home = False  # the thread has come back from a written-off attempt
        self.kept: Any = None  # its room in the limits, while it is away
        self.rules: tuple[Any, ...] = ()  # those that wait for it to come home
        self.stopper: Callable[[], None] | None = None  # of a coroutine: cancels it
        self.fate = ""  # what becomes of its thread, in words

    def may_settle(self) -> bool:
        """Whether the thread of this attempt may settle the job."""
        return not self.over and not self.spent

    def late(self, job: Job[Any], now: float) -> bool:
        """Whether this is an attempt of the job, and brings its outcome too late."""
        return self.job is job and (self.over or now >= self.at)


class WrittenOff:
    """The right to settle the job of a written-off attempt, for whoever wrote it off."""

    __slots__ = ("attempt", "core")

    over = False

    def __init__(self, core: Core, attempt: Attempt) -> None:
        self.core = core
        self.attempt = attempt

    def may_settle(self) -> bool:
        """Whether the job still stands where the attempt left it."""
        return self.core.running.get(self.attempt.job._seq) is self.attempt.job

    def depart(self, limits: Any) -> None:
        """Just before the job moves on: leave with the thread, if that is still out, what has to wait for it."""
        attempt = self.attempt
        attached = attempt.job._attached
        if attempt.home or attached is None or attempt.rules or attempt.kept is not None:
            return
        attempt.rules = tuple([rule for rule in attached.rules if getattr(rule, "until_home", False)])
        for rule in attempt.rules:
            rule.away()
        attempt.kept = limits.keep_room(attempt.job)


Right = Attempt | WrittenOff


class TimeLimit(Armable):
    """The time limits of one job, and a rule of it (see ``_core.Rule``)."""

    def __init__(self, limits: TimeLimits, name: str, timeout: float | None, expires: float | None) -> None:
        self.limits = limits
        self.name = name  # the job's: to ask for it may run foreign code, which nobody may do who watches the time
        self.timeout = timeout
        self.expires = expires  # on the scheduler's clock: from then on the job does not start
        self.waits: float | None = None  # the option where it was relative, to count again from a later submission
        self.seq = 0  # of the job, once it was admitted
        self.attempt: Attempt | None = None

    def restamp(self, now: float) -> None:
        """Count from ``now``: the submitter had to wait for a place."""
        if self.waits is not None:
            self.expires = now + self.waits

    def admits(self, job: Job[Any]) -> bool:
        """Arm the expiry of a job that is about to be accepted."""
        limits = self.limits
        if job._attempts == 0 and job._seq not in limits.live:
            if not limits.watched:
                limits.wanted = True
                raise UnwatchedError
            self.seq = job._seq
            limits.admitted += 1
            limits.live[job._seq] = job
            if self.expires is not None:
                limits.arm(self, self.expires)
        return True

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Refuse the first start from the very instant of the expiry on; whoever watches then cancels the job."""
        return self.expires is None or job._attempts > 0 or now < self.expires

    def started(self, job: Job[Any], now: float) -> None:
        """From here on the attempt's time counts; a caller who took the job by ``claim()`` has all the time."""
        limits, worker = self.limits, job._place
        limits.disarm(self)
        if self.timeout is None or worker is None:
            limits.forget(self)
            return
        self.attempt = attempt = Attempt(self, job, worker, now + self.timeout)
        worker.attempt = attempt
        limits.arm(self, attempt.at)

    def ended(self, job: Job[Any], now: float) -> None:
        """Watch no longer what has ended; forget a job that will not start again."""
        self.limits.disarm(self)
        if self.attempt is not None:
            self.attempt.spent = True
            self.attempt = None
        if job._seq not in self.limits.core.pending:
            self.limits.forget(self)

    def wanted_at(self, job: Job[Any]) -> float | None:
        """Return the instant for which it should be armed, or None."""
        if job._state == "PENDING":
            return self.expires if job._attempts == 0 else None
        attempt = self.attempt
        return attempt.at if job._state == "RUNNING" and attempt is not None and not attempt.over else None

    def timed_out(self, cause: BaseException | None = None) -> JobTimeoutError:
        """Return what an attempt fails with that has run too long."""
        error = JobTimeoutError(f"job {self.told} ran longer than its timeout of {self.timeout:g} s")
        error.__cause__ = cause
        return error

    def expired(self) -> JobExpiredError:
        """Return why the job is cancelled that has not started in time."""
        within = "in time" if self.waits is None else f"within {self.waits:g} s"
        return JobExpiredError(f"job {self.told} expired: it had not started {within}")

    @property
    def told(self) -> str:
        """The job in words."""
        job = self.limits.live.get(self.seq)
        return f"({self.name})" if job is None else f"{job.id!r} ({self.name})"


class TimeLimits:
    """All time limits of one scheduler."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.stepped = core.stepped
        # Releases the token of the watcher if it sleeps, else raises IndexError; made by the runtime.
        self.wake: Callable[[], object] = iter(()).__next__
        self.asleep: list[Any] = []  # No token or the watcher's.
        self.reset()

    def reset(self) -> None:
        """Forget everything, in the child of a fork."""
        self.armings = Armings()
        self.live: dict[int, Job[Any]] = {}  # seq -> job with a limit that may still come
        self.away: dict[int, Attempt] = {}  # id -> attempt that was written off and is not home
        self.watcher: object = None  # the token of the thread that watches, from its start on
        self.admitted = 0  # how many jobs with time limits there were
        self.wanted = False  # a submission was turned away for want of one
        self.until = -math.inf  # until when it sleeps
        self.lingering = False  # it sleeps for a moment, before it leaves
        self.asleep.clear()

    @property
    def watched(self) -> bool:
        """Whether somebody watches; in a stepped scheduler whoever ticks does."""
        return self.stepped or self.watcher is not None

    def arm(self, limit: TimeLimit, at: float) -> None:
        """Arm a limit, and wake the watcher if it would come too late. O(log n)."""
        self.armings.arm(limit, at)
        if at < self.until:
            self.ring()

    def disarm(self, limit: TimeLimit) -> None:
        """Forget what a limit was armed for. O(1) amortised."""
        self.armings.disarm(limit)

    def ring(self) -> None:
        """Wake the watcher, if it sleeps."""
        if self.asleep:
            try:
                self.wake()
            except IndexError:  # a finalizer on this thread was faster
                pass

    def forget(self, limit: TimeLimit) -> None:
        """Drop a job whose limits can come no more; without another one the watcher may go."""
        self.disarm(limit)
        if self.live.pop(limit.seq, None) is not None and not self.live and not self.lingering:
            self.ring()

    def due(self) -> float | None:
        """Return when the next limit comes, or None."""
        return self.armings.due()

    def first(self, now: float) -> TimeLimit | None:
        """Return a limit that has come by ``now``, or None. It stays armed."""
        limit = self.armings.first(now)
        return limit if isinstance(limit, TimeLimit) else None

    def reason(self, job: Job[Any], now: float) -> list[Reason]:
        """Say which limit a job is under."""
        limit = limit_of(job)
        at = None if limit is None or job._seq not in self.live else limit.wanted_at(job)
        if limit is None or at is None:
            return []
        left = f"{max(at - now, 0.0):g} s"
        if job._state == "PENDING":
            return [Reason("expires", f"is given up if it has not started in {left}", at)]
        return [Reason("timeout", f"fails if it has not ended in {left}, {limit.timeout:g} s after its start", at)]

    def repair(self) -> None:
        """Rebuild from the jobs, after an exception. O(n log n)."""
        for job in list(self.live.values()):
            limit = limit_of(job)
            if limit is None:
                continue
            if job.done() or (job._state == "RUNNING" and job._place is None):
                self.forget(limit)
                continue
            if job._state == "RUNNING" and limit.attempt is None:
                limit.started(job, job._started_at or 0.0)  # an interrupt struck just before
                continue
            at = limit.wanted_at(job)
            if at is None:
                self.disarm(limit)
            elif not limit.ticket or limit.armed_at != at:
                self.arm(limit, at)
        self.armings.repair()

    def audit(self, require: Callable[[object, str], None]) -> None:
        """Check what stands at the top of this file."""
        core = self.core
        if core.ready.untidy or core.delayed.untidy:
            return  # will be repaired before anybody looks
        self.armings.audit(require)
        armed = set()
        for seq, job in self.live.items():
            known = core.pending.get(seq) is job or core.running.get(seq) is job or core.entering is job
            require(known, f"{job!r} has a time limit, and is not live")
            limit = limit_of(job)
            require(limit is not None and limit.seq == seq, f"{job!r} is watched and has no time limit")
            wanted = None if limit is None else limit.wanted_at(job)
            found = limit.armed_at if limit is not None and limit.ticket else None
            require(wanted == found, f"the time limit of {job!r} is armed for {found}, not {wanted}")
            armed.add(limit)
        require(set(self.armings.things.values()) <= armed, "a time limit is armed for a job that is not live")
        for attempt in self.away.values():
            require(attempt.over and not attempt.home, f"an attempt of {attempt.job!r} is away and at home")
            require(attempt in attempt.worker.overrun, f"{attempt.worker.name} does not know what it overran")


def limit_of(job: Job[Any]) -> TimeLimit | None:
    """Return the time limits of a job, or None."""
    for rule in job._attached.rules if job._attached is not None else ():
        if type(rule) is TimeLimit:
            return rule
    return None


def attach(limits: TimeLimits, job: Job[Any], timeout: float | None, expires: When | None, offset: float) -> None:
    """Give a new job its time limits; the wall clock is ``offset`` ahead of the scheduler's. Lock not held."""
    now = job._submitted_at
    limit = TimeLimit(limits, job.name, timeout, None if expires is None else expires.on_clock(now, offset))
    if expires is not None and not expires.wall:
        limit.waits = expires.seconds
    attached = job._attach()
    attached.rules = (limit, *attached.rules)  # the first to be asked: if nobody watches, no other was


def restamp(job: Job[Any], now: float) -> None:
    """Count the times of a job not yet accepted from ``now``: its submitter had to wait for a place."""
    limit = limit_of(job)
    if limit is not None:
        limit.restamp(now)


def detach(job: Job[Any]) -> None:
    """Forget a job whose submission was broken off."""
    limit = limit_of(job)
    if limit is not None:
        limit.limits.forget(limit)

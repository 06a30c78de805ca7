"""A scheduler made of lists: what is pending, what runs, what has ended. Every question is answered by a search."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.model.recurring import Run, Schedule
from tests.model.words import LIMITS, POLICIES, Operation, Work
from threadsched import JobStatus

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus

DELAYED, READY, HELD = "delayed", "ready", "held"

# Decimals of an instant that was computed from the wall clock: microseconds.
DIGITS = 6


# What an attempt fails with.
ERRORS = {
    "value": "ValueError",
    "hopeless": "ValueError",
    "os": "OSError",
    "exit": "SystemExit",
    "after": "RetryAfter",
    "timeout": "JobTimeoutError",
}


@dataclasses.dataclass(eq=False)
class Foreign:
    """A future that is no job."""

    ended: str | None = None


@dataclasses.dataclass(eq=False)
class Job:
    """What is known of a job."""

    work: Work
    id: Any  # None: its number
    seq: int
    submitted_at: float
    run_at: float
    priority: float
    deadline: float | None
    expires: float | None
    sees: str | None  # the value of the context variable
    at: float | None = None
    any_outcome: bool = False
    run: Run | None = None
    watched: bool = False
    status: JobStatus = PENDING
    place: str = DELAYED
    parents: list[Any] = dataclasses.field(default_factory=list)  # those that are open
    attempts: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    slot: int | None = None
    error: str | None = None  # of the last attempt, or the reason of a cancelled job; the name of a class
    fallen_with: Any = None  # the parent that a DependencyError names
    notes: int = 0
    no_retry: bool = False
    stop: bool = False
    claimed: bool = False
    lined_up: bool = False  # a limit had no room for it, so it stands in a line and is not asked for anything else


class Naive:
    """The stepped scheduler. Its doors are in ``tests.model.doors``."""

    def __init__(
        self, workers: int = 1, policy: str = "priority", *, limits: bool = True, history: int = 1000, draw: float = 0.0
    ) -> None:
        self.workers = workers
        self.policy = policy
        self.limits = LIMITS if limits else {}
        self.history = history
        self.draw = draw  # every random number
        self.now = 0.0
        self.wall = 0.0  # what the wall clock shows, in seconds after midnight
        self.offset = 0.0  # how far it was ahead at the last look
        self.paused = self.closed = False
        self.drain = "all"
        self.due_until = 0.0
        self.numbers = 0
        self.armings = 0
        self.retries = 0
        self.jobs: list[Job] = []  # in the order in which their submissions returned
        self.pending: list[Job] = []  # in the order in which they came into the queue
        self.running: list[Job] = []
        self.ended: list[Job] = []  # in the order of their ends
        self.schedules: list[Schedule] = []
        self.futures: list[Foreign] = []
        self.starts: dict[str, list[float]] = {name: [] for name in LIMITS}
        self.outbox: list[Callable[[], None]] = []  # what follows from an end
        self.journal: list[Any] = []
        self.told: list[Any] = []
        self.inside: list[Job] = []  # whose tasks run, the innermost last

    # ---------------------------------------------------------------- what stands in the way

    @property
    def halted(self) -> bool:
        return self.paused or self.drain == "none"

    def rank(self, job: Job) -> Any:
        return POLICIES[self.policy][1](job), job.seq

    def full_limits(self, names: tuple[str, ...], now: float) -> list[str]:
        """Return those that have no room at an instant."""
        full = []
        for name in sorted(set(names)):
            limit = LIMITS[name]
            inside = [job for job in self.running if name in job.work.limits]
            crowded = limit.concurrency is not None and len(inside) >= limit.concurrency
            if crowded or self.room_at(name, now) is not None:
                full.append(name)
        return full

    def room_at(self, name: str, now: float) -> float | None:
        """Return from when a rate allows the next start; None if it does at this instant."""
        rate, per = LIMITS[name].rate, LIMITS[name].per
        if rate is None or len(self.starts[name]) < rate:
            return None
        at = self.starts[name][-rate] + per
        return at if at > now else None

    def is_paused(self, job: Job) -> bool:
        """Say whether the job is a planned run of a schedule that is paused."""
        run = job.run
        return run is not None and run.slot is not None and run.schedule.paused and run.schedule.over is None

    def explain(self, job: Job) -> list[tuple[str, float | None]]:
        """Return kinds and ends of the reasons why a job does not run."""
        if job.status is RUNNING:
            return [("running", None)]
        if job.status is not PENDING:
            return [("ended", None)]
        time: list[tuple[str, float | None]] = []
        if job.run_at > self.now and job.place is not READY:
            time = [("retry" if job.attempts else "delayed", job.run_at)]
        paused: list[tuple[str, float | None]] = [("paused", None)] * (self.paused + self.is_paused(job))
        parents: list[tuple[str, float | None]] = [("parent", None)] if job.parents else []
        limits: list[tuple[str, float | None]] = []
        if job.place is READY:
            full = self.full_limits(job.work.limits, self.now)
            limits = [("limit", self.room_at(name, self.now)) for name in full]
        expires = [("expires", job.expires)] if job.expires is not None and not job.attempts else []
        return (paused + time + parents + limits or [("queued", None)]) + expires

    # ---------------------------------------------------------------- a tick

    def tick(self) -> list[tuple[int, Any, JobStatus]]:
        """Promote what is due, once; offer the ready jobs to the slots; return (slot, job, status) of what ran."""
        if any(job.at is not None and not job.attempts for job in self.pending):
            self.look_at_wall()
        now = self.now  # for the whole tick: as if what it starts ran side by side
        self.ring()
        self.expire()
        for job in self.pending:
            if job.place is DELAYED and not job.parents and job.run_at <= now:
                job.place = READY
        ran = []
        for slot in range(self.workers):
            chosen = self.choose(now)
            if chosen is None:
                break
            self.start(chosen, slot, now)
            self.attempt(chosen)
            ran.append((slot, chosen, chosen.status))
        return ran

    def expire(self) -> None:
        """Cancel what was not started in time."""
        while due := [job for job in self.pending if self.has_expired(job)]:
            for job in sorted(due, key=lambda job: (job.expires, job.seq)):
                self.end(job, CANCELLED, "JobExpiredError")
            self.drain_outbox()

    def has_expired(self, job: Job) -> bool:
        return job.expires is not None and not job.attempts and job.expires <= self.now

    def choose(self, now: float) -> Job | None:
        """Return the first job that may start."""
        if self.halted:
            return None
        for job in sorted([job for job in self.pending if job.place is READY], key=self.rank):
            full = bool(self.full_limits(job.work.limits, now))
            if self.is_paused(job):
                if not (job.lined_up and full):
                    job.place = HELD
            elif full:
                job.lined_up = True
            else:
                return job
        return None

    def start(self, job: Job, slot: int | None, now: float) -> None:
        if job in self.pending:
            self.pending.remove(job)
        self.running.append(job)
        job.status = RUNNING
        job.attempts += 1
        job.started_at = now
        job.slot = slot
        job.parents = []
        job.place, job.lined_up = DELAYED, False
        for name in set(job.work.limits):
            self.starts[name].append(max([now, *self.starts[name][-1:]]))  # the window is not shortened
        if job.run is not None and job.run.began is None:
            job.run.began = now
        if job.run is not None and job.attempts == 1 and slot is not None:
            job.run.number = job.run.schedule.started
            job.run.schedule.started += 1

    def attempt(self, job: Job) -> None:
        """Run the task of a job that was started, and settle it."""
        work = job.work
        self.journal.append(("start", job, job.attempts, self.now, job.sees))
        if work.does is not None:
            self.inside.append(job)
            self.journal.append((work.does[0], self.perform(work.does)))
            self.inside.pop()
        self.now += work.takes
        self.wall += work.takes
        number = 0 if job.run is None else job.run.number
        kind = "well" if job.attempts > work.fails or number % work.every else work.error[0]
        if kind == "stop":
            job.stop = job.no_retry = True
        assert job.started_at is not None
        if work.timeout is not None and self.now >= job.started_at + work.timeout:
            kind = "timeout"  # whatever it brought
        if kind == "well":
            self.end(job, DONE)
        elif kind == "stop":
            self.end(job, CANCELLED)
        else:
            self.failed(job, kind)
        self.drain_outbox()

    def failed(self, job: Job, kind: str) -> None:
        """Decide what follows an attempt that failed."""
        job.error = ERRORS[kind]
        pause = self.pause_after(job, kind)
        if pause is None or job.no_retry or self.drain != "all":
            job.notes += job.attempts - 1
            job.stop = job.stop or kind == "timeout"
            self.end(job, FAILED)
            return
        self.running.remove(job)
        self.pending.append(job)
        self.retries += 1
        job.status = PENDING
        job.run_at = self.now + pause

    def pause_after(self, job: Job, kind: str) -> float | None:
        """Return the pause before the next attempt, or None."""
        again, asked = job.work.again, job.work.error[1]
        if job.attempts > again.retries or kind == "exit":
            return None
        if kind == "after":
            return asked
        if again.whole:
            if again.only_os_errors and kind not in ("os", "timeout"):  # a TimeoutError is an OSError
                return None
            if again.give_up == "raises":
                job.notes += 1  # it says that the decision failed
            if again.give_up == "raises" or (again.give_up == "hopeless" and kind == "hopeless"):
                return None
        pause = again.backoff
        for _ in range(job.attempts - 1):
            pause *= again.factor
        if again.max_backoff is not None:
            pause = min(pause, again.max_backoff)
        return pause * (1 - again.jitter * self.draw)

    # ---------------------------------------------------------------- ends

    def end(self, job: Job, status: JobStatus, reason: str | None = None) -> None:
        """Move a job to its last status; what follows from it is put into the outbox."""
        (self.pending if job in self.pending else self.running).remove(job)
        job.status = status
        job.finished_at = self.now
        if status is CANCELLED:
            job.error = reason or "CancelledError"
        job.parents = []
        self.ended.append(job)
        if job.watched:
            self.told.append((job, status))
        if job.run is not None:
            schedule, run = job.run.schedule, job.run
            schedule.run_ended(run, job)
            self.outbox.append(lambda: schedule.step(self))
        self.parent_ended(job, status is DONE)

    def parent_ended(self, parent: Any, well: bool) -> None:
        """Let go, or give up, whoever waits for a job or a foreign future."""
        for job in sorted(self.pending, key=lambda job: job.seq):
            if parent in job.parents:
                if well or job.any_outcome:
                    job.parents.remove(parent)
                else:
                    self.doom(job, parent)

    def doom(self, job: Job, parent: Any) -> None:
        """Give a job up for a parent that did not end DONE, once all that came before has been dealt with."""
        job.parents = []

        def give_up() -> None:
            if job.status is PENDING:
                job.fallen_with = parent if isinstance(parent, Job) else None
                self.end(job, CANCELLED, "DependencyError")

        self.outbox.append(give_up)

    def drain_outbox(self) -> None:
        while self.outbox:
            self.outbox.pop(0)()

    def cancel(self, job: Job) -> bool:
        if job.status is PENDING:
            self.end(job, CANCELLED)
            self.drain_outbox()
            return True
        if job.status is RUNNING:
            job.no_retry = True
        return False

    # ---------------------------------------------------------------- recurring

    def ring(self) -> None:
        """Let the schedules whose time has come submit their runs, the first to be armed first."""
        if self.halted or self.closed:
            return
        due = [schedule for schedule in self.schedules if schedule.armed is not None and schedule.armed[0] <= self.now]
        for schedule in sorted(due, key=lambda schedule: schedule.armed or (0, 0)):
            schedule.armed = None
            self.outbox.append(lambda schedule=schedule: schedule.step(self))  # type: ignore[misc]
        self.drain_outbox()

    def next_due(self) -> float | None:
        """Return when something may happen next that does not need to be asked for."""
        times = [job.run_at for job in self.pending if job.place is DELAYED and not job.parents]
        times += [schedule.armed[0] for schedule in self.schedules if schedule.armed is not None]
        held = {name for job in self.pending if job.place is READY for name in job.work.limits}
        times += [at for name in held if (at := self.room_at(name, self.now)) is not None]
        times += [job.expires for job in self.pending if job.expires is not None and not job.attempts]
        return min((at for at in times if at > self.now), default=None)

    # ---------------------------------------------------------------- the wall clock

    def instant(self, work: Work, seconds: float | None) -> float | None:
        """Return a ``deadline`` or ``expires`` of somebody who submits now, on the scheduler's clock."""
        if seconds is None or not work.dated:
            return None if seconds is None else self.now + seconds
        self.look_at_wall()
        return round(seconds - self.offset, DIGITS)

    def look_at_wall(self) -> None:
        """Time anew what is planned on the wall clock and waits for its time, if that clock was set."""
        offset = self.wall - self.now
        if offset != self.offset:
            self.offset = offset
            for job in self.pending:
                if job.place is not READY:
                    self.time_by_wall(job)

    def time_by_wall(self, job: Job) -> None:
        if job.at is not None and not job.attempts:
            job.run_at = max(round(job.at - self.offset, DIGITS), job.submitted_at)

    # ---------------------------------------------------------------- looking inside

    def remembered(self) -> list[Job]:
        return self.ended[-self.history :] if self.history else []

    def find(self, id: Any) -> Job | None:
        """Return the live job with this id, or the last of the history."""
        live = [job for job in self.pending + self.running if job.id == id]
        return [*live, *reversed([job for job in self.remembered() if job.id == id]), None][0]

    def perform(self, operation: Operation) -> Any:
        """Do what an operation says; in ``tests.model.doors``."""
        raise NotImplementedError

    def accept_run(self, schedule: Schedule, run: Run, due: float) -> None:
        """Submit a run of a schedule; in ``tests.model.doors``."""
        raise NotImplementedError

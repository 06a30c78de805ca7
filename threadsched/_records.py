"""Frozen records: what the scheduler shows of itself. Plain data, no behaviour beyond truth and sums."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class JobStatus(enum.Enum):
    """Where a job stands."""

    PENDING = "pending"
    """Accepted and not started: delayed, ready, or waiting for a retry. A worker's claim or a cancel moves it on."""
    RUNNING = "running"
    """Claimed by a worker (or by ``job.claim()``), which alone may settle it."""
    DONE = "done"
    """Ended: the task returned. ``result()`` gives the value."""
    FAILED = "failed"
    """Ended: the last attempt raised, or could not be made. ``exception()`` gives the error."""
    CANCELLED = "cancelled"
    """Ended: given up before a start, or stopped by its own ``check_cancelled()``."""

    @property
    def ended(self) -> bool:
        """Whether the job has reached its one terminal status."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one instant.

    ``submitted == pending + running + done + failed + cancelled`` and ``pending == delayed + ready + waiting`` hold in
    every snapshot.
    """

    workers: int
    """Live worker threads."""
    idle: int
    """Workers asleep."""
    running: int
    pending: int
    delayed: int
    """Pending jobs whose ``run_at`` was still to come when a worker last looked; retries in backoff among them."""
    ready: int
    """Pending jobs that only need a worker."""
    waiting: int
    """Pending jobs held back by something other than time."""
    submitted: int
    done: int
    failed: int
    cancelled: int
    retries: int
    """Attempts beyond the first that were scheduled."""
    lost_workers: int
    """Workers that could not be started, or are stuck and written off."""
    replaced_workers: int
    """Workers that died or were written off and got a successor."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of one job at one instant; times are on the scheduler's clock."""

    id: int | str
    name: str
    status: JobStatus
    priority: float
    attempts: int
    submitted_at: float
    run_at: float
    started_at: float | None
    """When the latest attempt was claimed."""
    finished_at: float | None
    worker: str | None
    """The thread that runs it or ran it last."""
    error: str | None
    """``Type: text`` of the latest failure."""
    stack: str | None = None
    """Where the worker's thread stands, for a running job in ``snapshot()`` and in shutdown reports."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One answer to "why is this job not running?"."""

    kind: str
    """``delayed``, ``queued``, ``paused``, ``parent``, ``limit``, ``retry``, ``running`` or ``ended``; last, for a time
    limit that may still come, ``expires`` or ``timeout``."""
    detail: str
    """The same in words."""
    until: float | None = None
    """The reading of the scheduler's clock at which this reason ends, where that is known."""


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """How the jobs of a scheduler ended, since it was made, and what its shutdown left; true when that is nothing."""

    done: int
    failed: int
    cancelled: int
    pending: int
    """Jobs that have not started and may still, because the wait was not for all of them."""
    running: tuple[JobInfo, ...]
    """Jobs that still run, with the stack of each thread; and those that timed out while their task still runs."""

    def __bool__(self) -> bool:
        return not self.pending and not self.running

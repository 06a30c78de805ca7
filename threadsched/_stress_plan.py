"""What a stress run is asked to do: its settings, the kinds of jobs, and what each kind must come to.

In here: plain data and pure functions. The seed decides how many jobs there are of each kind, in which order each
submitter submits them, and what it does in between; how the threads meet is up to the machine.
"""

from __future__ import annotations

import enum
import math
import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from threadsched import (
    AgingPolicy,
    DeadlinePolicy,
    FifoPolicy,
    Job,
    JobStatus,
    OldestDuePolicy,
    OrderingPolicy,
    PriorityPolicy,
)

# Priority points that a job gains a second under `--policy aging`.
AGING_RATE = 10.0

# Seconds. What a delayed job is delayed by: short, so that rounds end, and long enough to overtake and be overtaken.
DELAYS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05)

PRIORITIES = 10

# Extra starts that a job of the kind RETRY is allowed. It fails one, two or three times, and then once too often.
RETRIES = 2
BACKOFF = 0.001

# Seconds. The limit that a task runs into, and one that is never reached.
SHORT_LIMIT = 0.005
LONG_LIMIT = 3600.0

# Jobs whose records are kept at a time. It bounds the memory, whatever the number of jobs.
ROUND = 20_000


class Kind(enum.IntEnum):
    """What is done with a job, and so how it must end."""

    PLAIN = 0
    """Returns its number: DONE."""
    FAIL = 1
    """Raises: FAILED with that error."""
    RETRY = 2
    """Raises at first: DONE, or FAILED after the last start that it is allowed."""
    TIMEOUT = 3
    """Has a time limit, which every other one runs into: FAILED with JobTimeoutError, the others DONE."""
    CANCEL = 4
    """Is cancelled by its submitter: CANCELLED and never started if that said True, else DONE."""


KIND_NAMES = {
    Kind.PLAIN: "plain",
    Kind.FAIL: "failing",
    Kind.RETRY: "retried",
    Kind.TIMEOUT: "with a time limit",
    Kind.CANCEL: "to be cancelled",
}

POLICIES: dict[str, Callable[[], OrderingPolicy]] = {
    "priority": PriorityPolicy,
    "fifo": FifoPolicy,
    "oldest-due": OldestDuePolicy,
    "deadline": DeadlinePolicy,
    "aging": lambda: AgingPolicy(AGING_RATE),
}

# What the policies' documentation says, written down a second time: the scheduler's own keys would confirm themselves.
ORDERS: dict[str, Callable[[Job[Any]], float]] = {
    "priority": lambda job: job.priority,
    "fifo": lambda job: 0.0,
    "oldest-due": lambda job: job.run_at,
    "deadline": lambda job: math.inf if job.deadline is None else job.deadline,
    "aging": lambda job: job.priority + AGING_RATE * job.run_at,
}


class DeliberateError(Exception):
    """Raised by the tasks that are to fail."""


@dataclass(frozen=True)
class Settings:
    """What the command line says.

    Attributes:
        submitters: Threads that submit.
        workers: Threads of the scheduler.
        jobs: Submit at most so many; None: as many as fit into the time.
        seconds: Submit for at most so many seconds.
        cancel, fail, timeout, retry: Shares of all jobs, together at most 1; each job has one kind.
        delay: Share of all jobs, of any kind, that are delayed.
        policy: A key of `POLICIES`.
        queue: The scheduler's queue structure.
        switch_interval: Seconds after which the interpreter may switch threads; None: as it is.
        seed: Decides the jobs.
        round: Jobs whose records are kept at a time.
        patience: Seconds without any progress that count as a hang.
        soak: Whether the memory must stay flat.
    """

    submitters: int = 32
    workers: int = 8
    jobs: int | None = 1_000_000
    seconds: float = 60.0
    cancel: float = 0.2
    fail: float = 0.1
    delay: float = 0.1
    timeout: float = 0.01
    retry: float = 0.05
    policy: str = "priority"
    queue: Literal["lazy", "indexed"] = "lazy"
    switch_interval: float | None = None
    seed: int = 1
    round: int = ROUND
    patience: float = 30.0
    soak: bool = False

    @property
    def shares(self) -> dict[Kind, float]:
        """The share of each kind but PLAIN, which is what is left."""
        return {Kind.FAIL: self.fail, Kind.RETRY: self.retry, Kind.TIMEOUT: self.timeout, Kind.CANCEL: self.cancel}

    def command(self) -> str:
        """Return the command that repeats the run."""
        words = ["python", "-m", "threadsched", "stress"]
        for name, value in vars(self).items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                words.append(option)
            elif value is not False and value is not None:
                words += [option, str(value)]
        return shlex.join(words)


def draw_kind(settings: Settings, draw: random.Random) -> Kind:
    """Return the kind of the next job."""
    left = draw.random()
    for kind, share in settings.shares.items():
        if left < share:
            return kind
        left -= share
    return Kind.PLAIN


def meets_limit(number: int) -> bool:
    """Say whether the job of this number, of the kind TIMEOUT, runs into its limit."""
    return number % 2 == 1


def failures(number: int) -> int:
    """Return how often the job of this number, of the kind RETRY, would fail if it were always started again."""
    return 1 + number % (RETRIES + 1)


@dataclass(frozen=True)
class Promise:
    """How a job must end, and after how many starts."""

    status: JobStatus
    starts: int


def promised(kind: Kind, number: int, cancelled: bool) -> Promise:
    """Return what the job of this number must come to.

    Args:
        kind: What was done with it.
        number: Its number in the run.
        cancelled: Whether a cancel said True.
    """
    if cancelled:
        return Promise(JobStatus.CANCELLED, 0)
    if kind is Kind.FAIL or (kind is Kind.TIMEOUT and meets_limit(number)):
        return Promise(JobStatus.FAILED, 1)
    if kind is Kind.RETRY:
        fails = failures(number)
        return Promise(JobStatus.FAILED if fails > RETRIES else JobStatus.DONE, min(fails, RETRIES) + 1)
    return Promise(JobStatus.DONE, 1)

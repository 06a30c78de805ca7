"""What random programs are made of. The naive scheduler and the product are told the same words.

An *operation* is a tuple whose first word says what to do; see ``Naive.perform`` for the list. A task may perform one.
"""

import dataclasses
import datetime
import math
from dataclasses import dataclass
from typing import Any

from threadsched import AgingPolicy, DeadlinePolicy, FifoPolicy, Job, Limit, OldestDuePolicy, PriorityPolicy, Retry
from threadsched._options import JobOptions

Operation = tuple[Any, ...]

# Whether the product has this option already.
IF_EXISTS = "if_exists" in JobOptions.__annotations__

# What the wall clock shows when the program begins.
MIDNIGHT = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)

# No program makes more schedules than this; each may make others, and so on.
SCHEDULES = 3

LIMITS = {
    "one": Limit(concurrency=1),
    "two": Limit(concurrency=2),
    "slow": Limit(rate=1, per=2),
    "mail": Limit(rate=2, per=1),
    "both": Limit(concurrency=1, rate=2, per=1.5),
}


class ByAttempts:
    """A key policy with a tuple for a key: even attempts first, then the highest priority number."""

    def key(self, job: Job[Any]) -> tuple[str, float]:
        return ("odd" if job.attempts % 2 else "even", -job.priority)


class Unimportant:
    """A comparing policy: the highest priority number first."""

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        return a.priority > b.priority


def aged(job: Any) -> float:
    """Return what ``AgingPolicy(0.5)`` ranks by."""
    priority = float(job.priority)
    return priority if math.isinf(priority) else priority + 0.5 * float(job.run_at)


# What the scheduler gets, and what a plain sort goes by; the number of the submission has the last word.
POLICIES: dict[str, tuple[Any, Any]] = {
    "priority": (PriorityPolicy, lambda job: job.priority),
    "fifo": (FifoPolicy, lambda job: 0),
    "oldest due": (OldestDuePolicy, lambda job: job.run_at),
    "deadline": (DeadlinePolicy, lambda job: math.inf if job.deadline is None else job.deadline),
    "aging": (lambda: AgingPolicy(0.5), aged),
    "by attempts": (ByAttempts, lambda job: ("odd" if job.attempts % 2 else "even", -job.priority)),
    "before": (Unimportant, lambda job: -job.priority),
}


class GiveUpError(Exception):
    """What a ``give_up`` raises that cannot decide."""


def gives_up(error: Exception) -> bool:
    return "hopeless" in str(error)


def raises(error: Exception) -> bool:
    raise GiveUpError


class Brief:
    """Shows only what is not as usual, so that a failing program can be read."""

    def __repr__(self) -> str:
        known = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        told = [f"{field.name}={value!r}" for field, value in known if value != field.default]
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True, repr=False)
class Again(Brief):
    """How often, and after what pause, a failed attempt is followed by another."""

    retries: int
    backoff: float = 0.01
    whole: bool = False
    """Given as a ``Retry``, which can say what follows."""
    factor: float = 2
    max_backoff: float | None = None
    jitter: float = 0
    only_os_errors: bool = False
    give_up: str | None = None
    """None, ``"hopeless"`` or ``"raises"``."""

    def options(self) -> dict[str, Any]:
        if not self.whole:
            return {"retries": self.retries, "backoff": self.backoff}
        return {
            "retry": Retry(
                self.retries,
                self.backoff,
                self.factor,
                self.max_backoff,
                self.jitter,
                on=(OSError,) if self.only_os_errors else (Exception,),
                give_up={None: None, "hopeless": gives_up, "raises": raises}[self.give_up],
            )
        }


@dataclass(frozen=True, repr=False)
class Work(Brief):
    """What a task does, and the options that jobs and schedules share."""

    name: str | None = None
    priority: float = 5
    again: Again = Again(0)
    deadline: float | None = None
    expires: float | None = None
    dated: bool = False
    """The two above are seconds after ``MIDNIGHT``, on the wall clock, and not from the submission."""
    timeout: float | None = None
    limits: tuple[str, ...] = ()
    context: bool = True
    takes: float = 0
    """Seconds of the clock that each attempt takes."""
    fails: int = 0
    """So many of the first attempts raise."""
    every: int = 1
    """Of the runs of a schedule only the first of so many fails, then again the first of so many."""
    error: tuple[str, float] = ("value", 0)
    """What they raise: ``value``, ``hopeless``, ``os``, ``exit``, ``after`` with the pause asked for, or ``stop``."""
    does: Operation | None = None
    """What every attempt does before that."""

    def options(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "priority": self.priority,
            "deadline": self.when(self.deadline),
            "expires": self.when(self.expires),
            "timeout": self.timeout,
            "limits": self.limits,
            "context": self.context,
            **self.again.options(),
        }

    def when(self, seconds: float | None) -> Any:
        return MIDNIGHT + datetime.timedelta(seconds=seconds) if self.dated and seconds is not None else seconds


@dataclass(frozen=True, repr=False)
class Spec(Brief):
    """A submission."""

    work: Work = Work()
    id: str | None = None
    if_exists: str = "raise"
    delay: float = 0
    at: float | None = None
    """Seconds after ``MIDNIGHT``, on the wall clock."""
    after: tuple[tuple[str, int], ...] = ()
    """``("job", index)`` and ``("foreign", index)``."""
    any_outcome: bool = False
    watched: bool = False
    """Somebody adds a done-callback."""


@dataclass(frozen=True, repr=False)
class Recurrence(Brief):
    """A call of ``every``."""

    work: Work = Work()
    seconds: float = 1
    mode: str = "rate"
    missed: str = "coalesce"
    start: float | None = None
    until: float | None = None
    max_runs: int | None = None
    max_failures: int | None = None
    jitter: float = 0

    def options(self) -> dict[str, Any]:
        given = {
            "mode": self.mode,
            "missed": self.missed,
            "start": self.start,
            "until": self.until,
            "max_runs": self.max_runs,
            "max_failures": self.max_failures,
            "jitter": self.jitter,
        }
        return {**self.work.options(), **given}

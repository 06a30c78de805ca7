"""A pure-Python job scheduler to embed in long-running services."""

from threadsched._clock import Clock
from threadsched._errors import (
    BrokenSchedulerError,
    DeadlockError,
    DependencyError,
    DuplicateJobError,
    IllegalMoveError,
    InterpreterExitRuntimeError,
    InvariantError,
    JobDroppedError,
    JobExpiredError,
    JobStoppedError,
    JobTimeoutError,
    NestingError,
    QueueFullError,
    RetryAfter,
    SchedulerClosedError,
    ThreadschedError,
    UnknownLimitError,
    WorkerDiedError,
)
from threadsched._job import Job
from threadsched._limit import Limit, LimitInfo
from threadsched._policy import (
    AgingPolicy,
    BeforePolicy,
    DeadlinePolicy,
    FifoPolicy,
    KeyPolicy,
    OldestDuePolicy,
    OrderingPolicy,
    PriorityPolicy,
)
from threadsched._records import JobInfo, JobStatus, Reason, ShutdownReport, Stats
from threadsched._retry import Retry
from threadsched._schedule import Schedule
from threadsched._scheduler import Scheduler
from threadsched._submitter import Submitter
from threadsched._worker import current_job

__all__ = [
    "AgingPolicy",
    "BeforePolicy",
    "BrokenSchedulerError",
    "Clock",
    "DeadlinePolicy",
    "DeadlockError",
    "DependencyError",
    "DuplicateJobError",
    "FifoPolicy",
    "IllegalMoveError",
    "InterpreterExitRuntimeError",
    "InvariantError",
    "Job",
    "JobDroppedError",
    "JobExpiredError",
    "JobInfo",
    "JobStatus",
    "JobStoppedError",
    "JobTimeoutError",
    "KeyPolicy",
    "Limit",
    "LimitInfo",
    "NestingError",
    "OldestDuePolicy",
    "OrderingPolicy",
    "PriorityPolicy",
    "QueueFullError",
    "Reason",
    "Retry",
    "RetryAfter",
    "Schedule",
    "Scheduler",
    "SchedulerClosedError",
    "ShutdownReport",
    "Stats",
    "Submitter",
    "ThreadschedError",
    "UnknownLimitError",
    "WorkerDiedError",
    "current_job",
]

for _name in __all__:
    # Tracebacks and reprs name what users import, not the room it lives in.
    if getattr(globals()[_name], "__module__", "").startswith("threadsched._"):
        globals()[_name].__module__ = "threadsched"
del _name

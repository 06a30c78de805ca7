"""Every exception of the package, in one tree.

Each class has :class:`ThreadschedError` and its standard-library relative as parents, so that code written for
``concurrent.futures`` catches ours without knowing us. What a task itself raises is never wrapped.
"""

from __future__ import annotations

import concurrent.futures
import queue

from threadsched._numbers import seconds as checked_seconds


class ThreadschedError(Exception):
    """The parent of all errors raised by threadsched itself."""


class SchedulerClosedError(ThreadschedError, RuntimeError):
    """Raised when work is submitted to a scheduler whose door is closed."""


class InterpreterExitRuntimeError(SchedulerClosedError):
    """Raised instead once the exiting interpreter has closed the door.

    Its name ends as the standard library's error for the same, so who searches a log for ``RuntimeError: cannot
    schedule new futures`` finds it.
    """


class BrokenSchedulerError(ThreadschedError, concurrent.futures.BrokenExecutor):
    """Raised, and set on pending jobs, when the scheduler's ``initializer`` failed."""


class DuplicateJobError(ThreadschedError, ValueError):
    """Raised when an ``id`` belongs to a job that is live or still in the history."""


class QueueFullError(ThreadschedError, queue.Full):
    """Raised by a submission that finds ``max_pending`` jobs and may not, or not any longer, wait for a place.

    Nothing is left behind of that submission.
    """


class JobDroppedError(ThreadschedError, concurrent.futures.CancelledError):
    """Raised by ``result()`` of a job that was cancelled to keep the queue within ``max_pending``; says which rule."""


class JobTimeoutError(ThreadschedError, TimeoutError):
    """What an attempt fails with that has run for as long as its ``timeout``.

    Whatever the task returns or raises later is dropped; an error that it brought too late is the ``__cause__``.
    """


class JobExpiredError(ThreadschedError, concurrent.futures.CancelledError):
    """Raised by ``result()`` of a job that was cancelled because it had not started by the time of its ``expires``."""


class UnknownLimitError(ThreadschedError, ValueError):
    """Raised when a job option names a limit that the scheduler does not have."""


class WorkerDiedError(ThreadschedError, RuntimeError):
    """Set on a job whose worker died outside of the task, in the scheduler's own loop."""


class DeadlockError(ThreadschedError, RuntimeError):
    """Raised by a wait, inside a task, that no thread could ever end; it names the jobs that wait for one another.

    The waiting task may catch it. Nothing else has changed: the other jobs go on.
    """


class NestingError(DeadlockError):
    """Raised by ``result()`` inside a task when 100 jobs wait on its thread already, each for the next.

    To start yet another one there would end in a RecursionError, and to wait for another worker, maybe never.
    """


class IllegalMoveError(ThreadschedError, concurrent.futures.InvalidStateError):
    """Raised when a job is asked for a move that its status does not allow; nothing has changed then."""


class JobStoppedError(ThreadschedError, concurrent.futures.CancelledError):
    """Raised by ``current_job().check_cancelled()`` once a stop was requested.

    A task that lets it out ends CANCELLED.
    """


class DependencyError(ThreadschedError, concurrent.futures.CancelledError):
    """What ``result()`` of a job raises that was cancelled because a parent did not end DONE.

    Its ``__cause__`` is the error at the bottom of it: what the parent failed with, or, where the parent fell in the
    same way, what the first of them failed with. None if that one was merely cancelled.
    """

    parent: int | str | None = None
    """The id of the parent that ended; None if it is a future without one."""
    root: str = ""
    """The first job of the chain that did not end DONE, in words."""


class InvariantError(ThreadschedError, AssertionError):
    """Raised by ``Scheduler.check()`` when the bookkeeping contradicts itself, which is a bug of ours."""


class RetryAfter(ThreadschedError):
    """Raised by a task to fail this attempt and to set the pause before the next one exactly.

    The job needs retries left; without them it ends FAILED with this error.

    Args:
        seconds: the pause in seconds on the scheduler's clock, a real number or a ``timedelta``; 0 means as soon
            as a worker is free.
        message: what to say of the attempt's failure; a sentence about the pause by default.

    Raises:
        TypeError: ``seconds`` is not a number.
        ValueError: ``seconds`` is negative, infinite or NaN.
    """

    def __init__(self, seconds: object, message: str | None = None) -> None:
        self.seconds = checked_seconds("seconds", seconds)
        super().__init__(message or f"asked to be run again after {self.seconds:g} s")

    def __reduce__(self) -> tuple[type[RetryAfter], tuple[float, str], dict[str, object]]:
        return type(self), (self.seconds, str(self)), self.__dict__

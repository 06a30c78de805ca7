"""The job: a ``concurrent.futures.Future`` with a number, a time and a status; and the only place that moves it.

Life of a job::

    submit ──> PENDING ──claim──> RUNNING ──finish──> DONE
                │  ^                │ │
                │  └────retry───────┘ └────fail─────> FAILED
                │                   │                   ^
                ├──────fail─────────│───────────────────┘
                │                   └────stop─────┐
                └──────cancel───────────────> CANCELLED

``MOVES`` is the same as a table, and each move is one method below; an illegal one raises and changes nothing. All of
them are called with the scheduler's lock held. PENDING to FAILED is for a job that can no longer be started: in
backoff when the scheduler is told to stop, or queued when it breaks. A fork cancels what the child inherited, also
what ran (``orphaned``), a move that only fork makes.

**Why not** ``Future.__init__``: it builds a ``Condition`` for every future, which costs more than a whole submission
should. A job has slots, and builds a condition only when ``concurrent.futures.wait`` or ``as_completed`` ask for one.
``_state``, ``_condition`` and ``_waiters`` are therefore kept under the names those functions use.

Locking: the fields are written under the scheduler's lock only. ``_result`` is written before
``_state``, so a reader that sees an ended state without the lock sees the outcome too. Where a condition exists, the
state changes under both, the condition first.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import types
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from threadsched import _errors, _log, _numbers
from threadsched._records import JobInfo, JobStatus, Reason

if TYPE_CHECKING:
    from threadsched._locks import JobCondition
    from threadsched._options import Options
    from threadsched._runtime import Runtime

T = TypeVar("T")

# The words of concurrent.futures, which its wait() and as_completed() look for in _state.
PENDING = "PENDING"
RUNNING = "RUNNING"
CANCELLED = "CANCELLED"  # decided, and those who watch its condition not yet told
_NOTIFIED = "CANCELLED_AND_NOTIFIED"
FINISHED = "FINISHED"

# (from, to): the move's name. docs/design.md draws this table, and a test compares.
MOVES: dict[tuple[JobStatus, JobStatus], str] = {
    (JobStatus.PENDING, JobStatus.RUNNING): "claim",
    (JobStatus.PENDING, JobStatus.CANCELLED): "cancel",
    (JobStatus.PENDING, JobStatus.FAILED): "fail",
    (JobStatus.RUNNING, JobStatus.DONE): "finish",
    (JobStatus.RUNNING, JobStatus.FAILED): "fail",
    (JobStatus.RUNNING, JobStatus.CANCELLED): "stop",
    (JobStatus.RUNNING, JobStatus.PENDING): "retry",
}

# What _place says of a PENDING job; of a RUNNING one it is the worker (or None, claimed by claim()).
DELAYED = "delayed"
READY = "ready"
WAITING = "waiting"  # held back by a rule of its own, in no queue


def task_name(fn: object) -> str:
    """Return a name for a task, whatever its attributes do; runs foreign code, so never under the lock."""
    if type(fn) is types.MethodType:
        fn = fn.__func__  # whose name it has; asked itself, it would look for it by a detour
    if type(fn) is types.FunctionType:
        return fn.__qualname__
    try:
        # A functools.partial is known by what it calls.
        inner = fn if type(fn) is types.BuiltinFunctionType else getattr(fn, "func", fn)
        name = getattr(inner, "__qualname__", None)
    except Exception:  # an attribute hook of the caller's
        name = None
    return name if type(name) is str else type(fn).__qualname__


class Attached:
    """What hangs on the few jobs that somebody waits for, watches, or asks to stop."""

    # Most of these have none of most: defaults of the class, which only those who need another value set.
    condition: JobCondition | None = None
    no_retry = False
    """Somebody cancelled it while it ran: it goes on, and is not started again."""
    stop = False
    """``request_cancel`` was called."""
    stopper: Callable[[], None] | None = None
    """Asks the running attempt to stop beyond the token: cancels a coroutine. From any thread, lock not held."""
    sleeper: Any = None
    """The token on which the task itself sleeps in ``sleep()``."""
    rules: tuple[Any, ...] = ()
    """What may hold the job back and is told of its moves: see ``_rules.Rule``."""
    trail: tuple[str, ...] = ()
    """Earlier attempts' failures, in words."""
    error: BaseException | None = None
    """The latest failure while the job waits for its retry."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        """Threads asleep in ``result()``: one token each, released when the job ends."""
        self.callbacks: list[Callable[[Any], object]] = []


class Failure:
    """The outcome of a FAILED job: the traceback as the task left it, and whether anybody looked.

    Made only on failure. If it is collected unseen, which is when the job is, the error is logged: nothing is lost
    silently.
    """

    __slots__ = ("attempts", "error", "id", "name", "seen", "traceback")

    def __init__(self, job: Job[Any], error: BaseException) -> None:
        self.seen = True  # until it is whole: an interrupt may leave it half made
        self.id = job.id
        self.name = job.name
        self.attempts = job._attempts
        self.error = error
        self.traceback = _log.traceback_of(error)
        self.seen = False

    def __del__(self) -> None:
        if not getattr(self, "seen", True):  # struck at its very birth it has no field yet
            error = self.error
            BaseException.with_traceback(error, self.traceback)
            _log.report(
                logging.ERROR,
                "job %r (%s) failed after %d attempt(s) and nobody asked for its result: %s",
                self.id,
                self.name,
                self.attempts,
                _log.describe_error(error),
                error=error,
            )


class OwnCondition:
    """``Job._condition``, which ``wait`` and ``as_completed`` lock; who asks for it counts as having looked.

    Asked once, for from then on it stands in the job's own dictionary. So leaving it, in ``wait``, runs no code of ours
    that Ctrl-C could strike, which would leave it locked, and with it the worker that ends the job.
    """

    def __get__(self, job: Job[Any] | None, owner: type[Job[Any]] | None = None) -> OwnCondition | JobCondition:
        """Return the condition of a job, made now; itself if the class is asked, as a property does."""
        if job is None:
            return self
        if isinstance(job._result, Failure):
            job._result.seen = True
        condition: JobCondition = job.__dict__.setdefault("_condition", job._runtime.condition_of(job))
        return condition


class Job(concurrent.futures.Future[T], Generic[T]):
    """One accepted piece of work, and the future of its result. Made by a scheduler alone.

    Everything of ``concurrent.futures.Future`` works, ``wait`` and ``as_completed`` included. Beyond it there are the
    read-only ``id``, ``name``, ``status``, ``priority``, ``seq``, ``submitted_at``, ``run_at``, ``deadline`` and
    ``attempts``.

    Thread safety: any method from any thread. A job can be neither pickled nor copied.
    """

    __slots__ = (
        "_args",
        "_attached",
        "_attempts",
        "_fn",
        "_key",
        "_options",
        "_place",
        "_priority",
        "_result",
        "_run_at",
        "_runtime",
        "_seq",
        "_started_at",
        "_state",
        "_submitted_at",
    )

    # All of these but the last two are filled in by who makes a job: Runtime.submit, and _bulk.make_jobs.
    _runtime: Runtime
    _fn: Any  # the task, keywords and all; its name, a str, once the job has ended
    _args: Any
    _options: Options  # what of them outlasts the submission
    _priority: float
    _submitted_at: float
    _run_at: float
    _place: Any
    _state: str
    _attempts: int
    _started_at: float | None
    _attached: Attached | None
    # The context to run in, or None. Once it has ended the value, the Failure of a failed job, or the reason of a
    # cancelled one, or None: a slot less in a pending job.
    _result: Any
    # Given by the scheduler with the lock held, just before the job is accepted.
    _seq: int
    _key: Any  # what the ready queue ranks it by; once it has ended, when that was: a slot less, too

    # Of a job with a deadline its own, in the instance's dictionary: the others pay no slot for it.
    _deadline: float = math.inf

    _no_rank = 0  # what FifoPolicy's key reads: every job alike, so the submission number decides

    def __init__(self) -> None:
        raise TypeError("a Job is made by a scheduler: submit a task to one")

    # ---------------------------------------------------------------- what it is

    @property
    def id(self) -> int | str:
        """The ``id`` it was submitted with, or its submission number."""
        given = self._options.id
        return self._seq if given is None else given

    @property
    def name(self) -> str:
        """The ``name`` it was submitted with, or the task's qualified name."""
        given = self._options.name
        if given is not None:
            return given
        fn = self._fn
        return fn if type(fn) is str else task_name(fn)

    @property
    def seq(self) -> int:
        """The submission number, which decides ties."""
        return self._seq

    @property
    def priority(self) -> float:
        """Its priority; the lower number runs first."""
        return self._priority

    @property
    def submitted_at(self) -> float:
        """The reading of the scheduler's clock at submission."""
        return self._submitted_at

    @property
    def run_at(self) -> float:
        """The earliest start, on the scheduler's clock; moved by a retry."""
        return self._run_at

    @property
    def deadline(self) -> float | None:
        """When it should have ended, on the scheduler's clock; None without one. Orders under ``DeadlinePolicy``."""
        deadline = self._deadline
        return None if deadline == math.inf else deadline

    @property
    def attempts(self) -> int:
        """How often it was started; 0 before the first start."""
        return self._attempts

    @property
    def status(self) -> JobStatus:
        """Where it stands now."""
        state = self._state
        if state == PENDING:
            return JobStatus.PENDING
        if state == RUNNING:
            return JobStatus.RUNNING
        if state == FINISHED:
            return JobStatus.FAILED if type(self._result) is Failure else JobStatus.DONE
        return JobStatus.CANCELLED

    def info(self) -> JobInfo:
        """Return what is known of it at this instant, as a frozen record."""
        return self._runtime.info_of(self)

    def explain(self) -> list[Reason]:
        """Return why it is not running: delayed until when, queued, in backoff, running, or ended.

        For an ended job the one reason says how it ended. With a time limit that may still come, the last reason says
        which, and when. Cost: O(1).
        """
        return self._runtime.explain(self)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name} {self.status.name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Job cannot be pickled or copied: it belongs to its scheduler ({self!r})")

    # ---------------------------------------------------------------- Future's face

    def cancel(self) -> bool:
        """Give the job up before its start.

        Returns:
            True if it is cancelled now, by this call or an earlier one; False if it runs or has ended. Of a running
            job nothing changes, except that no retry will follow.
        """
        if self._state == FINISHED:
            return False  # without a lock: Executor.map cancels each future it has taken the result of
        return self._runtime.cancel(self) or self.cancelled()

    def cancelled(self) -> bool:
        """Return True if the job ended CANCELLED."""
        return self._state in (CANCELLED, _NOTIFIED)

    def running(self) -> bool:
        """Return True while the task runs."""
        return self._state == RUNNING

    def done(self) -> bool:
        """Return True once the job has ended, however it did."""
        return self._state in (FINISHED, CANCELLED, _NOTIFIED)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the job to end and return its value, or raise what its last attempt raised.

        Inside a task of the same scheduler, and without a timeout, it does not merely wait: a job that is due is run
        right there, so tasks that wait for tasks do not use up the pool.

        Args:
            timeout: real seconds to wait at most; None waits for ever, 0 or less does not wait.

        Raises:
            TimeoutError: the job had not ended in time. It goes on.
            concurrent.futures.CancelledError: the job ended CANCELLED.
            DeadlockError: inside a task, if no thread could ever end this wait. It is a RuntimeError.
            NestingError: inside a task, if 100 jobs wait on its thread already, each for the next.
            RuntimeError: called by code that interrupted the scheduler itself on this thread (a signal handler, a
                finalizer), where waiting could never end; or for a coroutine job inside the event loop of a worker,
                where ``await job`` is the way.
        """
        if self._state != FINISHED:
            if timeout is None:
                self._runtime.help(self)
            self._wait(timeout)
        outcome: Any = self._result
        if type(outcome) is not Failure:
            value: T = outcome
            return value
        try:
            raise BaseException.with_traceback(outcome.error, self._look_at_failure())
        finally:
            # The traceback holds this frame: without this line it would be a cycle through the job.
            self = outcome = None  # type: ignore[assignment]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like :meth:`result` and return the error, or None if the job is DONE."""
        if self._state != FINISHED:
            if timeout is None:
                self._runtime.help(self)
            self._wait(timeout)
        error = self._exception
        if error is not None:
            self._look_at_failure()
        return error

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call ``fn(job)`` once when the job has ended: at once if it has, else on the thread that ends it.

        No lock of the scheduler is held during the call. What ``fn`` raises is logged and changes nothing else.
        """
        self._runtime.add_callback(self, fn)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait on the running asyncio loop, which is not blocked, and return the value or raise the job's error.

        Cancelling the awaiting asyncio task cancels the job if it is pending, and asks it to stop if it runs
        (``request_cancel``); ``asyncio.shield(job)`` keeps that from it. A job that was cancelled raises an error that
        is both asyncio's and ``concurrent.futures``' CancelledError, or the error that says why it was.

        Raises:
            RuntimeError: the job has not ended, and no asyncio loop runs here.

        Thread safety: any number of tasks, on any number of loops. If a loop is closed before the job ends, nothing
        happens.
        """
        from threadsched import _asyncio

        return _asyncio.wait_for(self)

    def set_result(self, result: T) -> None:
        """Settle a job that ``claim()`` gave to the caller; InvalidStateError for any other."""
        self._runtime.settle_claimed(self, result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle a job that ``claim()`` gave to the caller; InvalidStateError for any other."""
        if not isinstance(exception, BaseException):
            raise TypeError(f"exception must be an exception, not {_numbers.describe(exception)}")
        self._runtime.settle_claimed(self, None, exception)

    def set_running_or_notify_cancel(self) -> NoReturn:
        """Always InvalidStateError: the scheduler moves its jobs, and ``claim()`` is the way to take one from it."""
        raise _errors.IllegalMoveError(f"{self!r} is moved by its scheduler; use claim() to take it")

    def _wait(self, timeout: float | None) -> None:
        if not self._runtime.wait_for_end(self, timeout):
            raise TimeoutError(f"{self!r} had not ended within {timeout} s")
        if self._state != FINISHED:
            reason = self._result  # of a cancelled job: None, or the error that says why
            raise concurrent.futures.CancelledError(f"{self!r}") if reason is None else reason.with_traceback(None)

    def _look_at_failure(self) -> types.TracebackType | None:
        failure: Failure = self._result
        failure.seen = True
        return failure.traceback

    @property
    def _finished_at(self) -> float | None:
        """When it ended, on the scheduler's clock; None before."""
        return self._key if self.done() else None

    if not TYPE_CHECKING:  # a checker shall see Future's own attributes

        @property
        def _exception(self) -> BaseException | None:
            outcome = self._result
            return outcome.error if type(outcome) is Failure else None

        _condition = OwnCondition()

        @property
        def _waiters(self) -> list[Any]:
            return self._condition.waiters

    # ---------------------------------------------------------------- beyond Future

    def claim(self) -> bool:
        """Take a pending job from the scheduler, to run or settle it oneself.

        Returns:
            True if this call moved it from PENDING to RUNNING: the caller must then end it with ``set_result`` or
            ``set_exception``; no retry applies. False if anybody else was first.
        """
        return self._runtime.claim_for_caller(self)

    def set_priority(self, priority: float) -> bool:
        """Give a pending job another priority, and with it another place in the order.

        The job keeps its submission number, so among its new equals it stands where it would have stood with that
        priority from the start. A policy that does not look at priorities leaves it where it is.

        Args:
            priority: a real number that is not NaN; the lower runs first.

        Returns:
            True if the job was pending, delayed or held back included, and is re-ordered; False if it had started
            or ended, and nothing has changed.

        Raises:
            TypeError, ValueError: not such a number.
            Exception: what the policy's ``key`` raises; nothing has changed then.

        Cost: O(log n) amortised; with a policy that has ``before``, O(n log n) at the next start of a job.
        """
        return self._runtime.set_priority(self, _numbers.real("priority", priority))

    def request_cancel(self) -> bool:
        """Cancel a pending job, or ask a running one to stop; the task has to look (see ``current_job``).

        Returns:
            True unless the job has ended already. No retry will follow.
        """
        return self._runtime.request_cancel(self)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked the running task to stop, or its ``timeout`` has passed."""
        attached = self._attached
        return attached is not None and (attached.stop or self._runtime.is_overrun_here(self))

    def check_cancelled(self) -> None:
        """Raise JobStoppedError if a stop was requested; a task that lets it out ends CANCELLED."""
        if self.cancel_requested:
            raise _errors.JobStoppedError(f"{self!r} was asked to stop")

    def sleep(self, seconds: float) -> bool:
        """Sleep inside the task, on the scheduler's clock, until the time is over or a stop is requested.

        Args:
            seconds: a real number or a ``timedelta`` of at least 0.

        Returns:
            True if the time went by; False if a stop was requested.

        Raises:
            RuntimeError: called from outside of the running task.
        """
        return self._runtime.sleep(self, _numbers.seconds("seconds", seconds))

    # ---------------------------------------------------------------- moves, lock held

    def _restamp(self, options: Options, now: float) -> None:
        """Count the times of a job not yet accepted from ``now``: its submitter had to wait for a place."""
        self._submitted_at = now
        self._run_at = now + options.delay
        if options.deadline is not None and not options.deadline.wall:
            self._deadline = now + options.deadline.seconds

    def _illegal(self, move: str) -> NoReturn:
        raise _errors.IllegalMoveError(f"cannot {move} {self!r}")

    def _claim(self, now: float, place: object) -> None:
        if self._state is not PENDING:
            self._illegal("claim")
        self._place = place
        self._started_at = now
        self._attempts += 1
        self._state = RUNNING

    def _finish(self, result: T, name: str, now: float) -> None:
        if self._state is not RUNNING:
            self._illegal("finish")
        self._key = now
        self._result = result
        self._fn = name
        self._args = None
        self._state = FINISHED

    def _fail(self, failure: Failure, now: float) -> None:
        if self._state is not RUNNING and self._state is not PENDING:
            self._illegal("fail")
        self._key = now
        self._result = failure
        self._fn = failure.name
        self._args = None
        self._state = FINISHED

    def _retry(self, run_at: float, key: object) -> None:
        if self._state is not RUNNING:
            self._illegal("retry")
        self._run_at = run_at
        self._key = key
        self._place = DELAYED
        self._state = PENDING

    def _cancel(
        self, name: str, now: float, reason: concurrent.futures.CancelledError | None = None, *, orphaned: bool = False
    ) -> None:
        """PENDING → CANCELLED, or RUNNING → CANCELLED for a task that stopped itself or was left behind by a fork.

        Where a condition exists, its waiters have to be told under it: the state says so until then.
        """
        if self._state is not PENDING and self._state is not RUNNING:
            self._illegal("cancel")
        self._key = now
        self._result = reason
        self._fn = name
        self._args = None
        attached = self._attached
        if attached is None or attached.condition is None or orphaned:
            self._state = _NOTIFIED
        else:
            self._state = CANCELLED

    def _tell_cancelled(self) -> bool:
        """CANCELLED → CANCELLED_AND_NOTIFIED, for the one who may tell the waiters. Under the job's condition."""
        if self._state is not CANCELLED:
            return False
        self._state = _NOTIFIED
        return True

    def _attach(self) -> Attached:
        """Return the attachments, made on first use. Lock held."""
        if self._attached is None:
            self._attached = Attached()
        return self._attached


new_job: Any = Job.__new__
"""Makes a job without any field, for who fills them in: past ``Future.__init__``, see the top of this file."""

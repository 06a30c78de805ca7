"""What the threaded and the stepped scheduler have in common for those who call them.

A face has no lock and no thread, and decides nothing: it checks what it is given and hands it to the runtime, which
does not hold the face, so a scheduler that nobody holds any more is noticed.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from threadsched import _inspect, _numbers, _schedule
from threadsched._clock import Clock
from threadsched._job import Job
from threadsched._limit import LimitInfo
from threadsched._map import map_over
from threadsched._options import DEFAULTS, ScheduleOptions, Seconds
from threadsched._plan import DEFAULT_PLAN
from threadsched._policy import OrderingPolicy
from threadsched._records import JobInfo, JobStatus, Stats
from threadsched._runtime import Runtime
from threadsched._schedule import Schedule
from threadsched._submitter import Submitter, Submitters

P = ParamSpec("P")
T = TypeVar("T")


class Face(concurrent.futures.Executor):
    """An executor with options, schedules, and a look inside. Subclasses make the runtime, and say how it ends."""

    _runtime: Runtime
    _submitters: Submitters

    # ---------------------------------------------------------------- work in

    @overload
    def submit(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Accept ``fn(*args, **kwargs)`` to run as soon as a worker is free, and return its job.

        Every keyword belongs to ``fn``; what concerns the job is said by :meth:`options`. If ``fn`` is an ``async
        def``, or returns a coroutine object, the worker runs that to its end on an event loop of its own, and the job
        settles then.

        Raises:
            TypeError: ``fn`` is not callable.
            SchedulerClosedError: after ``shutdown``. It is a RuntimeError.
            BrokenSchedulerError: an initializer failed.
            QueueFullError: ``max_pending`` jobs are pending, and ``on_full`` says so.
            RuntimeError: no worker could be started; the job is not queued then.

        Thread safety: any thread, a job, a signal handler, a finalizer. Blocks for longer than the lock is held
            only with ``max_pending`` and ``on_full="block"``; never on a worker of this scheduler nor where it
            interrupted the scheduler itself.

        Cost: O(log n) in the pending jobs.
        """
        return self._runtime.submit(fn, args, kwargs, DEFAULTS, 0.0)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Seconds | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Submit ``fn`` for each input and return an iterator over the results, in the order of the input.

        A task's error is raised in its place and ends the iterator. When the iterator ends, is closed, or dropped half
        read, the jobs that have not started are cancelled; one that was never read lets all run. An error of the input
        comes after the results before it, if the call of ``map`` itself did not meet it. Where the queue is full and
        the submission may not wait (a worker, or another rule than "block"), reading ahead stops until a result was
        taken.

        Args:
            fn: the task; it gets one item of each iterable, up to the shortest.
            iterables: the inputs; an infinite one needs ``buffersize``.
            timeout: real seconds from this call within which each result must be there; None waits for ever.
            chunksize: accepted for the sake of other executors, an int above 0, and ignored.
            buffersize: how many jobs may be submitted whose results were not taken yet, an int above 0; None submits
                all at once.

        Raises:
            TypeError, ValueError: an argument that is none of these.
            TimeoutError: from the iterator, which has then ended.
            QueueFullError: there is no place for the very next job, and none of this map's is to come.

        Thread safety: the iterator is for one thread at a time. Cost: O(1) jobs for each result.
        """
        bulk = (self._runtime, DEFAULTS, 0.0) if type(self).submit is Face.submit else None
        return map_over(self.submit, fn, iterables, timeout, chunksize, buffersize, bulk)

    def every(self, seconds: Seconds, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` every ``seconds``, first after one interval, and return its schedule.

        Runs never overlap, and each is a job of its own. The next is due on the grid of the first run, however long or
        late the runs are; ``options(mode=..., missed=..., start=...)`` say otherwise. A run that fails is reported
        like any job, and the next one happens. Context variables are copied here, once, and each run sees that copy.

        Args:
            seconds: the interval in seconds or as a ``timedelta``, at least a millionth of a second.
            fn: the task.
            args: for ``fn``.
            kwargs: for ``fn``.

        Raises:
            TypeError: ``seconds`` is no number, or ``fn`` is not callable.
            ValueError: ``seconds`` is 0, negative, NaN or infinite.
            SchedulerClosedError, BrokenSchedulerError, RuntimeError: as ``submit`` does.

        Thread safety: as ``submit``. Cost: O(log n) in the schedules for each run, however many were missed.
        """
        return _schedule.every(self._runtime, seconds, (fn, args, kwargs), DEFAULTS, DEFAULT_PLAN)

    def cron(self, expression: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` whenever a cron expression says so, in UTC; ``options(tz=...)`` names a zone.

        A fixed hour runs once a day, every day, also when the clocks are changed; ``*`` runs through the repeated hour.
        Follows the wall clock: if that is set, this is noticed within 30 seconds. Everything else as :meth:`every`.

        Args:
            expression: five fields (minute, hour, day of the month, month, day of the week), or six, the second first.
            fn: the task.
            args: for ``fn``.
            kwargs: for ``fn``.

        Raises:
            ValueError: the expression means nothing, or never comes.
            ModuleNotFoundError: the extra ``cron`` is not installed.
            TypeError, SchedulerClosedError, BrokenSchedulerError, RuntimeError: as :meth:`every` does.
        """
        return _schedule.cron(self._runtime, expression, (fn, args, kwargs), DEFAULTS, DEFAULT_PLAN)

    def options(self, **options: Unpack[ScheduleOptions]) -> Submitter:
        """Return an executor that submits to this scheduler with these job options.

        The options, all of them optional:

        - ``id``: a str, unique among live and remembered jobs; otherwise the submission number, an int.
        - ``if_exists``: what a submission does whose ``id`` is taken. ``"raise"``, the default: DuplicateJobError.
          ``"return"``: it returns the live job with that id and submits nothing. ``"replace"``: that job is cancelled
          and this one accepted, at once and whole, if it is pending; if it runs, DuplicateJobError. Under the last two
          the id of a job that has ended may be used again.
        - ``name``: what logs and records call it; otherwise the task's qualified name.
        - ``delay``: seconds, or a ``timedelta``, until it may start; 0, the default, means now.
        - ``at``: an aware ``datetime``, until which it must wait on the wall clock; not together with ``delay``. If the
          wall clock is set, this is noticed within 30 seconds. A time that has gone by means now.
        - ``priority``: a real number, 5 by default; the lower runs first.
        - ``retries``: extra starts allowed after a failure, an int of at least 0, the default.
        - ``backoff``: the pause before the first retry in seconds (0.01 by default), doubled for each further one.
        - ``retry``: a :class:`Retry`, which says more; not together with ``retries`` or ``backoff``.
        - ``timeout``: how long an attempt may run, in seconds above 0 or as a ``timedelta``. Then it fails with
          :class:`JobTimeoutError`, or is retried, and its cancel token is set. A coroutine is cancelled. A function
          cannot be stopped: its thread lives on until it returns, what it brings then is dropped, and another thread
          takes its place in the pool; at most as many threads are lost so at a time as there are workers. No limit for
          a job taken by ``claim()``.
        - ``expires``: seconds after the submission, a ``timedelta``, or an aware ``datetime``; a job that has not
          started by then ends CANCELLED with :class:`JobExpiredError`. A ``datetime`` is turned into a reading of the
          scheduler's clock at the submission.
        - ``deadline``: likewise; orders under :class:`DeadlinePolicy` and does nothing else.
        - ``submit_timeout``: real seconds that the submission may wait for a place in a full queue; None, the default,
          means as long as it takes, 0 not to wait. Without effect where it would not wait at all.
        - ``limits``: a name, or names, of the scheduler's limits; the job starts when all of them have room, and keeps
          no worker until then. ``job.claim()`` is refused without room.
        - ``context``: whether the task sees the submitter's context variables, True by default; False gives it an
          empty context.
        - ``after``: a future or an iterable of them, its *parents*: jobs of this scheduler, of another, or any
          ``concurrent.futures.Future``. The job may start when its own time has come and every parent has ended DONE,
          with its retries. A parent that ends otherwise cancels it with :class:`DependencyError`, and so its own
          dependents. A parent that has ended already counts at once. None or no parents: it waits for nobody.
        - ``after_any_outcome``: True lets the job run however its parents end; False by default.

        For ``every`` and ``cron`` also these, and not ``id``, ``delay`` and ``at``:

        - ``mode``: ``"rate"``, the default, keeps to the grid of the first run; ``"delay"`` counts the interval from
          the end of the last run. For ``every`` alone.
        - ``missed``: what becomes of planned runs that went by. ``"coalesce"``, the default: one late run for all, at
          once. ``"skip"``: none. ``"burst"``: every one, back to back.
        - ``start``: the first run, in seconds or as a ``timedelta`` from now (0 is now), or an aware ``datetime``.
          In the past it is where the grid begins, and the first run is the next one on it.
        - ``until``: likewise; no run is planned after it.
        - ``max_runs``, ``max_failures``: the schedule ends after so many runs, or failures in a row; an int above 0.
        - ``jitter``: seconds, or a ``timedelta``, by which each run is moved at random around its time, at most to the
          next one. The plan itself is not moved. The draws come from the module ``random``.
        - ``tz``: a ``tzinfo``, such as ``zoneinfo.ZoneInfo("Europe/Berlin")``, for ``cron``; UTC by default.

        Raises:
            TypeError: an unknown option, a value of another type, or ``at`` together with ``delay``.
            ValueError: a number out of range, an unknown word, or a ``datetime`` without a time zone.
            UnknownLimitError: ``limits`` names one that the scheduler does not have. It is a ValueError.

        Cost: a few microseconds; about one for numbers, strings and names that were given before. The result may be
            kept for jobs that are alike, and may be the very object of an earlier call.
        """
        return self._submitters.get(options)

    # ---------------------------------------------------------------- work out

    def cancel(self, job_id: int | str) -> bool:
        """Give a pending job up before its start; True only if this very call cancelled it.

        A running job goes on, but is not retried. Cost: O(1) amortised.
        """
        job = self.get(job_id)
        return job is not None and self._runtime.cancel(job)

    def clear(self) -> int:
        """Cancel every job that is pending at this moment, and return how many this call cancelled. O(n)."""
        runtime = self._runtime
        with runtime.lock:
            jobs = list(runtime.core.pending.values())
        return runtime.cancel_batch(jobs)

    def status_of(self, job_id: int | str) -> JobStatus | None:
        """Return the status of a live or remembered job; None if it is not known.

        Cost: O(1) for a live job and for an id of the user's; O(history) for the number of one that has ended.
        """
        known = checked_id(job_id)
        with self._runtime.lock:
            return self._runtime.core.status_of(known)

    def get(self, job_id: int | str) -> Job[Any] | None:
        """Return the live job with this id; None if there is none, or it has ended. O(1)."""
        known = checked_id(job_id)
        with self._runtime.lock:
            return self._runtime.core.find(known)

    # ---------------------------------------------------------------- control

    @property
    def policy(self) -> OrderingPolicy:
        """The rule that orders the ready jobs. Assigning another one re-orders what is pending, at once and whole.

        Assigning costs O(n log n) in the pending jobs. If a key of the new policy raises, the assignment raises that
        error and nothing has changed.
        """
        return self._runtime.core.ranking.policy

    @policy.setter
    def policy(self, policy: OrderingPolicy) -> None:
        self._runtime.set_policy(policy)

    @property
    def closed(self) -> bool:
        """Whether the door is closed: submissions are refused, though jobs may still run."""
        return self._runtime.core.closed

    def pause(self) -> None:
        """Start nothing any more; what runs goes on, timers go on, and submissions are accepted.

        Works before the workers have started. Pausing twice is pausing once; a closed scheduler cannot be paused, and
        ``shutdown`` lifts a pause. ``job.explain()`` says so.
        """
        self._runtime.pause()

    def resume(self) -> None:
        """Lift a pause: what became due meanwhile starts now, in the policy's order. Harmless without a pause."""
        self._runtime.resume()

    # ---------------------------------------------------------------- look inside

    def stats(self) -> Stats:
        """Return the counts of this instant as a frozen record. O(1)."""
        return _inspect.stats(self._runtime)

    def snapshot(self) -> list[JobInfo]:
        """Describe every known job: the history, then what runs (with stacks), then what is pending. O(n)."""
        return _inspect.snapshot(self._runtime)

    def schedules(self) -> list[Schedule]:
        """Return the schedules that have not ended, in order of their making. O(n) in them."""
        return _schedule.schedules(self._runtime)

    @property
    def limits(self) -> Mapping[str, LimitInfo]:
        """How each limit stands at this instant, by name; read-only. O(limits × sets of limits that jobs named)."""
        return _inspect.limits(self._runtime)

    def check(self) -> None:
        """Audit every invariant; InvariantError on the first broken one, which would be a bug of ours. O(n log n)."""
        _inspect.check(self._runtime)


def checked_clock(clock: Clock) -> Clock:
    """Refuse what has no ``now()``."""
    if not callable(getattr(clock, "now", None)):
        raise TypeError(f"clock must have a method now(), which {_numbers.describe(clock)} has not")
    return clock


def checked_word(name: str, value: object, words: Collection[str]) -> str:
    """Refuse what is not one of the words."""
    if not isinstance(value, str) or value not in words:
        *most, last = map(repr, words)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, not {_numbers.describe(value)}")
    return value


def checked_id(job_id: object) -> int | str:
    """Refuse what cannot be a job's id."""
    if type(job_id) is int or type(job_id) is str:
        return job_id
    if isinstance(job_id, str):
        return _numbers.text("job_id", job_id)
    raise TypeError(f"a job's id is a str or an int, not {_numbers.describe(job_id)}")

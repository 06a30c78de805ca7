"""The face of the scheduler: what users call, checked at the door and handed to the runtime.

A :class:`Scheduler` is a ``concurrent.futures.Executor``; so is a :class:`Submitter`, the same scheduler seen through
a set of job options. Neither has a lock or a thread: all that lives in ``_runtime``, which does not hold the scheduler,
so a scheduler that nobody holds any more is noticed.
"""

from __future__ import annotations

import concurrent.futures
import os
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, overload

from threadsched import _exit, _inspect, _numbers, _schedule
from threadsched._clock import Clock, MonotonicClock, VirtualClock
from threadsched._core import DRAINS
from threadsched._gate import make_gate
from threadsched._heap import STRUCTURES
from threadsched._job import Job
from threadsched._limit import Limit, LimitInfo, checked_limits
from threadsched._map import map_over
from threadsched._options import DEFAULTS, Options, ScheduleOptions, Seconds, make_options
from threadsched._plan import DEFAULT_PLAN, RECURRING, Plan, refuse_recurring, refuse_single
from threadsched._policy import OrderingPolicy, PriorityPolicy, Ranking
from threadsched._records import JobInfo, JobStatus, ShutdownReport, Stats
from threadsched._runtime import Runtime
from threadsched._schedule import Schedule

P = ParamSpec("P")
T = TypeVar("T")


class Scheduler(concurrent.futures.Executor):
    """Runs jobs now, later, by priority and again after a failure, on a fixed pool of threads.

    Every accepted job ends DONE, FAILED or CANCELLED exactly once. Equal jobs start in submission order. No job
    starts before its time, and lateness alone never drops one. Not promised: fairness among submitting threads, and
    stopping a task that does not look at its cancel token.

    Args:
        workers: how many tasks run at once, an int above 0; None means as many as ``ThreadPoolExecutor`` takes. The
            threads start at the first submission, all of them.
        policy: which ready job goes next; None means :class:`PriorityPolicy`. Assignable later.
        clock: an object with ``now()``; None means ``time.monotonic``. See ``threadsched.testing.FakeClock``.
        name: what the threads are called: NAME_0, NAME_1, ...
        queue: ``"lazy"``, a heap that cancels in O(1), or ``"indexed"``, a sorted list that removes at once.
        max_pending: how many jobs may be pending, an int above 0: delayed, ready, held back and in backoff, but not
            running. None means any number. A retry goes back without asking, so the count may exceed it by as many as
            run.
        on_full: what a submission does that finds ``max_pending`` jobs. ``"block"``: it waits, first come, first
            served, for ``submit_timeout`` at most; on a worker of this scheduler it raises instead. ``"reject"``: it
            raises QueueFullError. ``"drop_oldest"``: the job that has been in the queue longest is cancelled.
            ``"drop_lowest"``: the one that the policy ranks last is, which may be the new one; needs
            ``queue="indexed"``. ``"caller_runs"``: the task runs on the submitting thread, if it could start at once;
            else QueueFullError. A dropped job's ``result()`` raises JobDroppedError.
        limits: name to :class:`Limit`, for jobs with the option ``limits``; None means that there are none.
        history: how many ended jobs ``status_of`` and ``snapshot`` remember, without results; 0 means none.
        on_error: called as ``on_error(job, error)`` for every job that ends FAILED, on the thread that ended it.
        initializer: called with ``initargs`` on each worker before its first job. If it raises, the scheduler is
            broken: pending and later jobs get BrokenSchedulerError.
        initargs: a tuple of arguments.
        exit_timeout: real seconds, at least 0, that the exiting interpreter waits for running jobs.

    Raises:
        TypeError: an argument of another type (a bool is not a number).
        ValueError: a number out of range, an unknown ``queue`` or ``on_full``, or ``"drop_lowest"`` without
            ``queue="indexed"``.

    Thread safety: every method from any thread, from inside a job, and, where it does not wait, from a signal handler
    or a finalizer.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        policy: OrderingPolicy | None = None,
        clock: Clock | None = None,
        name: str = "threadsched",
        queue: Literal["lazy", "indexed"] = "lazy",
        max_pending: int | None = None,
        on_full: Literal["block", "reject", "drop_oldest", "drop_lowest", "caller_runs"] = "block",
        limits: Mapping[str, Limit] | None = None,
        history: int = 1000,
        on_error: Callable[[Job[Any], BaseException], object] | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        exit_timeout: Seconds = 10.0,
    ) -> None:
        for what, hook in (("on_error", on_error), ("initializer", initializer)):
            if hook is not None and not callable(hook):
                raise TypeError(f"{what} must be a callable, not {_numbers.describe(hook)}")
        gate = make_gate(max_pending, on_full, queue)
        self._runtime = Runtime(
            width=_default_workers() if workers is None else _numbers.count("workers", workers, least=1),
            ranking=Ranking(PriorityPolicy() if policy is None else policy),
            clock=MonotonicClock() if clock is None else checked_clock(clock),
            name=_numbers.text("name", name),
            queue=checked_word("queue", queue, STRUCTURES),
            limits=checked_limits(limits),
            history=_numbers.count("history", history),
            on_error=on_error,
            initializer=None if initializer is None else _bind(initializer, initargs),
            exit_timeout=_numbers.seconds("exit_timeout", exit_timeout),
        )
        self._runtime.core.gate = gate
        self._submitters = Submitters(self._runtime)
        if isinstance(clock, VirtualClock):
            clock.attach(self._runtime)
        _exit.watch_over(self._runtime)
        self._runtime.face = weakref.ref(self)
        weakref.finalize(self, _exit.abandon, self._runtime).atexit = False

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
        return self._runtime.submit(fn, args, kwargs, DEFAULTS, None)

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
        bulk = (self._runtime, DEFAULTS) if type(self).submit is Scheduler.submit else None
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

    def start(self) -> None:
        """Start the workers now rather than at the first submission; raises as ``submit`` does."""
        self._runtime.man()

    def pause(self) -> None:
        """Start nothing any more; what runs goes on, timers go on, and submissions are accepted.

        Works before the workers have started. Pausing twice is pausing once; a closed scheduler cannot be paused, and
        ``shutdown`` lifts a pause. ``job.explain()`` says so.
        """
        self._runtime.pause()

    def resume(self) -> None:
        """Lift a pause: what became due meanwhile starts now, in the policy's order. Harmless without a pause."""
        self._runtime.resume()

    def wait_below(self, pending: int, timeout: Seconds | None = None) -> bool:
        """Wait until fewer than ``pending`` jobs are pending; for producers that pace themselves.

        Args:
            pending: an int above 0; 1 waits for an empty queue. What runs does not count.
            timeout: real seconds to wait at most; None waits for ever, 0 does not wait.

        Returns:
            True if there was such a moment during this call; False if the time ran out.

        Raises:
            TypeError, ValueError: an argument that is none of these.
            RuntimeError: called by code that interrupted the scheduler itself on this thread.
        """
        limit = None if timeout is None else _numbers.seconds("timeout", timeout)
        return self._runtime.wait_below(_numbers.count("pending", pending, least=1), limit)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending and nothing runs, delayed jobs and retries included.

        Args:
            timeout: real seconds to wait at most; None waits for ever, 0 or less does not wait.

        Returns:
            True if there was a moment, during this call, in which the scheduler was idle; False if the time ran out.
        """
        return self._runtime.wait_idle(timeout)

    def shutdown(  # type: ignore[override]  # Executor's returns None; ours says what is left
        self,
        wait: bool = True,
        *,
        cancel_futures: bool = False,
        drain: Literal["all", "due", "none"] = "all",
        timeout: Seconds | None = None,
    ) -> ShutdownReport:
        """Close the door, end the pending jobs as ``drain`` says, wait for the workers, and report.

        Args:
            wait: whether to wait until the workers have left. From inside a job it never waits.
            cancel_futures: the same as ``drain="none"``.
            drain: ``"all"`` runs every pending job, delayed ones at their time; ``"due"`` runs what is ready now,
                cancels what is delayed, and fails what waits for a retry with its last error; ``"none"`` cancels all
                that has not started. Under the last two nothing is retried.
            timeout: real seconds to wait at most; None means until they have left.

        Returns:
            A report that is true when nothing is pending and nothing runs.

        Raises:
            ValueError: an unknown ``drain``.
            RuntimeError: asked to wait by a handler that interrupted the scheduler itself on this thread.

        May be called again, from several threads and with a sharper mode. With ``wait=False`` it is safe in a signal
        handler and in a finalizer.
        """
        mode = checked_word("drain", drain, DRAINS)
        limit = None if timeout is None else _numbers.seconds("timeout", timeout)
        return _exit.shutdown(self._runtime, wait=wait, drain="none" if cancel_futures else mode, timeout=limit)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Shut down and wait; drains "all", or "due" when left by an exception."""
        self.shutdown(drain="all" if kind is None else "due")
        return False

    async def __aenter__(self) -> Scheduler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Shut down as ``with`` does, and wait without blocking the loop; a cancelled wait leaves the door closed."""
        from threadsched import _asyncio

        if self._runtime.on_worker():
            return self.__exit__(kind, error, trace)  # which does not wait there
        drain: Literal["all", "due"] = "all" if kind is None else "due"
        self._runtime.close(drain)  # whatever becomes of the wait
        await _asyncio.call_off_loop(lambda: self.shutdown(drain=drain), f"{self._runtime.name} (closing)")
        return False

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

    def __repr__(self) -> str:
        now = self.stats()
        state = "closed" if self.closed else "open"
        return f"<Scheduler {self._runtime.name} {state}, {now.pending} pending, {now.running} running>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Scheduler cannot be pickled or copied: it owns threads")


class Submitter(concurrent.futures.Executor):
    """A scheduler seen through a set of job options; made by :meth:`Scheduler.options`.

    It is an executor: ``submit`` and ``map`` work as the scheduler's do. It owns nothing, so ``shutdown``, and leaving
    it as a context manager, do nothing. It does not keep the scheduler alive.
    """

    def __init__(self, runtime: Runtime, options: Options, plan: Plan, given: Iterable[str]) -> None:
        if options.limits:
            runtime.limits.check_names(options.limits)
        self._runtime = runtime
        self._options = options
        self._plan = plan
        self._given = given  # the names of the options

    @overload
    def submit(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Accept ``fn(*args, **kwargs)`` with these options; as ``Scheduler.submit``.

        Raises:
            DuplicateJobError: the ``id`` belongs to a live or remembered job. It is a ValueError.
            TypeError: there is an option for schedules among them.
        """
        if self._plan is not DEFAULT_PLAN:
            refuse_recurring(self._given)
        job: Job[Any] = self._runtime.submit(fn, args, kwargs, self._options, None)
        if self._options.after:
            self._runtime.drain_outbox()  # a parent that has failed already counts before anybody has the job
        return job

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Seconds | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Submit ``fn`` for each input with these options; as ``Scheduler.map``."""
        bulk = None if self._plan is not DEFAULT_PLAN else (self._runtime, self._options)
        return map_over(self.submit, fn, iterables, timeout, chunksize, buffersize, bulk)

    def every(self, seconds: Seconds, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` every ``seconds`` with these options; as ``Scheduler.every``.

        Raises:
            TypeError: there is an option for single jobs among them (``id``, ``delay``, ``at``), or ``tz``.
            ValueError: ``until`` lies before the first run.
        """
        refuse_single(self._given, "every")
        return _schedule.every(self._runtime, seconds, (fn, args, kwargs), self._options, self._plan)

    def cron(self, expression: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` whenever the expression says so, with these options; as ``Scheduler.cron``.

        Raises:
            TypeError: there is an option for single jobs among them (``id``, ``delay``, ``at``), or ``mode``.
            ValueError: ``until`` lies before the first run.
        """
        refuse_single(self._given, "cron")
        return _schedule.cron(self._runtime, expression, (fn, args, kwargs), self._options, self._plan)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: shut the scheduler down instead."""


class Submitters:
    """Makes the submitters of one scheduler, and remembers those for plain options: few differ, many are asked for."""

    # Types whose equal values mean the same option, as long as the type is the same: True and 1 do not.
    PLAIN = frozenset({int, float, str, bool, timedelta, type(None)})
    MOST = 256

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: dict[tuple[object, ...], Submitter] = {}

    def get(self, options: Mapping[str, Any]) -> Submitter:
        """Return a submitter with these options, checked."""
        kinds = tuple(map(type, options.values()))
        if "id" in options or not self.PLAIN.issuperset(kinds):
            return self._make(dict(options))
        key = (kinds, *options.items())
        submitter = self._made.get(key)
        if submitter is None:
            submitter = self._make(dict(options))
            if len(self._made) >= self.MOST:
                self._made.clear()
            self._made[key] = submitter
        return submitter

    def _make(self, given: dict[str, object]) -> Submitter:
        """Check options, those of jobs and those of schedules apart."""
        if RECURRING.isdisjoint(given):
            return Submitter(self._runtime, make_options(given), DEFAULT_PLAN, given)
        recurring = {name: given.pop(name) for name in list(given) if name in RECURRING}
        return Submitter(self._runtime, make_options(given), Plan(**recurring), (*given, *recurring))


def _default_workers() -> int:
    counter = getattr(os, "process_cpu_count", os.cpu_count)  # as ThreadPoolExecutor counts on this version
    return min(32, (counter() or 1) + 4)


def _bind(initializer: Callable[..., object], initargs: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> object:
        return initializer(*initargs)

    return call


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

"""The scheduler on threads: how it is made, waited for and shut down. The rest of what users call is in ``_face``."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, NoReturn

from threadsched import _exit, _numbers
from threadsched._clock import Clock, MonotonicClock, VirtualClock
from threadsched._core import DRAINS
from threadsched._face import Face, checked_clock, checked_word
from threadsched._gate import make_gate
from threadsched._heap import STRUCTURES
from threadsched._job import Job
from threadsched._limit import Limit, checked_limits
from threadsched._options import Seconds
from threadsched._policy import OrderingPolicy, PriorityPolicy, Ranking
from threadsched._records import ShutdownReport
from threadsched._runtime import Runtime
from threadsched._submitter import Submitters


class Scheduler(Face):
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
        self._runtime.core.bound(gate)
        self._submitters = Submitters(self._runtime)
        if isinstance(clock, VirtualClock):
            clock.attach(self._runtime)
        _exit.watch_over(self._runtime)
        self._runtime.face = weakref.ref(self)
        weakref.finalize(self, _exit.abandon, self._runtime).atexit = False

    def start(self) -> None:
        """Start the workers now rather than at the first submission; raises as ``submit`` does."""
        self._runtime.man()

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

    def wait_idle(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is pending and nothing runs, delayed jobs and retries included.

        Args:
            timeout: real seconds to wait at most, or a ``timedelta``; None waits for ever, 0 or less does not wait.

        Returns:
            True if there was a moment, during this call, in which the scheduler was idle; False if the time ran out.

        Raises:
            TypeError, ValueError: ``timeout`` is no finite number.
            RuntimeError: called by code that interrupted the scheduler itself on this thread.
        """
        return self._runtime.wait_idle(None if timeout is None else _numbers.relative("timeout", timeout))

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

    def __repr__(self) -> str:
        now = self.stats()
        state = "closed" if self.closed else "open"
        return f"<Scheduler {self._runtime.name} {state}, {now.pending} pending, {now.running} running>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Scheduler cannot be pickled or copied: it owns threads")


def _default_workers() -> int:
    counter = getattr(os, "process_cpu_count", os.cpu_count)  # as ThreadPoolExecutor counts on this version
    return min(32, (counter() or 1) + 4)


def _bind(initializer: Callable[..., object], initargs: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> object:
        return initializer(*initargs)

    return call

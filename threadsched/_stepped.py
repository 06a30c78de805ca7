"""The scheduler's core without threads, stepped by whoever tests with it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar, Unpack

from threadsched import _exit, _inspect, _numbers, _worker
from threadsched._clock import Clock
from threadsched._core import DRAINS
from threadsched._fake_clock import FakeClock
from threadsched._heap import STRUCTURES
from threadsched._job import Job
from threadsched._limit import Limit, LimitInfo, checked_limits
from threadsched._options import DEFAULTS, JobOptions, Seconds, make_options
from threadsched._policy import OrderingPolicy, PriorityPolicy, Ranking
from threadsched._records import JobStatus, ShutdownReport, Stats
from threadsched._runtime import Runtime
from threadsched._scheduler import Submitter, checked_clock, checked_id, checked_word

P = ParamSpec("P")
T = TypeVar("T")


class Ran(NamedTuple):
    """One attempt that a tick ran."""

    worker: int
    """The slot, from 0."""
    id: int | str
    status: JobStatus
    """The job's status after the attempt; PENDING means that it will be retried."""


class StepScheduler(concurrent.futures.Executor):
    """The scheduler's core without threads: it moves only when ``tick`` or ``drain`` is called, on the calling thread.

    What is submitted or retried waits for the next tick, however due it is. Waiting for a result without having
    ticked would wait for ever, so do not.

    Args:
        workers: slots, each of which runs at most one job a tick; an int above 0.
        policy: as for ``Scheduler``.
        clock: as for ``Scheduler``; None makes a :class:`FakeClock`, found as ``clock``.
        queue: as for ``Scheduler``.
        limits: as for ``Scheduler``. A job held back by a rate can run in the first tick at or after the instant that
            has room.
        history: as for ``Scheduler``.

    Thread safety: ``submit`` and ``cancel`` from anywhere; ``tick`` and ``drain`` from one thread.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        policy: OrderingPolicy | None = None,
        clock: Clock | None = None,
        queue: str = "lazy",
        limits: Mapping[str, Limit] | None = None,
        history: int = 1000,
    ) -> None:
        self.clock: Clock = FakeClock() if clock is None else checked_clock(clock)
        width = _numbers.count("workers", workers, least=1)
        ranking = Ranking(PriorityPolicy() if policy is None else policy)
        self._runtime = Runtime(
            width=width,
            ranking=ranking,
            clock=self.clock,
            queue=checked_word("queue", queue, STRUCTURES),
            limits=checked_limits(limits),
            history=_numbers.count("history", history),
            stepped=True,
        )
        self._slots = [_worker.Worker(self._runtime, number) for number in range(width)]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Accept a job for the next tick; as ``Scheduler.submit``."""
        return self._runtime.submit(fn, args, kwargs, DEFAULTS)

    def options(self, **options: Unpack[JobOptions]) -> Submitter:
        """Return an executor with these job options; as ``Scheduler.options``."""
        return Submitter(self._runtime, make_options(dict(options)))

    def cancel(self, job_id: int | str) -> bool:
        """Cancel a pending job; True only if this call did."""
        job = self.get(job_id)
        return job is not None and self._runtime.cancel(job)

    def status_of(self, job_id: int | str) -> JobStatus | None:
        """Return the status of a live or remembered job, or None."""
        return self._runtime.core.status_of(checked_id(job_id))

    def get(self, job_id: int | str) -> Job[Any] | None:
        """Return the live job with this id, or None."""
        return self._runtime.core.find(checked_id(job_id))

    @property
    def policy(self) -> OrderingPolicy:
        """The rule that orders the ready jobs; assignable."""
        return self._runtime.core.ranking.policy

    @policy.setter
    def policy(self, policy: OrderingPolicy) -> None:
        self._runtime.set_policy(policy)

    def stats(self) -> Stats:
        """Return the counts of this instant."""
        return _inspect.stats(self._runtime)

    @property
    def limits(self) -> Mapping[str, LimitInfo]:
        """How each limit stands at this instant, by name; read-only."""
        return _inspect.limits(self._runtime)

    def check(self) -> None:
        """Audit every invariant."""
        _inspect.check(self._runtime)

    def shutdown(  # type: ignore[override]  # Executor's returns None; ours says what is left
        self, wait: bool = True, *, cancel_futures: bool = False, drain: str = "all"
    ) -> ShutdownReport:
        """Close the door, and give up what ``drain`` says; what is left runs in further ticks."""
        mode = "none" if cancel_futures else checked_word("drain", drain, DRAINS)
        return _exit.shutdown(self._runtime, wait=False, drain=mode, timeout=None)

    def tick(self) -> list[Ran]:
        """Promote what is due, once, then run one ready job in each slot, in order; return what ran."""
        runtime = self._runtime
        now = runtime.read_clock()
        with runtime.lock:
            runtime.core.promote(now)
        ran = []
        for slot in self._slots:
            with runtime.lock:
                job = runtime.core.claim(now, slot)
            if job is None:
                break
            self._run(slot, job)
            ran.append(Ran(slot.number, job.id, job.status))
            job = None  # see _run
        runtime.log_faults()
        return ran

    def drain(self, step: Seconds = 1.0, limit: int = 1000) -> list[Ran]:
        """Tick and advance the clock by ``step`` while a job is PENDING, at most ``limit`` times; return what ran.

        Raises:
            TypeError: the clock cannot be advanced.
        """
        advance = getattr(self.clock, "advance", None)
        if advance is None:
            raise TypeError(f"drain() needs a clock with advance(), such as FakeClock, not {self.clock!r}")
        ran = []
        for _ in range(_numbers.count("limit", limit)):
            if not self._runtime.core.pending:
                break
            ran += self.tick()
            advance(step)
        return ran

    def _run(self, slot: _worker.Worker, job: Job[Any]) -> None:
        runtime = self._runtime
        held = fn, args, kwargs, _ = job._fn, job._args, job._kwargs, job._context
        outcome: BaseException | None = None
        with _worker.on_slot(slot, job):
            try:
                result = _worker.run_task(fn, args, kwargs, _worker.own_context(job))
            except BaseException as error:  # as on a worker: that job's failure alone
                outcome = error
        if outcome is None:
            runtime.finish(job, result, job.name)
        else:
            runtime.attempt_failed(job, outcome)
        # The error's traceback knows this frame: what it keeps would be kept for as long as the error.
        del held, fn, args, kwargs, outcome, job

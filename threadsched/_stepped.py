"""The scheduler's core without threads, stepped by whoever tests with it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Literal, NamedTuple

from threadsched import _exit, _numbers, _outcome, _worker
from threadsched._clock import Clock
from threadsched._core import DRAINS
from threadsched._face import Face, checked_clock, checked_word
from threadsched._fake_clock import FakeClock
from threadsched._gate import make_gate
from threadsched._heap import STRUCTURES
from threadsched._limit import Limit, checked_limits
from threadsched._options import Seconds
from threadsched._policy import OrderingPolicy, PriorityPolicy, Ranking
from threadsched._records import JobStatus, ShutdownReport
from threadsched._runtime import Runtime
from threadsched._submitter import Submitters


class Ran(NamedTuple):
    """One attempt that a tick ran."""

    worker: int
    """The slot, from 0."""
    id: int | str
    status: JobStatus
    """The job's status after the attempt; PENDING means that it will be retried."""


class StepScheduler(Face):
    """The scheduler's core without threads: it moves only when ``tick`` or ``drain`` is called, on the calling thread.

    What is submitted or retried waits for the next tick, however due it is; a run of a schedule enters in the tick at
    which it is due. Waiting for a result on the thread that ticks, without a timeout and outside of a tick, would wait
    for ever: it raises DeadlockError.

    Args:
        workers: slots, each of which runs at most one job a tick; an int above 0.
        policy: as for ``Scheduler``.
        clock: as for ``Scheduler``; None makes a :class:`FakeClock`, found as ``clock``.
        queue: as for ``Scheduler``.
        limits: as for ``Scheduler``. A job held back by a rate can run in the first tick at or after the instant that
            has room.
        history: as for ``Scheduler``.
        max_pending: as for ``Scheduler``.
        on_full: as for ``Scheduler``, but not ``"block"``, which nobody could end: ``"reject"`` is the default.

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
        max_pending: int | None = None,
        on_full: Literal["reject", "drop_oldest", "drop_lowest", "caller_runs"] = "reject",
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
        self._runtime.core.bound(make_gate(max_pending, on_full, queue, stepped=True))
        self._submitters = Submitters(self._runtime)
        self._runtime.ticker = threading.get_ident()
        self._runtime.face = weakref.ref(self)
        self._slots = [_worker.Worker(self._runtime, number) for number in range(width)]

    def shutdown(  # type: ignore[override]  # Executor's returns None; ours says what is left
        self, wait: bool = True, *, cancel_futures: bool = False, drain: str = "all"
    ) -> ShutdownReport:
        """Close the door, and give up what ``drain`` says; what is left runs in further ticks."""
        mode = "none" if cancel_futures else checked_word("drain", drain, DRAINS)
        return _exit.shutdown(self._runtime, wait=False, drain=mode, timeout=None)

    def tick(self) -> list[Ran]:
        """Promote what is due, once, then run one ready job in each slot, in order; return what ran."""
        runtime = self._runtime
        runtime.drain_outbox()
        runtime.ticker = threading.get_ident()
        runtime.look_at_wall()
        now = runtime.read_clock()
        with runtime.lock:
            runtime.core.ring(now)
        runtime.drain_outbox()
        runtime.fire(now)
        with runtime.lock:
            runtime.core.promote(now)
        ran = []
        for slot in self._slots:
            with runtime.lock:
                job = runtime.core.claim(now, slot)
            if job is None:
                break
            _outcome.run_attempt(runtime, slot, job)
            ran.append(Ran(slot.number, job.id, job.status))
            job = None  # a failed one's traceback may know this frame
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

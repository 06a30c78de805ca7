"""The little scheduler on which operations meet, and what must be true when all of it is over.

On the stage one job, *first*, is ready and a worker has just been woken for it; another, *later*, is due at 1.0. The
operations under test run on a thread each. Meanwhile every schedule is explored; once nothing can go on without the
clock, the rest follows the plain way: gates are opened, a pause is lifted, the scheduler is shut down, and all that
happened is audited.
"""

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

from tests.explorer import primitives
from tests.explorer.kernel import Kernel
from tests.explorer.primitives import SIM_THREADING
from threadsched import (
    BrokenSchedulerError,
    InvariantError,
    JobStatus,
    JobTimeoutError,
    Limit,
    QueueFullError,
    Scheduler,
    SchedulerClosedError,
    WorkerDiedError,
    current_job,
)
from threadsched._job import DELAYED, READY

# When `later` is due, and what an operation delays for: earlier than that.
LATER = 1.0
SOONER = 0.5

# What a stage can have beside the two jobs, and an operation may need.
NEEDS = (
    "gated",  # the first job runs until its gate is opened
    "failing",  # the first attempt of the first job raises, and it is retried after SOONER
    "full",  # a bound on the pending jobs, which the two on the stage use up
    "limit",  # a limit of one at a time, which the first job names
    "paused",  # the scheduler is paused
    "coroutine",  # the first job is a coroutine
    "cold",  # no job was submitted yet, so no worker was started
    *(f"refused_{number}" for number in range(1, 6)),  # that start of a thread, from now on, fails
)


class TrialError(Exception):
    """What a failing task raises."""


class StruckError(BaseException):
    """What is thrown into a worker."""


class Track:
    """One job and what was seen of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.job: Any = None
        self.starts: list[float] = []
        self.claims = 0  # by job.claim()
        self.given_up = False  # a cancel of it said True
        self.last_attempt: int | None = None  # whatever a cancel said, no further one may follow
        self.callbacks: list[str] = []  # called, by name
        self.callbacks_added = 0
        self.stopped = False  # it was asked to stop while it ran


@functools.cache
def watched(plain: Any) -> Any:
    """Return a kind of core in which each claim is compared with what else was ready."""

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ()

        def claim(self, now: float, place: object) -> Any:
            job = super().claim(now, place)
            if job is not None:
                key_of = self.ranking.key_of  # afresh: a job may have come with a key of an earlier policy
                rank = (key_of(job), job._seq)
                for other in self.pending.values():
                    if other._place is READY and (key_of(other), other._seq) < rank:
                        primitives.active.fail("order", f"{job!r} was claimed before {other!r}")
            return job

    return Watched


class Stage:
    """A scheduler, two jobs, and a record of what happens."""

    def __init__(self, kernel: Kernel, workers: int, needs: Iterable[str]) -> None:
        self.kernel = kernel
        self.workers = workers
        self.needs = frozenset(needs)
        self.tracks: list[Track] = []
        self.refused = 0
        self.outcomes: list[tuple[Track, str]] = []  # what a waiter was told
        self.schedules: list[Any] = []
        self.schedules_made = False
        self.held_until = 0.0  # until when something held jobs back that is no fault
        self.long = 0  # tasks that take their time, at this moment
        self.closed = False  # a shutdown has returned
        self.may_overrun = False  # a job has a time limit that it exceeds
        self.may_claim = False  # a caller may have claimed a job, and not ended it yet
        self.failed_to_start = 0  # submissions that raised because no thread could be started
        self.refusals = 0  # threads that could not be started
        self.struck = False  # something was thrown into a worker
        self.forks = 0
        self.gate = SIM_THREADING.Event()
        self.release: Any = Future()  # the gate of a coroutine
        self.release.set_running_or_notify_cancel()  # no coroutine that is cancelled takes it along
        self.released = False  # whether it is open
        options: dict[str, Any] = {}
        if "full" in self.needs:
            options["max_pending"] = 2
        if "limit" in self.needs:
            options["limits"] = {"one": Limit(concurrency=1)}
        self.scheduler: Any = Scheduler(workers, **options)
        self.runtime = self.scheduler._runtime
        kernel.expected = self._is_expected
        self._watch_order()
        if "cold" in self.needs:
            self.first, self.later = Track("first"), Track("later")
            self._refuse_starts()
            return
        self.later = self.submit("later", delay=LATER)
        kernel.settle()
        if "paused" in self.needs:
            self.scheduler.pause()
        first: dict[str, Any] = {"limits": "one"} if "limit" in self.needs else {}
        if "failing" in self.needs:
            first |= {"retries": 1, "backoff": SOONER}
        self.first = self.submit("first", **first)
        self._refuse_starts()

    def _refuse_starts(self) -> None:
        """Have the n-th start of a thread of the scheduler's fail, counted from now."""
        started = itertools.count(1)
        numbers = {int(need.partition("_")[2]) for need in self.needs if need.startswith("refused_")}

        def refuses(name: str) -> bool:
            refused = name.startswith("threadsched") and next(started) in numbers
            self.refusals += refused
            return refused

        if numbers:
            self.kernel.refuses = refuses

    def _is_expected(self, text: str) -> bool:
        """Whether an error in the log is what the operations asked for."""
        return (self.struck and " died of StruckError" in text) or (
            self.refusals > 0 and text.startswith("no successor for ")
        )

    def _watch_order(self) -> None:
        """Have each claim compared with what else was ready."""
        core = self.runtime.core
        core.__class__ = watched(type(core))

    # ---------------------------------------------------------------- what operations do

    def submit(self, name: str, work: Callable[[], object] | None = None, **options: Any) -> Track:
        """Submit a job under a name; a refusal is counted."""
        track = Track(name)
        scheduler, closed = self.scheduler, self.closed
        if scheduler is None:
            return track
        try:
            track.job = scheduler.options(**options).submit(self.task(track, work))
        except (SchedulerClosedError, QueueFullError):
            self.refused += 1
        except RuntimeError:
            if not self.refusals:
                raise
            self.failed_to_start += 1
        else:
            self.tracks.append(track)
            if closed:
                self.kernel.fail("closed", f"{name} was accepted after shutdown() had returned")
        return track

    def task(self, track: Track, work: Callable[[], object] | None = None) -> Callable[[], object]:
        """Return a task that notes its start; a coroutine function if the work is one, or it is to be one."""
        if inspect.iscoroutinefunction(work) or (track.name == "first" and "coroutine" in self.needs):
            return self._coroutine(track, work)

        def task() -> str:
            job = current_job()
            assert job is not None
            self._started(track, job)
            self.kernel.point("in the task")
            if track.name == "first" and "gated" in self.needs:
                self.gate.wait()
            if work is not None:
                work()
            if track.name == "first" and "failing" in self.needs and job.attempts == 1:
                raise TrialError
            return track.name

        return task

    def _coroutine(self, track: Track, work: Callable[[], Any] | None) -> Callable[[], object]:
        async def task() -> str:
            job = current_job()
            assert job is not None
            self._started(track, job)
            self.kernel.point("in the coroutine")
            await asyncio.sleep(0)
            if track.name == "first" and "gated" in self.needs:
                await asyncio.wrap_future(self.release)
            if work is not None:
                await work()
            if track.name == "first" and "failing" in self.needs and job.attempts == 1:
                raise TrialError
            return track.name

        return task

    def open_gate(self) -> None:
        """Let the first job go on, if it is gated."""
        self.gate.set()
        if "coroutine" in self.needs and not self.released:
            self.released = True
            self.release.set_result(None)

    def take_long(self) -> None:
        """Take some time."""
        with self.busy():
            self.kernel.sleep(2 * LATER)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Keep a worker; if every one is kept, jobs that fall due meanwhile are late for a good reason."""
        self.long += 1
        full = self.long >= self.workers
        try:
            yield
        finally:
            self.long -= 1
            if full or self.long + 1 >= self.workers:
                self.held_until = self.kernel.now

    def run_of_schedule(self) -> str:
        """The task of a schedule: each run is a job of its own."""
        job = current_job()
        assert job is not None
        track = Track("run")
        track.job = job
        self.tracks.append(track)
        self._started(track, job)
        return track.name

    def _started(self, track: Track, job: Any) -> None:
        kernel = self.kernel
        track.starts.append(kernel.now)
        if track.last_attempt is not None and job.attempts > track.last_attempt:
            kernel.fail("cancelled", f"attempt {job.attempts} of {track.name} started after a cancel of it")
        if kernel.now < job.run_at:
            kernel.fail("early", f"{track.name} is due at {job.run_at:g} and started at {kernel.now:g}")
        held_until = self.held_until
        if track.name in ("child", "limited"):  # it waits for the first job
            held_until = max(held_until, self.first.job._finished_at or 0.0)
        if not kernel.explore_time and kernel.now > max(job.run_at, held_until):
            kernel.fail("late", f"{track.name} was due at {job.run_at:g} and started at {kernel.now:g}")

    def cancelled(self, track: Track, said: bool) -> None:
        """Note what a cancel said."""
        track.last_attempt = track.job.attempts
        if said:
            track.given_up = True
            if not track.job.cancelled():
                self.kernel.fail("cancelled", f"a cancel of {track.name} said True, and it is {track.job.status.name}")

    def told(self, track: Track, ask: Callable[[], object]) -> None:
        """Note what a waiter is told of a job."""
        try:
            said = "DONE" if ask() == track.name else "another's result"
        except CancelledError:
            said = "CANCELLED"
        except TrialError:
            said = "FAILED"
        except TimeoutError:
            said = "timeout"
        except (BrokenSchedulerError, WorkerDiedError, StruckError):  # an audit asks whether they may be
            said = "FAILED"
        self.outcomes.append((track, said))

    async def told_on_loop(self, track: Track) -> None:
        """Likewise of a coroutine that awaits."""
        try:
            with self.busy():
                said = "DONE" if await track.job == track.name else "another's result"
        except CancelledError:
            said = "CANCELLED"
        except TrialError:
            said = "FAILED"
        if not self.kernel.explore_time and self.kernel.now > track.job._finished_at:
            self.kernel.fail("late", f"{track.name} ended at {track.job._finished_at:g}, and who awaits it woke later")
        self.outcomes.append((track, said))

    def add_callback(self, track: Track) -> None:
        """Add a done-callback that notes its call."""
        track.callbacks_added += 1

        def callback(job: Any) -> None:
            if not job.done():
                self.kernel.fail("callback", f"called back while {track.name} is {job.status.name}")
            if self.runtime.lock._is_owned():
                self.kernel.fail("callback", f"a callback of {track.name} is called under the lock")
            track.callbacks.append(track.name)
            self.kernel.point("in the callback")

        track.job.add_done_callback(callback)

    def shut_down(self, **mode: Any) -> None:
        """Shut down; once that has waited, no thread of the scheduler may be left."""
        scheduler = self.scheduler
        if scheduler is None:
            return
        report = scheduler.shutdown(**mode)
        self.closed = True
        if mode.get("wait", True):
            left = [fiber.name for fiber in self.kernel.fibers if fiber.name.startswith("threadsched_")]
            running = [] if self.may_claim else report.running  # what a caller claimed, no shutdown waits for
            if self.may_overrun:  # nor for threads that were written off
                running = [info for info in running if "(lost" not in str(info.worker)]
                left = left[len(report.running) :]
            if left or report.pending or running:
                self.kernel.fail("threads", f"shutdown has returned, and there are left: {left} {report}")

    # ---------------------------------------------------------------- the end

    def finish(self) -> None:
        """Bring everything to its end, and audit it."""
        kernel = self.kernel
        self.audit_quiet("at rest")
        self.held_until = kernel.now
        kernel.refuses = lambda name: False
        self.open_gate()
        self.runtime.resume()
        kernel.settle()
        self.audit_quiet("once nothing was held back", whole=False)
        kernel.wait_out()
        self.audit_quiet("in the end")
        if self.runtime.core.closed and self.runtime.launched:
            kernel.fail("threads", f"it is closed, nothing can happen any more, and there are left {kernel.fibers}")
        left = list(self.runtime.core.pending.values())
        if left:
            kernel.fail("open", f"nothing can happen any more, and there is still {left}")

    def close(self) -> None:
        """Shut down, whatever was done before, and audit what is left."""
        kernel = self.kernel
        if self.scheduler is not None:
            self.schedules.clear()
            self.shut_down()
        else:
            self.schedules.clear()  # a handle keeps its scheduler
            self.runtime.wait_left(None)
        kernel.settle()
        if len(kernel.fibers) > 1:
            kernel.fail("threads", f"still there after the end: {kernel.fibers[1:]}")
        self._audit_jobs()
        self._audit_counts()

    def audit_quiet(self, when: str, whole: bool = True) -> None:
        """Nobody can go on: no accepted due job waits beside a worker that sleeps, and somebody watches the clock.

        ``whole``: the core's invariants, too, which take as long as all the rest.
        """
        runtime, kernel = self.runtime, self.kernel
        core = runtime.core
        try:
            if whole:
                core.check_invariants()
        except InvariantError as error:
            kernel.fail("invariant", f"{when}: {error}")
        asleep = len(runtime.idle) + len(runtime.watch)
        if not asleep or core.halted:
            return
        due = [job for job in core.pending.values() if job._place is READY]
        if due:
            kernel.fail("wake-up", f"{when}: {due} wait beside {asleep} sleeping workers")
        delayed = [job for job in core.pending.values() if job._place is DELAYED]
        if delayed and not runtime.watch:
            kernel.fail("wake-up", f"{when}: nobody watches the clock for {delayed}")
        if core.outbox:
            kernel.fail("wake-up", f"{when}: {list(core.outbox)} are to be told, and the workers sleep")

    def _audit_jobs(self) -> None:
        kernel = self.kernel
        for track in self.tracks:
            job = track.job
            if not job.done():
                kernel.fail("open", f"{track.name} is {job.status.name} at the end")
            missed = job.attempts - track.claims - len(track.starts)
            # A coroutine may be stopped, or overrun its time, before its first step.
            stopped = track.stopped or (track.name == "overrun" and isinstance(job._exception, JobTimeoutError))
            if missed and not (missed == 1 and stopped):
                kernel.fail("runs", f"{track.name} started {len(track.starts)} times in {job.attempts} attempts")
            if job.attempts > 1 + ("failing" in self.needs and track.name == "first"):
                kernel.fail("runs", f"{track.name} had {job.attempts} attempts")
            if job.status is JobStatus.DONE:
                if not job.attempts:
                    kernel.fail("lost", f"{track.name} is DONE and never ran")
                if job.result(0) != track.name:
                    kernel.fail("result", f"{track.name} has {job.result(0)!r}")
            elif job.status is JobStatus.FAILED:
                error = job.exception(0)
                overran = track.name == "overrun" and isinstance(error, JobTimeoutError)
                died = self.struck and isinstance(error, WorkerDiedError | StruckError)
                unmanned = self.refusals and isinstance(error, BrokenSchedulerError)
                if type(error) is not TrialError and not (overran or died or unmanned):
                    kernel.fail("result", f"{track.name} failed with {job.exception(0)!r}")
            elif track.starts and not track.stopped and not ("failing" in self.needs and track.name == "first"):
                kernel.fail("cancelled", f"{track.name} ran and is CANCELLED")
            if track.given_up and not job.cancelled():
                kernel.fail("cancelled", f"a cancel of {track.name} said True, and it ended {job.status.name}")
            if len(track.callbacks) != track.callbacks_added:
                added, called = track.callbacks_added, len(track.callbacks)
                kernel.fail("callback", f"{track.name} has {added} callbacks, and {called} calls were made")
        for track, said in self.outcomes:
            if said not in (track.job.status.name, "timeout"):
                kernel.fail("result", f"a waiter for {track.name} got {said}, and it ended {track.job.status.name}")

    def _audit_counts(self) -> None:
        from threadsched import _inspect

        now = _inspect.stats(self.runtime)
        statuses = [track.job.status for track in self.tracks]
        if self.schedules_made:  # a run that was cancelled before its start was seen by nobody
            statuses += [JobStatus.CANCELLED] * (now.submitted - len(statuses))
        counted = (now.submitted, now.done, now.failed, now.cancelled, now.pending, now.running)
        ended = [statuses.count(status) for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)]
        if counted != (len(statuses), *ended, 0, 0):
            self.kernel.fail("count", f"{now} for {statuses}")
        if self.runtime.idle or self.runtime.watch or self.runtime.launched or self.runtime.workers:
            self.kernel.fail("threads", "the pool counts workers after its end")
        try:
            _inspect.check(self.runtime)
        except InvariantError as error:
            self.kernel.fail("invariant", f"at the end: {error}")

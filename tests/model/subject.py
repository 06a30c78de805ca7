"""The product, told the same words as the naive scheduler, and looked at in the same way."""

import contextvars
import datetime
import itertools
import sys
from concurrent.futures import Future
from typing import Any

import pytest

from tests.model.words import MIDNIGHT, POLICIES, SCHEDULES, Operation, Recurrence, Spec, Work
from threadsched import Job, RetryAfter, Schedule, Scheduler, _retry, _series, current_job
from threadsched._runtime import Runtime
from threadsched.testing import FakeClock, StepScheduler

# Real seconds that a threaded scheduler may take to come to rest; only a failure reaches it.
PATIENCE = 10.0

seen: contextvars.ContextVar[str | None] = contextvars.ContextVar("seen", default=None)

# What a program's operations may raise, by the name that the naive scheduler gives it.
EXPECTED = {
    "UnknownLimitError",
    "DuplicateJobError",
    "SchedulerClosedError",
    "QueueFullError",
    "TypeError",
    "ValueError",
    "IllegalMoveError",
}


class Dice:
    """Stands for the module ``random`` where pauses and jitter are drawn: always the same number."""

    def __init__(self, draw: float) -> None:
        self.draw = draw

    def random(self) -> float:
        return self.draw


class Watched(Runtime):
    """Notes each job that a schedule submits; nobody else sees one that is cancelled at once."""

    subject: Any = None

    def submit(self, fn: Any, args: Any, kwargs: Any, options: Any, *rest: Any) -> Job[Any]:
        job = super().submit(fn, args, kwargs, options, *rest)
        if isinstance(options.timing, _series.Run):
            self.subject.jobs.append(job)
            self.subject.journal.append(("run", fn.number, job))
        return job


class Subject:
    """A scheduler on a fake clock, and a journal of what happens in it."""

    def __init__(self, kind: type[Any], draw: float = 0.0, policy: str = "priority", **options: Any) -> None:
        self.clock = FakeClock(wall=MIDNIGHT)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_retry, "random", Dice(draw))
        self.patch.setattr(_series, "random", Dice(draw))
        self.jobs: list[Job[Any]] = []
        self.schedules: list[Schedule] = []
        self.futures: list[Future[Any]] = []
        self.journal: list[Any] = []
        self.told: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            watched = type("Watched", (Watched,), {"subject": self})
            for module in list(sys.modules.values()):
                if module.__name__.startswith("threadsched.") and getattr(module, "Runtime", None) is Runtime:
                    patch.setattr(module, "Runtime", watched)
            self.scheduler: Scheduler | StepScheduler = kind(clock=self.clock, policy=POLICIES[policy][0](), **options)

    def close(self) -> None:
        """Put back what was replaced, and look at all failures, so that none is logged as unseen."""
        self.patch.undo()
        if isinstance(self.scheduler, Scheduler):
            self.scheduler.shutdown(drain="none", timeout=PATIENCE)
        for job in self.jobs:
            if job.done() and not job.cancelled():
                job.exception(0)

    def perform(self, operation: Operation) -> Any:
        """Do what an operation says; return what came of it, or the name of the error."""
        what, *arguments = operation
        try:
            return getattr(self, "do_" + what.replace(" ", "_"))(*arguments)
        except Exception as error:
            name = type(error).__name__
            if name not in EXPECTED:
                raise
            return name

    # ---------------------------------------------------------------- tasks

    def task(self, work: Work) -> Any:
        runs = itertools.count()
        number = 0

        def run() -> None:
            nonlocal number
            job = current_job()
            assert job is not None
            number = next(runs) if job.attempts == 1 else number
            self.journal.append(("start", job, job.attempts, self.clock.now(), seen.get()))
            seen.set("a task")
            if work.does is not None:
                self.journal.append((work.does[0], self.perform(work.does)))
            self.clock.jump(work.takes)
            if job.attempts <= work.fails and number % work.every == 0:
                self.fail(job, *work.error)

        return run

    def fail(self, job: Job[Any], kind: str, pause: float) -> None:
        match kind:
            case "value":
                raise ValueError(f"attempt {job.attempts}")
            case "hopeless":
                raise ValueError(f"attempt {job.attempts} was hopeless")
            case "os":
                raise OSError(f"attempt {job.attempts}")
            case "exit":
                raise SystemExit
            case "after":
                raise RetryAfter(pause)
            case "stop":
                job.request_cancel()
                job.check_cancelled()

    # ---------------------------------------------------------------- the operations

    def pick(self, index: int) -> Job[Any] | None:
        return self.jobs[index % len(self.jobs)] if self.jobs else None

    def do_submit(self, spec: Spec) -> Job[Any]:
        parents: list[Future[Any]] = []
        for kind, index in spec.after:
            known: list[Any] = self.jobs if kind == "job" else self.futures
            if known:
                parents.append(known[index % len(known)])
        options: dict[str, Any] = {"id": spec.id, "after": parents, "after_any_outcome": spec.any_outcome}
        if spec.delay or spec.at is None:
            options["delay"] = spec.delay
        if spec.at is not None:
            options["at"] = MIDNIGHT + datetime.timedelta(seconds=spec.at)
        if spec.if_exists != "raise":
            options["if_exists"] = spec.if_exists
        holder = None if spec.id is None else self.scheduler.get(spec.id)
        seen.set("a task" if current_job() is not None else "outside")
        job = self.scheduler.options(**spec.work.options(), **options).submit(self.task(spec.work))
        if job is holder:
            return job
        self.jobs.append(job)
        if spec.watched:
            job.add_done_callback(lambda job: self.told.append((job, job.status)))  # type: ignore[attr-defined]
        return job

    def do_cancel(self, index: int) -> Any:
        job = self.pick(index)
        return None if job is None else self.scheduler.cancel(job.id)

    def do_cancel_future(self, index: int) -> Any:
        job = self.pick(index)
        return None if job is None else job.cancel()

    def do_request_cancel(self, index: int) -> Any:
        job = self.pick(index)
        return None if job is None else job.request_cancel()

    def do_priority(self, index: int, priority: float) -> Any:
        job = self.pick(index)
        return None if job is None else job.set_priority(priority)

    def do_claim(self, index: int) -> Any:
        job = self.pick(index)
        return None if job is None else job.claim()

    def do_settle(self, index: int, well: bool) -> None:
        job = self.pick(index)
        if job is not None and well:
            job.set_result("by hand")
        elif job is not None:
            job.set_exception(ArithmeticError("by hand"))

    def do_foreign(self) -> None:
        self.futures.append(Future())

    def do_end_foreign(self, index: int, how: str) -> Any:
        future = self.futures[index % len(self.futures)] if self.futures else None
        if future is None or future.done():
            return False
        match how:
            case "result":
                future.set_result(None)
            case "exception":
                future.set_exception(ValueError("foreign"))
            case "cancel":
                future.cancel()
        return True

    def do_every(self, plan: Recurrence) -> int | None:
        if len(self.schedules) == SCHEDULES:
            return None
        seen.set("a task" if current_job() is not None else "outside")
        task = self.task(plan.work)
        task.number = number = len(self.schedules)
        schedule = self.scheduler.options(**plan.options()).every(plan.seconds, task)
        self.schedules.append(schedule)
        return number

    def do_schedule(self, what: str, index: int) -> Any:
        if not self.schedules:
            return None
        schedule = self.schedules[index % len(self.schedules)]
        return getattr(schedule, what.replace(" ", "_"))()

    def do_swap(self, policy: str) -> None:
        self.scheduler.policy = POLICIES[policy][0]()

    def do_pause(self) -> None:
        self.scheduler.pause()

    def do_resume(self) -> None:
        self.scheduler.resume()

    def do_clear(self) -> int:
        assert isinstance(self.scheduler, Scheduler)
        return self.scheduler.clear()

    def do_shutdown(self, mode: str) -> Any:
        if isinstance(self.scheduler, Scheduler):
            report = self.scheduler.shutdown(wait=False, drain=mode)  # type: ignore[arg-type]
        else:
            report = self.scheduler.shutdown(drain=mode)
        running = [self.named(info.id) for info in report.running]
        assert bool(report) is (not report.pending and not running)
        return (report.done, report.failed, report.cancelled, report.pending, running)

    def named(self, id: int | str) -> Job[Any]:
        job = self.scheduler.get(id)
        assert job is not None
        return job

    def do_tick(self) -> Any:
        assert isinstance(self.scheduler, StepScheduler)
        return self.scheduler.tick()

    def do_drain(self, step: float, limit: int) -> Any:
        assert isinstance(self.scheduler, StepScheduler)
        return self.scheduler.drain(step, limit)

    def do_advance(self, seconds: float) -> None:
        self.clock.advance(seconds, timeout=PATIENCE)

    def do_step_wall(self, seconds: float) -> None:
        self.clock.step_wall(seconds)

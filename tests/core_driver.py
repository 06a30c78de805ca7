"""Drives a Core the way the scheduler does, on one thread: accept, promote, claim, settle."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from threadsched._bulk import make_jobs
from threadsched._core import Core
from threadsched._job import Failure, Job
from threadsched._options import make_options
from threadsched._policy import OrderingPolicy, PriorityPolicy, Ranking


def nothing() -> None:
    """Do nothing: the task of a job whose task does not matter."""


def make_job(
    fn: Callable[..., Any] = nothing,
    *args: Any,
    kind: type[Job[Any]] = Job,
    now: float = 0.0,
    **options: Any,
) -> Job[Any]:
    """Return a job that no scheduler has accepted."""
    made = make_options(options)
    (job,) = make_jobs(SimpleNamespace(now=lambda: now), fn, [args], made, made.delay)  # type: ignore[arg-type]
    job._runtime = job._result = None  # type: ignore[assignment]
    job.__class__ = kind
    if made.deadline is not None:  # as the runtime does
        job._deadline = made.deadline.on_clock(now, 0.0)
    return job


class Driver:
    """A core, a clock reading, and the calls that a scheduler would make."""

    def __init__(
        self,
        queue: str = "lazy",
        policy: OrderingPolicy | None = None,
        *,
        history: int = 1000,
        stepped: bool = False,
    ) -> None:
        ranking = Ranking(PriorityPolicy() if policy is None else policy)
        self.core = Core(ranking, queue, history, stepped=stepped)
        self.now = 0.0

    def submit(
        self,
        fn: Callable[..., Any] = nothing,
        *args: Any,
        kind: type[Job[Any]] = Job,
        rules: tuple[Any, ...] = (),
        **options: Any,
    ) -> Job[Any]:
        core = self.core
        job = make_job(fn, *args, kind=kind, now=self.now, **options)
        if rules:
            job._attach().rules = rules
        seq = job._seq = next(core.numbers)
        job._key = core.ranking.key_of(job)
        outer = core.entering
        try:
            if job._options.id is not None:
                core.reserve(job, job._options.id)
            self.new_head = core.enter(job, seq)
            core.pending[seq] = job
            core.entering = outer
        except BaseException:
            core.withdraw(job, outer)
            raise
        return job

    def promote(self, now: float | None = None) -> int:
        if now is not None:
            self.now = now
        return self.core.promote(self.now)

    def claim(self, place: object = "worker") -> Job[Any] | None:
        return self.core.claim(self.now, place)

    def claim_all(self) -> list[Job[Any]]:
        """Claim until nothing is ready; the order in which jobs would start."""
        jobs = []
        while (job := self.claim()) is not None:
            jobs.append(job)
        return jobs

    def cancel(self, job: Job[Any]) -> bool:
        return self.core.cancel(job, job.name, self.now) is not None

    def finish(self, job: Job[Any], result: object = None) -> bool:
        return self.core.finish(job, result, job.name, self.now)

    def fail(self, job: Job[Any], error: BaseException | None = None) -> bool:
        return self.core.fail(job, failure_of(job, error), "ValueError: boom", self.now)

    def retry(self, job: Job[Any], run_at: float) -> bool:
        job._run_at = run_at
        return self.core.retry(job, run_at, self.core.ranking.key_of(job), self.now)

    def check(self) -> None:
        self.core.check_invariants()


def failure_of(job: Job[Any], error: BaseException | None = None) -> Failure:
    """Return a failure that counts as seen, so that nothing is logged when it is collected."""
    failure = Failure(job, ValueError("boom") if error is None else error)
    failure.seen = True
    return failure

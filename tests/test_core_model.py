"""Random programs of operations on the stepped scheduler, held against a naive model made of lists.

A failure prints the program and a blob; `@reproduce_failure` with that blob, above the machine, replays it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import exhaustive
from threadsched import (
    DuplicateJobError,
    FifoPolicy,
    Job,
    JobStatus,
    OldestDuePolicy,
    PriorityPolicy,
    SchedulerClosedError,
)
from threadsched.testing import FakeClock, Ran, StepScheduler

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus


class ByGroup:
    """A key policy with a tuple for a key."""

    def key(self, job: Job[Any]) -> tuple[str, float]:
        return ("odd" if job.attempts % 2 else "even", -job.priority)


class Unimportant:
    """A before policy: the highest priority number first."""

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        return a.priority > b.priority


# What the scheduler gets, and what the model sorts by.
POLICIES: dict[str, tuple[Callable[[], Any], Callable[["Expected"], Any]]] = {
    "priority": (PriorityPolicy, lambda job: job.priority),
    "fifo": (FifoPolicy, lambda job: 0),
    "oldest-due": (OldestDuePolicy, lambda job: job.run_at),
    # The key is computed when a job enters or is put back, so it has the attempts of then.
    "group": (ByGroup, lambda job: ("odd" if job.keyed_attempts % 2 else "even", -job.priority)),
    "before": (Unimportant, lambda job: -job.priority),
}


@dataclass(frozen=True)
class Spec:
    """A job to submit, and what its task does."""

    id: str | None
    delay: float
    priority: float
    retries: int
    backoff: float
    fails: int
    action: tuple[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "delay": self.delay,
            "priority": self.priority,
            "retries": self.retries,
            "backoff": self.backoff,
        }


@dataclass(eq=False)
class Expected:
    """What the model knows of a job."""

    number: int
    spec: Spec
    run_at: float
    status: JobStatus = PENDING
    attempts: int = 0
    keyed_attempts: int = 0
    ready: bool = False
    no_retry: bool = False
    claimed: bool = False

    @property
    def id(self) -> int | str:
        return self.number if self.spec.id is None else self.spec.id

    @property
    def priority(self) -> float:
        return self.spec.priority


@dataclass
class Model:
    """The scheduler, as naive as can be."""

    workers: int
    history: int
    rule: Callable[[Expected], Any]
    now: float = 0.0
    closed: bool = False
    drain: str = "all"
    jobs: list[Expected] = field(default_factory=list)
    pending: list[Expected] = field(default_factory=list)  # in order of acceptance
    ended: list[Expected] = field(default_factory=list)  # in order of their ends
    numbers: int = 0
    retries: int = 0

    def remembered(self) -> list[Expected]:
        return self.ended[-self.history :] if self.history else []

    def submit(self, spec: Spec) -> Expected | type[Exception]:
        if self.closed:
            return SchedulerClosedError
        self.numbers += 1
        if spec.id is not None and self.find(spec.id) is not None:
            return DuplicateJobError
        job = Expected(self.numbers, spec, self.now + spec.delay)
        self.jobs.append(job)
        self.pending.append(job)
        return job

    def find(self, id: int | str) -> Expected | None:
        live = [job for job in self.jobs if not job.status.ended and job.id == id]
        known = live + [job for job in self.remembered() if job.id == id]
        return known[0] if known else None

    def end(self, job: Expected, status: JobStatus) -> None:
        if job in self.pending:
            self.pending.remove(job)
        job.status = status
        self.ended.append(job)

    def cancel(self, job: Expected) -> bool:
        if job.status is PENDING:
            self.end(job, CANCELLED)
            return True
        if job.status is RUNNING:
            job.no_retry = True
        return False

    def start(self, job: Expected) -> None:
        self.pending.remove(job)
        job.status = RUNNING
        job.attempts += 1

    def promote(self) -> None:
        for job in self.pending:
            job.ready = job.ready or job.run_at <= self.now

    def tick(self) -> list[Ran]:
        self.promote()
        ran = []
        for slot in range(self.workers):
            ready = [job for job in self.pending if job.ready]
            if not ready:
                break
            job = min(ready, key=lambda job: (self.rule(job), job.number))
            self.start(job)
            self.act(job)
            if job.attempts > job.spec.fails:
                self.end(job, DONE)
            elif job.attempts > job.spec.retries or job.no_retry or self.drain != "all":
                self.end(job, FAILED)
            else:
                job.status, job.ready = PENDING, False
                job.run_at = self.now + job.spec.backoff * 2.0 ** (job.attempts - 1)
                job.keyed_attempts = job.attempts
                self.pending.append(job)
                self.retries += 1
            ran.append(Ran(slot, job.id, job.status))
        return ran

    def act(self, job: Expected) -> None:
        match job.spec.action:
            case ("submit", spec):
                self.submit(spec)
            case ("cancel", index):
                self.cancel(self.jobs[index % len(self.jobs)])

    def shutdown(self, drain: str) -> None:
        modes = ("all", "due", "none")
        self.drain = max(self.drain, drain, key=modes.index)
        self.closed = True
        due = [job for job in self.pending if job.ready or job.run_at <= self.now]
        kept = {"all": self.pending, "due": due, "none": []}[self.drain]
        doomed = [job for job in self.pending if job not in kept]
        if self.drain == "due":
            for job in doomed:
                if job.attempts:
                    self.end(job, FAILED)
        for job in doomed:
            if job.status is PENDING:
                self.end(job, CANCELLED)


SPECS = st.builds(
    Spec,
    id=st.one_of(st.none(), st.none(), st.sampled_from("abcd")),
    delay=st.sampled_from([0, 0, 0, 0.5, 1.0, 1.0, 3.5]),
    priority=st.sampled_from([1, 5, 5, 5, 9, -2.5, float("inf"), 10**30]),
    retries=st.integers(0, 3),
    backoff=st.sampled_from([0, 0.01, 0.5, 1.0]),
    fails=st.sampled_from([0, 0, 1, 2, 4]),
)
ACTIONS = st.one_of(st.none(), st.tuples(st.just("cancel"), st.integers(0, 30)), st.tuples(st.just("submit"), SPECS))


class SchedulerMachine(RuleBasedStateMachine):
    """Does the same to a StepScheduler and to the model, and compares after each step."""

    @initialize(
        queue=st.sampled_from(["lazy", "indexed"]),
        policy=st.sampled_from(list(POLICIES)),
        workers=st.integers(1, 3),
        history=st.sampled_from([0, 2, 1000]),
    )
    def begin(self, queue: str, policy: str, workers: int, history: int) -> None:
        make, order = POLICIES[policy]
        self.clock = FakeClock()
        self.scheduler = StepScheduler(workers, policy=make(), clock=self.clock, queue=queue, history=history)
        self.model = Model(workers, history, order)
        self.jobs: list[Job[Any]] = []

    # ---------------------------------------------------------------- the real side

    def really_submit(self, spec: Spec) -> Job[Any] | type[Exception]:
        def task() -> str:
            match spec.action:
                case ("submit", inner):
                    self.really_submit(inner)
                case ("cancel", index):
                    self.jobs[index % len(self.jobs)].cancel()
            if job.attempts <= spec.fails:
                raise ValueError(f"attempt {job.attempts}")
            return "done"

        try:
            job = self.scheduler.options(**spec.options()).submit(task)
        except (DuplicateJobError, SchedulerClosedError) as error:
            return type(error)
        self.jobs.append(job)
        return job

    # ---------------------------------------------------------------- the operations

    @rule(spec=SPECS, action=ACTIONS)
    def submit(self, spec: Spec, action: Any) -> None:
        spec = Spec(**{**spec.__dict__, "action": action})
        real, expected = self.really_submit(spec), self.model.submit(spec)
        if isinstance(expected, Expected):
            assert isinstance(real, Job)
            assert real.run_at == expected.run_at
        else:
            assert real is expected

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 30))
    def cancel(self, index: int) -> None:
        index %= len(self.jobs)
        assert self.scheduler.cancel(self.jobs[index].id) is self.by_id(index)

    def by_id(self, index: int) -> bool:
        """Cancel in the model what an id finds now: the id may have gone to a later job."""
        id = self.model.jobs[index].id
        live = [job for job in self.model.jobs if job.id == id and not job.status.ended]
        return bool(live) and self.model.cancel(live[0])

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 30))
    def cancel_the_future(self, index: int) -> None:
        index %= len(self.jobs)
        expected = self.model.jobs[index]
        self.model.cancel(expected)
        assert self.jobs[index].cancel() is (expected.status is CANCELLED)

    @rule()
    def tick(self) -> None:
        assert self.scheduler.tick() == self.model.tick()

    @rule(seconds=st.sampled_from([0, 0.25, 0.5, 1.0, 3.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(step=st.sampled_from([0.5, 1.0]), limit=st.integers(0, 4))
    def drain(self, step: float, limit: int) -> None:
        expected = []
        for _ in range(limit):
            if not self.model.pending:
                break
            expected += self.model.tick()
            self.model.now += step
        assert self.scheduler.drain(step, limit) == expected

    @rule(policy=st.sampled_from(list(POLICIES)))
    def swap(self, policy: str) -> None:
        make, self.model.rule = POLICIES[policy]
        self.scheduler.policy = make()
        for job in self.model.pending:
            job.keyed_attempts = job.attempts

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 30))
    def claim(self, index: int) -> None:
        index %= len(self.jobs)
        expected = self.model.jobs[index]
        claimable = expected.status is PENDING
        if claimable:
            self.model.start(expected)
            expected.claimed = True
        assert self.jobs[index].claim() is claimable

    @precondition(lambda self: any(job.claimed and not job.status.ended for job in self.model.jobs))
    @rule(index=st.integers(0, 30), failing=st.booleans())
    def settle_claimed(self, index: int, failing: bool) -> None:
        claimed = [number for number, job in enumerate(self.model.jobs) if job.claimed and not job.status.ended]
        chosen = claimed[index % len(claimed)]
        if failing:
            self.jobs[chosen].set_exception(ValueError("by hand"))
        else:
            self.jobs[chosen].set_result("by hand")
        self.model.end(self.model.jobs[chosen], FAILED if failing else DONE)

    @precondition(lambda self: len(self.jobs) > 3)
    @rule(drain=st.sampled_from(["all", "due", "none"]))
    def shutdown(self, drain: str) -> None:
        report = self.scheduler.shutdown(drain=drain)
        self.model.shutdown(drain)
        running = {job.id for job in self.model.jobs if job.status is RUNNING}
        assert {info.id for info in report.running} == running
        assert report.pending == len(self.model.pending)
        assert bool(report) is (not report.pending and not running)

    # ---------------------------------------------------------------- after each step

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        self.scheduler.check()
        model = self.model
        assert len(self.jobs) == len(model.jobs)
        for real, expected in zip(self.jobs, model.jobs, strict=True):
            assert (real.id, real.status, real.attempts) == (expected.id, expected.status, expected.attempts)
            assert real.run_at == expected.run_at
            if real.status is FAILED:
                assert real.exception() is not None
            found = model.find(expected.id)
            assert self.scheduler.status_of(expected.id) is (None if found is None else found.status)
        stats = self.scheduler.stats()
        assert stats.submitted == stats.pending + stats.running + stats.done + stats.failed + stats.cancelled
        assert stats.pending == stats.delayed + stats.ready + stats.waiting
        count = {status: sum(job.status is status for job in model.jobs) for status in JobStatus}
        assert [stats.pending, stats.running, stats.done, stats.failed, stats.cancelled] == list(count.values())
        assert stats.submitted == len(model.jobs)
        assert stats.ready == sum(job.ready for job in model.pending)
        assert stats.retries == model.retries


SchedulerMachine.TestCase.settings = hypothesis.settings(
    max_examples=1_000 if exhaustive() else 120,
    stateful_step_count=50 if exhaustive() else 30,
    deadline=None,
    print_blob=True,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],  # it takes minutes here
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)
TestScheduler = pytest.mark.timeout(300)(SchedulerMachine.TestCase)  # for the shrinking of a failure
TestScheduler.__doc__ = "Any program of operations comes out as the naive model says, step by step."

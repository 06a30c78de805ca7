"""Random programs with every option, on the stepped scheduler and on a naive one made of lists.

A failure prints the program, and a line ``@reproduce_failure(...)`` that repeats it: write it above the test class's
machine. With THREADSCHED_PROOF=1 the programs are longer, and there are fresh ones each time; that takes a few minutes.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import exhaustive

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402 -- skipped without it
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule  # noqa: E402

pytest.register_assert_rewrite("tests.model.agreement")

from tests.model import programs  # noqa: E402
from tests.model.agreement import Agreement  # noqa: E402
from tests.model.doors import Scheduler as Model  # noqa: E402
from tests.model.subject import Subject  # noqa: E402
from tests.model.words import POLICIES, Operation, Recurrence, Spec  # noqa: E402
from threadsched.testing import StepScheduler  # noqa: E402


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Write no log: the programs fail in thousands of ways that are reported as they should be."""
    logger = logging.getLogger("threadsched")
    logger.disabled = True
    yield
    logger.disabled = False


class SteppedMachine(RuleBasedStateMachine):
    """Does the same to a StepScheduler and to the model, and compares after each step."""

    limits = True

    @initialize(
        queue=st.sampled_from(["lazy", "indexed"]),
        policy=st.sampled_from(list(POLICIES)),
        workers=st.integers(1, 3),
        history=st.sampled_from([0, 2, 1000]),
        max_pending=st.sampled_from([None, None, 1, 3, 6]),
        on_full=st.sampled_from(["reject", "drop_oldest", "drop_lowest", "caller_runs"]),
        draw=st.sampled_from([0.0, 0.25, 0.75]),
    )
    def begin(self, queue: str, on_full: str, **options: Any) -> None:
        from tests.model.words import LIMITS

        if on_full == "drop_lowest":
            queue = "indexed"
        self.subject = Subject(
            StepScheduler, queue=queue, on_full=on_full, limits=LIMITS if self.limits else None, **options
        )
        self.model = Model(on_full=on_full, limits=self.limits, **options)
        self.agreement = Agreement(self.model, self.subject)

    def do(self, *operation: Any) -> None:
        self.subject.perform(operation)
        self.model.perform(operation)

    def teardown(self) -> None:
        if hasattr(self, "subject"):
            self.subject.close()

    # ---------------------------------------------------------------- the operations

    @rule(spec=st.deferred(lambda: SPECS))
    def submit(self, spec: Spec) -> None:
        self.do("submit", spec)

    @rule(plan=st.deferred(lambda: RECURRENCES))
    def every(self, plan: Recurrence) -> None:
        self.do("every", plan)

    @rule()
    def tick(self) -> None:
        self.do("tick")

    @rule(seconds=st.sampled_from([0, 0.25, 0.5, 1.0, 3.0]))
    def advance(self, seconds: float) -> None:
        self.do("advance", seconds)

    @rule(step=st.sampled_from([0.5, 1.0]), limit=st.integers(0, 4))
    def drain(self, step: float, limit: int) -> None:
        self.do("drain", step, limit)

    @rule(what=st.sampled_from(["cancel", "cancel future", "request cancel", "claim"]), index=programs.INDEX)
    def ask(self, what: str, index: int) -> None:
        self.do(what, index)

    @rule(index=programs.INDEX, well=st.booleans())
    def settle(self, index: int, well: bool) -> None:
        claimed = [place for place, job in enumerate(self.model.jobs) if job.claimed and job.finished_at is None]
        self.do("settle", claimed[index % len(claimed)] if claimed else index, well)

    @rule(index=programs.INDEX, priority=programs.PRIORITIES)
    def set_priority(self, index: int, priority: float) -> None:
        self.do("priority", index, priority)

    @rule(policy=st.sampled_from(list(POLICIES)))
    def swap(self, policy: str) -> None:
        self.do("swap", policy)

    @rule(operation=st.one_of(st.just(("foreign",)), st.tuples(st.just("end foreign"), programs.INDEX, programs.ENDS)))
    def foreign(self, operation: Operation) -> None:
        self.do(*operation)

    @rule(what=st.sampled_from(["pause", "resume", "run now", "cancel"]), index=programs.INDEX)
    def schedule(self, what: str, index: int) -> None:
        self.do("schedule", what, index)

    @rule(operation=st.sampled_from([("pause",), ("resume",), ("resume",)]))
    def pause(self, operation: Operation) -> None:
        self.do(*operation)

    @rule(seconds=st.sampled_from([-3, 2]))
    def step_wall(self, seconds: float) -> None:
        self.do("step wall", seconds)

    @rule(often=st.integers(0, 3), mode=programs.MODES)
    def shutdown(self, often: int, mode: str) -> None:
        if len(self.model.jobs) > 3 and not often:
            limited = any(job.work.limits for job in self.model.pending)
            self.agreement.vague = self.agreement.vague or (mode == "none" and limited)
            self.do("shutdown", mode)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "subject"):
            self.agreement.look()


SPECS = programs.specs(programs.in_tasks(limits=True), limits=True)
RECURRENCES = programs.recurrences(programs.in_tasks(limits=True), limits=True)

SteppedMachine.TestCase.settings = hypothesis.settings(
    max_examples=3_000 if exhaustive() else 150,
    stateful_step_count=50 if exhaustive() else 30,
    derandomize=not exhaustive(),
    deadline=None,
    print_blob=True,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],  # it takes minutes here
    suppress_health_check=list(hypothesis.HealthCheck),
)
TestStepped = pytest.mark.timeout(600)(SteppedMachine.TestCase)  # for the shrinking of a failure
TestStepped.__doc__ = "Any program of operations comes out as the naive scheduler says, step by step."

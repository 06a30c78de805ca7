"""Random programs with every option, on the stepped scheduler and on a naive one made of lists.

Two writers of programs, one judge. A state machine of Hypothesis writes short ones and makes a failing one as small as
it can; it prints a line ``@reproduce_failure(...)``, which repeats the failure when it stands above the ``Machine``. A
random generator writes long ones, many more a second; a failing one is cut down by leaving operations out, and printed
as a list that ``disagreement`` takes.

With THREADSCHED_PROOF=1 there are fresh programs each time (THREADSCHED_SEED repeats the long ones), and as many as
take about three minutes on an idle core.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests import support

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402 -- skipped without it
from hypothesis.stateful import (  # noqa: E402
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

pytest.register_assert_rewrite("tests.model.agreement")

from tests.model.agreement import Agreement  # noqa: E402
from tests.model.doors import Scheduler as Model  # noqa: E402
from tests.model.programs import (  # noqa: E402
    THEMES,
    Theme,
    a_configuration,
    a_program,
    an_operation,
    kinds_for,
)
from tests.model.subject import Subject  # noqa: E402
from tests.model.verdict import judge  # noqa: E402
from tests.model.words import LIMITS, Operation  # noqa: E402
from threadsched.testing import StepScheduler  # noqa: E402

EXHAUSTIVE = support.exhaustive()

# The programs fail in thousands of ways that are reported as they should be.
pytestmark = [pytest.mark.usefixtures("no_log"), pytest.mark.proof]


def begin(options: dict[str, Any]) -> Agreement:
    """Make a scheduler and its model."""
    known = {name: value for name, value in options.items() if name != "queue"}
    return Agreement(Model(**known), Subject(StepScheduler, limits=LIMITS, **options))


# ---------------------------------------------------------------- short ones


def drawn(draw: Any) -> Any:
    return lambda several: draw(st.sampled_from(several))


@st.composite
def configurations(draw: Any, theme: Theme) -> dict[str, Any]:
    return a_configuration(drawn(draw), theme)


@st.composite
def operations(draw: Any, theme: Theme) -> list[Operation]:
    pick, kinds = drawn(draw), kinds_for(theme)
    return [an_operation(pick, theme, pick(kinds)) for _ in range(pick((1, 2, 3, 4)))]


def machine_for(theme: Theme) -> type[RuleBasedStateMachine]:
    """Return a machine that writes programs with much of one thing."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.agreement: Agreement | None = None

        @initialize(options=configurations(theme))
        def begin(self, options: dict[str, Any]) -> None:
            self.agreement = begin(options)

        @rule(several=operations(theme))
        def step(self, several: list[Operation]) -> None:
            assert self.agreement is not None
            for operation in several:
                self.agreement.do(operation)

        @rule(operation=st.sampled_from([("shutdown", mode) for mode in ("all", "due", "none")]))
        def shutdown(self, operation: Operation) -> None:
            assert self.agreement is not None
            if len(self.agreement.model.jobs) > 5:
                self.agreement.do(operation)

        @invariant()
        def agree(self) -> None:
            if self.agreement is not None:
                self.agreement.look()

        def teardown(self) -> None:
            if self.agreement is not None:
                self.agreement.close()

    return Machine


SETTINGS = hypothesis.settings(
    max_examples=150 if EXHAUSTIVE else 8,
    stateful_step_count=20,
    derandomize=not EXHAUSTIVE,
    deadline=None,
    print_blob=True,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],  # it takes minutes here
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.timeout(900)  # for the shrinking of a failure
@pytest.mark.parametrize("theme", THEMES)
def test_machine_agrees_with_the_naive_scheduler(theme: str):
    """Any program that a state machine writes comes out as the naive scheduler says, step by step."""
    run_state_machine_as_test(machine_for(THEMES[theme]), settings=SETTINGS)


# ---------------------------------------------------------------- long ones


def disagreement(options: dict[str, Any], program: Sequence[Operation]) -> Exception | None:
    """Run a program on both; return where they differ."""
    agreement = begin(options)
    try:
        for operation in program:
            agreement.do(operation)
            agreement.look()
    except Exception as error:
        return error
    finally:
        agreement.close()
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("theme", THEMES)
def test_long_programs_agree_with_the_naive_scheduler(theme: str):
    """Long random programs come out as the naive scheduler says, step by step."""
    rng = support.rng(f"programs:{theme}") if EXHAUSTIVE else random.Random(theme)
    for _ in range(1_000 if EXHAUSTIVE else 15):
        options, program = a_program(rng, THEMES[theme], length=60)
        judge(disagreement, options, program)

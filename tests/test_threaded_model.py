"""Random programs on the threaded scheduler, one worker and a clock that is moved by hand, against the naive one.

With one worker the outcome is determined: what is asked from outside is asked while the scheduler is paused, what tasks
do they do one after the other. So each start is predicted with its place in the order and its instant, and how all
stands in between. Programs are written and cut down as in ``test_stepped_model``; with THREADSCHED_PROOF=1 there are
fresh ones each time, and as many as take about half a minute.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests import support

pytest.register_assert_rewrite("tests.model.agreement")

from tests.model.agreement import Agreement  # noqa: E402
from tests.model.doors import Threaded  # noqa: E402
from tests.model.programs import THREADED_THEMES, a_threaded_program  # noqa: E402
from tests.model.subject import Subject  # noqa: E402
from tests.model.verdict import judge  # noqa: E402
from tests.model.words import LIMITS, Operation  # noqa: E402
from threadsched import Scheduler  # noqa: E402

EXHAUSTIVE = support.exhaustive()

# The programs fail in thousands of ways that are reported as they should be.
pytestmark = [pytest.mark.usefixtures("no_log"), pytest.mark.proof]

# What may be asked of a closed scheduler, which cannot be paused for it.
LATE = ("submit", "every", "advance", "shutdown")


def disagreement(options: dict[str, Any], program: Sequence[Operation]) -> Exception | None:
    """Run a program on both; return where they differ."""
    known = {name: value for name, value in options.items() if name != "queue"}
    agreement = Agreement(Threaded(**known), Subject(Scheduler, limits=LIMITS, **options))
    try:
        for operation in program:
            if operation[0] in LATE or not agreement.model.closed:
                agreement.do(operation)
                agreement.do(("advance", 0))  # until nobody moves
                agreement.look()
    except Exception as error:
        return error
    finally:
        agreement.close()
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", THREADED_THEMES)
def test_threaded_programs_agree_with_the_naive_scheduler(theme: str):
    """What a worker's thread runs, when and in which order, is what the naive scheduler says."""
    rng = support.rng(f"threaded:{theme}") if EXHAUSTIVE else random.Random(theme)
    for _ in range(300 if EXHAUSTIVE else 5):
        options, program = a_threaded_program(rng, THREADED_THEMES[theme], phases=6)
        judge(disagreement, options, program)

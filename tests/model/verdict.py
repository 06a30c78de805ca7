"""What is said of a program on which the product and the naive scheduler differ."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.model.programs import cut_down
from tests.model.words import Operation

Disagreement = Callable[[dict[str, Any], Sequence[Operation]], Exception | None]


def judge(disagreement: Disagreement, options: dict[str, Any], program: list[Operation]) -> None:
    """Fail if both differ, with the smallest program that still does, printed so that it can be pasted into a test."""
    if disagreement(options, program) is None:
        return
    program = cut_down(program, lambda shorter: disagreement(options, shorter) is not None)
    print(f"options = {options!r}", "program = [", *[f"    {one!r}," for one in program], "]", sep="\n")
    error = disagreement(options, program)
    raise AssertionError("it differs no more") if error is None else error

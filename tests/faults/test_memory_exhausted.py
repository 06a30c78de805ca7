"""Memory runs out at the k-th allocation of an operation, for each k until the operation gets through.

Not promised, nor tested: memory that stays away. CPython itself then spins in its exception handling.
"""

import importlib.util

import pytest

from tests.faults.table import program
from tests.support import exhaustive, rng

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi"),
]

# How many allocations in a row fail.
WIDTHS = (1, 2, 5) if exhaustive() else (1,)


def run(operation: str, width: int, step: int) -> None:
    step = 1 if exhaustive() else step
    offset = rng(f"memory {operation} {width}").randrange(step)
    program("tests.faults.memory_sweep", operation, str(width), str(step), str(offset))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "operation", ["enter", "promote", "claim", "finish", "fail", "retry", "stop", "cancel", "swap"]
)
def test_core_without_memory(operation: str, width: int):
    """The core alone: whatever an operation came to, every accepted job comes to one end."""
    run(f"core: {operation}", width, 9)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("operation", ["submit", "cancel", "set_priority", "clear", "stats"])
def test_call_without_memory(operation: str, width: int):
    """A call that raises MemoryError leaves the lock free and nothing queued; a callback due is called, or logged."""
    run(f"call: {operation}", width, 17)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("operation", ["settle", "fail", "retry", "tell", "condition", "promote"])
def test_worker_without_memory(operation: str, width: int):
    """A worker that lacks memory after a task: its job and the next ones end, no Future stays open, the pool lives."""
    run(f"work: {operation}", width, 13)

"""Memory runs out at the k-th allocation of an operation, for each k until the operation gets through.

Not promised, nor tested: memory that stays away. CPython itself then spins in its exception handling.
"""

import importlib.util

import pytest

from tests.faults.table import program
from tests.support import exhaustive, rng

pytestmark = [
    pytest.mark.proof,
    pytest.mark.subprocess,
    pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi"),
]

# How many allocations in a row fail.
ALL_WIDTHS = (1, 2, 5)
WIDTHS = ALL_WIDTHS if exhaustive() else ALL_WIDTHS[:1]


def run(prefix: str, width: int, step: int) -> None:
    step = 1 if exhaustive() else step
    offset = rng(f"memory {prefix} {width}").randrange(step)
    program("tests.faults.memory_sweep", prefix, str(width), str(step), str(offset))


@pytest.mark.parametrize("width", WIDTHS)
def test_core_without_memory(width: int):
    """The core alone: whatever an operation came to, every accepted job comes to one end."""
    run("core: ", width, 15)


def test_swap_of_the_policy_needs_no_memory_once_it_has_begun():
    """A swap that meets five failures in a row has changed all jobs' keys, or none.

    The second walk over the jobs, which is there for what breaks off the first, lacked memory to begin.
    """
    program("tests.faults.memory_sweep", "core: swap to keys", "5", "1", "0")


@pytest.mark.parametrize("width", WIDTHS)
def test_call_without_memory(width: int):
    """A call that raises MemoryError leaves the lock free and nothing queued; a callback due is called, or logged."""
    run("call: ", width, 30)


# With several in a row the end of a worker that died of the first meets the next.
@pytest.mark.parametrize("width", sorted({*WIDTHS, 5}))
def test_worker_without_memory(width: int):
    """A worker that lacks memory after a task: its job and the next ones end, no Future stays open, the pool lives."""
    run("work: ", width, 25)

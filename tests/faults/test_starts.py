"""Threads that the platform refuses: by a limit on address space, and by a patch at the n-th start."""

import sys

import pytest

from tests.faults.table import program, times

pytestmark = pytest.mark.subprocess


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS and forked trials")
def test_address_space_for_a_few_threads_only():
    """With room for n stacks the pool has at most n workers and says so; with room for none, submit raises."""
    done = program("tests.faults.starts", str(times(8)))
    assert int(done.stdout.split()[-1]) == times(8)

"""The process ends, forks, or is sent signals, at a moment of each trial's own: 200 trials of each in the long run."""

import sys

import pytest

from tests import support
from tests.faults.table import program, times

pytestmark = [pytest.mark.subprocess, pytest.mark.proof]


def run(way: str, sample: int) -> None:
    count = times(sample)
    done = program("tests.faults.endings", way, str(count), f"{support.SEED}")
    assert done.stdout.split()[-1] == str(count)


@pytest.mark.parametrize("way", ["exit", "dropped"])
def test_exit_with_every_kind_of_job(way: str):
    """What is due runs, a pause or not; what is delayed, in backoff or recurring is given up; nothing is printed."""
    run(way, 3)


def test_exit_beside_a_stuck_job():
    """The stuck job is named with its stack, once, in bounded time; what is due runs on the other workers."""
    run("stuck", 1)


def test_os_exit_at_any_moment():
    """``os._exit`` with a busy scheduler ends the process there, with its status, without a word."""
    run("os._exit", 4)


def test_submissions_at_the_very_end():
    """Hooks that run before and after ours, and finalizers, are served or get a RuntimeError; nothing is printed."""
    run("late", 3)


def test_sigterm_handler_that_shuts_down():
    """``shutdown(wait=False)`` in a handler, wherever the main thread is, closes the door and loses no job."""
    run("sigterm", 4)


@pytest.mark.parametrize("order", ["int, int", "term, int", "int, term"])
def test_signals_during_shutdown(order: str):
    """SIGINT and SIGTERM in any phase of a waiting shutdown: it can be called again, and every job has ended once."""
    run(order, 3)


@pytest.mark.skipif(sys.gettrace() is not None, reason="another thread may hold the tracer's own lock at the fork")
def test_fork_at_any_moment_under_load():
    """From outside, from a task, and in a child again: children are empty and serve, the parent goes on."""
    run("fork", 2)

"""A worker's thread is struck at every point of its way: exceptions thrown into it, and code that calls back."""

import itertools

import pytest

from tests.faults.table import program
from tests.support import exhaustive, rng, sample

pytestmark = [pytest.mark.subprocess, pytest.mark.proof]

SCENES = ("ends", "rules", "coroutines", "series")
QUEUES = ("lazy", "indexed")
STRIKES = ("submit", "cancel", "stats", "shutdown", "shutdown_due", "shutdown_none")
WAYS = ("finalizer", "weakref", "call")
# The ways in take turns: the scheduler cannot tell them apart, and each sweep has more than a thousand points.
CALLED_BACK = [
    (scene, strike, queue, WAYS[number % len(WAYS)])
    for number, (scene, strike, queue) in enumerate(itertools.product(SCENES, STRIKES, QUEUES))
    if queue == "lazy" or strike == "submit"
]


def run(scene: str, strike: str, queue: str, mode: str, way: str, step: int) -> None:
    """Strike every STEP-th point, from one that depends on the session's seed."""
    offset = rng(f"struck {scene} {strike} {queue} {way}").randrange(step)
    done = program("tests.faults.worker_sweep", scene, strike, queue, mode, str(step), str(offset), way)
    assert int(done.stdout.split()[-1]) >= 2


@pytest.mark.parametrize(("scene", "queue"), sample(itertools.product(SCENES, QUEUES), 2, "poisoned"))
def test_an_exception_thrown_into_a_worker_at_every_point(scene: str, queue: str):
    """The job in hand ends with WorkerDiedError or is retried, whoever waits is told, and the worker is replaced."""
    run(scene, "poison", queue, "exact", "call", 1 if exhaustive() else 60)


@pytest.mark.parametrize(("scene", "strike", "queue", "way"), sample(CALLED_BACK, 3, "called back"))
def test_code_that_calls_back_at_any_line_of_a_worker(scene: str, strike: str, queue: str, way: str):
    """A finalizer or a weakref's callback on a worker's thread may submit, cancel, look and shut down anywhere.

    The long run takes every fourth point, from another one in each session: all of them are four runs.
    """
    run(scene, strike, queue, "lines", way, 4 if exhaustive() else 120)

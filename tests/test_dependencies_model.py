"""Random graphs of jobs, held against the plainest evaluation there is."""

import random
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.dependency_fields import PATIENCE, Boom
from tests.support import exhaustive
from threadsched import DependencyError, Job, JobStatus, Scheduler, current_job
from threadsched.testing import FakeClock, StepScheduler

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

DONE, FAILED, CANCELLED = JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED


@dataclass
class Node:
    """One job of a random graph, by the numbers of its parents, or a foreign future."""

    parents: list[int]
    foreign: bool
    any_outcome: bool
    delay: int
    fails: int  # so many attempts raise
    retries: int
    cancel_at: int | None  # an instant at which somebody cancels it; a foreign future ends at `delay`
    late: bool  # submitted half-way instead of at the start


@st.composite
def graphs(draw: Any) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 10))):
        foreign = draw(st.integers(0, 4)) == 0
        parents = [] if foreign or not number else draw(st.lists(st.integers(0, number - 1), max_size=3))
        nodes.append(
            Node(
                parents=parents,
                foreign=foreign,
                any_outcome=draw(st.booleans()),
                delay=draw(st.integers(0, 6)),
                fails=draw(st.sampled_from([0, 0, 0, 1, 2])),
                retries=draw(st.integers(0, 2)),
                cancel_at=draw(st.sampled_from([None, None, None, 0, 2, 4, 7])),
                late=draw(st.booleans()),
            )
        )
    for node in nodes:  # a job can be late only if all that wait for it are
        node.late = node.late or any(nodes[parent].late for parent in node.parents)
    return nodes


HALF = 3  # when the late ones are submitted
BACKOFF = 2


@dataclass
class Fate:
    """What the model says of one node: how and when it ends, and when it starts."""

    status: JobStatus | None = None
    at: int = -1
    start: int | None = None
    attempts: int = 0
    due: int = field(default=-1)


def evaluate(nodes: list[Node], until: int) -> list[Fate]:
    """Step through time with one rule a line; a worker for every job, so that nobody queues."""
    fates = [Fate() for _ in nodes]

    def submitted(node: Node) -> int:
        return HALF if node.late else 0

    for now in range(until):
        for number, node in enumerate(nodes):
            if node.cancel_at == now and now >= submitted(node) and fates[number].status is None:
                fates[number].status, fates[number].at = CANCELLED, now
        changed = True
        while changed:
            changed = False
            for number, node in enumerate(nodes):
                fate = fates[number]
                if fate.status is not None or now < submitted(node):
                    continue
                if node.foreign:
                    if now >= max(node.delay, submitted(node)):
                        fate.status, fate.at, changed = (FAILED if node.fails else DONE), now, True
                    continue
                if fate.attempts == 0:
                    parents = [fates[parent].status for parent in node.parents]
                    if not node.any_outcome and (FAILED in parents or CANCELLED in parents):
                        fate.status, fate.at, changed = CANCELLED, now, True
                        continue
                    if None in parents or now < submitted(node) + node.delay:
                        continue
                    fate.start = now
                elif now < fate.due:
                    continue
                fate.attempts += 1
                changed = True
                if fate.attempts > node.fails:
                    fate.status, fate.at = DONE, now
                elif fate.attempts > node.retries:
                    fate.status, fate.at = FAILED, now
                else:
                    fate.due = now + BACKOFF * 2 ** (fate.attempts - 1)
    return fates


def task(node: Node, clock: FakeClock, starts: list[float]) -> int:
    job = current_job()
    assert job is not None
    if job.attempts == 1:
        starts.append(clock.now())
    if job.attempts <= node.fails:
        raise Boom
    return 7


@hypothesis.given(graphs(), st.sampled_from(["lazy", "indexed"]))
@hypothesis.settings(max_examples=1_000 if exhaustive() else 60)
def test_random_graph_ends_as_the_model_says(nodes: list[Node], queue: str):
    """Every job of a random graph starts, and ends, when and how the naive evaluation says."""
    until = 30
    clock = FakeClock()
    scheduler = StepScheduler(len(nodes), clock=clock, queue=queue)
    futures: dict[int, Any] = {}
    starts: list[list[float]] = [[] for _ in nodes]

    def submit(late: bool) -> None:
        for number, node in enumerate(nodes):
            if node.late is not late:
                continue
            if node.foreign:
                futures[number] = Future()
                continue
            futures[number] = scheduler.options(
                after=[futures[parent] for parent in node.parents],
                after_any_outcome=node.any_outcome,
                delay=node.delay,
                retries=node.retries,
                backoff=BACKOFF,
            ).submit(task, node, clock, starts[number])

    for now in range(until):
        if now == 0:
            submit(late=False)
        if now == HALF:
            submit(late=True)
        for number, future in futures.items():
            if nodes[number].cancel_at == now:
                future.cancel()
            if nodes[number].foreign and now >= nodes[number].delay and not future.done():
                future.set_exception(Boom()) if nodes[number].fails else future.set_result(7)
        while scheduler.tick():
            scheduler.check()
        scheduler.check()
        clock.advance(1)
    expected = evaluate(nodes, until)
    for number, fate in enumerate(expected):
        future = futures[number]
        assert future.done(), number
        if isinstance(future, Job):
            assert future.status is fate.status, number
            assert starts[number] == ([] if fate.start is None else [fate.start]), number
            assert future.attempts == fate.attempts, number
            if fate.status is FAILED:
                assert isinstance(future.exception(0), Boom)
            if fate.status is CANCELLED and nodes[number].cancel_at != fate.at:
                with pytest.raises(DependencyError):
                    future.result(0)
    assert scheduler.stats().waiting == 0


@pytest.mark.stress
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_random_graphs_on_threads(queue: Any, rng: random.Random):
    """On real threads every job of a large random graph starts after its parents have ended, and ends as they say."""
    scheduler = Scheduler(4, queue=queue, history=0)
    jobs: list[Job[Any]] = []
    parents_of: list[tuple[list[Job[Any]], bool]] = []

    def run(parents: list[Job[Any]], any_outcome: bool, fails: bool) -> None:
        assert all(parent.done() for parent in parents)
        assert any_outcome or all(parent.status is DONE for parent in parents)
        if fails:
            raise Boom

    for _ in range(3_000):
        parents = rng.sample(jobs[-20:], min(len(jobs), rng.choice([0, 1, 1, 2, 3])))
        any_outcome = rng.random() < 0.7
        job = scheduler.options(after=parents, after_any_outcome=any_outcome).submit(
            run, parents, any_outcome, rng.random() < 0.05
        )
        jobs.append(job)
        parents_of.append((parents, any_outcome))
        if rng.random() < 0.05:
            rng.choice(jobs[-10:]).cancel()
    assert scheduler.wait_idle(PATIENCE * 4)
    scheduler.check()
    for job, (parents, any_outcome) in zip(jobs, parents_of, strict=True):
        try:
            error = job.exception(PATIENCE)
        except DependencyError:
            assert not any_outcome
            assert any(parent.status is not DONE for parent in parents)
        except CancelledError:
            pass
        else:
            assert error is None or isinstance(error, Boom)
            assert any_outcome or all(parent.status is DONE for parent in parents)
    scheduler.shutdown()

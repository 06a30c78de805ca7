"""Whoever interrupts the bookkeeping of dependencies on its own thread finds it whole, and leaves it whole.

As in test_core_strikes.py: each operation is run once for each point at which the interpreter looks for signals, with
a strike there. Whatever it came to, every accepted job must then end, and as its parents' ends allow.
"""

from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from tests import test_core_strikes
from tests.dependency_fields import Boom, boom
from tests.support import sample
from threadsched import Job, JobStatus
from threadsched import _dependencies as dependencies_module
from threadsched.testing import StepScheduler


class Scene:
    """A parent of each kind, jobs that wait for either or both, and one that is about to."""

    def __init__(self, queue: str) -> None:
        self.scheduler = StepScheduler(8, queue=queue)
        self.foreign: Future[int] = Future()
        self.fails: Job[Any] = self.scheduler.submit(boom)
        self.parent: Job[Any] = self.scheduler.submit(int)
        self.edges: dict[int, tuple[Job[Any], list[Any], bool]] = {}
        self.both = self.submit(self.parent, self.foreign)
        self.own = self.submit(self.parent)
        self.theirs = self.submit(self.foreign)
        self.fallen = self.submit(self.fails, self.foreign)
        self.anyway = self.submit(self.fails, any_outcome=True)
        self.last = self.submit(self.both, self.fallen, any_outcome=True)

    def submit(self, *parents: Any, any_outcome: bool = False) -> Job[Any]:
        job = self.scheduler.options(after=parents, after_any_outcome=any_outcome).submit(int)
        self.edges[job.seq] = (job, list(parents), any_outcome)
        return job

    def settle(self) -> None:
        """Run everything to its end and hold each job against its parents."""
        scheduler = self.scheduler
        scheduler.check()
        for _ in range(2):  # what is let go in one tick starts in the next
            scheduler.drain(limit=20)
            if not self.foreign.done():
                self.foreign.set_result(1)
        scheduler.drain(limit=20)
        for job in [*scheduler._runtime.core.running.values()]:
            scheduler._runtime.finish(job, 1, job.name)  # claimed by hand, or an interrupt struck a slot that had it
        scheduler.drain(limit=20)
        scheduler.check()
        assert not scheduler._runtime.core.pending, "a job is left waiting"
        if self.fails.done():
            self.fails.exception()
        for job, parents, any_outcome in self.edges.values():
            assert job.done(), f"no end for {job!r}"
            if job.status is JobStatus.DONE and not any_outcome and job is not self.own:
                assert all(end_is_done(parent) for parent in parents)


def end_is_done(parent: Future[Any]) -> bool:
    return not parent.cancelled() and parent.exception(0) is None


OPERATIONS: dict[str, Callable[[Scene], object]] = {
    "parents end": lambda scene: scene.scheduler.tick(),
    "parent is cancelled": lambda scene: scene.parent.cancel(),
    "foreign is done": lambda scene: scene.foreign.done() or scene.foreign.set_result(1),
    "foreign fails": lambda scene: scene.foreign.done() or scene.foreign.set_exception(Boom()),
    "submission": lambda scene: scene.submit(scene.parent, scene.foreign),
    "submission after ended ones": lambda scene: (scene.parent.cancel(), scene.submit(scene.parent)),
    "cancel": lambda scene: scene.both.cancel(),
    "claim": lambda scene: scene.own.claim(),
    "shutdown": lambda scene: scene.scheduler.shutdown(drain="due"),
}


def interrupt(scene: Scene) -> None:
    raise KeyboardInterrupt


def submit_more(scene: Scene) -> None:
    if not scene.scheduler._runtime.core.closed:
        scene.submit(scene.parent, scene.foreign, scene.own)


def look(scene: Scene) -> None:
    scene.scheduler.stats()
    scene.last.explain()


STRIKES: dict[str, Callable[[Scene], object]] = {
    "interrupt": interrupt,
    "submit": submit_more,
    "cancel a dependent": lambda scene: scene.both.cancel(),
    "cancel the parent": lambda scene: scene.parent.cancel(),
    "end the foreign one": lambda scene: scene.foreign.done() or scene.foreign.set_result(1),
    "look": look,
}


# Where no step of ours has run yet when an interrupt strikes: the future loses its callback as it calls it.
UNPROTECTED = "ForeignParent.__call__"


class Striker(test_core_strikes.Striker):
    """Leaves finalizers alone: what strikes there is nobody's to catch."""

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        return None if frame.f_code.co_name == "__del__" else super()._trace(frame, event, arg)


class Mapper(Striker):
    """Strikes nowhere, and remembers where the points are."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.places: list[str] = []

    def _point(self, frame: FrameType) -> None:
        self.places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        super()._point(frame)


@pytest.mark.proof
@pytest.mark.parametrize("strike", STRIKES)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_struck_operation_leaves_nobody_waiting(
    queue: str, operation: str, strike: str, monkeypatch: pytest.MonkeyPatch
):
    """Wherever an operation on dependencies is broken into, every job ends, and none against its parents."""
    files = test_core_strikes.FILES | {dependencies_module.__file__}
    monkeypatch.setattr(test_core_strikes, "FILES", files)
    scene = Scene(queue)
    counter = Mapper(None, lambda: None)
    counter.run(lambda: OPERATIONS[operation](scene))
    scene.settle()
    assert counter.points > 3
    for at in sample(range(counter.points), 5, f"{queue} {operation} {strike}"):
        scene = Scene(queue)
        striker = Striker(at, lambda: STRIKES[strike](scene))  # noqa: B023 -- called at once
        if strike == "interrupt" and counter.places[at].startswith(UNPROTECTED):
            continue
        try:
            striker.run(lambda: OPERATIONS[operation](scene))  # noqa: B023 -- called at once
        except KeyboardInterrupt:
            assert strike == "interrupt"
        try:
            scene.settle()
        except BaseException as fault:
            fault.add_note(f"struck at point {at}, {striker.where}")
            raise

"""Whoever interrupts the core on its own thread finds it, and leaves it, in a state that can go on.

A signal handler, a finalizer or Ctrl-C can strike wherever the interpreter looks for one: at the entry of a function,
after a call, at a backward jump. Each operation of the core is run once for each such point inside it, with a strike
there: an exception, or a call back into the core. Whatever the operation itself came to, every accepted job must then
reach exactly one end. An ordinary run takes some of the points, others each time.
"""

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.core_driver import Driver, failure_of
from tests.injector import leave_opcodes, trace_opcodes
from tests.support import sample
from threadsched import FifoPolicy, Job
from threadsched import _core as core_module
from threadsched import _heap as heap_module
from threadsched import _job as job_module
from threadsched._policy import Ranking

FILES = {module.__file__ for module in (core_module, heap_module, job_module)}
# How far the dead must outnumber the living in these tests before they are swept: few jobs make many scenes.
SLACK = 4

# Where the interpreter looks for signals, asynchronous exceptions and, since 3.12, for the collector.
BREAKERS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}


class Striker:
    """Runs a call and, at its point number `at`, the strike; counts the points."""

    def __init__(self, at: int | None, strike: Callable[[], object]) -> None:
        self.points = 0
        self.where = ""
        self._at, self._strike = at, strike
        self._last: dict[FrameType, int] = {}

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(before)
            self._last.clear()

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        code: CodeType = frame.f_code
        if code.co_filename not in FILES or code.co_name in ("__repr__", "__init__"):
            return None
        if event == "call":
            trace_opcodes(frame, self._trace)
            self._point(frame)
        elif event == "opcode":
            previous = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if previous is not None and dis.opname[code.co_code[previous]] in BREAKERS:
                self._point(frame)
        return self._trace

    def _point(self, frame: FrameType) -> None:
        number, self.points = self.points, self.points + 1
        if number == self._at:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            leave_opcodes(frame)
            self._strike()


class Scene:
    """A core with jobs in every place, and the operation to be struck."""

    def __init__(self, queue: str, stepped: bool = False) -> None:
        self.driver = driver = Driver(queue, stepped=stepped)
        self.accepted: list[Job[Any]] = []
        self.runs = self.submit()
        assert driver.claim() is self.runs
        self.ready = [self.submit(priority=priority) for priority in (5, 1, 9)]
        self.delayed = [self.submit(delay=delay, id=f"at {delay}") for delay in (1, 2, 3, 50)]
        self.victims = [self.submit(), self.submit(delay=2)]
        for job in (self.submit(priority=0), self.submit(delay=0.5)):
            driver.cancel(job)  # dead heads
        driver.now = 10.0

    def submit(self, **options: Any) -> Job[Any]:
        job = self.driver.submit(**options)
        self.accepted.append(job)
        return job

    def crowd(self, **options: Any) -> None:
        """Bring the dead entries to where the next cancel sweeps them."""
        for _ in range(SLACK):
            self.driver.cancel(self.submit(**options))

    def settle(self, counted: bool = True) -> None:
        """Run everything to its end, as a scheduler would, and see that all is whole, and counted."""
        driver, core = self.driver, self.driver.core
        core.check_invariants()
        for job in core.pending.values():
            if job not in self.accepted:
                self.accepted.append(job)
        driver.now = 1000.0
        core.next_due()
        driver.promote()
        core.check_invariants()
        driver.claim_all()
        for job in list(core.running.values()):
            assert driver.finish(job)
        core.check_invariants()
        assert not core.pending, "a job was never claimed"
        lost = [job for job in self.accepted if not job.done()]
        assert not lost, f"no end for {lost}"
        if not counted:
            return
        assert core.done + core.failed + core.cancelled == len(self.accepted)
        for id in [job.id for job in self.accepted]:
            assert core.status_of(id) is not None, f"{id!r} is forgotten"


def crowded(scene: Scene, place: int, **options: Any) -> Callable[[], object]:
    scene.crowd(**options)
    job = (scene.ready, scene.delayed)[place][0]
    return lambda: (scene.driver.cancel(job), [scene.driver.cancel(scene.submit(**options)) for _ in range(3)])


def damaged(scene: Scene) -> Callable[[], object]:
    core = scene.driver.core
    core.delayed.untidy = core.ready.untidy = True
    core.delayed.lane.clear()
    core.delayed.heap.clear()
    return core.repair


def reranked(scene: Scene) -> Callable[[], object]:
    core = scene.driver.core
    return lambda: core.rerank(Ranking(ByText()), {seq: ("text", -seq) for seq in core.pending})


def levelled(scene: Scene) -> Callable[[], object]:
    """A turn where all that is ready ranks alike, the first of it dead."""
    scene.driver.claim_all()
    dead, *scene.ready = [scene.submit() for _ in range(4)]
    scene.driver.cancel(dead)
    return lambda: turn(scene)


def turn(scene: Scene) -> Job[Any] | None:
    """What a worker does: once more if somebody who broke in attached something to the job that it settles."""
    core = scene.driver.core
    job = core.turn(scene.runs, "value", "name", 10.0, "worker")
    if job is scene.runs:
        scene.driver.finish(job)
    return job


class ByText:
    def key(self, job: Job[Any]) -> tuple[str, int]:
        return ("text", -job.seq)


OPERATIONS: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "enter ready": lambda scene: lambda: scene.submit(priority=3),
    "enter delayed": lambda scene: lambda: scene.submit(delay=4),
    "promote": lambda scene: scene.driver.promote,
    "claim": lambda scene: scene.driver.claim,
    "claim one ready": lambda scene: lambda: scene.driver.core.claim_one(scene.ready[0], 10.0),
    "claim one delayed": lambda scene: lambda: scene.driver.core.claim_one(scene.delayed[0], 10.0),
    "finish": lambda scene: lambda: scene.driver.finish(scene.runs),
    "turn": lambda scene: lambda: turn(scene),
    "turn among equals": levelled,
    "fail": lambda scene: lambda: scene.driver.fail(scene.runs),
    "fail pending": lambda scene: lambda: scene.driver.fail(scene.delayed[1]),
    "retry": lambda scene: lambda: scene.driver.retry(scene.runs, 12.0),
    "stop": lambda scene: lambda: scene.driver.core.stop(scene.runs, "name", 10.0),
    "cancel ready": lambda scene: lambda: scene.driver.cancel(scene.ready[1]),
    "cancel delayed": lambda scene: lambda: scene.driver.cancel(scene.delayed[1]),
    "cancel and sweep ready": lambda scene: crowded(scene, 0),
    "cancel and sweep delayed": lambda scene: crowded(scene, 1, delay=7),
    "next due": lambda scene: scene.driver.core.next_due,
    "repair": damaged,
    "swap to a trusted rule": lambda scene: lambda: scene.driver.core.rerank(Ranking(FifoPolicy()), {}),
    "swap to keys": reranked,
    "close": lambda scene: lambda: scene.driver.core.close("due"),
}


def interrupt(scene: Scene) -> None:
    raise KeyboardInterrupt


def cancel_many(scene: Scene) -> None:
    # What a clear() in a handler does; with the newcomers there are enough for a sweep.
    for delay in (0, 0, 6):
        jobs = [scene.submit(delay=delay) for _ in range(15)]
        for job in jobs:
            scene.driver.cancel(job)


def close_due(scene: Scene) -> None:
    scene.driver.core.close("due")


STRIKES: dict[str, Callable[[Scene], object]] = {
    "Ctrl-C": interrupt,
    "submit": lambda scene: scene.submit(),
    "submit delayed": lambda scene: scene.submit(delay=0.25),
    "cancel": lambda scene: [scene.driver.cancel(job) for job in scene.victims],
    "cancel it": lambda scene: [scene.driver.cancel(job) for job in (*scene.ready, *scene.delayed)],
    "cancel many": cancel_many,
    "shutdown": close_due,
}


def points_of(queue: str, operation: Callable[[Scene], Callable[[], object]]) -> range:
    """Return the points at which an operation can be struck."""
    counter = Striker(None, lambda: None)
    counter.run(operation(Scene(queue)))
    assert counter.points, "no point was found"
    return range(counter.points)


@pytest.mark.proof
@pytest.mark.parametrize("strike", list(STRIKES))
@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_core_survives_a_strike(queue: str, operation: str, strike: str, monkeypatch: pytest.MonkeyPatch):
    """Wherever the strike falls inside the operation, all jobs come to one end and the structures agree."""
    monkeypatch.setattr(core_module, "SWEEP_SHARE", 2)
    monkeypatch.setattr(core_module, "SWEEP_SLACK", SLACK)
    monkeypatch.setattr(core_module, "SWEEP_EVERY", 1)
    wrong: dict[str, str] = {}
    for at in sample(points_of(queue, OPERATIONS[operation]), 10, f"{queue} {operation} {strike}"):
        scene = Scene(queue)
        call = OPERATIONS[operation](scene)
        striker = Striker(at, lambda scene=scene: STRIKES[strike](scene))  # type: ignore[misc]
        try:
            striker.run(call)
        except KeyboardInterrupt:
            assert strike == "Ctrl-C"
            scene.driver.core.entering = None  # as the scheduler undoes a submission
        except Exception as error:
            wrong.setdefault(striker.where, repr(error))
        assert striker.where, f"point {at} was not reached"
        try:
            # An operation that Ctrl-C broke off may be missing in the counts and in the history, never in the maps.
            scene.settle(counted=strike != "Ctrl-C")
        except Exception as error:
            wrong.setdefault(striker.where, repr(error))
    assert not wrong


def test_strikes_are_noticed():
    """The check at the end of a scene does notice a job that was lost from its heap, from its map, or twice ended."""
    for damage in (
        lambda core: [core.ready.pop() for _ in range(2)],  # the first is dead
        lambda core: core.pending.popitem(),
        lambda core: core.running.popitem(),
    ):
        scene = Scene("lazy")
        damage(scene.driver.core)
        with pytest.raises(AssertionError):
            scene.settle()


def test_failure_helper_counts_as_seen():
    """The failures made here are seen, so collecting them logs nothing."""
    assert failure_of(Scene("lazy").runs).seen

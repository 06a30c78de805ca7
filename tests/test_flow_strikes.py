"""Strikes, as in test_core_strikes, on jobs that change their place and on producers that wait for one."""

import threading
from collections.abc import Callable

import pytest

from tests import test_core_strikes as strikes
from tests.core_driver import make_job
from tests.support import sample
from tests.test_core_strikes import OPERATIONS, SLACK, STRIKES, Scene, Striker, points_of
from threadsched import _core, _gate, _reorder
from threadsched._gate import Gate
from threadsched._reorder import reorder

queues = pytest.mark.parametrize("queue", ["lazy", "indexed"])


@pytest.fixture(autouse=True)
def struck_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "FILES", {*strikes.FILES, _gate.__file__, _reorder.__file__})
    monkeypatch.setattr(_core, "SWEEP_SHARE", 2)
    monkeypatch.setattr(_core, "SWEEP_SLACK", SLACK)
    monkeypatch.setattr(_core, "SWEEP_EVERY", 1)


def shuffle(scene: Scene) -> None:
    """Give every job of the scene another priority, some of them one that they had."""
    core = scene.driver.core
    for turn in range(3):
        for number, job in enumerate([*scene.ready, *scene.delayed, *scene.victims]):
            reorder(core, job, (number * 5 + turn) % 7, core.ranking.key_of(job))


def stale(scene: Scene) -> Callable[[], object]:
    for turn in range(SLACK):
        reorder(scene.driver.core, scene.ready[0], turn + 0.5, None)
    return lambda: [reorder(scene.driver.core, scene.ready[1], turn - 0.5, None) for turn in range(6)]


MOVES: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "reorder ready": lambda scene: lambda: reorder(scene.driver.core, scene.ready[0], 2, None),
    "reorder delayed": lambda scene: lambda: reorder(scene.driver.core, scene.delayed[0], 2, None),
    "reorder and sweep": stale,
}

CASES = [(move, strike) for move in MOVES for strike in [*STRIKES, "shuffle"]] + [
    (one, "shuffle") for one in OPERATIONS
]


def struck(scene: Scene, call: Callable[[], object], at: int, strike: str) -> Striker:
    """Run the call with a strike at one point; what an interrupt broke off is undone as the scheduler undoes it."""
    striker = Striker(at, lambda: {**STRIKES, "shuffle": shuffle}[strike](scene))
    try:
        striker.run(call)
    except KeyboardInterrupt:
        scene.driver.core.entering = None
    return striker


@pytest.mark.proof
@pytest.mark.parametrize(("operation", "strike"), CASES, ids=str)
@queues
def test_order_survives_a_strike(queue: str, operation: str, strike: str):
    """Wherever it falls, each job keeps one entry that counts and comes to one end."""
    prepare = {**OPERATIONS, **MOVES}[operation]
    for at in sample(points_of(queue, prepare), 12, f"{queue} {operation} {strike}"):
        scene = Scene(queue)
        striker = struck(scene, prepare(scene), at, strike)
        assert striker.where, f"point {at} was not reached"
        try:
            scene.settle(counted=strike != "Ctrl-C")
        except BaseException as error:
            raise AssertionError(f"struck at {striker.where}") from error


FREEING: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "cancel": lambda scene: lambda: scene.driver.cancel(scene.ready[1]),
    "claim": lambda scene: scene.driver.claim,
    "claim one": lambda scene: lambda: scene.driver.core.claim_one(scene.ready[0], 10.0),
    "fail": lambda scene: lambda: scene.driver.fail(scene.delayed[1]),
    "withdraw": lambda scene: lambda: withdraw_first(scene),
}


def withdraw_first(scene: Scene) -> None:
    core = scene.driver.core
    assert core.gate is not None
    core.gate.freed(range(len(core.pending) - 1))
    core.gate.withdraw(next(iter(core.gate.grants), scene.runs), core.pending)


@pytest.mark.parametrize("strike", ["Ctrl-C", "cancel", "cancel many", "shuffle"])
@pytest.mark.parametrize("operation", list(FREEING))
@queues
def test_no_producer_sleeps_beside_a_free_place(queue: str, operation: str, strike: str):
    """Wherever it falls: a granted producer is awake, and if there is a place left the first in line is awake too."""
    at = 0
    while True:
        scene = Scene(queue)
        core = scene.driver.core
        limit = len(core.pending)
        gate = core.gate = Gate(limit)
        tokens = {}
        for _ in range(20):
            job = make_job()
            assert not gate.take(job, core.pending)
            tokens[job] = gate.line[job] = threading.Lock()
            tokens[job].acquire()
        striker = struck(scene, FREEING[operation](scene), at, strike)
        if at >= striker.points:
            break
        assert all(not tokens[job].locked() for job in gate.grants), striker.where
        if len(core.pending) + len(gate.grants) < limit and gate.line:
            assert not tokens[next(iter(gate.line))].locked(), striker.where
        # As each producer does when it wakes: help itself, enter or go.
        gate.freed(core.pending)
        gate.check_invariants(core.pending, closed=False)
        at += 1
    assert at

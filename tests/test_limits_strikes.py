"""Whoever breaks into a move of the limits, on the same thread and at any point, leaves limits that can go on."""

from collections.abc import Callable
from typing import Any

import pytest

from tests import test_core_strikes as strikes
from tests.support import sample
from threadsched import FifoPolicy, Job, Limit
from threadsched import _limits as limits_module
from threadsched import _turnstile as gate_module
from threadsched.testing import StepScheduler


class Scene:
    """A stepped scheduler with jobs inside, sent, held by one or two limits and free; and what is to be struck."""

    def __init__(self, queue: str) -> None:
        self.stepped = StepScheduler(
            9,
            queue=queue,
            limits={"one": Limit(1), "two": Limit(2), "mail": Limit(rate=2)},
        )
        self.core = self.stepped._runtime.core
        self.limits = self.stepped._runtime.limits
        self.most = {"one": 1, "two": 2}
        self.jobs: list[Job[Any]] = []
        self.inside = self.submit("one")
        assert self.inside.claim()
        self.others = [self.submit("two"), self.submit("two")]
        assert all(job.claim() for job in self.others)
        for _ in range(2):
            self.submit("mail")
        self.stepped.tick()
        self.held_one = [self.submit("one", priority=n) for n in (4, 2, 3)]
        self.held_two = [self.submit(["two", "mail"]) for _ in range(2)]
        self.held_mail = [self.submit("mail", priority=n) for n in (1, 9, 1)]
        self.stepped.tick()
        self.fresh = [self.submit("one", priority=0), self.submit(["one", "two"], priority=0), self.submit([])]
        self.slot = self.stepped._slots[0]
        self.core.promote(0.0)

    def submit(self, names: Any, **options: Any) -> Job[Any]:
        job = self.stepped.options(limits=names, **options).submit(int)
        self.jobs.append(job)
        return job

    def claim(self) -> Callable[[], object]:
        return lambda: self.core.claim(0.0, self.slot)

    def settle(self, counted: bool) -> None:
        """Run all to its end and see that nothing is lost, exceeded or leaked."""
        if not counted:
            self.core.entering = None
            self.core.repair()  # as after the death of a worker
        for name, most in self.most.items():
            assert len(self.limits.gates[name].inside) <= most, f"{name} is exceeded"
        self.stepped.check()
        for _ in range(30):
            for job in list(self.core.running.values()):
                assert self.core.finish(job, None, "int", self.stepped.clock.now())
            self.stepped.tick()
            self.stepped.clock.advance(0.5)
        self.stepped.check()
        lost = [job for job in self.jobs if not job.done()]
        assert not lost, f"no end for {lost}"
        assert {info.in_use for info in self.stepped.limits.values()} == {0}


def sent(scene: Scene) -> Job[Any]:
    """Let the rate's window open, and return the job that was sent for it."""
    scene.core.promote(1.0)
    return scene.held_mail[0]


def cancel_sent(scene: Scene) -> Callable[[], object]:
    job = sent(scene)
    return lambda: scene.stepped.cancel(job.id)


def claim_sent(scene: Scene) -> Callable[[], object]:
    sent(scene)
    return lambda: scene.core.claim(1.0, scene.slot)


def rekeyed(scene: Scene) -> Callable[[], object]:
    job = scene.held_one[0]

    def change() -> None:
        if job._state == "PENDING":
            job._priority = job._key = 0
            scene.core.rekeyed(job, 0.0)

    return change


def swap(scene: Scene, policy: Any) -> None:
    scene.stepped.policy = policy


OPERATIONS: dict[str, Callable[[Scene], Callable[[], object]]] = {
    "claim": Scene.claim,
    "claim sent": claim_sent,
    "claim held": lambda scene: lambda: scene.held_one[1].claim(),
    "claim fresh": lambda scene: lambda: scene.fresh[1].claim(),
    "finish": lambda scene: lambda: scene.core.finish(scene.inside, None, "int", 0.0),
    "finish two": lambda scene: lambda: scene.core.finish(scene.others[0], None, "int", 0.0),
    "retry": lambda scene: lambda: scene.core.retry(scene.inside, 0.5, 5, 0.0),
    "cancel held": lambda scene: lambda: scene.stepped.cancel(scene.held_one[1].id),
    "cancel sent": cancel_sent,
    "ring": lambda scene: lambda: scene.core.promote(1.0),
    "rekey": rekeyed,
    "swap": lambda scene: lambda: swap(scene, FifoPolicy()),
}


def interrupt(scene: Scene) -> None:
    raise KeyboardInterrupt


def settle_inside(scene: Scene) -> None:
    scene.core.finish(scene.inside, None, "int", 0.0)
    scene.core.finish(scene.others[0], None, "int", 0.0)


STRIKES: dict[str, Callable[[Scene], object]] = {
    "Ctrl-C": interrupt,
    "submit": lambda scene: scene.submit(["one", "mail"], priority=0),
    "claim": lambda scene: [job.claim() for job in (scene.held_one[2], scene.fresh[0], scene.held_mail[2])],
    "cancel": lambda scene: [scene.stepped.cancel(job.id) for job in scene.jobs],
    "cancel some": lambda scene: [scene.stepped.cancel(job.id) for job in (scene.held_one[1], scene.held_mail[0])],
    "settle": settle_inside,
}


@pytest.mark.proof
@pytest.mark.parametrize("strike", list(STRIKES))
@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_limits_survive_a_strike(queue: str, operation: str, strike: str, monkeypatch: pytest.MonkeyPatch):
    """Wherever the strike falls inside the operation, no limit is exceeded, no place leaks and every job ends."""
    monkeypatch.setattr(strikes, "FILES", {gate_module.__file__, limits_module.__file__})
    wrong: dict[str, str] = {}
    scene = Scene(queue)
    counter = strikes.Striker(None, lambda: None)
    counter.run(OPERATIONS[operation](scene))
    assert counter.points, "no point was found"
    for at in sample(range(counter.points), 5, f"{queue} {operation} {strike}"):
        scene = Scene(queue)
        call = OPERATIONS[operation](scene)
        striker = strikes.Striker(at, lambda scene=scene: STRIKES[strike](scene))  # type: ignore[misc]
        try:
            striker.run(call)
        except KeyboardInterrupt:
            assert strike == "Ctrl-C"
        except Exception as error:
            wrong.setdefault(striker.where, f"raised {error!r}")
        try:
            scene.settle(counted=strike != "Ctrl-C")
        except Exception as error:
            wrong.setdefault(striker.where, repr(error))
    assert not wrong

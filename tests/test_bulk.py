"""Batches: what `map` submits in one hold of the lock is, job by job, what single submissions would have been."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests import test_core_strikes as strikes
from tests.gates import PATIENCE, occupied
from threadsched import DeadlinePolicy, FifoPolicy, OldestDuePolicy, PriorityPolicy, Scheduler, _bulk, _core, _heap
from threadsched import _map as map_module
from threadsched import _runtime as runtime_module
from threadsched.testing import FakeClock

FILES = {module.__file__ for module in (_bulk, _core, _heap, map_module, runtime_module)}


@pytest.mark.parametrize("policy", [PriorityPolicy, FifoPolicy, OldestDuePolicy, DeadlinePolicy])
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("rest", [{}, {"priority": 1}, {"priority": 9}, {"delay": 3}], ids=repr)
def test_batch_starts_where_single_jobs_would(policy: Any, queue: Any, rest: dict[str, Any]):
    """Between jobs of other ranks, ready and delayed ones, a batch takes the places of as many single submissions."""

    def order(*, at_once: bool) -> list[str]:
        started: list[str] = []
        clock = FakeClock()
        with Scheduler(1, policy=policy(), queue=queue, clock=clock) as s:
            s.pause()
            for name in ("a", "b"):
                s.submit(started.append, name)
            s.options(priority=2).submit(started.append, "low")
            mapped = s.options(**rest)
            names = [f"mapped {number}" for number in range(5)]
            if at_once:
                mapped.map(started.append, names)
            else:
                for name in names:
                    mapped.submit(started.append, name)
            s.options(delay=2).submit(started.append, "later")
            s.submit(started.append, "c")
            s.check()
            clock.advance(5)
            s.resume()
            assert s.wait_idle(PATIENCE)
        return started

    assert order(at_once=True) == order(at_once=False)


def test_batch_after_one_is_numbered_in_order():
    """The numbers of a batch follow each other, and those of what came before."""
    with Scheduler(1) as s, occupied(s):
        first = s.submit(int)
        s.map(int, range(300))
        assert s.submit(int).seq == first.seq + 301
        s.check()


def interrupt(s: Scheduler) -> None:
    raise KeyboardInterrupt


STRIKES: dict[str, Callable[[Scheduler], object]] = {
    "Ctrl-C": interrupt,
    "submit": lambda s: s.submit(int),
    "cancel": lambda s: [s.submit(int).cancel() for _ in range(3)],
    "shutdown": lambda s: s.shutdown(wait=False),
    "stats": lambda s: s.stats(),
}


@pytest.mark.parametrize("strike", list(STRIKES))
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_batch_that_is_broken_into_at_any_point(strike: str, delay: float, monkeypatch: pytest.MonkeyPatch):
    """Wherever it is struck, each job of it was accepted and runs once, or was not and never does; nothing hangs."""
    monkeypatch.setattr(strikes, "FILES", FILES)
    for at in itertools.count():
        ran: list[int] = []
        clock = FakeClock()
        s = Scheduler(1, clock=clock)
        s.pause()
        before = s.submit(int)
        striker = strikes.Striker(at, lambda s=s: STRIKES[strike](s))  # type: ignore[misc]
        broken = False
        try:
            striker.run(lambda s=s, ran=ran: s.options(delay=delay).map(ran.append, range(4)))  # type: ignore[misc]
        except (KeyboardInterrupt, RuntimeError):  # struck, or refused after the shutdown
            broken = True
        s.check()
        clock.advance(5)
        if not s.closed:
            s.resume()
        assert s.wait_idle(PATIENCE), striker.where
        s.check()
        stats = s.stats()
        assert before.done()
        assert stats.submitted == stats.done + stats.cancelled
        assert ran == list(range(len(ran))), striker.where
        assert broken or len(ran) == 4, striker.where
        s.shutdown()
        if at >= striker.points:
            break
    assert at > 20

"""`wait_below`: producers that pace themselves."""

from typing import Any

import pytest

from tests.gates import PATIENCE, Gate
from tests.producers import Asleep, Call, asleep_waiting, make
from threadsched import Scheduler


def test_idl_01_wait_for_empty(monkeypatch: pytest.MonkeyPatch):
    """`wait_below(1)` returns when nothing waits though one may still run, again and again, and at once when empty."""
    asleep = asleep_waiting(monkeypatch)
    with Scheduler(1) as s:
        assert s.wait_below(1, timeout=0)
        for _ in range(2):
            first, second = Gate(), Gate()
            s.submit(first)
            first.await_start()
            s.submit(second)
            call = Call(s.wait_below, 1)
            asleep.await_one()
            first.open()
            assert call.outcome() is True
            second.await_start()
            assert s.stats().running == 1
            second.open()
            assert s.wait_idle(PATIENCE)


def test_idl_03_wait_for_fewer_than_n(monkeypatch: pytest.MonkeyPatch):
    """Fewer than 4, 2, 10 and 1: the running one does not count."""
    asleep = asleep_waiting(monkeypatch)
    gates = [Gate() for _ in range(5)]
    with Scheduler(1) as s:
        for gate in gates:
            s.submit(gate)
        gates[0].await_start()
        assert s.stats().pending == 4
        call = Call(s.wait_below, 4)
        asleep.await_one()
        gates[0].open()
        assert call.outcome()
        assert s.stats().pending == 3
        call = Call(s.wait_below, 2)
        asleep.await_one()
        gates[1].open()
        gates[2].open()
        assert call.outcome()
        gates[3].await_start()
        assert s.stats().pending == 1
        assert s.wait_below(10)
        assert not s.wait_below(1, timeout=0)
        gates[3].open()
        assert s.wait_below(1, PATIENCE)
        gates[4].open()


@pytest.mark.parametrize("how", ["clear", "resume", "claim", "drop"])
def test_idl_04_what_releases_the_wait(monkeypatch: pytest.MonkeyPatch, how: str):
    """Each releases at once every wait it satisfies, with no completion needed; nothing stays registered."""
    asleep = asleep_waiting(monkeypatch)
    gates = [Gate() for _ in range(4)]
    with Scheduler(4) as s:
        s.pause()
        jobs = [s.submit(gate) for gate in gates]
        calls = []
        for fewer in (4, 2, 1):
            calls.append(Call(s.wait_below, fewer))
            asleep.await_one()
        assert not any(call.over for call in calls)
        if how == "clear":
            s.clear()
        elif how == "resume":
            s.resume()
        elif how == "claim":
            for job in jobs:
                assert job.claim()
        else:
            s.shutdown(wait=False, drain="none")
        assert [call.outcome() for call in calls] == [True] * 3
        for gate in gates:
            gate.open()
        if how == "claim":
            for job in jobs:
                job.set_result(None)
        assert s._runtime.core.gate is None  # nobody pays for it any more
        s.check()


def test_wait_below_gives_up_in_time():
    """False when the time is over; nothing stays registered."""
    with Scheduler(1) as s:
        s.pause()
        s.submit(int)
        assert s.wait_below(1, timeout=0.01) is False
        assert s.wait_below(2, timeout=0) is True
        assert s._runtime.core.gate is None  # nobody pays for it any more
        s.check()


def test_wait_below_with_a_bound(monkeypatch: pytest.MonkeyPatch):
    """A place that goes to a blocked producer was free for a moment; the wait for fewer than the bound has seen it."""
    asleep, waiting = Asleep(monkeypatch), asleep_waiting(monkeypatch)
    with make("block", 2) as s:
        s.pause()
        jobs = [s.submit(int), s.submit(int)]
        producer = Call(s.submit, int)
        asleep.await_one()
        wait = Call(s.wait_below, 2)
        waiting.await_one()
        jobs[0].cancel()
        assert wait.outcome() is True
        producer.outcome()
        assert s.stats().pending == 2
        s.check()


@pytest.mark.parametrize(("arguments", "error"), [((0,), ValueError), ((-1,), ValueError), ((1.5,), TypeError),
    ((True,), TypeError), ((1, -1), ValueError), ((1, float("nan")), ValueError), ((1, "x"), TypeError)])  # fmt: skip
def test_wait_below_refuses_what_it_cannot_wait_for(arguments: Any, error: type[Exception]):
    """Fewer than none there never are; numbers are numbers."""
    with Scheduler(1) as s, pytest.raises(error, match=r"pending|timeout"):
        s.wait_below(*arguments)


def test_wait_below_under_the_lock_raises():
    """Code that interrupted the scheduler cannot wait for it."""
    with Scheduler(1) as s:
        s.pause()
        s.submit(int)
        with s._runtime.lock, pytest.raises(RuntimeError, match="cannot wait here"):
            s.wait_below(1)
        assert s._runtime.core.gate is None  # nobody pays for it any more

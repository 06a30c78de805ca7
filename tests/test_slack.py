"""Timer slack: the leader asks the system for so much less sleep as that adds, and never starts a job early."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE
from tests.hand import Hand, HandClock
from threadsched import Scheduler, _locks, _waiting
from threadsched._worker import WATCH

SLACK = 0.25


class Sleeps:
    """The sleeps that a leader asked for; each ends as its time runs out, at the reading that the test names."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []

    def __call__(self, token: Any, timeout: float | None) -> bool:
        self.asked.append(timeout)
        return False


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(_waiting, "sleep_on", sleeps)
    monkeypatch.setattr(_locks, "timer_slack", lambda: SLACK)
    return sleeps


@pytest.fixture
def hand() -> Iterator[Hand]:
    hand = Hand(clock=HandClock())
    yield hand
    hand.free()


def rest(hand: Hand, reading: float) -> None:
    """Let the worker take a turn that finds nothing, and sleep."""
    hand.clock.reading = reading
    assert hand.turn() is None
    assert hand.worker.order is WATCH
    hand.runtime.last_reading = -1.0  # as if the clock had moved since the turn
    hand.runtime.sleep_as_watch(hand.worker)


def test_leader_asks_to_be_woken_earlier_by_the_slack(hand: Hand, sleeps: Sleeps):
    """Woken by so much later than asked, it is on time."""
    job = hand.scheduler.options(delay=5).submit(int)
    rest(hand, 1.0)
    assert sleeps.asked == [4.0 - SLACK]
    hand.clock.reading = 5.0
    assert hand.turn() is job


def test_leader_that_wakes_too_early_sleeps_once_more_and_starts_nothing(hand: Hand, sleeps: Sleeps):
    """What is left then is no longer than the slack, and is slept as it is: no third look."""
    job = hand.scheduler.options(delay=5).submit(int)
    rest(hand, 1.0)
    rest(hand, 5.0 - SLACK)
    assert sleeps.asked == [4.0 - SLACK, SLACK]
    assert job.attempts == 0
    hand.clock.reading = 5.0
    assert hand.turn() is job


def test_leader_asks_for_the_slack_once(hand: Hand, monkeypatch: pytest.MonkeyPatch, sleeps: Sleeps):
    """Reading it costs a system call or three."""
    read: list[float] = []
    monkeypatch.setattr(_locks, "timer_slack", lambda: read.append(SLACK) or SLACK)
    hand.scheduler.options(delay=5).submit(int)
    rest(hand, 1.0)
    rest(hand, 2.0)
    assert (read, sleeps.asked) == ([SLACK], [4.0 - SLACK, 3.0 - SLACK])


def test_clock_that_stands_still_just_before_the_slack_makes_no_spin(hand: Hand, sleeps: Sleeps):
    """The least sleep before such a clock holds for what is left after the slack, too."""
    hand.scheduler.options(delay=5).submit(int)
    hand.clock.reading = 5.0 - SLACK - _waiting.STILL / 8
    for _ in range(2):
        assert hand.turn() is None
        hand.runtime.sleep_as_watch(hand.worker)
    assert sleeps.asked == [_waiting.STILL] * 2


def test_virtual_clock_knows_no_slack(monkeypatch: pytest.MonkeyPatch, sleeps: Sleeps):
    """Who sleeps by a fake clock sleeps until it is moved, and the system is not asked."""
    monkeypatch.delattr(_locks, "timer_slack")
    hand = Hand()
    hand.scheduler.options(delay=5).submit(int)
    assert hand.turn() is None
    hand.runtime.sleep_as_watch(hand.worker)
    assert sleeps.asked == [None]
    hand.free()


@pytest.mark.parametrize("slack", [0.0, 0.02, 10.0])
def test_no_job_starts_early_whatever_the_slack(slack: float, monkeypatch: pytest.MonkeyPatch):
    """A slack that the system does not make use of wakes the leader early each time: it merely looks once more."""
    monkeypatch.setattr(_locks, "timer_slack", lambda: slack)
    with Scheduler(2) as scheduler:
        jobs = [scheduler.options(delay=delay).submit(int) for delay in (0.05, 0.051, 0.1)]
        for job in jobs:
            assert job.result(PATIENCE) == 0
            info = job.info()
            assert info.started_at is not None
            assert info.started_at >= info.run_at


PATH = f"/proc/{os.getpid()}/timerslack_ns"


@pytest.mark.skipif(not os.access(PATH, os.R_OK | os.W_OK), reason="the system has no slack to set")
def test_slack_is_that_of_the_calling_thread():
    """Each thread has its own, and somebody may have chosen another for it."""
    found: list[float] = []

    def look() -> None:
        with open(f"/proc/{threading.get_native_id()}/timerslack_ns", "w") as file:
            file.write("123000")
        found.append(_locks.timer_slack())

    before = _locks.timer_slack()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [pytest.approx(123e-6)]
    assert _locks.timer_slack() == before


@pytest.mark.parametrize("number", ["none", -1])
def test_system_that_names_no_slack_is_taken_to_have_none(number: object, monkeypatch: pytest.MonkeyPatch):
    """No such file; and where threads have no number for the system, no such function."""
    if number == "none":
        monkeypatch.delattr(threading, "get_native_id")
    else:
        monkeypatch.setattr(threading, "get_native_id", lambda: number)
    assert _locks.timer_slack() == 0.0

"""The lag of sleeps: the leader asks for so much less as the system was late of late, and never starts a job early."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE
from tests.hand import Hand, HandClock
from threadsched import Scheduler, _locks, _waiting
from threadsched._locks import LAG_MOST, LAG_SHARE, LAGS, Lag
from threadsched._worker import WATCH

LEAD = 0.25


class Sleeps:
    """The sleeps that a leader asked for; each ends late by ``late``, or by a wake-up."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []
        self.now = 0.0
        self.late = 0.0
        self.woken = False

    def __call__(self, token: Any, timeout: float | None) -> bool:
        self.asked.append(timeout)
        self.now += (timeout or 0.0) + self.late
        return self.woken


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(_waiting, "sleep_on", sleeps)
    monkeypatch.setattr(_waiting, "monotonic", lambda: sleeps.now)
    return sleeps


@pytest.fixture
def hand() -> Iterator[Hand]:
    hand = Hand(clock=HandClock())
    yield hand
    hand.free()


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread has learned that its sleeps end so late."""
    monkeypatch.setattr(Lag, "lead", lambda lag: LEAD)


def rest(hand: Hand, reading: float) -> None:
    """Let the worker take a turn that finds nothing, and sleep."""
    hand.clock.reading = reading
    assert hand.turn() is None
    assert hand.worker.order is WATCH
    hand.runtime.last_reading = -1.0  # as if the clock had moved since the turn
    hand.runtime.sleep_as_watch(hand.worker)


def test_lead_is_most_of_the_least_lag_of_late():
    """It rises when a whole memory of sleeps was later, and falls with the first that is less late."""
    lag = Lag()
    assert lag.lead() == 0.0
    for number in range(LAGS):
        lag.learn(60e-6 + number * 1e-6)
        assert lag.lead() == pytest.approx(60e-6 * LAG_SHARE)
    lag.learn(90e-6)
    assert lag.lead() == pytest.approx(61e-6 * LAG_SHARE)
    lag.learn(10e-6)
    assert lag.lead() == pytest.approx(10e-6 * LAG_SHARE)


@pytest.mark.parametrize(("seconds", "counts"), [(-1.0, 0.0), (0.0, 0.0), (1.0, LAG_MOST), (1e9, LAG_MOST)])
def test_lag_is_within_bounds(seconds: float, counts: float):
    """A clock that was set, or an interpreter that others had, is no lag of the system."""
    lag = Lag()
    lag.learn(seconds)
    assert lag.lead() == counts * LAG_SHARE


@pytest.mark.usefixtures("lead")
def test_leader_asks_to_be_woken_earlier_by_the_lead(hand: Hand, sleeps: Sleeps):
    """Woken by so much later than asked, it is on time."""
    job = hand.scheduler.options(delay=5).submit(int)
    rest(hand, 1.0)
    assert sleeps.asked == [4.0 - LEAD]
    hand.clock.reading = 5.0
    assert hand.turn() is job


@pytest.mark.usefixtures("lead")
@pytest.mark.parametrize("left", [LEAD, 2 * LEAD])
def test_leader_that_wakes_too_early_sleeps_once_more_and_starts_nothing(hand: Hand, sleeps: Sleeps, left: float):
    """What is left then is slept as it is: no third look."""
    job = hand.scheduler.options(delay=5).submit(int)
    rest(hand, 1.0)
    rest(hand, 5.0 - left)
    assert sleeps.asked == [4.0 - LEAD, left]
    assert job.attempts == 0
    hand.clock.reading = 5.0
    assert hand.turn() is job


def test_leader_learns_from_its_sleeps(hand: Hand, sleeps: Sleeps):
    """What ended late by itself counts; a sleep that somebody ended does not, nor one that is too short to tell."""
    hand.scheduler.options(delay=5).submit(int)
    sleeps.late = 100e-6
    sleeps.woken = True
    hand.clock.reading = 0.5
    assert hand.turn() is None
    hand.runtime.sleep_as_watch(hand.worker)
    assert hand.worker.lag.lead() == 0.0
    hand.runtime.watch.clear()
    sleeps.woken = False
    rest(hand, 1.0)
    lead = hand.worker.lag.lead()
    assert lead == pytest.approx(100e-6 * LAG_SHARE)
    sleeps.late = 0.0
    rest(hand, 5.0 - 2 * lead)
    assert hand.worker.lag.lead() == lead
    rest(hand, 2.0)
    assert sleeps.asked[-1] == pytest.approx(3.0 - lead)
    assert hand.worker.lag.lead() == pytest.approx(0.0, abs=1e-12)


def test_clock_that_stands_still_makes_no_spin(hand: Hand, monkeypatch: pytest.MonkeyPatch, sleeps: Sleeps):
    """The least sleep before such a clock holds for what is left after the lead, too."""
    monkeypatch.setattr(Lag, "lead", lambda lag: _waiting.STILL / 4)
    hand.scheduler.options(delay=5).submit(int)
    hand.clock.reading = 5.0 - 5 / 8 * _waiting.STILL
    for _ in range(2):
        assert hand.turn() is None
        hand.runtime.sleep_as_watch(hand.worker)
    assert sleeps.asked == [_waiting.STILL] * 2


@pytest.mark.usefixtures("lead")
def test_virtual_clock_knows_no_lag(sleeps: Sleeps):
    """Who sleeps by a fake clock sleeps until it is moved, which tells nothing of the system."""
    hand = Hand()
    hand.scheduler.options(delay=5).submit(int)
    assert hand.turn() is None
    hand.runtime.sleep_as_watch(hand.worker)
    assert sleeps.asked == [None]
    assert not hand.worker.lag._last
    hand.free()


@pytest.mark.parametrize("lead", [0.0, 0.02, 10.0])
def test_no_job_starts_early_whatever_the_lead(lead: float, monkeypatch: pytest.MonkeyPatch):
    """Where the system is not late any more the leader wakes early each time: it merely looks once more."""
    monkeypatch.setattr(_locks.Lag, "lead", lambda lag: lead)
    with Scheduler(2) as scheduler:
        jobs = [scheduler.options(delay=delay).submit(int) for delay in (0.05, 0.051, 0.1)]
        for job in jobs:
            assert job.result(PATIENCE) == 0
            info = job.info()
            assert info.started_at is not None
            assert info.started_at >= info.run_at

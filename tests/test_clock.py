"""The default clock, and how a clock of the user's own is told from a virtual one."""

import time

from threadsched import Clock
from threadsched._clock import MonotonicClock, VirtualClock
from threadsched.testing import FakeClock


class Plain:
    def now(self) -> float:
        return 1.0


def test_default_clock_is_the_monotonic_one():
    """The default clock reads time.monotonic, which no step of the wall clock moves."""
    clock = MonotonicClock()
    before = time.monotonic()
    reading = clock.now()
    assert before <= reading <= time.monotonic()
    assert clock.now is time.monotonic  # not wrapped: it is called twice a job


def test_virtual_clocks_are_those_that_drive():
    """A clock with attach drives its schedulers; one with now alone does not."""
    assert isinstance(FakeClock(), VirtualClock)
    assert not isinstance(Plain(), VirtualClock)
    assert not isinstance(MonotonicClock(), VirtualClock)


def test_a_clock_needs_now_only():
    """For the type checker and the reader: an object with now() is a Clock."""
    clock: Clock = Plain()
    assert clock.now() == 1.0

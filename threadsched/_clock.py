"""The clock that everything about a job runs on.

A clock is any object with ``now() -> float`` in seconds; only differences matter. It is called without a lock held,
from any thread, about twice a job. It may have ``wall() -> float`` as well, the wall clock in seconds since 1970, for
what follows that (``at`` and cron); without it that is ``time.time``.

A *virtual* clock also has ``attach``: the scheduler then sleeps without a timeout
and the clock says when to look again (see ``threadsched.testing.FakeClock``).
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """What a scheduler asks of a clock."""

    def now(self) -> float:
        """Return the present reading in seconds."""
        ...


class Driven(Protocol):
    """What a virtual clock may ask of a scheduler that it drives."""

    def next_due(self) -> float | None:
        """Return when the next thing is due, or None."""
        ...

    def look_again(self) -> None:
        """Make the workers read the clock."""
        ...

    def look_at_wall(self) -> None:
        """Re-time what follows the wall clock, which was set."""
        ...

    def wait_quiescent(self, timeout: float) -> bool:
        """Wait up to ``timeout`` real seconds until nothing runs and nothing is due."""
        ...

    def busy(self) -> str:
        """Say what runs."""
        ...

    def on_worker(self) -> bool:
        """Say whether the calling thread is one of the scheduler's workers."""
        ...


@runtime_checkable
class VirtualClock(Protocol):
    """A clock that is moved by hand and wakes the schedulers attached to it."""

    def now(self) -> float:
        """Return the present reading in seconds."""
        ...

    def attach(self, scheduler: Driven) -> None:
        """Remember, weakly, a scheduler to drive."""
        ...


class MonotonicClock:
    """The default: ``time.monotonic``, immune to steps of the wall clock."""

    def __init__(self) -> None:
        # The function itself: a method of ours around it would cost two calls a job.
        self.now = time.monotonic

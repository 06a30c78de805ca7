"""A clock that is moved by hand and drives the schedulers attached to it."""

from __future__ import annotations

import weakref
from time import monotonic

from threadsched import _numbers
from threadsched._clock import Driven
from threadsched._options import Seconds


class FakeClock:
    """A clock that stands still until it is moved.

    Give it to a ``Scheduler(clock=...)`` or a :class:`StepScheduler`. It drives any number of schedulers and does not
    keep them alive.

    Args:
        start: the first reading in seconds.

    Thread safety: ``now`` from anywhere; ``advance`` and ``jump`` from one thread at a time, never from a job.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(_numbers.real("start", start))
        self._driven: list[weakref.ref[Driven]] = []

    def now(self) -> float:
        """Return the present reading in seconds."""
        return self._now

    def attach(self, scheduler: Driven) -> None:
        """Remember a scheduler to drive; schedulers call this themselves."""
        self._driven = [one for one in self._driven if one() is not None] + [weakref.ref(scheduler)]

    def advance(self, seconds: Seconds, *, wait: bool = True, timeout: float = 5.0) -> None:
        """Move forward, stopping at every due time on the way until all that is due there has run.

        Args:
            seconds: how far, in seconds or as a ``timedelta``; 0 only waits until all that is due has run.
            wait: False moves the clock in one leap and does not wait for the workers.
            timeout: real seconds to wait, over all stops, for the attached schedulers to become quiescent: every
                worker asleep and nothing due.

        Raises:
            TimeoutError: they did not, and the message names what still runs.
            RuntimeError: called from inside a job, which could never become quiescent.
            ValueError: ``seconds`` is negative, NaN or infinite.
        """
        target = self._now + _numbers.seconds("seconds", seconds)
        if not wait:
            self._move(target)
            return
        deadline = monotonic() + timeout
        self._settle(deadline)
        while self._now < target:
            due = [time for one in self._schedulers() if (time := one.next_due()) is not None]
            self._move(min([target, *[time for time in due if time > self._now]]))
            self._settle(deadline)

    def jump(self, seconds: Seconds) -> None:
        """Move forward in one leap, as a suspended machine does, and let the workers wake up to it.

        Does not wait: follow it with ``advance(0)`` for that.
        """
        self._move(self._now + _numbers.seconds("seconds", seconds))

    def _schedulers(self) -> list[Driven]:
        return [one for reference in self._driven if (one := reference()) is not None]

    def _move(self, reading: float) -> None:
        self._now = reading
        for one in self._schedulers():
            one.look_again()

    def _settle(self, deadline: float) -> None:
        schedulers = self._schedulers()
        for one in schedulers:
            if one.on_worker():
                raise RuntimeError("a job cannot advance the clock of its own scheduler and wait for it")
        # One that became quiescent may have handed work to another meanwhile: until one pass finds all of them so.
        busy = list(schedulers)
        while busy:
            for one in busy:
                if not one.wait_quiescent(max(deadline - monotonic(), 0.0)):
                    raise TimeoutError(f"not quiescent at {self._now:g}: {one.busy()}")
            busy = [one for one in schedulers if not one.wait_quiescent(0.0)]

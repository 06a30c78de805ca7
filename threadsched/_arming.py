"""Things that want to be looked at when their time has come, and are no jobs: schedules, the watch of the wall clock.

Part of the core and called like it: lock held (or nothing, in tests), no clock, no foreign code. A thing whose time
has come goes into the core's outbox and is dealt with outside the lock, by its own ``proceed``.

An entry ``(at, ticket)`` in the queue says only where to look; without its ticket in ``things`` it is dead. Each
arming has a ticket of its own, so re-arming and disarming leave dead entries and nothing else: O(log n) to arm, O(1)
amortised to disarm. The map comes first and the queue second: a sweep in between, by a finalizer on this thread,
cannot lose an entry that is not there yet.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from threadsched._heap import Entry, LazyQueue

# Dead entries are swept when they outnumber the live ones by this many, as in the queues of jobs.
SWEEP_SLACK = 64


class Armable:
    """What can be armed. The two fields are written here alone."""

    ticket = 0
    """The number of its arming; 0 while it is not armed."""
    armed_at = 0.0
    """The instant it is, or was last, armed for."""

    def proceed(self, runtime: Any) -> None:
        """Do what is due, outside the lock; called again, or by two threads at once, it must do it once."""
        raise NotImplementedError


class Ring:
    """An entry of the outbox: a thing is to be looked at. One for each reason, so that none is taken for another."""

    __slots__ = ("thing",)

    def __init__(self, thing: Armable) -> None:
        self.thing = thing


class Armings:
    """The queue of armed things. See the top of this file for who may call."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.things: dict[int, Armable] = {}  # ticket -> thing
        self._queue = LazyQueue()  # Queue of (at, ticket)

    def arm(self, thing: Armable, at: float) -> bool:
        """Arm a thing, for another instant if it was armed; True if it is the first one due now. O(log n)."""
        self.disarm(thing)
        ticket = next(self._numbers)
        thing.armed_at = at
        self.things[ticket] = thing
        try:
            self._queue.push((at, ticket))
            thing.ticket = ticket
        except BaseException:
            self.things.pop(ticket, None)
            raise
        return self.due() == at

    def disarm(self, thing: Armable) -> None:
        """Forget a thing's arming, if there is one."""
        ticket, thing.ticket = thing.ticket, 0
        if self.things.pop(ticket, None) is not None and len(self._queue) > 2 * len(self.things) + SWEEP_SLACK:
            self._queue.keep(self.things)

    def due(self) -> float | None:
        """Return when the first armed thing is due, or None; throws dead heads away."""
        queue = self._queue
        if queue.untidy:
            self.repair()
        while (first := queue.first()) is not None:
            if first[1] in self.things:
                at: float = first[0]
                return at
            entry = queue.pop()
            if entry is not None and entry[1] in self.things:
                queue.push(entry)  # a finalizer changed the head between the look and the pop
        return None

    def first(self, now: float) -> Armable | None:
        """Return an armed thing that is due, or None; it stays armed."""
        while (at := self.due()) is not None and at <= now:
            first = self._queue.first()
            thing = None if first is None else self.things.get(first[1])
            if thing is not None and thing.armed_at <= now:
                return thing
        return None

    def ring(self, now: float, outbox: deque[Any]) -> None:
        """Put every thing that is due into the outbox. O(k log n)."""
        while (at := self.due()) is not None and at <= now:
            entry = self._queue.pop()
            if entry is None:
                continue  # a finalizer swept it away after the look
            if entry[0] > now:
                self._queue.push(entry)
                continue
            thing = self.things.get(entry[1])
            if thing is not None:
                outbox.append(Ring(thing))  # before it is disarmed: broken off here, it is in both, which does no harm
                self.disarm(thing)

    def repair(self) -> None:
        """Rebuild the queue from the map. O(n log n)."""
        self._queue.rebuild(self._entries)

    def _entries(self) -> list[Entry]:
        things = self.things
        return [(thing.armed_at, ticket) for ticket in list(things) if (thing := things.get(ticket)) is not None]

    def clear(self) -> None:
        """Disarm everything."""
        for thing in list(self.things.values()):
            self.disarm(thing)

    def audit(self, require: Callable[[object, str], None]) -> None:
        """Call ``require(truth, what)`` for each invariant."""
        for ticket, thing in self.things.items():
            require(thing.ticket == ticket, "an armed thing has another ticket than it stands under")
        if not self._queue.untidy:
            entries = self._queue.entries()
            live = sorted(ticket for _, ticket in entries if ticket in self.things)
            require(live == sorted(self.things), "the armed queue does not hold what is armed")
            require(self._queue.in_order(), "the armed queue is out of order")

"""When a schedule's runs are due: pure arithmetic, without clock, lock or randomness.

A *slot* is one planned run: its time, and its number on the grid. A table says which slots there are; what becomes of
the slots that went by while nothing ran is said by one of three rules (``follow`` and ``overtaken``).

Everything is O(1), however many slots went by, and a slot's time is ``anchor + index * interval``, one multiplication
and one addition: the millionth is as exact as the first. Adding the interval to the last time would pile up a
rounding error each time, and looping over missed slots is how a clock that is set ten years ahead eats a machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

COALESCE = "coalesce"
SKIP = "skip"
BURST = "burst"
# What to do with slots that went by.
MISSED = (COALESCE, SKIP, BURST)

RATE = "rate"
DELAY = "delay"
# What the interval is counted from.
MODES = (RATE, DELAY)

# Seconds: below it neighbouring slots are one and the same float on a clock that has run for a few years.
SHORTEST_INTERVAL = 1e-6


class Slot(NamedTuple):
    """A planned run."""

    at: float
    number: int
    """Its place, counted from the anchor; differences say how many slots lie between."""


class Table(Protocol):
    """Which slots there are. Times are those of the table's own clock; None means that there is no further slot."""

    def first(self, now: float) -> Slot | None:
        """Return the first slot at or after ``now``."""
        ...

    def after(self, slot: Slot) -> Slot | None:
        """Return the slot that follows ``slot``."""
        ...

    def latest(self, slot: Slot, now: float) -> Slot:
        """Return the last slot that is due at ``now``, at least ``slot`` itself."""
        ...

    def upcoming(self, slot: Slot, now: float) -> Slot | None:
        """Return the first slot after ``slot`` that is not before ``now``."""
        ...

    def follow_end(self, slot: Slot, ended: float) -> Slot | None:
        """Return the slot that counts from the end of a run, or None if ends do not matter."""
        ...


class Grid:
    """Fixed rate: ``anchor + index * interval`` for every index."""

    def __init__(self, anchor: float, interval: float) -> None:
        self.anchor = anchor
        self.interval = interval

    def _slot(self, index: int) -> Slot:
        return Slot(self.anchor + index * self.interval, index)

    def first(self, now: float) -> Slot:
        """Return the first slot at or after ``now``, and none before the anchor's unless that has gone by."""
        if now <= self.anchor:
            return self._slot(0)
        below = self._floor(now)
        return below if below.at >= now else self._slot(below.number + 1)

    def after(self, slot: Slot) -> Slot:
        """Return the slot that follows."""
        return self._slot(slot.number + 1)

    def latest(self, slot: Slot, now: float) -> Slot:
        """Return the last slot that is due."""
        return max(slot, self._floor(now), key=_number)

    def upcoming(self, slot: Slot, now: float) -> Slot:
        """Return the first later slot that is not before ``now``."""
        return max(self.after(slot), self.first(now), key=_number)

    def follow_end(self, slot: Slot, ended: float) -> Slot | None:
        """Say that the end of a run does not matter."""
        return None

    def _floor(self, now: float) -> Slot:
        """Return the last slot not after ``now``. The division may be off by one rounding: one step puts it right."""
        slot = self._slot(math.floor((now - self.anchor) / self.interval))
        if slot.at > now:
            return self._slot(slot.number - 1)
        above = self.after(slot)
        return above if above.at <= now else slot


class Pauses(Grid):
    """Fixed delay: the first slot as on a grid, each further one an interval after the end of the run before."""

    def follow_end(self, slot: Slot, ended: float) -> Slot:
        """Return the slot one interval after the end of a run."""
        return Slot(ended + self.interval, slot.number + 1)

    def after(self, slot: Slot) -> Slot:
        """Return the slot that would follow if the run took no time."""
        return Slot(slot.at + self.interval, slot.number + 1)

    def latest(self, slot: Slot, now: float) -> Slot:
        """Return the slot itself: nothing else can be due."""
        return slot


def _number(slot: Slot) -> int:
    return slot.number


def follow(table: Table, missed: str, slot: Slot, began: float, ended: float) -> tuple[Slot | None, int]:
    """Return the slot after a run for ``slot``, and how many slots were left out for good.

    A run that began late has done the work of every slot up to then: that is what one late run for many means. What
    went by *while* it ran is still to be done, or left out, or all made up for, as the rule says.
    """
    after_end = table.follow_end(slot, ended)
    if after_end is not None:
        return after_end, 0
    if missed == BURST:
        return table.after(slot), 0
    if missed == SKIP:
        following = table.upcoming(slot, ended)
        return following, 0 if following is None else following.number - slot.number - 1
    covered = table.latest(slot, began)
    return table.after(covered), covered.number - slot.number


def overtaken(table: Table, missed: str, slot: Slot, now: float) -> tuple[Slot | None, int] | None:
    """Say whether ``slot``, due and not started, is to be left out: return its substitute and how many go.

    Only under the rule "skip", and only when the next slot has come as well: to be a little late is no miss.
    """
    if missed != SKIP:
        return None
    following = table.after(slot)
    if following is None or following.at > now or table.follow_end(slot, now) is not None:
        return None
    substitute = table.upcoming(slot, now)
    return substitute, 1 if substitute is None else substitute.number - slot.number


def spread(table: Table, slot: Slot, jitter: float, draw: float) -> float:
    """Return the slot's time moved by up to ``jitter`` either way, short of its neighbours.

    Args:
        table: where the slot is from.
        slot: the slot, which stays where it is.
        jitter: seconds, at least 0.
        draw: a random number from 0 to 1, 1 excluded.
    """
    following = table.after(slot)
    gap = math.inf if following is None else following.at - slot.at
    moved = slot.at + min(jitter, gap) * (2 * draw - 1)
    return min(moved, math.nextafter(slot.at + gap, -math.inf))

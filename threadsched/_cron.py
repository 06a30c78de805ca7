"""Cron expressions: the edge to the library that reads them, and what daylight saving does to them.

``cronsim`` (the extra ``cron``) reads an expression and counts on a calendar without time zones; that is all it is
asked for. Where the clocks are changed, its own answers are not ours: asked inside the repeated hour it names a time
that has gone by, and an expression with seconds, or with ``*`` for the minute, runs a fixed hour twice or leaves it
out. So the mapping from calendar to instants is made here, in seconds since 1970, and never goes backwards.

**Fixed hours** (the hour field is not ``*`` in any form and does not name all 24): every time on the calendar runs
once a day, every day. A time that the clocks jump over runs at the end of the gap, and all that fall into one gap are
one run. A time that comes twice runs the first time.

**Running hours** (``*``, ``*/n``, ``0-23``): the expression is compared with what the clock on the wall shows as time
goes by, so it goes on through the repeated hour, and has nothing to do in a gap.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

from threadsched import _numbers
from threadsched._grid import Slot

# How many slots are counted one by one to say how many were left out; more than these are not told apart. O(1).
COUNTED = 100

# Seconds: a zone's offset is looked at this often between two times, to find out whether the clocks were changed.
# They are never changed and changed back within a day.
STRIDE = 86400

# Seconds: how far the wall clock may be set back for what ran last to be remembered, so that it does not run again. For
# fixed hours a day, for others a minute: more, and "every minute" would stand still until the clock has caught up.
DAY = 86400.0
MINUTE = 60.0


def library() -> Any:
    """Import the library; the error names the extra."""
    try:
        import cronsim
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "cron expressions need the library cronsim: install threadsched with the extra 'cron' "
            "(pip install 'threadsched[cron]')",
            name="cronsim",
        ) from error
    return cronsim


class Cron:
    """The slots of an expression in a time zone, in seconds since 1970.

    Args:
        expression: five fields (minute, hour, day of the month, month, day of the week), or six with the second first.
        zone: any ``tzinfo``.

    Raises:
        ValueError: the expression says nothing, or never comes.
        ModuleNotFoundError: the extra ``cron`` is not installed.
    """

    def __init__(self, expression: object, zone: datetime.tzinfo) -> None:
        self.text = " ".join(_numbers.text("expression", expression).split())
        self.zone = zone
        self._library = library()
        try:
            parsed = self._library.CronSim(self.text, _SHOWN_EPOCH)
            next(parsed)
        except (self._library.CronSimError, StopIteration) as error:
            why = f": {error}" if str(error) else " that ever comes"
            raise ValueError(
                f"expression must be a cron expression{why}, not {_numbers.describe(expression)}"
            ) from None
        hours = self.text.split()[-4]
        self.fixed = not hours.startswith("*") and len(parsed.hours) < 24

    def date(self, at: float) -> datetime.datetime:
        """Return an instant as a datetime in the expression's time zone."""
        return (EPOCH + datetime.timedelta(seconds=at)).astimezone(self.zone)

    # ---------------------------------------------------------------- as a table of slots

    def first(self, now: float) -> Slot | None:
        """Return the first slot at or after ``now``."""
        return self._slot(self.next_from(now), 0)

    def after(self, slot: Slot) -> Slot | None:
        """Return the slot that follows."""
        return self._slot(self.next_after(slot.at), slot.number + 1)

    def latest(self, slot: Slot, now: float) -> Slot:
        """Return the last slot that is due; of more than COUNTED the number is not told, and ``now`` stands for it."""
        for _ in range(COUNTED):
            following = self.after(slot)
            if following is None or following.at > now:
                return slot
            slot = following
        return Slot(math.floor(now), slot.number)

    def upcoming(self, slot: Slot, now: float) -> Slot | None:
        """Return the first later slot that is not before ``now``; counted as ``latest`` does."""
        return self.after(self.latest(slot, math.ceil(now) - 1))

    def follow_end(self, slot: Slot, ended: float) -> Slot | None:
        """Say that the end of a run does not matter."""
        return None

    def after_step(self, last: Slot | None, now: float) -> Slot | None:
        """Return the next slot when the wall clock was set back to ``now``.

        What has run already does not run again, unless it was set back by more than a day (fixed hours) or a minute.
        """
        if last is not None and now < last.at <= now + (DAY if self.fixed else MINUTE):
            return self.after(last)
        return self.first(now)

    def _slot(self, at: float | None, index: int) -> Slot | None:
        return None if at is None else Slot(at, index)

    # ---------------------------------------------------------------- instants

    def next_from(self, now: float) -> float | None:
        """Return the first time at or after ``now``, or None."""
        return self.next_after(math.ceil(now) - 1)

    def next_after(self, now: float) -> float | None:
        """Return the first time after ``now``, or None if the calendar ends."""
        start = math.floor(now)
        try:
            found = self._fixed_after(start) if self.fixed else self._running_after(start)
        except (OverflowError, ValueError):  # past the year 9999
            return None
        if found is not None and found <= now:
            raise RuntimeError(f"the time zone {_numbers.describe(self.zone)} contradicts itself at {now:.0f}")
        return found

    def _fixed_after(self, start: int) -> float | None:
        for shown in self._calendar(self._shown(start)):
            at = self._once(shown)
            if at > start:  # else it is in the repeated hour, and has been
                return at
        return None

    def _running_after(self, start: int) -> float | None:
        """Go through the stretches between changes of the clocks; inside one, calendar and time agree."""
        shown = self._shown(start)
        while True:
            found = next(self._calendar(shown), None)
            if found is None:
                return None
            at = _seconds(found) - self._offset(start)
            change = self._change(start, at)
            if change is None:
                return float(at)
            start = change
            shown = self._shown(change) - datetime.timedelta(seconds=1)  # what is shown at the change itself counts

    def _calendar(self, shown: datetime.datetime) -> Iterator[datetime.datetime]:
        """Return the expression's times on the calendar after ``shown``, which has no zone."""
        times: Iterator[datetime.datetime] = self._library.CronSim(self.text, shown)
        return times

    def _shown(self, at: int) -> datetime.datetime:
        """Return what the clock on the wall shows at an instant."""
        return (EPOCH + datetime.timedelta(seconds=at)).astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _offset(self, at: int) -> int:
        return _seconds(self._shown(at)) - at

    def _once(self, shown: datetime.datetime) -> float:
        """Return the instant at which this is shown: the first of two, the end of the gap if it never is."""
        early, late = (_seconds(shown) - self._utcoffset(shown.replace(tzinfo=self.zone, fold=fold)) for fold in (0, 1))
        if early <= late:
            return float(early)  # shown once, or twice
        # Of a time in a gap, fold=0 gives the instant counted from before it, which lies after the gap, and fold=1
        # the other way round.
        change = self._change(late, early)
        return float(early if change is None else change)

    def _utcoffset(self, moment: datetime.datetime) -> int:
        offset = moment.utcoffset()
        if offset is None:
            raise RuntimeError(f"the time zone {_numbers.describe(self.zone)} has no offset")
        return int(offset.total_seconds())

    def _change(self, start: int, end: int) -> int | None:
        """Return the first second in (start, end] from which the zone's offset is another than at ``start``."""
        offset = self._offset(start)
        low = start
        while low < end:
            high = min(low + STRIDE, end)
            if self._offset(high) != offset:
                while high - low > 1:
                    middle = (low + high) // 2
                    if self._offset(middle) == offset:
                        low = middle
                    else:
                        high = middle
                return high
            low = high
        return None


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SHOWN_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 -- what a calendar shows has no zone


def _seconds(shown: datetime.datetime) -> int:
    """Return what is shown as a number that counts seconds as if there were no zones."""
    return (shown - _SHOWN_EPOCH) // datetime.timedelta(seconds=1)

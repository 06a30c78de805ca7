"""The options of a schedule, checked once at the door, and which options are for what."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from threadsched import _numbers
from threadsched._grid import COALESCE, MISSED, MODES, RATE
from threadsched._options import JobOptions, ScheduleOptions, When

# The options that say how a job recurs: nothing for submit().
RECURRING = frozenset(ScheduleOptions.__annotations__) - frozenset(JobOptions.__annotations__)

# The options that make sense for one submission alone, and what to use instead for a schedule.
SINGLE = {
    "id": "each run is a job with a number of its own; use name",
    "if_exists": "each run is a job with a number of its own; use name",
    "delay": "use start",
    "at": "use start",
    "after": "its runs follow each other",
    "after_any_outcome": "its runs follow each other",
    "submit_timeout": "nobody waits when a run is submitted",
}


class Plan:
    """Checked schedule options; immutable. Times are relative seconds, or seconds since 1970."""

    __slots__ = ("jitter", "max_failures", "max_runs", "missed", "mode", "start", "tz", "until")

    def __init__(
        self,
        *,
        mode: object = RATE,
        missed: object = COALESCE,
        start: object = None,
        until: object = None,
        max_runs: object = None,
        max_failures: object = None,
        jitter: object = 0.0,
        tz: object = None,
    ) -> None:
        self.mode = _numbers.choice("mode", mode, MODES)
        self.missed = _numbers.choice("missed", missed, MISSED)
        self.start = _when("start", start)
        self.until = _when("until", until)
        self.max_runs = None if max_runs is None else _numbers.count("max_runs", max_runs, least=1)
        self.max_failures = None if max_failures is None else _numbers.count("max_failures", max_failures, least=1)
        self.jitter = _numbers.seconds("jitter", jitter)
        if tz is not None and not isinstance(tz, datetime.tzinfo):
            hint = f"; zoneinfo.ZoneInfo({tz!r}), say" if type(tz) is str else ""
            raise TypeError(f"tz must be a tzinfo, not {_numbers.describe(tz)}{hint}")
        self.tz = tz


def _when(name: str, value: object) -> When | None:
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        return When(_numbers.moment(name, value), wall=True)
    return When(_numbers.relative(name, value), wall=False)


def refuse_recurring(given: Iterable[str]) -> None:
    """Raise TypeError for the options of schedules in a submission."""
    for name in given:
        if name in RECURRING:
            raise TypeError(f"the option {name!r} is for every() and cron(), and submit() runs a job once")


def refuse_single(given: Iterable[str], what: str) -> None:
    """Raise TypeError for the options of single submissions in a schedule."""
    for name in given:
        if name in SINGLE:
            raise TypeError(f"the option {name!r} is for submit(), not for {what}(): {SINGLE[name]}")
        if (name == "tz" and what == "every") or (name == "mode" and what == "cron"):
            raise TypeError(f"the option {name!r} means nothing to {what}()")


DEFAULT_PLAN = Plan()

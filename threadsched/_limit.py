"""What a limit allows, as users say it, and what is shown of one. Plain values; ``_limits`` enforces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from threadsched import _numbers


class Limit:
    """What a named limit of a scheduler allows: so many at once, so many starts in a time, or both.

    ``Limit(rate=10, per=1.0)`` is a sliding window: any start is at least ``per`` after the tenth before it. Every
    attempt counts as a start, retries and jobs taken by ``job.claim()`` among them; a job cancelled before its start
    does not.

    Args:
        concurrency: how many attempts may run at once, an int above 0; None means any number.
        rate: how many attempts may start in ``per`` seconds, an int above 0; None means any number.
        per: the length of the window in seconds of the scheduler's clock, or a ``timedelta``; above 0 and finite. Not
            used without ``rate``.

    Raises:
        TypeError: neither ``concurrency`` nor ``rate`` is given, or an argument is of another type.
        ValueError: a number out of range.

    Thread safety: immutable; may be shared by schedulers, each of which counts for itself.

    Cost: a rate keeps the readings of its latest ``rate`` starts.
    """

    __slots__ = ("concurrency", "per", "rate")

    concurrency: int | None
    rate: int | None
    per: float

    def __init__(self, concurrency: int | None = None, rate: int | None = None, per: float | timedelta = 1.0) -> None:
        if concurrency is None and rate is None:
            raise TypeError("a Limit needs concurrency, rate, or both; neither was given (None)")
        set_once = object.__setattr__
        set_once(self, "concurrency", _at_least_one("concurrency", concurrency))
        set_once(self, "rate", _at_least_one("rate", rate))
        set_once(self, "per", _numbers.seconds("per", per, zero=False))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Limit cannot be changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Limit cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        return type(other) is Limit and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[int | None, int | None, float]:
        return self.concurrency, self.rate, self.per

    def __reduce__(self) -> tuple[type[Limit], tuple[int | None, int | None, float]]:
        return Limit, self._values()

    def __repr__(self) -> str:
        parts = []
        if self.concurrency is not None:
            parts.append(f"concurrency={self.concurrency}")
        if self.rate is not None:
            parts.append(f"rate={self.rate}, per={self.per:g}")
        return f"Limit({', '.join(parts)})"


def _at_least_one(name: str, value: object) -> int | None:
    return None if value is None else _numbers.count(name, value, least=1)


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """How one limit stood at one instant; see ``Scheduler.limits``."""

    limit: Limit
    in_use: int
    """Attempts that run under it, threads that were written off and still run among them."""
    waiting: int
    """Jobs that name it and are held back, by it or by another of their limits."""
    next_room_at: float | None
    """The reading of the scheduler's clock from which its rate allows the next start; None if it does now."""


def checked_limits(limits: object) -> dict[str, Limit]:
    """Check the ``limits`` of a scheduler: names to Limits, or None."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a mapping of names to Limits, not {_numbers.describe(limits)}")
    checked = {}
    for name in limits:
        text, limit = _numbers.text("a limit's name", name), limits[name]
        if not isinstance(limit, Limit):
            raise TypeError(f"limit {text!r} must be a Limit, not {_numbers.describe(limit)}")
        checked[text] = Limit(*limit._values())  # of a subclass we keep what it allows, not what it overrides
    return checked

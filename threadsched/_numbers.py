"""What callers give as a number, checked at the door: durations, counts, priorities.

Each function returns a plain ``int`` or ``float`` or raises an error that names the parameter and the value; past
this door no number is looked at again. A bool is not a number here.
"""

from __future__ import annotations

import datetime
import math
import numbers
from typing import Any


def describe(value: object) -> str:
    """Show a refused value in an error message, whatever its ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # its repr is the caller's code; the refusal must be heard all the same
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 120 else text[:117] + "..."


def real(name: str, value: Any) -> float:
    """Return a real number that is not NaN; an int stays an int."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, not {describe(value)}")
    try:
        number: float = int(value) if isinstance(value, numbers.Integral) else float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float: {describe(value)}") from None
    if number != number:
        raise ValueError(f"{name} must not be NaN")
    return number


def _as_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float: {describe(value)}") from None


def seconds(name: str, value: object, *, zero: bool = True) -> float:
    """Return a finite duration in seconds, at least 0 (above 0 with ``zero=False``); a ``timedelta`` is converted."""
    kind = type(value)
    if kind is float or kind is int:  # asking an abstract class is ten times slower
        duration = _as_float(name, value)
    elif isinstance(value, datetime.timedelta):
        duration = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be seconds as a real number, or a timedelta, not {describe(value)}")
    else:
        duration = _as_float(name, value)
    if not math.isfinite(duration):
        raise ValueError(f"{name} must be finite, not {describe(value)}")
    if duration < 0 or (duration == 0 and not zero):
        raise ValueError(f"{name} must be {'at least' if zero else 'greater than'} 0, not {describe(value)}")
    return duration


def share(name: str, value: object, *, most: float = math.inf) -> float:
    """Return a finite real number from 0 to ``most``."""
    number = real(name, value) if value == value else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {describe(value)}")
    if not 0 <= number <= most:
        bounds = f"from 0 to {most:g}" if most < math.inf else "at least 0"
        raise ValueError(f"{name} must be {bounds}, not {describe(value)}")
    return number


def count(name: str, value: object, *, least: int = 0) -> int:
    """Return an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {describe(value)}")
    if value < least:
        bound = "greater than 0" if least == 1 else f"at least {least}"
        raise ValueError(f"{name} must be {bound}, not {describe(value)}")
    return int(value)


def text(name: str, value: object) -> str:
    """Return a plain ``str``; a subclass is copied, so that its methods never run inside the scheduler."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {describe(value)}")
    return value if type(value) is str else str.__str__(value)


def flag(name: str, value: object) -> bool:
    """Return a bool, refusing all that merely looks true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {describe(value)}")
    return value


def moment(name: str, value: object) -> float:
    """Return an aware ``datetime`` as seconds since 1970."""
    if not isinstance(value, datetime.datetime):
        raise TypeError(f"{name} must be an aware datetime, not {describe(value)}")
    if value.utcoffset() is None:
        raise ValueError(
            f"{name} must be an aware datetime, and {describe(value)} has no time zone (tzinfo=datetime.UTC, say)"
        )
    return (value - EPOCH) / datetime.timedelta(seconds=1)


def relative(name: str, value: object) -> float:
    """Return a finite number of seconds of either sign; a ``timedelta`` is converted."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    number = float(real(name, value))
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {describe(value)}")
    return number


def choice(name: str, value: object, known: tuple[str, ...]) -> str:
    """Return one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {describe(value)}")
    return text(name, value)


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

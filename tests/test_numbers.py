"""What the door lets in as a number, a text or a flag, and what it says of the rest."""

import datetime
import enum
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from threadsched import _numbers


class Level(enum.IntEnum):
    HIGH = 1
    LOW = 9


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no words")


class Name(str):
    def __str__(self) -> str:
        return "something else"

    def __hash__(self) -> int:
        raise AssertionError("the subclass ran")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the subclass ran")


@pytest.mark.parametrize("value", [0, -3, 10**400, 1.5, -0.0, math.inf, -math.inf])
def test_real_numbers_pass_unchanged(value: float):
    """Ints of any size, floats and infinities are real numbers and come back as they are."""
    answer = _numbers.real("priority", value)
    assert answer == value
    assert type(answer) is type(value)


def test_real_turns_relatives_into_plain_numbers():
    """An IntEnum comes back as an int and a fraction as a float, so that no foreign comparison runs later."""
    assert type(_numbers.real("priority", Level.LOW)) is int
    assert _numbers.real("priority", Level.LOW) == 9
    assert type(_numbers.real("priority", Fraction(1, 2))) is float


@pytest.mark.parametrize("value", [True, "1", None, 1j, Decimal(1), [1], datetime.timedelta(1)])
def test_real_refuses_other_types(value: object):
    """What is no real number, a bool included, is a TypeError that names the parameter and the value."""
    with pytest.raises(TypeError, match="priority must be a real number") as caught:
        _numbers.real("priority", value)
    assert repr(value) in str(caught.value)


def test_real_refuses_nan():
    """NaN has no place in an order."""
    with pytest.raises(ValueError, match="priority must not be NaN"):
        _numbers.real("priority", math.nan)


def test_real_refuses_what_no_float_can_hold():
    """A fraction too large for a float is a bad value, not an arithmetic accident."""
    with pytest.raises(ValueError, match="priority"):
        _numbers.real("priority", Fraction(10**400))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (3, 3.0),
        (0.25, 0.25),
        (Fraction(1, 4), 0.25),
        (Level.HIGH, 1.0),
        (datetime.timedelta(days=365 * 200), 365 * 200 * 86400.0),
        (datetime.timedelta(milliseconds=1), 0.001),
        (1e300, 1e300),
    ],
)
def test_seconds_are_floats(value: object, expected: float):
    """Numbers and timedeltas become float seconds, however many years they are."""
    answer = _numbers.seconds("delay", value)
    assert answer == expected
    assert type(answer) is float


@pytest.mark.parametrize("value", [True, False, "1", None, Decimal(1), datetime.date(2024, 1, 1), 1j])
def test_seconds_refuse_other_types(value: object):
    """A duration of another type is a TypeError that says what it should be."""
    with pytest.raises(TypeError, match="delay must be seconds as a real number, or a timedelta"):
        _numbers.seconds("delay", value)


@pytest.mark.parametrize(
    "value", [-1, -1e-9, math.nan, math.inf, -math.inf, 10**400, datetime.timedelta(-1), Fraction(10**400)]
)
def test_seconds_refuse_bad_values(value: object):
    """Negative, infinite, NaN and overflowing durations are ValueErrors that name the parameter."""
    with pytest.raises(ValueError, match="delay"):
        _numbers.seconds("delay", value)


def test_zero_seconds_only_where_allowed():
    """Zero is a duration, except where the parameter needs a positive one."""
    assert _numbers.seconds("timeout", 0) == 0
    for zero in (0, 0.0, -0.0, datetime.timedelta(0)):
        with pytest.raises(ValueError, match="timeout must be greater than 0"):
            _numbers.seconds("timeout", zero, zero=False)


def test_counts():
    """A count is an int of at least its least value, and comes back plain."""
    assert _numbers.count("retries", 0) == 0
    assert type(_numbers.count("retries", Level.LOW)) is int
    assert _numbers.count("workers", 1, least=1) == 1
    for value in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="retries must be an int"):
            _numbers.count("retries", value)
    with pytest.raises(ValueError, match="retries must be at least 0, not -1"):
        _numbers.count("retries", -1)
    with pytest.raises(ValueError, match="workers must be greater than 0"):
        _numbers.count("workers", 0, least=1)
    with pytest.raises(ValueError, match="limit must be at least 7"):
        _numbers.count("limit", 6, least=7)


def test_text_is_plain():
    """A str comes back as it is, a subclass as a plain copy of its characters, anything else is a TypeError."""
    given = "job-1"
    assert _numbers.text("id", given) is given
    answer = _numbers.text("id", Name("job-1"))
    assert type(answer) is str
    assert answer == "job-1"
    for value in (1, b"job", None):
        with pytest.raises(TypeError, match="id must be a str"):
            _numbers.text("id", value)


def test_flag_is_a_bool_and_nothing_else():
    """Only the two bools are flags."""
    assert _numbers.flag("context", True) is True
    assert _numbers.flag("context", False) is False
    for value in (1, 0, None, "yes"):
        with pytest.raises(TypeError, match="context must be a bool"):
            _numbers.flag("context", value)


def test_description_is_short_and_never_fails():
    """A refused value is shown in at most 120 characters, whatever its repr does."""
    assert _numbers.describe(3) == "3"
    assert _numbers.describe("x" * 118) == repr("x" * 118)
    long = _numbers.describe("x" * 1000)
    assert len(long) == 120
    assert long.endswith("...")
    assert _numbers.describe(Mute()) == "an unprintable Mute"
    assert "int" in _numbers.describe(10**5000)  # more digits than Python prints


@pytest.mark.parametrize("check", [_numbers.real, _numbers.seconds, _numbers.count, _numbers.text, _numbers.flag])
def test_refusal_of_an_unprintable_value_is_heard(check: Callable[[str, object], Any]):
    """The refusal does not depend on the value's own repr."""
    with pytest.raises(TypeError, match="an unprintable Mute"):
        check("thing", Mute())

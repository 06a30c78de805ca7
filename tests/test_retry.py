"""When a failed attempt is followed by another, and after what pause."""

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadsched import Retry, RetryAfter
from threadsched._retry import LONGEST_PAUSE


def pauses(retry: Retry, attempts: int = 6) -> list[float | None]:
    return [retry.pause(attempt, ValueError()) for attempt in range(1, attempts + 1)]


def test_formula_is_exact():
    """The pause after attempt k is backoff * 2 ** (k - 1), to the last bit, and ends with the retries."""
    assert pauses(Retry(5, 0.01)) == [0.01 * 2**k for k in range(5)] + [None]


@given(
    backoff=st.floats(0, 1e6, allow_subnormal=False),
    factor=st.floats(0, 1e3),
    attempt=st.integers(1, 60),
    bound=st.floats(0, 1e9),
)
def test_formula_holds_for_any_numbers(backoff: float, factor: float, attempt: int, bound: float):
    """Whatever the numbers, the pause is the formula's value, at most max_backoff."""
    retry = Retry(60, backoff, factor, bound)
    assert retry.pause(attempt, ValueError()) == min(backoff * factor ** (attempt - 1), bound)


def test_constant_and_vanishing_factors():
    """Factor 1 keeps the pause, factor 0 makes every later one nothing."""
    assert pauses(Retry(4, 3, factor=1), 4) == [3, 3, 3, 3]
    assert pauses(Retry(3, 3, factor=0), 3) == [3, 0, 0]


@pytest.mark.parametrize("factor", [10, 10.0, 1e308])
def test_saturates_at_max_backoff(factor: float):
    """With thousands of retries the pause stays at max_backoff and nothing overflows."""
    retry = Retry(5000, 0.01, factor, max_backoff=60)
    everything = pauses(retry, 5000)
    assert everything[0] == 0.01
    assert set(everything[5:]) == {60.0}
    assert all(0 <= pause <= 60 for pause in everything)


def test_saturates_at_what_a_wait_can_express():
    """Without max_backoff the longest pause is the longest wait of the platform."""
    assert Retry(5000, 0.01, 10).pause(5000, ValueError()) == LONGEST_PAUSE
    assert Retry(5000, 1e308, 2).pause(2, ValueError()) == LONGEST_PAUSE


def test_no_backoff_means_no_pause_however_often():
    """A backoff of 0 stays 0 also where the factor's power cannot be computed."""
    assert set(pauses(Retry(5000, 0, 10), 5000)) == {0.0}


def test_no_retries_means_no_pause():
    """With retries=0 the first failure is the last."""
    assert Retry(0).pause(1, ValueError()) is None


def test_timedeltas_are_seconds():
    """Durations may be timedeltas."""
    retry = Retry(3, timedelta(seconds=2), max_backoff=timedelta(seconds=5))
    assert pauses(retry, 3) == [2, 4, 5]


@pytest.mark.parametrize("jitter", [0.1, 0.5, 1])
def test_jitter_stays_in_its_share(jitter: float):
    """A jittered pause lies between the formula's value less the share and the value itself."""
    retry = Retry(1, 8, jitter=jitter)
    random.seed(7)
    drawn = [retry.pause(1, ValueError()) for _ in range(500)]
    assert all(8 * (1 - jitter) <= pause <= 8 for pause in drawn)
    assert max(drawn) - min(drawn) > 8 * jitter * 0.9  # it uses the whole of it


def test_jitter_is_repeated_by_the_seed():
    """random.seed brings the same pauses again."""
    retry = Retry(20, 1, jitter=0.5)
    random.seed(1)
    first = pauses(retry, 20)
    random.seed(1)
    assert pauses(retry, 20) == first
    random.seed(2)
    assert pauses(retry, 20) != first


def test_without_jitter_nothing_is_drawn():
    """A retry without jitter leaves the program's random numbers alone."""
    random.seed(3)
    expected = random.Random(3).random()
    pauses(Retry(5))
    assert random.random() == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_only_exceptions_are_retried(error: BaseException):
    """What is not an Exception ends the job, whatever `on` says."""
    assert Retry(3, on=(BaseException,)).pause(1, error) is None


def test_on_chooses_the_classes():
    """Only errors of the given classes, subclasses included, are worth another attempt."""
    retry = Retry(3, 1, on=(OSError, KeyError))
    assert retry.pause(1, ConnectionResetError()) == 1
    assert retry.pause(1, KeyError()) == 1
    assert retry.pause(1, ValueError()) is None
    single = Retry(3, 1, on=OSError)
    assert single.on == (OSError,)
    assert single.pause(1, OSError()) == 1
    assert Retry(3, 1, on=()).pause(1, ValueError()) is None


def test_give_up_has_the_last_word():
    """A true answer of give_up ends the job; it is asked once per failure, with the error."""
    asked: list[Exception] = []

    def give_up(error: Exception) -> object:
        asked.append(error)
        return error.args[0] == "fatal"

    retry = Retry(3, 1, give_up=give_up)
    passing, fatal = ValueError("passing"), ValueError("fatal")
    assert retry.pause(1, passing) == 1
    assert retry.pause(1, fatal) is None
    assert asked == [passing, fatal]


def test_give_up_is_not_asked_when_it_does_not_matter():
    """Without an attempt left, for a class not in `on` and for RetryAfter, give_up is not called."""

    def give_up(error: Exception) -> object:
        raise AssertionError("was asked")

    retry = Retry(1, on=OSError, give_up=give_up)
    assert retry.pause(2, OSError()) is None
    assert retry.pause(1, ValueError()) is None
    assert retry.pause(1, RetryAfter(4)) == 4


def test_what_give_up_and_on_raise_comes_out():
    """An error inside give_up, or inside a class's own instance check, reaches the caller, who decides."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise LookupError("broken check")

    class Odd(Exception, metaclass=Meta):
        pass

    with pytest.raises(LookupError, match="broken check"):
        Retry(1, on=Odd).pause(1, ValueError())
    with pytest.raises(ZeroDivisionError):
        Retry(1, give_up=lambda error: 1 / 0).pause(1, ValueError())


def test_retry_after_sets_the_pause_exactly():
    """RetryAfter overrides formula, max_backoff, jitter and `on`, while an attempt is left."""
    retry = Retry(2, 1, max_backoff=2, jitter=1, on=OSError)
    assert retry.pause(1, RetryAfter(100)) == 100
    assert retry.pause(2, RetryAfter(0)) == 0
    assert retry.pause(3, RetryAfter(100)) is None


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"retries": -1}, ValueError, "retries"),
        ({"retries": 1.0}, TypeError, "retries"),
        ({"retries": True}, TypeError, "retries"),
        ({"backoff": -1}, ValueError, "backoff"),
        ({"backoff": math.inf}, ValueError, "backoff"),
        ({"backoff": "1"}, TypeError, "backoff"),
        ({"factor": -2}, ValueError, "factor"),
        ({"factor": math.nan}, ValueError, "factor"),
        ({"factor": None}, TypeError, "factor"),
        ({"factor": timedelta(2)}, TypeError, "factor"),
        ({"max_backoff": -1}, ValueError, "max_backoff"),
        ({"max_backoff": math.nan}, ValueError, "max_backoff"),
        ({"jitter": 1.1}, ValueError, "jitter must be from 0 to 1"),
        ({"jitter": -0.1}, ValueError, "jitter"),
        ({"jitter": True}, TypeError, "jitter"),
        ({"jitter": timedelta(seconds=1)}, TypeError, "jitter"),
        ({"on": ValueError()}, TypeError, "on must be exception classes"),
        ({"on": (ValueError, "OSError")}, TypeError, "on must be exception classes"),
        ({"on": int}, TypeError, "on must be exception classes"),
        ({"give_up": 3}, TypeError, "give_up must be callable"),
    ],
)
def test_bad_values_are_refused_by_name(arguments: dict[str, Any], kind: type[Exception], words: str):
    """A bad argument is refused at construction, with the class of its fault and its name."""
    with pytest.raises(kind, match=words):
        Retry(**{"retries": 3, **arguments})


def test_repr_shows_the_rule():
    """A Retry shows its numbers."""
    assert repr(Retry(3, 0.5, factor=3)) == "Retry(3, backoff=0.5, factor=3)"

"""One tree of errors, each with the standard-library parent that existing code catches."""

import concurrent.futures
import copy
import datetime
import inspect
import math
import pickle
import queue

import pytest

import threadsched
from threadsched import _errors
from threadsched._errors import RetryAfter, ThreadschedError

PARENTS = {
    "SchedulerClosedError": RuntimeError,
    "InterpreterExitRuntimeError": RuntimeError,
    "BrokenSchedulerError": concurrent.futures.BrokenExecutor,
    "DuplicateJobError": ValueError,
    "QueueFullError": queue.Full,
    "JobDroppedError": concurrent.futures.CancelledError,
    "JobTimeoutError": TimeoutError,
    "JobExpiredError": concurrent.futures.CancelledError,
    "UnknownLimitError": ValueError,
    "WorkerDiedError": RuntimeError,
    "DeadlockError": RuntimeError,
    "NestingError": RuntimeError,
    "IllegalMoveError": concurrent.futures.InvalidStateError,
    "JobStoppedError": concurrent.futures.CancelledError,
    "DependencyError": concurrent.futures.CancelledError,
    "InvariantError": AssertionError,
    "RetryAfter": Exception,
    "ThreadschedError": Exception,
}

CLASSES = [
    value
    for _, value in inspect.getmembers(_errors, inspect.isclass)
    if issubclass(value, BaseException) and value.__module__ in ("threadsched", "threadsched._errors")
]


def test_every_error_is_known_here():
    """The table of parents below names every error of the module."""
    assert {one.__name__ for one in CLASSES} == set(PARENTS)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_has_both_parents(kind: type[Exception]):
    """Each error is a ThreadschedError and its standard-library relative, and is public."""
    assert issubclass(kind, ThreadschedError)
    assert issubclass(kind, PARENTS[kind.__name__])
    assert issubclass(kind, Exception)  # never a bare BaseException, which `except Exception` would let through
    assert getattr(threadsched, kind.__name__) is kind
    assert kind.__doc__


def test_closed_at_exit_is_closed():
    """Who catches SchedulerClosedError catches the refusal at interpreter exit too."""
    assert issubclass(_errors.InterpreterExitRuntimeError, _errors.SchedulerClosedError)


@pytest.mark.parametrize("kind", [one for one in CLASSES if one is not RetryAfter], ids=lambda one: one.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_survives_pickling(kind: type[Exception], protocol: int):
    """An error that crosses a process boundary arrives as the same class with the same text."""
    error = kind("what went wrong", 3)
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is kind
        assert again.args == error.args
        assert str(again) == str(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_retry_after_survives_pickling(protocol: int):
    """RetryAfter keeps its pause and its message in a pickle."""
    for error in (RetryAfter(2.5), RetryAfter(0, "the server said so")):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is RetryAfter
        assert (again.seconds, str(again)) == (error.seconds, str(error))


def test_retry_after_keeps_its_notes_when_pickled():
    """Notes travel with RetryAfter, as they do with any exception."""
    error = RetryAfter(1)
    error.add_note("seen on host 7")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen on host 7"]


@pytest.mark.parametrize(("given", "seconds"), [(0, 0.0), (1.5, 1.5), (7, 7.0), (datetime.timedelta(minutes=2), 120.0)])
def test_retry_after_takes_seconds(given: object, seconds: float):
    """The pause is float seconds, from a number or a timedelta."""
    error = RetryAfter(given)
    assert error.seconds == seconds
    assert type(error.seconds) is float


def test_retry_after_says_what_it_asks():
    """Without a message the text names the pause; with one it is the message."""
    assert str(RetryAfter(30)) == "asked to be run again after 30 s"
    assert str(RetryAfter(30, "rate limited")) == "rate limited"


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ("5", TypeError),
        (True, TypeError),
        (None, TypeError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
    ],
)
def test_retry_after_refuses_bad_pauses(bad: object, kind: type[Exception]):
    """A pause that is no duration is refused where it is written, with the parameter's name."""
    with pytest.raises(kind, match="seconds"):
        RetryAfter(bad)

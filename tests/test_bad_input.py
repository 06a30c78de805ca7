"""Wrong arguments are refused at the door, by name and with the value; hostile code has test_bad_code.py.

Every test has neighbours: ordinary jobs submitted before and after, which must run whatever happened in between.
"""

import math
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, logged, neighbours, occupied
from threadsched import (
    DuplicateJobError,
    FifoPolicy,
    Retry,
    RetryAfter,
    Scheduler,
    SchedulerClosedError,
)
from threadsched.testing import FakeClock, StepScheduler

NAN = math.nan


@pytest.fixture
def s() -> Iterator[Scheduler]:
    with Scheduler(2) as scheduler:
        yield scheduler


# ---------------------------------------------------------------------- tasks that are none


@pytest.mark.parametrize("value", [None, 5, "print", [], object, ...])
def test_a_task_that_is_not_callable(s: Scheduler, value: Any):
    """What cannot be called is refused with a TypeError that shows it; a class is a callable like any other."""
    with neighbours(s):
        if value is object:
            assert type(s.submit(value).result(PATIENCE)) is object
            return
        for submit in (s.submit, s.options(delay=1).submit):
            with pytest.raises(TypeError) as caught:
                submit(value)
            assert f"callable, not {value!r}" in str(caught.value)
    assert s.stats().submitted == 6


class EndlessFunc:
    """A callable whose attribute `func` leads to a callable with such an attribute, and so on, as a Mock's does."""

    reads = 0

    @property
    def func(self) -> "EndlessFunc":
        self.reads += 1
        if self.reads > 1000:
            raise AssertionError("followed for ever")
        return self

    def __call__(self) -> str:
        return "ran"


class UnreadyProxy:
    """A callable whose attributes cannot be read here and now, as with a proxy outside of its context."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"no context to take {name} from")

    def __call__(self) -> str:
        return "ran"


@pytest.mark.parametrize("kind", [EndlessFunc, UnreadyProxy])
def test_a_callable_with_strange_attributes(s: Scheduler, kind: type[Any]):
    """A callable runs whatever its attributes do: the look for a coroutine function ends and raises nothing."""
    with neighbours(s):
        assert s.submit(kind()).result(PATIENCE) == "ran"
        assert isinstance(s.submit(kind()).name, str)


# ---------------------------------------------------------------------- constructor


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"workers": 0}, ValueError, "workers must be greater than 0, not 0"),
        ({"workers": -1}, ValueError, "workers must be greater than 0, not -1"),
        ({"workers": 1.5}, TypeError, "workers must be an int, not 1.5"),
        ({"workers": "2"}, TypeError, "workers must be an int, not '2'"),
        ({"workers": True}, TypeError, "workers must be an int, not True"),
        ({"workers": NAN}, TypeError, "workers must be an int, not nan"),
        ({"history": -1}, ValueError, "history must be at least 0, not -1"),
        ({"history": 1.0}, TypeError, "history must be an int, not 1.0"),
        ({"history": True}, TypeError, "history must be an int, not True"),
        ({"queue": "fast"}, ValueError, "queue must be 'lazy' or 'indexed', not 'fast'"),
        ({"queue": None}, ValueError, "queue must be 'lazy' or 'indexed', not None"),
        ({"policy": FifoPolicy}, TypeError, r"write FifoPolicy\(\)"),
        ({"policy": 5}, TypeError, "policy must have a method .* 5 has not"),
        ({"clock": 5}, TypeError, r"clock must have a method now\(\), which 5 has not"),
        ({"name": 5}, TypeError, "name must be a str, not 5"),
        ({"on_error": 5}, TypeError, "on_error must be a callable, not 5"),
        ({"initializer": "x"}, TypeError, "initializer must be a callable, not 'x'"),
        ({"exit_timeout": NAN}, ValueError, "exit_timeout must be finite, not nan"),
        ({"exit_timeout": -1}, ValueError, "exit_timeout must be at least 0, not -1"),
        ({"exit_timeout": "1"}, TypeError, "exit_timeout must be seconds as a real number, .* not '1'"),
        ({"exit_timeout": True}, TypeError, "exit_timeout must be seconds as a real number, .* not True"),
        ({"max_workers": 1}, TypeError, "max_workers"),
    ],
    ids=str,
)
def test_constructor(arguments: dict[str, Any], error: type[Exception], words: str):
    """A bad argument of the constructor is refused by name; a scheduler beside it is untouched."""
    with Scheduler(1) as s, neighbours(s), pytest.raises(error, match=words):
        Scheduler(**arguments)


# ---------------------------------------------------------------------- options

SECONDS = [
    (NAN, ValueError, "{} must be finite, not nan"),
    (math.inf, ValueError, "{} must be finite, not inf"),
    (-math.inf, ValueError, "{} must be finite, not -inf"),
    (-1, ValueError, "{} must be at least 0, not -1"),
    (-1e-9, ValueError, "{} must be at least 0, not -1e-09"),
    (timedelta(seconds=-1), ValueError, "{} must be at least 0"),
    (10**400, ValueError, "{} is too large"),
    ("5", TypeError, "{} must be seconds as a real number, or a timedelta, not '5'"),
    (True, TypeError, "{} must be seconds .* not True"),
    (1j, TypeError, "{} must be seconds .* not 1j"),
    ([], TypeError, r"{} must be seconds .* not \[\]"),
    (Decimal(1), TypeError, "{} must be seconds .* not Decimal"),
]


@pytest.mark.parametrize("name", ["delay", "backoff"])
@pytest.mark.parametrize(("value", "error", "words"), SECONDS, ids=lambda value: str(value)[:12])
def test_durations(s: Scheduler, name: str, value: Any, error: type[Exception], words: str):
    """Delay and back-off are finite real seconds of at least 0, or a timedelta; anything else is named."""
    with neighbours(s):
        with pytest.raises(error, match=words.format(name)):
            s.options(retries=1, **{name: value})
        if name == "backoff":
            with pytest.raises(error, match=words.format(name)):
                Retry(1, value)


@pytest.mark.parametrize(
    ("option", "value", "error", "words"),
    [
        ("delay", None, TypeError, "delay must be seconds .* not None"),
        ("retries", -1, ValueError, "retries must be at least 0, not -1"),
        ("retries", 1.5, TypeError, "retries must be an int, not 1.5"),
        ("retries", True, TypeError, "retries must be an int, not True"),
        ("retries", "3", TypeError, "retries must be an int, not '3'"),
        ("priority", NAN, ValueError, "priority must not be NaN"),
        ("priority", "high", TypeError, "priority must be a real number, not 'high'"),
        ("priority", None, TypeError, "priority must be a real number, not None"),
        ("priority", True, TypeError, "priority must be a real number, not True"),
        ("priority", 1j, TypeError, "priority must be a real number, not 1j"),
        ("id", 5, TypeError, "id must be a str, not 5"),
        ("id", b"x", TypeError, "id must be a str, not b'x'"),
        ("id", True, TypeError, "id must be a str, not True"),
        ("name", 5, TypeError, "name must be a str, not 5"),
        ("context", 1, TypeError, "context must be a bool, not 1"),
        ("context", None, TypeError, "context must be a bool, not None"),
        ("retry", 3, TypeError, "retry must be a Retry, not 3"),
        ("retry", Retry, TypeError, "retry must be a Retry, not <class"),
        ("retrys", 3, TypeError, "unknown job option 'retrys'; did you mean 'retry'"),
        ("Delay", 3, TypeError, "unknown job option 'Delay'; did you mean 'delay'"),
        ("nonsense", 3, TypeError, "unknown job option 'nonsense'$"),
    ],
)
def test_options(s: Scheduler, option: str, value: Any, error: type[Exception], words: str):
    """A bad value of an option, or an option that there is not, is refused where it is said, by name."""
    with neighbours(s), pytest.raises(error, match=words):
        s.options(**{option: value})
    step = StepScheduler()
    with pytest.raises(error, match=words):
        step.options(**{option: value})


def test_options_that_exclude_each_other(s: Scheduler):
    """A `Retry` says the number and the pause already, so both at once are refused."""
    with neighbours(s):
        for more in ({"retries": 1}, {"backoff": 1}, {"retries": 0}):
            with pytest.raises(TypeError, match="retry cannot be given together with retries or backoff"):
                s.options(retry=Retry(1), **more)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"retries": -1}, ValueError, "retries must be at least 0, not -1"),
        ({"retries": 1.5}, TypeError, "retries must be an int, not 1.5"),
        ({"retries": True}, TypeError, "retries must be an int, not True"),
        ({"retries": 1, "factor": NAN}, ValueError, "factor must be finite, not nan"),
        ({"retries": 1, "factor": -2}, ValueError, "factor must be at least 0, not -2"),
        ({"retries": 1, "max_backoff": -1}, ValueError, "max_backoff must be at least 0, not -1"),
        ({"retries": 1, "max_backoff": "1"}, TypeError, "max_backoff must be seconds .* not '1'"),
        ({"retries": 1, "jitter": 1.5}, ValueError, "jitter must be from 0 to 1, not 1.5"),
        ({"retries": 1, "jitter": True}, TypeError, "jitter must be .* not True"),
        ({"retries": 1, "on": 5}, TypeError, "on must be exception classes, not 5"),
        ({"retries": 1, "on": (OSError, int)}, TypeError, "on must be exception classes, not <class 'int'>"),
        ({"retries": 1, "give_up": 5}, TypeError, "give_up must be callable, not 5"),
    ],
    ids=str,
)
def test_retry_arguments(arguments: dict[str, Any], error: type[Exception], words: str):
    """A `Retry` is checked when it is made."""
    with pytest.raises(error, match=words):
        Retry(**arguments)


@pytest.mark.parametrize("value", [-1, NAN, math.inf, "soon", None, True])
def test_retry_after_with_a_bad_pause(s: Scheduler, value: Any):
    """A task that asks for an impossible pause fails with the error that says so; retries apply to that error."""

    def task() -> None:
        raise RetryAfter(value)

    with neighbours(s):
        error = s.options(retries=2, backoff=0).submit(task).exception(PATIENCE)
        assert isinstance(error, (TypeError, ValueError))
        assert "seconds must be" in str(error)


def test_duplicate_id(s: Scheduler):
    """An id belongs to one job, live or remembered; the second is refused by name and the first is untouched."""
    gate = Gate()
    with neighbours(s):
        first = s.options(id="mine").submit(gate, 1)
        gate.await_start()
        for _ in range(2):
            with pytest.raises(DuplicateJobError, match="id 'mine' belongs to a live job"):
                s.options(id="mine").submit(pow, 2, 2)
        gate.open()
        assert first.result(PATIENCE) == 1
        with pytest.raises(ValueError, match="id 'mine' belongs to a job in the history"):
            s.options(id="mine").submit(pow, 2, 2)
    assert s.stats().submitted == 7


@pytest.mark.parametrize("ask", ["cancel", "status_of", "get"])
@pytest.mark.parametrize("value", [None, 1.0, True, b"x", []])
def test_asking_for_an_impossible_id(s: Scheduler, ask: str, value: Any):
    """What can be no id is a TypeError; an id that nobody has is a plain no."""
    with neighbours(s):
        with pytest.raises(TypeError, match="a job's id is a str or an int, not"):
            getattr(s, ask)(value)
        assert not getattr(s, ask)("unknown")
        assert not getattr(s, ask)(10**9)


def test_submit_after_shutdown():
    """A closed door refuses with a RuntimeError in the standard library's words; another scheduler is not touched."""
    with Scheduler(1) as beside, neighbours(beside):
        s = Scheduler(1)
        with neighbours(s):
            pass
        s.shutdown()
        for submit in (s.submit, s.options(delay=5).submit, s.options(id="x").submit):
            with pytest.raises(SchedulerClosedError, match=r"cannot schedule new futures: .* was shut down"):
                submit(pow, 2, 2)
        with pytest.raises(RuntimeError, match="cannot schedule new futures"):
            s.start()
        assert s.stats().submitted == 6


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"drain": "some"}, ValueError, "drain must be 'all', 'due' or 'none', not 'some'"),
        ({"drain": None}, ValueError, "drain must be .* not None"),
        ({"timeout": NAN}, ValueError, "timeout must be finite, not nan"),
        ({"timeout": "1"}, TypeError, "timeout must be seconds .* not '1'"),
        ({"timeout": True}, TypeError, "timeout must be seconds .* not True"),
    ],
    ids=str,
)
def test_shutdown_arguments(s: Scheduler, arguments: dict[str, Any], error: type[Exception], words: str):
    """A shutdown with a bad argument has not happened."""
    with neighbours(s):
        with pytest.raises(error, match=words):
            s.shutdown(**arguments)
        assert not s.closed


@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), ([], TypeError), (NAN, ValueError)])
def test_waiting_with_a_bad_timeout(s: Scheduler, timeout: Any, error: type[Exception]):
    """A timeout that is no number breaks that wait alone, not the job."""
    with neighbours(s):
        gate = Gate()
        job = s.submit(gate, 1)
        gate.await_start()
        for wait in (job.result, job.exception, s.wait_idle):
            with pytest.raises(error):
                wait(timeout)
        gate.open()
        assert job.result(PATIENCE) == 1


def test_callback_that_is_not_callable(s: Scheduler):
    """A done-callback must be callable, which is said when it is added, before the end and after."""
    with neighbours(s), occupied(s, 2):
        job = s.submit(int)
        with pytest.raises(TypeError, match="callable, not 5"):
            job.add_done_callback(5)  # type: ignore[arg-type]


def test_clock_arguments():
    """A fake clock moves forward by finite seconds alone."""
    clock = FakeClock(3.0)
    with Scheduler(1, clock=clock) as s, neighbours(s):
        for move in (clock.advance, clock.jump):
            for value, error in [(-1, ValueError), (NAN, ValueError), ("1", TypeError), (True, TypeError)]:
                with pytest.raises(error, match="seconds must be"):
                    move(value)
        assert clock.now() == 3.0
    with pytest.raises(TypeError, match="start must be a real number, not '1'"):
        FakeClock("1")  # type: ignore[arg-type]
    for value, error in [(0, ValueError), (True, TypeError), (1.5, TypeError)]:
        with pytest.raises(error, match="workers must be"):
            StepScheduler(value)  # type: ignore[arg-type]


class SickClock:
    """A clock that raises while `sick`."""

    sick = False

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def now(self) -> float:
        if self.sick:
            raise self.kind("the clock is broken")
        return 1.0


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_a_clock_that_raises(kind: type[BaseException]):
    """A broken clock fails the submissions meanwhile; what runs then ends well, and all is as before after that."""
    clock = SickClock(kind)
    with logged() as log, Scheduler(2, clock=clock) as s, neighbours(s):
        with occupied(s, 2) as running:
            waiting = s.submit(pow, 5, 2)
            clock.sick = True
            with pytest.raises(kind, match="the clock is broken"):
                s.submit(pow, 2, 2)
        assert waiting.result(PATIENCE) == 25
        assert [job.result(PATIENCE) for job in running] == [None, None]
        clock.sick = False
        assert s.stats().replaced_workers == 0
    assert any("the clock is broken" in text for text in log.of("ERROR"))

"""Wrong arguments are refused at the door, by name and with the value; hostile tasks, hooks and policies harm nobody.

Every test has neighbours: ordinary jobs submitted before and after, which must run whatever happened in between.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import math
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, logged, occupied
from threadsched import (
    BrokenSchedulerError,
    DuplicateJobError,
    FifoPolicy,
    JobStatus,
    PriorityPolicy,
    Retry,
    RetryAfter,
    Scheduler,
    SchedulerClosedError,
)
from threadsched.testing import FakeClock, StepScheduler

NAN = math.nan


@contextlib.contextmanager
def neighbours(s: Scheduler) -> Iterator[None]:
    """Submit ordinary jobs before and after the block; all of them must run, and the books must balance."""
    before = [s.submit(pow, 2, number) for number in range(3)]
    yield
    after = [s.submit(pow, 3, number) for number in range(3)]
    assert [job.result(PATIENCE) for job in before + after] == [1, 2, 4, 1, 3, 9]
    s.check()


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
            with pytest.raises(SchedulerClosedError, match="cannot schedule new futures: .* was shut down"):
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

    def now(self) -> float:
        if self.sick:
            raise OSError("the clock is broken")
        return 1.0


def test_a_clock_that_raises():
    """A broken clock fails the submissions meanwhile; what runs then ends well, and all is as before after that."""
    clock = SickClock()
    with logged() as log, Scheduler(2, clock=clock) as s, neighbours(s):
        with occupied(s, 2) as running:
            waiting = s.submit(pow, 5, 2)
            clock.sick = True
            with pytest.raises(OSError, match="the clock is broken"):
                s.submit(pow, 2, 2)
        assert waiting.result(PATIENCE) == 25
        assert [job.result(PATIENCE) for job in running] == [None, None]
        clock.sick = False
    assert any("the clock is broken" in text for text in log.of("ERROR"))


# ---------------------------------------------------------------------- policies


class ByName:
    """A policy whose key is looked up, or raised, by the job's name; others have key 0."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys

    def key(self, job: Any) -> Any:
        key = self.keys.get(job.name, 0)
        if isinstance(key, BaseException):
            raise key
        return key


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (ZeroDivisionError("no key"), ZeroDivisionError, "no key"),
        (SystemExit("no key"), SystemExit, "no key"),
        (KeyboardInterrupt("no key"), KeyboardInterrupt, "no key"),
        (NAN, ValueError, "ByName.key returned nan: NaN has no place"),
        ((1, NAN), ValueError, r"ByName.key returned \(1, nan\)"),
        (True, TypeError, "ByName.key must return .* not True"),
        ((True, 1), TypeError, r"ByName.key must return .* not \(True, 1\)"),
        (None, TypeError, "ByName.key must return .* not None"),
        (1j, TypeError, "ByName.key must return .* not 1j"),
        (object(), TypeError, "ByName.key must return .* not <object"),
        ([1], TypeError, r"ByName.key must return .* not \[1\]"),
        ((1, (2,)), TypeError, r"ByName.key must return .* not \(1, \(2,\)\)"),
        ("x", TypeError, "ByName.key returned 'x'"),
        ((), TypeError, r"ByName.key returned \(\), which is not comparable"),
        ((1,), TypeError, r"ByName.key returned \(1,\), which is not comparable"),
        ((1, "x"), TypeError, "not comparable with its earlier keys"),
        (Decimal(1), TypeError, "ByName.key must return .* not Decimal"),
    ],
    ids=lambda value: (
        type(value).__name__ if isinstance(value, object) and not isinstance(value, str) else None
    ),
)
def test_a_key_that_cannot_be(key: Any, error: type[BaseException], words: str):
    """A policy's bad key fails that one submission, in words that show it, and the assignment that would use it."""
    with Scheduler(2, policy=ByName(bad=key)) as s, neighbours(s):
        bad = s.options(name="bad", id="bad")
        for _ in range(2):
            with pytest.raises(error, match=words):
                bad.submit(pow, 2, 2)
        assert s.stats().submitted == 3
        assert s.get("bad") is None
        good = PriorityPolicy()
        s.policy = good
        with occupied(s, 2):
            waiting = bad.submit(pow, 2, 2)
            s.submit(pow, 2, 2)
            if words.startswith(("not comparable", r"ByName.key returned \(")) and type(key) is tuple:
                return  # the first key of the new policy fixes its shape, so this one might be the first
            with pytest.raises(error, match=words):
                s.policy = ByName(bad=key)
            assert s.policy is good
        assert waiting.result(PATIENCE) == 4


def test_a_key_that_fails_before_a_retry():
    """A key that raises when a retry asks for it ends the job with its own error, which tells of the key's."""
    policy, clock = ByName(), FakeClock()
    with logged() as log, Scheduler(1, policy=policy, clock=clock) as s, neighbours(s):

        def task() -> None:
            policy.keys["flaky"] = ZeroDivisionError("no key now")
            raise OSError("the task's own")

        job = s.options(name="flaky", id="flaky", retries=3).submit(task)
        error = job.exception(PATIENCE)
        assert isinstance(error, OSError)
        assert any("no key now" in note for note in error.__notes__)
        assert job.attempts == 1
    assert any("flaky" in text and "no key now" in text for text in log.of("ERROR"))


class Before:
    """A policy with `before` that raises when `raises(a, b)` says so."""

    def __init__(self, error: BaseException, raises: Callable[[Any, Any], object]) -> None:
        self.error = error
        self.raises = raises

    def before(self, a: Any, b: Any) -> bool:
        if self.raises(a, b):
            raise self.error
        return bool(a.priority < b.priority)


def once() -> Callable[[Any, Any], object]:
    left = [True]
    return lambda a, b: left and left.pop()


WHEN: dict[str, Callable[[], Callable[[Any, Any], object]]] = {
    "always": lambda: lambda a, b: True,
    "for one job": lambda: lambda a, b: "bad" in (a.name, b.name),
    "once": once,
    "on workers only": lambda: lambda a, b: threading.current_thread() is not threading.main_thread(),
}


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("error", [ValueError("no order"), SystemExit("no order")], ids=repr)
def test_before_that_raises(queue: Any, when: str, error: BaseException):
    """A `before` that raises fails a submission or costs an order, never a job: all that was accepted runs once."""
    ran: list[int] = []
    accepted = refused = 0
    policy = Before(error, WHEN[when]())
    with logged(), Scheduler(1, policy=policy, queue=queue) as s:
        with occupied(s):
            for number in range(40):
                submitter = s.options(priority=-number, name="bad" if number == 20 else "good")
                try:
                    submitter.submit(ran.append, number)
                except type(error) as caught:
                    assert str(caught) == "no order"
                    refused += 1
                else:
                    accepted += 1
            s.check()
        assert s.wait_idle(PATIENCE)
        s.check()
        s.policy = PriorityPolicy()
        with neighbours(s):
            assert len(ran) == len(set(ran)) == accepted
            assert accepted + refused == 40
    if when == "always":
        assert accepted == 1  # the first, with nobody to compare it with
    if when == "once":
        assert refused == 1
        assert ran == sorted(ran, reverse=True)
    if when == "on workers only":
        assert refused == 0


class NoTruth:
    def __bool__(self) -> bool:
        raise ZeroDivisionError("neither true nor false")


def test_before_that_answers_neither():
    """A `before` whose answer has no truth value counts as one that raises."""
    policy = unittest.mock.NonCallableMock(spec=["before"])
    policy.before.return_value = NoTruth()
    with logged(), Scheduler(1, policy=policy) as s:
        with occupied(s):
            first = s.submit(pow, 2, 3)
            with pytest.raises(ZeroDivisionError, match="neither true nor false"):
                s.submit(pow, 2, 2)
        assert first.result(PATIENCE) == 8


@pytest.mark.parametrize("delay", [0, 5])
def test_before_that_calls_the_scheduler(delay: int):
    """`before` runs under the lock: submitting and waiting in there raise, and what was accepted runs all the same."""
    errors: list[BaseException] = []

    class Calls:
        def before(self, a: Any, b: Any) -> bool:
            for call in (lambda: s.options(delay=delay).submit(int), lambda: b.result()):
                try:
                    call()
                except RuntimeError as error:
                    errors.append(error)
            return False

    s = Scheduler(1, policy=Calls())
    with logged():
        with occupied(s):
            jobs = [s.submit(pow, 2, 2), s.submit(pow, 2, 3)]
        assert [job.result(PATIENCE) for job in jobs] == [4, 8]
        assert s.shutdown(drain="due")
    assert len(errors) >= 2
    assert len(errors) % 2 == 0


# ---------------------------------------------------------------------- callbacks and hooks

RAISED = [
    ValueError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    MemoryError,
    RecursionError,
    asyncio.CancelledError,
    BaseException,
]


@pytest.mark.parametrize("kind", RAISED)
def test_a_callback_that_raises(kind: type[BaseException]):
    """What a done-callback raises on a worker is logged; the job, the other callbacks and the worker go on."""
    told: list[str] = []

    def bad(job: Any) -> None:
        raise kind("from the callback")

    with logged() as log, Scheduler(1) as s:
        thread = s.submit(threading.get_ident).result(PATIENCE)
        with neighbours(s):
            with occupied(s):
                job = s.options(id="told").submit(pow, 2, 2)
                job.add_done_callback(lambda job: told.append("first"))
                job.add_done_callback(bad)
                job.add_done_callback(lambda job: told.append("last"))
            assert job.result(PATIENCE) == 4
        assert s.submit(threading.get_ident).result(PATIENCE) == thread
    assert told == ["first", "last"]
    logs = log.of("ERROR")
    assert len(logs) == 1
    assert "done-callback of job 'told'" in logs[0]
    assert "from the callback" in logs[0]


@pytest.mark.parametrize("kind", RAISED)
def test_an_error_hook_that_raises(kind: type[BaseException]):
    """What `on_error` raises is logged; the failed job keeps its own error and the worker stays."""

    def hook(job: Any, error: BaseException) -> None:
        raise kind("from the hook")

    with logged() as log, Scheduler(1, on_error=hook) as s:
        thread = s.submit(threading.get_ident).result(PATIENCE)
        with neighbours(s):
            job = s.submit(int, "x")
            assert isinstance(job.exception(PATIENCE), ValueError)
        assert s.submit(threading.get_ident).result(PATIENCE) == thread
    logs = log.of("ERROR")
    assert len(logs) == 1
    assert "on_error" in logs[0]
    assert "from the hook" in logs[0]


@pytest.mark.parametrize("kind", RAISED)
def test_an_initializer_that_raises(kind: type[BaseException]):
    """An initializer that raises breaks its scheduler, loudly once, and no other one."""

    def initializer() -> None:
        raise kind("from the initializer")

    with logged() as log, Scheduler(1) as beside, neighbours(beside):
        s = Scheduler(2, initializer=initializer)
        with contextlib.suppress(BrokenSchedulerError):
            for _ in range(100):
                job = s.submit(int)
                assert isinstance(job.exception(PATIENCE), BrokenSchedulerError)
        with pytest.raises(BrokenSchedulerError, match="initializer"):
            s.submit(int)
        s.shutdown()
        assert s.stats().workers == 0
    assert len(log.of("CRITICAL")) == 1
    assert "from the initializer" in log.of("CRITICAL")[0]


# ---------------------------------------------------------------------- tasks that raise


class UnpicklableError(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


class FatallyUnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class UncomparableError(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("cannot be compared")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("neither true nor false")


class FalsyError(Exception):
    def __bool__(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    code: int = 5


class GuardedError(Exception):
    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__class__", "__dict__"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def raising(error: BaseException | type[BaseException]) -> None:
    raise error


def endless() -> None:
    endless()


TASKS: dict[str, Callable[[], Any]] = {
    **{kind.__name__: functools.partial(raising, kind("oh")) for kind in [*RAISED, TimeoutError, EOFError]},
    "concurrent CancelledError": functools.partial(raising, concurrent.futures.CancelledError("oh")),
    "exit": lambda: exit_code(),
    "real recursion": endless,
    "real memory": lambda: bytearray(2**62),
    "unpicklable": functools.partial(raising, UnpicklableError(1, 2)),
    "unprintable": functools.partial(raising, UnprintableError()),
    "fatally unprintable": functools.partial(raising, FatallyUnprintableError()),
    "uncomparable": functools.partial(raising, UncomparableError()),
    "falsy": functools.partial(raising, FalsyError()),
    "frozen": functools.partial(raising, FrozenError()),
    "guarded": functools.partial(raising, GuardedError()),
    "group": functools.partial(raising, BaseExceptionGroup("all", [SystemExit(1), ValueError(2)])),
    "a class": functools.partial(raising, LookupError),
}


def exit_code() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_raises(task: str, retries: int):
    """Whatever a task raises is that job's failure: the very error, the hook once, and no worker lost."""
    hooked: list[tuple[Any, BaseException]] = []
    with logged() as log:
        with Scheduler(2, on_error=lambda job, error: hooked.append((job, error))) as s:
            s.start()
            with neighbours(s):
                job = s.options(id="bad", retries=retries, backoff=0).submit(TASKS[task])
                error = job.exception(PATIENCE)
                assert error is not None
                assert type(error).__name__ in (job.info().error or "")
                try:
                    job.result()
                except BaseException as raised:
                    assert raised is error
                assert job.status is JobStatus.FAILED
                assert job.attempts == (1 + retries if isinstance(error, Exception) else 1)
            meeting = threading.Barrier(2)
            both = [s.submit(meeting.wait, PATIENCE) for _ in range(2)]
            assert sorted(one.result(PATIENCE) for one in both) == [0, 1]
            assert [info.status for info in s.snapshot() if info.id == "bad"] == [JobStatus.FAILED]
            assert (s.stats().failed, s.stats().replaced_workers) == (1, 0)
            repr(job)
        assert [one is job and failure is error for one, failure in hooked] == [True]
        hooked.clear()
        del job, error
        gc.collect()
    assert log.of("ERROR") == []


@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_raises_and_nobody_looks(task: str):
    """A failure that nobody asked for is told in the log once, whatever the error is made of."""
    with logged() as log:
        with Scheduler(1) as s, neighbours(s):
            s.options(id="forgotten").submit(TASKS[task])
        gc.collect()
    told = [text for text in log.of("ERROR") if "'forgotten'" in text]
    assert len(told) == 1
    assert "failed after 1 attempt" in told[0]


class Hostile:
    """A value that cannot be compared, hashed, printed or asked for its truth."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError


def test_hostile_arguments_and_results(s: Scheduler):
    """Arguments and results are passed on and never looked at."""
    with neighbours(s):
        value = Hostile()
        assert s.submit(lambda one: one, value).result(PATIENCE) is value
        assert s.submit(lambda *, key: key, key=value).result(PATIENCE) is value
        for odd in (NotImplemented, ..., ValueError, ValueError("returned"), StopIteration()):
            assert s.submit(lambda odd=odd: odd).result(PATIENCE) is odd
        repr(s)
        s.snapshot()


# ---------------------------------------------------------------------- coroutines


async def coroutine(*args: Any) -> str:
    return "never run"


class Asynchronous:
    async def method(self) -> None: ...

    @classmethod
    async def of_class(cls) -> None: ...

    @staticmethod
    async def static() -> None: ...

    async def __call__(self) -> None: ...


@functools.wraps(coroutine)
async def decorated_async(*args: Any) -> str:
    return await coroutine(*args)


COROUTINE_FUNCTIONS: list[Any] = [
    coroutine,
    functools.partial(coroutine, 1),
    functools.partial(functools.partial(coroutine, 1), 2),
    Asynchronous().method,
    Asynchronous.of_class,
    Asynchronous().static,
    functools.partial(Asynchronous().method),
    Asynchronous(),
    functools.partial(Asynchronous()),
    decorated_async,
    unittest.mock.AsyncMock(),
]


@pytest.mark.parametrize("index", range(len(COROUTINE_FUNCTIONS)))
def test_a_coroutine_function_is_refused(s: Scheduler, index: int):
    """An `async def` task is a TypeError at submission in whatever it is wrapped, and nothing is queued."""
    with neighbours(s):
        for submit in (s.submit, s.options(delay=1).submit):
            with pytest.raises(
                TypeError, match="coroutine function; submit a function that calls asyncio.run"
            ):
                submit(COROUTINE_FUNCTIONS[index])
    assert s.stats().submitted == 6


@functools.wraps(coroutine)
def decorated_sync(*args: Any) -> Any:
    return coroutine(*args)


class ReturnsCoroutine:
    def __call__(self) -> Any:
        return coroutine()


@pytest.mark.parametrize("task", [lambda: coroutine(), decorated_sync, ReturnsCoroutine()])
@pytest.mark.filterwarnings("error")
def test_a_returned_coroutine_fails_the_job(s: Scheduler, task: Any):
    """A task that returns a coroutine FAILS with a TypeError: it never "succeeds" unrun, nor warns of it later."""
    with neighbours(s):
        job = s.submit(task)
        with pytest.raises(TypeError, match="returned a coroutine, which nothing would run"):
            job.result(PATIENCE)
        assert job.status is JobStatus.FAILED
    gc.collect()
    assert s.submit(asyncio.run, coroutine()).result(PATIENCE) == "never run"

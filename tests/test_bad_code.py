"""Policies, hooks, callbacks and tasks that raise or return what they should not harm their own job and nobody else.

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
from decimal import Decimal
from typing import Any

import pytest

from tests.gates import PATIENCE, logged, neighbours, occupied
from threadsched import (
    BrokenSchedulerError,
    JobStatus,
    PriorityPolicy,
    Scheduler,
)
from threadsched.testing import FakeClock

NAN = math.nan


@pytest.fixture
def s() -> Iterator[Scheduler]:
    with Scheduler(2) as scheduler:
        yield scheduler


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
    ids=lambda value: type(value).__name__ if isinstance(value, object) and not isinstance(value, str) else None,
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
                    accepted += 1
                except type(error):
                    refused += 1
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
                with pytest.raises(BaseException) as raised:  # noqa: PT011 -- whatever it is
                    job.result()
                assert raised.value is error
                del raised
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
            with pytest.raises(TypeError, match="coroutine function; submit a function that calls asyncio"):
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

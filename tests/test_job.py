"""The table of moves against behaviour, the diagram against the table, and what else a job is by itself."""

import ast
import asyncio
import concurrent.futures
import copy
import functools
import gc
import inspect
import logging
import pickle
import re
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, failure_of, make_job
from tests.support import ROOT
from threadsched import IllegalMoveError, Job, JobInfo, JobStatus, Scheduler, _job, current_job
from threadsched._bulk import make_jobs
from threadsched._core import Core
from threadsched._job import DELAYED, MOVES, READY, Attached, Failure, task_name
from threadsched._locks import JobCondition
from threadsched._options import make_options
from threadsched._runtime import Runtime
from threadsched.testing import FakeClock, StepScheduler

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus

# How a job gets from PENDING into each status.
WAYS: dict[JobStatus, list[str]] = {
    PENDING: [],
    RUNNING: ["claim"],
    DONE: ["claim", "finish"],
    FAILED: ["claim", "fail"],
    CANCELLED: ["cancel"],
}

# What each move does to a job, and where it leads.
MOVE: dict[str, Callable[[Job[Any]], object]] = {
    "claim": lambda job: job._claim(2.0, "somebody"),
    "finish": lambda job: job._finish("value", "name", 3.0),
    "fail": lambda job: job._fail(failure_of(job), 3.0),
    "retry": lambda job: job._retry(9.0, 1),
    "cancel": lambda job: job._cancel("name", 3.0),
    "stop": lambda job: job._cancel("name", 3.0),
}
LEADS_TO = {"claim": RUNNING, "finish": DONE, "fail": FAILED, "retry": PENDING, "cancel": CANCELLED, "stop": CANCELLED}


def job_in(status: JobStatus, *, watched: bool = False) -> Job[Any]:
    job = make_job(print, 1, id="it")
    job._seq, job._key = 7, 5
    if watched:
        job._attach().condition = JobCondition()
    for move in WAYS[status]:
        MOVE[move](job)
    assert job.status is status
    return job


def fields(job: Job[Any]) -> dict[str, object]:
    return {slot: getattr(job, slot) for slot in Job.__slots__}


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "watched"])
@pytest.mark.parametrize("target", list(JobStatus), ids=lambda status: status.name)
@pytest.mark.parametrize("source", list(JobStatus), ids=lambda status: status.name)
def test_moves_succeed_as_the_table_says(source: JobStatus, target: JobStatus, watched: bool):
    """From each status exactly the moves of the table lead to each other; any other raises and changes nothing."""
    for move, leads_to in LEADS_TO.items():
        if leads_to is not target or (move == "stop" and source is PENDING) or (move == "cancel" and source is RUNNING):
            continue  # cancel and stop are one method: which of the two it is depends on where the job stands
        job = job_in(source, watched=watched)
        before = fields(job)
        if MOVES.get((source, target)) == move:
            MOVE[move](job)
            assert job.status is target
        else:
            with pytest.raises(IllegalMoveError, match="it"):
                MOVE[move](job)
            assert fields(job) == before
            assert job.status is source


def test_table_has_every_move_that_there_is():
    """The names in the table are the moves tried above, and no status is left once it has ended."""
    assert set(MOVES.values()) == set(MOVE)
    assert not [source for source, _ in MOVES if source.ended]
    assert len(MOVES) == 7


def diagram() -> str:
    text = _job.__doc__ or ""
    return text[text.index("::") + 2 : text.index("``MOVES``")]


def test_diagram_names_every_move_of_the_table():
    """The drawing in the docstring has each status and each move, each as often as the table, and no other word."""
    words = re.findall(r"[A-Za-z_]+", diagram())
    drawn = sorted(word for word in words if word.islower() and word != "submit")
    assert drawn == sorted(MOVES.values())
    assert sorted(word for word in words if word.isupper()) == sorted(status.name for status in JobStatus)
    assert set(words) == {*MOVES.values(), *JobStatus.__members__, "submit"}


def assignments(source: str) -> list[int]:
    """Return the lines that store to an attribute _state, by assignment, setattr or deletion."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        stored = isinstance(node, ast.Attribute) and node.attr == "_state" and not isinstance(node.ctx, ast.Load)
        called = (
            isinstance(node, ast.Call)
            and any(isinstance(one, ast.Constant) and one.value == "_state" for one in node.args)
            and not (isinstance(node.func, ast.Name) and node.func.id == "getattr")
        )
        if stored or called:
            lines.append(node.lineno)
    return lines


def test_only_the_job_assigns_a_state():
    """No other code of the package stores a job's state, but for who makes one, a worker's turn and a plain cancel."""
    found = {
        path.stem: lines
        for path in sorted((ROOT / "threadsched").rglob("*.py"))
        if (lines := assignments(path.read_text(encoding="utf-8")))
    }
    for method in (Core.turn, Core.cancel, Runtime.submit, make_jobs):
        lines, first = inspect.getsourcelines(method)
        hot = range(first, first + len(lines))
        module = method.__module__.rpartition(".")[2]
        found[module] = [line for line in found[module] if line not in hot]
    assert [module for module, lines in found.items() if lines] == ["_job"]


@pytest.mark.parametrize(
    "line",
    ["job._state = 1", "job._state: str = 1", "job._state += 1", "a, job._state = 1, 2", "del job._state",
     "setattr(job, '_state', 1)", "object.__setattr__(job, '_state', 1)", "for job._state in x: pass"],
)  # fmt: skip
def test_scan_sees_every_way_to_assign(line: str):
    """The scan above notices each form of assignment, and no reading."""
    assert assignments(line) == [1]
    assert assignments("x = job._state\nif job._state == 1: pass\ny = getattr(job, '_state')") == []


# ---------------------------------------------------------------- what a move leaves


@pytest.mark.parametrize("status", [DONE, FAILED, CANCELLED], ids=lambda status: status.name)
def test_ended_job_holds_no_task(status: JobStatus):
    """An ended job keeps its name and its times, and neither its task nor what that would have got."""
    job = job_in(status)
    assert job._args is None
    assert job.name in ("name", "print")
    assert isinstance(job._fn, str)
    assert job._finished_at == 3.0
    assert job.done()
    assert not job.running()
    assert job.cancelled() is (status is CANCELLED)


def test_claim_counts_and_notes():
    """A claim counts the attempt and notes when and by whom; a retry moves the time and forgets the place."""
    job = make_job(delay=4, now=1.0)
    assert (job.attempts, job.run_at, job.submitted_at, job._place) == (0, 5.0, 1.0, DELAYED)
    job._claim(6.0, "somebody")
    assert (job.attempts, job._started_at, job._place) == (1, 6.0, "somebody")
    assert job.running()
    job._retry(9.0, 3)
    assert (job.attempts, job.run_at, job._key, job._place) == (1, 9.0, 3, DELAYED)
    job._claim(9.0, None)
    assert job.attempts == 2


def test_job_without_delay_is_ready():
    """A job without a delay starts in the ready place at its submission time."""
    job = make_job(now=3.0)
    assert (job._place, job.run_at) == (READY, 3.0)


def test_cancel_of_a_watched_job_leaves_the_telling_open():
    """Where waiters must be told, the state says so until exactly one caller got the right to tell them."""
    job = job_in(PENDING, watched=True)
    job._cancel("name", 3.0)
    assert job._state == "CANCELLED"
    assert job.cancelled()
    assert job._tell_cancelled() is True
    assert job._state == "CANCELLED_AND_NOTIFIED"
    assert job.cancelled()
    assert job._tell_cancelled() is False


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("status", [PENDING, RUNNING], ids=lambda status: status.name)
def test_orphan_needs_no_telling(status: JobStatus, watched: bool):
    """What a fork leaves behind is cancelled for good at once: nobody is here to be told."""
    job = job_in(status, watched=watched)
    job._cancel("name", 3.0, orphaned=True)
    assert job._state == "CANCELLED_AND_NOTIFIED"


def test_nobody_else_may_move_it():
    """Future's own way to start a job is closed, and says which one is open."""
    with pytest.raises(IllegalMoveError, match=r"use claim\(\)"):
        job_in(PENDING).set_running_or_notify_cancel()


@pytest.mark.parametrize("bad", [None, 3, "error", ValueError])
def test_exception_must_be_an_exception(bad: Any):
    """set_exception takes exceptions only."""
    with pytest.raises(TypeError, match="exception must be an exception"):
        job_in(PENDING).set_exception(bad)


# ---------------------------------------------------------------- what it says of itself


def test_repr_shows_id_name_and_status():
    """The repr of a job is short and does not wait for anything."""
    assert repr(job_in(RUNNING)) == "<Job 'it' print RUNNING>"
    job = make_job(name="nightly")
    job._seq = 3
    assert repr(job) == "<Job 3 nightly PENDING>"


@pytest.mark.parametrize("operation", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_job_can_be_neither_pickled_nor_copied(operation: Callable[[object], object]):
    """A second one of a job would be an unkept promise, so it is refused with the reason."""
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        operation(job_in(PENDING))


@pytest.mark.parametrize("attribute", ["id", "name", "status", "priority", "seq", "submitted_at", "run_at", "attempts"])
def test_attributes_are_read_only(attribute: str):
    """What describes a job cannot be assigned."""
    with pytest.raises(AttributeError):
        setattr(job_in(PENDING), attribute, 1)


class Callable_:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


class Hostile:
    def __call__(self) -> None: ...

    def __getattr__(self, name: str) -> object:
        raise ValueError("no attributes here")


class Renamed:
    __qualname__ = "Renamed"

    def __init__(self) -> None:
        self.__qualname__ = 3  # type: ignore[assignment]

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (job_in, "job_in"),
        (len, "len"),
        ([].append, "list.append"),
        (Callable_().method, "Callable_.method"),
        (types.MethodType(Callable_(), 1), "Callable_"),
        (types.MethodType(Hostile(), 1), "Hostile"),
        (functools.partial(job_in, PENDING), "job_in"),
        (Callable_(), "Callable_"),
        (Callable_, "Callable_"),
        (Hostile(), "Hostile"),
        (Renamed(), "Renamed"),
    ],
    ids=[
        *("function", "builtin", "builtin method", "method", "object bound", "hostile bound", "partial", "object"),
        *("class", "hostile", "renamed"),
    ],
)
def test_task_has_a_name(fn: object, name: str):
    """Every callable gets a name for logs, whatever its attributes do."""
    assert task_name(fn) == name


def test_names_and_ids():
    """The given id and name win over the number and the task's name."""
    job = make_job(job_in, id="a", name="b")
    job._seq = 4
    assert (job.id, job.name, job.seq) == ("a", "b", 4)
    plain = make_job(job_in)
    plain._seq = 5
    assert (plain.id, plain.name, plain.priority) == (5, "job_in", 5)


# ---------------------------------------------------------------- failures nobody looked at


def test_unseen_failure_is_logged_once(caplog: pytest.LogCaptureFixture):
    """A failure that is collected unseen is logged at ERROR with id, name, attempts and traceback."""
    job = make_job(name="nightly")
    job._seq = 3
    job._claim(0.0, None)
    try:
        raise ValueError("boom")
    except ValueError as error:
        failure = Failure(job, error)
    with caplog.at_level(logging.ERROR, "threadsched"):
        del failure
        gc.collect()
    (record,) = caplog.records
    text = record.getMessage()
    assert "job 3 (nightly) failed after 1 attempt(s)" in text
    assert "ValueError: boom" in text
    assert record.exc_text is not None
    assert "test_unseen_failure_is_logged_once" in record.exc_text


def test_seen_failure_is_silent(caplog: pytest.LogCaptureFixture):
    """A failure that somebody looked at goes without a word."""
    driver = Driver()
    job = driver.submit()
    driver.claim()
    assert driver.fail(job)
    assert isinstance(job.exception(), ValueError)
    with caplog.at_level(logging.ERROR, "threadsched"):
        del job
        gc.collect()
    assert not caplog.records


def test_result_of_a_failed_job_does_not_grow():
    """Asking again and again raises with the same traceback, without a new entry for each time."""
    job = job_in(PENDING)
    job._claim(0.0, None)
    try:
        raise ValueError("boom")
    except ValueError as error:
        job._fail(Failure(job, error), 1.0)

    def depth() -> int:
        try:
            job.result()
        except ValueError as error:
            count, trace = 0, error.__traceback__
            while trace is not None:
                count, trace = count + 1, trace.tb_next
            return count
        raise AssertionError

    assert depth() == depth() == depth()


def test_attachments_are_made_on_first_use():
    """A job that nobody waits for carries no attachments; the first who asks makes them, once."""
    job = make_job()
    assert job._attached is None
    assert not job.cancel_requested
    job.check_cancelled()
    attached = job._attach()
    assert isinstance(attached, Attached)
    assert job._attach() is attached


# ---------------------------------------------------------------- the future's face, with a scheduler behind it


def fails() -> None:
    raise LookupError("gone")


def test_result_does_not_wait_longer_than_asked():
    """A job that has not ended within the timeout raises TimeoutError from result and exception, and goes on."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    for ask in (job.result, job.exception):
        with pytest.raises(TimeoutError, match="had not ended within 0 s"):
            ask(0)
    scheduler.tick()
    assert job.result(0) == 0
    assert job.exception(0) is None


@pytest.mark.parametrize("ask", ["result", "exception"])
@pytest.mark.parametrize("failing", [False, True])
def test_wait_without_a_timeout_helps_first(ask: str, failing: bool):
    """Without a timeout the runtime may run the job on this very thread, and is asked to; then the wait has no end."""
    driver = Driver()
    job = driver.submit()
    driver.claim()
    calls: list[Any] = []

    class Runtime:
        def help(self, awaited: Job[Any]) -> None:
            calls.append(("help", awaited))

        def wait_for_end(self, awaited: Job[Any], timeout: float | None) -> bool:
            calls.append(("wait", awaited, timeout))
            return driver.fail(job, LookupError("gone")) if failing else driver.finish(job, "value")

    job._runtime = Runtime()  # type: ignore[assignment]
    if ask == "exception":
        assert (type(job.exception()) is LookupError) is failing
    elif failing:
        with pytest.raises(LookupError, match="gone"):
            job.result()
    else:
        assert job.result() == "value"
    assert calls == [("help", job), ("wait", job, None)]


def test_job_can_be_awaited():
    """Inside asyncio a job is awaited, and gives its value or raises its error."""

    async def main() -> Any:
        with pytest.raises(LookupError, match="gone"):
            await bad
        return await good

    with Scheduler(1) as scheduler:
        good, bad = scheduler.submit(int, "7"), scheduler.submit(fails)
        assert asyncio.run(main()) == 7


def test_priority_is_changed_through_the_job():
    """set_priority changes a pending job's place and says whether it did; what is no priority is refused."""
    scheduler = StepScheduler()
    first, job = scheduler.submit(int), scheduler.submit(int)
    assert job.set_priority(1) is True
    assert job.priority == 1
    assert [ran.id for ran in scheduler.tick()] == [job.id]
    assert job.set_priority(2) is False
    assert job.priority == 1
    with pytest.raises(ValueError, match="priority"):
        first.set_priority(float("nan"))
    assert first.priority == 5


@pytest.mark.parametrize(("delay", "deadline"), [(0, None), (3, None), (0, 7), (3, 7)])
def test_times_of_a_job_count_from_its_submission(delay: float, deadline: float | None):
    """run_at and deadline are relative to the submission; who waited for a place counts anew from its acceptance."""
    options = make_options({"delay": delay, "deadline": deadline})
    job = make_job(int, now=10.0, delay=delay, deadline=deadline)
    assert (job.submitted_at, job.run_at) == (10.0, 10.0 + delay)
    assert job.deadline == (None if deadline is None else 10.0 + deadline)
    job._restamp(options, 20.0)
    assert (job.submitted_at, job.run_at) == (20.0, 20.0 + delay)
    assert job.deadline == (None if deadline is None else 20.0 + deadline)


def test_cancelled_job_raises_cancelled_error():
    """result and exception of a cancelled job raise CancelledError."""
    job = StepScheduler().submit(int)
    assert job.cancel()
    assert job.cancel()  # once cancelled, every further call says so too
    for ask in (job.result, job.exception):
        with pytest.raises(concurrent.futures.CancelledError):
            ask(0)


def test_finished_job_cannot_be_cancelled_and_asks_nobody():
    """cancel() of a job that has ended otherwise is False, and takes no lock."""
    driver = Driver()
    for settle in (driver.finish, driver.fail):
        job = driver.submit()
        driver.claim()
        settle(job)
        assert job.cancel() is False  # it has no runtime that could be asked


def test_cancelled_job_can_say_why():
    """Where a cancel had a reason, that is what result raises."""
    driver = Driver()
    job = driver.submit()

    class WhyError(concurrent.futures.CancelledError):
        pass

    driver.core.cancel(job, "name", 0.0, WhyError("dropped"))
    job._runtime = StepScheduler()._runtime
    with pytest.raises(WhyError, match="dropped"):
        job.result(0)


def test_record_and_reason_of_a_job():
    """info() is the job's record and explain() says why it does not run, at each stage."""
    scheduler = StepScheduler(clock=FakeClock(10))
    job = scheduler.options(delay=5, id="a", name="b", retries=1, backoff=3).submit(fails)
    assert job.info() == JobInfo("a", "b", PENDING, 5, 0, 10.0, 15.0, None, None, None, None)
    (reason,) = job.explain()
    assert (reason.kind, reason.until) == ("delayed", 15.0)
    scheduler.clock.advance(5)  # type: ignore[attr-defined]
    assert [reason.kind for reason in job.explain()] == ["queued"]
    scheduler.tick()
    (reason,) = job.explain()
    assert (reason.kind, reason.until) == ("retry", 18.0)
    assert "LookupError: gone" in reason.detail
    scheduler.clock.advance(3)  # type: ignore[attr-defined]
    scheduler.tick()
    assert [reason.kind for reason in job.explain()] == ["ended"]
    info = job.info()
    assert (info.status, info.attempts, info.finished_at, info.error) == (FAILED, 2, 18.0, "LookupError: gone")
    other = scheduler.submit(int)
    assert other.claim()
    assert [reason.kind for reason in other.explain()] == ["running"]
    other.set_result(7)


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_standard_wait_and_as_completed_see_the_end(end: str):
    """concurrent.futures.wait and as_completed are told of every end, before and after it."""
    scheduler = StepScheduler()
    job = scheduler.submit(fails if end == "failed" else int)
    assert concurrent.futures.wait([job], timeout=0).not_done == {job}
    waiter = concurrent.futures.as_completed([job], timeout=5)
    if end == "cancelled":
        assert scheduler.cancel(job.id)
    else:
        scheduler.tick()
    assert list(waiter) == [job]
    assert concurrent.futures.wait([job], timeout=0).done == {job}


def test_who_waits_for_a_failed_job_has_looked(caplog: pytest.LogCaptureFixture):
    """Asking by concurrent.futures.wait counts as having looked at the failure."""
    scheduler = StepScheduler(history=0)
    job = scheduler.options(name="watched").submit(fails)
    scheduler.tick()
    assert concurrent.futures.wait([job], timeout=0).done == {job}
    del job
    gc.collect()
    assert "watched" not in caplog.text


def test_stop_that_was_requested_can_be_seen_and_raised():
    """A task sees that it was asked to stop, and leaving by check_cancelled ends it CANCELLED."""
    scheduler = StepScheduler()

    def task() -> None:
        job = current_job()
        assert job is not None
        job.check_cancelled()
        assert job.request_cancel()
        assert job.cancel_requested
        assert job.sleep(5) is False  # it does not sleep any more
        job.check_cancelled()

    job = scheduler.submit(task)
    scheduler.tick()
    assert job.cancelled()
    assert job.request_cancel() is False
    with pytest.raises(RuntimeError, match="inside its own task"):
        job.sleep(1)


def test_claimed_job_is_settled_by_its_claimer_once():
    """A job claimed by hand takes one result or one exception; any other call is an InvalidStateError."""
    scheduler = StepScheduler()
    job, other = scheduler.submit(int), scheduler.submit(int)
    with pytest.raises(concurrent.futures.InvalidStateError):
        job.set_result(1)
    assert job.claim()
    assert not job.claim()
    job.set_result(1)
    assert job.result(0) == 1
    with pytest.raises(concurrent.futures.InvalidStateError):
        job.set_result(2)
    assert other.claim()
    error = LookupError()
    other.set_exception(error)
    assert other.exception(0) is error
    with pytest.raises(concurrent.futures.InvalidStateError):
        other.set_exception(error)
    assert scheduler.tick() == []


def test_callback_is_called_once_with_the_job():
    """A done-callback is called once, at the end or at once if that has passed; what it raises harms nobody."""
    scheduler = StepScheduler()
    job = scheduler.submit(int)
    called: list[object] = []

    def raising(job: object) -> None:
        raise ValueError("in a callback")

    job.add_done_callback(called.append)
    job.add_done_callback(raising)
    job.add_done_callback(called.append)
    scheduler.tick()
    assert called == [job, job]
    job.add_done_callback(called.append)
    assert called == [job, job, job]
    with pytest.raises(TypeError, match="callable"):
        job.add_done_callback(3)  # type: ignore[arg-type]


def test_only_a_scheduler_makes_jobs():
    """Job() says so."""
    with pytest.raises(TypeError, match="made by a scheduler"):
        Job()


def test_class_asked_for_the_condition_answers_like_a_property():
    """Tools that read the attributes of the class, such as a mock made after it, ask for the condition of no job."""
    assert Job._condition is Job.__dict__["_condition"]

"""Threads that do not start, threads that die, and a pool that keeps its width all the same."""

import contextlib
import ctypes
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crowds import PATIENCE, Background, Gate, in_thread, together
from tests.support import rng, size
from threadsched import BrokenSchedulerError, Scheduler, WorkerDiedError, _stacks
from threadsched.testing import FakeClock

RAIN = size(2_000, 250)  # exceptions
POOL = "fragile"


class Starts:
    """Decides which start of one of the pool's threads fails; counts all of them."""

    def __init__(self) -> None:
        self.count = 0
        self.fail: Callable[[int], BaseException | None] = lambda number: None

    def __call__(self) -> None:
        self.count += 1
        error = self.fail(self.count)
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback knows this frame


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    genuine = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(POOL):
            made()
        genuine(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return made


def refuse(*numbers: int) -> Callable[[int], BaseException | None]:
    return lambda number: RuntimeError("can't start new thread") if number in numbers else None


def refuse_from(first: int) -> Callable[[int], BaseException | None]:
    return lambda number: RuntimeError("can't start new thread") if number >= first else None


def occupy(scheduler: Scheduler, width: int) -> None:
    """Show that `width` tasks run at once, no more and no fewer than the pool has workers."""
    barrier = threading.Barrier(width)
    jobs = [scheduler.submit(barrier.wait, PATIENCE) for _ in range(width)]
    assert sorted(job.result(PATIENCE) for job in jobs) == list(range(width))


def await_the_dying() -> None:
    """Wait for the threads that no longer belong to the pool and still log why."""
    for thread in threading.enumerate():
        if thread.name.startswith(POOL):
            thread.join(PATIENCE)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# ---------------------------------------------------------------- a thread that cannot start


def test_no_thread_can_start(starts: Starts) -> None:
    """If no worker can be started, submit raises, nothing stays queued, and the next submission works."""
    starts.fail = refuse_from(1)
    scheduler = Scheduler(3, name=POOL)
    for submit in (scheduler.submit, scheduler.options(id="a").submit, scheduler.options(delay=1).submit):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            submit(int)
    stats = scheduler.stats()
    assert (stats.submitted, stats.pending, stats.workers) == (0, 0, 0)
    assert scheduler.status_of("a") is None
    scheduler.check()
    with pytest.raises(RuntimeError):
        scheduler.start()
    starts.fail = refuse()
    assert scheduler.options(id="a").submit(int).result(PATIENCE) == 0
    occupy(scheduler, 3)
    assert scheduler.stats().lost_workers == 0
    assert scheduler.shutdown(timeout=PATIENCE)


def test_no_thread_can_start_then_shutdown(starts: Starts) -> None:
    """A scheduler whose workers never started shuts down at once."""
    starts.fail = refuse_from(1)
    scheduler = Scheduler(2, name=POOL)
    with pytest.raises(RuntimeError):
        scheduler.submit(int)
    assert scheduler.shutdown(timeout=PATIENCE)


def test_a_later_thread_cannot_start(starts: Starts, caplog: pytest.LogCaptureFixture) -> None:
    """With at least one worker the pool runs with what it has, says so, and the next submission tries again."""
    starts.fail = refuse_from(3)
    scheduler = Scheduler(4, name=POOL)
    assert scheduler.submit(int, 7).result(PATIENCE) == 7
    occupy(scheduler, 2)
    assert scheduler.stats().workers == 2
    assert scheduler.stats().lost_workers == 2
    assert any("2 of 4 workers" in line and "can't start new thread" in line for line in warnings_of(caplog))
    starts.fail = refuse()
    scheduler.submit(int)
    occupy(scheduler, 4)
    stats = scheduler.stats()
    assert (stats.workers, stats.lost_workers) == (4, 0)
    scheduler.check()
    assert scheduler.shutdown(timeout=PATIENCE)


@pytest.mark.parametrize("first", [1, 2], ids=["none starts", "one starts"])
def test_a_failed_start_keeps_no_dropped_scheduler(starts: Starts, first: int) -> None:
    """The error of a start that failed keeps neither the scheduler nor its caller's frame, so dropping is noticed."""
    starts.fail = refuse_from(first)
    gc.collect()
    gc.disable()
    try:

        def use() -> weakref.ref[Scheduler]:
            scheduler = Scheduler(2, name=POOL)
            with contextlib.suppress(RuntimeError):
                scheduler.submit(int).result(PATIENCE)
            return weakref.ref(scheduler)

        assert use()() is None
    finally:
        gc.enable()
    await_the_dying()


def test_start_reports_what_submit_would(starts: Starts, caplog: pytest.LogCaptureFixture) -> None:
    """``start()`` brings up what it can and says so."""
    starts.fail = refuse(2)
    scheduler = Scheduler(2, name=POOL)
    scheduler.start()
    assert scheduler.stats().lost_workers == 1
    assert len(warnings_of(caplog)) == 1
    scheduler.start()
    occupy(scheduler, 2)
    assert scheduler.shutdown(timeout=PATIENCE)


def test_a_failing_start_beside_another(starts: Starts) -> None:
    """Two submissions whose threads both fail to start are refused, or end with the error; none waits for ever."""
    entered, leave = threading.Event(), threading.Event()

    def fail(number: int) -> BaseException:
        if number == 1:
            entered.set()
            assert leave.wait(PATIENCE)
        return RuntimeError("can't start new thread")

    starts.fail = fail
    scheduler = Scheduler(2, name=POOL)
    slow = Background(lambda: scheduler.submit(int))
    assert entered.wait(PATIENCE)
    # The other's start has neither succeeded nor failed yet, so this submission may count on it.
    try:
        quick = scheduler.submit(int)
    except RuntimeError:
        quick = None
    leave.set()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        slow.join()
    if quick is not None:
        assert isinstance(quick.exception(PATIENCE), RuntimeError)
    assert scheduler.stats().pending == 0
    assert scheduler.shutdown(timeout=PATIENCE)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ctrl_c_out_of_a_thread_start(starts: Starts, number: int) -> None:
    """A KeyboardInterrupt that strikes while the workers start comes out of submit and leaves the scheduler usable."""
    starts.fail = lambda count: KeyboardInterrupt() if count == number else None
    scheduler = Scheduler(3, name=POOL)
    with pytest.raises(KeyboardInterrupt):
        scheduler.options(id="a").submit(int)
    assert scheduler.stats().submitted == 0
    assert scheduler.options(id="a").submit(int, 7).result(PATIENCE) == 7
    occupy(scheduler, 3)
    scheduler.check()
    assert scheduler.shutdown(timeout=PATIENCE)


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_after_the_thread_has_started(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """If it strikes just after a thread came to life, the pool still has its width, no thread more."""
    genuine = threading.Thread.start
    count = 0

    def start(thread: threading.Thread) -> None:
        nonlocal count
        genuine(thread)
        if thread.name.startswith(POOL):
            count += 1
            if count == number:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    scheduler = Scheduler(2, name=POOL)
    with pytest.raises(KeyboardInterrupt):
        scheduler.submit(int)
    occupy(scheduler, 2)
    assert scheduler.stats().workers == 2
    scheduler.check()
    assert scheduler.shutdown(timeout=PATIENCE)


def test_never_more_workers_than_asked_for(starts: Starts) -> None:
    """32 threads whose first submissions meet start exactly ``workers`` threads."""
    for _ in range(5):
        starts.count = 0
        scheduler = Scheduler(4, name=POOL)
        jobs = together(*[lambda scheduler=scheduler: scheduler.submit(int)] * 32)
        for job in jobs:
            job.result(PATIENCE)
        occupy(scheduler, 4)
        assert starts.count == 4
        assert scheduler.stats().workers == 4
        assert scheduler.shutdown(timeout=PATIENCE).done == 36


def test_threads_are_daemons_with_names() -> None:
    """Workers are daemon threads called NAME_0, NAME_1, ... and have an empty context of their own."""
    with Scheduler(3, name="alpha") as scheduler:
        scheduler.start()
        occupy(scheduler, 3)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("alpha")]
        assert sorted(thread.name for thread in threads) == ["alpha_0", "alpha_1", "alpha_2"]
        assert all(thread.daemon for thread in threads)


# ---------------------------------------------------------------- asynchronous exceptions


class Poison(Exception):
    """Thrown into a worker's thread from outside."""


# On 3.11 an exception that waits for a sleeping thread keeps any thread that is traced from getting on.
untraced = pytest.mark.skipif(
    sys.gettrace() is not None and sys.version_info < (3, 12), reason="a traced interpreter spins on 3.11"
)


def throw(thread: int, error: type[BaseException] | None = Poison) -> None:
    kind = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)


def idents(scheduler: Scheduler, width: int) -> list[int]:
    barrier = threading.Barrier(width)

    def ident() -> int:
        barrier.wait(PATIENCE)
        return threading.get_ident()

    return [job.result(PATIENCE) for job in [scheduler.submit(ident) for _ in range(width)]]


@pytest.mark.parametrize("error", [Poison, SystemExit, KeyboardInterrupt])
@untraced
def test_an_exception_inside_a_task_fails_that_job_alone(error: type[BaseException]) -> None:
    """An asynchronous exception that strikes inside a task is that job's failure, and the worker stays."""
    with Scheduler(1, name=POOL) as scheduler:
        (ident,) = idents(scheduler, 1)
        started = threading.Event()
        deadline = threading.Event()

        def spin() -> None:
            started.set()
            while not deadline.is_set():
                pass

        job = scheduler.submit(spin)
        assert started.wait(PATIENCE)
        throw(ident, error)
        assert isinstance(job.exception(PATIENCE), error)
        deadline.set()
        assert idents(scheduler, 1) == [ident]
        assert scheduler.stats().replaced_workers == 0


@pytest.mark.parametrize("sleeping", ["idle", "watch"])
@untraced
def test_an_exception_into_a_sleeping_worker(sleeping: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker struck while it slept dies at its next wake-up and is replaced; the job it was woken for runs."""
    clock = FakeClock()
    scheduler = Scheduler(2, name=POOL, clock=clock)
    delayed = scheduler.options(delay=60).submit(int, 5) if sleeping == "watch" else None
    for ident in idents(scheduler, 2):
        clock.advance(0)
        throw(ident)
    assert scheduler.submit(int, 7).result(PATIENCE) == 7
    occupy(scheduler, 2)
    stats = scheduler.stats()
    assert (stats.workers, stats.replaced_workers) == (2, 2)
    clock.advance(60)
    assert delayed is None or delayed.result(PATIENCE) == 5
    scheduler.check()
    assert scheduler.shutdown(timeout=PATIENCE)
    await_the_dying()
    assert sum("is replaced" in record.getMessage() for record in caplog.records) == 2


@untraced
def test_the_successor_takes_the_name_of_the_dead() -> None:
    """A replaced worker's thread has the same name, and numbers are not used up."""
    with Scheduler(2, name=POOL) as scheduler:
        for ident in idents(scheduler, 2):
            throw(ident)
        occupy(scheduler, 2)
        idents(scheduler, 2)
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith(POOL)]
        assert sorted(set(names)) == [f"{POOL}_0", f"{POOL}_1"]


@untraced
def test_a_dead_worker_without_successor(starts: Starts, caplog: pytest.LogCaptureFixture) -> None:
    """If no thread can be started for the last worker, that is logged, no job waits for ever, and the next one runs."""
    scheduler = Scheduler(1, name=POOL)
    (ident,) = idents(scheduler, 1)
    starts.fail = refuse(2)
    throw(ident)
    job = scheduler.submit(int, 7)
    assert isinstance(job.exception(PATIENCE), RuntimeError)
    assert scheduler.submit(int, 8).result(PATIENCE) == 8
    assert scheduler.shutdown(timeout=PATIENCE)
    await_the_dying()
    assert "no successor" in caplog.text


@pytest.mark.stress
# A strike may land in a finalizer that the collector happens to run on a worker: Python reports that, and goes on.
@pytest.mark.proof
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@untraced
def test_exceptions_at_random_moments(caplog: pytest.LogCaptureFixture) -> None:
    """Under a rain of asynchronous exceptions every job ends, the pool keeps its width and its books stay right."""
    random = rng("threads:rain")
    width, rounds = 4, RAIN
    scheduler = Scheduler(width, name=POOL)
    idents(scheduler, width)
    jobs: list[Any] = []
    stop = threading.Event()
    struck: set[threading.Thread] = set()

    def task() -> None:
        try:
            sum(range(50))
        except Poison:
            struck.discard(threading.current_thread())  # it survives this, and can be struck again
            raise

    def produce() -> None:
        while not stop.is_set():
            batch = [scheduler.options(retries=number % 2, backoff=0).submit(task) for number in range(20)]
            jobs.extend(batch)
            for job in batch:
                assert job.exception(PATIENCE) is None or isinstance(job.exception(0), (Poison, WorkerDiedError))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    producers = [Background(produce) for _ in range(3)]
    strikes = barren = unfit = 0
    try:
        while strikes < rounds and barren < 100 and unfit < 10_000 and not any(one.error for one in producers):
            # Each thread once, and only a worker that serves: one exception is what a worker has to survive, and
            # Python's own first and last steps in a thread cannot stand any.
            threads = [one for one in threading.enumerate() if one.name.startswith(POOL) and one not in struck]
            thread = random.choice(threads) if threads else None
            if thread is None or thread.ident is None:
                # A strike just before or after a task's own code retires a thread; enough of them, and none is left.
                barren += 1
                stop.wait(0.001)
                continue
            places = _stacks.read([thread.ident]).get(thread.ident, [])
            names = {name if file != logging.__file__ else "logging" for file, _, name in places}
            if "serve" in names and "logging" not in names:  # that would be left with a handler's lock held, for ever
                struck.add(thread)
                throw(thread.ident)
                strikes, barren, unfit = strikes + 1, 0, 0
            else:
                unfit += 1
                stop.wait(0.0001)  # on its way in or out, it needs the interpreter that this loop would keep busy
    finally:
        sys.setswitchinterval(interval)
        stop.set()
    for producer in producers:
        producer.join()
    # What was thrown and is not yet delivered strikes now, so each of these jobs may be hit.
    for _ in range(2 * width):
        scheduler.submit(int).exception(PATIENCE)
    occupy(scheduler, width)
    scheduler.check()
    stats = scheduler.stats()
    assert stats.workers == width
    assert stats.replaced_workers > 0
    assert stats.submitted == stats.done + stats.failed + stats.cancelled == len(jobs) + 4 * width
    assert scheduler.shutdown(timeout=PATIENCE)


# ---------------------------------------------------------------- an initializer that raises


def criticals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_initializer_that_raises(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It breaks the scheduler: what is pending and what comes later gets BrokenSchedulerError, and no thread stays."""
    go = threading.Event()

    def initializer() -> None:
        assert go.wait(PATIENCE)
        raise error

    scheduler = Scheduler(2, name=POOL, initializer=initializer)
    jobs = [scheduler.submit(int), scheduler.options(delay=3600).submit(int)]
    told: list[Any] = []
    jobs[0].add_done_callback(told.append)
    go.set()
    for job in jobs:
        broken = job.exception(PATIENCE)
        assert isinstance(broken, BrokenSchedulerError)
        assert broken.__cause__ is error
    assert scheduler.shutdown(timeout=PATIENCE).failed == 2
    assert told == [jobs[0]]
    with pytest.raises(BrokenSchedulerError):
        scheduler.submit(int)
    with pytest.raises(BrokenSchedulerError):
        scheduler.start()
    assert len(criticals(caplog)) == 1
    scheduler.check()


def test_an_initializer_that_raises_on_the_second_worker(caplog: pytest.LogCaptureFixture) -> None:
    """One failing worker breaks all: a job that already runs elsewhere still ends normally, nothing else does."""
    calls: list[int] = []
    second = threading.Event()

    def initializer() -> None:
        calls.append(1)
        if len(calls) == 2:
            assert second.wait(PATIENCE)
            raise ValueError("the second one")

    scheduler = Scheduler(2, name=POOL, initializer=initializer)
    gate = Gate("ran")
    running = scheduler.submit(gate)
    gate.await_start()
    behind = scheduler.submit(int)
    second.set()
    assert isinstance(behind.exception(PATIENCE), BrokenSchedulerError)
    gate.open()
    assert running.result(PATIENCE) == "ran"
    report = scheduler.shutdown(timeout=PATIENCE)
    assert (report.done, report.failed) == (1, 1)
    assert len(criticals(caplog)) == 1


def test_a_broken_scheduler_retries_nothing() -> None:
    """A job that fails on a scheduler which broke meanwhile ends FAILED, though it has retries left."""
    calls: list[int] = []
    second = threading.Event()

    def initializer() -> None:
        calls.append(1)
        if len(calls) == 2:
            assert second.wait(PATIENCE)
            raise ValueError("the second one")

    scheduler = Scheduler(2, name=POOL, initializer=initializer)
    gate = Gate(error=LookupError("mine"))
    running = scheduler.options(retries=3, backoff=0).submit(gate)
    gate.await_start()
    behind = scheduler.submit(int)
    second.set()
    behind.exception(PATIENCE)
    gate.open()
    assert isinstance(running.exception(PATIENCE), (LookupError, BrokenSchedulerError))
    assert gate.runs == 1
    assert scheduler.shutdown(timeout=PATIENCE)


@untraced
def test_the_initializer_runs_once_on_each_worker_and_its_successor() -> None:
    """Each worker thread calls it with ``initargs`` before its first job, a replacement too."""
    seen: list[tuple[int, str]] = []
    with Scheduler(
        2, name=POOL, initializer=lambda word: seen.append((threading.get_ident(), word)), initargs=("hello",)
    ) as scheduler:
        before = idents(scheduler, 2)
        assert sorted(seen) == sorted((ident, "hello") for ident in before)
        throw(before[0])
        occupy(scheduler, 2)
        idents(scheduler, 2)
        assert len(seen) == 3


def test_a_broken_scheduler_wakes_who_waits() -> None:
    """``wait_idle`` and a waiting shutdown return when the scheduler breaks."""
    go = threading.Event()

    def initializer() -> None:
        assert go.wait(PATIENCE)
        raise ValueError

    scheduler = Scheduler(2, name=POOL, initializer=initializer)
    job = scheduler.options(delay=3600).submit(int)
    waiting = [Background(lambda: scheduler.wait_idle(PATIENCE)), Background(scheduler.shutdown)]
    go.set()
    assert [bool(one.join()) for one in waiting] == [True, True]
    assert isinstance(in_thread(lambda: job.exception(0)), BrokenSchedulerError)


@pytest.fixture(autouse=True)
def nothing_thrown_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(POOL) and thread.ident is not None:
            throw(thread.ident, None)

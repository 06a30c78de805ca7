"""`map` of the scheduler, of its submitters and of the stepped scheduler."""

import concurrent.futures
import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, occupied
from tests.producers import Asleep, Call
from threadsched import JobDroppedError, JobStatus, QueueFullError, Scheduler, SchedulerClosedError
from threadsched.testing import StepScheduler


class Source:
    """An endless input that counts what was pulled from it."""

    def __init__(self, end: int | None = None, error: BaseException | None = None) -> None:
        self.pulled = 0
        self.end = end
        self.error = error

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.pulled == self.end:
            raise self.error or StopIteration
        self.pulled += 1
        return self.pulled - 1


def double(number: int) -> int:
    return 2 * number


def test_map_keeps_the_order_of_the_input():
    """Results come in input order, whatever order the jobs ended in; several inputs go to the shortest."""
    gates = [Gate() for _ in range(3)]
    with Scheduler(3) as s:
        results = s.map(lambda gate, number: gate(number), gates, itertools.count())
        for gate in reversed(gates):
            gate.await_start()
            gate.open()
        assert list(results) == [0, 1, 2]
        assert list(s.map(pow, [2, 3], [5, 2, 9])) == [32, 9]
        assert list(s.map(int)) == []
        assert list(s.map(int, [])) == []
        assert list(s.options(priority=3).map(double, range(5), chunksize=3)) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("buffersize", [1, 2, 7])
def test_f06_map_over_an_endless_input(buffersize: int):
    """The first result comes after at most `buffersize` inputs were pulled, and it never reads ahead further."""
    source = Source()
    with Scheduler(2) as s:
        results = s.map(double, source, buffersize=buffersize)
        assert source.pulled == buffersize
        for taken in range(20):
            assert next(results) == 2 * taken
            assert source.pulled - taken <= buffersize
        results.close()  # type: ignore[attr-defined]
        pulled = source.pulled
        with pytest.raises(StopIteration):
            next(results)
        assert source.pulled == pulled


def test_all_is_submitted_at_once_without_a_window():
    """As `Executor.map` does it."""
    source = Source(50)
    with Scheduler(1) as s, occupied(s):
        results = s.map(double, source)
        assert source.pulled == 50
        assert s.stats().pending == 50
        results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["close", "close before the first", "drop", "error", "timeout"])
def test_end_of_the_iterator_cancels_the_rest(how: str):
    """Closed, dropped, failed or timed out: what has not started is cancelled, what runs goes on."""
    with Scheduler(1) as s:
        gate = Gate()

        def task(number: int) -> int:
            if number == 1:
                if how == "error":
                    raise LookupError("one")
                gate()
            return number

        timeout = 0.05 if how == "timeout" else None
        results = s.map(task, range(10), timeout=timeout)
        if how != "close before the first":
            assert next(results) == 0
        if how == "error":
            with pytest.raises(LookupError):
                next(results)
            s.wait_idle(PATIENCE)
        elif how == "timeout":
            gate.await_start()
            with pytest.raises(TimeoutError, match=r"within 0\.05 s of the call of map"):
                next(results)
        elif how == "drop":
            gate.await_start()
            del results
            gc.collect()
        else:
            gate.await_start()
            results.close()  # type: ignore[attr-defined]
        assert s.stats().pending == 0
        if how in ("error", "timeout"):
            with pytest.raises(StopIteration):
                next(results)
        gate.open()
        assert s.wait_idle(PATIENCE)
        assert s.stats().cancelled >= (8 if how != "error" else 0)
        s.check()


@pytest.mark.parametrize("buffersize", [None, 3])
def test_map_that_nobody_reads(buffersize: int | None):
    """Dropped without being read, what was submitted runs, as under `Executor.map`."""
    ran: list[int] = []
    with Scheduler(1) as s:
        with occupied(s):
            s.map(ran.append, range(10), buffersize=buffersize)
            gc.collect()
        assert s.wait_idle(PATIENCE)
    assert ran == list(range(buffersize or 10))


def test_tim_06_bulk_with_a_limit():
    """Quick, blocked, quick on two workers: not before the limit, the quick ones done, the blocked not waited for.

    A task cannot be stopped from outside: the blocked one runs on, as under `Executor.map`, and is not retried.
    """
    gate = Gate()
    seen: list[Any] = []
    with Scheduler(2) as s:
        results = s.options(retries=3).map(lambda task: task(), [int, gate, str], timeout=0.1)
        jobs = list(results._jobs)  # type: ignore[attr-defined]
        gate.await_start()
        assert jobs[2].result(PATIENCE) == ""
        with pytest.raises(TimeoutError):
            seen.extend(results)
        assert seen == [0] or seen == []
        assert [job.status for job in jobs] == [JobStatus.DONE, JobStatus.RUNNING, JobStatus.DONE]
        gate.open()
        assert list(s.map(int, "123", timeout=PATIENCE)) == [1, 2, 3]


def test_waiting_one_is_cancelled_at_the_limit():
    """A job that has not started when the time is over is cancelled, like all behind it."""
    with Scheduler(1) as s, occupied(s):
        results = s.map(int, "12", timeout=0)
        jobs = list(results._jobs)  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            next(results)
        assert all(job.cancelled() for job in jobs)


def test_tasks_own_timeout_error_is_the_tasks():
    """A TimeoutError that the task raised comes out as it is."""

    def late(_: int) -> None:
        raise TimeoutError("mine")

    with Scheduler(1) as s, pytest.raises(TimeoutError, match="mine"):
        next(s.map(late, [1], timeout=PATIENCE))


@pytest.mark.parametrize("buffersize", [None, 2])
def test_input_that_raises(buffersize: int | None):
    """At the call its error comes out of the call; later in its place, after the results before it."""
    with Scheduler(1) as s:
        if buffersize is None:
            with pytest.raises(LookupError):
                s.map(double, Source(3, LookupError("input")))
            assert s.wait_idle(PATIENCE)
            return
        results = s.map(double, Source(4, LookupError("input")), buffersize=buffersize)
        assert [next(results) for _ in range(4)] == [0, 2, 4, 6]
        with pytest.raises(LookupError):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


def test_shutdown_in_the_middle():
    """Results of what was accepted come; then the refusal of what was not."""
    s = Scheduler(1)
    results = s.map(double, Source(), buffersize=3)
    assert next(results) == 0
    s.shutdown()
    assert [next(results), next(results)] == [2, 4]
    with pytest.raises(SchedulerClosedError):
        next(results)
    with pytest.raises(SchedulerClosedError):
        s.map(double, [1])


def test_iterator_keeps_its_scheduler():
    """A scheduler that only its map's iterator holds goes on until that is done."""
    assert list(Scheduler(1).map(double, range(5), buffersize=2)) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"buffersize": 0}, ValueError, "buffersize must be greater than 0, not 0"),
        ({"buffersize": 1.5}, TypeError, "buffersize must be an int"),
        ({"buffersize": True}, TypeError, "buffersize"),
        ({"chunksize": 0}, ValueError, "chunksize"),
        ({"chunksize": "1"}, TypeError, "chunksize"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
    ],
)
def test_bad_values_are_refused_before_anything_is_read(arguments: Any, error: type[Exception], words: str):
    """Each is refused by name, and nothing was pulled."""
    source = Source(3)
    s = StepScheduler()
    for face in (s, s.options()):
        with pytest.raises(error, match=words):
            face.map(double, source, **arguments)
    with pytest.raises(TypeError, match="must be callable, not 5"):
        s.map(5, source)  # type: ignore[arg-type]
    assert source.pulled == 0


def test_stepped_map():
    """Without threads the jobs are there at once; after ticks their results are."""
    s = StepScheduler(2)
    results = s.map(double, range(4))
    s.drain()
    assert list(results) == [0, 2, 4, 6]
    results = s.map(double, Source(), buffersize=2)
    for number in range(5):
        s.drain()
        assert next(results) == 2 * number
    results.close()  # type: ignore[attr-defined]


def test_map_from_within_a_job():
    """A job may map over the other workers, bounded queue or not: where it must not block it takes results first."""

    def parent() -> list[int]:
        return list(s.map(double, range(20)))

    for more in ({}, {"max_pending": 1}, {"max_pending": 3, "on_full": "reject"}, {"max_pending": 2,
                 "on_full": "caller_runs"}):  # fmt: skip
        with Scheduler(2, **more) as s:  # type: ignore[arg-type]
            assert s.submit(parent).result(PATIENCE) == [2 * number for number in range(20)]
            s.check()


def test_map_under_a_bound(monkeypatch: pytest.MonkeyPatch):
    """With "block" the call waits for places; the bound holds and the order too."""
    asleep = Asleep(monkeypatch)
    most: list[int] = []

    def task(number: int) -> int:
        most.append(s.stats().pending)
        return number

    with Scheduler(1, max_pending=3) as s:
        s.pause()
        call = Call(lambda: list(s.map(task, range(30))))
        asleep.await_one()
        assert s.stats().pending == 3
        s.resume()
        assert call.outcome() == list(range(30))
    assert max(most) <= 3


def test_map_under_reject_reads_ahead_as_far_as_there_is_room():
    """A full queue stops the reading, not the map; with none of its own to wait for, it is refused."""
    source = Source(10)
    with Scheduler(1, max_pending=4, on_full="reject") as s:
        with occupied(s):
            results = s.map(double, source)
            assert source.pulled == 5
            with pytest.raises(QueueFullError):
                s.map(double, [1])
            s.check()
        assert list(results) == [2 * number for number in range(10)]


def test_map_whose_jobs_are_dropped():
    """Under a rule that drops, the iterator raises what a dropped job's result raises, and ends."""
    with Scheduler(1, max_pending=2, on_full="drop_oldest") as s, occupied(s):
        results = s.map(double, range(5))
        with pytest.raises(JobDroppedError):
            next(results)
        assert list(results) == []
        assert s.stats().pending == 0


def test_no_result_is_kept():
    """What was handed out is the caller's alone."""

    class Big:
        pass

    import weakref

    with Scheduler(1) as s:
        results = s.map(lambda _: Big(), range(2))
        reference = weakref.ref(next(results))
        s.wait_idle(PATIENCE)
        gc.collect()
        assert reference() is None
        next(results)


def test_map_is_an_executors():
    """Code that takes an executor and maps gets ours."""
    with Scheduler(2) as s:
        executor: concurrent.futures.Executor = s
        assert list(executor.map(double, range(3), timeout=PATIENCE)) == [0, 2, 4]


def test_input_that_waits_for_results():
    """The input runs on the caller's thread, under no lock: it may use the scheduler itself."""
    with Scheduler(1) as s:

        def numbers() -> Iterator[int]:
            for number in range(5):
                assert threading.current_thread() is threading.main_thread()
                yield s.submit(double, number).result(PATIENCE)

        assert list(s.map(double, numbers(), buffersize=1)) == [0, 4, 8, 12, 16]

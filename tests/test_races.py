"""Pairs of operations that meet at one moment, some hundred times, with threads that switch every microsecond."""

import concurrent.futures
import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crowds import PATIENCE, Gate
from tests.support import size
from threadsched import (
    DuplicateJobError,
    FifoPolicy,
    JobStatus,
    OldestDuePolicy,
    PriorityPolicy,
    Scheduler,
    SchedulerClosedError,
)

pytestmark = pytest.mark.proof

ROUNDS = size(3000, 200)
QUEUES = ("lazy", "indexed")


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Crew:
    """Threads that each do their part of every round, all beginning it at one moment."""

    def __init__(self, *parts: Callable[[Any], Any]) -> None:
        self._parts = parts
        self._begin = threading.Barrier(len(parts) + 1)
        self._end = threading.Barrier(len(parts) + 1)
        self._subject: Any = None
        self._over = False
        self._answers: list[Any] = [None] * len(parts)
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(len(parts))]
        for thread in self._threads:
            thread.start()

    def _work(self, index: int) -> None:
        while True:
            self._begin.wait(2 * PATIENCE)
            if self._over:
                return
            try:
                self._answers[index] = self._parts[index](self._subject)
            except BaseException as error:
                self._errors.append(error)
            self._end.wait(2 * PATIENCE)

    def round(self, subject: Any) -> list[Any]:
        """Let every part act on the subject at once; return what they returned, in their order."""
        self._subject = subject
        self._begin.wait(2 * PATIENCE)
        self._end.wait(2 * PATIENCE)
        if self._errors:
            raise self._errors[0]
        return list(self._answers)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        with contextlib.suppress(threading.BrokenBarrierError):
            self._begin.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize("queue", QUEUES)
def test_cancel_against_claim(queue: Any) -> None:
    """Either the cancel says True and the task never runs, or it says False and the task runs; callbacks once."""
    ran: list[int] = []
    told: list[int] = []
    with (
        Scheduler(1, queue=queue) as scheduler,
        Crew(
            lambda box: box.append(scheduler.submit(ran.append, 1)),
            lambda box: box and box[0].cancel(),
        ) as crew,
    ):
        for _ in range(ROUNDS):
            ran.clear()
            told.clear()
            box: list[Any] = []
            _, first = crew.round(box)
            (job,) = box
            job.add_done_callback(lambda job: told.append(1))
            cancelled = job.cancel() if first is not True else True
            assert concurrent.futures.wait([job], PATIENCE).done == {job}
            assert cancelled == job.cancelled() == (not ran)
            assert len(ran) <= 1
            assert job.cancel() is cancelled
            scheduler.submit(int).result(PATIENCE)  # the one worker has called back before it takes this
            assert told == [1]
        assert scheduler.wait_idle(PATIENCE)
        scheduler.check()


@pytest.mark.parametrize("queue", QUEUES)
def test_cancel_against_a_worker_on_its_way(queue: Any) -> None:
    """A worker that is set free and a cancel race for one ready job: exactly one of them gets it."""
    ran: list[int] = []
    told: list[int] = []
    wins = []
    with (
        Scheduler(1, queue=queue) as scheduler,
        Crew(lambda subject: subject[0].open(), lambda subject: scheduler.cancel(subject[1].id)) as crew,
    ):
        for _ in range(ROUNDS):
            ran.clear()
            told.clear()
            gate = Gate()
            scheduler.submit(gate)
            gate.await_start()
            job = scheduler.submit(ran.append, 1)
            job.add_done_callback(lambda job: told.append(1))
            _, cancelled = crew.round((gate, job))
            concurrent.futures.wait([job], PATIENCE)
            assert scheduler.wait_idle(PATIENCE)
            assert cancelled == job.cancelled() == (not ran)
            assert len(ran) == (not cancelled)
            wins.append(cancelled)
        scheduler.check()
    assert scheduler.stats().cancelled == sum(wins)


def test_two_cancels() -> None:
    """Of several cancels of one job by its scheduler one says True; each by the job itself does."""
    told: list[int] = []
    with (
        Scheduler(1) as scheduler,
        Crew(*[lambda job: scheduler.cancel(job.id)] * 3, *[lambda job: job.cancel()] * 1) as crew,
    ):
        for _ in range(ROUNDS):
            told.clear()
            job = scheduler.options(delay=3600).submit(int)
            job.add_done_callback(lambda job: told.append(1))
            *by_id, by_job = crew.round(job)
            assert by_job is True
            assert sum(by_id) <= 1
            assert job.cancelled()
            assert scheduler.stats().pending == 0
        assert scheduler.stats().cancelled == ROUNDS
        assert scheduler.wait_idle(PATIENCE)


@pytest.mark.parametrize("ending", ["settle", "fail", "cancel"])
def test_add_done_callback_against_the_end(ending: str) -> None:
    """A callback added while the job ends is called exactly once, and the job has ended by then."""
    calls: list[tuple[int, bool]] = []
    lock = threading.Lock()

    def end(subject: Any) -> None:
        gate, job = subject
        if ending == "cancel":
            job.cancel()
        else:
            gate.open()

    def add(subject: Any) -> None:
        job = subject[1]
        for number in range(5):

            def call(job: Any, number: int = number) -> None:
                with lock:
                    calls.append((number, job.done()))
                    if len(calls) == 5:
                        complete.set()

            job.add_done_callback(call)

    with Scheduler(1) as scheduler, Crew(end, add) as crew:
        for _ in range(ROUNDS):
            calls.clear()
            complete = threading.Event()
            gate = Gate(error=ValueError() if ending == "fail" else None)
            if ending == "cancel":
                job = scheduler.options(delay=3600).submit(int)
            else:
                job = scheduler.submit(gate)
                gate.await_start()
            crew.round((gate, job))
            assert complete.wait(PATIENCE)
            assert scheduler.wait_idle(PATIENCE)
            assert sorted(calls) == [(number, True) for number in range(5)]
            job.cancelled() or job.exception(PATIENCE)


@pytest.mark.parametrize("ending", ["settle", "fail", "cancel"])
def test_waits_against_the_end(ending: str) -> None:
    """``result``, ``exception``, ``wait`` and ``as_completed`` that begin while the job ends all see its end."""

    def end(subject: Any) -> Any:
        gate, job = subject
        return job.cancel() if ending == "cancel" else gate.open()

    def result(subject: Any) -> Any:
        try:
            return subject[1].result(PATIENCE)
        except (concurrent.futures.CancelledError, ValueError) as error:
            return type(error)

    def exception(subject: Any) -> Any:
        try:
            return type(subject[1].exception())
        except concurrent.futures.CancelledError as error:
            return type(error)

    def wait(subject: Any) -> Any:
        return len(concurrent.futures.wait([subject[1]], PATIENCE).done)

    def as_completed(subject: Any) -> Any:
        return list(concurrent.futures.as_completed([subject[1]], PATIENCE)) == [subject[1]]

    expected = {
        "settle": [7, type(None), 1, True],
        "fail": [ValueError, ValueError, 1, True],
        "cancel": [concurrent.futures.CancelledError, concurrent.futures.CancelledError, 1, True],
    }[ending]
    with Scheduler(1) as scheduler, Crew(end, result, exception, wait, as_completed) as crew:
        for _ in range(ROUNDS):
            gate = Gate(7, ValueError() if ending == "fail" else None)
            if ending == "cancel":
                job = scheduler.options(delay=3600).submit(int)
            else:
                job = scheduler.submit(gate)
                gate.await_start()
            assert crew.round((gate, job))[1:] == expected


def test_short_timeouts_against_the_end() -> None:
    """A ``result`` whose timeout runs out while the job ends says one or the other, and leaves nothing behind."""
    answers = set()

    def result(subject: Any) -> Any:
        try:
            return subject[1].result(1e-5)
        except TimeoutError:
            return "late"

    with (
        Scheduler(1) as scheduler,
        Crew(lambda subject: subject[0].open(), result, result, lambda subject: scheduler.wait_idle(1e-5)) as crew,
    ):
        for _ in range(ROUNDS):
            gate = Gate(7)
            job = scheduler.submit(gate)
            gate.await_start()
            answers |= set(crew.round((gate, job))[1:3])
            assert job.result(PATIENCE) == 7
            assert scheduler.wait_idle(PATIENCE)
    assert answers <= {7, "late"}


@pytest.mark.parametrize("queue", QUEUES)
def test_policy_swaps_against_submit_and_claim(queue: Any) -> None:
    """While the policy changes under load no job is lost or run twice; afterwards the order is the new policy's."""
    policies = itertools.cycle([FifoPolicy(), PriorityPolicy(), ByNegativePriority(), OldestDuePolicy(), Backwards()])
    ran: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        with lock:
            ran.append(number)

    def submit(numbers: Any) -> list[Any]:
        return [scheduler.options(priority=number % 7).submit(work, number) for number in numbers[0]]

    def swap(numbers: Any) -> None:
        for _ in range(5):
            scheduler.policy = next(policies)

    with Scheduler(2, queue=queue) as scheduler, Crew(submit, submit, swap) as crew:
        for _ in range(ROUNDS // 10):
            ran.clear()
            first, second, _ = crew.round((range(20),))
            for job in first + second:
                assert job.exception(PATIENCE) is None
            assert sorted(ran) == sorted(list(range(20)) * 2)
        scheduler.check()
        gates = [Gate(), Gate()]
        for gate in gates:
            scheduler.submit(gate)
            gate.await_start()
        ran.clear()
        jobs = [scheduler.options(priority=number % 7).submit(work, number) for number in range(50)]
        scheduler.policy = ByNegativePriority()
        scheduler.check()
        gates[0].open()
        for job in jobs:
            job.result(PATIENCE)
        assert ran == sorted(range(50), key=lambda number: (-(number % 7), number))
        gates[1].open()


class ByNegativePriority:
    def key(self, job: Any) -> float:
        return -float(job.priority)


class Backwards:
    def before(self, a: Any, b: Any) -> bool:
        return bool(a.seq > b.seq)


def test_one_id_for_many() -> None:
    """Of 8 submissions with one id exactly one is accepted, the others get DuplicateJobError."""

    def submit(id: str) -> Any:
        try:
            return scheduler.options(id=id, delay=3600).submit(int)
        except DuplicateJobError:
            return None

    with Scheduler(1) as scheduler, Crew(*[submit] * 8) as crew:
        for number in range(ROUNDS):
            jobs = [job for job in crew.round(f"job {number}") if job is not None]
            assert len(jobs) == 1
            assert scheduler.get(f"job {number}") is jobs[0]
        assert scheduler.stats().submitted == ROUNDS
        scheduler.check()
        assert scheduler.clear() == ROUNDS


def test_claim_against_a_worker() -> None:
    """A caller's ``claim()``, a cancel and a worker race for one job: exactly one of them gets it."""
    ran: list[int] = []

    def claim(subject: Any) -> bool:
        job = subject[1]
        if not job.claim():
            return False
        assert job.status is JobStatus.RUNNING
        job.set_result("claimed")
        return True

    with (
        Scheduler(1) as scheduler,
        Crew(lambda subject: subject[0].open(), claim, claim, lambda subject: scheduler.cancel(subject[1].id)) as crew,
    ):
        for _ in range(ROUNDS):
            ran.clear()
            gate = Gate()
            scheduler.submit(gate)
            gate.await_start()
            job = scheduler.submit(ran.append, 1)
            _, first, second, cancelled = crew.round((gate, job))
            assert scheduler.wait_idle(PATIENCE)
            assert [first, second, cancelled, bool(ran)].count(True) == 1
            assert job.cancelled() == cancelled
            if not cancelled:
                assert job.result(0) == ("claimed" if first or second else None)
        scheduler.check()


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shutdown_against_submit(drain: Any) -> None:
    """A submission that meets the closing door is refused, or its job ends; the report counts what was accepted."""

    def submit(scheduler: Scheduler) -> Any:
        try:
            return scheduler.submit(int)
        except SchedulerClosedError:
            return None

    def stop(scheduler: Scheduler) -> Any:
        return scheduler.shutdown(drain=drain, timeout=PATIENCE)

    with Crew(submit, submit, stop, stop) as crew:
        for number in range(ROUNDS // 2):
            scheduler = Scheduler(2)
            if number % 2:
                scheduler.start()
            first, second, report, again = crew.round(scheduler)
            jobs = [job for job in (first, second) if job is not None]
            assert report
            assert again
            assert all(job.done() for job in jobs)
            assert scheduler.stats().submitted == len(jobs)
            scheduler.check()


def test_cancel_against_retry() -> None:
    """A cancel that meets a failing attempt ends the job CANCELLED or FAILED, never starts it again, and tells once."""
    told: list[int] = []

    with (
        Scheduler(1) as scheduler,
        Crew(lambda subject: subject[0].open(), lambda subject: scheduler.cancel(subject[1].id)) as crew,
    ):
        for _ in range(ROUNDS):
            told.clear()
            gate = Gate(error=ValueError())
            job = scheduler.options(retries=5, backoff=3600).submit(gate)
            job.add_done_callback(lambda job: told.append(1))
            gate.await_start()
            _, cancelled = crew.round((gate, job))
            assert concurrent.futures.wait([job], PATIENCE).done == {job}
            assert scheduler.wait_idle(PATIENCE)
            assert gate.runs == 1
            assert job.cancelled() == cancelled
            assert cancelled or isinstance(job.exception(0), ValueError)
            assert scheduler.stats().pending == 0
            scheduler.submit(int).result(PATIENCE)  # the one worker has called back before it takes this
            assert told == [1]

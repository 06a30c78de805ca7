"""A job is a future: everything that takes futures takes jobs, and a job tells truly what has become of it."""

import asyncio
import concurrent.futures
import contextvars
import copy
import gc
import pickle
import sys
import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError, Future
from types import FrameType
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Thing, end_of, in_thread, logged, occupied
from threadsched import Job, JobStatus, JobStoppedError, Scheduler, current_job
from threadsched.testing import FakeClock, StepScheduler


class Boom(Exception):
    pass


def boom(text: str = "boom") -> None:
    raise Boom(text)


def nothing() -> None:
    pass


# ---------------------------------------------------------------------- wait, as_completed


@pytest.mark.parametrize("until", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_takes_jobs_of_all_schedulers_and_foreign_futures(until: str):
    """`wait` over jobs of two schedulers, a pool's future and a bare one knows what has ended, in each of its modes."""
    foreign: Future[int] = Future()
    with (
        Scheduler(1) as one,
        Scheduler(1, clock=FakeClock()) as two,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        with occupied(one), occupied(two):
            jobs = [one.submit(abs, -1), two.submit(boom), two.options(delay=9).submit(nothing)]
            futures = {*jobs, pool.submit(abs, -2), foreign}
            join = in_thread(lambda: concurrent.futures.wait(futures, PATIENCE, return_when=until))
            jobs[2].cancel()
            foreign.set_result(3)
        done, not_done = join()
        assert done | not_done == futures
        assert done
        if until == ALL_COMPLETED:
            assert not not_done
        done, not_done = concurrent.futures.wait(futures, PATIENCE)
        assert not not_done
        assert jobs[1].exception() is not None


def test_wait_modes_one_by_one():
    """FIRST_COMPLETED returns with the first end, FIRST_EXCEPTION with the first failure, while the rest is open."""
    with Scheduler(3) as s:
        gates = [Gate() for _ in range(3)]
        jobs: list[Job[Any]] = [s.submit(gates[0]), s.submit(lambda: boom(gates[1]())), s.submit(gates[2])]
        first = in_thread(lambda: concurrent.futures.wait(jobs, PATIENCE, return_when=FIRST_COMPLETED))
        error = in_thread(lambda: concurrent.futures.wait(jobs, PATIENCE, return_when=FIRST_EXCEPTION))
        everything = in_thread(lambda: concurrent.futures.wait(jobs, PATIENCE))
        gates[0].open()
        assert first() == ({jobs[0]}, {jobs[1], jobs[2]})
        gates[1].open()
        assert error() == ({jobs[0], jobs[1]}, {jobs[2]})
        gates[2].open()
        assert everything() == (set(jobs), set())


@pytest.mark.parametrize("timeout", [0, 0.001, -1])
def test_wait_times_out(timeout: float):
    """A wait that ends by its timeout says what is open and leaves the job watched by nobody."""
    with Scheduler(1) as s:
        with occupied(s) as (job,):
            ended = s.options(delay=3600).submit(nothing)
            ended.cancel()
            assert concurrent.futures.wait([job, ended], timeout) == ({ended}, {job})
        assert concurrent.futures.wait([job], PATIENCE).done == {job}


def test_as_completed_gives_each_once_as_it_ends():
    """`as_completed` yields what has ended first, then the others in the order of their ends, cancelled ones too."""
    with Scheduler(2) as s, Scheduler(1) as other:
        gates = [Gate() for _ in range(2)]
        jobs: list[Any] = [s.submit(gate, number) for number, gate in enumerate(gates)]
        done = other.submit(abs, -1)
        done.result(PATIENCE)
        late = other.options(delay=3600).submit(nothing)
        foreign: Future[None] = Future()
        stream = concurrent.futures.as_completed([*jobs, done, late, foreign, done], PATIENCE)
        assert next(stream) is done
        gates[1].open()
        assert next(stream) is jobs[1]
        late.cancel()
        assert next(stream) is late
        foreign.cancel()
        foreign.set_running_or_notify_cancel()
        assert next(stream) is foreign
        gates[0].open()
        assert next(stream) is jobs[0]
        assert list(stream) == []


def test_as_completed_times_out():
    """`as_completed` raises at its timeout and counts what is unfinished."""
    with Scheduler(1) as s, occupied(s) as (job,):
        stream = concurrent.futures.as_completed([job, s.submit(nothing)], 0.001)
        with pytest.raises(TimeoutError, match=r"2 \(of 2\) futures unfinished"):
            next(stream)


def test_wait_sees_a_job_that_retries_only_at_its_end():
    """A retry is no end: a wait that was there before the first failure returns after the last attempt."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=2, backoff=1).submit(boom)
        clock.advance(0)
        assert concurrent.futures.wait([job], 0).not_done == {job}
        join = in_thread(lambda: concurrent.futures.wait([job], PATIENCE))
        clock.advance(1)
        assert concurrent.futures.wait([job], 0).not_done == {job}
        clock.advance(2)
        assert join().done == {job}
        assert job.attempts == 3


# ---------------------------------------------------------------------- asyncio, map


def test_asyncio_takes_jobs():
    """`run_in_executor`, `wrap_future` and `gather` give results, errors and cancels of jobs to a loop."""
    with Scheduler(2) as s:

        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(s, abs, -1) == 1
            assert await loop.run_in_executor(s.options(priority=1), abs, -2) == 2
            jobs = [s.submit(abs, -number) for number in range(20)]
            assert await asyncio.gather(*map(asyncio.wrap_future, jobs)) == list(range(20))
            with pytest.raises(Boom):
                await asyncio.wrap_future(s.submit(boom))
            late = s.options(delay=3600).submit(nothing)
            wrapped = asyncio.wrap_future(late)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wrapped
            late = s.options(delay=3600).submit(nothing)
            asyncio.wrap_future(late).cancel()
            assert await asyncio.wrap_future(s.submit(abs, -3)) == 3
            assert late.cancelled()

        asyncio.run(main())


def test_map_keeps_input_order():
    """`map` yields in input order whatever ends first, over several iterables, the shortest deciding."""
    with Scheduler(2) as s:
        gate = Gate()
        results = s.map(lambda task, *rest: (task(*rest), rest), [gate, abs], [1, -2, 3])
        gate.await_start()
        gate.open()
        assert list(results) == [(1, (1,)), (2, (-2,))]
        assert list(s.map(abs, range(100), chunksize=7)) == list(range(100))


def test_map_raises_where_the_failure_is():
    """`map` gives what comes before a failing input, raises its error in its place, and cancels the rest."""
    with Scheduler(1) as s:
        gate = Gate()
        results = s.map(lambda task: task(), [lambda: 1, lambda: boom("third"), gate, nothing, nothing])
        assert next(results) == 1
        gate.await_start()
        with pytest.raises(Boom, match="third"):
            next(results)
        assert s.stats().cancelled == 2
        gate.open()


def test_map_that_is_closed_cancels_the_rest():
    """Closing the iterator, or dropping it, cancels what has not started."""
    with Scheduler(1) as s:
        for end in ("close", "__del__"):
            gate = Gate()
            results = s.map(lambda task: task(), [lambda: 1, gate, *[nothing] * 10])
            assert next(results) == 1
            gate.await_start()
            before = s.stats().cancelled
            if end == "close":
                results.close()  # type: ignore[attr-defined]
            del results
            gc.collect()
            assert s.stats().cancelled - before == 10
            gate.open()
            assert s.wait_idle(PATIENCE)


# ---------------------------------------------------------------------- result, exception


@pytest.mark.parametrize("timeout", [0, -1, -0.5, 0.001])
def test_result_times_out(timeout: float):
    """A timeout of zero or less does not wait; a job that has ended answers whatever the timeout."""
    with Scheduler(1) as s:
        with occupied(s) as (job,):
            for ask in (job.result, job.exception):
                with pytest.raises(TimeoutError, match="had not ended within") as caught:
                    ask(timeout)
                assert isinstance(caught.value, concurrent.futures.TimeoutError)
                assert repr(job) in str(caught.value)
        assert job.result(None) is None
        assert job.result(timeout) is None
        assert job.exception(timeout) is None


def test_result_in_many_threads():
    """Any number of threads may wait for one job; all get the very same object, or the very same error."""
    with Scheduler(2) as s:
        gate = Gate()
        good, bad = s.submit(gate, thing := Thing()), s.submit(lambda: boom(gate()))
        joins = [in_thread(lambda: good.result(PATIENCE)) for _ in range(5)]
        errors = [in_thread(lambda: bad.exception(PATIENCE)) for _ in range(5)]
        gate.open()
        assert {id(join()) for join in joins} == {id(thing)}
        assert {id(join()) for join in errors} == {id(bad.exception())}


def test_cancel_releases_who_waits():
    """A cancel ends every wait for the job with CancelledError, and `exception()` raises it as well."""
    with Scheduler(1) as s:
        job = s.options(delay=3600).submit(nothing)
        joins = [in_thread(job.result), in_thread(job.exception), in_thread(lambda: concurrent.futures.wait([job]))]
        job.cancel()
        for join in joins[:2]:
            with pytest.raises(CancelledError):
                join()
        assert joins[2]().done == {job}


def test_traceback_does_not_grow():
    """A thousand calls of `result()` raise the same error with a traceback of the same length, the task's own last."""
    with Scheduler(1) as s:
        job = s.submit(boom)
        lengths, names = set(), set()
        error = job.exception(PATIENCE)
        for _ in range(1000):
            with pytest.raises(Boom) as caught:
                job.result()
            assert caught.value is error
            lengths.add(len(caught.traceback))
            names.add(caught.traceback[-1].name)
        assert len(lengths) == 1
        assert names == {"boom"}


def test_an_error_keeps_its_cause_and_names_no_frame_of_ours():
    """The traceback begins in the task: cause, context and notes are the task's own."""

    def task() -> None:
        try:
            boom("first")
        except Boom as error:
            raise LookupError("second") from error

    with Scheduler(1) as s:
        error = s.submit(task).exception(PATIENCE)
        assert error is not None
        assert isinstance(error.__cause__, Boom)
        assert error.__traceback__ is not None
        assert error.__traceback__.tb_frame.f_code.co_name == "task"
        assert not hasattr(error, "__notes__")


# ---------------------------------------------------------------------- callbacks


def test_callbacks_run_in_order_once_with_the_job():
    """Callbacks run in the order they were added, once, with the ended job; one that is added later runs at once."""
    told: list[Any] = []
    with Scheduler(1) as s:
        with occupied(s):
            job = s.submit(abs, -1)
            for number in range(5):
                job.add_done_callback(lambda job, number=number: told.append((number, job.result(0))))
        s.submit(nothing).result(PATIENCE)
        assert told == [(number, 1) for number in range(5)]
        here = []
        job.add_done_callback(lambda job: here.append((job, threading.get_ident())))
        assert here == [(job, threading.get_ident())]
    assert len(told) == 5


@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "claimed"])
def test_callbacks_see_the_end(end: str):
    """In a callback the job has ended, whichever way it went."""
    seen: list[Any] = []
    with Scheduler(1) as s:
        with occupied(s):
            job: Job[Any] = s.submit(boom if end == "failed" else nothing)
            job.add_done_callback(lambda job: seen.append((job.done(), job.running(), job.status)))
            if end == "cancelled":
                assert job.cancel()
            if end == "claimed":
                assert job.claim()
                job.set_result(None)
        s.submit(nothing).result(PATIENCE)
    status = {"failed": JobStatus.FAILED, "cancelled": JobStatus.CANCELLED}.get(end, JobStatus.DONE)
    assert seen == [(True, False, status)]


def test_callback_may_use_the_scheduler():
    """A callback may submit, cancel, add callbacks and ask for statistics: no lock is held."""
    said: list[Any] = []
    with Scheduler(1) as s:

        def callback(job: Future[Any]) -> None:
            follower = s.submit(abs, -7)
            s.options(delay=3600).submit(nothing).cancel()
            job.add_done_callback(lambda job: said.append(s.stats().cancelled))
            said.append(follower)

        s.submit(nothing).add_done_callback(callback)
        assert s.wait_idle(PATIENCE)
    assert said[0] == 1
    assert said[1].result(0) == 7


# ---------------------------------------------------------------------- what users may not do


@pytest.mark.parametrize("status", ["delayed", "queued", "running", "done", "failed", "cancelled"])
def test_a_job_is_settled_by_its_scheduler_alone(status: str):
    """`set_result` and its kin raise InvalidStateError for who has not claimed the job, and change nothing."""
    with Scheduler(1) as s:
        with occupied(s) as (running,):
            queued: Job[Any] = s.submit(boom if status == "failed" else nothing)
            delayed = s.options(delay=3600).submit(nothing)
            job = {"running": running, "delayed": delayed}.get(status, queued)
            if status == "cancelled":
                job.cancel()
            assert_not_settled(job)
            delayed.cancel()
        concurrent.futures.wait([job], PATIENCE)
        assert_not_settled(job)


def assert_not_settled(job: Job[Any]) -> None:
    before = job.info()
    for settle in (
        lambda: job.set_result(1),
        lambda: job.set_exception(Boom()),
        job.set_running_or_notify_cancel,
    ):
        with pytest.raises(concurrent.futures.InvalidStateError):
            settle()
    assert job.info() == before


def test_job_and_scheduler_cannot_be_copied_or_pickled():
    """Copying or pickling a job, a scheduler or what holds one is a TypeError with our words."""
    with Scheduler(1) as s:
        job = s.submit(abs, -1)
        job.result(PATIENCE)
        for thing, words in ((job, "a Job cannot be"), (s, "a Scheduler cannot be")):
            for take in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: pickle.dumps([one], 0)):
                with pytest.raises(TypeError, match=words):
                    take(thing)
        assert copy.copy([job]) == [job]


def test_attributes_are_read_only():
    """What describes a job cannot be assigned, and a job takes no new attributes of its own slots' names."""
    with Scheduler(1) as s:
        job = s.submit(abs, -1)
        for name in ("id", "name", "status", "priority", "seq", "submitted_at", "run_at", "attempts"):
            with pytest.raises(AttributeError):
                setattr(job, name, 1)
        assert isinstance(job, Future)
        assert job in {job}
        assert job == job


def test_repr_shows_id_name_and_status():
    """A job's repr shows its id, its name and where it stands."""
    with Scheduler(1) as s:
        job = s.options(id="mail-7", name="send mail", delay=3600).submit(nothing)
        assert repr(job) == "<Job 'mail-7' send mail PENDING>"
        job.cancel()
        assert repr(job) == "<Job 'mail-7' send mail CANCELLED>"
        plain = s.submit(boom)
        plain.exception(PATIENCE)
        assert repr(plain) == f"<Job {plain.seq} boom FAILED>"
        assert "open, 0 pending, 0 running" in repr(s)
    assert "closed" in repr(s)


# ---------------------------------------------------------------------- claim


def test_claim_makes_the_caller_the_owner():
    """Whoever claims a pending job settles it, once; the scheduler never runs it, and the slot is not used."""
    ran: list[int] = []
    with Scheduler(1) as s:
        with occupied(s):
            jobs = [s.submit(ran.append, number) for number in range(3)]
            delayed = s.options(delay=3600, retries=5).submit(ran.append, 3)
            for job in (jobs[1], delayed):
                assert job.claim() is True
                assert job.claim() is False
                assert job.running()
                assert job.attempts == 1
                assert job.cancel() is False
            assert (s.stats().running, s.stats().pending) == (3, 2)
            s.check()
            jobs[1].set_result("mine")
            delayed.set_exception(error := Boom("mine"))
            for settle in (lambda: jobs[1].set_result(2), lambda: delayed.set_exception(Boom())):
                with pytest.raises(concurrent.futures.InvalidStateError):
                    settle()
            with pytest.raises(TypeError, match="exception must be"):
                delayed.set_exception(None)
        assert jobs[1].result(0) == "mine"
        assert delayed.exception(0) is error
        assert s.wait_idle(PATIENCE)
    assert ran == [0, 2]
    assert jobs[0].claim() is False


def test_claim_against_workers_has_one_winner():
    """Claims from outside and from workers share the jobs without loss and without a job run twice."""
    ran: list[int] = []
    claimed = 0
    with Scheduler(2) as s:
        jobs = [s.submit(ran.append, number) for number in range(2000)]
        for number, job in reversed(list(enumerate(jobs))):
            if job.claim():
                claimed += 1
                ran.append(number)
                job.set_result(None)
        assert s.wait_idle(PATIENCE)
        assert s.stats().done == 2000
    assert sorted(ran) == list(range(2000))


def test_shutdown_waits_for_no_claimed_job():
    """A claimed job that nobody settles is named in the report and holds no worker."""
    s = Scheduler(1)
    job = s.options(delay=3600).submit(nothing)
    assert job.claim()
    report = s.shutdown(timeout=PATIENCE)
    assert [info.id for info in report.running] == [job.id]
    assert s.stats().workers == 0
    job.set_result(None)
    assert s.shutdown()


# ---------------------------------------------------------------------- asking a job to stop


def test_request_cancel_in_each_state():
    """It cancels what is pending, asks what runs, and says False of what has ended."""
    with Scheduler(1) as s:
        with occupied(s) as (running,):
            pending = s.submit(nothing)
            assert pending.request_cancel() is True
            assert pending.cancelled()
            assert running.cancel_requested is False
            assert running.request_cancel() is True
            assert running.request_cancel() is True
            assert running.cancel_requested is True
            assert running.running()
        assert running.result(PATIENCE) is None
        assert running.request_cancel() is False
        assert pending.request_cancel() is False


def test_check_cancelled_ends_the_job_cancelled():
    """A task that lets `check_cancelled` out ends CANCELLED, is not retried and is no failure."""
    gate, told = Gate(), []

    def task() -> None:
        job = current_job()
        assert job is not None
        job.check_cancelled()
        gate()
        job.check_cancelled()

    with Scheduler(1, on_error=lambda *args: told.append(args)) as s:
        job = s.options(retries=5, backoff=0).submit(task)
        gate.await_start()
        job.request_cancel()
        gate.open()
        with pytest.raises(CancelledError):
            job.result(PATIENCE)
        assert (job.status, job.attempts, told) == (JobStatus.CANCELLED, 1, [])
        assert (s.stats().cancelled, s.stats().failed) == (1, 0)


def test_a_stop_nobody_asked_for_is_a_failure():
    """A task that raises JobStoppedError by itself, unasked, has failed."""

    def task() -> None:
        raise JobStoppedError("by myself")

    with Scheduler(1) as s:
        job = s.submit(task)
        assert isinstance(job.exception(PATIENCE), JobStoppedError)
        assert job.status is JobStatus.FAILED


def test_sleep_is_on_the_schedulers_clock_and_woken_by_a_request():
    """`sleep` ends with True when the scheduler's clock has moved on, with False as soon as a stop is requested."""
    clock, answers = FakeClock(), []

    def task() -> None:
        job = current_job()
        assert job is not None
        answers.append((job.sleep(10), clock.now()))
        answers.append((job.sleep(0), clock.now()))
        answers.append((job.sleep(3600), clock.now()))
        answers.append((job.sleep(3600), clock.now()))

    with Scheduler(1, clock=clock) as s:
        job = s.submit(task)
        clock.advance(9)
        assert answers == []
        clock.advance(5)
        assert answers == [(True, 10.0), (True, 10.0)]
        job.request_cancel()
        clock.advance(0)
        assert answers[2:] == [(False, 14.0), (False, 14.0)]
        job.result(PATIENCE)
        with pytest.raises(RuntimeError, match="inside its own task only"):
            job.sleep(1)


def test_sleep_on_the_real_clock_is_woken():
    """A task asleep for an hour ends at once when it is asked to stop."""
    with Scheduler(1) as s:
        asleep = threading.Event()

        def task() -> bool:
            asleep.set()
            job = current_job()
            assert job is not None
            return job.sleep(3600)

        job = s.submit(task)
        assert asleep.wait(PATIENCE)
        assert job.request_cancel()
        assert job.result(PATIENCE) is False
        assert s.submit(lambda: current_job().sleep(0.001)).result(PATIENCE) is True  # type: ignore[union-attr]


def test_current_job():
    """A task finds its own job, its callback none, and a thread that runs no task none."""
    seen: list[Any] = []
    assert current_job() is None
    with Scheduler(1) as s:
        job = s.submit(current_job)
        job.add_done_callback(lambda job: seen.append(current_job()))
        assert job.result(PATIENCE) is job
        with Scheduler(1) as other:
            inner = s.submit(lambda: (current_job(), other.submit(current_job).result(PATIENCE)))
            own, others = inner.result(PATIENCE)
            assert own is inner
            assert others is not inner
    assert current_job() is None


# ---------------------------------------------------------------------- failures nobody looked at


def settle_failed(s: Scheduler, clock: FakeClock, **options: Any) -> Job[Any]:
    job = s.options(**options).submit(boom)
    clock.advance(10)
    assert job.done()
    return job


def test_a_failure_nobody_looked_at_is_logged_once():
    """A failed job that is dropped unseen is logged at ERROR with id, name, attempts and traceback, exactly once."""
    clock = FakeClock()
    with logged() as log, Scheduler(1, clock=clock) as s:
        job = settle_failed(s, clock, id="lost", name="a lost one", retries=2, backoff=1)
        gone = end_of(job)
        assert log.of("ERROR") == []
        del job
        assert gone.wait(PATIENCE)
        (text,) = log.of("ERROR")
        assert "'lost' (a lost one) failed after 3 attempt" in text
        assert "Boom: boom" in text
        assert "Traceback" in text
        assert "in boom" in text


LOOKS: dict[str, Any] = {
    "result": lambda job: look_at_result(job),
    "exception": lambda job: job.exception(),
    "callback": lambda job: job.add_done_callback(lambda job: None),
    "wait": lambda job: concurrent.futures.wait([job]),
    "as_completed": lambda job: list(concurrent.futures.as_completed([job])),
    "wrap_future": lambda job: asyncio.run(look_on_a_loop(job)),
}


def look_at_result(job: Job[Any]) -> None:
    with pytest.raises(Boom):
        job.result()


async def look_on_a_loop(job: Job[Any]) -> None:
    await asyncio.gather(asyncio.wrap_future(job), return_exceptions=True)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("moment", ["after", "before"])
def test_a_failure_somebody_looked_at_is_not_logged(look: str, moment: str):
    """Each way to ask for the outcome, before the end or after it, keeps the failure out of the log."""
    clock = FakeClock()
    with logged() as log, Scheduler(1, clock=clock) as s:
        if moment == "after":
            job = settle_failed(s, clock)
            LOOKS[look](job)
        else:
            job = s.options(delay=1).submit(boom)
            if look == "callback":
                LOOKS[look](job)
                clock.advance(1)
            else:
                join = in_thread(lambda job=job: LOOKS[look](job))
                clock.advance(1)
                join()
                del join
        gone = end_of(job)
        del job
        gc.collect()
        assert gone.wait(PATIENCE)
    assert log.of("ERROR") == []


def test_on_error_gets_every_failed_job_once():
    """`on_error` is called once per FAILED job, after its last attempt, looked at or not; never for other ends."""
    calls: list[tuple[Any, ...]] = []
    clock = FakeClock()
    with Scheduler(1, clock=clock, on_error=lambda *args: calls.append(args)) as s:
        retried = s.options(retries=2, backoff=1).submit(boom)
        s.submit(nothing)
        s.options(delay=9).submit(boom).cancel()
        claimed = s.options(delay=9).submit(nothing)
        claimed.claim()
        claimed.set_exception(error := Boom("set"))
        assert calls == [(claimed, claimed.exception())] == [(claimed, error)]
        clock.advance(10)
        assert calls[1:] == [(retried, retried.exception())]


# ---------------------------------------------------------------------- context


VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="default")


@pytest.mark.parametrize("kwargs", [{}, {"a": 1}, {"a": 1, "b": 2}], ids=len)
@pytest.mark.parametrize("args", [(), ((),), (None,), (1, 2), (1, 2, 3)], ids=repr)
def test_a_task_gets_what_was_submitted(args: tuple[Any, ...], kwargs: dict[str, Any]):
    """Each number of arguments reaches the task as it was given, by submit and by map."""
    with Scheduler(1) as scheduler:
        assert scheduler.submit(lambda *given, **named: (given, named), *args, **kwargs).result() == (args, kwargs)
        if args:
            assert list(scheduler.map(lambda *given: given, *[[one] for one in args])) == [args]


def test_context_of_the_submitter():
    """A task sees the variables as they were at its submission, sets its own, and leaks none to the next."""
    clock = FakeClock()

    def task() -> str:
        seen = VAR.get()
        VAR.set("leaked")
        return seen

    def main() -> None:
        VAR.set("one")
        with Scheduler(1, clock=clock) as s:
            first = s.options(delay=1).submit(task)
            VAR.set("two")
            second = s.options(delay=1).submit(task)
            empty = s.options(delay=1, context=False).submit(task)
            clock.advance(1)
            assert [job.result(PATIENCE) for job in (first, second, empty)] == ["one", "two", "default"]
        assert VAR.get() == "two"

    contextvars.copy_context().run(main)


@pytest.mark.parametrize("context", [True, False])
def test_each_attempt_has_a_context_of_its_own(context: bool):
    """No attempt sees what an earlier one set."""
    seen: list[str] = []

    def task() -> None:
        seen.append(VAR.get())
        VAR.set(f"attempt {len(seen)}")
        boom()

    def main() -> None:
        VAR.set("submitted")
        clock = FakeClock()
        with Scheduler(1, clock=clock) as s:
            job = s.options(retries=2, backoff=1, context=context).submit(task)
            clock.advance(10)
            assert isinstance(job.exception(PATIENCE), Boom)

    contextvars.copy_context().run(main)
    assert seen == ["submitted" if context else "default"] * 3


def test_letting_go_of_a_watched_job_runs_no_code_of_ours():
    """What `wait` locked it can let go of in C code alone: Ctrl-C in between would leave a worker waiting for ever."""
    ours: list[str] = []

    def trace(frame: FrameType, event: str, arg: object) -> None:
        if "/threadsched/" in frame.f_code.co_filename.replace("\\", "/"):
            ours.append(frame.f_code.co_qualname)

    scheduler = StepScheduler()
    job = scheduler.submit(int)
    job._condition.acquire()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job._condition.release()
    finally:
        sys.settrace(before)
    assert ours == []
    scheduler.tick()
    assert concurrent.futures.wait([job], timeout=0).done == {job}

"""The catalogue's core scenarios, second half: shutdown, waiting, errors, interrupts, retries.

See test_scenarios.py, which also checks that every scenario has its test.
"""

import concurrent.futures
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, in_thread, interruptible, logged, occupied
from tests.support import run_script
from threadsched import JobStatus, Retry, Scheduler, SchedulerClosedError
from threadsched._core import Core
from threadsched.testing import FakeClock


def nothing() -> None:
    pass


class Flaky:
    """A task that raises the given errors, one a call, and returns its arguments after that."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if self.errors:
            raise self.errors.pop(0)
        return args


# ---------------------------------------------------------------------- shutdown


@pytest.mark.parametrize("mode", [{}, {"drain": "due"}, {"cancel_futures": True}])
def test_shd_01_submissions_are_refused(mode: dict[str, Any]):
    """After any shutdown every way to submit is refused, at once and later; the accepted job goes on to its result."""
    s = Scheduler(1)
    delayed = s.options(delay=1)
    with occupied(s) as (running,):
        s.shutdown(wait=False, **mode)
        for _ in range(2):
            for submit in (
                lambda: s.submit(abs, -1),
                lambda: delayed.submit(abs, -1),
                lambda: s.map(abs, [1]),
            ):
                with pytest.raises(SchedulerClosedError, match="cannot schedule new futures"):
                    submit()
    assert running.result(PATIENCE) is None
    assert s.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        s.submit(nothing)


def test_shd_02_shut_down_is_not_ended():
    """Shutting down without waiting closes the door at once; the report is true only when all has ended."""
    s = Scheduler(1)
    assert not s.closed
    with occupied(s) as (job,):
        report = s.shutdown(wait=False)
        assert s.closed
        assert not report
        assert [info.id for info in report.running] == [job.id]
    assert s.shutdown()
    assert s.closed
    assert s.stats().workers == 0


def test_shd_03_accepted_jobs_still_run():
    """A graceful shutdown with all four workers busy still runs the job that waits."""
    s = Scheduler(4)
    with occupied(s, 4):
        waiting = s.submit(abs, -9)
        s.shutdown(wait=False)
        assert waiting.status is JobStatus.PENDING
    assert s.shutdown()
    assert waiting.result(0) == 9


@pytest.mark.parametrize(("drain", "status"), [("all", "DONE"), ("due", "CANCELLED"), ("none", "CANCELLED")])
def test_shd_04_delayed_jobs_at_a_shutdown(drain: Any, status: str):
    """By default a delayed job runs at its time before the end; "due" and "none" cancel it at once."""
    clock = FakeClock()
    s = Scheduler(1, clock=clock)
    job = s.options(delay=100).submit(clock.now)
    s.shutdown(wait=False, drain=drain)
    if drain == "all":
        assert job.status is JobStatus.PENDING
        clock.advance(99)
        assert job.status is JobStatus.PENDING
        clock.advance(1)
    assert job.status.name == status
    assert s.shutdown()
    if drain == "all":
        assert job.result(0) == 100.0


def test_shd_06_a_shutdown_that_drops_the_queue():
    """With two of five running, exactly those two ever run; the other three end cancelled and are reported."""
    s = Scheduler(2)
    with occupied(s, 2) as running:
        ran: list[int] = []
        waiting = [s.submit(ran.append, number) for number in range(3)]
        report = s.shutdown(wait=False, cancel_futures=True)
        assert s.stats().pending == 0
        assert (report.cancelled, report.pending, len(report.running)) == (3, 0, 2)
        assert {job.status for job in waiting} == {JobStatus.CANCELLED}
    report = s.shutdown()
    assert report
    assert (report.done, report.cancelled) == (2, 3)
    assert [job.result(0) for job in running] == [None, None]
    assert ran == []


def test_shd_07_only_far_off_jobs():
    """A dropping shutdown of nine far-off jobs returns with all nine cancelled, not left without an end."""
    s = Scheduler(2)
    ran: list[int] = []
    jobs = [s.options(delay=9).submit(ran.append, number) for number in range(9)]
    report = s.shutdown(drain="none")
    assert report
    assert report.cancelled == 9
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result(0)
    assert ran == []


def test_shd_09_shutdown_from_a_task():
    """A task may shut its own scheduler down: it ends normally, and who waits for the stop returns, now and later."""
    s = Scheduler(2)
    other = Gate()
    s.submit(other)
    other.await_start()
    report = s.submit(s.shutdown).result(PATIENCE)
    assert not report
    assert len(report.running) == 2  # the one that asked and the one beside it
    join = in_thread(s.shutdown)
    other.open()
    assert join()
    assert s.shutdown()


@pytest.mark.subprocess
def test_shd_10_never_closed():
    """A program that never closes its scheduler ends by itself, after what was due, without a word on stderr."""
    done = run_script(
        """
        import os
        from threadsched import Scheduler
        s = Scheduler(2)
        for number in range(20):
            s.submit(os.write, 1, b"%d\\n" % number)
        """
    )
    assert sorted(map(int, done.stdout.split())) == list(range(20))
    assert done.stderr == ""


@pytest.mark.subprocess
def test_shd_11_timers_do_not_hold_the_process():
    """Jobs that are due in an hour, first starts and retries alike, do not keep an ending process."""
    done = run_script(
        """
        from threadsched import Scheduler
        s = Scheduler(1)
        far = s.options(delay=3600).submit(print, "never")
        failed = s.options(retries=1, backoff=3600).submit(int, "x")
        s.submit(print, "now").result()
        """,
        timeout=10,
    )
    assert done.stdout == "now\n"
    assert "Traceback" not in done.stderr or "ValueError" in done.stderr


def test_shd_12_the_schedulers_own_failure(monkeypatch: pytest.MonkeyPatch):
    """If the bookkeeping itself raises once, it is logged, the worker is replaced, and no future is left hanging."""
    s = Scheduler(1)
    real, calls = Core.turn, []

    def turn(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise ZeroDivisionError("a fault of ours")
        return real(*args)

    with logged() as log:
        with occupied(s):
            monkeypatch.setattr(Core, "turn", turn)
            jobs = [s.submit(abs, -number) for number in range(5)]
        assert [job.result(PATIENCE) for job in jobs] == [0, 1, 2, 3, 4]
        assert s.stats().replaced_workers == 1
        assert s.stats().workers == 1
        s.check()
        assert s.shutdown()
    assert any("a fault of ours" in text for text in log.of("ERROR"))


def test_shd_13_twice():
    """A second shutdown, waiting or not, does nothing and raises nothing."""
    s = Scheduler(1)
    s.submit(nothing)
    first = s.shutdown()
    assert first
    assert s.shutdown(wait=False) == s.shutdown() == s.shutdown(drain="none", timeout=0) == first
    never_used = Scheduler(1)
    assert never_used.shutdown() == never_used.shutdown()


# ---------------------------------------------------------------------- waiting, errors


def test_tim_05_result_without_waiting():
    """Asking with a timeout of zero answers at once; the task goes on and its result comes later."""
    with Scheduler(1) as s:
        with occupied(s) as (job,):
            with pytest.raises(TimeoutError, match="had not ended within 0 s"):
                job.result(0)
            with pytest.raises(TimeoutError):
                job.exception(timeout=0)
            assert job.running()
        assert job.result(PATIENCE) is None


def test_tim_06_bulk_with_a_limit():
    """`map` gives up at its limit, keeps what came before and cancels what has not started; `wait` only reports.

    Where the peer interrupts the blocked task, a thread cannot be: it stays running and is named as not done.
    """
    with Scheduler(2) as s:
        gate = Gate()
        results = s.map(lambda task: task(), [lambda: 1, gate, lambda: 3], timeout=0.05)
        assert next(results) == 1
        with pytest.raises(TimeoutError):
            next(results)
        gate.open()
        gate = Gate()
        jobs = [s.submit(abs, -1), s.submit(gate), s.submit(abs, -3)]
        gate.await_start()
        jobs[0].result(PATIENCE)
        jobs[2].result(PATIENCE)
        done, not_done = concurrent.futures.wait(jobs, timeout=0.01)
        assert (done, not_done) == ({jobs[0], jobs[2]}, {jobs[1]})
        gate.open()
        assert concurrent.futures.wait(jobs, PATIENCE).not_done == set()


def test_err_01_the_error_reaches_its_future():
    """`result()` raises the task's own error, `exception()` is it, and no value stands beside it."""
    error = KeyError("mine")
    with Scheduler(1) as s:
        job = s.submit(Flaky(error))
        with pytest.raises(KeyError) as caught:
            job.result(PATIENCE)
        assert caught.value is error is job.exception()
        assert job.status is JobStatus.FAILED
        assert job.info().error == "KeyError: 'mine'"


# ---------------------------------------------------------------------- interrupts


def test_int_01_the_waiter_is_interrupted():
    """Ctrl-C ends the wait of the main thread; the task goes on and the scheduler stays usable."""
    with Scheduler(1) as s, interruptible() as strike:
        waiting, gate = threading.Event(), Gate()

        def task() -> str:
            assert waiting.wait(PATIENCE)
            strike()
            return gate("unharmed")

        job = s.submit(task)
        with pytest.raises(KeyboardInterrupt):
            waiting.set()
            job.result(PATIENCE)
        assert job.running()
        gate.open()
        assert job.result(PATIENCE) == "unharmed"
        assert s.submit(abs, -1).result(PATIENCE) == 1
        s.check()


def test_int_03_tasks_that_ignore_the_request():
    """A dropping shutdown has not ended while tasks that ignore the request to stop run; their results are intact."""
    s = Scheduler(2)
    with occupied(s, 2) as jobs:
        assert all(job.request_cancel() for job in jobs)
        report = s.shutdown(drain="none", timeout=0.01)
        assert not report
        assert {info.id for info in report.running} == {job.id for job in jobs}
        assert all("__call__" in (info.stack or "") for info in report.running)
    assert s.shutdown()
    assert [job.result(0) for job in jobs] == [None, None]
    assert {job.status for job in jobs} == {JobStatus.DONE}


def test_int_04_interrupted_during_start(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while the second of three workers starts: the next call completes the pool, and nothing hangs."""
    real, calls = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        calls.append(thread)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(thread)

    s = Scheduler(3)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        s.submit(nothing)
    assert s.stats().submitted == 0
    meeting = threading.Barrier(3)
    jobs = [s.submit(meeting.wait, PATIENCE) for _ in range(3)]
    assert sorted(job.result(PATIENCE) for job in jobs) == [0, 1, 2]
    assert s.stats().workers == 3
    assert s.shutdown()


def test_int_04_interrupted_during_close():
    """Ctrl-C during the join leaves a closed scheduler whose jobs end and which can be shut down again."""
    s = Scheduler(1)
    gate, closing = Gate(), threading.Event()
    with interruptible() as strike:

        def task() -> str:
            gate.started.set()
            assert closing.wait(PATIENCE)
            strike()
            return gate("intact")

        job = s.submit(task)
        gate.await_start()
        waiting = s.submit(nothing)
        waiting.add_done_callback(lambda _: closing.set())
        with pytest.raises(KeyboardInterrupt):
            s.shutdown(drain="none")
    assert s.closed
    assert waiting.cancelled()
    gate.open()
    assert s.shutdown()
    assert job.result(0) == "intact"


def test_int_05_threads_not_available(monkeypatch: pytest.MonkeyPatch):
    """Where no thread can be started, `start` and `submit` say so and nothing stays queued; later it works."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    s = Scheduler(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            s.start()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            s.options(id="a").submit(nothing)
        assert (s.stats().submitted, s.stats().workers) == (0, 0)
    assert s.options(id="a").submit(abs, -1).result(PATIENCE) == 1
    assert s.shutdown()


# ---------------------------------------------------------------------- retries


def test_rty_01_fails_then_works():
    """Three failures, then a value: four calls with the same arguments, callbacks once and at the end."""
    clock = FakeClock()
    task, told = Flaky(OSError("a"), OSError("b"), OSError("c")), []
    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=9, backoff=1).submit(task, 1, key="word")
        job.add_done_callback(lambda job: told.append((job.status, job.attempts)))
        clock.advance(100)
        assert job.result(PATIENCE) == (1,)
        assert job.exception() is None
    assert task.calls == [((1,), {"key": "word"})] * 4
    assert told == [(JobStatus.DONE, 4)]


def test_rty_02_never_works():
    """With nine retries there are ten calls; the last error is the outcome, and its notes tell of the others."""
    clock = FakeClock()
    errors = [OSError(f"failure {number}") for number in range(20)]
    task, told = Flaky(*errors), []
    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=9, backoff=0.001).submit(task)
        job.add_done_callback(told.append)
        clock.advance(10)
        assert job.exception(PATIENCE) is errors[9]
        assert len(task.calls) == job.attempts == 10
        assert told == [job]
        notes = "\n".join(errors[9].__notes__)
        assert all(f"failure {number}" in notes for number in range(9))
        assert s.stats().retries == 9


def test_rty_03_only_some_errors():
    """Only the named types are retried: two of those and another one make three calls."""
    clock = FakeClock()
    task = Flaky(ValueError("1"), ValueError("2"), KeyError("3"), ValueError("4"))
    with Scheduler(1, clock=clock) as s:
        job = s.options(retry=Retry(10, backoff=1, on=(ValueError, OSError))).submit(task)
        clock.advance(100)
        assert isinstance(job.exception(PATIENCE), KeyError)
    assert len(task.calls) == 3


def test_rty_05_cancel_during_a_run():
    """Cancelling the second run answers False, yet there is no third; the second run's error is the outcome."""
    clock = FakeClock()
    started, finish, calls = threading.Event(), threading.Event(), []

    def task() -> None:
        calls.append(1)
        if len(calls) == 2:
            started.set()
            assert finish.wait(PATIENCE)
        raise ValueError(f"run {len(calls)}")

    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=10, backoff=1).submit(task)
        clock.advance(0)
        clock.advance(1, wait=False)
        assert started.wait(PATIENCE)
        assert job.cancel() is False
        finish.set()
        clock.advance(1000)
        with pytest.raises(ValueError, match="run 2"):
            job.result(PATIENCE)
    assert len(calls) == 2


def test_rty_06_cancel_during_the_decision():
    """A cancel that comes while the policy is asked answers False and is not lost: no further call."""
    asked, answer, calls = threading.Event(), threading.Event(), []

    def give_up(error: Exception) -> bool:
        asked.set()
        assert answer.wait(PATIENCE)
        return False

    def task() -> None:
        calls.append(1)
        raise ValueError("the outcome")

    with Scheduler(1) as s:
        job = s.options(retry=Retry(10, backoff=0, give_up=give_up)).submit(task)
        assert asked.wait(PATIENCE)
        assert s.cancel(job.id) is False
        assert job.cancel() is False
        answer.set()
        with pytest.raises(ValueError, match="the outcome"):
            job.result(PATIENCE)
        assert s.wait_idle(PATIENCE)
    assert len(calls) == 1


def test_rty_07_cancel_between_runs():
    """Cancelling a job in back-off answers True each time, from its callback and after too; it never runs again."""
    clock = FakeClock()
    task, answers = Flaky(*[OSError("again")] * 5), []
    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=5, backoff=10).submit(task)
        clock.advance(0)
        assert (job.status, job.attempts) == (JobStatus.PENDING, 1)
        job.add_done_callback(lambda job: answers.append(job.cancel()))
        answers += [job.cancel(), job.cancel()]
        clock.advance(1000)
        assert answers == [True, True, True]
        assert job.cancelled()
    assert len(task.calls) == 1


def test_rty_08_back_off_does_not_hold_up_others():
    """Two jobs in capped exponential back-off run interleaved in due order on one worker."""
    clock = FakeClock()
    runs: list[tuple[str, float]] = []

    def task(name: str) -> None:
        runs.append((name, clock.now()))
        raise OSError(name)

    with Scheduler(1, clock=clock) as s:
        patient = s.options(retry=Retry(5, backoff=1, max_backoff=10))
        first = patient.submit(task, "a")
        clock.advance(5)
        second = patient.submit(task, "b")
        clock.advance(100)
        assert first.exception(PATIENCE)
        assert second.exception(PATIENCE)
    a, b = [0, 1, 3, 7, 15, 25], [5, 6, 8, 12, 20, 30]
    assert runs == sorted([("a", at) for at in a] + [("b", at) for at in b], key=lambda run: run[1])


def test_rty_09_a_broken_policy():
    """A `give_up` that raises means no retry; its error is logged, and the task's own error is the outcome."""

    def give_up(error: Exception) -> bool:
        raise ZeroDivisionError("the policy is broken")

    task = Flaky(ValueError("the task's own"), ValueError("never"))
    with logged() as log, Scheduler(1) as s:
        job = s.options(retry=Retry(5, give_up=give_up), id="sick").submit(task)
        with pytest.raises(ValueError, match="the task's own") as caught:
            job.result(PATIENCE)
        assert any("the policy is broken" in note for note in caught.value.__notes__)
        assert s.submit(abs, -1).result(PATIENCE) == 1
    assert len(task.calls) == 1
    assert any("sick" in text and "the policy is broken" in text for text in log.of("ERROR"))

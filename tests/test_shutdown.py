"""Shutdown: three modes, their sharpening, who may call it from where, and what it reports."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.crowds import PATIENCE, Background, Gate, in_thread, together
from threadsched import JobStatus, Limit, Scheduler, SchedulerClosedError, current_job
from threadsched.testing import FakeClock

DRAINS = ("all", "due", "none")
QUEUES = ("lazy", "indexed")


class Situation:
    """One worker with a running, a ready, a delayed and a backing-off job, on a clock that stands still."""

    def __init__(self, queue: str = "lazy") -> None:
        self.clock = FakeClock()
        self.scheduler = Scheduler(1, clock=self.clock, queue=queue)  # type: ignore[arg-type]
        self.error = ValueError("the last one")
        self.failing_runs = 0
        submit = self.scheduler.options(retries=3, backoff=10, name="backoff").submit
        self.backoff = submit(self._fail)
        self.clock.advance(0)
        assert (self.backoff.status, self.backoff.attempts) == (JobStatus.PENDING, 1)
        self.gate = Gate("ran")
        self.running = self.scheduler.submit(self.gate)
        self.gate.await_start()
        self.ready = self.scheduler.submit(lambda: "ready")
        self.delayed = self.scheduler.options(delay=60).submit(lambda: self.clock.now())

    def _fail(self) -> None:
        self.failing_runs += 1
        raise self.error

    def end(self) -> None:
        self.gate.open()
        assert self.scheduler.shutdown(timeout=PATIENCE)


@pytest.fixture(params=QUEUES)
def situation(request: pytest.FixtureRequest) -> Iterator[Situation]:
    made = Situation(request.param)
    yield made
    made.gate.open()
    made.scheduler.shutdown(cancel_futures=True, timeout=PATIENCE)


def failing(error: BaseException) -> None:
    raise error


# ---------------------------------------------------------------- the three modes


def test_drain_all_runs_everything_at_its_time(situation: Situation) -> None:
    """By default the ready job runs, the delayed one at its time, and the failing one is retried to the end."""
    scheduler, clock = situation.scheduler, situation.clock
    assert not scheduler.shutdown(wait=False)
    assert [job.status for job in (situation.ready, situation.delayed, situation.backoff)] == [JobStatus.PENDING] * 3
    situation.gate.open()
    clock.advance(9)
    assert situation.ready.result(PATIENCE) == "ready"
    assert situation.failing_runs == 1
    clock.advance(50)
    assert situation.failing_runs == 3  # at 10 and at 30; the fourth is due at 70
    assert not situation.delayed.done()
    clock.advance(1)
    assert situation.delayed.result(PATIENCE) == 60.0
    clock.advance(10)
    assert situation.backoff.exception(PATIENCE) is situation.error
    report = scheduler.shutdown()
    assert (report.done, report.failed, report.cancelled, report.pending, report.running) == (3, 1, 0, 0, ())
    assert report
    assert situation.failing_runs == 4


def test_drain_due_runs_the_ready_and_gives_up_the_rest(situation: Situation) -> None:
    """Under "due" the ready job runs, the delayed one is CANCELLED, the one in backoff FAILED with its last error."""
    report = situation.scheduler.shutdown(wait=False, drain="due")
    assert not report
    assert (report.failed, report.cancelled, report.pending) == (1, 1, 1)
    assert situation.delayed.status is JobStatus.CANCELLED
    assert situation.backoff.status is JobStatus.FAILED
    assert situation.backoff.exception() is situation.error
    assert situation.ready.status is JobStatus.PENDING
    situation.end()
    assert situation.ready.result(0) == "ready"
    assert situation.running.result(0) == "ran"
    assert situation.failing_runs == 1


def test_drain_none_cancels_all_that_is_pending(situation: Situation) -> None:
    """Under "none" the ready, the delayed and the backing-off job end CANCELLED; only what runs is let finish."""
    report = situation.scheduler.shutdown(wait=False, drain="none")
    assert not report
    assert (report.cancelled, report.pending, len(report.running)) == (3, 0, 1)
    for job in (situation.ready, situation.delayed, situation.backoff):
        assert job.status is JobStatus.CANCELLED
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(0)
    situation.end()
    assert situation.running.result(0) == "ran"
    assert situation.failing_runs == 1


def test_cancel_futures_is_drain_none(situation: Situation) -> None:
    """``cancel_futures=True`` is another way to write ``drain="none"``."""
    situation.scheduler.shutdown(wait=False, cancel_futures=True)
    assert situation.ready.cancelled()
    assert situation.backoff.cancelled()
    situation.end()


@pytest.mark.parametrize("drain", DRAINS)
def test_a_running_job_that_fails_is_retried_only_under_all(drain: str) -> None:
    """A job that fails after the door was closed goes on to its next attempt under "all" and ends FAILED otherwise."""
    clock = FakeClock()
    scheduler = Scheduler(1, clock=clock)
    error = ValueError("again")
    gate = Gate(error=error)
    job = scheduler.options(retries=1, backoff=5).submit(gate)
    gate.await_start()
    scheduler.shutdown(wait=False, drain=drain)  # type: ignore[arg-type]
    gate.open()
    clock.advance(5)
    assert scheduler.shutdown(timeout=PATIENCE)
    assert job.exception(0) is error
    assert gate.runs == (2 if drain == "all" else 1)


def test_due_runs_what_is_due_though_no_worker_has_looked() -> None:
    """A delayed job whose time has come is due, even if every worker was too busy to promote it."""
    clock = FakeClock()
    scheduler = Scheduler(1, clock=clock)
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    early, late = scheduler.options(delay=1).submit(int), scheduler.options(delay=2).submit(int)
    clock.jump(1)
    scheduler.shutdown(wait=False, drain="due")
    gate.open()
    assert scheduler.shutdown(timeout=PATIENCE)
    assert early.status is JobStatus.DONE
    assert late.status is JobStatus.CANCELLED


def test_an_unknown_drain_changes_nothing() -> None:
    """An unknown mode is a ValueError and leaves the door open."""
    with Scheduler(1) as scheduler:
        with pytest.raises(ValueError, match="drain"):
            scheduler.shutdown(drain="later")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout"):
            scheduler.shutdown(timeout=float("nan"))
        assert not scheduler.closed
        assert scheduler.submit(int).result(PATIENCE) == 0


# ---------------------------------------------------------------- again, and sharper


@pytest.mark.parametrize("second", DRAINS)
@pytest.mark.parametrize("first", DRAINS)
def test_a_second_call_sharpens_and_never_softens(first: str, second: str) -> None:
    """Of two modes the more drastic holds, whichever came first."""
    situation = Situation()
    situation.scheduler.shutdown(wait=False, drain=first)  # type: ignore[arg-type]
    situation.scheduler.shutdown(wait=False, drain=second)  # type: ignore[arg-type]
    effective = DRAINS[max(DRAINS.index(first), DRAINS.index(second))]
    situation.gate.open()
    situation.clock.advance(100)
    situation.end()
    by_mode = {
        "all": (JobStatus.DONE, JobStatus.DONE),
        "due": (JobStatus.DONE, JobStatus.CANCELLED),
        "none": (JobStatus.CANCELLED, JobStatus.CANCELLED),
    }
    assert (situation.ready.status, situation.delayed.status) == by_mode[effective]
    # What a first "due" has failed stays FAILED.
    softest = {"all": JobStatus.FAILED, "due": JobStatus.FAILED, "none": JobStatus.CANCELLED}
    assert situation.backoff.status is softest[effective if first != "due" else "due"]
    situation.scheduler.check()


def test_calling_twice_gives_the_same_report() -> None:
    """A second shutdown returns at once with the same report, and so does one after ``with``."""
    with Scheduler(2) as scheduler:
        for value in range(5):
            scheduler.submit(abs, value)
        first = scheduler.shutdown()
        assert first == scheduler.shutdown()
    assert scheduler.shutdown(cancel_futures=True) == first
    assert first.done == 5
    assert scheduler.closed


def test_a_waiting_shutdown_is_cut_short_by_a_sharper_one(situation: Situation) -> None:
    """A thread that waits for delayed jobs is released when another one gives them up."""
    waiting = Background(situation.scheduler.shutdown)
    situation.gate.open()
    situation.ready.result(PATIENCE)
    assert situation.scheduler.shutdown(cancel_futures=True, timeout=PATIENCE)
    assert waiting.join()
    assert situation.delayed.cancelled()


def test_from_32_threads_with_different_modes() -> None:
    """All of 32 threads that shut down at once, with all modes, come back with a true report and every job ended."""
    scheduler = Scheduler(4)
    jobs = [scheduler.submit(int) for _ in range(100)]
    jobs += [scheduler.options(delay=3600).submit(int) for _ in range(100)]
    modes: list[Any] = [DRAINS[number % 3] for number in range(32)]
    reports = together(*[lambda mode=mode: scheduler.shutdown(drain=mode, timeout=PATIENCE) for mode in modes])
    assert all(reports)
    assert all(job.done() for job in jobs)
    assert {report.done + report.cancelled for report in reports} == {200}
    scheduler.check()


# ---------------------------------------------------------------- the report and the timeout


def test_a_timeout_bounds_the_wait_and_the_report_names_what_runs() -> None:
    """``timeout`` returns though a job runs on; the report is false and shows the job with its stack."""
    scheduler = Scheduler(1)
    gate = Gate()
    job = scheduler.options(name="stubborn").submit(gate)
    gate.await_start()
    behind = scheduler.submit(int)
    report = scheduler.shutdown(timeout=0.02)
    assert not report
    assert report.pending == 1
    (info,) = report.running
    assert (info.id, info.name, info.status, info.attempts) == (job.id, "stubborn", JobStatus.RUNNING, 1)
    assert info.worker == "threadsched_0"
    assert info.stack is not None
    assert "in __call__" in info.stack
    assert "crowds.py" in info.stack
    assert not scheduler.shutdown(timeout=0)
    gate.open()
    assert scheduler.shutdown(timeout=PATIENCE)
    assert behind.done()


def test_a_timeout_may_be_as_long_as_one_likes() -> None:
    """A timeout of centuries is no OverflowError, and returns as soon as the workers have left."""
    scheduler = Scheduler(1)
    scheduler.submit(int)
    assert scheduler.shutdown(timeout=1e12)


def test_the_report_counts_how_jobs_ended() -> None:
    """The report's counts say how many jobs are done, failed and cancelled, and are the scheduler's own."""
    scheduler = Scheduler(1)
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    for _ in range(3):
        scheduler.submit(failing, ValueError()).add_done_callback(lambda job: job.exception())
    cancelled = [scheduler.submit(int) for _ in range(4)]
    for job in cancelled:
        assert job.cancel()
    gate.open()
    report = scheduler.shutdown()
    assert (report.done, report.failed, report.cancelled, report.pending, report.running) == (1, 3, 4, 0, ())
    assert report
    stats = scheduler.stats()
    assert (stats.done, stats.failed, stats.cancelled, stats.workers) == (1, 3, 4, 0)


# ---------------------------------------------------------------- from inside


@pytest.mark.parametrize("wait", [True, False])
def test_from_inside_a_job_it_does_not_join_itself(wait: bool) -> None:
    """A job that shuts its scheduler down gets a report that names the job itself, and then ends normally."""
    scheduler = Scheduler(2)

    def stop() -> Any:
        report = scheduler.shutdown(wait=wait)
        me = current_job()
        assert me is not None
        assert [info.id for info in report.running] == [me.id]
        assert not report
        with pytest.raises(SchedulerClosedError):
            scheduler.submit(int)
        return "stopped"

    job = scheduler.submit(stop)
    assert job.result(PATIENCE) == "stopped"
    assert scheduler.shutdown(timeout=PATIENCE)


def test_two_jobs_shut_down_at_once() -> None:
    """Two jobs that meet inside ``shutdown(wait=True)`` do not wait for each other."""
    scheduler = Scheduler(2)
    barrier = threading.Barrier(2)

    def stop() -> None:
        barrier.wait(PATIENCE)
        scheduler.shutdown()
        barrier.wait(PATIENCE)

    jobs = [scheduler.submit(stop) for _ in range(2)]
    for job in jobs:
        job.result(PATIENCE)
    assert scheduler.shutdown(timeout=PATIENCE).done == 2


def test_leaving_with_inside_a_job() -> None:
    """A job that leaves the scheduler's own ``with`` closes the door and goes on."""
    scheduler = Scheduler(1)

    def stop() -> bool:
        with scheduler:
            later = scheduler.submit(int)
        return later.done()

    job = scheduler.submit(stop)
    assert job.result(PATIENCE) is False
    report = scheduler.shutdown(timeout=PATIENCE)
    assert report.done == 2


def test_a_job_of_one_scheduler_may_wait_for_another() -> None:
    """A worker of one scheduler can shut down and join another scheduler."""
    with Scheduler(1) as outer:
        inner = Scheduler(1)
        inner.submit(int)
        report = outer.submit(inner.shutdown).result(PATIENCE)
    assert report.done == 1


def test_from_a_done_callback() -> None:
    """A done-callback, which runs on a worker, may shut the scheduler down."""
    scheduler = Scheduler(2)
    gate = Gate()
    job = scheduler.submit(gate)
    told: list[Any] = []
    job.add_done_callback(lambda job: told.append(scheduler.shutdown()))
    gate.open()
    job.result(PATIENCE)
    assert scheduler.shutdown(timeout=PATIENCE)
    assert len(told) == 1


# ---------------------------------------------------------------- with


def test_leaving_with_normally_drains_all() -> None:
    """Leaving ``with`` waits for everything, retries included."""
    attempts: list[int] = []

    def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError
        return 7

    with Scheduler(1) as scheduler:
        job = scheduler.options(retries=2, backoff=0).submit(flaky)
        late = scheduler.options(delay=0.01).submit(int)
    assert job.result(0) == 7
    assert late.result(0) == 0


def test_leaving_with_by_an_exception_drains_due() -> None:
    """An exception that leaves ``with`` drains what is due, gives up the delayed jobs, and is not swallowed."""
    gate = Gate()
    with pytest.raises(KeyError), Scheduler(1) as scheduler:
        scheduler.submit(gate)
        gate.await_start()
        ready = scheduler.submit(int)
        delayed = scheduler.options(delay=3600).submit(int)
        delayed.add_done_callback(lambda job: gate.open())
        raise KeyError
    assert ready.result(0) == 0
    assert delayed.cancelled()


# ---------------------------------------------------------------- the closed door


@pytest.mark.parametrize("drain", DRAINS)
def test_submissions_are_refused_afterwards(drain: str) -> None:
    """After shutdown every way to submit raises SchedulerClosedError with the text that pools use."""
    scheduler = Scheduler(1)
    submitter = scheduler.options(delay=1, id="later")
    scheduler.shutdown(drain=drain)  # type: ignore[arg-type]
    for submit in (scheduler.submit, submitter.submit, scheduler.map):
        with pytest.raises(SchedulerClosedError, match=r"^cannot schedule new futures"):
            list(submit(int, [1]))  # type: ignore[call-overload, operator]
    with pytest.raises(RuntimeError):
        scheduler.start()
    assert scheduler.stats().submitted == 0
    assert scheduler.status_of("later") is None


def test_a_running_job_is_refused_too() -> None:
    """A job that runs on after the door was closed cannot submit."""
    scheduler = Scheduler(1)
    gate = Gate()

    def run() -> None:
        gate()
        scheduler.submit(int)

    job = scheduler.submit(run)
    gate.await_start()
    scheduler.shutdown(wait=False)
    gate.open()
    assert isinstance(job.exception(PATIENCE), SchedulerClosedError)
    assert scheduler.shutdown(timeout=PATIENCE).failed == 1


@pytest.mark.parametrize("drain", DRAINS)
def test_a_scheduler_that_never_started(drain: str) -> None:
    """Shutting down a scheduler without jobs starts no thread and reports nothing."""
    before = set(threading.enumerate())
    scheduler = Scheduler(4)
    report = scheduler.shutdown(drain=drain)  # type: ignore[arg-type]
    assert set(threading.enumerate()) == before
    assert report
    assert (report.done, report.failed, report.cancelled) == (0, 0, 0)


def test_a_started_scheduler_without_jobs() -> None:
    """Workers that never had a job leave as well."""
    scheduler = Scheduler(4)
    scheduler.start()
    assert scheduler.shutdown(timeout=PATIENCE)
    assert scheduler.stats().workers == 0


def test_64_threads_submit_against_shutdown() -> None:
    """Each of 64 threads that submit while the door closes gets SchedulerClosedError or a job that ends."""
    for drain in DRAINS:
        scheduler = Scheduler(4)
        closed: list[int] = []
        flowing = threading.Event()

        def produce(
            scheduler: Scheduler = scheduler, closed: list[int] = closed, flowing: threading.Event = flowing
        ) -> list[Any]:
            jobs = []
            with contextlib.suppress(SchedulerClosedError):
                while True:
                    jobs.append(scheduler.submit(int))
                    if len(jobs) == 20:
                        flowing.set()
            closed.append(1)
            return jobs

        def stop(scheduler: Scheduler = scheduler, drain: Any = drain, flowing: threading.Event = flowing) -> Any:
            assert flowing.wait(PATIENCE)
            return scheduler.shutdown(drain=drain, timeout=PATIENCE)

        *produced, report = together(*[produce] * 64, stop)
        assert report
        assert len(closed) == 64
        jobs = [job for batch in produced for job in batch]
        assert len(jobs) >= 20
        assert all(job.done() for job in jobs)
        assert report.done + report.cancelled == len(jobs)
        scheduler.check()


# ---------------------------------------------------------------- who waits is told


@pytest.mark.parametrize("drain", ["due", "none"])
def test_everybody_who_waits_is_told(drain: str) -> None:
    """``result``, ``wait``, ``as_completed`` and ``wait_idle`` come back when shutdown gives the jobs up."""
    scheduler = Scheduler(2)
    delayed = [scheduler.options(delay=3600).submit(int) for _ in range(8)]
    ready = threading.Barrier(5)

    def result() -> Any:
        ready.wait(PATIENCE)
        with pytest.raises(concurrent.futures.CancelledError):
            delayed[0].result(PATIENCE)

    def exception() -> Any:
        ready.wait(PATIENCE)
        with pytest.raises(concurrent.futures.CancelledError):
            delayed[1].exception(PATIENCE)

    def wait() -> Any:
        ready.wait(PATIENCE)
        return len(concurrent.futures.wait(delayed, PATIENCE).done)

    def as_completed() -> Any:
        ready.wait(PATIENCE)
        return len({id(job) for job in concurrent.futures.as_completed(delayed, PATIENCE)})

    waiting = [Background(action) for action in (result, exception, wait, as_completed)]
    idle = Background(lambda: scheduler.wait_idle(PATIENCE))
    ready.wait(PATIENCE)
    assert scheduler.shutdown(drain=drain, timeout=PATIENCE)  # type: ignore[arg-type]
    assert [one.join() for one in waiting] == [None, None, 8, 8]
    assert idle.join() is True


def test_sleepers_wake_at_once_though_jobs_are_due_in_an_hour() -> None:
    """Workers that sleep towards a job due in an hour leave when it is given up, without waiting for its time."""
    scheduler = Scheduler(4)
    job = scheduler.options(delay=3600).submit(int)
    assert scheduler.shutdown(drain="due", timeout=PATIENCE)
    assert job.cancelled()
    assert scheduler.stats().workers == 0


def test_a_delayed_job_cancelled_by_hand_ends_a_waiting_shutdown() -> None:
    """A shutdown that waits for a job due in an hour returns when that job is cancelled."""
    scheduler = Scheduler(2)
    job = scheduler.options(delay=3600).submit(int)
    waiting = Background(scheduler.shutdown)
    assert job.cancel()
    assert waiting.join().cancelled == 1


@pytest.mark.parametrize("drain", DRAINS)
def test_callbacks_run_once(drain: str) -> None:
    """Each done-callback runs once, after the job's end is visible, whoever ended the job."""
    scheduler = Scheduler(2)
    told: list[Any] = []
    jobs = [scheduler.options(delay=0 if number % 2 else 0.001).submit(int) for number in range(200)]
    for job in jobs:
        job.add_done_callback(lambda job: told.append((job, job.done())))
    together(*[lambda: scheduler.shutdown(drain=drain, timeout=PATIENCE)] * 4)  # type: ignore[arg-type]
    assert sorted(job.seq for job, _ in told) == [job.seq for job in jobs]
    assert all(done for _, done in told)


def test_a_job_asleep_is_woken_by_its_token_alone() -> None:
    """Shutdown does not stop a task; ``request_cancel`` wakes one that sleeps, and then the workers leave."""
    scheduler = Scheduler(1)
    asleep = threading.Event()

    def task() -> bool:
        me = current_job()
        assert me is not None
        asleep.set()
        return me.sleep(3600)

    job = scheduler.submit(task)
    assert asleep.wait(PATIENCE)
    assert not scheduler.shutdown(cancel_futures=True, timeout=0.02)
    assert job.request_cancel()
    assert scheduler.shutdown(timeout=PATIENCE)
    assert job.result(0) is False


def test_interrupting_code_may_not_wait() -> None:
    """Where the calling thread is inside the scheduler's own lock, only ``wait=False`` works; waiting raises."""
    scheduler = Scheduler(1)

    class Policy:
        def before(self, a: Any, b: Any) -> bool:
            if not told:
                try:
                    scheduler.shutdown()
                except RuntimeError as error:
                    told.append(error)
            return False

    told: list[RuntimeError] = []
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    scheduler.policy = Policy()
    jobs = [scheduler.submit(int) for _ in range(3)]
    gate.open()
    assert in_thread(lambda: scheduler.shutdown(timeout=PATIENCE))
    assert len(told) == 1
    assert all(job.done() for job in jobs)


def test_workers_sleep_while_the_last_jobs_of_a_due_shutdown_run() -> None:
    """What "due" gave up leaves nothing behind that keeps an idle worker busy until the others have ended."""
    scheduler = Scheduler(2, limits={"one": Limit(concurrency=1)})
    limited = scheduler.options(limits="one")
    gate = Gate()
    running = limited.submit(gate)
    gate.await_start()
    waiting = limited.submit(int)
    delayed = scheduler.options(delay=3600).submit(int)
    scheduler.shutdown(wait=False, drain="due")
    assert (delayed.cancelled(), waiting.status) == (True, JobStatus.PENDING)
    deadline = time.monotonic() + PATIENCE
    while scheduler.stats().idle != 1 and time.monotonic() < deadline:
        time.sleep(0)
    assert scheduler.stats().idle == 1
    gate.open()
    assert waiting.result(PATIENCE) == 0
    assert running.done()
    assert scheduler.shutdown(timeout=PATIENCE)

"""The kinds of faults of test_field_reports.py where schedules, limits, parents and bounds take part; see there."""

import contextvars
import pickle
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Thing, end_of, in_thread, logged, occupied, uncollected
from tests.overruns import Late, home
from tests.producers import Asleep
from threadsched import JobExpiredError, JobStatus, Limit, Scheduler, SchedulerClosedError, current_job
from threadsched.testing import FakeClock

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


def nothing(*args: object) -> None:
    pass


def test_f07_a_hung_task_costs_neither_its_worker_nor_its_waiters():
    """At its timeout it is over for all who wait for it; its thread is replaced, and what it brings is dropped."""
    clock, gate = FakeClock(), Late()
    before = threading.active_count()
    told: list[JobStatus] = []
    with logged() as records, Scheduler(1, clock=clock) as s:
        hung = s.options(timeout=0.2).submit(gate, "late")
        hung.add_done_callback(lambda job: told.append(hung.status))
        child = s.options(after=hung, after_any_outcome=True).submit(abs, -1)
        queued = s.submit(abs, -2)
        gate.await_start()
        clock.advance(0.2, wait=False)
        with pytest.raises(TimeoutError):
            hung.result(PATIENCE)
        assert (queued.result(PATIENCE), child.result(PATIENCE)) == (2, 1)
        assert (s.stats().lost_workers, s.stats().replaced_workers) == (1, 1)
        assert [("gates.py" in text, repr(hung.id) in text) for text in records.of("WARNING")] == [(True, True)]
        home(s, gate)
        assert s.shutdown(timeout=PATIENCE)
        s.check()
    assert told == [JobStatus.FAILED]
    assert records.of("ERROR") == []
    assert threading.active_count() <= before + 1  # the thread may still be on its way out


def test_f07_hung_tasks_do_not_take_the_whole_pool():
    """As many threads as there are workers are replaced; the next ones that hang stay workers until one comes home."""
    clock, gate = FakeClock(), Gate()
    with logged(), Scheduler(2, clock=clock) as s:
        hung = []
        for _ in range(3):
            hung += [s.options(timeout=1).submit(gate)]
            gate.await_start()
            gate.started.clear()
            clock.advance(1, wait=False)
            assert isinstance(hung[-1].exception(PATIENCE), TimeoutError)
        assert s.stats().lost_workers == 2
        assert s.submit(abs, -1).result(PATIENCE) == 1
        gate.open()
        assert s.wait_idle(PATIENCE)
        s.check()


def test_f13_dependents_and_runs_see_their_submitters_context():
    """A dependent has the context of who submitted it, not its parent's; each run has the schedule's, untouched."""
    clock, seen = FakeClock(), []

    def task(name: str) -> None:
        seen.append((name, variable.get()))
        variable.set(9)

    with Scheduler(1, clock=clock, limits={"mail": Limit(rate=1)}) as s:
        variable.set(1)
        schedule = s.options(start=0).every(10, task, "run")
        parent = s.options(limits="mail").submit(task, "parent")
        variable.set(2)
        child = s.options(after=parent, limits="mail").submit(task, "child")
        variable.set(3)
        clock.advance(10)
        assert child.done()
        assert sorted(seen) == [("child", 2), ("parent", 1), ("run", 1), ("run", 1)]
        schedule.cancel()
    variable.set(0)


@pytest.mark.parametrize("end", ["run", "cancel", "parent", "schedule"])
def test_f14_what_waited_keeps_nothing(end: str):
    """A job that waited for a limit or a parent, and a schedule, let go of their arguments when they end."""
    thing = Thing()
    gone = end_of(thing)
    with uncollected(), Scheduler(1, limits={"one": Limit(concurrency=1)}) as s:
        with occupied(s) as (blocker,):
            if end == "schedule":
                schedule = s.every(3600, nothing, thing)
                del thing
                assert schedule.cancel()
            elif end == "parent":
                parent = s.submit(nothing)
                job = s.options(after=parent).submit(nothing, thing)
                del thing
                assert parent.cancel()
                assert job.cancelled()
            else:
                job = s.options(after=blocker, limits="one").submit(nothing, thing)
                del thing
                if end == "cancel":
                    assert job.cancel()
        assert gone.wait(PATIENCE)


def test_f27_stopping_wakes_whoever_waits_for_anything(monkeypatch: pytest.MonkeyPatch):
    """With runs an hour off, a limit used up, open parents and a blocked producer, a shutdown ends at once."""
    asleep = Asleep(monkeypatch)
    s = Scheduler(2, limits={"mail": Limit(rate=1, per=3600)}, max_pending=4)
    s.every(3600, nothing)
    s.options(limits="mail").submit(nothing).result(PATIENCE)
    jobs = [s.options(limits="mail").submit(nothing), s.options(delay=3600).submit(nothing)]
    jobs += [s.options(after=jobs[0]).submit(nothing), s.options(after=jobs).submit(nothing)]
    blocked = in_thread(lambda: s.submit(nothing))
    asleep.await_one()
    assert s.shutdown(drain="none", timeout=PATIENCE)
    assert all(job.cancelled() for job in jobs)
    with pytest.raises(SchedulerClosedError):
        blocked()


MODES = {
    "all": {"held": "DONE", "child": "DONE", "of delayed": "DONE", "any": "DONE"},
    "due": {"held": "DONE", "child": "DONE", "of delayed": "CANCELLED", "any": "CANCELLED"},
    "none": {"held": "CANCELLED", "child": "CANCELLED", "of delayed": "CANCELLED", "any": "CANCELLED"},
}


@pytest.mark.parametrize("drain", MODES)
def test_f28_each_way_to_stop_with_all_that_waits(drain: Any):
    """Held and dependent jobs end as the mode says, armed runs are dropped, a run that waits is a job like others."""
    clock = FakeClock()
    s = Scheduler(1, clock=clock, limits={"one": Limit(rate=1, per=5)})
    armed, paused = s.every(10, nothing), s.every(10, nothing)
    paused.pause()
    s.options(limits="one").submit(nothing)
    clock.advance(0)
    gate = Gate()
    running = s.submit(gate)
    gate.await_start()
    delayed = s.options(delay=60).submit(nothing)
    jobs = {
        "held": s.options(limits="one").submit(nothing),
        "child": s.options(after=running).submit(nothing),
        "of delayed": s.options(after=delayed).submit(nothing),
        "any": s.options(after=delayed, after_any_outcome=True).submit(nothing),
    }
    s.shutdown(wait=False, drain=drain)
    gate.open()
    running.result(PATIENCE)
    clock.advance(100)
    assert s.shutdown(timeout=PATIENCE)
    assert {name: job.status.name for name, job in jobs.items()} == MODES[drain]
    assert (armed.ended, paused.ended, armed.runs) == ("shutdown", "shutdown", 0)


def test_f56_a_schedule_is_cancelled_and_its_last_run_waited_for():
    """Cancelling a schedule leaves the run under way, which can be waited for or asked to stop; no other comes."""
    clock = FakeClock()
    with Scheduler(2, clock=clock) as s:

        def body() -> None:
            job = current_job()
            assert job is not None
            job.sleep(1000)
            job.check_cancelled()

        schedule = s.options(retries=3).every(10, body)
        clock.advance(10)
        run = schedule.job
        assert run is not None
        assert schedule.cancel()
        assert (run.status, schedule.job) == (JobStatus.RUNNING, run)
        assert run.request_cancel()
        with pytest.raises(CancelledError):
            run.result(PATIENCE)
        clock.advance(100)
        assert (schedule.job, schedule.ended, s.stats().running) == (None, "cancelled", 0)


def test_f58_a_hundred_schedules_and_limits_need_no_thread():
    """A hundred schedules, some by the calendar, jobs with `at`, and limits by rate: the workers and nobody else."""
    pytest.importorskip("cronsim")
    before = threading.active_count()
    s = Scheduler(2, limits={"mail": Limit(rate=1, per=3600)})
    for number in range(90):
        s.every(3600 + number, nothing)
    for _ in range(10):
        s.cron("0 0 1 1 *", nothing)
    for _ in range(100):
        s.options(limits="mail").submit(nothing)
    assert threading.active_count() <= before + 2
    assert s.shutdown(drain="none")


def test_f66_schedules_and_submitters_are_not_pickled():
    """Handles that belong to a scheduler say so, instead of naming some lock inside."""
    with Scheduler(1) as s:
        schedule = s.every(3600, lambda: threading.Lock())
        for thing, words in (
            (schedule, "a Schedule cannot be pickled"),
            (s.options(), "a Submitter cannot be pickled"),
        ):
            with pytest.raises(TypeError, match=words):
                pickle.dumps(thing)


def test_f68_schedules_limits_and_pauses_are_a_schedulers_own():
    """A limit used up, a pause, a schedule and a full queue in one scheduler are nothing to another."""
    clock = FakeClock()
    calls: list[str] = []
    options: dict[str, Any] = {"clock": clock, "limits": {"one": Limit(rate=1, per=100)}, "max_pending": 2}
    with Scheduler(1, **options) as one, Scheduler(1, **options) as two:
        one.every(10, calls.append, "one")
        two.every(10, calls.append, "two")
        one.options(limits="one").submit(nothing)
        one.options(limits="one").submit(nothing)
        two.pause()
        clock.advance(10)
        assert calls == ["one"]
        assert [s.limits["one"].waiting for s in (one, two)] == [1, 0]
        assert [len(s.schedules()) for s in (one, two)] == [1, 1]
        two.resume()
        assert two.options(limits="one").submit(abs, -1).result(PATIENCE) == 1
        one.clear()
        one.shutdown(wait=False)
        clock.advance(10)
        assert calls == ["one", "two", "two"]


def test_f69_a_deadline_for_the_start_frees_the_place():
    """A job queued behind a long one is cancelled when its time to start is over, never runs, and its place is free."""
    clock, ran = FakeClock(), []
    with Scheduler(1, clock=clock, max_pending=1, on_full="reject") as s:
        gate = Gate()
        blocker = s.submit(gate)
        gate.await_start()
        job = s.options(expires=0.5).submit(ran.append, "never")
        clock.advance(0.4, wait=False)
        assert job.status is JobStatus.PENDING
        clock.advance(0.1, wait=False)
        with pytest.raises(JobExpiredError):
            job.result(PATIENCE)
        assert s.options(expires=0.5).submit(ran.append, "in time").status is JobStatus.PENDING
        gate.open()
        assert blocker.result(PATIENCE) is None
    assert ran == ["in time"]


def test_f72_a_month_of_runs_retries_and_rates():
    """A month of daily runs that are retried, under a rate, takes no time and comes out the same each time."""

    def month() -> list[tuple[float, str]]:
        clock = FakeClock()
        trace: list[tuple[float, str]] = []
        with logged(), Scheduler(2, clock=clock, limits={"mail": Limit(rate=1, per=60)}) as s:

            def work(name: str) -> None:
                trace.append((clock.now(), name))
                job = current_job()
                if job is not None and job.attempts < 3:
                    raise ValueError

            for name in ("a", "b"):
                s.options(limits="mail", retries=2, backoff=600, priority=ord(name)).every(86400, work, name)
            clock.advance(30 * 86400 + 3600)
        return trace

    first = month()
    assert len(first) == 30 * 2 * 3
    assert first[:6] == [
        (86400, "a"),
        (86460, "b"),
        (87000, "a"),
        (87060, "b"),
        (88200, "a"),
        (88260, "b"),
    ]
    assert month() == first

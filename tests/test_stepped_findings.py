"""What random programs on the stepped scheduler found, one test each, as small as it could be made."""

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from threadsched import DuplicateJobError, JobStatus, Limit, OldestDuePolicy, Scheduler
from threadsched.testing import FakeClock, StepScheduler

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


class Unimportant:
    """A comparing policy: the highest priority number first."""

    def before(self, a: Any, b: Any) -> bool:
        return bool(a.priority > b.priority)


def kinds(job: Any) -> list[str]:
    return [reason.kind for reason in job.explain()]


# ---------------------------------------------------------------- the wall clock


def test_wall_clock_set_back_puts_off_a_job_that_waits_for_its_parent():
    """The parent of a job with `at` ends after the wall clock was set back: the job still starts at its time."""
    clock = FakeClock(wall=NOON)
    with Scheduler(workers=1, clock=clock) as s:
        starts: list[float] = []
        parent = s.options(delay=5).submit(int)
        job = s.options(at=NOON + timedelta(seconds=10), after=parent).submit(lambda: starts.append(clock.now()))
        clock.step_wall(-3600)
        assert job.run_at == 3610
        clock.advance(3609)
        assert starts == []
        clock.advance(1)
        assert starts == [3610]


def test_job_re_timed_while_it_waits_for_its_parent_is_ranked_by_its_new_time():
    """A policy that ranks by run_at sees the new time of a job whose parent was open when the wall clock was set."""
    clock = FakeClock(wall=NOON)
    s = StepScheduler(clock=clock, policy=OldestDuePolicy())
    order: list[str] = []
    parent = s.submit(int)
    s.options(at=NOON + timedelta(seconds=10), after=parent).submit(order.append, "at")
    s.options(delay=20).submit(order.append, "delay")
    clock.step_wall(-20)
    s.tick()
    clock.jump(40)
    s.drain()
    assert order == ["delay", "at"]


def test_re_timed_job_is_never_due_before_its_submission():
    """A wall clock set forward past the time of a job makes it due at its submission, as a submission then would be."""
    clock = FakeClock(5.0, wall=NOON)
    s = StepScheduler(clock=clock)
    job = s.options(at=NOON + timedelta(seconds=1)).submit(int)
    clock.step_wall(3600)
    s.tick()
    assert (job.run_at, job.submitted_at, job.status) == (5.0, 5.0, JobStatus.DONE)


def test_job_that_a_limit_holds_is_not_re_timed():
    """The time of a job that waits for a limit alone has come: a wall clock that is set back later moves it no more."""
    clock = FakeClock(wall=NOON)
    s = StepScheduler(clock=clock, limits={"one": Limit(concurrency=1)})
    first = s.options(limits="one").submit(int)
    assert first.claim()
    job = s.options(limits="one", at=NOON + timedelta(seconds=1)).submit(int)
    clock.advance(1)
    s.tick()
    clock.step_wall(-3600)
    s.tick()
    assert job.run_at == 1
    assert kinds(job) == ["limit"]
    first.set_result(None)
    s.tick()
    assert job.status is JobStatus.DONE


# ---------------------------------------------------------------- paused schedules


def test_run_out_of_turn_is_explained_by_the_limit_that_holds_it():
    """A pause of its schedule is no reason for a run that was asked for all the same."""
    s = StepScheduler(limits={"one": Limit(concurrency=1)})
    holder = s.options(limits="one").submit(int)
    assert holder.claim()
    schedule = s.options(limits="one").every(10, int)
    schedule.pause()
    assert schedule.run_now()
    s.tick()
    job = schedule.job
    assert job is not None
    assert kinds(job) == ["limit"]
    holder.set_result(None)
    s.tick()
    assert job.status is JobStatus.DONE


def test_run_is_explained_by_the_pause_before_a_worker_came_across_it():
    """A pending run of a paused schedule says so at once, not only when a worker has passed it over."""
    clock = FakeClock()
    s = StepScheduler(clock=clock)
    s.options(priority=0).submit(int)
    schedule = s.options(start=0).every(10, int)
    job = schedule.job
    assert job is not None
    s.tick()
    schedule.pause()
    assert kinds(job) == ["paused"]
    s.pause()
    assert kinds(job) == ["paused", "paused"]


def test_repair_does_not_let_go_a_run_that_a_pause_holds():
    """Another priority under a comparing policy has the queues rebuilt: a held run goes on waiting."""
    clock = FakeClock()
    s = StepScheduler(clock=clock, policy=Unimportant())
    schedule = s.options(start=0).every(10, int)
    job = schedule.job
    assert job is not None
    schedule.pause()
    s.tick()
    assert s.stats().waiting == 1
    other = s.submit(int)
    s.tick()
    another = s.submit(int)
    assert another.set_priority(1)
    s.tick()
    assert (other.status, another.status, job.status) == (JobStatus.DONE, JobStatus.DONE, JobStatus.PENDING)
    assert s.stats().waiting == 1
    s.check()
    schedule.resume()
    s.tick()
    assert job.status is JobStatus.DONE


# ---------------------------------------------------------------- the door


def test_duplicate_with_an_open_parent_is_refused_as_any_other():
    """A submission that is refused for its id leaves no trace with its open parents."""
    s = StepScheduler()
    parent = s.options(id="a", delay=1).submit(int)
    with pytest.raises(DuplicateJobError):
        s.options(id="a", after=parent).submit(int)
    assert s.cancel("a")
    assert s.stats().submitted == 1
    s.check()


def test_refused_submission_leaves_nothing_to_be_done():
    """A duplicate with an open foreign parent: the clock does not wait for somebody who deals with the rest of it."""
    clock = FakeClock()
    with Scheduler(workers=1, clock=clock, policy=Unimportant()) as s:
        s.options(id="a").submit(int)
        clock.advance(0)
        foreign: Future[Any] = Future()
        with pytest.raises(DuplicateJobError):
            s.options(id="a", after=foreign).submit(int)
        clock.advance(1)
        assert s.stats().submitted == 1

"""The option ``if_exists``: what becomes of a submission whose id is taken."""

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Thing, end_of, in_thread, occupied, uncollected
from tests.producers import Asleep
from threadsched import (
    DependencyError,
    DuplicateJobError,
    Job,
    JobStatus,
    Limit,
    OldestDuePolicy,
    QueueFullError,
    Scheduler,
    SchedulerClosedError,
    current_job,
)
from threadsched.testing import FakeClock, StepScheduler


def nap(seconds: float) -> None:
    job = current_job()
    assert job is not None
    job.sleep(seconds)


both = pytest.mark.parametrize("queue", ["lazy", "indexed"])
relaxed = pytest.mark.parametrize("if_exists", ["return", "replace"])


@pytest.mark.parametrize("wrong", ["ignore", "", None, True, b"raise"])
def test_unknown_word_is_refused(wrong: Any):
    """Anything but the three words is a ValueError that names them and the value."""
    with Scheduler(1) as s, pytest.raises(ValueError, match="'raise' or 'return' or 'replace', not"):
        s.options(if_exists=wrong)


def test_schedules_do_not_take_it():
    """A schedule has no id, so the option is refused there."""
    with Scheduler(1) as s, pytest.raises(TypeError, match="if_exists"):
        s.options(if_exists="return").every(1, abs, 1)


@relaxed
def test_free_id_is_taken_as_ever(if_exists: Any):
    """Where no job has the id, the submission is like any other."""
    with Scheduler(1) as s:
        job = s.options(id="x", if_exists=if_exists).submit(abs, -1)
        assert (job.id, job.result(PATIENCE)) == ("x", 1)
        assert s.options(if_exists=if_exists).submit(abs, -2).result(PATIENCE) == 2


def test_return_hands_back_the_live_job():
    """Pending or running, the job that has the id is returned, nothing is submitted, and the new task is let go."""
    with Scheduler(1) as s:
        gate = Gate()
        job = s.options(id="x", delay=0.001).submit(gate, 7)
        for _ in range(2):
            thing = Thing()
            gone = end_of(thing)
            with uncollected():
                assert s.options(id="x", if_exists="return").submit(repr, thing) is job
                del thing
                assert gone.wait(PATIENCE)
            gate.await_start()
        assert (job.status, s.stats().submitted) == (JobStatus.RUNNING, 1)
        gate.open()
        assert job.result(PATIENCE) == 7


@relaxed
def test_id_of_an_ended_job_is_free(if_exists: Any):
    """Whether it ended DONE, FAILED or CANCELLED, its id may be used again, and then means the new job."""
    with Scheduler(1) as s:
        options = s.options(id="x", if_exists=if_exists)
        for task, status in ((int, JobStatus.DONE), (lambda: 1 / 0, JobStatus.FAILED), (str, JobStatus.DONE)):
            job = options.submit(task)
            job.exception(PATIENCE)
            assert s.status_of("x") is status
        with occupied(s):
            job = options.submit(int)
            assert s.get("x") is job
            assert s.status_of("x") is JobStatus.PENDING
            assert [info.status for info in s.snapshot() if info.id == "x"][-1] is JobStatus.PENDING
            assert s.cancel("x")
            assert s.status_of("x") is JobStatus.CANCELLED
        with pytest.raises(DuplicateJobError, match="history"):
            s.options(id="x").submit(int)
        s.check()


@both
@pytest.mark.parametrize("state", ["ready", "delayed", "parent", "limit", "retry", "paused"])
def test_replace_cancels_whatever_is_pending(queue: Any, state: str):
    """However the old job waits, it ends CANCELLED at once, and the new one is there instead of it."""
    clock = FakeClock()
    limits = {"one": Limit(concurrency=1)}
    with Scheduler(1, clock=clock, queue=queue, limits=limits) as s, occupied(s) as (blocker,):
        more: dict[str, Any] = {
            "delayed": {"delay": 60},
            "parent": {"after": blocker},
            "limit": {"limits": "one"},
            "retry": {"retries": 1, "backoff": 60, "priority": -1e10},
        }.get(state, {})
        if state == "paused":
            s.pause()
        old = s.options(id="x", **more).submit(divmod, 1, 0)
        heard: list[Job[Any]] = []
        old.add_done_callback(heard.append)  # type: ignore[arg-type]
        new = s.options(id="x", if_exists="replace").submit(abs, -7)
        assert (old.cancelled(), heard) == (True, [old])
        with pytest.raises(CancelledError):
            old.result(0)
        assert s.get("x") is new
        assert s.status_of("x") is JobStatus.PENDING
        assert (s.stats().pending, s.stats().cancelled) == (1, 1)
        s.check()
        s.resume()
    assert new.result(0) == 7
    assert s.status_of("x") is JobStatus.DONE


def test_replace_in_backoff():
    """A job that waits for its retry gives way too, and is not run again."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        calls: list[int] = []

        def fail() -> None:
            calls.append(1)
            raise ValueError

        old = s.options(id="x", retries=3, backoff=60).submit(fail)
        clock.advance(0)
        new = s.options(id="x", if_exists="replace", delay=30).submit(abs, -7)
        clock.advance(100)
        assert (old.status, new.result(0), calls) == (JobStatus.CANCELLED, 7, [1])


def test_replace_does_not_touch_what_runs():
    """A running job is not replaced: DuplicateJobError says so, and nothing has changed."""
    with Scheduler(1) as s:
        entered, leave = threading.Event(), threading.Event()

        def task() -> bool:
            entered.set()
            return leave.wait(PATIENCE)

        job = s.options(id="x").submit(task)
        assert entered.wait(PATIENCE)
        before = s.stats()
        with pytest.raises(DuplicateJobError, match="'x' belongs to a job that runs"):
            s.options(id="x", if_exists="replace").submit(abs, -1)
        assert s.options(id="x", if_exists="return").submit(abs, -1) is job
        assert s.stats() == before
        assert s.get("x") is job
        leave.set()
        assert job.result(PATIENCE)
        s.check()


def test_replace_takes_the_place_in_a_full_queue(monkeypatch: pytest.MonkeyPatch):
    """In a full queue the newcomer has the old one's place: it does not wait, nor does it cost who waits the next."""
    asleep = Asleep(monkeypatch)
    with Scheduler(1, max_pending=2) as s:
        with occupied(s):
            old, other = s.options(id="x").submit(abs, -1), s.submit(abs, -2)
            blocked = in_thread(lambda: s.submit(abs, -3))
            asleep.await_one()
            new = s.options(id="x", if_exists="replace", submit_timeout=0).submit(abs, -4)
            assert (old.cancelled(), s.stats().pending) == (True, 2)
            with pytest.raises(QueueFullError):
                s.options(id="y", if_exists="replace", submit_timeout=0).submit(abs, -5)
            s.check()
        assert [job.result(PATIENCE) for job in (new, other, blocked())] == [4, 2, 3]


@relaxed
@pytest.mark.parametrize("on_full", ["reject", "drop_oldest", "drop_lowest", "caller_runs"])
def test_full_queue_and_a_taken_id(if_exists: Any, on_full: Any):
    """Whatever a full queue does with newcomers, one whose id is taken costs no third job its place."""
    with Scheduler(1, max_pending=2, on_full=on_full, queue="indexed") as s, occupied(s):
        other, old = s.submit(abs, -1), s.options(id="x").submit(abs, -2)
        new = s.options(id="x", if_exists=if_exists).submit(abs, -3)
        assert (new is old) == (if_exists == "return")
        assert old.cancelled() == (if_exists == "replace")
        assert (other.status, s.stats().pending) == (JobStatus.PENDING, 2)
        s.check()
    assert new.result(0) == (2 if if_exists == "return" else 3)


def test_replace_dooms_the_dependents_of_the_old_job():
    """Jobs that wait for the replaced one are told that it was cancelled; one that waits for the new one runs."""
    with Scheduler(1) as s, occupied(s):
        old = s.options(id="x").submit(abs, -1)
        child = s.options(after=old).submit(abs, -2)
        new = s.options(id="x", if_exists="replace").submit(abs, -3)
        heir = s.options(after=new).submit(abs, -4)
        with pytest.raises(DependencyError, match="'x'"):
            child.result(0)
        s.check()
    assert (new.result(0), heir.result(0)) == (3, 4)


@pytest.mark.parametrize("more", [{"timeout": 5}, {"expires": 5}, {"limits": "one"}, {"after": True}])
@pytest.mark.parametrize("ended", [False, True])
def test_duplicate_with_other_options_is_refused_like_any(more: dict[str, Any], ended: bool):
    """Parents, limits or a time limit of a job that is refused for its id change nothing about the refusal."""
    with Scheduler(1, limits={"one": Limit(concurrency=1)}) as s, occupied(s) as (blocker,):
        options = {name: blocker if value is True else value for name, value in more.items()}
        first = s.options(id="x").submit(abs, -1)
        if ended:
            first.cancel()
        before = s.stats()
        with pytest.raises(DuplicateJobError, match="'x' belongs to a"):
            s.options(id="x", **options).submit(abs, -2)
        assert s.stats() == before
        s.check()


@both
@pytest.mark.parametrize("more", [{"timeout": 5}, {"expires": 5}, {"limits": "one"}, {"after": True}])
def test_replace_keeps_what_the_newcomer_asked_for(queue: Any, more: dict[str, Any]):
    """A newcomer that replaces has its own parents, limits and time limits, as if it had come alone."""
    clock = FakeClock()
    with Scheduler(1, clock=clock, queue=queue, limits={"one": Limit(rate=1, per=9)}) as s:
        s.options(limits="one").submit(int)
        clock.advance(0)
        slow = s.options(delay=8).submit(int)
        options = {name: slow if value is True else value for name, value in more.items()}
        s.options(id="x", delay=100).submit(int)
        job = s.options(id="x", if_exists="replace", **options).submit(nap, 7)
        s.check()
        clock.advance(20)
        started = job.info().started_at
        ended = (job.status.name, started)
        assert (
            ended
            == {
                "timeout": ("FAILED", 0),
                "expires": ("DONE", 0),
                "limits": ("DONE", 9),
                "after": ("DONE", 8),
            }[next(iter(more))]
        )
        s.check()
        job.exception(0)


def test_replace_by_a_job_that_fails_at_once():
    """A newcomer whose parent has failed already replaces all the same, and is cancelled for its parent."""
    with Scheduler(1) as s:
        failed = s.submit(divmod, 1, 0)
        assert failed.exception(PATIENCE)
        old = s.options(id="x", delay=60).submit(abs, -1)
        new = s.options(id="x", if_exists="replace", after=failed).submit(abs, -1)
        assert old.cancelled()
        with pytest.raises(DependencyError):
            new.result(0)
        assert s.status_of("x") is JobStatus.CANCELLED
        s.check()


@relaxed
def test_closed_door_changes_nothing(if_exists: Any):
    """After a shutdown both are refused like any submission, and the old job stays as it is."""
    s = Scheduler(1)
    with occupied(s):
        old = s.options(id="x").submit(abs, -1)
        s.shutdown(wait=False)
        with pytest.raises(SchedulerClosedError):
            s.options(id="x", if_exists=if_exists).submit(abs, -2)
        assert old.status is JobStatus.PENDING
    assert s.shutdown()
    assert old.result(0) == 1


def test_key_that_raises_replaces_nothing():
    """A policy's key that raises for the newcomer leaves the old job in place."""

    class Picky:
        def key(self, job: Job[Any]) -> float:
            if job.priority == 13:
                raise LookupError("no such rank")
            return job.priority

    with Scheduler(1, policy=Picky()) as s, occupied(s):
        old = s.options(id="x").submit(abs, -1)
        with pytest.raises(LookupError):
            s.options(id="x", if_exists="replace", priority=13).submit(abs, -2)
        assert (s.get("x"), old.status) == (old, JobStatus.PENDING)
        s.check()
    assert old.result(0) == 1


@both
def test_replaced_again_and_again_by_many(queue: Any):
    """Of many that replace one another from eight threads the last accepted one runs, and no other of them."""
    ran: list[int] = []
    with Scheduler(1, queue=queue, policy=OldestDuePolicy(), history=10) as s:
        with occupied(s):
            start = threading.Barrier(8)

            def producer(number: int) -> list[Job[Any]]:
                start.wait(PATIENCE)
                options = s.options(id="x", if_exists="replace", name="one of many")
                return [options.submit(ran.append, number) for _ in range(50)]

            joins = [in_thread(lambda number=number: producer(number)) for number in range(8)]
            jobs = [job for join in joins for job in join()]
            live = [job for job in jobs if not job.done()]
            assert live == [s.get("x")]
            assert (s.stats().cancelled, s.stats().pending) == (399, 1)
            s.check()
        assert live[0].result(PATIENCE) is None
    assert len(ran) == 1


def test_return_from_many_threads_makes_one_job():
    """Eight threads that ask for one id at once get one and the same job."""
    with Scheduler(1) as s, occupied(s):
        start = threading.Barrier(8)

        def ask() -> Job[Any]:
            start.wait(PATIENCE)
            return s.options(id="x", if_exists="return").submit(abs, -1)

        assert len({join() for join in [in_thread(ask) for _ in range(8)]}) == 1
        assert s.stats().pending == 1


def test_map_with_one_id():
    """Through `map`, one id and "return" make one job whose result stands for every input."""
    with Scheduler(1) as s, occupied(s):
        results = s.options(id="x", if_exists="return").map(abs, [-1, -2, -3])
        assert s.stats().pending == 1
    assert list(results) == [1, 1, 1]


def test_stepped():
    """The stepped scheduler replaces and returns likewise."""
    step = StepScheduler()
    old = step.options(id="x", delay=5).submit(abs, -1)
    assert step.options(id="x", if_exists="return").submit(abs, -2) is old
    new = step.options(id="x", if_exists="replace").submit(abs, -3)
    step.check()
    assert [(ran.id, ran.status) for ran in step.drain()] == [("x", JobStatus.DONE)]
    assert (old.cancelled(), new.result(0)) == (True, 3)
    assert step.options(id="x", if_exists="return").submit(abs, -4) is not new

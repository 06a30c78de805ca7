"""What a scheduler tells of its jobs: identity, reasons, records, counts and history, in each state of a job's life."""

import dataclasses
import enum
import functools
import random
import re
import threading
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, in_thread, logged, occupied
from threadsched import DuplicateJobError, FifoPolicy, JobStatus, OldestDuePolicy, Retry, Scheduler, Stats
from threadsched.testing import FakeClock, Ran, StepScheduler


def nothing() -> None:
    pass


def boom() -> None:
    raise ValueError("boom")


def of_state(s: Scheduler, clock: FakeClock, state: str) -> Any:
    """Return a job of this state; the one worker is busy for "queued" and "running"."""
    if state == "delayed":
        return s.options(delay=50, id="it", priority=3).submit(nothing)
    if state == "retry":
        job = s.options(retries=1, backoff=50, id="it", priority=3).submit(boom)
        clock.advance(0)
        return job
    if state == "cancelled":
        job = s.options(delay=50, id="it", priority=3).submit(nothing)
        job.cancel()
        return job
    job = s.options(id="it", priority=3).submit(boom if state == "failed" else nothing)
    clock.advance(0)
    return job


@pytest.mark.parametrize(
    ("state", "kind", "words", "until"),
    [
        ("delayed", "delayed", "due in 50 s", 150.0),
        ("retry", "retry", r"attempt 1 failed \(ValueError: boom\)", 150.0),
        ("done", "ended", "ended DONE", None),
        ("failed", "ended", "ended FAILED: ValueError: boom", None),
        ("cancelled", "ended", "ended CANCELLED", None),
    ],
)
def test_explain(state: str, kind: str, words: str, until: float | None):
    """`explain` gives one reason of the right kind, in words, with the time at which it ends where that is known."""
    clock = FakeClock(100.0)
    s = Scheduler(1, clock=clock)
    job = of_state(s, clock, state)
    (reason,) = job.explain()
    assert (reason.kind, reason.until) == (kind, until)
    assert re.search(words, reason.detail)
    with logged():
        assert s.shutdown(drain="none")
        del job


def test_explain_queued_and_running():
    """A job that runs says where; one that is due behind it says that it is queued, also after it was delayed."""
    clock = FakeClock()
    with Scheduler(1, clock=clock, name="pool") as s:
        with occupied(s) as (running,):
            (reason,) = running.explain()
            assert (reason.kind, reason.until) == ("running", None)
            assert "pool_0" in reason.detail
            queued, late = s.submit(nothing), s.options(delay=5).submit(nothing)
            assert [one.kind for one in queued.explain()] == ["queued"]
            assert [one.kind for one in late.explain()] == ["delayed"]
            clock.jump(5)
            assert [one.kind for one in late.explain()] == ["queued"]
        assert s.wait_idle(PATIENCE)


def test_info_through_a_jobs_life():
    """`info` has the times on the scheduler's clock, attempts, worker and the latest error, at each step."""
    clock = FakeClock(10.0)
    gate = Gate()

    def task() -> None:
        if len(starts) < 1:
            starts.append(clock.now())
            raise ValueError("first")
        gate()

    starts: list[float] = []
    with Scheduler(1, clock=clock, name="pool") as s:
        job = s.options(id="it", name="a task", delay=5, priority=2.5, retries=1, backoff=3).submit(task)
        info = job.info()
        assert dataclasses.astuple(info) == (
            "it", "a task", JobStatus.PENDING, 2.5, 0, 10.0, 15.0, None, None, None, None, None,
        )  # fmt: skip
        clock.advance(6)
        info = job.info()
        assert (info.status, info.attempts, info.run_at) == (JobStatus.PENDING, 1, 18.0)
        assert (info.started_at, info.finished_at, info.error) == (15.0, None, "ValueError: first")
        clock.advance(2, wait=False)
        gate.await_start()
        info = job.info()
        assert (info.status, info.attempts, info.started_at) == (JobStatus.RUNNING, 2, 18.0)
        assert (info.worker, info.finished_at) == ("pool_0", None)
        clock.jump(4)
        gate.open()
        job.result(PATIENCE)
        info = job.info()
        assert (info.status, info.attempts, info.started_at, info.finished_at) == (JobStatus.DONE, 2, 18.0, 22.0)
        assert (info.submitted_at, info.run_at, info.worker, info.error) == (10.0, 18.0, "pool_0", None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            info.id = 5  # type: ignore[misc]


def test_snapshot_holds_every_known_job():
    """`snapshot` lists history, running jobs with their stacks, and pending ones, each job once."""

    def standing_here(gate: Gate) -> None:
        gate()

    with Scheduler(1) as s:
        done, failed = s.options(id="done").submit(nothing), s.options(id="failed").submit(boom)
        assert failed.exception(PATIENCE)
        done.result(PATIENCE)
        gate = Gate()
        s.options(id="running").submit(standing_here, gate)
        gate.await_start()
        s.options(id="queued").submit(nothing)
        s.options(id="delayed", delay=3600).submit(nothing)
        s.options(id="given up").submit(nothing).cancel()
        infos = s.snapshot()
        assert [(info.id, info.status.name) for info in infos] == [
            ("done", "DONE"),
            ("failed", "FAILED"),
            ("given up", "CANCELLED"),
            ("running", "RUNNING"),
            ("queued", "PENDING"),
            ("delayed", "PENDING"),
        ]
        stacks = {info.id: info.stack for info in infos}
        assert "standing_here" in (stacks.pop("running") or "")
        assert set(stacks.values()) == {None}
        assert infos[1].error == "ValueError: boom"
        s.cancel("delayed")
        gate.open()


def test_stats_in_each_state():
    """`stats` counts each job in exactly one place, whatever it goes through."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:

        def counts() -> dict[str, int]:
            stats = dataclasses.asdict(s.stats())
            assert stats["waiting"] == 0
            return {key: value for key, value in stats.items() if value and key not in ("workers", "idle")}

        assert counts() == {}
        assert s.stats() == Stats(*[0] * 14)
        with occupied(s):
            assert counts() == {"running": 1, "submitted": 1}
            queued = s.submit(nothing)
            assert counts() == {"running": 1, "pending": 1, "ready": 1, "submitted": 2}
            queued.cancel()
            assert counts() == {"running": 1, "submitted": 2, "cancelled": 1}
            s.options(delay=9).submit(nothing)
            assert counts() == {"running": 1, "pending": 1, "delayed": 1, "submitted": 3, "cancelled": 1}
        clock.advance(9)
        assert counts() == {"submitted": 3, "done": 2, "cancelled": 1}
        assert (s.stats().workers, s.stats().idle) == (1, 1)
        job = s.options(retries=1, backoff=5).submit(boom)
        clock.advance(0)
        assert counts() == {"pending": 1, "delayed": 1, "submitted": 4, "done": 2, "cancelled": 1, "retries": 1}
        clock.advance(5)
        assert counts() == {"submitted": 4, "done": 2, "failed": 1, "cancelled": 1, "retries": 1}
        assert job.exception(0)
    assert s.stats().workers == 0
    assert counts() == {"submitted": 4, "done": 2, "failed": 1, "cancelled": 1, "retries": 1}


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_stats_add_up_at_every_instant(queue: Any, rng: random.Random):
    """However many threads submit, fail, retry and cancel, each snapshot of the counts adds up."""
    stop = threading.Event()
    snapshots = 0

    def look(s: Scheduler) -> None:
        nonlocal snapshots
        while not stop.is_set():
            stats = s.stats()
            ended = stats.done + stats.failed + stats.cancelled
            assert stats.submitted == stats.pending + stats.running + ended, stats
            assert stats.pending == stats.delayed + stats.ready + stats.waiting, stats
            assert min(dataclasses.astuple(stats)) >= 0, stats
            assert stats.running <= 2, stats
            snapshots += 1

    def submit(s: Scheduler, seed: int) -> None:
        mine = random.Random(seed)
        for _ in range(300):
            options = s.options(
                delay=mine.choice([0, 0.001]), priority=mine.random(), retries=mine.randrange(3), backoff=0.0001
            )
            job = options.submit(mine.choice([nothing, boom]))
            job.add_done_callback(lambda job: None)
            if mine.random() < 0.3:
                job.cancel()

    with Scheduler(2, queue=queue) as s:
        watcher = in_thread(lambda: look(s))
        submitters = [in_thread(functools.partial(submit, s, rng.random())) for _ in range(3)]
        try:
            for join in submitters:
                join()
            assert s.wait_idle(PATIENCE)
        finally:
            stop.set()
        watcher()
        s.check()
        assert s.stats().submitted == 900
    assert snapshots


# ---------------------------------------------------------------------- ids, names, priorities


def test_ids_of_both_kinds_never_meet():
    """Automatic ids are ints, given ones strs: the job with id "1" is not the job with id 1."""
    with Scheduler(1) as s, occupied(s):
        plain = s.submit(nothing)
        assert isinstance(plain.id, int)
        assert plain.id == plain.seq
        twin = s.options(id=str(plain.id)).submit(nothing)
        assert s.get(plain.id) is plain
        assert s.get(str(plain.id)) is twin
        assert s.cancel(str(plain.id))
        assert s.status_of(plain.id) is JobStatus.PENDING
        assert s.status_of(str(plain.id)) is JobStatus.CANCELLED
        named = s.options(id="named").submit(nothing)
        assert s.get(named.seq) in (None, named)


class Label(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("an id is compared as plain text")

    def __hash__(self) -> int:
        raise ZeroDivisionError("an id is hashed as plain text")

    def __str__(self) -> str:
        raise ZeroDivisionError("an id is taken as it is")


class Colour(enum.StrEnum):
    RED = "red"


def test_ids_of_a_str_subclass_are_taken_as_text():
    """A subclass of str works as an id and to look one up, and none of its own methods runs."""
    with Scheduler(1) as s:
        job = s.options(id=Label("x"), name=Label("name")).submit(nothing)
        assert type(job.id) is type(job.name) is str
        assert (job.id, job.name) == ("x", "name")
        job.result(PATIENCE)
        assert s.status_of("x") is s.status_of(Label("x")) is JobStatus.DONE
        s.options(id=Colour.RED).submit(nothing).result(PATIENCE)
        assert s.status_of("red") is s.status_of(Colour.RED) is JobStatus.DONE


def test_an_id_is_free_again_when_the_history_has_forgotten_it():
    """A live or remembered id is refused, one that fell out of the history is as good as new."""
    with Scheduler(1, history=2) as s:
        a = s.options(id="a")
        for _ in range(2):
            job = a.submit(nothing)
            job.result(PATIENCE)
            assert s.get("a") is None
            with pytest.raises(DuplicateJobError, match="'a'"):
                a.submit(nothing)
            for _ in range(2):
                s.submit(nothing).result(PATIENCE)
            assert s.status_of("a") is None
        s.check()
    with Scheduler(1, history=0) as s:
        for _ in range(3):
            s.options(id="a").submit(nothing).result(PATIENCE)
        assert s.stats().done == 3


@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_history_keeps_the_newest(length: int):
    """The history has exactly the newest ended jobs, oldest first, in the order of their ends."""
    with Scheduler(1, history=length) as s:
        jobs = [s.submit(nothing) for _ in range(10)]
        jobs.append(s.options(delay=3600, id="given up").submit(nothing))
        for job in jobs[:-1]:
            job.result(PATIENCE)
        jobs[-1].cancel()
        ended = [info.id for info in s.snapshot()]
        ids = [job.id for job in jobs]
        assert sorted(map(str, ended)) == sorted(map(str, ended[:length]))
        assert len(ended) == min(length, 11)
        if length == 1000:
            assert set(ended) == set(ids)
        for job in jobs:
            expected = job.status if job.id in ended else None
            assert s.status_of(job.id) is expected
        s.check()


def test_history_forgets_results_and_errors():
    """A record of the history has words only: no result, no exception object."""
    with logged(), Scheduler(1) as s:
        s.submit(boom).exception(PATIENCE)
        s.submit(list, "abc").result(PATIENCE)
        for info in s.snapshot():
            for value in dataclasses.astuple(info):
                assert value is None or isinstance(value, (int, float, str, JobStatus))


class Callable:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


def test_names():
    """A job is called as it was told, else by its task's qualified name, whatever kind of callable that is."""
    with Scheduler(1) as s:
        for fn, name in [
            (nothing, "nothing"),
            (functools.partial(nothing), "nothing"),
            (Callable(), "Callable"),
            (Callable().method, "Callable.method"),
            (dict, "dict"),
            ([].count, "list.count"),
            (lambda *args: None, "test_names.<locals>.<lambda>"),
        ]:
            job = s.submit(fn, *([1] if name == "list.count" else []))
            assert job.name == name
            job.result(PATIENCE)
            assert job.name == name
            assert job.info().name == name
            named = s.options(name="told").submit(nothing)
            named.result(PATIENCE)
            assert named.name == named.info().name == "told"


def test_names_of_jobs_that_one_worker_runs_in_a_row():
    """A worker that knows the name of the last task gives it to no other one, also where one between them failed."""
    outcomes = iter([boom, nothing, nothing, boom, nothing])

    def moody() -> None:
        next(outcomes)()

    with logged(), Scheduler(1) as s, occupied(s):
        tasks = [nothing, nothing, moody, moody, moody, dict, moody, moody, boom, dict, dict, [].copy, nothing, dict]
        jobs = [s.submit(fn) for fn in tasks]
    for job, fn in zip(jobs, tasks, strict=True):
        job.exception(PATIENCE)
        assert job.name == job.info().name == fn.__qualname__


@pytest.mark.parametrize("priority", [0, -1, 2.5, float("inf"), float("-inf"), 10**400, -(10**400), True + 1])
def test_priorities_may_be_any_real_number(priority: float):
    """Ints of any size, floats and infinities are priorities, kept as they were given."""
    with Scheduler(1) as s:
        order: list[float] = []
        with occupied(s):
            job = s.options(priority=priority).submit(order.append, priority)
            s.submit(order.append, 5)
            assert job.priority == priority
        assert s.wait_idle(PATIENCE)
    assert order == sorted(order)


# ---------------------------------------------------------------------- policies, stepped


def test_policies_and_a_swap_on_the_live_scheduler():
    """Each policy orders what waits; swapping it re-orders at once, loses nothing, and ties stay in order."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        for policy, expected in [
            (None, ["b", "d", "a", "c"]),
            (FifoPolicy(), ["a", "b", "c", "d"]),
            (OldestDuePolicy(), ["c", "d", "a", "b"]),
        ]:
            order: list[str] = []
            with occupied(s):
                for name, priority, delay in [("a", 7, 30), ("b", 1, 40), ("c", 9, 10), ("d", 1, 20)]:
                    s.options(priority=priority, delay=delay).submit(order.append, name)
                clock.jump(50)
                if policy is not None:
                    s.policy = policy
                    assert s.policy is policy
            assert s.wait_idle(PATIENCE)
            assert order == expected
            s.check()


def test_stepped_scheduler_shows_the_same_records():
    """The stepped scheduler answers the same questions, and its ticks say what ran where."""
    step = StepScheduler(2, history=5)
    jobs = [step.options(id=name).submit(nothing) for name in "abc"]
    late = step.options(delay=3, retry=Retry(1, 2)).submit(boom)
    assert step.stats().pending == 4
    assert step.tick() == [Ran(0, "a", JobStatus.DONE), Ran(1, "b", JobStatus.DONE)]
    assert [step.status_of(job.id) for job in jobs] == [JobStatus.DONE, JobStatus.DONE, JobStatus.PENDING]
    assert step.get("c") is jobs[2]
    assert step.drain() == [
        Ran(0, "c", JobStatus.DONE),
        Ran(0, late.id, JobStatus.PENDING),
        Ran(0, late.id, JobStatus.FAILED),
    ]
    assert isinstance(late.exception(0), ValueError)
    assert step.cancel("a") is False
    assert step.shutdown()
    step.check()

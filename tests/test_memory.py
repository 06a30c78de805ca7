"""What a job costs while it waits, and that nothing is kept of one that has ended."""

import gc
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import Thing, uncollected
from tests.support import run_script
from threadsched import Job, Scheduler
from threadsched.testing import FakeClock, StepScheduler

LIMIT = 500
LIMIT_WITHOUT_CONTEXT = 450
PENDING = 200_000

PENDING_JOBS = """
    import contextvars, gc, os, sys
    from threadsched import Scheduler

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def task(): pass

    variable = contextvars.ContextVar("variable")
    total, context = int(sys.argv[1]), sys.argv[2] == "context"
    if context:
        variable.set("something")
    scheduler = Scheduler(2)
    def submit(count, delay):
        for number in range(count):
            scheduler.options(delay=delay + number % 1000, context=context).submit(task)
    later = [scheduler.options(delay=3600 + number % 1000, context=context) for number in range(1000)]
    submit(1000, 3600)  # warm: caches, threads, arenas
    gc.collect()
    before = resident()
    for number in range(total):
        later[number % 1000].submit(task)
    print((resident() - before) / total)
    scheduler.shutdown(cancel_futures=True)
"""


@pytest.mark.subprocess
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("context", "limit"), [("context", LIMIT), ("empty", LIMIT_WITHOUT_CONTEXT)])
def test_resident_bytes_of_a_pending_job(context: str, limit: int):
    """200,000 pending delayed jobs cost at most 500 bytes each of resident memory, 450 with an empty context."""
    answer = run_script(PENDING_JOBS, args=[f"{PENDING}", context], timeout=25)
    each = float(answer.stdout)
    assert 100 < each <= limit, f"{each:.0f} bytes a job"


def test_traced_bytes_of_a_pending_job():
    """The allocations of a pending job without context come to at most 450 bytes."""
    scheduler = StepScheduler(history=0)
    later = [scheduler.options(delay=3600 + number, context=False) for number in range(100)]
    total = 5_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(total):
            later[number % 100].submit(int)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 100 < (after - before) / total <= LIMIT_WITHOUT_CONTEXT


def test_no_keywords_cost_nothing():
    """A job keeps no empty dict for keywords that were not given, and no empty context."""
    scheduler = StepScheduler()
    job = scheduler.options(context=False).submit(int)
    assert job._fn is int
    assert job._result is None


@pytest.fixture(params=["lazy", "indexed"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """A scheduler with one worker on a fake clock, and nothing left of it afterwards."""
    with Scheduler(1, clock=FakeClock(), queue=request.param) as one:
        yield one
        one.shutdown(cancel_futures=True)


def rest(scheduler: Scheduler) -> None:
    """Wait until every worker sleeps."""
    clock = scheduler._runtime.clock
    assert isinstance(clock, FakeClock)
    clock.advance(0)


def work(*things: object, **more: object) -> None:
    """Take whatever is given."""


class Refusal(ValueError):
    """An error whose death can be watched."""


def fail(*things: object) -> None:
    raise Refusal("no")


@pytest.mark.parametrize("task", [work, fail])
def test_arguments_are_dropped_when_the_job_settles(scheduler: Scheduler, task: Any):
    """Once a job has ended its arguments are gone, though the job is still held."""
    with uncollected():
        first, second = Thing(), Thing()
        gone = [weakref.ref(first), weakref.ref(second)]
        job = scheduler.submit(task, first, second)
        del first, second
        error = job.exception(timeout=5)
        rest(scheduler)
        if error is not None:
            assert isinstance(error, ValueError)
            job._result.traceback = error.__traceback__ = None  # the frame of the task, which had the arguments
            del error
        assert [reference() for reference in gone] == [None, None]
        assert job.done()


def test_task_and_keywords_are_dropped_when_the_job_settles(scheduler: Scheduler):
    """The callable itself and keyword arguments are dropped too."""

    class Task:
        def __call__(self, **more: object) -> None: ...

    with uncollected():
        task, thing = Task(), Thing()
        gone = [weakref.ref(task), weakref.ref(thing)]
        job = scheduler.submit(task, thing=thing)
        del task, thing
        job.result(timeout=5)
        rest(scheduler)
        assert [reference() for reference in gone] == [None, None]


@pytest.mark.parametrize("delay", [0, 10])
def test_arguments_are_dropped_when_the_job_is_cancelled(scheduler: Scheduler, delay: float):
    """A cancelled job drops its arguments at once, though its entry may stay in a heap."""
    free, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert free.wait(5)

    scheduler.submit(hold)
    try:
        assert started.wait(5)
        with uncollected():
            thing = Thing()
            gone = weakref.ref(thing)
            job = scheduler.options(delay=delay).submit(work, thing, thing=thing)
            del thing
            assert gone() is not None
            assert job.cancel()
            assert gone() is None
    finally:
        free.set()


def test_settled_job_that_nobody_holds_is_gone(scheduler: Scheduler):
    """When a job has ended and nobody holds it, it is freed by reference counts alone, with its result."""
    ended = threading.Semaphore(0)
    with uncollected():
        kept: list[weakref.ref[Any]] = []

        def run(task: Any, **options: Any) -> None:
            job = scheduler.options(**options).submit(task)
            kept.append(weakref.ref(job))
            job.add_done_callback(lambda job: ended.release())

        run(Thing)
        run(fail)
        run(Thing, id="named")
        run(fail, retries=1, backoff=0)
        for _ in range(4):
            assert ended.acquire(timeout=5)
        rest(scheduler)
        assert [reference() for reference in kept] == [None] * 4
    assert scheduler.stats().submitted == 4


def test_cancelled_job_that_nobody_holds_is_gone(scheduler: Scheduler):
    """A cancelled delayed job is freed at once; its dead entry holds numbers only."""
    with uncollected():
        job: Job[Any] | None = scheduler.options(delay=10).submit(work)
        gone = weakref.ref(job)
        scheduler.cancel(job.id)  # type: ignore[union-attr]
        del job
        assert gone() is None


def test_job_whose_error_was_raised_to_the_caller_makes_no_cycle(scheduler: Scheduler):
    """Raising the error out of result() leaves no cycle between the job, the error and the frames."""
    with uncollected():
        job = scheduler.submit(fail)
        gone = weakref.ref(job)
        raised = False
        try:
            job.result(timeout=5)
        except Refusal:  # pytest.raises would keep the error, and with it the frames
            raised = True
        assert raised
        del job
        rest(scheduler)
        assert gone() is None


def test_idle_worker_holds_nothing(scheduler: Scheduler):
    """A worker that sleeps keeps neither the last job, nor its result, nor its error alive."""
    with uncollected():
        result = scheduler.submit(Thing)
        failed = scheduler.submit(fail)
        gone = [weakref.ref(result), weakref.ref(result.result(timeout=5)), weakref.ref(failed)]
        error = failed.exception(timeout=5)
        assert error is not None
        gone.append(weakref.ref(error))
        del result, failed, error
        rest(scheduler)
        assert [reference() for reference in gone] == [None] * 4


def test_history_holds_no_object_of_the_users(scheduler: Scheduler):
    """The records of ended jobs keep neither results, nor errors, nor tasks alive."""

    class Task:
        def __call__(self) -> Thing:
            return Thing()

    with uncollected():
        task = Task()
        job = scheduler.options(id="a", name="b").submit(task)
        gone = [weakref.ref(task), weakref.ref(job), weakref.ref(job.result(timeout=5))]
        del task, job
        rest(scheduler)
        assert [reference() for reference in gone] == [None] * 3
    assert [info.id for info in scheduler.snapshot()] == ["a"]


def test_stepped_scheduler_keeps_nothing_either():
    """After a tick nothing of the jobs that ran is kept."""
    scheduler = StepScheduler(2)
    with uncollected():
        jobs = [scheduler.submit(work, Thing()), scheduler.submit(fail, Thing())]
        gone = [weakref.ref(job) for job in jobs] + [weakref.ref(job._args[0]) for job in jobs]
        scheduler.tick()
        assert jobs[1].exception() is not None
        jobs.clear()
        assert [reference() for reference in gone] == [None] * 4


def test_a_task_that_looks_at_its_own_stack_is_not_kept(scheduler: Scheduler) -> None:
    """A snapshot taken inside a task holds that task's stack in no cycle: what was on it goes with the task."""

    class Thing:
        pass

    known: list[weakref.ref[Thing]] = []

    def look() -> int:
        thing = Thing()
        known.append(weakref.ref(thing))
        return len(scheduler.snapshot())

    gc.disable()
    try:
        assert scheduler.submit(look).result(5) == 1
        rest(scheduler)
        assert known[0]() is None
    finally:
        gc.enable()

"""Coroutines as tasks: driven to their end on a loop of the worker's own, and no trouble to anybody else."""

import asyncio
import contextvars
import functools
import gc
import itertools
import os
import threading
import traceback
import unittest.mock
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE, Thing, end_of, logged, neighbours, occupied, uncollected
from tests.producers import hasty_switches
from tests.support import run_script
from threadsched import Job, JobStatus, Retry, Scheduler, current_job
from threadsched.testing import FakeClock, StepScheduler

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.fixture(params=["lazy", "indexed"])
def s(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    with Scheduler(2, queue=request.param) as scheduler:
        yield scheduler
        scheduler.check()


# ---------------------------------------------------------------------- what is driven


async def coroutine(*args: Any) -> str:
    await asyncio.sleep(0)
    return "ran"


class Asynchronous:
    async def method(self) -> str:
        return await coroutine()

    @classmethod
    async def of_class(cls) -> str:
        return await coroutine()

    @staticmethod
    async def static() -> str:
        return await coroutine()

    async def __call__(self) -> str:
        return await coroutine()


@functools.wraps(coroutine)
def decorated(*args: Any) -> Any:
    return coroutine(*args)


TASKS: list[Any] = [
    coroutine,
    functools.partial(functools.partial(coroutine, 1), 2),
    Asynchronous().method,
    Asynchronous.of_class,
    Asynchronous.static,
    Asynchronous(),
    functools.partial(Asynchronous()),
    decorated,
    lambda: coroutine(),
    unittest.mock.AsyncMock(return_value="ran"),
]


@pytest.mark.parametrize("index", range(len(TASKS)))
def test_f50_a_coroutine_is_run_to_its_end(s: Scheduler, index: int):
    """An `async def` task in any wrapping, and a task that returns a coroutine, give what the coroutine returns."""
    with neighbours(s):
        assert s.submit(TASKS[index]).result(PATIENCE) == "ran"
        assert s.options(delay=0.001, retries=1).submit(TASKS[index]).result(PATIENCE) == "ran"
    assert list(s.map(coroutine, range(3), timeout=PATIENCE)) == ["ran"] * 3


def test_only_coroutine_objects_are_driven(s: Scheduler):
    """Any other value is returned as it is: a generator, an asynchronous one, a future, an awaitable object."""

    class Awaitable:
        def __await__(self) -> Any:
            raise AssertionError("awaited")

    async def numbers() -> Any:
        yield 1

    for value in (Awaitable(), (n for n in range(3)), numbers(), s.submit(int), coroutine):
        assert s.submit(lambda value=value: value).result(PATIENCE) is value


def test_a_coroutine_is_run_once():
    """A coroutine that was run before fails its job, as `await` would have it."""

    async def short() -> int:
        return 1

    used = short()
    with Scheduler(1) as s:
        assert s.submit(lambda: used).result(PATIENCE) == 1
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            s.submit(lambda: used).result(PATIENCE)


def test_the_slot_is_taken_until_the_coroutine_is_done():
    """The job runs, and its worker starts nothing else, while the coroutine waits; then the next one starts."""
    started, release = threading.Event(), []

    async def waits() -> str:
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        release.append(lambda: loop.call_soon_threadsafe(event.set))
        started.set()
        await event.wait()
        return "done"

    with Scheduler(1) as s:
        first, second = s.submit(waits), s.submit(int)
        assert started.wait(PATIENCE)
        assert (first.status, second.status) == (JobStatus.RUNNING, JobStatus.PENDING)
        assert s.stats().running == 1
        s.check()
        release[0]()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == ("done", 0)


def test_the_loop_is_one_per_worker_and_closed_with_it():
    """Jobs on one worker share its loop, another worker has another one, and all are closed after the shutdown."""
    meeting = threading.Barrier(2)

    async def loop_here(meet: bool) -> tuple[str, asyncio.AbstractEventLoop]:
        if meet:
            meeting.wait(PATIENCE)
        return threading.current_thread().name, asyncio.get_running_loop()

    with Scheduler(2, name="w") as s:
        loops = dict(job.result(PATIENCE) for job in [s.submit(loop_here, True), s.submit(loop_here, True)])
        assert len(set(loops.values())) == 2
        for _ in range(20):
            name, loop = s.submit(loop_here, False).result(PATIENCE)
            assert loops[name] is loop
        assert not any(loop.is_closed() for loop in loops.values())
    assert all(loop.is_closed() for loop in loops.values())


# ---------------------------------------------------------------------- what it may see


@pytest.mark.parametrize("context", [True, False])
def test_the_context_of_the_job_is_that_of_the_coroutine(context: bool):
    """The coroutine sees the submitter's context variables, and what an attempt sets is gone for the next."""
    seen: list[str] = []

    async def task() -> None:
        seen.append(colour.get())
        colour.set("set by an attempt")
        await asyncio.sleep(0)
        assert colour.get() == "set by an attempt"
        if len(seen) < 3:
            raise ValueError

    token = colour.set("the submitter's")
    try:
        with Scheduler(1) as s:
            s.options(retries=2, backoff=0, context=context).submit(task).result(PATIENCE)
            assert s.submit(colour.get).result(PATIENCE) == "the submitter's"
    finally:
        colour.reset(token)
    assert seen == ["the submitter's" if context else "none"] * 3


def test_current_job_inside_a_coroutine(s: Scheduler):
    """`current_job` is the coroutine's job, before and after it waited, and in the asyncio tasks that it starts."""

    async def look() -> Job[Any] | None:
        await asyncio.sleep(0)
        return current_job()

    async def task() -> list[Any]:
        first = current_job()
        await asyncio.sleep(0)
        return [first, current_job(), *await asyncio.gather(look(), look())]

    job = s.submit(task)
    assert job.result(PATIENCE) == [job] * 4
    assert current_job() is None


# ---------------------------------------------------------------------- how it ends


class CustomError(Exception):
    pass


ERRORS = [CustomError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, MemoryError, BaseException]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.filterwarnings("error")
def test_f34_what_a_coroutine_raises_settles_that_job_alone(kind: type[BaseException], late: bool):
    """Anything that comes out of a coroutine makes its job FAILED; loop and worker serve the next one."""

    async def here() -> tuple[int, Any]:
        return threading.get_ident(), asyncio.get_running_loop()

    async def task() -> None:
        if late:
            await asyncio.sleep(0)
        raise kind("out of a coroutine")

    with logged() as log, Scheduler(1) as s, neighbours(s):
        before = s.submit(here).result(PATIENCE)
        for _ in range(3):
            job = s.options(retries=0).submit(task)
            error = job.exception(PATIENCE)
            assert type(error) is kind
            assert job.status is JobStatus.FAILED
            # The traceback is as the task left it.
            assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["task"]
        assert s.submit(here).result(PATIENCE) == before
        assert s.stats().replaced_workers == 0
        del job, error
    assert log.lines == []


def test_retries_call_the_task_again(s: Scheduler):
    """Each attempt calls `fn` anew; a coroutine that fails is retried as any task is."""
    attempts = itertools.count(1)

    async def task() -> int:
        await asyncio.sleep(0)
        if (attempt := next(attempts)) < 3:
            raise CustomError(attempt)
        return attempt

    job = s.options(retries=5, backoff=0).submit(task)
    assert job.result(PATIENCE) == 3
    assert job.attempts == 3
    bad = s.options(retry=Retry(5, 0, on=(KeyError,))).submit(raises, CustomError("no retry"))
    with pytest.raises(CustomError):
        bad.result(PATIENCE)
    assert bad.attempts == 1


async def raises(error: BaseException) -> None:
    raise error


def test_a_failed_coroutine_makes_no_cycle():
    """With nobody holding the job, its error, its frames and its arguments go without the collector's help."""
    with uncollected(), Scheduler(1) as s:

        async def task(thing: object) -> None:
            await asyncio.sleep(0)
            raise CustomError

        thing = Thing()
        gone = end_of(thing)
        job = s.submit(task, thing)
        del thing
        assert isinstance(job.exception(PATIENCE), CustomError)
        error = weakref.ref(job)
        del job
        s.submit(int).result(PATIENCE)
        s.submit(int).result(PATIENCE)
        assert gone.wait(PATIENCE)
        assert error() is None


# ---------------------------------------------------------------------- asked to stop


async def endless(started: threading.Event) -> None:
    started.set()
    await asyncio.Event().wait()


def test_int_02_a_running_coroutine_is_cancelled_by_request(s: Scheduler):
    """`request_cancel` cancels the coroutine on its loop; it ends CANCELLED if it lets the CancelledError out."""
    started = threading.Event()
    with neighbours(s):
        job = s.options(retries=3, backoff=0).submit(endless, started)
        assert started.wait(PATIENCE)
        assert job.cancel() is False
        assert job.request_cancel() is True
        with pytest.raises(Exception, match="CANCELLED"):
            job.result(PATIENCE)
        assert job.status is JobStatus.CANCELLED
        assert job.attempts == 1
        assert job.request_cancel() is False


def test_a_coroutine_may_clean_up_or_refuse_when_it_is_asked_to_stop(s: Scheduler):
    """One that handles the cancellation ends as it says: with a value, or with an error that is not retried."""
    started = threading.Event()

    async def answers() -> str:
        try:
            await endless(started)
        except asyncio.CancelledError:
            job = current_job()
            assert job is not None
            assert job.cancel_requested
            await asyncio.sleep(0)
        return "stopped in order"

    async def fails() -> None:
        try:
            await endless(started)
        finally:
            raise CustomError

    job: Job[Any] = s.submit(answers)
    assert started.wait(PATIENCE)
    assert job.request_cancel()
    assert job.result(PATIENCE) == "stopped in order"
    started.clear()
    job = s.options(retries=3).submit(fails)
    assert started.wait(PATIENCE)
    assert job.request_cancel()
    assert isinstance(job.exception(PATIENCE), CustomError)
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)


def test_a_request_before_the_coroutine_is_driven(s: Scheduler):
    """A request that comes while the task has not yet returned its coroutine cancels that before its first line."""
    ran = []

    async def body() -> None:
        ran.append(1)

    def task() -> Any:
        job = current_job()
        assert job is not None
        job.request_cancel()
        return body()

    job = s.submit(task)
    with pytest.raises(Exception, match="CANCELLED"):
        job.result(PATIENCE)
    assert ran == []
    assert s.stats().cancelled == 1


def test_requests_that_race_with_the_end():
    """A request at any moment leaves an ended job and a sound loop, and never cancels the next job."""
    with hasty_switches(), Scheduler(2) as s:
        outcomes = set()
        for round in range(150):

            async def task(round: int = round) -> int:
                for _ in range(round % 7):
                    await asyncio.sleep(0)
                return round

            jobs = [s.submit(task) for _ in range(4)]
            for job in jobs[::2]:
                job.request_cancel()
            for job in jobs[1::2]:
                assert job.result(PATIENCE) == round
            for job in jobs[::2]:
                assert s.submit(int).result(PATIENCE) == 0
                outcomes.add("cancelled" if cancelled(job) else job.result(PATIENCE) == round)
        assert s.wait_idle(PATIENCE)
        s.check()
        assert outcomes <= {"cancelled", True}


def test_a_late_request_never_reaches_the_next_job():
    """A request that arrives on the loop when its job has ended leaves the one that runs there then alone."""
    late: list[Any] = []

    async def first() -> None:
        job = current_job()
        assert job is not None
        assert job._attached is not None
        late.append(job._attached.stopper)

    async def second() -> str:
        late[-1]()  # as another thread would that was held up on its way
        for _ in range(5):
            await asyncio.sleep(0)
        return "undisturbed"

    with Scheduler(1) as s:
        for _ in range(3):
            s.submit(first).result(PATIENCE)
            late[-1]()
            assert s.submit(second).result(PATIENCE) == "undisturbed"


def test_a_request_while_the_rest_is_cleared_away(s: Scheduler):
    """A task left behind that resists its cancellation is cancelled again by a request."""
    resists = threading.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            resists.set()
            await asyncio.Event().wait()

    async def leaves() -> str:
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        return f"done, but for {task.done()}"

    with neighbours(s):
        job = s.submit(leaves)
        assert resists.wait(PATIENCE)
        assert job.running()
        assert job.request_cancel()
        assert job.result(PATIENCE) == "done, but for False"


def cancelled(job: Job[Any]) -> bool:
    try:
        job.result(PATIENCE)
    except Exception:
        return job.cancelled()
    return False


# ---------------------------------------------------------------------- what it leaves behind


def test_tasks_left_behind_do_not_harm_the_next_job(caplog: pytest.LogCaptureFixture):
    """They are cancelled and awaited before the job ends; what they raise is logged through the loop's handler."""
    told: list[str] = []

    async def left(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append(name)
            if name == "bad":
                raise CustomError("left behind")

    async def leaves() -> str:
        tasks = [asyncio.ensure_future(left(name)) for name in ("good", "bad")]
        await asyncio.sleep(0)
        return f"{len(tasks)} left"

    async def counts() -> int:
        return len(asyncio.all_tasks())

    with Scheduler(1) as s:
        assert s.submit(leaves).result(PATIENCE) == "2 left"
        assert sorted(told) == ["bad", "good"]
        assert s.submit(counts).result(PATIENCE) == 1
    assert [record.name for record in caplog.records] == ["asyncio"]
    assert "a task that a job left behind raised" in caplog.text
    assert "CustomError: left behind" in caplog.text


@pytest.mark.subprocess
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_task_that_does_not_end_costs_the_loop_and_not_the_worker(times: int):
    """A stray task that swallows its cancellation is cancelled again; one that always does goes with its loop."""
    done = run_script(
        f"""
        import asyncio, threading
        from threadsched import Scheduler, _coroutines
        _coroutines.GRACE = 0.05
        _coroutines.INSISTENCE = 0.01
        async def swallows():
            for _ in range({times}):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
            await asyncio.Event().wait()
        async def leaves():
            asyncio.ensure_future(swallows())
            await asyncio.sleep(0)
            return asyncio.get_running_loop(), threading.get_ident()
        async def look():
            return len(asyncio.all_tasks()), asyncio.get_running_loop(), threading.get_ident()
        with Scheduler(1) as s:
            first, thread = s.submit(leaves).result(10)
            count, loop, again = s.submit(look).result(10)
            print(count, loop is first, thread == again)
        """
    )
    assert done.stdout == f"1 {times < 10} True\n"
    assert ("the event loop of threadsched_0 cannot be cleared and is replaced" in done.stderr) == (times > 10)


@pytest.mark.subprocess
def test_a_task_that_breeds_costs_the_loop_and_not_the_worker():
    """A loop that cannot be cleared is replaced, with a line in the log; the worker goes on."""
    done = run_script(
        """
        import asyncio, threading
        from threadsched import Scheduler
        bred = []
        async def breeds():
            try:
                await asyncio.Event().wait()
            finally:
                bred.append(asyncio.ensure_future(breeds()))
                await asyncio.sleep(0)
        async def parent():
            bred.append(asyncio.ensure_future(breeds()))
            await asyncio.sleep(0)
            return asyncio.get_running_loop(), threading.get_ident()
        async def look():
            return len(asyncio.all_tasks()), asyncio.get_running_loop(), threading.get_ident()
        with Scheduler(1) as s:
            first, thread = s.submit(parent).result(10)
            count, loop, again = s.submit(look).result(10)
            print(count, loop is first, first.is_closed(), thread == again)
        """
    )
    assert done.stdout == "1 False True True\n"
    assert "the event loop of threadsched_0 cannot be cleared and is replaced" in done.stderr


def test_a_coroutine_that_stops_its_loop(s: Scheduler):
    """`loop.stop()` inside a task does not end it early."""

    async def task() -> str:
        for _ in range(3):
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.001)
        return "to the end"

    with neighbours(s):
        assert s.submit(task).result(PATIENCE) == "to the end"


def test_a_task_may_run_a_loop_of_its_own(s: Scheduler):
    """`asyncio.run` inside a plain task works, also on a worker that has driven coroutines before."""
    for _ in range(4):
        assert s.submit(coroutine).result(PATIENCE) == "ran"
        assert s.submit(lambda: asyncio.run(coroutine())).result(PATIENCE) == "ran"


# ---------------------------------------------------------------------- shutdown, fork, exit


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shutdown_waits_for_a_running_coroutine(drain: Any):
    """What runs is let to its end under each mode, and its loop is closed before the shutdown returns."""
    started = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    events: list[asyncio.Event] = []

    async def task() -> str:
        loops.append(asyncio.get_running_loop())
        events.append(asyncio.Event())
        started.set()
        await events[0].wait()
        return "done"

    s = Scheduler(1)
    job, behind = s.submit(task), s.submit(coroutine)
    assert started.wait(PATIENCE)
    report = s.shutdown(wait=False, drain=drain)
    assert len(report.running) == 1
    assert report.running[0].name.endswith("task")
    loops[0].call_soon_threadsafe(events[0].set)
    assert s.shutdown(timeout=PATIENCE)
    assert job.result(0) == "done"
    assert behind.cancelled() is (drain == "none")
    assert loops[0].is_closed()


def test_a_dropped_scheduler_closes_its_loops():
    """Workers that nobody holds a scheduler for close their loops as they leave."""

    async def loop_here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    s = Scheduler(1)
    loop = s.submit(loop_here).result(PATIENCE)
    thread = next(thread for thread in threading.enumerate() if thread.name == "threadsched_0")
    del s
    gc.collect()
    thread.join(PATIENCE)
    assert loop.is_closed()


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_inside_a_coroutine_leaves_the_parent_alone():
    """The child of a fork made by a coroutine may go on to its end; the parent's loop still hears of other threads."""
    done = run_script(
        """
        import asyncio, os, warnings
        from threadsched import Scheduler
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        s = Scheduler(1)
        async def forks():
            await asyncio.sleep(0)
            return os.fork(), asyncio.get_running_loop()
        async def heard():
            loop, event = asyncio.get_running_loop(), asyncio.Event()
            await asyncio.to_thread(loop.call_soon_threadsafe, event.set)
            await event.wait()
            return "heard"
        pid, loop = s.submit(forks).result(10)
        os.waitpid(pid, 0)
        print(s.submit(heard).result(10), bool(s.shutdown()))
        """
    )
    assert (done.stdout, done.stderr) == ("heard True\n", "")


@pytest.mark.subprocess
def test_exit_with_a_coroutine_that_waits():
    """At exit a running coroutine is asked to stop when half of the time is over, and nothing is said of it."""
    done = run_script(
        """
        import asyncio, threading
        from threadsched import Scheduler
        s, started = Scheduler(1, exit_timeout=1), threading.Event()
        async def waits():
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                print("asked to stop", flush=True)
        job = s.submit(waits)
        started.wait(10)
        """
    )
    assert (done.stdout, done.stderr) == ("asked to stop\n", "")


@pytest.mark.subprocess
def test_asyncio_is_imported_when_it_is_needed():
    """Importing the package, and running jobs that are no coroutines, does not import asyncio."""
    done = run_script(
        """
        import sys
        import threadsched, threadsched.testing
        with threadsched.Scheduler(1) as s:
            s.options(retries=1).submit(pow, 2, 3).result(5)
            print("asyncio" in sys.modules)
            async def task(): ...
            s.submit(task).result(5)
            print("asyncio" in sys.modules)
        """
    )
    assert done.stdout == "False\nTrue\n"


# ---------------------------------------------------------------------- stepped


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.filterwarnings("error")
def test_the_stepped_scheduler_drives_coroutines(queue: str):
    """A tick runs a coroutine to its end on the calling thread; failures, retries and requests are as on workers."""
    clock, calls = FakeClock(), []

    async def task() -> str:
        calls.append(clock.now())
        await asyncio.sleep(0)
        assert current_job() is job
        if len(calls) < 3:
            raise CustomError
        return "third time"

    async def asks() -> None:
        current = current_job()
        assert current is not None
        current.request_cancel()
        await asyncio.sleep(0)

    s = StepScheduler(clock=clock, queue=queue)
    job = s.options(retries=2, backoff=1).submit(task)
    s.drain()
    assert (job.result(0), calls) == ("third time", [0.0, 1.0, 3.0])
    job = s.submit(raises, SystemExit(3))  # type: ignore[assignment]
    asked = s.submit(asks)
    s.drain()
    assert isinstance(job.exception(0), SystemExit)
    assert asked.status is JobStatus.CANCELLED
    s.check()
    gc.collect()  # no loop is left open: that would be a ResourceWarning


@pytest.mark.filterwarnings("error")
def test_a_tick_inside_a_running_loop():
    """There a coroutine cannot be driven: its job says so, and plain jobs run."""

    async def main() -> None:
        s = StepScheduler(2)
        driven, plain = s.submit(coroutine), s.submit(int)
        s.tick()
        assert plain.result(0) == 0
        with pytest.raises(RuntimeError, match="inside a running event loop"):
            driven.result(0)

    asyncio.run(main())
    gc.collect()


def test_coroutines_queue_like_other_jobs():
    """Priority, delay and cancellation before the start are those of any job."""
    clock, order = FakeClock(), []

    async def task(name: str) -> None:
        order.append(name)

    with Scheduler(1, clock=clock) as s:
        with occupied(s):
            s.options(priority=9).submit(task, "last")
            s.options(priority=1).submit(task, "first")
            late = s.options(delay=5).submit(task, "late")
            assert s.options(delay=9).submit(task, "never").cancel()
        clock.advance(4)
        assert order == ["first", "last"]
        clock.advance(1)
        late.result(PATIENCE)
    assert order == ["first", "last", "late"]

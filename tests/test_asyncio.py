"""The scheduler under asyncio: jobs are awaited, and a scheduler is left, without blocking the loop."""

import asyncio
import concurrent.futures
import gc
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Thing, end_of, logged, occupied, uncollected
from tests.producers import hasty_switches
from tests.support import run_script
from threadsched import Job, JobStatus, Scheduler, SchedulerClosedError, current_job
from threadsched.testing import FakeClock, StepScheduler


def on_a_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` on a loop of its own, with a bound on the time."""
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # bounded by on_a_loop
        await asyncio.sleep(0)


class CustomError(Exception):
    pass


def raises(error: BaseException) -> None:
    raise error


# ---------------------------------------------------------------------- await job


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_await_gives_the_result_or_the_error(queue: Any):
    """`await job` returns what the task returned and raises what it raised, before and after the end, many times."""

    async def main() -> None:
        job, bad = s.submit(pow, 2, 3), s.submit(raises, CustomError("on a worker"))
        for _ in range(3):
            assert await job == 8
            with pytest.raises(CustomError, match="on a worker"):
                await bad
        again = s.options(retries=1, backoff=0).submit(raises, CustomError("twice"))
        with pytest.raises(CustomError):
            await again
        assert again.attempts == 2
        s.check()

    with Scheduler(2, queue=queue) as s:
        on_a_loop(main)


def test_await_counts_as_having_looked():
    """A failure that was awaited is not logged as unseen; its traceback does not grow with each look."""

    async def main() -> None:
        bad = s.submit(raises, CustomError())
        for _ in range(50):
            with pytest.raises(CustomError) as caught:
                await bad
            names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names == ["main", "__await__" if "__await__" in names else "wait_for", "result", "raises"]

    with logged() as log, Scheduler(1) as s:
        on_a_loop(main)
        gc.collect()
    assert log.lines == []


def test_await_leaves_no_cycle():
    """An awaited failure, its job and its arguments go when they are dropped, without the collector's help."""

    async def main() -> threading.Event:
        things = [Thing()]
        gone = end_of(things[0])

        def task(held: object) -> None:
            raise CustomError

        try:
            await s.submit(task, things.pop())
        except CustomError:
            pass
        return gone

    with uncollected(), Scheduler(1) as s:
        gone = on_a_loop(main)
        s.submit(int).result(PATIENCE)
        s.submit(int).result(PATIENCE)
        assert gone.wait(PATIENCE)


def test_await_does_not_block_the_loop():
    """While a job runs the loop serves others, and any number of tasks may await one job."""
    gate = Gate()

    async def main() -> None:
        job = s.submit(gate, "value")
        waiting = [asyncio.ensure_future(give(job)) for _ in range(10)]
        await until(gate.started.is_set)
        await turns(20)
        assert not any(one.done() for one in waiting)
        gate.open()
        assert await asyncio.gather(*waiting) == ["value"] * 10

    with Scheduler(1) as s:
        on_a_loop(main)


async def give(job: Job[Any]) -> Any:
    return await job


def test_two_loops_await_one_job():
    """Each loop is told on its own thread."""
    gate = Gate()
    with Scheduler(1) as s:
        job = s.submit(gate, 7)
        got: list[Any] = []
        threads = [threading.Thread(target=lambda: got.append(asyncio.run(give(job)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        gate.await_start()
        gate.open()
        for thread in threads:
            thread.join(PATIENCE)
        assert got == [7] * 4


def test_gather_and_wait_for_take_jobs():
    """`gather`, `wait_for`, `wait`, `as_completed`, `timeout` and task groups work with jobs or what awaits them."""

    async def main() -> None:
        jobs = [s.submit(pow, number, 2) for number in range(20)]
        assert await asyncio.gather(*jobs) == [number**2 for number in range(20)]
        ends = await asyncio.gather(s.submit(raises, CustomError()), s.submit(int), return_exceptions=True)
        assert [type(end) for end in ends] == [CustomError, int]
        assert await asyncio.wait_for(s.submit(pow, 2, 5), PATIENCE) == 32
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(give(s.submit(pow, 3, number))) for number in (1, 2)]
        assert [task.result() for task in both] == [3, 9]
        assert sorted([await one for one in asyncio.as_completed([s.submit(int), s.submit(pow, 1, 1)])]) == [0, 1]

    with Scheduler(2) as s:
        on_a_loop(main)


def test_await_of_a_cancelled_job():
    """It raises an error that both asyncio's and concurrent.futures' users know as CancelledError."""

    async def main() -> None:
        with occupied(s):
            job = s.submit(int)
            waiting = asyncio.ensure_future(give(job))
            await turns()
            assert job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            for kind in (asyncio.CancelledError, concurrent.futures.CancelledError):
                with pytest.raises(kind):
                    await job
            assert isinstance((await asyncio.gather(job, return_exceptions=True))[0], asyncio.CancelledError)

    with Scheduler(1) as s:
        on_a_loop(main)


def test_await_outside_asyncio():
    """A job that has ended can be awaited by any event loop; one that has not needs asyncio's."""
    with Scheduler(1) as s:
        ended = s.submit(pow, 2, 2)
        ended.result(PATIENCE)
        with pytest.raises(StopIteration) as stopped:
            give(ended).send(None)
        assert stopped.value.value == 4
        with occupied(s):
            coroutine = give(s.submit(int))
            with pytest.raises(RuntimeError, match="no running event loop"):
                coroutine.send(None)


# ---------------------------------------------------------------------- cancelling who awaits


def test_f51_cancelling_the_awaiting_task_cancels_a_pending_job():
    """The job is CANCELLED at once; a shielded one is not, and goes on."""

    async def main() -> None:
        with occupied(s):
            job, shielded = s.submit(int), s.submit(int)
            waiting = [
                asyncio.ensure_future(give(job)),
                asyncio.ensure_future(asyncio.wait_for(give(s.submit(int)), 9)),
            ]
            guarded = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(shielded), 0.001))
            await turns()
            for one in waiting:
                one.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await one
            assert job.status is JobStatus.CANCELLED
            with pytest.raises(TimeoutError):
                await guarded
            assert shielded.status is JobStatus.PENDING
            assert s.stats().cancelled == 2
        assert await shielded == 0

    with Scheduler(1) as s:
        on_a_loop(main)
        s.check()


def test_f51_cancelling_the_awaiting_task_asks_a_running_job_to_stop():
    """Its token is set and no retry follows; it ends CANCELLED by its own hand, or as it likes."""
    started = threading.Event()

    def polite() -> None:
        job = current_job()
        assert job is not None
        started.set()
        job.sleep(60)
        job.check_cancelled()

    async def coroutine() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        for task in (polite, coroutine):
            started.clear()
            job: Job[Any] = s.options(retries=3).submit(task)
            waiting = asyncio.ensure_future(give(job))
            await until(started.is_set)
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(asyncio.CancelledError):
                await job
            assert (job.status, job.attempts) == (JobStatus.CANCELLED, 1)

    with Scheduler(1) as s:
        on_a_loop(main)


def test_wait_for_that_runs_out_cancels_the_job():
    """The time limit of `wait_for` gives a pending job up."""

    async def main() -> None:
        with occupied(s):
            job = s.submit(int)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job, 0.001)
            assert job.status is JobStatus.CANCELLED

    with Scheduler(1) as s:
        on_a_loop(main)


def test_awaiting_and_giving_up_leaves_nothing_on_the_job():
    """A job that is awaited through a shield again and again gathers no callbacks of waits that were closed."""

    async def main() -> None:
        with occupied(s):
            job = s.submit(int)
            for _ in range(50):
                coroutine = give(job)
                coroutine.send(None)
                coroutine.close()
            assert job._attached is not None
            assert job._attached.callbacks == []
            assert job.status is JobStatus.PENDING

    with Scheduler(1) as s:
        on_a_loop(main)


def test_cancels_that_race_with_the_end():
    """Whoever wins, the awaiting task ends with the value or with CancelledError, and the job has ended."""

    async def main() -> None:
        for _ in range(100):
            jobs = [s.submit(int) for _ in range(6)]
            waiting = [asyncio.ensure_future(give(job)) for job in jobs]
            await asyncio.sleep(0)
            for one in waiting[::2]:
                one.cancel()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(end == 0 or isinstance(end, asyncio.CancelledError) for end in ends)
            assert ends[1::2] == [0, 0, 0]
        assert await asyncio.to_thread(s.wait_idle, PATIENCE)
        s.check()

    with hasty_switches(), Scheduler(2) as s:
        on_a_loop(main)


@pytest.mark.subprocess
def test_f51_a_loop_that_closes_before_the_job_ends():
    """No noise in the log: the running job's token is set, its queued sibling is cancelled, the news is dropped."""
    done = run_script(
        """
        import asyncio, gc, threading
        from threadsched import Scheduler, current_job
        s = Scheduler(1)
        gate, started, woken = threading.Event(), threading.Event(), []
        def task():
            job = current_job()
            started.set()
            woken.append(job.sleep(60))
            gate.wait(10)
            return job.cancel_requested
        running, queued = s.submit(task), s.submit(print, "never")
        async def wait(job):
            await job
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60  # or it complains of a busy machine
            waits = [asyncio.ensure_future(wait(job)) for job in (running, queued)]
            await asyncio.to_thread(started.wait)
        asyncio.run(main(), debug=True)
        print(queued.cancelled(), running.running())

        # A loop that is closed with the wait still open.
        loop = asyncio.new_event_loop()
        loop.slow_callback_duration = 60
        another = wait(running)
        loop.call_soon(another.send, None)
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        gate.set()
        print(running.result(), woken, bool(s.shutdown()))
        another.close()
        gc.collect()
        """,
        options=["-X", "dev"],
    )
    assert (done.stdout, done.stderr) == ("True True\nTrue [False] True\n", "")


# ---------------------------------------------------------------------- async with


def test_async_with_shuts_down_and_waits():
    """Leaving the block runs all that is pending, also what is delayed, and the workers are gone; the loop is free."""
    gate, ticks = Gate(), []

    async def opens() -> None:
        await until(gate.started.is_set)
        for number in range(20):
            await asyncio.sleep(0)
            ticks.append(number)
        gate.open()

    async def main() -> None:
        opener = asyncio.ensure_future(opens())
        async with Scheduler(1) as s:
            running, behind = s.submit(gate, 1), s.options(delay=0.01).submit(int)
        assert len(ticks) == 20
        assert (running.result(0), behind.result(0)) == (1, 0)
        assert s.stats().workers == 0
        with pytest.raises(SchedulerClosedError):
            s.submit(int)
        await opener

    on_a_loop(main)


def test_async_with_left_by_an_error():
    """It drains "due": what is ready runs, what is delayed is cancelled; the error goes on."""

    async def main() -> None:
        gate = Gate()
        with pytest.raises(CustomError):
            async with Scheduler(1) as s:
                first, ready, late = s.submit(gate), s.submit(int), s.options(delay=60).submit(int)
                await until(gate.started.is_set)
                gate.open()
                raise CustomError
        assert (first.status, ready.status, late.status) == (JobStatus.DONE, JobStatus.DONE, JobStatus.CANCELLED)

    on_a_loop(main)


def test_async_with_left_by_a_cancel():
    """Cancelled while it waits for the workers it gives up the wait; the door is closed and the jobs finish."""
    gate = Gate()

    async def main() -> Scheduler:
        async with Scheduler(1) as s:
            jobs.append(s.submit(gate, "finished"))
            jobs.append(s.submit(int))
            inside.append(s)
        return s

    async def outer() -> None:
        task = asyncio.ensure_future(main())
        await until(lambda: bool(inside) and inside[0].closed)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    jobs: list[Job[Any]] = []
    inside: list[Scheduler] = []
    on_a_loop(outer)
    gate.open()
    assert [job.result(PATIENCE) for job in jobs] == ["finished", 0]
    assert inside[0].shutdown(timeout=PATIENCE)


def test_int_04_async_with_cancelled_at_its_start():
    """A cancel that comes before the block is entered leaves nothing open."""

    async def main() -> None:
        async def uses() -> None:
            async with Scheduler(1) as s:
                seen.append(s)
                await s.submit(int)

        task = asyncio.ensure_future(uses())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    seen: list[Scheduler] = []
    on_a_loop(main)
    assert seen == []


def test_async_with_inside_a_coroutine_of_its_own():
    """A coroutine task that leaves its own scheduler's block closes the door and does not wait for itself."""

    async def task(s: Scheduler) -> str:
        async with s:
            pass
        return "did not wait"

    s = Scheduler(1)
    job, behind = s.submit(task, s), s.submit(int)
    assert job.result(PATIENCE) == "did not wait"
    assert s.closed
    assert behind.result(PATIENCE) == 0
    assert s.shutdown(timeout=PATIENCE)


# ---------------------------------------------------------------------- other clocks


def test_await_under_a_fake_clock():
    """A delayed job is awaited on the scheduler's clock."""
    clock = FakeClock()

    async def main() -> None:
        job = s.options(delay=5).submit(clock.now)
        waiting = asyncio.ensure_future(give(job))
        await turns()
        clock.advance(4)
        assert not waiting.done()
        clock.advance(1)
        assert await waiting == 5.0

    with Scheduler(1, clock=clock) as s:
        on_a_loop(main)


def test_await_with_the_stepped_scheduler():
    """A job that a tick ran is awaited like any other."""

    async def main() -> None:
        s = StepScheduler()
        job = s.submit(pow, 2, 2)
        waiting = asyncio.ensure_future(give(job))
        await turns()
        assert not waiting.done()
        s.tick()
        assert await waiting == 4

    on_a_loop(main)

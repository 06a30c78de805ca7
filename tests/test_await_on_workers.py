"""Coroutine tasks that await jobs of their own scheduler, on a worker's loop."""

import asyncio
import concurrent.futures
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, logged, neighbours, occupied
from threadsched import DeadlockError, Job, JobStatus, Scheduler, current_job
from threadsched.testing import FakeClock, StepScheduler


class CustomError(Exception):
    pass


async def tree(s: Any, depth: int, fan: int) -> int:
    """Count the nodes of a tree, each a coroutine job that awaits its children together."""
    me = current_job()
    if depth == 0:
        return 1
    children = [s.submit(tree, s, depth - 1, fan) for _ in range(fan)]
    total = 1 + sum(await asyncio.gather(*children))
    assert current_job() is me
    return total


def whole(s: Scheduler) -> None:
    """Everything that stands for a wait is gone, and the pool serves."""
    assert s.wait_idle(PATIENCE)
    with neighbours(s):
        pass
    runtime = s._runtime
    assert (runtime.helpers, runtime.awaits, runtime.stand_in, runtime.core.left_behind) == ({}, {}, None, set())
    with runtime.lock:
        workers = list(runtime.workers.values())
    assert [(worker.depth, worker.adopted, worker.tasks) for worker in workers] == [(0, set(), {})] * len(workers)


def run(s: Scheduler, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function as a job, and check that nothing of it is left."""
    value = s.submit(main).result(PATIENCE)
    whole(s)
    return value


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_trees_of_coroutines_on_a_full_pool(workers: int, queue: Any):
    """Coroutines that await coroutines of their own pool end on any pool, also four trees at once."""
    with Scheduler(workers, queue=queue) as s:
        assert s.submit(tree, s, 3, 3).result(PATIENCE) == 40
        assert [job.result(PATIENCE) for job in [s.submit(tree, s, 3, 3) for _ in range(4)]] == [40] * 4
        whole(s)


def test_a_coroutine_awaits_functions_and_coroutines():
    """A function is run inline, a coroutine as a task of the same loop, each in its own context and as its own job."""
    seen: list[Any] = []

    def function() -> str:
        seen.append((current_job(), threading.get_ident()))
        return "function"

    async def coroutine() -> str:
        await asyncio.sleep(0)
        seen.append((current_job(), threading.get_ident()))
        return "coroutine"

    async def main() -> list[Any]:
        jobs: list[Job[Any]] = [s.submit(function), s.submit(coroutine), s.submit(lambda: coroutine())]
        seen.append(jobs)
        return [await job for job in jobs] + [threading.get_ident()]

    with Scheduler(1) as s:
        *values, thread = run(s, main)
    assert values == ["function", "coroutine", "coroutine"]
    assert seen[1:] == [(job, thread) for job in seen[0]]


def test_many_awaited_coroutines_run_together():
    """Coroutines awaited by one on the only worker overlap on its loop: two hundred meet there."""

    async def member(arrived: list[int], event: asyncio.Event) -> None:
        arrived.append(1)
        if len(arrived) == 200:
            event.set()
        await event.wait()

    async def main() -> int:
        arrived: list[int] = []
        event = asyncio.Event()
        await asyncio.gather(*[s.submit(member, arrived, event) for _ in range(200)])
        return len(arrived)

    with Scheduler(1) as s:
        assert run(s, main) == 200


@pytest.mark.parametrize("kind", [CustomError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_an_awaited_coroutine_raises_is_its_own(kind: type[BaseException]):
    """It fails that job, the awaiting one may catch it, and the loop goes on."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise kind("its own")

    async def main() -> JobStatus:
        job = s.submit(fails)
        try:
            await job
        except kind:
            assert await s.submit(pow, 2, 2) == 4
            return job.status
        raise AssertionError("not raised")

    with logged() as log, Scheduler(1) as s:
        assert run(s, main) is JobStatus.FAILED
    assert log.lines == []


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_an_awaited_job_is_retried(kind: str):
    """One that fails is retried after its backoff, on the scheduler's clock, though its only worker awaits it."""
    clock, starts = FakeClock(), []

    def function() -> str:
        starts.append(clock.now())
        if len(starts) < 3:
            raise CustomError
        return "third time"

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return function()

    async def main() -> Any:
        return await s.options(retries=2, backoff=4).submit(function if kind == "function" else coroutine)

    with Scheduler(1, clock=clock) as s:
        job = s.submit(main)
        clock.advance(20)
        assert (job.result(PATIENCE), starts) == ("third time", [0.0, 4.0, 12.0])
        whole(s)


def test_a_delayed_job_that_a_coroutine_awaits_starts_on_time():
    """Though every worker awaits, each delayed job starts at its very time, on a fake clock and on the real one."""
    clock = FakeClock()

    async def main(delay: float) -> float:
        return await s.options(delay=delay).submit(clock.now)

    with Scheduler(2, clock=clock) as s:
        jobs = [s.submit(main, delay) for delay in (5.0, 7.0)]
        clock.advance(6)
        assert jobs[0].result(PATIENCE) == 5.0
        assert jobs[1].running()
        s.check()
        clock.advance(6)
        assert jobs[1].result(PATIENCE) == 7.0
        whole(s)

    async def real() -> bool:
        job = s.options(delay=0.02).submit(int)
        await job
        return job.info().started_at >= job.run_at  # type: ignore[operator]

    with Scheduler(1) as s:
        assert run(s, real) is True


def test_awaiting_what_runs_elsewhere():
    """A job that another worker runs is awaited without being touched."""
    gate = Gate()

    async def main() -> Any:
        return await running

    with Scheduler(2) as s:
        running = s.submit(gate, "value")
        gate.await_start()
        job = s.submit(main)
        gate.open()
        assert job.result(PATIENCE) == "value"
        whole(s)


# ---------------------------------------------------------------------- refused


def test_rings_of_coroutines_are_refused():
    """A coroutine that awaits itself, its own awaiter, or round a ring of three workers gets DeadlockError."""
    boxes: list[Job[Any]] = []

    async def child() -> Any:
        return await boxes[0]

    async def parent() -> Any:
        return await s.submit(child)

    for task in (child, parent):
        with Scheduler(1) as s:
            boxes.clear()
            with occupied(s):
                boxes.append(s.submit(task))
            with pytest.raises(DeadlockError, match="would wait for"):
                boxes[0].result(PATIENCE)
            whole(s)

    meeting = threading.Barrier(4)

    async def member(number: int) -> Any:
        meeting.wait(PATIENCE)
        return await boxes[(number + 1) % 3]

    with Scheduler(3) as s:
        boxes[:] = [s.options(id=f"member {number}").submit(member, number) for number in range(3)]
        meeting.wait(PATIENCE)
        for job in boxes:
            with pytest.raises(DeadlockError) as caught:
                job.result(PATIENCE)
            assert all(f"job 'member {number}'" in str(caught.value) for number in range(3))
        whole(s)


def test_a_function_and_a_coroutine_that_wait_for_each_other():
    """A coroutine that awaits the function below it on its own thread is refused."""
    boxes: list[Job[Any]] = []

    async def child() -> Any:
        return await boxes[0]

    def parent() -> Any:
        return s.submit(child).result()

    with Scheduler(1) as s:
        with occupied(s):
            boxes.append(s.submit(parent))
        with pytest.raises(DeadlockError):
            boxes[0].result(PATIENCE)
        whole(s)


def test_result_of_a_coroutine_inside_a_running_loop():
    """It raises RuntimeError instead of blocking the loop that the coroutine may need; a function is helped."""

    async def coroutine() -> str:
        return "awaited"

    async def main() -> list[Any]:
        job = s.submit(coroutine)
        with pytest.raises(RuntimeError, match="await it here"):
            job.result()
        hidden = s.submit(lambda: coroutine())
        with pytest.raises(RuntimeError, match="inside a running event loop"):
            hidden.result()
        return [await job, s.submit(pow, 2, 3).result(), job.result()]

    with Scheduler(1) as s:
        assert run(s, main) == ["awaited", 8, "awaited"]


# ---------------------------------------------------------------------- cancelled, left behind, shut down


def test_cancelling_the_await_stops_an_adopted_coroutine():
    """A coroutine that was claimed by an await is asked to stop when that is cancelled, and ends CANCELLED."""
    jobs: list[Job[Any]] = []

    async def endless() -> None:
        await asyncio.Event().wait()

    async def main() -> Any:
        jobs.append(s.options(retries=3).submit(endless))
        try:
            await asyncio.wait_for(jobs[0], 0.001)
        except TimeoutError:
            with pytest.raises(concurrent.futures.CancelledError):
                await jobs[0]
            return "gave up"

    with Scheduler(1) as s:
        assert run(s, main) == "gave up"
    assert (jobs[0].status, jobs[0].attempts) == (JobStatus.CANCELLED, 1)


def test_an_await_that_is_left_behind():
    """A coroutine that ends without waiting for what it awaits in the background takes that with it."""
    jobs: list[Job[Any]] = []

    async def endless() -> None:
        await asyncio.Event().wait()

    async def wait(job: Job[Any]) -> None:
        await job

    async def main() -> str:
        both: list[Job[Any]] = [s.submit(endless), s.options(delay=60).submit(int)]
        jobs.extend(both)
        tasks = [asyncio.ensure_future(wait(job)) for job in both]
        await asyncio.sleep(0.001)
        return f"left {len(tasks)}"

    with logged() as log, Scheduler(1) as s:
        for _ in range(30):  # whichever of the tasks left behind is cancelled first
            assert run(s, main) == "left 2"
    assert [job.status for job in jobs] == [JobStatus.CANCELLED] * 60
    assert log.lines == []


def test_request_cancel_of_one_coroutine_on_a_shared_loop():
    """It stops that coroutine alone; its neighbours on the loop, and the one that awaits them, go on."""
    ready = threading.Event()
    jobs: list[Job[Any]] = []

    async def member(event: asyncio.Event) -> str:
        await event.wait()
        return "done"

    async def main() -> list[Any]:
        event = asyncio.Event()
        jobs.extend(s.submit(member, event) for _ in range(3))
        waits = asyncio.gather(*jobs, return_exceptions=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ready.set()
        while not jobs[1].done():
            await asyncio.sleep(0)
        event.set()
        return await waits

    with Scheduler(1) as s:
        job = s.submit(main)
        assert ready.wait(PATIENCE)
        assert jobs[1].request_cancel()
        first, second, third = job.result(PATIENCE)
        assert (first, third) == ("done", "done")
        assert isinstance(second, asyncio.CancelledError)
        whole(s)


@pytest.mark.parametrize(("drain", "outcome"), [("all", 0), ("due", "cancelled"), ("none", "cancelled")])
def test_shutdown_of_a_pool_that_awaits(drain: Any, outcome: Any):
    """Under "all" the awaited job still runs at its time; under the others it is cancelled, and the await is told."""
    clock, parked = FakeClock(), threading.Event()

    async def main() -> Any:
        job = s.options(delay=5).submit(int)
        parked.set()
        try:
            return await job
        except concurrent.futures.CancelledError:
            return "cancelled"

    s = Scheduler(1, clock=clock)
    job = s.submit(main)
    assert parked.wait(PATIENCE)
    clock.advance(0)
    s.shutdown(wait=False, drain=drain)
    if drain == "all":
        clock.advance(5)
    assert job.result(PATIENCE) == outcome
    assert s.shutdown(timeout=PATIENCE)
    s.check()


@pytest.mark.stress
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_mixed_trees_under_a_storm(queue: Any):
    """Functions and coroutines that wait for one another, delayed, failing and cancelled, all end on two workers."""
    interval = sys.getswitchinterval()
    counter = itertools.count()
    refused: list[bool] = []

    def children(depth: int) -> list[Job[Any]]:
        jobs = []
        for _ in range(3):
            number = next(counter)
            task = node if number % 2 else anode
            options = s.options(delay=0.0005 * (number % 5 == 0), retries=1, backoff=0)
            jobs.append(options.submit(task, depth - 1))
            if number % 13 == 0:
                jobs[-1].cancel()
        return jobs

    def once() -> None:
        job = current_job()
        assert job is not None
        if job.seq % 17 == 0 and job.attempts == 1:
            raise CustomError

    def node(depth: int) -> int:
        once()
        total = 1
        for job in children(depth) if depth else ():
            try:
                total += job.result()
            except concurrent.futures.CancelledError:
                pass
            except RuntimeError as error:  # inside a loop, for a coroutine
                refused.append("event loop" in str(error))
        return total

    async def anode(depth: int) -> int:
        once()
        await asyncio.sleep(0)
        found = await asyncio.gather(*(children(depth) if depth else ()), return_exceptions=True)
        assert all(isinstance(one, (int, asyncio.CancelledError)) for one in found), found
        return 1 + sum(one for one in found if isinstance(one, int))

    sys.setswitchinterval(1e-6)
    try:
        with logged(), Scheduler(2, queue=queue) as s:
            for _ in range(5):
                jobs = [s.options(retries=1, backoff=0).submit(task, 3) for task in (node, anode, node, anode)]
                assert all(job.result(4 * PATIENCE) > 0 for job in jobs)
            assert s.wait_idle(4 * PATIENCE)
            whole(s)
        assert all(refused)
    finally:
        sys.setswitchinterval(interval)


# ---------------------------------------------------------------------- stepped


def test_the_stepped_scheduler_serves_awaits_inside_a_tick():
    """What a coroutine awaits and what is due runs inside the tick; what cannot start then is refused."""
    clock = FakeClock()
    s = StepScheduler(clock=clock)
    job = s.submit(tree, s, 2, 2)
    s.tick()
    assert job.result() == 7

    async def waits() -> str:
        with pytest.raises(DeadlockError, match="cannot start during this tick"):
            await s.options(delay=1).submit(int)
        return "refused"

    refused = s.submit(waits)
    s.drain()
    assert refused.result() == "refused"
    s.check()

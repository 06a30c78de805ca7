"""Coroutines that overrun, and loops whose thread is lost."""

import asyncio
import threading
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, Records
from tests.overruns import Late
from threadsched import (
    Job,
    JobStatus,
    JobTimeoutError,
    Limit,
    Scheduler,
    current_job,
)
from threadsched.testing import FakeClock


def test_coroutine_is_cancelled_on_its_loop_and_no_thread_is_lost(clock: FakeClock, log: Records):
    """The job fails at its limit, the coroutine gets its CancelledError, the worker goes on; the log says where."""
    seen: list[str] = []
    running = threading.Event()

    async def waits_here() -> None:
        await asyncio.Event().wait()

    async def task() -> None:
        running.set()
        try:
            await waits_here()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with Scheduler(1, clock=clock) as s:
        job = s.options(timeout=1).submit(task)
        assert running.wait(PATIENCE)
        while job._attached is None or job._attached.stopper is None:
            threading.Event().wait(0.001)
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        assert s.submit(int).result(PATIENCE) == 0
        assert seen == ["cancelled"]
        [line] = log.of("WARNING")
        assert "its coroutine on threadsched_0 is cancelled" in line
        assert "in waits_here" in line
        stats = s.stats()
        assert (stats.workers, stats.lost_workers, stats.replaced_workers) == (1, 0, 0)
        s.check()


def test_coroutine_that_refuses_to_be_cancelled_is_out_of_the_way_all_the_same(clock: FakeClock):
    """Its job has failed at the limit; it keeps its room until it is through, and what it returns is dropped."""
    running, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def task() -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        while not go.is_set():
            await asyncio.sleep(0.001)
        ended.set()
        return "late"

    with Scheduler(2, clock=clock, limits={"one": Limit(1)}) as s:
        job = s.options(timeout=1, limits="one").submit(task)
        held = s.options(limits="one").submit(int)
        assert running.wait(PATIENCE)
        while job._attached is None or job._attached.stopper is None:
            threading.Event().wait(0.001)
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        s.check()
        assert not held.done()
        go.set()
        assert held.result(PATIENCE) == 0
        assert ended.is_set()
        assert isinstance(job.exception(0), JobTimeoutError)
        s.check()


def test_adopted_coroutine_overruns_alone(clock: FakeClock):
    """Of coroutines on one loop only the one that overran is cancelled; who awaits it gets its error."""
    running = threading.Event()

    async def inner() -> None:
        running.set()
        await asyncio.Event().wait()

    with Scheduler(1, clock=clock) as s:

        async def outer() -> str:
            job = s.options(timeout=1, retries=1, backoff=0).submit(inner)
            with pytest.raises(JobTimeoutError):
                await job
            return f"after {job.attempts}"

        job = s.submit(outer)
        for _ in range(2):
            assert running.wait(PATIENCE)
            running.clear()
            while not s._runtime.core.time_limits.armings.things:
                threading.Event().wait(0.001)
            clock.jump(1)
        assert job.result(PATIENCE) == "after 2"
        assert s.stats().lost_workers == 0
        s.check()


def test_function_that_blocks_a_loop_costs_the_thread_and_not_the_coroutine(clock: FakeClock):
    """A function that was run inline for an awaiting coroutine overruns: the thread is lost, the coroutine goes on."""
    gate = Late()
    with Scheduler(1, clock=clock) as s:

        async def outer() -> str:
            job = s.options(timeout=1).submit(gate)
            other = s.options(delay=100).submit(int)
            with pytest.raises(JobTimeoutError):
                await job
            return f"went on {await other}"

        job = s.submit(outer)
        gate.await_start()
        clock.jump(1)
        assert s.submit(int).result(PATIENCE) == 0
        assert s.stats().lost_workers == 1
        s.check()
        gate.open()
        while s._runtime.core.time_limits.away:
            threading.Event().wait(0.001)
        clock.jump(100)
        assert job.result(PATIENCE) == "went on 0"
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        s.check()


def test_lost_loop_runs_no_job_for_its_coroutines(clock: FakeClock):
    """An `await` that was open when the thread was lost is served by the pool, like one that begins later."""
    gate, blocker = Late(), Gate()
    awaited: list[Job[Any]] = []
    with Scheduler(1, clock=clock) as s:

        async def outer() -> str:
            awaited.append(s.options(delay=5).submit(lambda: threading.current_thread().name))
            late = s.options(timeout=1).submit(gate)
            name, error = await asyncio.gather(awaited[0], late, return_exceptions=True)
            assert isinstance(error, JobTimeoutError)
            return str(name)

        job = s.submit(outer)
        gate.await_start()
        clock.jump(1)
        s.submit(blocker)
        blocker.await_start()  # on the successor, so that nobody else could take what falls due
        clock.jump(5)
        gate.open()
        while s._runtime.core.time_limits.away or not awaited[0]._attached.tokens:  # type: ignore[union-attr]
            threading.Event().wait(0.001)
        assert awaited[0].status is JobStatus.PENDING
        s.check()
        blocker.open()
        assert job.result(PATIENCE) == "threadsched_1"
        while s.stats().lost_workers:
            threading.Event().wait(0.001)
        s.check()


def test_second_attempt_of_a_coroutine_can_be_asked_to_stop(clock: FakeClock):
    """The first one, ending late on another worker, does not take the second one's cancellation out of reach."""
    go, running = threading.Event(), threading.Semaphore(0)

    async def task() -> str:
        job = current_job()
        assert job is not None
        first = job.attempts == 1
        running.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not first:
                return "stopped"
            while not go.is_set():
                await asyncio.sleep(0.001)
        return "late"

    with Scheduler(2, clock=clock) as s:
        job = s.options(timeout=9, retries=1, backoff=0).submit(task)
        assert running.acquire(timeout=PATIENCE)
        while job._attached is None or job._attached.stopper is None:
            threading.Event().wait(0.001)
        clock.jump(9)
        assert running.acquire(timeout=PATIENCE)
        while job._attached.stopper is None:
            threading.Event().wait(0.001)
        go.set()
        while s._runtime.core.time_limits.away:
            threading.Event().wait(0.001)
        assert job.request_cancel()
        assert job.result(PATIENCE) == "stopped"
        s.check()

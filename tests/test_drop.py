"""A scheduler that nobody holds any more: its jobs finish, its threads end, its memory goes."""

import gc
import itertools
import threading
import weakref
from typing import Any

import pytest

from tests.crowds import PATIENCE, Gate
from tests.support import run_script
from threadsched import Scheduler, current_job
from threadsched.testing import FakeClock

NUMBERS = itertools.count()


@pytest.fixture
def pool() -> str:
    """A name for a pool's threads that no other test uses."""
    return f"dropped-{next(NUMBERS)}"


def threads_of(pool: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{pool}_")]


def await_end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread


def test_jobs_finish_and_threads_end(pool: str) -> None:
    """What was accepted before the scheduler was dropped runs, what runs ends, and then the threads are gone."""
    scheduler = Scheduler(2, name=pool)
    gates = [Gate(number) for number in range(2)]
    jobs = [scheduler.submit(gate) for gate in gates]
    for gate in gates:
        gate.await_start()
    jobs += [scheduler.submit(int, number) for number in range(2, 20)]
    threads = threads_of(pool)
    assert len(threads) == 2
    del scheduler
    gc.collect()
    assert not any(job.done() for job in jobs)
    for gate in gates:
        gate.open()
    assert [job.result(PATIENCE) for job in jobs] == list(range(20))
    await_end(threads)


def test_idle_workers_end(pool: str) -> None:
    """Workers that sleep when the scheduler is dropped are woken and end."""
    scheduler = Scheduler(4, name=pool)
    scheduler.start()
    threads = threads_of(pool)
    assert len(threads) == 4
    del scheduler
    gc.collect()
    await_end(threads)


def test_it_is_dropped_by_the_last_reference_alone(pool: str) -> None:
    """No collector is needed: a scheduler is in no reference cycle."""
    gc.disable()
    try:
        scheduler = Scheduler(1, name=pool)
        scheduler.submit(int).result(PATIENCE)
        dead = weakref.ref(scheduler)
        threads = threads_of(pool)
        del scheduler
        assert dead() is None
        await_end(threads)
    finally:
        gc.enable()


@pytest.mark.parametrize("holder", ["delayed job", "ready job", "submitter", "ended job", "records", "exception"])
def test_what_does_not_keep_it_alive(pool: str, holder: str) -> None:
    """Neither its jobs, pending or ended, nor a submitter nor anything it gave out keeps a scheduler alive."""
    scheduler = Scheduler(1, name=pool, clock=FakeClock())
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    held: Any = None
    match holder:
        case "delayed job":
            held = scheduler.options(delay=60).submit(int)
        case "ready job":
            held = scheduler.submit(int)
        case "ended job":
            held = scheduler.submit(int)
            assert held.cancel()
        case "submitter":
            held = scheduler.options(delay=60)
        case "records":
            held = (scheduler.stats(), scheduler.snapshot())
        case "exception":
            try:
                scheduler.options(delay=-1)
            except ValueError as error:
                held = error.with_traceback(None)
    dead = weakref.ref(scheduler)
    threads = threads_of(pool)
    del scheduler
    gc.collect()
    assert dead() is None
    gate.open()
    if holder == "delayed job":
        assert held.cancel()
    await_end(threads)


def test_a_pending_delayed_job_is_still_run(pool: str) -> None:
    """A delayed job of a dropped scheduler runs at its time, and the workers stay for it until then."""
    clock = FakeClock()
    scheduler = Scheduler(2, name=pool, clock=clock)
    job = scheduler.options(delay=60).submit(clock.now)
    threads = threads_of(pool)
    del scheduler
    gc.collect()
    clock.advance(59)
    assert not job.done()
    assert all(thread.is_alive() for thread in threads)
    clock.advance(1, wait=False)
    assert job.result(PATIENCE) == 60.0
    await_end(threads)


def test_retries_go_on(pool: str) -> None:
    """A job of a dropped scheduler is still retried."""
    clock = FakeClock()
    scheduler = Scheduler(1, name=pool, clock=clock)
    attempts: list[int] = []

    def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError
        return 7

    job = scheduler.options(retries=2, backoff=10).submit(flaky)
    clock.advance(0)
    threads = threads_of(pool)
    del scheduler
    gc.collect()
    clock.advance(10)
    clock.advance(20, wait=False)
    assert job.result(PATIENCE) == 7
    await_end(threads)


def test_a_submitter_outlives_it(pool: str) -> None:
    """A submitter of a dropped scheduler is refused, as after shutdown."""
    scheduler = Scheduler(1, name=pool)
    submitter = scheduler.options(priority=1)
    assert submitter.submit(int).result(PATIENCE) == 0
    threads = threads_of(pool)
    del scheduler
    gc.collect()
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        submitter.submit(int)
    await_end(threads)


def test_a_chained_temporary_works(pool: str) -> None:
    """``Scheduler().submit(f).result()`` gives its result although the scheduler is dropped at once."""
    assert Scheduler(1, name=pool).submit(int, 7).result(PATIENCE) == 7
    await_end(threads_of(pool))


def test_the_task_holds_it(pool: str) -> None:
    """A scheduler that only its own running task refers to lives until that task has ended."""
    gate = Gate()

    def start() -> Any:
        scheduler = Scheduler(1, name=pool)

        def task() -> int:
            gate()
            return scheduler.submit(int).seq

        return scheduler.submit(task)

    job = start()
    gate.await_start()
    gc.collect()
    threads = threads_of(pool)
    gate.open()
    assert job.result(PATIENCE) == 2
    del job
    gc.collect()
    await_end(threads)


def test_dropped_inside_its_own_task(pool: str) -> None:
    """The last reference may go on the worker itself."""
    box: list[Any] = [Scheduler(1, name=pool)]
    gate = Gate()

    def task() -> bool:
        gate()
        dead = weakref.ref(box[0])
        box.clear()
        return dead() is None and current_job() is not None

    job = box[0].submit(task)
    gate.await_start()
    threads = threads_of(pool)
    gate.open()
    assert job.result(PATIENCE) is True
    await_end(threads)


def test_dropped_in_a_cycle_by_the_collector(pool: str) -> None:
    """A scheduler that the garbage collector finds is stopped as well, whatever it was doing."""
    for queue in ("lazy", "indexed"):
        for _ in range(20):
            scheduler = Scheduler(2, name=pool, queue=queue)  # type: ignore[arg-type]
            cycle: list[Any] = [scheduler]
            cycle.append(cycle)
            jobs = [scheduler.submit(int) for _ in range(5)]
            del scheduler, cycle
            gc.collect()
            for job in jobs:
                assert job.result(PATIENCE) == 0
    await_end(threads_of(pool))


@pytest.mark.parametrize("use", ["never used", "idle", "after jobs", "shut down", "pending cancelled", "failed"])
def test_the_memory_goes(pool: str, use: str) -> None:
    """Once its threads have ended, nothing of a dropped scheduler is left, its exit hook included."""
    scheduler = Scheduler(2, name=pool)
    dead = [weakref.ref(scheduler._runtime)]
    if scheduler._runtime.exit_hook is not None:
        dead.append(weakref.ref(scheduler._runtime.exit_hook))  # type: ignore[arg-type]
    if use == "idle":
        scheduler.start()
    if use == "after jobs":
        for _ in range(10):
            scheduler.submit(int)
    if use == "failed":
        scheduler.submit(int, "x").exception(PATIENCE)
    if use == "pending cancelled":
        scheduler.options(delay=3600).submit(int).cancel()
    threads = threads_of(pool)
    if use == "shut down":
        scheduler.submit(int)
        scheduler.shutdown()
    del scheduler
    await_end(threads)
    del threads
    gc.collect()
    assert [one() for one in dead] == [None] * len(dead)


@pytest.mark.subprocess
def test_dropped_while_a_real_delay_is_pending() -> None:
    """In real time too: the delayed job of a dropped scheduler runs, and one second later no thread is left."""
    done = run_script("""
        import gc, threading, time
        from threadsched import Scheduler
        began = time.monotonic()
        scheduler = Scheduler(3)
        job = scheduler.options(delay=0.2).submit(time.monotonic)
        del scheduler
        gc.collect()
        assert 0.2 <= job.result(5) - began < 2
        deadline = time.monotonic() + 1
        while threading.active_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        print(threading.active_count())
    """)
    assert (done.stdout, done.stderr) == ("1\n", "")

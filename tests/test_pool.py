"""Counting workers in and out, step by step and without their threads; `test_threads.py` has the threads."""

from typing import Any

import pytest

from threadsched import BrokenSchedulerError
from threadsched._locks import make_token
from threadsched._worker import Worker
from threadsched.testing import StepScheduler


def pool(*numbers: int) -> tuple[Any, list[Worker]]:
    """Return a runtime in which these workers have arrived."""
    runtime = StepScheduler(workers=3)._runtime
    workers = [Worker(runtime, number) for number in numbers]
    for worker in workers:
        assert runtime.arrive(worker)
    return runtime, workers


def released(token: Any) -> bool:
    return bool(token.acquire(False))


def test_number_that_is_taken_lets_no_second_worker_in():
    """A thread that was started twice for one number, after an interrupted start, is turned away."""
    runtime, (first,) = pool(0)
    second = Worker(runtime, 0)
    assert runtime.arrive(second) is False
    assert runtime.workers == {0: first}
    runtime.leave(first)
    assert runtime.arrive(second) is True
    assert (runtime.workers, runtime.launched) == ({0: second}, {0})


def test_worker_of_another_generation_is_not_let_in():
    """A thread that comes back in the child of a fork belongs to a pool that is not there."""
    runtime, _ = pool()
    worker = Worker(runtime, 0)
    runtime.generation += 1
    assert runtime.arrive(worker) is False
    assert (runtime.workers, runtime.launched) == ({}, set())


def test_worker_that_was_replaced_strikes_nobody_off():
    """One that leaves after its successor has taken its number leaves that one counted."""
    runtime, (old,) = pool(0)
    del runtime.workers[0]
    new = Worker(runtime, 0)
    assert runtime.arrive(new)
    runtime.leave(old)
    assert (runtime.workers, runtime.launched) == ({0: new}, {0})


def test_worker_of_another_generation_strikes_nobody_off():
    """One that leaves in the child of a fork takes no number from the child's own workers."""
    runtime, (worker,) = pool(0)
    runtime.generation += 1
    token = make_token()
    runtime.exit_waiters.append(token)
    runtime.leave(worker)
    assert runtime.launched == {0}
    assert not released(token)


def test_all_who_wait_for_the_last_worker_are_told_by_it():
    """Those who wait for every worker to have left are woken by the last, all of them, and by no other."""
    runtime, workers = pool(0, 1)
    tokens = [make_token(), make_token()]
    runtime.exit_waiters.extend(tokens)
    runtime.leave(workers[0])
    assert not any(released(token) for token in tokens)
    runtime.leave(workers[1])
    assert all(released(token) for token in tokens)
    assert runtime.exit_waiters == []


def test_whoever_leaves_tells_those_who_wait_for_quiet():
    """One sleeper less to wait for: each worker that leaves makes them look again."""
    runtime, workers = pool(0, 1)
    token = make_token()
    runtime.quiet_waiters.append(token)
    runtime.leave(workers[0])
    assert released(token)
    assert runtime.quiet_waiters == []


def test_child_of_a_fork_knows_nobody_of_its_parent():
    """Started afresh, a pool has no worker, no sleeper, no waiter and no job of before, and another generation."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    job = scheduler.submit(int)
    worker = Worker(runtime, 0)
    assert runtime.arrive(worker)
    lists = [
        runtime.idle, runtime.watch, runtime.exit_waiters, runtime.idle_waiters, runtime.quiet_waiters,
        runtime.turn_waiters,
    ]  # fmt: skip
    for registry in lists:
        registry.append(make_token())
    runtime.sleepers[make_token()] = 1.0
    runtime.mark = worker
    runtime.clearing = True
    generation = runtime.generation
    with runtime.lock:
        assert runtime.start_afresh() == [job]
    assert lists == [[]] * len(lists)
    assert (runtime.workers, runtime.launched, runtime.sleepers) == ({}, set(), {})
    assert (runtime.mark, runtime.clearing) == (None, False)
    assert runtime.generation == generation + 1
    assert runtime.core.pending == {}
    job._cancel("int", 0.0, orphaned=True)


def test_breakdown_fails_everything_that_is_pending_and_wakes_all():
    """A failed initializer fails every pending job, closes the door, and no sleeper stays asleep."""
    scheduler = StepScheduler()
    runtime = scheduler._runtime
    jobs = [scheduler.submit(int) for _ in range(3)]
    tokens = [make_token(), make_token()]
    runtime.idle.append(tokens[0])
    runtime.watch.append(tokens[1])
    runtime.break_down(ValueError("no"))
    for job in jobs:
        assert isinstance(job.exception(0), BrokenSchedulerError)
    assert all(released(token) for token in tokens)
    assert (runtime.core.closed, runtime.core.halted) == (True, True)
    with pytest.raises(BrokenSchedulerError):
        runtime.man()
    runtime.core.pause(False)
    assert runtime.core.halted

"""A worker's turn at the lock, taken by hand: what it orders, whom it wakes, and what strikes as it goes to rest."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hand import Hand, woken
from threadsched import FifoPolicy, Job, Scheduler, SchedulerClosedError
from threadsched._locks import holds, make_waker
from threadsched._worker import AGAIN, CLEAR, IDLE, LEAVE, OUTBOX, TELL, WATCH

PATIENCE = 5.0


@pytest.fixture
def hand() -> Iterator[Hand]:
    hand = Hand()
    yield hand
    hand.free()


# ---------------------------------------------------------------- what a turn orders


def test_nothing_to_do_means_to_sleep(hand: Hand):
    """Without a job the worker stands on the stack of the idle, its token held."""
    assert hand.turn() is None
    assert hand.worker.order is IDLE
    assert hand.runtime.idle == [hand.worker.token]
    assert not woken(hand.worker.token)


def test_worker_lets_go_of_its_last_job_before_it_lies_down(hand: Hand):
    """Who has just settled a job and finds no other comes again first: whoever stands on a list holds nothing.

    What it drops may run a finalizer, which must not find this worker among those who can be woken for a job.
    """
    job = hand.scheduler.submit(int)
    assert hand.turn() is job
    assert hand.turn(job, 0) is None
    assert hand.worker.order is AGAIN
    assert hand.runtime.idle == hand.runtime.watch == []
    assert hand.turn() is None
    assert hand.worker.order is IDLE


def test_turn_ends_what_an_interrupted_submission_left(hand: Hand):
    """A submission that Ctrl-C broke off may still count as on its way in; a worker's turn ends that: sweeps go on."""
    hand.runtime.core.entering = hand.scheduler.options(delay=5).submit(int)
    hand.turn()
    assert hand.runtime.core.entering is None


def test_one_watches_for_the_delayed_and_the_others_sleep(hand: Hand):
    """The first that goes to rest watches until the head is due; one that comes when somebody watches just sleeps."""
    hand.scheduler.options(delay=5).submit(int)
    assert hand.turn() is None
    assert (hand.worker.order, hand.worker.due) == (WATCH, 5)
    assert (hand.runtime.watch, hand.runtime.idle) == ([hand.worker.token], [])
    hand.runtime.watch.clear()
    other = hand.sleeper(hand.runtime.watch)
    assert hand.turn() is None
    assert hand.worker.order is IDLE
    assert (hand.runtime.watch, hand.runtime.idle) == ([other], [hand.worker.token])


@pytest.mark.parametrize("pending", [False, True])
def test_worker_leaves_when_a_closed_scheduler_has_nothing_pending(hand: Hand, pending: bool):
    """A closed scheduler lets its workers go when nothing is pending any more, and the first of them wakes the rest."""
    if pending:
        hand.scheduler.options(delay=5).submit(int)
    hand.scheduler.shutdown(wait=False)
    sleepers = [hand.sleeper(hand.runtime.idle), hand.sleeper(hand.runtime.idle)]
    assert hand.turn() is None
    assert hand.worker.order is (WATCH if pending else LEAVE)
    assert [woken(sleeper) for sleeper in sleepers] == [not pending] * 2


def test_worker_helps_to_give_up_what_a_shutdown_leaves(hand: Hand):
    """While a shutdown's jobs are not given up yet, a worker that finds nothing to run is sent to do it."""
    hand.scheduler.options(delay=5).submit(int)
    hand.runtime.close("due")
    assert hand.turn() is None
    assert hand.worker.order is CLEAR
    hand.runtime.clearing = True  # somebody is at it
    assert hand.turn() is None
    assert hand.worker.order is WATCH
    hand.runtime.clearing = False


def test_worker_that_must_tell_claims_nothing(hand: Hand):
    """A settled job with a callback is told of before the next is claimed: a slow callback sits on no job."""
    first, second = hand.scheduler.submit(int), hand.scheduler.submit(int)
    first.add_done_callback(lambda job: None)
    assert hand.turn() is first
    assert hand.turn(first, "value") is None
    assert hand.worker.order is TELL
    assert first.done()
    assert not second.running()
    hand.runtime.run_callbacks(first)
    assert hand.turn() is second
    second_value = object()
    assert hand.turn(second, second_value) is None
    assert second.result(0) is second_value


def test_outbox_comes_before_the_next_job(hand: Hand):
    """What is to be told to others is told before a job is claimed."""
    job = hand.scheduler.submit(int)
    hand.runtime.core.outbox.append((None, None))
    assert hand.turn() is None
    assert hand.worker.order is OUTBOX
    hand.runtime.drain_outbox()
    assert hand.turn() is job


# ---------------------------------------------------------------- whom a turn wakes


@pytest.mark.parametrize(("ready", "expected"), [(0, [False, False]), (1, [False, True]), (3, [False, True])])
def test_claim_passes_the_baton_to_one(hand: Hand, ready: int, expected: list[bool]):
    """Who takes a job and sees more wakes one sleeper, the last that fell asleep; with no more, nobody."""
    jobs = [hand.scheduler.submit(int) for _ in range(ready + 1)]
    sleepers = [hand.sleeper(hand.runtime.idle), hand.sleeper(hand.runtime.idle)]
    assert hand.turn() is jobs[0]
    assert [woken(sleeper) for sleeper in sleepers] == expected


def test_claim_wakes_as_many_as_became_ready(hand: Hand):
    """Jobs that fell due together are for as many workers as there are jobs, not for a chain of one after the other."""
    jobs = [hand.scheduler.options(delay=1).submit(int) for _ in range(3)]
    hand.clock.jump(1)
    sleepers = [hand.sleeper(hand.runtime.idle) for _ in range(4)]
    assert hand.turn() is jobs[0]
    assert [woken(sleeper) for sleeper in sleepers] == [False, False, True, True]


def test_leader_that_takes_a_job_hands_the_watch_on(hand: Hand):
    """With something delayed and nobody on watch, who goes off with a job makes a sleeper the new leader."""
    job = hand.scheduler.submit(int)
    hand.scheduler.options(delay=5).submit(int)
    sleeper = hand.sleeper(hand.runtime.idle)
    assert hand.turn() is job
    assert woken(sleeper)


def test_watch_that_is_kept_is_not_disturbed(hand: Hand):
    """If somebody watches already, a claim wakes nobody for the delayed jobs."""
    job = hand.scheduler.submit(int)
    hand.scheduler.options(delay=5).submit(int)
    watcher, sleeper = hand.sleeper(hand.runtime.watch), hand.sleeper(hand.runtime.idle)
    assert hand.turn() is job
    assert not woken(watcher)
    assert not woken(sleeper)


def test_ready_job_wakes_an_idle_worker_rather_than_the_leader(hand: Hand):
    """A submission that is due wakes one sleeper: an idle one if there is one, else the leader."""
    watcher, sleeper = hand.sleeper(hand.runtime.watch), hand.sleeper(hand.runtime.idle)
    hand.scheduler.submit(int)
    assert (woken(sleeper), woken(watcher)) == (True, False)
    hand.scheduler.submit(int)
    assert woken(watcher)
    hand.scheduler.submit(int)  # and with nobody asleep, nobody


def test_new_head_wakes_the_leader_and_no_other_delayed_job_anybody(hand: Hand):
    """A job due before all others wakes the leader, to set an earlier alarm; one due later wakes nobody."""
    hand.scheduler.options(delay=5).submit(int)
    watcher, sleeper = hand.sleeper(hand.runtime.watch), hand.sleeper(hand.runtime.idle)
    hand.scheduler.options(delay=6).submit(int)
    hand.scheduler.options(delay=5).submit(int)
    assert not woken(watcher)
    hand.scheduler.options(delay=4).submit(int)
    assert (woken(watcher), woken(sleeper)) == (True, False)
    hand.scheduler.options(delay=3).submit(int)
    assert woken(sleeper)  # nobody watched


def test_resume_wakes_a_worker_for_each_ready_job(hand: Hand):
    """After a pause as many sleepers are woken as there are jobs to start."""
    hand.scheduler.pause()
    for _ in range(2):
        hand.scheduler.submit(int)
    hand.runtime.idle.clear()
    sleepers = [hand.sleeper(hand.runtime.idle) for _ in range(3)]
    hand.scheduler.resume()
    assert [woken(sleeper) for sleeper in sleepers] == [False, True, True]


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_close_wakes_everybody(hand: Hand, drain: str):
    """Every sleeper looks what a shutdown leaves to it: the idle and the leader."""
    hand.scheduler.options(delay=5).submit(int)
    sleepers = [hand.sleeper(hand.runtime.idle), hand.sleeper(hand.runtime.idle), hand.sleeper(hand.runtime.watch)]
    hand.runtime.close(drain)
    assert all(woken(sleeper) for sleeper in sleepers)


# ---------------------------------------------------------------- what happens just before the lock is had


class LateLock:
    """A lock that lets something happen just before it is had, once: as another thread would that had it till then."""

    def __init__(self, lock: Any, strike: Callable[[], object]) -> None:
        self.lock = lock
        self.strike: Callable[[], object] | None = strike

    def __enter__(self) -> None:
        strike, self.strike = self.strike, None
        if strike is not None:
            strike()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())


def before_the_lock(hand: Hand, strike: Callable[[], object]) -> None:
    hand.runtime.lock = LateLock(hand.runtime.lock, strike)


@pytest.mark.parametrize("delay", [0, 5])
def test_door_that_closes_before_the_lock_is_had_is_closed(hand: Hand, delay: float):
    """A submission that had to wait for the lock behind a shutdown is refused, and leaves nothing."""
    before_the_lock(hand, lambda: hand.runtime.close("all"))
    with pytest.raises(SchedulerClosedError):
        hand.scheduler.options(delay=delay).submit(int)
    assert hand.runtime.core.pending == {}


def test_policy_that_is_swapped_before_the_lock_is_had_gives_the_key(hand: Hand):
    """A submission that had to wait for the lock behind a change of policy is ranked by the new one."""
    hand.scheduler.options(priority=1).submit(int)
    before_the_lock(hand, lambda: setattr(hand.scheduler, "policy", FifoPolicy()))
    job = hand.scheduler.options(priority=0).submit(int)
    hand.scheduler.check()
    assert job._key == hand.runtime.core.ranking.key_of(job)
    assert hand.turn() is not job


def test_submission_that_is_broken_off_leaves_its_id_free():
    """A submission that raised inside the lock has not happened: nothing of it is pending, and its id can be had."""

    class Failing:
        failing = False

        def before(self, a: Any, b: Any) -> bool:
            if self.failing:
                raise LookupError
            return False

    policy = Failing()
    hand = Hand(policy=policy)
    first = hand.scheduler.submit(int)
    policy.failing = True
    with pytest.raises(LookupError):
        hand.scheduler.options(id="mine").submit(int)
    policy.failing = False
    assert hand.runtime.core.entering is None
    assert hand.scheduler.stats().pending == 1
    job = hand.scheduler.options(id="mine").submit(int)
    hand.scheduler.check()
    assert [hand.turn(), hand.turn(), hand.turn()] == [first, job, None]
    for done in (first, job):
        hand.runtime.finish(done, 0, "int")
    hand.free()


def test_workers_that_could_not_be_started_elsewhere_are_started_here():
    """A submission that relied on another thread's start, which failed, tries itself."""
    scheduler = Scheduler(1)
    scheduler._runtime.manned = True  # as the other thread had left it
    assert scheduler.options(id="one that is asked about").submit(int).result(PATIENCE) == 0
    scheduler.shutdown()


def test_end_that_waited_for_the_lock_sees_the_condition(hand: Hand):
    """A job whose condition was made while its end waited for the lock tells the waiters under that condition."""

    class Waiter:
        told = False

        def add_exception(self, job: Any) -> None:
            assert holds(job._condition)
            self.told = True

    job = hand.scheduler.submit(int)
    assert hand.turn() is job
    waiter = Waiter()
    before_the_lock(hand, lambda: job._condition.waiters.append(waiter))
    assert hand.runtime.fail(job, ValueError(), "text")
    assert waiter.told
    job.exception(0)


@pytest.mark.parametrize("delayed", [False, True])
def test_callback_that_breaks_into_the_settling_is_called(hand: Hand, delayed: bool):
    """A callback that a finalizer adds while the worker is about to settle the job is called, and once."""
    job, told = hand.scheduler.submit(int), []
    other = hand.scheduler.options(delay=9).submit(int) if delayed else hand.scheduler.submit(int)
    assert hand.turn() is job

    class Running(dict[int, Job[Any]]):
        def pop(self, seq: int, *default: Any) -> Any:
            if not told and job._attached is None:
                job.add_done_callback(told.append)
            return super().pop(seq, *default)

    hand.runtime.core.running = Running(hand.runtime.core.running)
    assert hand.turn(job, 0) is None
    assert hand.worker.order is TELL
    hand.worker.carry_home(job, 0, "name")
    assert told == [job]
    assert hand.turn() is (None if delayed else other)


# ---------------------------------------------------------------- what strikes as a worker goes to rest


STRIKES: dict[str, Callable[[Hand], object]] = {
    "submit": lambda hand: hand.scheduler.submit(int),
    "submit delayed": lambda hand: hand.scheduler.options(delay=5).submit(int),
    "shutdown": lambda hand: hand.runtime.close("all"),
}


class Striking(list[Any]):
    """A list of tokens that is struck at its next append, before it or after."""

    def __init__(self, strike: Callable[[], object], before: bool) -> None:
        super().__init__()
        self.strike: Callable[[], object] | None = strike
        self.before = before

    def append(self, token: Any) -> None:
        strike, self.strike = self.strike, None
        if strike is not None and self.before:
            strike()
        super().append(token)
        if strike is not None and not self.before:
            strike()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("strike", list(STRIKES))
def test_what_strikes_as_a_worker_lies_down_keeps_it_awake(hand: Hand, strike: str, before: bool):
    """A handler on the worker's own thread, between its look and its registration or just after, is not slept over.

    The worker stands on no list then, and its token is held: no wake-up is left over for its next sleep.
    """
    runtime = hand.runtime
    runtime.idle = Striking(lambda: STRIKES[strike](hand), before)
    runtime._wake_idle = make_waker(runtime.idle)
    assert hand.turn() is None
    assert hand.worker.order == ""
    assert runtime.idle == runtime.watch == []
    assert not woken(hand.worker.token)


def test_pause_and_rest(hand: Hand):
    """While nothing may start, ready jobs keep no worker awake."""
    hand.scheduler.submit(int)
    hand.scheduler.pause()
    assert hand.turn() is None
    assert hand.worker.order is IDLE

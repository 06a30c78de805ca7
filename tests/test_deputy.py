"""The deputy: an idle worker that sleeps until the second delayed job is due, and takes the watch over in its sleep."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hand import Hand, HandClock, woken
from threadsched import Scheduler, _waiting
from threadsched._worker import IDLE, WATCH, Worker


@pytest.fixture
def hand() -> Iterator[Hand]:
    hand = Hand(clock=HandClock())
    yield hand
    hand.free()


def delayed(hand: Hand, *delays: float) -> list[Any]:
    return [hand.scheduler.options(delay=delay).submit(int) for delay in delays]


def rest(hand: Hand) -> Worker:
    """Let another worker take a turn that finds nothing, and return it."""
    worker = Worker(hand.runtime, len(hand.runtime.workers))
    hand.runtime.workers[worker.number] = worker
    assert hand.runtime.turn(worker, None, None, "", hand.clock.now()) is None
    return worker


def leader_and_former(hand: Hand) -> tuple[Worker, Worker]:
    """Return who watches for a job due at 5, and one that was the deputy and sleeps without a time now."""
    jobs = delayed(hand, 5, 6)
    leader, former = rest(hand), rest(hand)
    jobs[1].cancel()
    hand.runtime.core.delayed.keep(hand.runtime.core.pending)
    hand.runtime.idle.remove(former.token)
    assert hand.runtime.turn(former, None, None, "", 0.0) is None
    assert former.order is IDLE
    return leader, former


def test_who_rests_beside_the_leader_watches_for_the_second(hand: Hand):
    """The first watches for the head, the next for the one after it, and all others sleep until they are woken."""
    delayed(hand, 7, 5, 9, 6)
    leader, deputy, other = rest(hand), rest(hand), rest(hand)
    assert [(worker.order, worker.due) for worker in (leader, deputy)] == [(WATCH, 5), (WATCH, 6)]
    assert other.order is IDLE
    assert hand.runtime.watch == [leader.token]
    assert hand.runtime.idle == [deputy.token, other.token]
    hand.scheduler.check()


def test_no_deputy_for_a_single_delayed_job(hand: Hand):
    """With nothing after the head there is nothing to watch for."""
    delayed(hand, 5)
    assert [rest(hand).order, rest(hand).order] == [WATCH, IDLE]


def test_nobody_sleeps_by_a_virtual_clock():
    """A virtual clock wakes whom it must when it is moved: it has a leader and no deputy."""
    hand = Hand()
    delayed(hand, 5, 6)
    assert [rest(hand).order, rest(hand).order] == [WATCH, IDLE]
    hand.free()


def test_deputy_takes_over_without_being_woken(hand: Hand):
    """The leader's time comes, it takes the head, and nobody is woken: the deputy is the leader now."""
    delayed(hand, 5, 6)
    leader, deputy, other = rest(hand), rest(hand), rest(hand)
    hand.clock.reading = 5.0
    hand.runtime.watch.remove(leader.token)  # as it does when its time is up
    assert hand.turn() is not None
    assert hand.runtime.watch == [deputy.token]
    assert hand.runtime.idle == [other.token]
    assert hand.runtime.watched == 6
    assert not any(map(woken, (deputy.token, other.token)))


def test_leader_that_comes_back_is_the_next_deputy(hand: Hand):
    """Two workers serve any number of timers by turns, each woken by its own time alone."""
    delayed(hand, 5, 6, 7)
    first, second = rest(hand), rest(hand)
    hand.clock.reading = 5.0
    hand.runtime.watch.remove(first.token)
    job = hand.runtime.turn(first, None, None, "", 5.0)
    assert hand.runtime.turn(first, job, 0, "int", 5.0) is None
    hand.runtime.lie_down(first, 5.0)
    assert (first.order, first.due) == (WATCH, 7)
    assert hand.runtime.watch == [second.token]
    assert hand.runtime.idle == [first.token]


def test_deputy_that_would_wake_too_late_is_passed_over(hand: Hand):
    """An earlier job came after it fell asleep: somebody is woken to watch for that, as if there were no deputy."""
    delayed(hand, 5, 8)
    leader, deputy = rest(hand), rest(hand)
    delayed(hand, 6)
    hand.clock.reading = 5.0
    hand.runtime.watch.remove(leader.token)
    assert hand.turn() is not None
    assert hand.runtime.watch == hand.runtime.idle == []
    assert woken(deputy.token)


def test_deputy_that_wakes_early_enough_takes_over(hand: Hand):
    """The second was cancelled: he wakes in vain at its time, and in time for the third."""
    jobs = delayed(hand, 5, 6, 7)
    leader, deputy = rest(hand), rest(hand)
    jobs[1].cancel()
    hand.clock.reading = 5.0
    hand.runtime.watch.remove(leader.token)
    assert hand.turn() is not None
    assert (hand.runtime.watch, hand.runtime.watched) == ([deputy.token], 6)


def test_deputy_is_woken_like_any_idle_worker(hand: Hand):
    """A ready job may wake it; from then on there is none, and who rests next becomes one."""
    delayed(hand, 5, 6)
    _, deputy = rest(hand), rest(hand)
    hand.scheduler.submit(int)
    assert woken(deputy.token)
    assert hand.turn() is not None
    assert (rest(hand).order, rest(hand).order) == (WATCH, IDLE)
    assert len(hand.runtime.idle) == 2


def test_former_deputy_that_sleeps_without_a_time_does_not_take_over(hand: Hand):
    """It was the deputy, was woken, and found nothing after the head any more: on the watch it would sleep for ever."""
    leader, former = leader_and_former(hand)
    delayed(hand, 8)
    hand.clock.reading = 5.0
    hand.runtime.watch.remove(leader.token)
    assert hand.turn() is not None
    assert woken(former.token)  # to watch for the one that came


def test_former_deputy_that_sleeps_without_a_time_is_in_nobodys_way(hand: Hand):
    """Though it is still asleep, the next that rests is the deputy."""
    leader_and_former(hand)
    delayed(hand, 8)
    assert (successor := rest(hand)).order is WATCH
    assert successor.due == 8


@pytest.mark.parametrize("place", ["idle", "watch"])
def test_deputy_whose_time_is_up_stands_on_no_list(hand: Hand, place: str, monkeypatch: pytest.MonkeyPatch):
    """Its own time wakes it, before or after it took over: it takes itself off, its token held."""
    delayed(hand, 5, 6)
    leader, deputy = rest(hand), rest(hand)
    if place == "watch":
        hand.runtime.idle.remove(deputy.token)
        hand.runtime.watch[:] = [deputy.token]
    hand.clock.reading = 6.0
    monkeypatch.setattr(_waiting, "sleep_on", lambda token, timeout: token.acquire(False))
    hand.runtime.sleep_as_watch(deputy)
    assert deputy.token not in hand.runtime.idle + hand.runtime.watch
    assert not woken(deputy.token)
    assert (leader.token in hand.runtime.watch) == (place == "idle")


def test_fork_forgets_the_deputy(hand: Hand):
    """In the child nobody sleeps: the deputy of the parent is none there."""
    delayed(hand, 5, 6)
    rest(hand), rest(hand)
    with hand.runtime.lock:
        hand.runtime.start_afresh()
    assert hand.runtime.deputy is None


def test_two_workers_serve_many_timers():
    """Each of a hundred jobs a millisecond apart runs, on threads that sleep, each by its own time."""
    with Scheduler(2) as scheduler:
        jobs = [scheduler.options(delay=number / 1000).submit(int, number) for number in range(100)]
        assert [job.result(10) for job in jobs] == list(range(100))
        scheduler.check()

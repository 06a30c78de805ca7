"""What is written out for speed, against what it stands for: turns, batches, the door, and the mark for the time."""

import itertools
from collections import deque
from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from tests.test_core_bookkeeping import Recorder
from threadsched import FifoPolicy, Job, JobStatus
from threadsched._arming import Armable
from threadsched._core import Core
from threadsched._gate import Gate
from threadsched._job import DELAYED
from threadsched._policy import Ranking
from threadsched._reorder import reorder

RUNNING, PENDING = JobStatus.RUNNING, JobStatus.PENDING


def turn(
    driver: Driver, settled: Job[Any] | None = None, now: float = 0.0, place: object = "worker"
) -> Job[Any] | None:
    """Settle one job, and claim the next."""
    return driver.core.turn(settled, None, "name", now, place)


def watch_pushes(driver: Driver) -> list[int]:
    """Return the list to which the number of each entry that goes through the ready queue's push is added."""
    ready, pushed = driver.core.ready, list[int]()
    push = ready.push

    def watched(entry: Any) -> None:
        pushed.append(entry[1])
        push(entry)

    ready.push = watched
    return pushed


# ---------------------------------------------------------------- a turn


def test_turn_does_what_finish_and_claim_do():
    """A turn leaves a plain job, the one it claims, the counts and the history as the two moves would."""

    def done(driver: Driver, *, at_once: bool) -> tuple[object, ...]:
        first, second = driver.submit(id="first"), driver.submit()
        assert driver.claim() is first
        driver.now = 2.0
        if at_once:
            claimed = driver.core.turn(first, "value", "name", 2.0, "worker")
        else:
            driver.core.finish(first, "value", "name", 2.0)
            claimed = driver.claim()
        assert claimed is second
        driver.check()
        fields = [{slot: getattr(job, slot) for slot in Job.__slots__ if slot != "_options"} for job in (first, second)]
        core = driver.core
        known = core.status_of("first"), [*core.named], [*core._ended_ids]
        return fields, core.ended(), core.done, known, [*core.running], [*core.pending]

    assert done(Driver(), at_once=True) == done(Driver(), at_once=False)


def test_turn_leaves_a_job_to_which_somebody_attached_something_just_now():
    """A handler that comes between the look at what is attached and the move is not passed over: look again."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    assert driver.claim() is job

    class Running(dict[int, Job[Any]]):
        def pop(self, seq: int, *default: Any) -> Any:
            job._attach().callbacks.append(print)
            return super().pop(seq, *default)

    driver.core.running = Running(driver.core.running)
    assert driver.core.turn(job, "value", "name", 0.0, "worker") is job
    assert (job.status, other.status) == (RUNNING, PENDING)
    assert dict(driver.core.running) == {job.seq: job}
    driver.check()


def test_turn_asks_about_a_job_with_rules():
    """One of many equals that has a rule is asked about, and the dead are passed over, in the order of submission."""
    driver = Driver()
    dead = driver.submit()
    asked = driver.submit()
    plain = driver.submit()
    asked._attach().rules = (rule := Recorder(),)
    driver.cancel(dead)
    rule.allowing = False
    assert turn(driver) is plain
    assert driver.core.waiting == {asked.seq: asked}
    driver.core.readmit(asked)
    plain = driver.submit()
    rule.allowing, rule.calls = True, []
    turn(driver)
    assert [call[0] for call in rule.calls] == ["may_start", "started"]
    assert asked.status is RUNNING
    assert turn(driver) is plain
    assert turn(driver) is None


def test_turn_loses_no_job_with_rules_at_the_head():
    """The first of many equals, if it has a rule, is taken through the questions and not thrown away."""
    driver = Driver()
    asked, plain = driver.submit(), driver.submit()
    asked._attach().rules = (Recorder(),)
    assert turn(driver) is asked
    assert turn(driver) is plain


def test_turn_that_comes_too_late_settles_nothing_and_claims():
    """A job that somebody else has settled counts once, and the next one starts all the same."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    assert driver.claim() is job
    driver.finish(job)
    assert driver.core.turn(job, "again", "name", 0.0, "worker") is other
    assert (driver.core.done, job.result(0)) == (1, None)
    driver.check()


def test_turn_struck_in_its_books_leaves_an_ended_job():
    """An interrupt after the move leaves the job ended, and has the queues rebuilt before anybody looks."""
    driver = Driver()
    job = driver.submit()
    assert driver.claim() is job

    class Books(deque[Any]):
        def append(self, record: object) -> None:
            raise KeyboardInterrupt

    driver.core._ended = Books()
    with pytest.raises(KeyboardInterrupt):
        driver.core.turn(job, "value", "name", 0.0, "worker")
    assert (job.status, driver.core.ready.untidy) == (JobStatus.DONE, True)
    driver.core._ended = deque()
    driver.check()


@pytest.mark.parametrize("strike", [False, True])
def test_turn_that_loses_its_job_on_the_way(strike: bool):
    """A job that is cancelled between the look and the pop is passed over; a turn struck there leaves it pending."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()

    class Pending(dict[int, Job[Any]]):
        def get(self, seq: int, default: Any = None) -> Any:
            found = super().get(seq, default)
            if found is job and strike:
                raise KeyboardInterrupt
            if found is job:
                assert driver.cancel(job)
            return found

    driver.core.pending = Pending(driver.core.pending)
    if strike:
        with pytest.raises(KeyboardInterrupt):
            turn(driver)
        driver.core.pending = dict(driver.core.pending)
        driver.check()
        assert driver.claim_all() == [job, other]
    else:
        assert turn(driver) is other
        driver.check()


def test_turn_takes_equals_without_the_long_way(monkeypatch: pytest.MonkeyPatch):
    """Jobs that nothing distinguishes are claimed by the turns themselves, and an empty queue is seen by them too."""

    def claim(*args: object) -> None:
        raise AssertionError("the long way")

    driver = Driver()
    first, second, third = [driver.submit() for _ in range(3)]
    monkeypatch.setattr(Core, "claim", claim)
    assert turn(driver) is first
    assert turn(driver, first) is second
    assert turn(driver, second) is third
    assert turn(driver, third) is None
    assert driver.core.done == 3
    driver.check()


@pytest.mark.parametrize("equals", [True, False], ids=["before equals", "alone"])
@pytest.mark.parametrize("part", ["lane", "heap"])
def test_turn_takes_the_first_wherever_it_stands(part: str, equals: bool):
    """A job in another part of the queue than the equals is found there, and goes before them if it ranks before."""
    driver = Driver()
    ready = driver.core.ready
    plain = driver.submit()
    behind = driver.submit(priority=2) if part == "heap" else None
    urgent = driver.submit(priority=1)
    for job in (behind, None if equals else plain):
        if job is not None:
            driver.cancel(job)
    ready.keep(driver.core.pending)
    assert (bool(ready.level), bool(ready.lane), bool(ready.heap)) == (equals, part == "lane", part == "heap")
    assert turn(driver, now=2.0, place="here") is urgent
    assert (urgent._started_at, urgent._place) == (2.0, "here")
    assert turn(driver) is (plain if equals else None)
    driver.check()


@pytest.mark.parametrize("others", [0, 1])
def test_turn_looks_at_the_map_after_damage(others: int):
    """An entry that an interrupt lost is made anew before anything is claimed, whether or not others are left."""
    driver = Driver()
    lost = driver.submit()
    for _ in range(others):
        driver.submit()
    driver.core.ready.level.popleft()
    driver.core.ready.untidy = True
    assert turn(driver) is lost
    driver.check()


def test_turn_starts_nothing_while_nothing_may_start():
    """A paused core settles what comes back, and gives out no other job."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    assert turn(driver) is job
    driver.core.pause(True)
    assert turn(driver, job) is None
    assert (job.status, other.status) == (JobStatus.DONE, PENDING)
    driver.core.pause(False)
    assert turn(driver) is other


def test_turn_passes_over_an_entry_from_before_a_move():
    """A job that was moved, ran, and waits for its retry does not start early by the entry of its first place."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    reorder(driver.core, job, 1, None)
    assert turn(driver) is job
    driver.retry(job, 100.0)
    assert turn(driver) is other
    assert turn(driver) is None
    assert job._place is DELAYED
    driver.check()


def test_turn_makes_room_for_a_producer():
    """With a bounded queue the place of the job that a turn claims goes to the first in the line."""

    class Token:
        def release(self) -> None:
            pass

    driver = Driver()
    job = driver.submit()
    driver.core.bound(gate := Gate(1))
    newcomer = make_job()
    gate.line[newcomer] = Token()
    assert turn(driver) is job
    assert list(gate.grants) == [newcomer]
    driver.check()


def test_turn_counts_the_attempts():
    """A job that comes again by a turn has been started twice."""
    driver = Driver()
    job = driver.submit()
    for attempts in (1, 2, 3):
        assert turn(driver) is job
        assert job.attempts == attempts
        driver.retry(job, 0.0)
        driver.promote()


def test_turn_struck_after_its_job_left_the_map_gives_it_back():
    """An interrupt between the two maps leaves the job pending and first."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()

    class Shut(dict[int, Job[Any]]):
        def __setitem__(self, seq: int, job: Job[Any]) -> None:
            raise KeyboardInterrupt

    driver.core.running = Shut()
    with pytest.raises(KeyboardInterrupt):
        turn(driver)
    driver.core.running = {}
    driver.check()
    assert job.status is PENDING
    assert [turn(driver), turn(driver)] == [job, other]


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("before", [0, 1])
def test_core_takes_a_batch_as_it_takes_one(queue: str, delay: float, size: int, before: int):
    """Entries, heads and order are those of single jobs, whether the queue was empty or not."""
    driver = Driver(queue)
    core = driver.core
    others = [driver.submit(delay=delay) for _ in range(before)]
    jobs = [make_job(delay=delay) for _ in range(size)]
    seqs = list(itertools.islice(core.numbers, size))
    assert not any(core.accepted(job) for job in jobs)
    heads = core.enter_many(jobs, seqs, jobs[0]._priority)
    assert heads is (delay > 0 and not others)
    assert core.entering is jobs[0]  # no sweep may look for them yet
    assert core.latest == seqs[-1]
    core.pending.update(zip(seqs, jobs, strict=True))
    core.entering = None
    assert all(core.accepted(job) for job in jobs)
    driver.check()
    driver.promote(10)
    assert driver.claim_all() == [*others, *jobs]


def test_newcomer_with_a_higher_number_is_ahead_of_the_batch():
    """A submission that broke in between the numbers and the entries leaves the queue in order."""
    driver = Driver()
    core = driver.core
    jobs = [make_job() for _ in range(3)]
    seqs = list(itertools.islice(core.numbers, 3))
    broke_in = driver.submit()
    core.enter_many(jobs, seqs, jobs[0]._priority)
    core.pending.update(zip(seqs, jobs, strict=True))
    core.entering = None
    driver.check()
    assert driver.claim_all() == [*jobs, broke_in]


@pytest.mark.parametrize("delay", [0, 4])
def test_batch_that_is_withdrawn_leaves_nothing(delay: float):
    """Entries that no job stands behind are gone at the next look, and none of the batch counts as accepted."""
    driver = Driver()
    core = driver.core
    other = driver.submit(delay=delay)
    jobs = [make_job(delay=delay) for _ in range(3)]
    core.enter_many(jobs, list(itertools.islice(core.numbers, 3)), jobs[0]._priority)
    core.withdraw_many(None)
    assert core.entering is None
    assert not any(core.accepted(job) for job in jobs)
    driver.check()
    driver.promote(10)
    assert driver.claim_all() == [other]
    assert len(core.delayed) == len(core.ready) == 0


def test_batch_that_ranks_before_others_goes_before_them():
    """Jobs of another rank than the equals that are there do not join these."""
    driver = Driver()
    core = driver.core
    other = driver.submit()
    jobs = [make_job(priority=1) for _ in range(3)]
    seqs = list(itertools.islice(core.numbers, 3))
    core.enter_many(jobs, seqs, 1)
    core.pending.update(zip(seqs, jobs, strict=True))
    core.entering = None
    driver.check()
    assert driver.claim_all() == [*jobs, other]


@pytest.mark.parametrize("before", [0, 1])
def test_batch_of_equals_is_pushed_at_once(before: int):
    """Only the first of a batch goes through a push, and only if no equals are there already."""
    driver = Driver()
    core = driver.core
    for _ in range(before):
        driver.submit()
    pushed = watch_pushes(driver)
    jobs = [make_job() for _ in range(4)]
    seqs = list(itertools.islice(core.numbers, 4))
    core.enter_many(jobs, seqs, jobs[0]._priority)
    assert pushed == ([] if before else seqs[:1])


def test_batch_with_too_few_numbers_is_refused():
    """A job without a number would be in no map; whoever counts wrongly hears of it."""
    core = Driver().core
    with pytest.raises(ValueError, match="zip"):
        core.enter_many([make_job(), make_job()], [next(core.numbers)], 5)


def test_batch_inside_a_submission_gives_the_outer_one_its_turn_back():
    """A batch that broke into a submission and is withdrawn leaves that one marked as on its way in."""
    driver = Driver()
    core = driver.core
    outer, jobs = make_job(), [make_job() for _ in range(2)]
    outer._key = 5
    core.enter(outer, next(core.numbers))
    core.enter_many(jobs, list(itertools.islice(core.numbers, 2)), 5)
    core.withdraw_many(outer)
    assert core.entering is outer


# ---------------------------------------------------------------- doors and times


def test_newcomers_enter_beside_their_equals_without_a_push():
    """After the first the entry of an equal is one number, appended in place; another rank goes through a push."""
    driver = Driver()
    pushed = watch_pushes(driver)
    jobs = [driver.submit() for _ in range(3)]
    urgent = driver.submit(priority=1)
    assert pushed == [jobs[0].seq, urgent.seq]
    driver.core.ready.push = driver.core.ready.resting_push
    assert driver.claim_all() == [urgent, *jobs]


def test_delayed_job_that_enters_by_itself():
    """Who knows that nothing but its time holds a job back puts it in directly: numbered, and safe from a sweep."""
    driver = Driver()
    core = driver.core
    job = make_job(delay=2)
    assert core.enter_delayed(job, 7)
    assert (job.seq, core.latest, core.entering, core.timed) == (7, 7, job, True)


def test_delayed_job_behind_a_damaged_head_wakes_somebody():
    """While the queue waits for its repair nobody knows what is first, however early the head seems to be."""
    driver = Driver()
    driver.submit(delay=1)
    driver.core.delayed.untidy = True
    assert driver.core.enter_delayed(make_job(delay=2), 7)


def test_delayed_job_behind_the_head_is_told_so_without_a_call(monkeypatch: pytest.MonkeyPatch):
    """The usual answer, that a newcomer is not the next one due, is given in place."""

    def look(*args: object) -> None:
        raise AssertionError("the long way")

    driver = Driver()
    driver.submit(delay=1)
    monkeypatch.setattr(Core, "_heads_delayed", look)
    assert not driver.core.enter_delayed(make_job(delay=2), 7)


def test_time_limits_are_told_of_a_repair_and_of_the_close(monkeypatch: pytest.MonkeyPatch):
    """A repair rebuilds them too, and a close wakes their watcher, who may have nothing to watch any more."""
    core = Driver().core
    told: list[str] = []
    monkeypatch.setattr(type(core.time_limits), "repair", lambda self: told.append("repair"))
    monkeypatch.setattr(type(core.time_limits), "ring", lambda self: told.append("ring"))
    core.repair()
    assert told == ["repair"]
    core.close("all")
    assert told == ["repair", "ring"]


def test_door_is_open_to_plain_jobs_alone():
    """It is the ranking of an open, unbounded, threaded core with a policy of ours, and None for every other."""

    class ByText:
        def key(self, job: Job[Any]) -> int:
            return 0

    core = Driver().core
    assert core.door is core.ranking
    fifo = Ranking(FifoPolicy())
    assert core.rerank(fifo, {}) is None
    assert core.door is fifo
    assert core.rerank(Ranking(ByText()), {}) is None
    assert core.door is None
    assert core.rerank(fifo, {}) is None
    core.bound(None)
    assert core.door is fifo
    core.bound(Gate(3))
    assert core.door is None
    assert core.rerank(Ranking(FifoPolicy()), {}) is None
    assert core.door is None
    closed = Driver().core
    closed.close("all")
    assert closed.door is None
    assert closed.rerank(fifo, {}) is None
    assert closed.door is None
    assert Driver(stepped=True).core.door is None
    assert Driver(policy=ByText()).core.door is None


def test_turns_look_at_the_time_while_anything_waits_for_it():
    """What is delayed or armed sets the mark; the promotion that finds nothing left takes it off."""
    driver = Driver()
    core = driver.core
    assert core.timed is False
    driver.submit(delay=1)
    assert core.timed is True
    driver.promote(0.5)
    assert core.timed is True
    driver.promote(1)
    assert core.timed is False
    thing = Armable()
    assert core.arm(thing, 3.0)
    driver.promote(2)
    assert core.timed is True
    core.ring(3.0)
    driver.promote(3)
    assert core.timed is False

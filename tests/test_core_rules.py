"""The core's seam: rules that hold jobs back, their keepers, the gate of a bounded queue, alarms and schedules."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from threadsched import InvariantError, Job, JobStatus
from threadsched._arming import Armable
from threadsched._core import Core
from threadsched._gate import Gate
from threadsched._job import DELAYED, READY, WAITING
from threadsched._reorder import reorder

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


class Rule:
    """A rule that admits and allows as it is set, and writes down what it is told; `asked` runs at each question."""

    def __init__(self, *, admitting: bool = True, allowing: bool = True) -> None:
        self.admitting, self.allowing = admitting, allowing
        self.asked: Callable[[], object] | None = None
        self.told: list[str] = []

    def admits(self, job: Job[Any]) -> bool:
        if self.asked is not None:
            self.asked()
        return self.admitting

    def may_start(self, job: Job[Any], now: float) -> bool:
        if self.asked is not None:
            self.asked()
        return self.allowing

    def started(self, job: Job[Any], now: float) -> None:
        self.told.append(f"started at {now:g}")

    def ended(self, job: Job[Any], now: float) -> None:
        self.told.append(f"ended {job.status.name} at {now:g}")


class Keeper:
    """A keeper with a line, that writes down what it is told."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.line: set[int] = set()
        self.room = True
        self.log: list[Any] = []
        self.strike: BaseException | None = None
        core.keepers = (*core.keepers, self)

    def note(self, *what: Any) -> None:
        self.log.append(what if len(what) > 1 else what[0])
        if self.strike is not None:
            raise self.strike

    def reset(self) -> None:
        self.note("reset")

    def held(self, rule: Any, job: Job[Any], now: float) -> None:
        self.line.add(job.seq)
        self.note("held", rule, job, now)

    def holds(self, job: Job[Any]) -> bool:
        return job.seq in self.line

    def has_room(self, job: Job[Any]) -> bool:
        return self.room

    def ring(self, now: float) -> None:
        self.note("ring", now)

    def rekeyed(self, job: Job[Any], now: float) -> None:
        self.note("rekeyed", job, now)

    def reorder(self) -> None:
        self.note("reorder", self.core.ranking)

    def repair(self) -> None:
        self.note("repair")

    def audit(self, require: Callable[[object, str], None]) -> None:
        require("broken" not in self.log, "the keeper is broken")


class Token:
    """What a blocked producer sleeps on."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


def settled(driver: Driver, *jobs: Job[Any]) -> None:
    """Let all that is pending become ready and start, and see that it is these jobs."""
    driver.check()
    driver.promote(1000)
    driver.check()
    claimed = driver.claim_all()
    driver.check()
    assert sorted(job.seq for job in claimed) == sorted(job.seq for job in jobs)


# ---------------------------------------------------------------- admission


@both
@pytest.mark.parametrize("delay", [0, 3])
def test_admitted_job_goes_where_its_time_says(queue: str, delay: float):
    """A rule that has no objection changes nothing: the job is ready now or delayed, and in one queue."""
    driver = Driver(queue)
    job = driver.submit(rules=(Rule(),), delay=delay)
    assert job._place is (DELAYED if delay else READY)
    assert driver.core.waiting == {}
    assert driver.new_head is (delay > 0)
    driver.check()
    assert driver.claim() is (None if delay else job)
    assert driver.promote(3) == (1 if delay else 0)
    assert (driver.claim() is job) is (delay > 0)


def test_one_rule_that_objects_is_enough():
    """A job with several rules waits as long as any of them objects, and each is asked anew at a release."""
    driver = Driver()
    rules = Rule(), Rule(admitting=False), Rule()
    job = driver.submit(rules=rules)
    assert driver.core.waiting == {job.seq: job}
    rules[0].admitting, rules[1].admitting = False, True
    driver.core.release(job)
    assert driver.core.waiting == {job.seq: job}
    rules[0].admitting = True
    driver.core.release(job)
    assert driver.core.waiting == {}
    settled(driver, job)


def test_held_newcomer_is_no_new_head():
    """A job that is held back sets no alarm: it is in no queue."""
    driver = Driver()
    driver.submit(rules=(Rule(admitting=False),), delay=1)
    assert driver.new_head is False
    assert driver.core.next_due() is None


def test_who_lets_a_newcomer_go_while_its_rule_is_asked_has_let_it_go():
    """A release that comes from inside the question is the one that counts: the job gets one entry, not two."""
    driver = Driver()
    rule = Rule()

    def let_go() -> None:
        rule.asked = None
        (job,) = driver.core.waiting.values()
        driver.core.release(job)

    rule.asked = let_go
    job = driver.submit(rules=(rule,))
    assert job._place is DELAYED
    assert len(driver.core.delayed) + len(driver.core.ready) == 1
    settled(driver, job)


def test_released_job_waits_for_its_own_time():
    """A job let go by its rule is delayed until its time, and somebody is told to look at the queue."""
    driver = Driver()
    rule = Rule(admitting=False)
    job = driver.submit(rules=(rule,), delay=7)
    rule.admitting = True
    driver.core.release(job)
    assert driver.core.released
    assert driver.core.next_due() == 7
    assert driver.promote(6) == 0
    assert driver.promote(7) == 1
    assert driver.claim() is job


def test_withdrawn_newcomer_waits_no_more():
    """A submission that is broken off after its rule held the job leaves nothing behind."""
    driver = Driver()
    rule = Rule(admitting=False)

    def interrupted() -> None:
        raise KeyboardInterrupt

    rule.asked = interrupted
    with pytest.raises(KeyboardInterrupt):
        driver.submit(rules=(rule,), id="mine")
    assert driver.core.waiting == {}
    assert driver.core.entering is None
    assert driver.core.find("mine") is None
    rule.asked = None
    rule.admitting = True
    settled(driver, driver.submit(rules=(rule,), id="mine"))


@pytest.mark.parametrize("let_go", [False, True])
@pytest.mark.parametrize("delay", [0, 3])
def test_newcomer_whose_rule_is_broken_off_is_as_it_was(delay: float, let_go: bool):
    """It waits no more and has its place again by itself: the interrupt may keep the submission from withdrawing it."""
    driver = Driver()
    core = driver.core
    job = make_job(delay=delay)
    place = job._place
    rule = Rule()
    job._attach().rules = (rule,)

    def interrupted() -> None:
        if let_go:
            core.waiting.clear()
        raise KeyboardInterrupt

    rule.asked = interrupted
    with pytest.raises(KeyboardInterrupt):
        core.enter(job, next(core.numbers))
    assert core.waiting == {}
    assert job._place is place


def test_held_newcomer_that_is_withdrawn_waits_no_more():
    """A submission that is broken off between being held and its acceptance leaves nobody in the waiting."""
    driver = Driver()
    core = driver.core
    job = make_job()
    job._attach().rules = (Rule(admitting=False),)
    core.enter(job, next(core.numbers))
    assert core.waiting == {job.seq: job}
    core.withdraw(job, None)
    assert core.waiting == {}
    driver.check()


# ---------------------------------------------------------------- at the claim


@both
def test_keeper_hears_of_a_refused_claim(queue: str):
    """A claim that a rule refuses moves the job to the waiting ones, tells every keeper, and goes on to the next."""
    driver = Driver(queue)
    first, second = Keeper(driver.core), Keeper(driver.core)
    refusing = Rule(allowing=False)
    held = driver.submit(rules=(Rule(), refusing, Rule()), priority=1)
    other = driver.submit(priority=2)
    driver.now = 4.0
    assert driver.claim() is other
    assert held._place is WAITING
    assert driver.core.waiting == {held.seq: held}
    assert first.log == second.log == [("held", refusing, held, 4.0)]
    driver.check()


def test_rules_behind_a_refusal_are_not_asked():
    """The first refusal decides: a rule that takes something for the job comes last, and is not asked then."""
    driver = Driver()
    last = Rule()
    asked: list[int] = []
    last.asked = lambda: asked.append(1)
    driver.submit(rules=(Rule(allowing=False), last))
    asked.clear()
    assert driver.claim() is None
    assert asked == []


def test_job_in_a_line_is_released_by_its_keeper_alone():
    """While a keeper holds a job in its line, a release by a rule does nothing."""
    driver = Driver()
    keeper = Keeper(driver.core)
    rule = Rule(allowing=False)
    job = driver.submit(rules=(rule,))
    assert driver.claim() is None
    rule.allowing = True
    driver.core.release(job)
    assert driver.core.waiting == {job.seq: job}
    assert not driver.core.released
    keeper.line.clear()
    assert driver.core.readmit(job) is True
    assert driver.core.waiting == {}
    assert driver.claim() is job


@both
def test_readmitted_job_is_ready_at_once_and_in_its_place(queue: str):
    """A keeper that lets a job go puts it back among the ready ones, where the policy ranks it; this is counted."""
    driver = Driver(queue)
    keeper = Keeper(driver.core)
    rule = Rule(allowing=False)
    held = driver.submit(rules=(rule,), priority=2)
    assert driver.claim() is None
    jobs = [driver.submit(priority=priority) for priority in (1, 3)]
    assert driver.core.readmissions == 0
    rule.allowing = True
    keeper.line.clear()
    assert driver.core.readmit(held) is True
    assert driver.core.readmissions == 1
    assert held._place is READY
    driver.check()
    assert driver.claim_all() == [jobs[0], held, jobs[1]]


def test_job_that_does_not_wait_is_not_readmitted():
    """A second readmission, or one of a job that was cancelled meanwhile, puts no entry into the queue."""
    driver = Driver()
    Keeper(driver.core)
    job = driver.submit(rules=(Rule(allowing=False),))
    driver.claim()
    assert driver.cancel(job)
    assert driver.core.readmit(job) is False
    ready = driver.submit()
    assert driver.core.readmit(ready) is False
    assert driver.claim_all() == [ready]
    driver.check()


@pytest.mark.parametrize("gone", [False, True], ids=["pending", "cancelled"])
def test_readmission_that_is_broken_off_loses_nobody(gone: bool):
    """An interrupt at the push leaves the job ready and the queue to be rebuilt; a job cancelled by then stays so."""
    driver = Driver()
    Keeper(driver.core)
    rule = Rule(allowing=False)
    job = driver.submit(rules=(rule,))
    assert driver.claim() is None

    def interrupted(entry: Any) -> None:
        if gone:
            driver.cancel(job)
        raise KeyboardInterrupt

    driver.core.ready.push = interrupted
    with pytest.raises(KeyboardInterrupt):
        driver.core.readmit(job)
    driver.core.ready.push = driver.core.ready.resting_push
    assert driver.core.ready.untidy is not gone
    assert driver.core.waiting == {}
    rule.allowing = True
    for keeper in driver.core.keepers:
        keeper.line.clear()  # type: ignore[attr-defined]
    settled(driver, *(() if gone else (job,)))


def test_job_that_is_cancelled_while_its_rule_is_asked_does_not_wait():
    """A cancel from inside the question wins: the job is neither started nor held, and no keeper hears of it."""
    driver = Driver()
    keeper = Keeper(driver.core)
    for allowing in (False, True):
        rule = Rule(allowing=allowing)
        job = driver.submit(rules=(rule,))
        rule.asked = lambda job=job: driver.cancel(job)  # type: ignore[misc]
        assert driver.claim() is None
        assert job.cancelled()
        assert driver.core.waiting == {}
        assert driver.core.running == {}
        assert keeper.log == []
        driver.check()


def test_claim_broken_off_while_the_job_is_held_back_is_asked_again():
    """An interrupt inside the keeper leaves the job ready: the next claim asks its rules anew."""
    driver = Driver()
    keeper = Keeper(driver.core)
    rule = Rule(allowing=False)
    job = driver.submit(rules=(rule,))
    keeper.strike = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        driver.claim()
    keeper.strike = None
    keeper.line.clear()
    assert job._place is READY
    assert driver.core.waiting == {}
    rule.allowing = True
    assert driver.claim() is job
    driver.check()


def test_second_entry_of_a_held_job_is_passed_over():
    """An entry that a held job still has in the ready queue does not start it, and its rule is not asked."""
    driver = Driver()
    rule = Rule(admitting=False)
    job = driver.submit(rules=(rule,))
    driver.core.ready.push((job._key, job.seq))
    rule.asked = lambda: pytest.fail("asked")
    assert driver.claim() is None
    assert job.status is JobStatus.PENDING
    assert driver.core.waiting == {job.seq: job}


def test_rules_are_told_of_a_start_with_the_time():
    """Every rule of a claimed job hears of the start, once, with the reading of the claim."""
    driver = Driver()
    rules = Rule(), Rule()
    job = driver.submit(rules=rules)
    driver.now = 2.5
    assert driver.claim() is job
    assert [rule.told for rule in rules] == [["started at 2.5"]] * 2
    driver.now = 4.0
    driver.finish(job)
    assert [rule.told for rule in rules] == [["started at 2.5", "ended DONE at 4"]] * 2


# ---------------------------------------------------------------- one given job


def test_caller_cannot_claim_what_a_rule_refuses():
    """A claim by hand asks the rules too: refused, the job stays pending where it was, and no rule hears of a start."""
    driver = Driver()
    rules = Rule(), Rule(allowing=False)
    job = driver.submit(rules=rules)
    assert driver.core.claim_one(job, 1.0) is False
    assert (job.status, job._place, job.attempts) == (JobStatus.PENDING, READY, 0)
    assert [rule.told for rule in rules] == [[], []]
    rules[1].allowing = True
    assert driver.core.claim_one(job, 1.0) is True
    driver.check()


@pytest.mark.parametrize("count", [1, 2])
def test_job_that_is_cancelled_while_its_claimer_asks_is_not_claimed(count: int):
    """A cancel from inside a rule's question makes the claim by hand False, with one rule or more."""
    driver = Driver()
    rules = tuple(Rule() for _ in range(count))
    job = driver.submit(rules=rules)
    asked: list[int] = []

    def cancelled() -> None:
        asked.append(1)
        driver.cancel(job)

    rules[0].asked = cancelled
    if count > 1:
        rules[1].asked = lambda: pytest.fail("asked for a job that is gone")
    assert driver.core.claim_one(job, 0.0) is False
    assert (asked, job.cancelled(), driver.core.running) == ([1], True, {})
    driver.check()


@both
@pytest.mark.parametrize("delay", [0, 3])
def test_worker_takes_the_job_it_waits_for_from_the_middle(queue: str, delay: float):
    """A given job is taken from its queue past all others; its entry is dead, and the others keep their order."""
    driver = Driver(queue)
    first, last = driver.submit(priority=1), driver.submit(priority=9)
    rule = Rule()
    job = driver.submit(priority=5, delay=delay, rules=(rule,))
    driver.now = 3.0
    assert driver.core.claim_given(job, 3.0, "worker") is True
    assert (job.status, job._place, job._started_at) == (JobStatus.RUNNING, "worker", 3.0)
    assert rule.told == ["started at 3"]
    assert driver.core.running == {job.seq: job}
    driver.check()
    assert driver.core.claim_given(job, 3.0, "worker") is False
    driver.promote()
    assert driver.claim_all() == [first, last]


@pytest.mark.parametrize("how", ["halted", "cancelled", "refused", "cancelled while asked"])
def test_given_job_that_may_not_start_is_not_taken(how: str):
    """Nothing is taken while nothing may start, of a job that has gone, or against a rule, which holds it then."""
    driver = Driver()
    keeper = Keeper(driver.core)
    rule = Rule()
    job = driver.submit(rules=(rule,))
    match how:
        case "halted":
            driver.core.pause(True)
        case "cancelled":
            driver.cancel(job)
        case "refused":
            rule.allowing = False
        case _:
            rule.asked = lambda: driver.cancel(job)
    assert driver.core.claim_given(job, 0.0, "worker") is False
    assert driver.core.running == {}
    assert job.attempts == 0
    assert (job.seq in driver.core.waiting) is (how == "refused")
    driver.core.pause(False)
    rule.allowing, rule.asked = True, None
    driver.core.next_due()
    assert driver.claim() is (job if how == "halted" else None)
    if how == "refused":
        keeper.line.clear()
        driver.core.readmit(job)
        assert driver.claim_all() == [job]  # and its old entry is gone
    driver.check()


@pytest.mark.parametrize("room", [True, False])
def test_given_job_goes_before_those_in_its_line_if_there_is_room(room: bool):
    """A held job that a worker waits for is taken past its keeper's line, if the keeper has room for it."""
    driver = Driver()
    keeper, other = Keeper(driver.core), Keeper(driver.core)
    other.room = False
    rule = Rule(allowing=False)
    job = driver.submit(rules=(rule,))
    assert driver.claim() is None
    other.line.clear()
    rule.allowing, keeper.room = True, room
    assert driver.core.claim_given(job, 0.0, "worker") is room
    assert (job.seq in driver.core.waiting) is not room
    assert driver.core.running == ({job.seq: job} if room else {})
    driver.check()


def test_held_job_that_is_in_no_line_cannot_be_given():
    """A job that waits for something else than a keeper's room, a parent say, is not taken."""
    driver = Driver()
    Keeper(driver.core)
    job = driver.submit(rules=(Rule(admitting=False),))
    assert driver.core.could_start(job) is False
    assert driver.core.claim_given(job, 0.0, "worker") is False
    assert driver.core.waiting == {job.seq: job}


@pytest.mark.parametrize("retried", [True, False])
def test_entry_that_a_given_job_left_behind_does_not_come_alive(retried: bool):
    """A job taken from the middle leaves its entry; when it is pending again, for a retry, that entry must be dead."""
    driver = Driver()
    job = driver.submit()
    assert driver.core.claim_given(job, 0.0, "worker")
    assert driver.core.left_behind == {job.seq}
    if retried:
        assert driver.retry(job, 9.0)
        assert driver.core.left_behind == set()
    else:
        driver.finish(job)
    assert driver.claim() is None
    driver.check()
    driver.promote(9)
    assert driver.claim_all() == ([job] if retried else [])
    driver.check()


def test_taking_given_jobs_sweeps_their_entries():
    """The entries that given jobs leave behind are swept like those of cancelled ones, so they do not add up."""
    driver = Driver(history=0)
    for _ in range(500):
        job = driver.submit()
        assert driver.core.claim_given(job, 0.0, "worker")
        driver.finish(job)
    assert len(driver.core.ready) <= 100


# ---------------------------------------------------------------- the keepers' other moments


def test_keepers_are_rung_at_their_alarm_and_not_before():
    """A promotion rings every keeper from the instant of the alarm on; without an alarm never."""
    driver = Driver()
    keepers = Keeper(driver.core), Keeper(driver.core)
    driver.promote(1)
    driver.core.alarm = 3.0
    driver.promote(2.5)
    assert [keeper.log for keeper in keepers] == [[], []]
    driver.promote(3.0)
    driver.promote(4.0)  # who does not set another alarm is rung again
    assert [keeper.log for keeper in keepers] == [[("ring", 3.0), ("ring", 4.0)]] * 2


@pytest.mark.parametrize(
    ("delay", "armed", "alarm", "due"),
    [
        (None, None, None, None),
        (5, None, None, 5),
        (None, 5, None, 5),
        (None, None, 5, 5),
        (4, 5, 6, 4),
        (5, 4, 6, 4),
        (6, 5, 4, 4),
        (5, 6, 4, 4),
        (5, 5, 5, 5),
        (None, 6, 5, 5),
        (None, 5, 6, 5),
    ],
)
def test_next_due_is_the_first_of_jobs_armed_things_and_the_alarm(
    delay: float | None, armed: float | None, alarm: float | None, due: float | None
):
    """Whoever sleeps sleeps until the earliest of what is delayed, armed, or wanted by a keeper."""
    driver = Driver()
    if delay is not None:
        driver.submit(delay=delay)
    if armed is not None:
        driver.core.alarms.arm(Armable(), armed)
    driver.core.alarm = alarm
    assert driver.core.next_due() == due


@pytest.mark.parametrize("state", ["running", "paused", "closed"])
def test_armed_things_ring_only_while_something_may_start(state: str):
    """What is armed and due goes to the outbox, of a closed core too; of one that starts nothing it stays armed."""
    driver = Driver()
    core = driver.core
    core.alarms.arm(Armable(), 5.0)
    if state == "paused":
        core.pause(True)
    elif state == "closed":
        core.closed = True
    core.ring(4.0)
    assert not core.outbox
    assert core.next_due() == (None if state == "paused" else 5.0)
    core.ring(5.0)
    assert len(core.outbox) == (0 if state == "paused" else 1)
    assert bool(core.alarms.things) is (state == "paused")


def test_next_due_without_a_live_arming_is_the_jobs_or_the_alarm():
    """A thing whose arming has no entry any more is no reason to wake."""
    driver = Driver()
    core = driver.core
    core.alarms.arm(Armable(), 5.0)
    core.alarms._queue.pop()
    assert core.next_due() is None
    driver.submit(delay=7)
    assert core.next_due() == 7


def test_keepers_hear_of_another_key_another_order_a_repair_and_a_reset():
    """Each of the four is passed on to every keeper, after the core has done its own part."""
    driver = Driver()
    keepers = Keeper(driver.core), Keeper(driver.core)
    job = driver.submit()
    driver.core.rekeyed(job, 3.0)
    before = driver.core.ranking
    after = type(before)(before.policy)
    assert driver.core.rerank(after, {}) is None
    driver.core.repair()
    driver.core.reset()
    expected = [("rekeyed", job, 3.0), ("reorder", after), "repair", "reset"]
    assert [keeper.log for keeper in keepers] == [expected] * 2


@both
def test_repair_asks_every_waiting_job_again(queue: str):
    """A job whose rule was kept from releasing it is found by a repair; one that is still refused goes on waiting."""
    driver = Driver(queue)
    rules = Rule(admitting=False), Rule(admitting=False)
    late, held = [driver.submit(rules=(rule,), delay=2) for rule in rules]
    rules[0].admitting = True
    del driver.core.waiting[held.seq]  # as an interrupt between the two maps may leave it
    driver.core.repair()
    assert late._place is DELAYED
    assert driver.core.waiting == {held.seq: held}
    driver.check()
    assert driver.promote(2) == 1
    assert driver.claim_all() == [late]


def test_repair_leaves_those_in_a_line_to_their_keeper():
    """A repair lets no job go that a keeper holds."""
    driver = Driver()
    Keeper(driver.core)
    rule = Rule(allowing=False)
    job = driver.submit(rules=(rule,))
    assert driver.claim() is None
    rule.allowing = True
    driver.core.repair()
    assert driver.core.waiting == {job.seq: job}
    assert driver.claim() is None


# ---------------------------------------------------------------- the gate


WAYS_OUT: dict[str, Callable[[Driver, Job[Any]], object]] = {
    "claim": lambda driver, job: driver.claim(),
    "claim one": lambda driver, job: driver.core.claim_one(job, 0.0),
    "claim given": lambda driver, job: driver.core.claim_given(job, 0.0, "worker"),
    "cancel": lambda driver, job: driver.cancel(job),
    "fail": lambda driver, job: driver.fail(job),
}


@both
@pytest.mark.parametrize("way", list(WAYS_OUT))
def test_every_way_out_of_the_pending_jobs_makes_room(queue: str, way: str):
    """A full queue grants a place to the first in line as soon as a job is pending no more, however it left."""
    driver = Driver(queue)
    driver.core.gate = gate = Gate(1)
    job = driver.submit()
    token = Token()
    newcomer = Driver().submit()
    gate.line[newcomer] = token
    driver.check()
    assert WAYS_OUT[way](driver, job)
    assert (token.released, list(gate.grants), gate.line) == (1, [newcomer], {})
    driver.check()


def interrupted_rule() -> Rule:
    rule = Rule()

    def strike(*args: Any) -> None:
        raise KeyboardInterrupt

    rule.started = rule.ended = strike  # type: ignore[method-assign]
    return rule


@pytest.mark.parametrize("way", list(WAYS_OUT))
def test_interrupt_keeps_no_producer_waiting(way: str):
    """Ctrl-C in the middle of a move that makes room is raised, and the first in line has the room."""
    driver = Driver()
    driver.core.gate = gate = Gate(1)
    job = driver.submit(rules=(interrupted_rule(),))
    token = Token()
    gate.line[Driver().submit()] = token
    with pytest.raises(KeyboardInterrupt):
        WAYS_OUT[way](driver, job)
    assert job.status is not JobStatus.PENDING
    assert (token.released, len(gate.grants)) == (1, 1)


def test_close_wakes_the_producers_in_the_line():
    """Who waits for a place before a door that closes is woken, to be refused."""
    driver = Driver()
    driver.core.gate = gate = Gate(1)
    driver.submit()
    tokens = Token(), Token()
    for token in tokens:
        gate.line[Driver().submit()] = token
    driver.core.close("all")
    assert [token.released for token in tokens] == [1, 1]


def test_reset_forgets_the_line():
    """After a fork nobody stands before the gate."""
    driver = Driver()
    driver.core.gate = gate = Gate(1)
    driver.submit()
    gate.line[Driver().submit()] = Token()
    driver.core.reset()
    assert gate.line == {}
    driver.check()


def test_reset_forgets_the_time_limits():
    """After a fork no job of the parent's is timed in the child."""
    driver = Driver()
    limits = driver.core.time_limits
    limits.live[1] = Driver().submit()
    limits.admitted = 1
    driver.core.reset()
    assert (limits.live, limits.admitted) == ({}, 0)


# ---------------------------------------------------------------- schedules


class Series:
    """A schedule, as far as the core knows one."""

    def __init__(self, core: Core, number: int) -> None:
        self.core, self.number = core, number
        self.closed_with: list[Core] = []
        self.sound = True
        core.series[number] = self

    def closed(self, core: Core) -> None:
        self.closed_with.append(core)
        del core.series[self.number]

    def audit(self, core: Core, require: Callable[[object, str], None]) -> None:
        require(self.sound and core is self.core, "the schedule is broken")


def test_close_ends_every_schedule():
    """Every schedule hears that the door has closed, once, and may take itself off the list while it does."""
    driver = Driver()
    series = [Series(driver.core, number) for number in range(3)]
    driver.core.close("all")
    driver.core.close("none")
    assert [one.closed_with for one in series] == [[driver.core]] * 3


# ---------------------------------------------------------------- the audit


def broken_series(driver: Driver) -> None:
    Series(driver.core, 1).sound = False


def broken_keeper(driver: Driver) -> None:
    Keeper(driver.core).log.append("broken")


def broken_gate(driver: Driver) -> None:
    driver.core.gate = Gate(5)
    driver.core.gate.line[Driver().submit()] = Token()


def broken_stale(driver: Driver) -> None:
    driver.core.stale = -1


def waits_although_ended(driver: Driver) -> None:
    driver.core.waiting[999] = Driver().submit()


def waits_although_ready(driver: Driver) -> None:
    job = driver.submit()
    driver.core.waiting[job.seq] = job


def forgotten(driver: Driver) -> None:
    job = driver.submit(rules=(Rule(admitting=False),))
    del driver.core.waiting[job.seq]


def disarmed(driver: Driver) -> None:
    driver.core.alarms.arm(Armable(), 3.0)
    driver.core.alarms._queue.pop()


DAMAGES: dict[Callable[[Driver], None], str] = {
    broken_series: "the schedule is broken",
    broken_keeper: "the keeper is broken",
    broken_gate: "a producer waits although there is a place",
    broken_stale: "^the count of stale entries is negative$",
    waits_although_ended: "^a job is held back that is not pending$",
    waits_although_ready: "the waiting map disagree",
    forgotten: "the waiting map disagree",
    disarmed: "the armed queue does not hold what is armed",
}


@pytest.mark.parametrize("damage", list(DAMAGES), ids=lambda damage: damage.__name__)
def test_audit_asks_rules_and_keepers_too(damage: Callable[[Driver], None]):
    """A sound core passes; with one thing broken the audit names that thing."""
    driver = Driver()
    driver.submit()
    driver.check()
    damage(driver)
    with pytest.raises(InvariantError, match=DAMAGES[damage]):
        driver.check()


def test_audit_accepts_what_the_next_look_repairs():
    """A waiting job that is missing in its map is no fault while the queues wait to be rebuilt from the job map."""
    driver = Driver()
    forgotten(driver)
    driver.core.ready.untidy = True
    driver.check()


# ---------------------------------------------------------------- another priority


def test_moved_job_starts_once_and_in_its_new_place():
    """A job whose priority was changed in the lazy queue has two entries; only the present one starts it."""
    driver = Driver()
    first, job, last = [driver.submit(priority=priority) for priority in (3, 5, 7)]
    assert reorder(driver.core, job, 1, None)
    assert driver.core.stale == 1
    driver.check()
    assert driver.claim_all() == [job, first, last]
    assert driver.core.running.keys() == {job.seq, first.seq, last.seq}


def test_job_moved_there_and_back_is_one_job():
    """A priority changed to another and back leaves entries that are equal; the audit and the claims count one job."""
    driver = Driver()
    low = 5.0
    job, other = driver.submit(priority=low), driver.submit(priority=7)
    reorder(driver.core, job, 6.0, None)
    reorder(driver.core, job, low, None)
    driver.check()
    assert driver.claim_all() == [job, other]
    driver.check()


def test_sweep_with_stale_entries_keeps_the_present_ones():
    """Where jobs may have a second entry the sweep rebuilds the ready queue from the jobs, and counts no stale ones."""
    driver = Driver()
    moved = driver.submit(priority=1)
    reorder(driver.core, moved, 9, None)
    jobs = [driver.submit() for _ in range(100)]
    for job in jobs:
        driver.cancel(job)
    assert driver.core.stale == 0
    assert len(driver.core.ready) < 70
    settled(driver, moved)


def test_no_rebuild_while_somebody_is_inside_the_queue():
    """A sweep that breaks into a change of the ready queue leaves it alone."""
    driver = Driver()
    moved = driver.submit(priority=1)
    reorder(driver.core, moved, 9, None)
    jobs = [driver.submit() for _ in range(100)]
    ready = driver.core.ready
    ready.push = ready._divert  # as inside a change
    for job in jobs:
        driver.cancel(job)
    assert len(ready) == 102
    ready.push = ready.resting_push
    driver.core.sweep()
    assert len(ready) == 1
    assert not ready.untidy

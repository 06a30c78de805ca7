"""What the core does with a move that an exception breaks off, or that somebody breaks into: chosen places, by hand.

`test_core_strikes.py` tries every place; here each test says what must come of one.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, failure_of, make_job, nothing
from threadsched import DuplicateJobError, FifoPolicy, Job, JobStatus, PriorityPolicy
from threadsched._core import SWEEP_EVERY, SWEEP_SLACK, IdTakenError
from threadsched._job import DELAYED, READY, WAITING
from threadsched._policy import Ranking

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


class Row(list[Any]):
    """A row of a sorted list, which somebody breaks into when an entry has been taken out of it."""

    strike: Callable[[], object] = staticmethod(lambda: None)

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self.strike()


class Struck(Job[Any]):
    """A job one of whose moves raises KeyboardInterrupt: before it is made, or after."""

    before = ""
    after = ""

    def _struck(self, move: str, *arguments: Any) -> None:
        if self.before == move:
            raise KeyboardInterrupt
        getattr(Job, move)(self, *arguments)
        if self.after == move:
            raise KeyboardInterrupt

    def _claim(self, *arguments: Any) -> None:
        self._struck("_claim", *arguments)

    def _finish(self, *arguments: Any) -> None:
        self._struck("_finish", *arguments)

    def _fail(self, *arguments: Any) -> None:
        self._struck("_fail", *arguments)

    def _retry(self, *arguments: Any) -> None:
        self._struck("_retry", *arguments)

    def _cancel(self, *arguments: Any, **more: Any) -> None:
        self._struck("_cancel", *arguments)


class Holding:
    """A rule that holds a job back, until it is open."""

    def __init__(self) -> None:
        self.open = False

    def admits(self, job: Job[Any]) -> bool:
        return self.open

    def may_start(self, job: Job[Any], now: float) -> bool:
        return True

    def started(self, job: Job[Any], now: float) -> None:
        pass

    def ended(self, job: Job[Any], now: float) -> None:
        pass


# ---------------------------------------------------------------- a submission


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_withdrawn_submission_leaves_no_living_entry_and_no_name(queue: str, delay: float):
    """A submission broken off between queue and map has not happened: nothing is due, its id is free."""
    driver = Driver(queue)
    core = driver.core
    job = make_job(delay=delay, id="mine")
    seq = job._seq = next(core.numbers)
    job._key = core.ranking.key_of(job)
    core.reserve(job, "mine")
    core.enter(job, seq)
    core.withdraw(job, None)
    assert core.entering is None
    assert core.find("mine") is None
    driver.check()
    assert core.next_due() is None
    assert driver.promote(9) == 0
    assert driver.claim() is None
    assert core.dead_delayed == 0
    driver.check()


def test_submission_broken_off_after_its_acceptance_has_happened():
    """An interrupt that comes after the job is in the map takes nothing back: it starts, and keeps its id."""
    driver = Driver()
    core = driver.core
    job, delayed = driver.submit(id="mine"), driver.submit(delay=1)
    core.entering = job
    core.withdraw(job, None)
    core.entering = delayed
    core.withdraw(delayed, None)
    assert core.entering is None
    assert not core.delayed.untidy
    assert core.find("mine") is job
    driver.promote(1)
    assert driver.claim_all() == [job, delayed]


def test_submission_inside_a_submission_gives_the_outer_one_its_turn_back():
    """Whoever broke into a submission with one that fails leaves the outer one marked as on its way in."""
    core = Driver().core
    outer, inner = make_job(), make_job(id="mine")
    for job in (outer, inner):
        job._seq = next(core.numbers)
        job._key = 5
    core.enter(outer, outer._seq)
    before = core.entering
    core.enter(inner, inner._seq)
    core.withdraw(inner, before)
    assert core.entering is outer


def test_submission_refused_for_its_id_takes_it_from_nobody():
    """A job that did not get its id, for it is another's, leaves that one alone when it is withdrawn."""
    driver = Driver()
    holder = driver.submit(id="mine")
    with pytest.raises(DuplicateJobError):
        driver.submit(id="mine", delay=3)
    assert driver.core.find("mine") is holder
    assert driver.core.delayed.untidy is False  # it never came as far as a queue
    driver.check()


def test_withdrawal_before_the_number_was_given_is_harmless():
    """A submission can be broken off before its job has a number or an entry."""
    driver = Driver()
    job = make_job(id="mine")
    driver.core.withdraw(job, None)
    assert not driver.core.delayed.untidy
    driver.check()


def test_name_that_an_interrupted_end_left_behind_is_taken_over():
    """An id that still points to a job which has ended belongs to the next who asks for it."""
    driver = Driver(history=0)
    old = driver.submit(id="mine")
    driver.claim()
    driver.finish(old)
    driver.core.named["mine"] = old
    new = driver.submit(id="mine")
    assert driver.core.find("mine") is new
    driver.check()


# ---------------------------------------------------------------- a promotion, and the look at the next one due


@both
def test_promotion_that_is_broken_off_loses_nobody(queue: str):
    """An interrupt between the two queues leaves both to be rebuilt from the map, and every job to be had."""
    driver = Driver(queue)
    jobs = [driver.submit(delay=delay) for delay in (1, 2, 9)]
    core = driver.core
    push = core.ready.push

    def interrupted(entry: Any) -> None:
        raise KeyboardInterrupt

    core.ready.push = interrupted
    with pytest.raises(KeyboardInterrupt):
        driver.promote(2)
    core.ready.push = push
    assert core.delayed.untidy
    assert core.ready.untidy
    driver.promote(2)
    driver.check()
    assert driver.claim_all() == jobs[:2]
    assert core.next_due() == 9


def test_look_at_the_next_due_that_is_broken_off_is_made_again():
    """An interrupt while dead heads are thrown away leaves the queue to be rebuilt, and the dead rightly counted."""
    driver = Driver()
    dead, live = driver.submit(delay=1), driver.submit(delay=2)
    driver.cancel(dead)
    core = driver.core
    pop = core.delayed.pop

    def interrupted() -> Any:
        pop()
        raise KeyboardInterrupt

    core.delayed.pop = interrupted
    with pytest.raises(KeyboardInterrupt):
        core.next_due()
    core.delayed.pop = pop
    assert core.delayed.untidy
    assert core.next_due() == 2
    assert core.dead_delayed == 0
    driver.check()
    driver.promote(2)
    assert driver.claim() is live


# ---------------------------------------------------------------- a claim


def test_given_claim_that_is_broken_off_leaves_the_job_to_be_had():
    """Ctrl-C in the middle of taking a given job leaves it pending in its queue; after the move it runs."""
    driver = Driver()
    job = driver.submit(kind=Struck, delay=1)
    driver.now = 1.0
    job.before = "_claim"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.claim_given(job, 1.0, "worker")
    assert (job.status, job._place) == (JobStatus.PENDING, DELAYED)
    driver.check()
    assert driver.promote() == 1
    driver.check()
    job.before, job.after = "", "_claim"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.claim_given(job, 1.0, "worker")
    assert driver.core.running == {job.seq: job}
    assert driver.claim() is None


def test_given_claim_broken_off_while_the_job_is_held_back_asks_it_again():
    """An interrupt inside a rule's keeper leaves the job where it stood before, in its queue and not waiting."""
    driver = Driver()

    class Refusing(Holding):
        def may_start(self, job: Job[Any], now: float) -> bool:
            return False

    class Keeper:
        def holds(self, job: Job[Any]) -> bool:
            return False

        def held(self, rule: Any, job: Job[Any], now: float) -> None:
            raise KeyboardInterrupt

        def repair(self) -> None:
            pass

    rule = Refusing()
    rule.open = True
    jobs = [driver.submit(rules=(rule,), delay=delay) for delay in (0, 1)]
    driver.core.keepers = (Keeper(),)  # type: ignore[assignment]
    for job, place in zip(jobs, (READY, DELAYED), strict=True):
        with pytest.raises(KeyboardInterrupt):
            driver.core.claim_given(job, 1.0, "worker")
        assert job._place is place
        assert driver.core.waiting == {}
    rule.may_start = lambda job, now: True  # type: ignore[method-assign]
    driver.promote(1)
    assert driver.claim_all() == jobs


def test_claim_by_hand_of_a_held_job_that_is_broken_off_leaves_it_held():
    """Ctrl-C in a claim by hand of a job that waits for a rule leaves it waiting for that rule."""
    driver = Driver()
    rule = Holding()
    job = driver.submit(kind=Struck, rules=(rule,))
    job.before = "_claim"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.claim_one(job, 0.0)
    assert job._place is WAITING
    assert driver.core.waiting == {job.seq: job}
    driver.check()
    assert driver.claim() is None
    rule.open = True
    driver.core.release(job)
    driver.promote()
    job.before = ""  # type: ignore[attr-defined]
    assert driver.claim() is job


# ---------------------------------------------------------------- an end


MOVES = {
    "finish": "_finish",
    "fail": "_fail",
    "stop": "_cancel",
    "retry": "_retry",
}


def move(driver: Driver, how: str, job: Job[Any]) -> object:
    match how:
        case "finish":
            return driver.finish(job)
        case "fail":
            return driver.fail(job)
        case "stop":
            return driver.core.stop(job, job.name, driver.now)
        case "retry":
            return driver.retry(job, 1.0)
        case _:
            return driver.cancel(job)


@both
@pytest.mark.parametrize("how", list(MOVES))
def test_end_that_is_broken_off_before_its_move_has_not_happened(queue: str, how: str):
    """Ctrl-C before a running job has moved leaves it running, uncounted, and to be settled again."""
    driver = Driver(queue)
    job = driver.submit(kind=Struck)
    driver.claim()
    job.before = MOVES[how]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        move(driver, how, job)
    core = driver.core
    assert job.status is JobStatus.RUNNING
    assert core.running == {job.seq: job}
    assert (core.done, core.failed, core.cancelled, core.retries) == (0, 0, 0, 0)
    job.before = ""  # type: ignore[attr-defined]
    assert move(driver, how, job)
    driver.check()


@both
@pytest.mark.parametrize("how", ["finish", "fail", "stop"])
def test_end_that_is_broken_off_after_its_move_has_happened(queue: str, how: str):
    """Ctrl-C after the move leaves the job ended and in neither map, and has the waiting ones asked again."""
    driver = Driver(queue)
    rule = Holding()
    held = driver.submit(rules=(rule,))
    job = driver.submit(kind=Struck)
    driver.claim()
    job.after = MOVES[how]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        move(driver, how, job)
    core = driver.core
    assert job.done()
    assert core.running == {}
    assert core.pending == {held.seq: held}
    rule.open = True  # what the end would have told it
    driver.promote()
    driver.check()
    assert driver.claim_all() == [held]


@both
def test_retry_that_is_broken_off_after_its_move_waits_for_its_time(queue: str):
    """Ctrl-C just after RUNNING → PENDING leaves the job pending and due at its new time."""
    driver = Driver(queue)
    job = driver.submit(kind=Struck)
    driver.claim()
    job.after = "_retry"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.retry(job, 4.0)
    assert driver.core.pending == {job.seq: job}
    assert driver.core.running == {}
    assert driver.core.next_due() == 4.0
    driver.check()
    driver.promote(4)
    assert driver.claim() is job


@both
@pytest.mark.parametrize("how", ["fail", "cancel"])
@pytest.mark.parametrize("place", [DELAYED, READY, WAITING])
def test_end_of_a_pending_job_that_is_broken_off_has_not_happened(queue: str, how: str, place: str):
    """Ctrl-C before a pending job has ended leaves it where it was: delayed, ready, or held back by its rule."""
    driver = Driver(queue)
    rule = Holding()
    rules = (rule,) if place is WAITING else ()
    job = driver.submit(kind=Struck, rules=rules, delay=1 if place is DELAYED else 0)
    job._attach()  # else a cancel is written out in the core, and nothing can strike there
    job.before = {"fail": "_fail", "cancel": "_cancel"}[how]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        move(driver, how, job)
    assert (job.status, job._place) == (JobStatus.PENDING, place)
    core = driver.core
    assert core.pending == {job.seq: job}
    assert core.waiting == ({job.seq: job} if place is WAITING else {})
    rule.open = True
    driver.promote(1)
    driver.check()
    assert driver.claim() is job


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_end_of_a_pending_job_that_is_broken_off_late_has_happened(how: str):
    """Ctrl-C after a pending job has ended leaves it ended; no entry of it is alive, and the count of dead is right."""
    driver = Driver()
    job, other = driver.submit(kind=Struck, delay=1), driver.submit(delay=2)
    job._attach()
    job.after = {"fail": "_fail", "cancel": "_cancel"}[how]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        move(driver, how, job)
    assert job.done()
    assert driver.core.next_due() == 2
    driver.check()
    driver.promote(2)
    assert driver.claim_all() == [other]


def test_failure_told_to_a_rule_that_is_interrupted_stands():
    """Ctrl-C inside a rule that is told of an end does not take the end back."""
    driver = Driver()

    class Interrupted(Holding):
        def ended(self, job: Job[Any], now: float) -> None:
            raise KeyboardInterrupt

    rule = Interrupted()
    rule.open = True
    job = driver.submit(rules=(rule,))
    driver.claim()
    with pytest.raises(KeyboardInterrupt):
        driver.core.fail(job, failure_of(job), "ValueError: boom", 1.0)
    assert job.status is JobStatus.FAILED
    assert driver.core.failed == 1
    assert driver.core.status_of(job.seq) is JobStatus.FAILED
    driver.check()


def test_error_of_an_earlier_attempt_is_handed_out_by_a_cancel():
    """What a job in backoff keeps of its last failure goes to the caller too: it may hold anything."""
    driver = Driver()
    job = driver.submit(nothing)
    driver.claim()
    driver.retry(job, 5.0)
    error = ValueError("boom")
    job._attach().error = error
    spoils = driver.core.cancel(job, job.name, 1.0)
    assert spoils is not None
    assert spoils[-1] is error
    assert job._attach().error is None


# ---------------------------------------------------------------- another ranking


def test_submission_that_breaks_into_a_rerank_starts_it_again():
    """A job that enters while the new queue is built is seen: nothing has changed, and the caller goes round again."""
    driver = Driver()
    driver.submit(priority=2)
    core = driver.core
    fifo = Ranking(FifoPolicy())
    old, ready = core.ranking, core.ready
    make, struck = core.queue_type, []

    def make_queue(*arguments: Any, **more: Any) -> Any:
        if not struck:
            struck.append(driver.submit(priority=1))
        return make(*arguments, **more)

    core.queue_type = make_queue  # type: ignore[assignment]
    assert core.rerank(fifo, {}) == []
    assert (core.ranking, core.ready) == (old, ready)
    assert core.rerank(fifo, {}) is None
    assert core.ranking is fifo
    driver.check()
    assert [job.priority for job in driver.claim_all()] == [2, 1]


def test_readmission_that_breaks_into_a_rerank_starts_it_again():
    """A job let go into the ready queue while the new one is built is seen likewise."""
    driver = Driver()
    rule = Holding()
    job = driver.submit(rules=(rule,))
    core = driver.core
    make = core.queue_type
    rule.open = True

    def make_queue(*arguments: Any, **more: Any) -> Any:
        core.queue_type = make
        core.readmit(job)
        return make(*arguments, **more)

    core.queue_type = make_queue  # type: ignore[assignment]
    assert core.rerank(Ranking(FifoPolicy()), {}) == []
    assert core.rerank(Ranking(FifoPolicy()), {}) is None
    driver.check()
    assert driver.claim_all() == [job]


class Slippery(Job[Any]):
    """A job whose key raises when it is set, once."""

    strikes = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_key" and self.strikes:
            self.strikes -= 1
            raise KeyboardInterrupt
        super().__setattr__(name, value)


@both
def test_rerank_broken_off_among_the_keys_gives_every_job_its_key(queue: str):
    """Ctrl-C while the jobs get their new keys: all have them, the new order stands, newcomers get in."""
    driver = Driver(queue)
    jobs = [driver.submit(kind=Slippery, priority=priority) for priority in (3, 2, 1)]
    jobs[1].strikes = 1  # type: ignore[attr-defined]
    fifo = Ranking(FifoPolicy())
    with pytest.raises(KeyboardInterrupt):
        driver.core.rerank(fifo, {})
    assert driver.core.ranking is fifo
    assert not driver.core.ready.busy
    assert [job._key for job in jobs] == [0, 0, 0]
    late = driver.submit()
    driver.check()
    assert driver.claim_all() == [*jobs, late]


@both
def test_rerank_broken_off_twice_is_made_whole_by_the_next_look(queue: str):
    """A second Ctrl-C, while the first one's damage is mended, leaves the queue to be rebuilt: nobody is lost."""
    driver = Driver(queue)
    jobs = [driver.submit(kind=Slippery, priority=priority) for priority in (3, 2, 1)]
    jobs[1].strikes = 2  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.rerank(Ranking(FifoPolicy()), {})
    assert driver.core.ready.untidy
    assert not driver.core.ready.busy
    assert set(driver.claim_all()) == set(jobs)
    driver.check()


@both
def test_rerank_leaves_the_queue_open_and_in_order(queue: str):
    """After a change of policy nothing is left to be rebuilt, and the queue takes newcomers at once."""
    driver = Driver(queue)
    driver.submit(priority=2)
    assert driver.core.rerank(Ranking(FifoPolicy()), {}) is None
    assert (driver.core.ready.untidy, driver.core.ready.busy) == (False, False)
    driver.submit(priority=1)
    assert len(driver.core.ready) == 2


def test_rerank_wants_keys_from_what_the_jobs_are_now():
    """A key that was computed from another priority or time than the job has now is asked for again."""
    driver = Driver()
    jobs = [driver.submit(priority=priority) for priority in (1, 2, 3)]
    ranking = Ranking(Negative())
    keys = {job.seq: ranking.key_of(job) for job in jobs}
    bases = {job.seq: (job._priority, job._run_at) for job in jobs}
    jobs[0]._priority = 9
    assert driver.core.rerank(ranking, keys, bases) == [jobs[0]]
    bases[jobs[0].seq] = (9, jobs[0]._run_at)
    jobs[2]._run_at = 5.0
    assert driver.core.rerank(ranking, keys, bases) == [jobs[2]]
    bases[jobs[2].seq] = (3, jobs[2]._run_at)
    assert driver.core.rerank(ranking, keys, bases) is None
    assert [job._key for job in jobs] == [-1, -2, -3]


class Negative:
    """The highest priority number first."""

    def key(self, job: Job[Any]) -> float:
        return -job.priority


def test_trusted_rerank_goes_by_what_the_jobs_are_now():
    """A built-in policy reads its keys under the lock: whatever the caller computed does not count."""
    driver = Driver(policy=FifoPolicy())
    jobs = [driver.submit(priority=priority) for priority in (3, 2, 1)]
    keys: dict[int, object] = {job.seq: 0 for job in jobs}
    bases: dict[int, tuple[object, object]] = {job.seq: (object(), object()) for job in jobs}
    assert driver.core.rerank(Ranking(PriorityPolicy()), keys, bases) is None
    driver.check()
    assert driver.claim_all() == jobs[::-1]


# ---------------------------------------------------------------- a repair


def test_repair_ends_an_entry_that_was_under_way():
    """A repair knows no submission that is still on its way in: the next sweep is free again."""
    driver = Driver()
    driver.core.entering = make_job()
    driver.core.repair()
    assert driver.core.entering is None
    for job in [driver.submit() for _ in range(SWEEP_SLACK + SWEEP_EVERY)]:
        driver.cancel(job)
    assert len(driver.core.ready) == 0


def test_repair_rebuilds_the_armed_things_too():
    """An interrupt may have left a thing armed without an entry: a repair makes it ring all the same."""
    from threadsched._arming import Armable

    driver = Driver()
    thing = Armable()
    driver.core.alarms.arm(thing, 5.0)
    driver.core.alarms._queue.pop()
    driver.core.repair()
    driver.check()
    driver.core.ring(5.0)
    assert len(driver.core.outbox) == 1


# ---------------------------------------------------------------- between two calls of one line


def test_cancel_between_a_release_and_its_entry_leaves_no_entry():
    """Whoever cancels a job that is just being let go finds it in no queue: it gets no entry there afterwards."""
    driver = Driver()
    rule = Holding()
    job = driver.submit(rules=(rule,))
    core = driver.core

    class Waiting(dict[int, Job[Any]]):
        def pop(self, *arguments: Any) -> Any:
            taken = super().pop(*arguments)
            core.waiting = dict(self)
            driver.cancel(job)
            return taken

    core.waiting = Waiting(core.waiting)
    rule.open = True
    core.release(job)
    assert job.cancelled()
    assert len(core.delayed) == len(core.ready) == core.dead_delayed == 0
    driver.check()


def test_id_that_is_taken_again_while_its_job_is_remembered_stays_taken():
    """Who takes an id between the look and the removal keeps it: the ended job's name alone is removed."""
    driver = Driver()
    job = driver.submit(id="a")
    assert driver.claim() is job
    other = make_job(id="a")
    core = driver.core

    class Names(dict[str, Job[Any]]):
        def get(self, id: str, default: Any = None) -> Any:
            known = super().get(id, default)
            self[id] = other
            return known

    core.named = Names(core.named)
    assert driver.finish(job)
    assert dict(core.named) == {"a": other}


def test_newcomer_that_wants_no_error_for_its_id_is_told_who_has_it():
    """With if_exists the core refuses an id of a live job by an error that carries both."""
    driver = Driver()
    holder, newcomer = driver.submit(id="a"), make_job(id="a", if_exists="return")
    with pytest.raises(IdTakenError) as caught:
        driver.core.reserve(newcomer, "a")
    assert (caught.value.job, caught.value.holder) == (newcomer, holder)
    assert caught.value.args == ()  # what is shown of it names nobody's job
    driver.check()


@pytest.mark.parametrize("move", ["cancel", "promote"])
def test_a_delayed_newcomer_inside_a_change_of_the_sorted_list(move: str):
    """It is accepted, and takes itself for the new head: whether it is one, the half changed list cannot tell."""
    driver = Driver("indexed")
    core = driver.core
    only = driver.submit(delay=1)
    newcomers: list[Job[Any]] = []
    row = core.delayed.heap._lists[0] = Row(core.delayed.heap._lists[0])

    def strike() -> None:
        assert core.delayed.first() is None
        newcomers.append(driver.submit(delay=5))

    row.strike = strike  # type: ignore[method-assign]
    if move == "cancel":
        assert driver.cancel(only)
    else:
        assert driver.promote(2) == 1
    (newcomer,) = newcomers
    assert driver.new_head
    core.check_invariants()
    assert core.next_due() == newcomer._run_at

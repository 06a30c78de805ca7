"""The core by itself: no thread, no lock, and a clock reading that is handed in."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, failure_of, make_job, nothing
from threadsched import DuplicateJobError, FifoPolicy, InvariantError, Job, JobStatus, OldestDuePolicy, PriorityPolicy
from threadsched._core import DRAINS, SWEEP_EVERY, SWEEP_SHARE, SWEEP_SLACK
from threadsched._job import DELAYED, READY
from threadsched._policy import Ranking

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


class KeyOf:
    def __init__(self, key: Callable[[Job[Any]], Any]) -> None:
        self.key = key


class Before:
    def __init__(self, before: Callable[[Job[Any], Job[Any]], Any]) -> None:
        self.before = before


# ---------------------------------------------------------------- in


@both
def test_due_newcomer_is_ready_and_a_later_one_delayed(queue: str):
    """A job without delay is in the ready queue at once; one with a delay in the delayed queue alone."""
    driver = Driver(queue)
    now, later = driver.submit(), driver.submit(delay=3)
    assert (now._place, later._place) == (READY, DELAYED)
    assert [seq for _, seq in driver.core.ready.entries()] == [now.seq]
    assert [seq for _, seq in driver.core.delayed.entries()] == [later.seq]
    driver.check()


@both
def test_stepped_newcomer_waits_for_the_next_promotion(queue: str):
    """In the stepped form every newcomer goes through the delayed queue, however due it is."""
    driver = Driver(queue, stepped=True)
    job = driver.submit()
    assert job._place is DELAYED
    assert driver.claim() is None
    assert driver.promote() == 1
    assert driver.claim() is job


@both
def test_enter_tells_a_new_head(queue: str):
    """Entering says whether the job is the next one due, so that somebody can set an earlier alarm."""
    driver = Driver(queue)
    heads = []
    for delay in (5, 7, 3, 3, 1):
        driver.submit(delay=delay)
        heads.append(driver.new_head)
    driver.submit()
    assert heads == [True, False, True, False, True]
    assert driver.new_head is False


@both
def test_newcomer_that_was_never_accepted_is_dead(queue: str):
    """A job that was entered but not put into the map does not exist: its entry is thrown away."""
    driver = Driver(queue)
    job = driver.submit()
    del driver.core.pending[job.seq]
    other = driver.submit()
    assert driver.claim_all() == [other]


# ---------------------------------------------------------------- on


@both
def test_promotion_takes_what_is_due_and_no_more(queue: str):
    """Jobs become ready at their time exactly, not a moment earlier, and are counted."""
    driver = Driver(queue)
    jobs = [driver.submit(delay=delay) for delay in (3, 1, 2, 2)]
    assert driver.promote(math.nextafter(1, 0)) == 0
    assert driver.promote(1) == 1
    assert driver.claim_all() == [jobs[1]]
    assert driver.promote(2.5) == 2
    assert driver.promote(2.5) == 0
    assert driver.claim_all() == [jobs[2], jobs[3]]
    assert driver.promote(math.inf) == 1
    driver.check()


@both
def test_dead_heads_are_dropped_by_a_promotion(queue: str):
    """A cancelled delayed job is thrown away when its time comes, and no longer counted."""
    driver = Driver(queue)
    dead, live = driver.submit(delay=1), driver.submit(delay=2)
    driver.cancel(dead)
    assert driver.core.dead_delayed == (1 if queue == "lazy" else 0)
    assert driver.promote(5) == 1
    assert driver.core.dead_delayed == 0
    assert driver.claim_all() == [live]
    driver.check()


JOBS = [
    {"priority": 5, "delay": 3},
    {"priority": 1, "delay": 9},
    {"priority": 5},
    {"priority": -2.5, "delay": 9},
    {"priority": 1},
]


@both
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PriorityPolicy(), [4, 2, 5, 1, 3]),
        (FifoPolicy(), [1, 2, 3, 4, 5]),
        (OldestDuePolicy(), [3, 5, 1, 2, 4]),
        (KeyOf(lambda job: (-job.run_at, str(job.seq))), [2, 4, 1, 3, 5]),
        (KeyOf(lambda job: 0), [1, 2, 3, 4, 5]),
        (Before(lambda a, b: a.priority > b.priority), [1, 3, 2, 5, 4]),
    ],
    ids=["priority", "fifo", "oldest-due", "key", "constant", "before"],
)
def test_claims_come_in_the_policys_order(queue: str, policy: Any, expected: list[int]):
    """With either structure the ready jobs start in the policy's order, ties in submission order."""
    driver = Driver(queue, policy)
    for options in JOBS:
        driver.submit(**options)
    driver.promote(10)
    assert [job.seq for job in driver.claim_all()] == expected
    driver.check()


@both
def test_claim_moves_one_job_to_running(queue: str):
    """A claim takes the job off the pending map, starts its attempt and notes the worker."""
    driver = Driver(queue)
    job = driver.submit()
    driver.now = 4.0
    assert driver.claim("slot") is job
    assert (job.status, job.attempts, job._started_at, job._place) == (JobStatus.RUNNING, 1, 4.0, "slot")
    assert list(driver.core.pending) == []
    assert driver.core.running == {job.seq: job}
    assert driver.claim() is None
    driver.check()


@both
def test_claim_skips_the_dead(queue: str):
    """Cancelled jobs that still stand in the ready queue are passed over."""
    driver = Driver(queue)
    jobs = [driver.submit() for _ in range(5)]
    for job in jobs[:3]:
        driver.cancel(job)
    assert driver.claim_all() == jobs[3:]


def test_claim_that_loses_to_a_cancel_goes_on():
    """A job that is cancelled between the look and the pop is not claimed; the next one is."""
    driver = Driver()
    first, second = driver.submit(), driver.submit()

    class Pending(dict[int, Job[Any]]):
        def get(self, seq: int, default: Any = None) -> Any:
            job = super().get(seq, default)
            if job is first and job.status is JobStatus.PENDING:
                driver.cancel(first)
            return job

    driver.core.pending = Pending(driver.core.pending)
    assert driver.claim() is second
    assert first.cancelled()
    driver.check()


def test_halted_core_gives_no_job():
    """Once nothing is to start any more, ready jobs stay where they are."""
    driver = Driver()
    driver.submit()
    driver.core.halted = True
    assert driver.claim() is None
    assert len(driver.core.pending) == 1


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_one_given_job_can_be_claimed_once(queue: str, delay: float):
    """claim_one takes a pending job out of whichever heap it is in, for one caller only."""
    driver = Driver(queue)
    job, other = driver.submit(delay=delay), driver.submit()
    assert driver.core.claim_one(job, 2.0) is True
    assert (job.status, job._place, job.attempts) == (JobStatus.RUNNING, None, 1)
    assert driver.core.claim_one(job, 2.0) is False
    driver.promote(10)
    assert driver.claim_all() == [other]
    driver.check()
    assert driver.finish(job)
    assert driver.core.claim_one(job, 2.0) is False


class Clumsy(Job[Any]):
    """A job whose moves are interrupted: before they are made, or after."""

    before = ""
    after = ""

    def _claim(self, now: float, place: object) -> None:
        if self.before == "claim":
            raise KeyboardInterrupt
        super()._claim(now, place)
        if self.after == "claim":
            raise KeyboardInterrupt

    def _cancel(self, *arguments: Any, **more: Any) -> None:
        if self.before == "cancel":
            raise KeyboardInterrupt
        super()._cancel(*arguments, **more)
        if self.after == "cancel":
            raise KeyboardInterrupt


@both
@pytest.mark.parametrize("one", [False, True], ids=["next", "given"])
def test_interrupted_claim_is_given_back(queue: str, one: bool):
    """Ctrl-C inside a claim, before the job has moved, leaves it pending and to be had again."""
    driver = Driver(queue)
    job = driver.submit(kind=Clumsy)
    job.before = "claim"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.claim_one(job, 0.0) if one else driver.claim()
    assert job.status is JobStatus.PENDING
    driver.check()
    job.before = ""  # type: ignore[attr-defined]
    assert driver.claim() is job
    driver.check()


@both
@pytest.mark.parametrize("one", [False, True], ids=["next", "given"])
def test_claim_interrupted_after_the_move_loses_nobody(queue: str, one: bool):
    """Ctrl-C just after the job has moved leaves it running in the map, for whoever cleans up, or pending."""
    driver = Driver(queue)
    job = driver.submit(kind=Clumsy)
    job.after = "claim"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.core.claim_one(job, 0.0) if one else driver.claim()
    core = driver.core
    assert {JobStatus.PENDING: core.pending, JobStatus.RUNNING: core.running}[job.status] == {job.seq: job}


def test_claim_interrupted_at_an_empty_place_gives_nothing_back():
    """An interrupt before any job was found only makes the next look rebuild the heap."""
    driver = Driver()
    job = driver.submit()
    pop = driver.core.ready.pop

    def interrupted() -> Any:
        raise KeyboardInterrupt

    driver.core.ready.pop = interrupted
    with pytest.raises(KeyboardInterrupt):
        driver.claim()
    driver.core.ready.pop = pop
    assert driver.core.ready.untidy
    assert driver.claim() is job


# ---------------------------------------------------------------- out


def settle(driver: Driver, how: str, job: Job[Any]) -> Any:
    match how:
        case "finish":
            return driver.finish(job, "value")
        case "fail":
            return driver.fail(job)
        case "stop":
            return driver.core.stop(job, job.name, driver.now)
        case "retry":
            return driver.retry(job, driver.now + 1)
        case _:
            return driver.cancel(job)


ENDS = {"finish": JobStatus.DONE, "fail": JobStatus.FAILED, "stop": JobStatus.CANCELLED}


@pytest.mark.parametrize("second", [*ENDS, "cancel", "retry"])
@pytest.mark.parametrize("first", list(ENDS))
def test_right_to_settle_is_single(first: str, second: str):
    """Whoever comes second to settle a job gets False, and the first outcome stands."""
    driver = Driver()
    job = driver.submit()
    driver.claim()
    driver.now = 3.0
    assert settle(driver, first, job) is True
    before = {slot: getattr(job, slot) for slot in Job.__slots__}
    run_at = job.run_at
    assert settle(driver, second, job) is False
    job._run_at = run_at  # the driver's retry writes it beforehand
    assert {slot: getattr(job, slot) for slot in Job.__slots__} == before
    assert job.status is ENDS[first]
    assert job._finished_at == 3.0
    core = driver.core
    assert (core.done, core.failed, core.cancelled) == (first == "finish", first == "fail", first == "stop")
    assert not core.running
    driver.check()


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_pending_job_can_fail(queue: str, delay: float):
    """A job that can no longer be started fails where it stands, and its entry is dead."""
    driver = Driver(queue)
    job, other = driver.submit(delay=delay), driver.submit()
    assert driver.fail(job) is True
    assert job.status is JobStatus.FAILED
    assert driver.core.failed == 1
    driver.promote(10)
    assert driver.claim_all() == [other]
    driver.check()


@pytest.mark.parametrize("how", ["finish", "stop", "retry"])
def test_pending_job_cannot_settle_as_if_it_ran(how: str):
    """What a running task alone may bring about is refused for a pending job."""
    driver = Driver()
    job = driver.submit()
    assert not settle(driver, how, job)
    assert job.status is JobStatus.PENDING
    assert driver.claim() is job


@both
def test_retry_goes_back_to_the_delayed_heap(queue: str):
    """A retried job waits for its new time with its new key, keeps its number, and is counted."""
    driver = Driver(queue, OldestDuePolicy())
    job, other = driver.submit(), driver.submit(delay=3)
    driver.claim()
    assert driver.retry(job, 2.0) is True  # the new head
    assert (job.status, job._place, job._key, job.attempts) == (JobStatus.PENDING, DELAYED, 2.0, 1)
    assert driver.core.retries == 1
    assert driver.core.next_due() == 2.0
    driver.check()
    driver.promote(3)
    assert driver.claim_all() == [job, other]
    assert driver.retry(job, 9.0) is True
    assert driver.retry(other, 10.0) is False  # behind the head
    driver.check()


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_cancel_returns_what_the_job_held(queue: str, delay: float):
    """A cancel takes task and arguments from the job and hands them to the caller, once."""
    driver = Driver(queue)
    argument = object()
    job = driver.submit(print, argument, delay=delay)
    spoils = driver.core.cancel(job, "print", 2.0)
    assert spoils is not None
    assert spoils[:2] == (print, (argument,))
    assert (job._fn, job._args, job._result) == ("print", None, None)
    assert job.status is JobStatus.CANCELLED
    assert driver.core.cancel(job, "print", 2.0) is None
    assert driver.core.cancelled == 1
    driver.check()


def test_cancel_of_a_running_job_is_nothing():
    """Only a pending job can be cancelled."""
    driver = Driver()
    job = driver.submit()
    driver.claim()
    assert driver.core.cancel(job, "name", 0.0) is None
    assert job.status is JobStatus.RUNNING


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_cancel_interrupted_before_its_move_has_not_happened(queue: str, delay: float):
    """Ctrl-C inside a cancel, before the job has moved, leaves it pending, findable and to be cancelled again."""
    driver = Driver(queue)
    job = driver.submit(kind=Clumsy, delay=delay)
    job._attach()  # else the move is written out in the core, and nothing can strike there
    job.before = "cancel"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.cancel(job)
    assert job.status is JobStatus.PENDING
    assert driver.core.find(job.seq) is job
    job.before = ""  # type: ignore[attr-defined]
    driver.promote(10)
    driver.core.repair()
    driver.check()
    assert driver.cancel(job)


def test_cancel_interrupted_after_its_move_has_happened():
    """Ctrl-C just after the move leaves the job cancelled and off the map, not pending again."""
    driver = Driver()
    job = driver.submit(kind=Clumsy)
    job._attach()
    job.after = "cancel"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        driver.cancel(job)
    assert job.cancelled()
    assert driver.core.find(job.seq) is None
    assert driver.claim() is None


@both
@pytest.mark.parametrize("delay", [0, 5])
def test_a_hundred_thousand_cancels_leave_no_entries(queue: str, delay: float):
    """After mass cancelling the heaps have shrunk to the living plus a little, and the living still run."""
    total = 100_000 if queue == "lazy" else 2_000
    driver = Driver(queue, history=0)
    jobs = [driver.submit(delay=delay) for _ in range(total)]
    kept = jobs[:: total // 10]
    core = driver.core
    sweeps = 0
    for heap in (core.ready, core.delayed):
        keep = heap.keep

        def counting(alive: Any, keep: Any = keep) -> int:
            nonlocal sweeps
            sweeps += 1
            return keep(alive)

        heap.keep = counting  # type: ignore[method-assign]
    chosen = set(kept)
    for job in jobs:
        if job not in chosen:
            assert core.cancel(job, "nothing", 0.0) is not None
    heap = core.delayed if delay else core.ready
    assert len(heap) <= SWEEP_SHARE * len(kept) + SWEEP_SLACK + SWEEP_EVERY
    assert sweeps <= 2 * math.log2(total)  # each sweep halves: constant time for each cancel
    driver.check()
    driver.promote(10)
    assert driver.claim_all() == kept


def test_few_dead_entries_are_left_alone():
    """Below the slack a sweep is not worth its call, nor is a look at every cancel; the next look makes it."""
    driver = Driver()
    jobs = [driver.submit() for _ in range(SWEEP_SLACK + SWEEP_EVERY)]
    for job in jobs[:-1]:
        driver.cancel(job)
    assert len(driver.core.ready) == SWEEP_SLACK + SWEEP_EVERY
    driver.cancel(jobs[-1])
    assert len(driver.core.ready) == 0


def test_no_sweep_while_a_submission_is_between_heap_and_map():
    """A sweep would take the entry of a job that is about to be accepted, so it waits."""
    driver = Driver()
    jobs = [driver.submit() for _ in range(SWEEP_SLACK + SWEEP_EVERY)]
    driver.core.entering = jobs[0]
    for job in jobs:
        driver.cancel(job)
    assert len(driver.core.ready) == SWEEP_SLACK + SWEEP_EVERY
    driver.core.entering = None
    driver.core.sweep()
    assert len(driver.core.ready) == 0


# ---------------------------------------------------------------- the next time


@both
def test_next_due_is_the_earliest_living(queue: str):
    """The next due time is that of the first delayed job that is still pending; dead heads are dropped."""
    driver = Driver(queue)
    assert driver.core.next_due() is None
    jobs = [driver.submit(delay=delay) for delay in (3, 1, 2)]
    assert driver.core.next_due() == 1
    driver.cancel(jobs[1])
    assert driver.core.next_due() == 2
    driver.cancel(jobs[2])
    assert driver.core.next_due() == 3
    driver.cancel(jobs[0])
    assert driver.core.next_due() is None
    assert (driver.core.dead_delayed, len(driver.core.delayed)) == (0, 0)


def test_next_due_puts_back_what_is_not_dead():
    """If somebody submits between the look at a dead head and its pop, the newcomer is put back."""
    driver = Driver()
    driver.cancel(driver.submit(delay=5))
    plain_pop = driver.core.delayed.pop
    early: list[Job[Any]] = []

    def pop() -> Any:
        if not early:
            early.append(driver.submit(delay=1))
        return plain_pop()

    driver.core.delayed.pop = pop
    assert driver.core.next_due() == 1
    assert driver.core.dead_delayed == 1
    driver.check()


# ---------------------------------------------------------------- repair


@both
@pytest.mark.parametrize("heal", ["promote", "claim", "next_due", "repair"])
def test_damage_is_repaired_from_the_map(queue: str, heal: str):
    """An untidy heap is rebuilt from the map before anybody looks: nothing is lost, nothing is twice there."""
    driver = Driver(queue)
    ready = [driver.submit(priority=priority) for priority in (3, 1, 2)]
    delayed = [driver.submit(delay=delay) for delay in (3, 1)]
    driver.cancel(ready[0])
    core = driver.core
    for damaged in (core.delayed, core.ready):
        damaged.lane.clear()
        damaged.heap.clear()
    core.ready.push((7, ready[2].seq))
    core.delayed.untidy = core.ready.untidy = True
    driver.check()  # nobody looks before the repair, so the audit does not either
    match heal:
        case "promote":
            driver.promote(0)
        case "claim":
            core.ready.push((0, 999))
            assert driver.claim() is ready[1]
            assert driver.retry(ready[1], 0.0)
            driver.promote(0)
        case "next_due":
            assert core.next_due() == 1
        case _:
            core.repair()
    assert not core.delayed.untidy
    assert not core.ready.untidy
    driver.check()
    assert driver.claim_all() == [ready[1], ready[2]]
    driver.promote(5)
    assert set(driver.claim_all()) == set(delayed)


# ---------------------------------------------------------------- another rule


@both
def test_rerank_by_a_trusted_rule_needs_no_keys(queue: str):
    """The built-in policies bring their keys; delayed jobs are re-keyed too."""
    driver = Driver(queue)
    for options in JOBS:
        driver.submit(**options)
    assert driver.core.rerank(Ranking(OldestDuePolicy()), {}) is None
    driver.check()
    driver.promote(10)
    assert [job.seq for job in driver.claim_all()] == [3, 5, 1, 2, 4]


@both
def test_rerank_asks_for_missing_keys_and_changes_nothing_before(queue: str):
    """Without all keys the jobs that lack one are returned and the old order stands; with them the new one does."""
    driver = Driver(queue)
    jobs = [driver.submit(**options) for options in JOBS]
    ranking = Ranking(KeyOf(lambda job: -job.seq))
    old = driver.core.ranking
    assert driver.core.rerank(ranking, {}) == jobs
    assert driver.core.ranking is old
    keys = {job.seq: ranking.key_of(job) for job in jobs[:3]}
    assert driver.core.rerank(ranking, keys) == jobs[3:]
    assert driver.core.ranking is old
    assert [job._key for job in jobs] == [job.priority for job in jobs]
    driver.check()
    keys |= {job.seq: ranking.key_of(job) for job in jobs[3:]}
    assert driver.core.rerank(ranking, keys) is None
    assert driver.core.ranking is ranking
    driver.check()
    driver.promote(10)
    assert [job.seq for job in driver.claim_all()] == [5, 4, 3, 2, 1]


@both
def test_rerank_to_and_from_before(queue: str):
    """A comparing policy takes over the ready jobs, and hands them on to a keyed one."""
    driver = Driver(queue)
    for priority in (5, 1, 3):
        driver.submit(priority=priority)
    ranking = Ranking(Before(lambda a, b: a.priority > b.priority))
    keys = {job.seq: ranking.key_of(job) for job in driver.core.pending.values()}
    assert driver.core.rerank(ranking, keys) is None
    first = driver.claim()
    assert first is not None
    assert first.priority == 5
    assert driver.core.rerank(Ranking(PriorityPolicy()), {}) is None
    assert [job.priority for job in driver.claim_all()] == [1, 3]
    driver.check()


def test_rerank_leaves_dead_entries_behind():
    """Cancelled jobs do not come along into the new heap."""
    driver = Driver()
    jobs = [driver.submit() for _ in range(3)]
    driver.cancel(jobs[1])
    driver.core.rerank(Ranking(FifoPolicy()), {})
    assert len(driver.core.ready) == 2


@both
def test_fault_of_before_during_a_promotion_is_kept_for_the_log(queue: str):
    """A promotion never fails by a policy: the job is ready, and the error is kept for whoever logs."""
    failing = False

    def before(a: Job[Any], b: Job[Any]) -> bool:
        if failing:
            raise LookupError
        return False

    driver = Driver(queue, Before(before))
    jobs = [driver.submit(delay=1) for _ in range(4)]
    failing = True
    assert driver.promote(1) == 4
    assert driver.core.ranking.faults
    assert all(isinstance(error, LookupError) for error in driver.core.ranking.faults)
    failing = False
    assert set(driver.claim_all()) == set(jobs)
    driver.check()


# ---------------------------------------------------------------- names and history


def test_history_is_bounded_and_forgets_the_oldest():
    """The newest ended jobs are remembered, without results, in the order in which they ended."""
    driver = Driver(history=3)
    jobs = [driver.submit(id=f"job {number}") for number in range(5)]
    driver.claim_all()
    for job in jobs:
        driver.finish(job, "a result")
    assert [info.id for info in driver.core.ended()] == ["job 2", "job 3", "job 4"]
    assert driver.core.status_of("job 1") is None
    assert driver.core.status_of("job 2") is JobStatus.DONE
    assert len(driver.core._ended) == 3
    assert driver.core.status_of("job 0") is None
    driver.check()


def test_no_history_remembers_nothing():
    """With history=0 an ended job is unknown at once, and its id free."""
    driver = Driver(history=0)
    job = driver.submit(id="a")
    driver.claim()
    driver.finish(job)
    assert driver.core.ended() == []
    assert driver.core.status_of("a") is None
    driver.submit(id="a")
    driver.check()


def test_history_record_says_what_happened():
    """A record has the job's name, times, attempts, worker and error, and no object of the user's."""

    class Place:
        name = "pool_3"

    driver = Driver()
    job = driver.submit(print, priority=2, name="nightly")
    driver.now = 1.0
    driver.claim(Place())
    driver.now = 2.0
    driver.fail(job)
    (info,) = driver.core.ended()
    assert (info.id, info.name, info.status, info.priority, info.attempts) == (1, "nightly", JobStatus.FAILED, 2, 1)
    assert (info.submitted_at, info.run_at, info.started_at, info.finished_at) == (0.0, 0.0, 1.0, 2.0)
    assert (info.worker, info.error, info.stack) == ("pool_3", "ValueError: boom", None)
    plain = driver.submit(nothing)
    driver.claim(None)
    driver.finish(plain)
    assert driver.core.ended()[-1].name == "nothing"
    assert driver.core.ended()[-1].worker is None


def test_record_has_the_same_name_as_the_job():
    """An empty name is a name: the record says what the job said."""
    driver = Driver()
    job = driver.submit(name="")
    name = job.name
    driver.claim()
    driver.finish(job)
    assert driver.core.ended()[0].name == job.name == name


def test_id_is_taken_while_live_and_while_remembered():
    """An id belongs to one job until that has ended and been forgotten; the refusal says which of the two it is."""
    driver = Driver(history=1)
    job = driver.submit(id="a")
    with pytest.raises(DuplicateJobError, match="live job"):
        driver.submit(id="a")
    driver.claim()
    with pytest.raises(DuplicateJobError, match="live job"):
        driver.submit(id="a")
    driver.finish(job)
    with pytest.raises(DuplicateJobError, match="history"):
        driver.submit(id="a")
    driver.cancel(driver.submit())
    again = driver.submit(id="a")
    assert driver.core.find("a") is again
    driver.check()


@pytest.mark.parametrize("end", ["finish", "fail", "stop", "cancel"])
def test_every_end_frees_the_name(end: str):
    """However a named job ends, it is no live job any more."""
    driver = Driver()
    job = driver.submit(id="a")
    if end != "cancel":
        driver.claim()
    settle(driver, end, job)
    assert driver.core.find("a") is None
    assert driver.core.named == {}
    assert driver.core.status_of("a") is job.status


def test_find_by_number_and_by_id():
    """A live job is found by its number if it has no id of its own, pending or running; others are not."""
    driver = Driver()
    plain, named = driver.submit(), driver.submit(id="a")
    assert driver.core.find(plain.seq) is plain
    assert driver.core.status_of(plain.seq) is JobStatus.PENDING
    assert driver.core.find("a") is named
    driver.claim()
    assert driver.core.find(plain.seq) is plain
    assert driver.core.status_of(plain.seq) is JobStatus.RUNNING
    driver.finish(plain)
    assert driver.core.find(plain.seq) is None
    assert driver.core.status_of(plain.seq) is JobStatus.DONE
    assert driver.core.status_of(99) is None
    assert driver.core.status_of("b") is None


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize("second", DRAINS)
@pytest.mark.parametrize("first", DRAINS)
def test_closing_again_only_sharpens(first: str, second: str):
    """The sharper of two modes stands, whichever came first; only "none" keeps ready jobs from starting."""
    driver = Driver()
    driver.submit()
    assert not driver.core.closed
    driver.core.close(first)
    driver.core.close(second)
    assert driver.core.closed
    assert driver.core.drain == max(first, second, key=DRAINS.index)
    assert driver.core.halted is ("none" in (first, second))
    assert (driver.claim() is None) is driver.core.halted


def test_unknown_mode_is_refused():
    """An unknown mode is a ValueError and the door stays open."""
    driver = Driver()
    with pytest.raises(ValueError, match="tuple"):
        driver.core.close("some")
    assert not driver.core.closed


def test_reset_forgets_everything_but_the_rules():
    """After a reset no job, count or record is left; policy, history bound and numbering stay."""
    driver = Driver("indexed", FifoPolicy(), history=7)
    for _ in range(3):
        driver.submit(id=str(len(driver.core.pending)))
    driver.submit(delay=3)
    driver.finish(driver.claim())  # type: ignore[arg-type]
    core = driver.core
    core.reset()
    assert (core.pending, core.running, core.named, core.ended()) == ({}, {}, {}, [])
    assert (core.done, core.failed, core.cancelled, core.retries, core.dead_delayed) == (0, 0, 0, 0, 0)
    assert core.next_due() is None
    assert driver.claim() is None
    assert driver.submit().seq == 5
    assert (core.history, type(core.ranking.policy), core.ready.indexed) == (7, FifoPolicy, True)
    driver.check()


# ---------------------------------------------------------------- the audit


def filled(queue: str = "lazy") -> Driver:
    """Return a core with jobs in every place and one dead delayed entry."""
    driver = Driver(queue)
    driver.submit(id="runs")
    driver.claim()
    for priority in (3, 1, 2):
        driver.submit(priority=priority)
    for delay in (3, 1, 2):
        driver.submit(delay=delay, id=f"at {delay}")
    driver.cancel(driver.submit(delay=9))
    ended = driver.submit(priority=0)
    driver.claim()
    driver.finish(ended)
    return driver


def ready_job(driver: Driver) -> Job[Any]:
    return next(job for job in driver.core.pending.values() if job._place is READY)


def twice(driver: Driver) -> None:
    job = ready_job(driver)
    driver.core.ready.push((job._key, job.seq))


def elsewhere(driver: Driver) -> None:
    job = ready_job(driver)
    driver.core.delayed.push((job._run_at, job.seq))


def mixed_up(driver: Driver) -> None:
    ready = driver.core.ready
    part = ready.heap._lists[0] if ready.indexed else ready.lane
    ready.push((9, 0))  # a dead one more
    part.reverse()


def wrong_number(driver: Driver) -> None:
    pending = driver.core.pending
    pending[99] = pending.pop(ready_job(driver).seq)


def wrong_running_number(driver: Driver) -> None:
    running = driver.core.running
    running[99] = running.pop(next(iter(running)))


def both_maps(driver: Driver) -> None:
    driver.core.running[ready_job(driver).seq] = ready_job(driver)


def running_in_pending(driver: Driver) -> None:
    ready_job(driver)._claim(0.0, None)


def pending_in_running(driver: Driver) -> None:
    next(iter(driver.core.running.values()))._retry(0.0, 0)


def nowhere(driver: Driver) -> None:
    ready_job(driver)._place = "nowhere"


def stale_name(driver: Driver) -> None:
    stale = make_job()
    stale._seq = 10**6
    driver.core.named["stale"] = stale


def lost_entry(driver: Driver) -> None:
    ready = driver.core.ready
    (ready.lane or ready.heap).pop()


def lost_delayed_entry(driver: Driver) -> None:
    driver.core.delayed.pop()


def miscounted(driver: Driver) -> None:
    driver.core.dead_delayed += 1


def negative(driver: Driver) -> None:
    driver.core.failed = -1


def long_history(driver: Driver) -> None:
    driver.core.history = 1


DAMAGES: dict[Callable[[Driver], None], str] = {
    both_maps: "^a job is pending and running at once$",
    wrong_number: "under the number 99",
    wrong_running_number: "under the number 99",
    running_in_pending: "is in the pending map",
    pending_in_running: "is in the running map",
    nowhere: "is pending at 'nowhere'",
    stale_name: "'stale' belongs to a job that is not live",
    twice: "stands twice in the ready queue",
    elsewhere: "the delayed queue does not hold the delayed jobs",
    lost_entry: "the ready queue does not hold the ready jobs",
    lost_delayed_entry: "the delayed queue does not hold the delayed jobs",
    mixed_up: "the ready queue is out of order",
    miscounted: "^the count of dead delayed entries is off$",
    negative: "^a counter is negative$",
    long_history: "^the history is longer than it may be$",
}


@both
@pytest.mark.parametrize("damage", list(DAMAGES), ids=lambda damage: damage.__name__)
def test_audit_finds_each_kind_of_damage(queue: str, damage: Callable[[Driver], None]):
    """A sound core passes; with one thing broken the audit names that thing."""
    driver = filled(queue)
    driver.check()
    damage(driver)
    with pytest.raises(InvariantError, match=DAMAGES[damage]):
        driver.check()


@both
def test_audit_of_a_comparing_queue_calls_no_foreign_code(queue: str):
    """The audit of a lazy heap under a before-policy does not compare: it may run anywhere."""
    calls = 0

    def before(a: Job[Any], b: Job[Any]) -> bool:
        nonlocal calls
        calls += 1
        return bool(a.priority < b.priority)

    driver = Driver(queue, Before(before))
    for priority in (3, 1, 2):
        driver.submit(priority=priority)
    asked = calls
    driver.check()
    if queue == "lazy":
        assert calls == asked


def test_failed_job_keeps_its_failure():
    """The outcome of a failed job is its Failure, with the error that result() raises."""
    driver = Driver()
    job = driver.submit()
    driver.claim()
    error = LookupError("gone")
    driver.core.fail(job, failure_of(job, error), "LookupError: gone", 1.0)
    assert job.exception() is error
    with pytest.raises(LookupError, match="gone"):
        job.result()


# ---------------------------------------------------------------- rules that hold jobs back


class Gate:
    """A rule that admits and allows while it is open, and writes down what it is told."""

    def __init__(self, admitting: bool = True, allowing: bool = True) -> None:
        self.admitting, self.allowing = admitting, allowing
        self.told: list[str] = []

    def admits(self, job: Job[Any]) -> bool:
        return self.admitting

    def may_start(self, job: Job[Any], now: float) -> bool:
        return self.allowing

    def started(self, job: Job[Any], now: float) -> None:
        self.told.append(f"started {job.attempts}")

    def ended(self, job: Job[Any], now: float) -> None:
        self.told.append(f"ended {job.status.name}")


@both
def test_job_that_is_not_admitted_waits_in_no_queue(queue: str):
    """A held job stands in the waiting map alone; released by an open rule it goes its way through the queues."""
    driver = Driver(queue)
    gate = Gate(admitting=False)
    held, free = driver.submit(rules=(gate,)), driver.submit(rules=(Gate(),))
    core = driver.core
    assert core.waiting == {held.seq: held}
    assert driver.claim_all() == [free]
    driver.check()
    core.release(held)
    assert core.waiting == {held.seq: held}  # still not admitted
    assert not core.released
    gate.admitting = True
    core.release(held)
    assert core.released
    assert core.waiting == {}
    core.release(held)  # a second time: nothing
    driver.check()
    driver.promote()
    assert driver.claim_all() == [held]
    assert gate.told == ["started 1"]


@both
def test_job_that_may_not_start_lets_the_others_pass(queue: str):
    """A ready job that its rule holds back at the claim makes room for those behind it and comes back by a release."""
    driver = Driver(queue)
    gate = Gate(allowing=False)
    held, other = driver.submit(priority=1, rules=(gate,)), driver.submit(priority=2)
    assert driver.claim_all() == [other]
    assert driver.core.waiting == {held.seq: held}
    driver.check()
    gate.allowing = True
    driver.core.release(held)
    driver.promote()
    assert driver.claim_all() == [held]
    driver.check()


@both
def test_rules_are_told_of_every_start_and_end(queue: str):
    """A rule hears of each attempt's start and end, whatever the end."""
    driver = Driver(queue)
    for how in ("finish", "fail", "stop", "retry"):
        gate = Gate()
        job = driver.submit(rules=(gate,))
        driver.claim()
        settle(driver, how, job)
        assert gate.told == ["started 1", f"ended {job.status.name}"]
    gate = Gate()
    settle(driver, "cancel", driver.submit(delay=3, rules=(gate,)))
    assert gate.told == ["ended CANCELLED"]


@both
@pytest.mark.parametrize("how", ["cancel", "claim", "fail"])
def test_held_job_can_leave_by_other_ways(queue: str, how: str):
    """A job that a rule holds back can be cancelled, failed, or claimed by hand; then nothing of it waits."""
    driver = Driver(queue)
    job = driver.submit(rules=(Gate(admitting=False),))
    match how:
        case "cancel":
            assert driver.cancel(job)
        case "claim":
            assert driver.core.claim_one(job, 0.0)
        case _:
            assert driver.fail(job)
    assert driver.core.waiting == {}
    driver.check()


def test_rule_is_told_of_a_start_by_hand_too():
    """A rule that counts starts and ends stays in balance when the job is claimed by hand."""
    driver = Driver()
    gate = Gate()
    job = driver.submit(rules=(gate,))
    assert driver.core.claim_one(job, 0.0)
    driver.finish(job)
    assert gate.told == ["started 1", "ended DONE"]


def test_waiting_jobs_do_not_count_as_entries():
    """Jobs that wait have no entry in a queue, so they do not put a sweep off."""
    driver = Driver()
    for _ in range(2 * SWEEP_SLACK):
        driver.submit(rules=(Gate(admitting=False),))
    for job in [driver.submit() for _ in range(SWEEP_SLACK + SWEEP_EVERY)]:
        driver.cancel(job)
    assert len(driver.core.ready) == 0


def test_pause_holds_everything_and_a_close_lifts_it():
    """A paused core gives no job until it goes on or is closed; a closed one cannot be paused."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    core = driver.core
    core.pause(True)
    assert driver.claim() is None
    core.pause(False)
    assert driver.claim() is job
    core.pause(True)
    core.close("all")
    assert not core.paused
    assert driver.claim() is other
    core.pause(True)
    assert not core.paused
    core.broken = True
    core.pause(False)
    assert core.halted


# ---------------------------------------------------------------- what a finalizer does between look and pop


@both
@pytest.mark.parametrize("method", ["promote", "next_due"])
def test_queue_that_is_emptied_between_look_and_pop(queue: str, method: str):
    """If the head is gone when it is popped, there is nothing to do and nothing is counted."""
    driver = Driver(queue)
    job = driver.submit(delay=1)
    if method == "next_due":
        del driver.core.pending[job.seq]  # dead, so that it is popped
        driver.core.dead_delayed = 1
    pop = driver.core.delayed.pop

    def emptied() -> Any:
        driver.core.delayed.pop = pop
        driver.core.pending.clear()
        driver.core.repair()
        return pop()

    driver.core.delayed.pop = emptied
    assert (driver.promote(5) if method == "promote" else driver.core.next_due()) in (0, None)
    driver.check()


@both
def test_promotion_puts_back_what_came_instead(queue: str):
    """If the due head is gone when it is popped and a later one comes instead, that one stays delayed."""
    driver = Driver(queue)
    due, later = driver.submit(delay=1), driver.submit(delay=9)
    pop = driver.core.delayed.pop

    def overtaken() -> Any:
        driver.core.delayed.pop = pop
        driver.cancel(due)
        driver.core.repair()
        return pop()

    driver.core.delayed.pop = overtaken
    assert driver.promote(5) == 0
    assert later._place is DELAYED
    assert driver.core.next_due() == 9
    driver.check()


@pytest.mark.parametrize("history", [0, 1, 3])
def test_index_of_ids_is_bounded(history: int):
    """However many named jobs have ended, the index of their ids stays within twice the history, and is right."""
    driver = Driver(history=history)
    for number in range(50):
        job = driver.submit(id=f"job {number}")
        driver.claim()
        driver.finish(job)
        assert len(driver.core._ended_ids) <= 2 * history + 1
        known = [f"job {past}" for past in range(number + 1) if driver.core.status_of(f"job {past}") is not None]
        assert known == [info.id for info in driver.core.ended()]
        assert len(known) == min(history, number + 1)

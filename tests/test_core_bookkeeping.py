"""What the core counts, passes on and throws away: exact figures, exact arguments, exact thresholds."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.core_driver import Driver, failure_of, make_job
from threadsched import FifoPolicy, InvariantError, Job, JobStatus, PriorityPolicy, _core
from threadsched._core import SWEEP_SHARE, SWEEP_SLACK, Core
from threadsched._gate import Gate
from threadsched._heap import LazyQueue
from threadsched._job import DELAYED, READY, WAITING
from threadsched._policy import BeforeRaisedError, Ranking
from threadsched._reorder import reorder

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


class Recorder:
    """A rule that writes down every call with its arguments, and answers as it is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.admitting = self.allowing = True

    def admits(self, job: Job[Any]) -> bool:
        self.calls.append(("admits", job))
        return self.admitting

    def may_start(self, job: Job[Any], now: float) -> bool:
        self.calls.append(("may_start", job, now))
        return self.allowing

    def started(self, job: Job[Any], now: float) -> None:
        self.calls.append(("started", job, now, job.status))

    def ended(self, job: Job[Any], now: float) -> None:
        self.calls.append(("ended", job, now, job.status))


class Keeper:
    """A keeper of the jobs in `line`."""

    def __init__(self) -> None:
        self.line: set[Job[Any]] = set()
        self.asked: list[Job[Any]] = []

    def held(self, rule: Any, job: Job[Any], now: float) -> None:
        self.line.add(job)

    def holds(self, job: Job[Any]) -> bool:
        return job in self.line

    def has_room(self, job: Job[Any]) -> bool:
        self.asked.append(job)
        return True

    def repair(self) -> None:
        pass

    def audit(self, require: Callable[[object, str], None]) -> None:
        pass


class Struck(Job[Any]):
    """A job that calls `hook` just after one of its moves."""

    hook: Callable[[], object] | None = None

    def _after(self) -> None:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()

    def _finish(self, *arguments: Any) -> None:
        super()._finish(*arguments)
        self._after()

    def _fail(self, *arguments: Any) -> None:
        super()._fail(*arguments)
        self._after()

    def _cancel(self, *arguments: Any, **more: Any) -> None:
        super()._cancel(*arguments, **more)
        self._after()


def interrupt() -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------- what rules and keepers are told


RUNNING, PENDING = JobStatus.RUNNING, JobStatus.PENDING


@pytest.mark.parametrize("way", ["claim", "claim one", "claim given"])
def test_rules_are_asked_and_told_about_their_job_and_the_time(way: str):
    """Each question and each message names the job and the reading of the call; a start is told after the move."""
    driver = Driver()
    rule = Recorder()
    job = driver.submit(rules=(rule,))
    driver.now = 2.0
    match way:
        case "claim":
            assert driver.claim("somebody") is job
        case "claim one":
            assert driver.core.claim_one(job, 2.0, "somebody")
        case _:
            assert driver.core.claim_given(job, 2.0, "somebody")
    assert (job._place, job._started_at) == ("somebody", 2.0)
    assert rule.calls == [("admits", job), ("may_start", job, 2.0), ("started", job, 2.0, RUNNING)]


@pytest.mark.parametrize("how", ["finish", "fail", "stop", "retry", "cancel", "fail pending"])
def test_rules_are_told_of_an_end_with_its_time(how: str):
    """Whatever ended, its rules hear of it once, after the move, with the reading of the call."""
    driver = Driver()
    rule = Recorder()
    job = driver.submit(rules=(rule,))
    core = driver.core
    if how not in ("cancel", "fail pending"):
        driver.claim()
    rule.calls.clear()
    match how:
        case "finish":
            assert core.finish(job, "value", "name", 3.0)
            assert job.result(0) == "value"
        case "fail" | "fail pending":
            assert core.fail(job, failure_of(job), "text", 3.0)
        case "stop":
            assert core.stop(job, "its name", 3.0)
            assert job.name == "its name"
        case "retry":
            core.retry(job, 9.0, 5, 3.0)
        case _:
            assert core.cancel(job, "its name", 3.0) is not None
            assert job.name == "its name"
    assert rule.calls == [("ended", job, 3.0, job.status)]
    assert job._finished_at == (None if how == "retry" else 3.0)


def with_a_refused_job() -> tuple[Driver, Keeper, Recorder, Job[Any]]:
    """Return a core with a keeper, and a job in it whose rule does not let it start."""
    driver = Driver()
    keeper, rule = Keeper(), Recorder()
    driver.core.keepers = (keeper,)  # type: ignore[assignment]
    rule.allowing = False
    return driver, keeper, rule, driver.submit(rules=(rule,))


def test_keeper_is_asked_for_room_for_that_job():
    """A worker that wants a held job asks its keeper about that one, and claims it for itself at that time."""
    driver, keeper, rule, job = with_a_refused_job()
    assert driver.claim() is None
    rule.allowing = True
    rule.calls.clear()
    assert driver.core.claim_given(job, 4.0, "worker")
    assert keeper.asked == [job]
    assert (job._place, job._started_at) == ("worker", 4.0)
    assert rule.calls == [("may_start", job, 4.0), ("started", job, 4.0, RUNNING)]


@pytest.mark.parametrize("delay", [0, 1])
def test_given_job_that_is_refused_has_no_entry_any_more(delay: float):
    """A job that is refused to the worker that waits for it, and let go at once, stands in the queue once."""
    driver = Driver()
    keeper, rule = Keeper(), Recorder()
    driver.core.keepers = (keeper,)  # type: ignore[assignment]
    job, other = driver.submit(rules=(rule,), delay=delay), driver.submit()
    rule.allowing = False
    driver.now = 1.0
    assert driver.core.claim_given(job, 1.0, "worker") is False
    assert job._place is WAITING
    rule.allowing = True
    keeper.line.clear()
    assert driver.core.readmit(job)
    driver.core.next_due()
    driver.check()
    driver.promote(5)
    driver.check()
    assert sorted(one.seq for one in driver.claim_all()) == [job.seq, other.seq]
    assert len(driver.core.ready) + len(driver.core.delayed) == 0


def test_cancel_keeps_its_reason():
    """What a cancel was given as its reason is what the job has as its outcome."""
    driver = Driver()
    job, other = driver.submit(), driver.submit()
    reason = CancelledError("because")
    assert driver.core.cancel(job, "name", 1.0, reason) is not None
    assert job._result is reason
    assert driver.core.cancel(other, "name", 1.0) is not None
    assert other._result is None


def test_rule_that_was_attached_in_the_middle_of_a_cancel_is_told():
    """Whoever breaks in may be the first to attach something to the job: the cancel looks again."""
    driver = Driver()
    job = driver.submit()
    rule = Recorder()

    class Breaking(Gate):
        def freed(self, pending: Any) -> None:
            job._attach().rules = (rule,)

    driver.core.gate = Breaking(1)
    assert driver.cancel(job)
    assert [call[0] for call in rule.calls] == ["ended"]


def test_indexed_queue_forgets_a_cancelled_job_at_once():
    """With the sorted list no entry of a cancelled job is left, ready or delayed, and none is counted as dead."""
    driver = Driver("indexed")
    jobs = [driver.submit(delay=delay) for delay in (0, 0, 5, 5)]
    for job in jobs:
        driver.cancel(job)
    assert len(driver.core.ready) + len(driver.core.delayed) + driver.core.dead_delayed == 0


# ---------------------------------------------------------------- counts


def test_every_counter_counts():
    """Two of each end, and two retries, are two; each settled job is counted once."""
    driver = Driver()
    core = driver.core
    for _ in range(2):
        for how in ("finish", "fail", "stop", "cancel", "fail pending"):
            job = driver.submit()
            if how in ("cancel", "fail pending"):
                assert driver.cancel(job) if how == "cancel" else driver.fail(job)
                continue
            assert driver.claim() is job
            match how:
                case "finish":
                    driver.finish(job)
                case "fail":
                    driver.fail(job)
                case _:
                    core.stop(job, "name", 0.0)
        job = driver.submit()
        driver.claim()
        driver.retry(job, 1.0)
        driver.promote(1.0)
        assert driver.claim() is job
    assert (core.done, core.failed, core.cancelled, core.retries) == (2, 4, 4, 2)


def test_every_readmission_counts():
    """Whoever looks at the count of readmissions sees each of them."""
    driver, keeper, _rule, job = with_a_refused_job()
    for count in (1, 2, 3):
        assert driver.claim() is None
        keeper.line.clear()
        assert driver.core.readmit(job)
        assert driver.core.readmissions == count


def test_dead_delayed_entries_are_counted_one_by_one():
    """Each cancelled delayed job is one more dead entry, until it is thrown away."""
    driver = Driver()
    jobs = [driver.submit(delay=delay) for delay in (1, 2, 3, 4)]
    for count, job in enumerate(jobs[:3], 1):
        driver.cancel(job)
        assert driver.core.dead_delayed == count
        driver.check()
    assert driver.core.next_due() == 4
    assert driver.core.dead_delayed == 0
    driver.check()


@both
@pytest.mark.parametrize("how", ["fail", "claim_one", "claim_given"])
def test_delayed_jobs_that_leave_by_other_ways_are_counted_too(queue: str, how: str):
    """Whatever entries of theirs stay behind in the delayed queue, the audit finds as many as were counted."""
    driver = Driver(queue)
    for job in [driver.submit(delay=5) for _ in range(3)]:
        if how == "fail":
            assert driver.fail(job)
        elif how == "claim_one":
            assert driver.core.claim_one(job, 0.0)
        else:
            assert driver.core.claim_given(job, 0.0, "worker")
    driver.check()


@pytest.mark.parametrize("counter", ["done", "failed", "cancelled", "retries"])
def test_audit_sees_each_counter(counter: str):
    """A negative count is found, whichever it is."""
    driver = Driver()
    setattr(driver.core, counter, -1)
    with pytest.raises(InvariantError, match=r"^a counter is negative$"):
        driver.check()


def test_ready_queue_is_audited_although_the_delayed_one_waits_for_its_repair():
    """A queue that will be rebuilt is passed over; the other one is looked at all the same."""
    driver = Driver()
    driver.submit()
    driver.core.delayed.untidy = True
    driver.core.ready.pop()
    with pytest.raises(InvariantError, match="the ready queue does not hold the ready jobs"):
        driver.check()


def test_audit_knows_that_producers_may_stand_before_a_closed_door():
    """A producer in the line is a fault while there is a place, and none once the core is closed."""
    driver = Driver()
    driver.core.gate = gate = Gate(5)
    gate.line[make_job()] = object()
    driver.core.closed = True
    driver.check()
    driver.core.closed = False
    with pytest.raises(InvariantError, match="a producer waits although there is a place"):
        driver.check()


def test_audit_hands_itself_to_the_schedules():
    """A schedule is audited with the core that it belongs to, and a sound one passes."""
    driver = Driver()
    seen: list[Any] = []

    class Series:
        def audit(self, core: Any, require: Callable[[object, str], None]) -> None:
            seen.append(core)
            require(True, "never")

    driver.core.series[1] = Series()
    driver.check()
    assert seen == [driver.core]


# ---------------------------------------------------------------- sweeps


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("living", [0, 1, 10, 100])
@pytest.mark.parametrize("more", [1, 2])
def test_sweep_comes_when_most_entries_are_dead_by_the_slack(
    monkeypatch: pytest.MonkeyPatch, living: int, more: int, delay: float
):
    """One cancel that brings the dead beyond thrice the living and the slack, and they are gone; none earlier."""
    monkeypatch.setattr(_core, "SWEEP_EVERY", 1)  # else only every so many-th cancel looks
    driver = Driver()
    queue = driver.core.delayed if delay else driver.core.ready
    alive = [driver.submit(delay=delay) for _ in range(living)]
    dead = [driver.submit(delay=delay) for _ in range((SWEEP_SHARE - 1) * living + SWEEP_SLACK + more)]
    for job in dead[:-1]:
        driver.cancel(job)
    assert len(queue) == living + len(dead)
    driver.check()
    driver.cancel(dead[-1])
    assert len(queue) == living
    assert driver.core.dead_delayed == 0
    driver.check()
    driver.promote(5)
    assert driver.claim_all() == alive


@pytest.mark.parametrize(("dead", "shrinks"), [(50, "ready"), (51, "delayed")])
def test_sweep_goes_where_most_are_dead(dead: int, shrinks: str):
    """If more than half of the delayed entries are dead those are swept, else the ready ones; the others stay."""
    driver = Driver()
    core = driver.core
    delayed = [driver.submit(delay=5) for _ in range(100)]
    for job in delayed[:dead]:
        driver.cancel(job)
    ready = [driver.submit() for _ in range(200)]
    core.entering = make_job()  # no sweep yet
    for job in ready:
        driver.cancel(job)
    core.entering = None
    core.sweep()
    assert len(core.delayed) == (100 if shrinks == "ready" else 100 - dead)
    assert len(core.ready) == (0 if shrinks == "ready" else 200)
    assert core.dead_delayed == (dead if shrinks == "ready" else 0)
    driver.check()


def test_sweep_that_cannot_begin_takes_nothing_from_the_count():
    """While somebody is inside a change of the delayed queue its dead entries stay, and stay counted."""
    driver = Driver()
    core = driver.core
    core.delayed.push = core.delayed._divert
    for job in [driver.submit() for _ in range(3)]:
        driver.cancel(job)
    core.delayed.push = core.delayed.resting_push
    jobs = [driver.submit(delay=1) for _ in range(SWEEP_SLACK + 5)]
    core.delayed.push = core.delayed._divert
    for job in jobs:
        driver.cancel(job)
    assert core.dead_delayed == len(core.delayed) == len(jobs)
    core.delayed.push = core.delayed.resting_push
    core.sweep()
    assert core.dead_delayed == len(core.delayed) == 0


def test_rebuild_that_is_broken_off_at_its_first_step_is_made_again():
    """From the moment the stale entries count as gone, the queue counts as untidy: they are never taken for alive."""
    driver = Driver()
    job = driver.submit(priority=1)
    reorder(driver.core, job, 9, None)
    ready = driver.core.ready
    rebuild = ready.rebuild
    ready.rebuild = lambda make_entries: interrupt()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        driver.core.rebuild_ready()
    ready.rebuild = rebuild  # type: ignore[method-assign]
    assert ready.untidy
    assert driver.claim_all() == [job]
    assert driver.claim() is None
    driver.check()


# ---------------------------------------------------------------- entries that are not the present one


def test_second_entry_of_a_job_that_waits_for_its_retry_is_dead():
    """An equal entry that a changed priority left behind does not start a job before its retry is due."""
    driver = Driver()
    delayed = driver.submit(delay=50)
    job = driver.submit(priority=5)
    key = job._key
    reorder(driver.core, job, 1, None)
    reorder(driver.core, job, key, None)
    assert driver.core.stale == 2
    driver.check()  # with a delayed job beside
    assert driver.claim() is job
    job._run_at = 9.0
    driver.core.retry(job, 9.0, key, 0.0)
    driver.check()
    assert driver.claim() is None
    assert (job.status, job._place) == (PENDING, DELAYED)
    driver.promote(9)
    driver.check()
    assert driver.claim() is job
    driver.promote(50)
    assert driver.claim() is delayed


def test_promotion_goes_on_after_a_pop_that_found_nothing():
    """If the queue was emptied between look and pop, and something due came since, that is promoted too."""
    driver = Driver()
    gone = driver.submit(delay=1)
    pop = driver.core.delayed.pop
    later: list[Job[Any]] = []

    def emptied() -> Any:
        driver.core.delayed.pop = pop
        driver.cancel(gone)
        driver.core.repair()
        entry = pop()
        later.append(driver.submit(delay=1))
        return entry

    driver.core.delayed.pop = emptied
    driver.now = 1.0
    assert driver.promote() == 0
    driver.now = 3.0
    driver.core.delayed.pop = lambda: (setattr(driver.core.delayed, "pop", pop), None)[1]  # type: ignore[func-returns-value]
    assert driver.promote() == 1
    assert driver.claim_all() == later


def test_readmission_broken_off_before_the_job_left_the_waiting_leaves_it_ready():
    """An interrupt at the very first step of a readmission leaves no job that is ready and waiting at once."""

    class Waiting(dict[int, Job[Any]]):
        def pop(self, *arguments: Any) -> Any:
            if driver.core.waiting is self:
                driver.core.waiting = dict(self)
                raise KeyboardInterrupt
            return super().pop(*arguments)

    driver, keeper, rule, job = with_a_refused_job()
    assert driver.claim() is None
    keeper.line.clear()
    driver.core.waiting = Waiting(driver.core.waiting)
    with pytest.raises(KeyboardInterrupt):
        driver.core.readmit(job)
    assert (job._place, driver.core.waiting) == (READY, {})
    rule.allowing = True
    assert driver.claim() is job
    driver.check()


def test_job_that_is_cancelled_just_as_it_is_held_back_does_not_wait():
    """A handler that cancels the job between its refusal and the look whether it is still pending has the last word."""

    class Waiting(dict[int, Job[Any]]):
        def __setitem__(self, seq: int, job: Job[Any]) -> None:
            super().__setitem__(seq, job)
            driver.cancel(job)

    driver = Driver()
    keeper, rule = Keeper(), Recorder()
    driver.core.keepers = (keeper,)  # type: ignore[assignment]
    job, other = driver.submit(rules=(rule,), priority=1), driver.submit()
    rule.allowing = False
    driver.core.waiting = Waiting()
    assert driver.claim() is other
    assert job.cancelled()
    assert (driver.core.waiting, keeper.line) == ({}, set())
    driver.check()


def test_entering_gives_the_job_its_number():
    """A job has its submission number from the moment it enters, whoever drew it."""
    core = Core(Ranking(FifoPolicy()))
    job = make_job()
    job._key = 0
    core.enter(job, 7)
    assert (job.seq, core.latest, core.entering) == (7, 7, job)


# ---------------------------------------------------------------- names and the history


def test_job_with_an_id_is_not_found_by_its_number():
    """A number finds a job that has no id of its own; one that has is found by that alone."""
    driver = Driver()
    named, plain = driver.submit(id="mine"), driver.submit()
    assert driver.core.find(named.seq) is None
    assert driver.core.find("mine") is named
    assert driver.core.find(plain.seq) is plain
    assert driver.core.status_of(named.seq) is None


@pytest.mark.parametrize("how", ["finish", "fail", "cancel"])
def test_id_is_remembered_for_as_many_ends_as_the_history_holds(how: str):
    """An id is taken until exactly `history` later ends have pushed it out, however those ended."""
    driver = Driver(history=3)
    first = driver.submit(id="first")
    driver.claim()
    driver.finish(first)
    for number in range(3):
        assert driver.core.status_of("first") is JobStatus.DONE, number
        job = driver.submit()
        if how != "cancel":
            driver.claim()
        {"finish": driver.finish, "fail": driver.fail, "cancel": driver.cancel}[how](job)
    assert driver.core.status_of("first") is None
    driver.submit(id="first")


@pytest.mark.parametrize("how", ["finish", "fail", "cancel"])
def test_id_that_ended_late_is_remembered_from_its_own_end(how: str):
    """However the jobs before it and itself ended, an id is in the history as long as its record is."""
    driver = Driver(history=2)
    settle = {"finish": driver.finish, "fail": driver.fail, "cancel": driver.cancel}[how]
    for number in range(5):
        job = driver.submit(id=f"job {number}")
        if how != "cancel":
            driver.claim()
        settle(job)
        assert driver.core.status_of(f"job {number}") is job.status
        assert [info.id for info in driver.core.ended()] == [f"job {n}" for n in range(max(0, number - 1), number + 1)]
    assert driver.core.status_of("job 3") is not None
    assert driver.core.status_of("job 2") is None


@pytest.mark.parametrize("how", ["finish", "fail", "cancel"])
def test_end_takes_the_name_from_nobody_else(how: str):
    """A job that took the id of one that was just ending, from inside that end, keeps it."""
    driver = Driver()
    old = driver.submit(kind=Struck, id="mine")
    if how == "cancel":
        old._attach()  # else the move is written out in the core
    else:
        driver.claim()
    taken: list[Job[Any]] = []
    old.hook = lambda: taken.append(driver.submit(id="mine"))  # type: ignore[attr-defined]
    assert {"finish": driver.finish, "fail": driver.fail, "cancel": driver.cancel}[how](old)
    assert driver.core.find("mine") is taken[0]
    assert driver.core.status_of("mine") is PENDING
    driver.check()


def test_numbers_of_the_history_are_those_of_its_jobs():
    """Whoever compares a list of jobs with the history gets the numbers of all in it, named or not."""
    driver = Driver(history=2)
    jobs = [driver.submit(), driver.submit(), driver.submit(id="named")]
    for job in driver.claim_all():
        driver.finish(job)
    assert driver.core.ended_numbers() == {job.seq for job in jobs[1:]}


# ---------------------------------------------------------------- a fresh core, the door, and another ranking


def test_fresh_core_is_open_empty_and_remembers_a_thousand():
    """What nobody asked for otherwise: a lazy queue, a history of 1,000, newcomers ready at once, nothing held up."""
    core = Core(Ranking(FifoPolicy()))
    assert (core.queue_type, core.history, core.stepped) == (LazyQueue, 1000, False)
    for flag in (core.closed, core.halted, core.paused, core.broken, core.released):
        assert flag is False
    assert core.drain == "all"
    assert (core.latest, core.readmissions, core.stale, core.dead_delayed) == (0, 0, 0, 0)
    assert (core.done, core.failed, core.cancelled, core.retries) == (0, 0, 0, 0)
    assert (core.gate, core.alarm, core.entering, core.keepers) == (None, None, None, ())
    core.check_invariants()


@both
@pytest.mark.parametrize("reset", [False, True])
def test_queue_of_a_comparing_policy_is_guarded_from_the_first(queue: str, reset: bool):
    """In a new core, and in one that was reset, a push that `before` breaks says so, and the queue is whole."""
    policy = ByBefore()
    driver = Driver(queue, policy)
    if reset:
        driver.core.reset()
    first = driver.submit(priority=2)
    policy.raising = True
    with pytest.raises(BeforeRaisedError):
        driver.submit(priority=1)
    policy.raising = False
    assert driver.claim_all() == [first]


def test_closed_for_good_stays_halted():
    """Nothing starts again after a shutdown that gives everything up, whoever lifts a pause."""
    driver = Driver()
    driver.submit()
    driver.core.close("none")
    assert driver.core.paused is False
    driver.core.pause(False)
    assert driver.core.halted
    assert driver.claim() is None


class ByBefore:
    """A comparing policy that raises while it is told to."""

    raising = False

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        if self.raising:
            raise LookupError
        return bool(a.priority < b.priority)


@both
def test_reranked_queue_is_guarded_as_its_policy_needs(queue: str):
    """After a swap to a comparing policy a push that its `before` breaks says so, as in a queue that began with it."""
    driver = Driver(queue)
    jobs = [driver.submit(priority=priority) for priority in (3, 1)]
    policy = ByBefore()
    ranking = Ranking(policy)
    assert driver.core.rerank(ranking, {job.seq: ranking.key_of(job) for job in jobs}) is None
    policy.raising = True
    with pytest.raises(BeforeRaisedError):
        driver.submit(priority=2)
    policy.raising = False
    driver.core.ready.untidy = True
    assert driver.claim_all() == jobs[::-1]


def test_equals_after_a_rerank_are_kept_as_bare_numbers():
    """The new queue of a policy of ours spares the equals their tuples, like the one that it replaces."""
    driver = Driver()
    assert driver.core.rerank(Ranking(PriorityPolicy()), {}) is None
    jobs = [driver.submit(), driver.submit()]
    assert list(driver.core.ready.level) == [job.seq for job in jobs]
    assert driver.claim_all() == jobs


def test_rerank_leaves_no_stale_entries():
    """In the new queue every job has one entry: no claim looks for others."""
    driver = Driver()
    job = driver.submit(priority=5)
    reorder(driver.core, job, 1, None)
    assert driver.core.stale == 1
    assert driver.core.rerank(Ranking(FifoPolicy()), {}) is None
    assert driver.core.stale == 0
    assert driver.claim_all() == [job]


# ---------------------------------------------------------------- broken off in the middle


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_place_is_free_although_the_end_was_broken_off(how: str):
    """Ctrl-C between the move and the gate does not keep the first producer in line waiting."""
    driver = Driver()
    driver.core.gate = gate = Gate(1)
    job = driver.submit(kind=Struck)
    job._attach()  # else a cancel is written out in the core
    job.hook = interrupt  # type: ignore[attr-defined]
    newcomer = make_job()
    gate.line[newcomer] = Released()
    with pytest.raises(KeyboardInterrupt):
        driver.cancel(job) if how == "cancel" else driver.fail(job)
    assert list(gate.grants) == [newcomer]


class Released:
    def release(self) -> None:
        pass


def test_held_job_that_is_in_no_map_any_more_can_be_cancelled():
    """A job that an interrupt left waiting in name only is cancelled like any other."""
    driver = Driver()
    rule = Recorder()
    rule.admitting = False
    job = driver.submit(rules=(rule,))
    driver.core.waiting.clear()
    driver.core.ready.untidy = True
    assert driver.cancel(job)
    assert job.cancelled()
    driver.check()

"""Deadlines, aging, and jobs that change their place: `DeadlinePolicy`, `AgingPolicy`, `set_priority`."""

import datetime
import itertools
import math
import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from tests.gates import PATIENCE, Gate, occupied
from tests.producers import hasty_switches, together
from threadsched import (
    AgingPolicy,
    DeadlinePolicy,
    FifoPolicy,
    Job,
    JobStatus,
    OldestDuePolicy,
    PriorityPolicy,
    Scheduler,
    current_job,
)
from threadsched._core import SWEEP_EVERY, SWEEP_SHARE, SWEEP_SLACK
from threadsched._reorder import Glimpse, reorder
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


class ByKey:
    """The priority policy as a user would write it."""

    def key(self, job: Job[Any]) -> Any:
        return (job.priority, job.name)


class ByBefore:
    """The same, comparing."""

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        return a.priority < b.priority


BY_PRIORITY = {"priority": PriorityPolicy, "aging": lambda: AgingPolicy(0.25), "key": ByKey, "before": ByBefore}
policies = pytest.mark.parametrize("policy", BY_PRIORITY.values(), ids=BY_PRIORITY)


def ran(s: StepScheduler) -> list[str]:
    return [str(one.id) for one in s.drain()]


# ---------------------------------------------------------------- deadlines


@both
def test_deadline_policy_takes_the_earliest_and_last_those_without(queue: Any):
    """Earliest deadline first, counted from the submission; jobs without one after all others, in their order."""
    s = StepScheduler(policy=DeadlinePolicy(), queue=queue)
    clock = s.clock
    assert isinstance(clock, FakeClock)
    s.options(id="none 1").submit(int)
    s.options(id="late", deadline=30).submit(int)
    s.options(id="early", deadline=timedelta(seconds=10)).submit(int)
    s.options(id="none 2", priority=-5).submit(int)
    clock.advance(5)
    s.options(id="middle", deadline=20, priority=99).submit(int)
    assert ran(s) == ["early", "middle", "late", "none 1", "none 2"]
    s.check()


def test_dated_deadline_is_an_instant():
    """An aware datetime is turned into a reading of the clock at submission, and ranks among the relative ones."""
    noon = datetime.datetime(2030, 6, 1, 12, tzinfo=datetime.UTC)
    clock = FakeClock(start=500, wall=noon)
    s = StepScheduler(policy=DeadlinePolicy(), clock=clock)
    s.options(id="30 s", deadline=30).submit(int)
    elsewhere = (noon + timedelta(seconds=20)).astimezone(datetime.timezone(timedelta(hours=5)))
    job = s.options(id="20 s", deadline=elsewhere).submit(int)
    late = s.options(id="late", deadline=noon - timedelta(days=1)).submit(int)
    later = s.options(id="both", deadline=noon + timedelta(seconds=5), at=noon + timedelta(seconds=3)).submit(int)
    assert (job.deadline, late.deadline, later.deadline, later.run_at) == (520, 500 - 86400, 505, 503)
    clock.step_wall(-3600)  # changes no order
    assert job.deadline == 520
    clock.step_wall(3600)
    assert ran(s) == ["late", "20 s", "30 s", "both"]
    s.check()


def test_dated_deadline_of_a_schedule_is_every_runs():
    """Each run of a schedule gets the one instant; a relative deadline counts from each run's submission."""
    noon = datetime.datetime(2030, 6, 1, 12, tzinfo=datetime.UTC)
    clock = FakeClock(wall=noon)
    s = StepScheduler(clock=clock)
    seen: list[object] = []
    for deadline in (noon + timedelta(hours=1), 7):
        s.options(deadline=deadline).every(10, lambda: seen.append(current_job().deadline))  # type: ignore[union-attr]
    for _ in range(3):
        clock.advance(10)
        s.tick()
        s.tick()
    assert seen == [3600, 17, 3600, 27, 3600, 37]


def test_deadline_of_a_job_can_be_read():
    """`job.deadline` is a reading of the clock, and None without one; it is not a slot that others pay for."""
    clock = FakeClock(100)
    s = StepScheduler(clock=clock)
    job = s.options(deadline=2.5, delay=1).submit(int)
    plain = s.submit(int)
    assert (job.deadline, plain.deadline) == (102.5, None)
    assert "_deadline" not in plain.__dict__
    with pytest.raises(AttributeError):
        job.deadline = 3  # type: ignore[misc]
    clock.advance(1000)
    s.tick()
    s.tick()
    assert job.status is JobStatus.DONE  # a deadline orders and does nothing else


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (datetime.datetime(2030, 1, 1), ValueError),  # noqa: DTZ001 -- what is to be refused
        (datetime.date(2030, 1, 1), TypeError),
        ("soon", TypeError),
        (True, TypeError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
    ],
)
def test_bad_deadlines_are_refused_by_name(value: Any, error: type[Exception]):
    """A deadline that is no duration and no aware datetime is refused, and the error names it."""
    with pytest.raises(error, match="deadline must") as caught:
        StepScheduler().options(deadline=value)
    assert repr(value) in str(caught.value)


# ---------------------------------------------------------------- aging


def starved(policy: Any, queue: Any, stream: int = 400) -> tuple[float | None, float]:
    """Put one job of priority 10 against one of priority 0 a second, each a second long; return when it ran."""
    s = StepScheduler(policy=policy, queue=queue)
    clock = s.clock
    assert isinstance(clock, FakeClock)
    poor = s.options(priority=10).submit(int)
    for _ in range(stream):
        s.options(priority=0).submit(int)
        s.tick()
        if poor.done():
            return clock.now(), poor.submitted_at
        clock.advance(1)
    return None, poor.submitted_at


@both
@pytest.mark.parametrize("rate", [0.5, 1, 4.0])
def test_f39_aging_bounds_the_wait(queue: Any, rate: float):
    """Against an endless stream the job runs within (p - q) / rate and one job; F39 asks for 30 s as an example."""
    bound = (10 - 0) / rate
    started, due = starved(AgingPolicy(rate), queue)
    assert started is not None
    assert bound <= started - due <= bound + 1


@both
@pytest.mark.parametrize("policy", [PriorityPolicy(), AgingPolicy(0)], ids=["priority", "no rate"])
def test_f39_without_aging_the_job_starves(queue: Any, policy: Any):
    """Strict priority says so: while the stream lasts, the other job never runs."""
    assert starved(policy, queue)[0] is None


def test_aging_policy_key():
    """The key is priority + rate * run_at; infinite and huge priorities stay in order and never make a NaN."""
    policy = AgingPolicy(2)
    assert policy.key(make_job(priority=3, delay=5)) == 13
    assert policy.rate == 2
    assert repr(policy) == "AgingPolicy(2)"
    assert policy.key(make_job(priority=math.inf)) == math.inf
    assert AgingPolicy(1e308).key(make_job(priority=-math.inf, delay=1e9)) == -math.inf
    assert AgingPolicy(1e308).key(make_job(priority=1, delay=1e9)) == math.inf
    assert policy.key(make_job(priority=10**400)) == math.inf
    assert policy.key(make_job(priority=-(10**400))) == -math.inf


@pytest.mark.parametrize(("rate", "error"), [(-1, ValueError), (math.nan, ValueError), (math.inf, ValueError),
                                             ("1", TypeError), (True, TypeError), (None, TypeError)])  # fmt: skip
def test_bad_rates_are_refused(rate: Any, error: type[Exception]):
    """A rate that is no finite number of at least 0 is refused by name."""
    with pytest.raises(error, match="rate must"):
        AgingPolicy(rate)


def test_subclass_of_a_builtin_policy_is_asked():
    """A subclass that overrides `key` is a policy of the user's: its own key counts."""

    class Backwards(AgingPolicy):
        def key(self, job: Job[Any], /) -> float:
            return -super().key(job)

    s = StepScheduler(policy=Backwards(1))
    s.options(id="low", priority=1).submit(int)
    s.options(id="high", priority=9).submit(int)
    assert ran(s) == ["high", "low"]


# ---------------------------------------------------------------- set_priority


@both
@policies
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ord_06_waiting_task_changes_its_priority(queue: Any, policy: Any, workers: int):
    """Raised, the last runs next; lowered, the first runs last; two raised run in their new order."""

    def fill(count: int) -> tuple[StepScheduler, list[Job[int]]]:
        s = StepScheduler(workers, policy=policy(), queue=queue)
        jobs = [s.options(id=str(number), name="x").submit(int) for number in range(count)]
        s.pause()
        s.tick()  # promotes: they are ready
        s.resume()
        return s, jobs

    s, jobs = fill(5)
    assert jobs[4].set_priority(1)
    assert jobs[4].priority == 1
    s.check()
    assert ran(s) == ["4", "0", "1", "2", "3"]
    s, jobs = fill(5)
    assert jobs[0].set_priority(9)
    assert ran(s) == ["1", "2", "3", "4", "0"]
    s, jobs = fill(5)
    assert jobs[2].set_priority(4)
    assert jobs[4].set_priority(3)
    s.check()
    assert ran(s) == ["4", "2", "0", "1", "3"]
    s, jobs = fill(1)
    assert jobs[0].set_priority(3)
    assert ran(s) == ["0"]
    s.check()


def test_ord_07_which_job_an_id_means():
    """An id of an ended or unknown job finds nothing; automatic ids are unique and known, and move their job."""
    s = StepScheduler()
    jobs = [s.submit(int) for _ in range(5)]
    s.tick()
    assert s.get(jobs[0].id) is None
    assert s.get("nobody") is None
    assert not jobs[0].set_priority(1)
    fifth = s.get(jobs[4].id)
    assert fifth is jobs[4]
    assert fifth.set_priority(1)
    assert [one.id for one in s.drain()] == [job.id for job in (jobs[4], *jobs[1:4])]


@both
@policies
def test_set_priority_wherever_the_job_stands(queue: Any, policy: Any):
    """Delayed and in backoff it takes effect when the time has come; running or ended it is False, and nothing."""
    s = StepScheduler(policy=policy(), queue=queue)

    def fail() -> None:
        raise ValueError("again")

    failing = s.options(id="failing", retries=1, backoff=3).submit(fail)
    s.tick()
    assert failing.status is JobStatus.PENDING
    s.options(id="plain", delay=3).submit(int)
    delayed = s.options(id="delayed", delay=3).submit(int)
    assert delayed.set_priority(2)
    assert failing.set_priority(1)
    s.check()
    assert ran(s) == ["failing", "delayed", "plain"]
    for job in (failing, delayed):
        assert not job.set_priority(0)
    assert (failing.priority, delayed.priority) == (1, 2)
    assert failing.exception() is not None


@both
def test_set_priority_of_a_running_job_changes_nothing(queue: Any):
    """A job that has started keeps its priority, as records show it."""
    with Scheduler(1, queue=queue) as s:
        with occupied(s) as (job,):
            assert not job.set_priority(3)
            assert job.priority == -1e9
        job.result(PATIENCE)


@both
@pytest.mark.parametrize("policy", [FifoPolicy, OldestDuePolicy, DeadlinePolicy])
def test_set_priority_under_a_policy_that_does_not_look(queue: Any, policy: Any):
    """The priority changes, the order does not."""
    s = StepScheduler(policy=policy(), queue=queue)
    jobs = [s.options(id=str(number)).submit(int) for number in range(3)]
    assert jobs[2].set_priority(-1)
    assert jobs[2].priority == -1
    assert ran(s) == ["0", "1", "2"]


@pytest.mark.parametrize(("value", "error"), [(math.nan, ValueError), ("5", TypeError), (True, TypeError),
                                              (None, TypeError)])  # fmt: skip
def test_bad_priorities_are_refused(value: Any, error: type[Exception]):
    """What `options(priority=)` refuses, `set_priority` refuses, by name."""
    job = StepScheduler().submit(int)
    with pytest.raises(error, match="priority must"):
        job.set_priority(value)
    assert job.priority == 5


@both
def test_key_that_raises_fails_the_change_alone(queue: Any):
    """The error of the user's key comes out of `set_priority`; priority, order and heap are as before."""

    class Picky:
        def key(self, job: Job[Any]) -> float:
            if job.priority == 13:
                raise LookupError("thirteen")
            return job.priority

    s = StepScheduler(policy=Picky(), queue=queue)
    jobs = [s.options(id=str(number)).submit(int) for number in range(3)]
    with pytest.raises(LookupError, match="thirteen"):
        jobs[0].set_priority(13)
    s.check()
    assert jobs[0].priority == 5
    assert ran(s) == ["0", "1", "2"]


@both
def test_key_sees_the_job_with_its_new_priority(queue: Any):
    """A policy may look the job up and read all of it, sees the new priority, and cannot move it."""
    seen: list[Any] = []

    class Curious:
        def key(self, job: Job[Any]) -> float:
            seen.append((job.priority, job.id, job.name, job.status, job.deadline, ids.get(job), job in ids))
            if isinstance(job, Glimpse):
                for move in (job.cancel, job.claim, lambda: job.set_priority(1)):
                    with pytest.raises(RuntimeError, match="must not move"):
                        move()
            return job.priority

    ids: dict[Any, str] = {}
    s = StepScheduler(policy=Curious(), queue=queue)
    job = s.options(id="a", name="n", deadline=7).submit(int)
    ids[job] = "known"
    assert job.set_priority(2)
    assert seen[-1] == (2, "a", "n", JobStatus.PENDING, 7, "known", True)


def test_before_must_not_re_order():
    """`set_priority` from inside a comparison raises, like every call of the scheduler from there."""
    errors: list[BaseException] = []

    class Meddling:
        def before(self, a: Job[Any], b: Job[Any]) -> bool:
            try:
                a.set_priority(1)
            except RuntimeError as error:
                errors.append(error)
            return False

    s = StepScheduler(policy=Meddling())
    jobs = [s.submit(int) for _ in range(3)]
    s.drain()
    assert errors
    assert all(job.priority == 5 for job in jobs)


@both
@pytest.mark.parametrize("arrives", ["claim", "cancel", "swap", "retry", "second"])
def test_key_computed_while_the_job_moves_on(queue: Any, arrives: str):
    """Whatever happens while the user's key is computed has happened; the key counts only if it is still right."""
    s = StepScheduler(policy=ByKey(), queue=queue)
    a = s.options(id="a", name="x").submit(int)
    b = s.options(id="b", name="x", priority=3).submit(int)
    reached, go_on = Gate(), threading.Event()
    armed = [True]

    class Slow:
        def key(self, job: Job[Any]) -> float:
            if isinstance(job, Glimpse) and armed and armed.pop():
                reached.started.set()
                assert go_on.wait(PATIENCE)
            return job.priority

    s.policy = Slow()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(a.set_priority(1)))
    thread.start()
    reached.await_start()
    if arrives == "claim":
        assert a.claim()
    elif arrives == "cancel":
        assert a.cancel()
    elif arrives == "swap":
        s.policy = ByKey()
    elif arrives == "retry":
        s._runtime.core.pending[a.seq]._run_at = 0.0 + 1e-9  # what a retry in between would change
    else:
        assert a.set_priority(4)
    go_on.set()
    thread.join(PATIENCE)
    moved = arrives in ("swap", "retry", "second")
    assert answers == [moved]
    assert a.priority == (1 if moved else 5)
    if arrives == "claim":
        a.set_result(0)
    s.check()
    s.tick()
    assert (b.status is JobStatus.PENDING) == moved
    s.drain()
    assert b.done()


# ---------------------------------------------------------------- stale entries


@both
def test_stale_entry_does_not_start_a_job_in_backoff(queue: Any):
    """An entry left behind by `set_priority` never starts the next attempt of its job before the pause is over."""
    s = StepScheduler(queue=queue)
    clock = s.clock
    assert isinstance(clock, FakeClock)

    def fail() -> None:
        raise ValueError("again")

    job = s.options(retries=1, backoff=10).submit(fail)
    blocker = s.options(priority=-1).submit(int)
    s.tick()
    assert blocker.done()
    for priority in (3, 5, 3, 5):  # there and back: the stale entries' rank is the very object the job has
        assert job.set_priority(priority)
    s.check()
    for _ in range(3):
        s.tick()
        assert (job.attempts, job.status) == (1, JobStatus.PENDING)
    assert job.set_priority(4)
    s.tick()
    assert job.attempts == 1
    clock.advance(10)
    s.tick()
    assert job.attempts == 2
    assert isinstance(job.exception(0), ValueError)
    s.check()


@both
def test_stale_entry_does_not_start_a_job_out_of_order(queue: Any):
    """A job that was lowered is passed over where it stood before."""
    driver = Driver(queue)
    jobs = [driver.submit(priority=priority) for priority in (1, 2, 3)]
    assert reorder(driver.core, jobs[0], 10, None)
    driver.core.check_invariants()
    assert driver.claim_all() == [jobs[1], jobs[2], jobs[0]]
    driver.core.check_invariants()


def test_stale_entries_are_swept_without_repeated_work(monkeypatch: pytest.MonkeyPatch):
    """A hundred thousand changes of one job leave few entries, and the heap is rebuilt once for many of them."""
    driver = Driver("lazy")
    jobs = [driver.submit(priority=number) for number in range(100)]
    core = driver.core
    rebuilt: list[int] = []
    rebuild = core.ready.rebuild
    monkeypatch.setattr(core.ready, "rebuild", lambda entries: (rebuilt.append(1), rebuild(entries)))
    changes = 20_000
    for number in range(changes):
        assert reorder(core, jobs[0], number % 977 + 0.5, None)
        assert len(core.ready) <= SWEEP_SHARE * len(jobs) + SWEEP_SLACK + SWEEP_EVERY
    assert len(rebuilt) <= changes / len(jobs)
    core.check_invariants()
    # Cancels beside stale entries do not go through the heap each time either.
    del rebuilt[:]
    for number in range(100):
        reorder(core, jobs[1], number - 0.5, None)
    for job in jobs[10:]:
        assert driver.cancel(job)
    assert len(rebuilt) <= 5
    core.check_invariants()
    assert sorted(job.seq for job in driver.claim_all()) == [job.seq for job in jobs[:10]]


@both
@policies
def test_random_changes_keep_the_order(queue: Any, policy: Any, rng: Any):
    """After random changes, cancels, swaps and claims the jobs run by (rank, seq), each once."""
    s = StepScheduler(policy=policy(), queue=queue)
    jobs = [s.options(priority=rng.randrange(5), name="x").submit(int) for _ in range(60)]
    s.pause()
    s.tick()
    s.resume()
    for step in range(300):
        job = rng.choice(jobs)
        roll = rng.random()
        if roll < 0.9:
            assert job.set_priority(rng.randrange(5)) == (job.status is JobStatus.PENDING)
        elif roll < 0.96:
            job.cancel()
        else:
            s.policy = PriorityPolicy()
            s.policy = policy()
        if step % 20 == 0:
            s.check()
    expected = [job.id for job in sorted(jobs, key=lambda job: (job.priority, job.seq)) if not job.cancelled()]
    assert [one.id for one in s.drain()] == expected


@both
@policies
def test_changes_from_many_threads_lose_no_job(queue: Any, policy: Any):
    """Changes, cancels, swaps and workers at once: every job ends exactly once, and the books balance."""
    count = itertools.count()
    with hasty_switches(), Scheduler(2, policy=policy(), queue=queue) as s:
        jobs: list[Job[int]] = []
        with occupied(s, 2):
            jobs += [s.options(name="x").submit(next, count) for _ in range(150)]

        def shuffle(offset: int) -> None:
            for number, job in enumerate(jobs):
                job.set_priority((number * 7 + offset) % 11)

        def swap() -> None:
            for _ in range(5):
                s.policy = ByKey()
                s.policy = policy()

        def drop() -> None:
            for job in jobs[::5]:
                job.cancel()

        for call in together(lambda: shuffle(1), lambda: shuffle(5), swap, drop):
            call.outcome()
        s.check()
        assert s.wait_idle(PATIENCE)
        s.check()
        done = [job for job in jobs if not job.cancelled()]
        assert sorted(job.result() for job in done) == list(range(len(done)))


@both
def test_f40_equal_priority_is_submission_order_and_can_be_changed(queue: Any):
    """A thousand equal jobs with arguments that cannot be compared keep their order; the last can be made first."""
    order: list[int] = []
    with Scheduler(1, queue=queue) as s:
        with occupied(s):
            jobs = [s.submit(lambda n, _: order.append(n), number, object()) for number in range(1000)]
            assert jobs[-1].set_priority(1)
        assert s.wait_idle(PATIENCE)
    assert order == [999, *range(999)]


@both
def test_f40_policy_swap_with_a_thousand_queued(queue: Any):
    """The order follows the new policy at once, and none is lost."""
    order: list[int] = []
    with Scheduler(1, queue=queue) as s:
        with occupied(s):
            for number in range(1000):
                s.options(priority=number % 7, deadline=1e6 - number).submit(order.append, number)
            s.policy = DeadlinePolicy()
            s.check()
        assert s.wait_idle(PATIENCE)
    assert order == list(range(999, -1, -1))


def test_swap_while_a_retry_computes_its_key():
    """A retry whose key was computed for a policy that is gone gets another one; the two never meet in a heap."""
    s = StepScheduler(policy=PriorityPolicy())

    class Swapping:
        def key(self, job: Job[Any]) -> Any:
            if job.attempts:
                s.policy = ByKey()
            return job.priority

    s.policy = Swapping()

    def fail() -> None:
        raise ValueError("again")

    failing = s.options(retries=1, backoff=0).submit(fail)
    waiting = s.options(priority=9).submit(int)
    s.tick()
    assert failing.status is JobStatus.PENDING
    s.drain()
    s.check()
    assert (failing.attempts, waiting.status) == (2, JobStatus.DONE)
    assert isinstance(failing.exception(0), ValueError)


@both
def test_priority_set_while_a_swap_computes_keys(queue: Any):
    """A key computed before its job got another priority is computed again: the swap takes nothing back."""
    s = StepScheduler(queue=queue)
    jobs = [s.options(id=str(number)).submit(int) for number in range(4)]
    s.pause()
    s.tick()
    s.resume()

    class Meddling:
        def key(self, job: Job[Any]) -> float:
            if job.id == "3" and jobs[1].priority == 5:
                assert jobs[1].set_priority(1)  # its key for this policy is computed already
            return job.priority

    s.policy = Meddling()
    s.check()
    assert jobs[1].priority == 1
    assert ran(s) == ["1", "0", "2", "3"]

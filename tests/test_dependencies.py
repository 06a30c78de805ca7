"""Dependencies: when a job with parents starts, what ends it instead, and what anybody sees of that."""

import concurrent.futures
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from tests.dependency_fields import FIELDS, PATIENCE, Boom, Field, Told, boom
from tests.support import exhaustive
from threadsched import (
    DependencyError,
    FifoPolicy,
    Job,
    JobExpiredError,
    JobStatus,
    JobTimeoutError,
    Scheduler,
    ThreadschedError,
    current_job,
)
from threadsched.testing import StepScheduler

PENDING, DONE, FAILED, CANCELLED = JobStatus.PENDING, JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED

POLICIES = {"default": False, "any": True}


@pytest.fixture(params=FIELDS)
def field(request: pytest.FixtureRequest) -> Iterator[Field]:
    """One of the four kinds of scheduler."""
    field = Field(request.param)
    yield field
    field.close()


# ---------------------------------------------------------------- the table: how the parent ends x policy

# Each builds a parent and returns it with the steps that end it; after every step but the last it must be open.
Parent = tuple[Any, list[Callable[[], object]]]


def flaky() -> None:
    if current_job().attempts == 1:  # type: ignore[union-attr]
        raise Boom("the first attempt")


def stop_itself() -> None:
    job = current_job()
    assert job is not None
    job.request_cancel()
    job.check_cancelled()


def done(field: Field) -> Parent:
    return field.scheduler.options(delay=1).submit(int), [lambda: field.go(1)]


def failed(field: Field) -> Parent:
    return field.scheduler.options(delay=1).submit(boom), [lambda: field.go(1)]


def failed_for_good(field: Field) -> Parent:
    job = field.scheduler.options(delay=1, retries=1, backoff=2).submit(boom)
    return job, [lambda: field.go(1), lambda: field.go(1), lambda: field.go(1)]


def done_on_retry(field: Field) -> Parent:
    job = field.scheduler.options(delay=1, retries=1, backoff=2).submit(flaky)
    return job, [lambda: field.go(1), lambda: field.go(1), lambda: field.go(1)]


def cancelled_pending(field: Field) -> Parent:
    job = field.scheduler.options(delay=1).submit(int)
    return job, [job.cancel]


def cancelled_in_backoff(field: Field) -> Parent:
    job = field.scheduler.options(delay=1, retries=1, backoff=2).submit(boom)
    return job, [lambda: field.go(1), job.cancel]


def stopped(field: Field) -> Parent:
    return field.scheduler.options(delay=1).submit(stop_itself), [lambda: field.go(1)]


def timed_out(field: Field) -> Parent:
    job = field.scheduler.options(delay=1, timeout=2).submit(field.clock.jump, 3)
    return job, [lambda: field.go(1)]


def expired(field: Field) -> Parent:
    return field.scheduler.options(delay=5, expires=1).submit(int), [lambda: field.go(1)]


def replaced(field: Field) -> Parent:
    def replace() -> None:
        field.scheduler.options(id="one", if_exists="replace").submit(int)

    return field.scheduler.options(delay=5, id="one").submit(int), [replace]


def claimed_done(field: Field) -> Parent:
    job = field.scheduler.options(delay=1).submit(int)
    return job, [job.claim, lambda: job.set_result(1)]


def claimed_failed(field: Field) -> Parent:
    job = field.scheduler.options(delay=1).submit(int)
    return job, [job.claim, lambda: job.set_exception(Boom())]


def foreign_done(field: Field) -> Parent:
    future: Future[int] = Future()
    return future, [future.set_running_or_notify_cancel, lambda: future.set_result(1)]


def foreign_failed(field: Field) -> Parent:
    future: Future[int] = Future()
    return future, [lambda: future.set_exception(Boom())]


def foreign_cancelled(field: Field) -> Parent:
    future: Future[int] = Future()
    return future, [future.cancel]


def others_job(task: Callable[[], object], end: Callable[[Job[Any], StepScheduler], object]) -> Callable[..., Parent]:
    def build(field: Field) -> Parent:
        other = StepScheduler()
        job = other.submit(task)
        return job, [lambda: end(job, other)]

    return build


# name: (builder, how the parent ends)
TABLE: dict[str, tuple[Callable[[Field], Parent], str]] = {
    "done": (done, "done"),
    "failed": (failed, "failed"),
    "failed-after-retry": (failed_for_good, "failed"),
    "done-on-retry": (done_on_retry, "done"),
    "cancelled-pending": (cancelled_pending, "cancelled"),
    "cancelled-in-backoff": (cancelled_in_backoff, "cancelled"),
    "stopped": (stopped, "cancelled"),
    "timed-out": (timed_out, "failed"),
    "expired": (expired, "cancelled"),
    "replaced": (replaced, "cancelled"),
    "claimed-done": (claimed_done, "done"),
    "claimed-failed": (claimed_failed, "failed"),
    "foreign-done": (foreign_done, "done"),
    "foreign-failed": (foreign_failed, "failed"),
    "foreign-cancelled": (foreign_cancelled, "cancelled"),
    "other-scheduler-done": (others_job(int, lambda job, other: other.tick()), "done"),
    "other-scheduler-failed": (others_job(boom, lambda job, other: other.tick()), "failed"),
    "other-scheduler-cancelled": (others_job(int, lambda job, other: job.cancel()), "cancelled"),
}


def expect(job: Job[Any], parent: Any, outcome: str, any_outcome: bool) -> None:
    """Check a dependent against the table of the guide."""
    if outcome == "done" or any_outcome:
        assert job.result(0) == 7
        return
    with pytest.raises(DependencyError) as caught:
        job.result(0)
    error = caught.value
    assert job.cancelled()
    if outcome == "failed":
        assert isinstance(error.__cause__, (Boom, JobTimeoutError))
        assert error.__cause__ is parent.exception()
    else:
        assert error.__cause__ is None or isinstance(error.__cause__, JobExpiredError)
    assert error.parent == (parent.id if isinstance(parent, Job) else None)
    assert f"ended {outcome.upper()}" in str(error)
    assert f"job {job.id!r}" in str(error)
    if isinstance(parent, Job):
        assert f"its parent, job {parent.id!r} ({parent.name})" in str(error)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", TABLE)
def test_f36_parent_outcome_decides(field: Field, case: str, policy: str):
    """A dependent waits for the parent's final outcome, and then runs or is cancelled as its policy says."""
    build, outcome = TABLE[case]
    parent, steps = build(field)
    job = field.scheduler.options(after=[parent], after_any_outcome=POLICIES[policy]).submit(lambda: 7)
    told = Told(job)
    for step in steps:
        assert job.status is PENDING
        assert field.scheduler.stats().waiting == 1
        assert [reason.kind for reason in job.explain()] == ["parent"]
        field.scheduler.check()
        step()
    field.go()
    expect(job, parent, outcome, POLICIES[policy])
    assert told.seen == [job.status]
    assert field.scheduler.stats().waiting == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", TABLE)
def test_f36_parent_that_has_ended_counts_at_once(field: Field, case: str, policy: str):
    """An ended parent decides at the door: as if it were not there, or the job has ended before submit returns."""
    build, outcome = TABLE[case]
    parent, steps = build(field)
    for step in steps:
        step()
    field.go()
    job = field.scheduler.options(after=parent, after_any_outcome=POLICIES[policy], delay=1).submit(lambda: 7)
    dooms = outcome != "done" and not POLICIES[policy]
    assert job.status is (CANCELLED if dooms else PENDING)
    assert field.scheduler.stats().waiting == 0
    told = Told(job)
    field.go(1)
    expect(job, parent, outcome, POLICIES[policy])
    assert told.seen == [job.status]


@pytest.mark.parametrize("policy", POLICIES)
def test_f36_parent_cancelled_by_shutdown(field: Field, policy: str):
    """A shutdown that cancels what is pending cancels dependents with their parents, whatever their policy."""
    parent = field.scheduler.options(delay=1).submit(int)
    job = field.scheduler.options(after=parent, after_any_outcome=POLICIES[policy]).submit(lambda: 7)
    next_one = field.scheduler.options(after=job, after_any_outcome=POLICIES[policy]).submit(lambda: 7)
    told = Told(parent, job, next_one)
    field.scheduler.shutdown(cancel_futures=True)
    assert told.seen == [CANCELLED] * 3
    for one in (parent, job, next_one):
        with pytest.raises(concurrent.futures.CancelledError) as caught:
            one.result(0)
        assert not isinstance(caught.value, DependencyError)  # the shutdown is the reason, not the parent


# ---------------------------------------------------------------- time and parents


@pytest.mark.parametrize("first", ["time", "parent"])
def test_time_and_parents_both_have_to_be_met(field: Field, first: str):
    """A job starts when both its own time has come and its parent is DONE, whichever comes last."""
    parent = field.scheduler.options(delay=3 if first == "time" else 1).submit(int)
    job = field.scheduler.options(after=[parent], delay=timedelta(seconds=2)).submit(field.clock.now)
    assert [reason.kind for reason in job.explain()] == ["delayed", "parent"]
    field.go(1)
    assert [reason.kind for reason in job.explain()] == (["delayed", "parent"] if first == "time" else ["delayed"])
    field.go(1)
    assert job.done() is (first == "parent")
    field.go(1)
    assert job.result(0) == (3 if first == "time" else 2)


def test_released_job_is_not_late_behind_a_later_alarm():
    """The sleeping leader's alarm is set anew for a job that a busy worker let go; in real time, so on its own."""
    scheduler = Scheduler(2)
    gate, started, free = threading.Event(), threading.Event(), threading.Event()
    scheduler.options(delay=100).submit(int)  # what the leader sleeps for
    parent = scheduler.submit(lambda: (started.set(), gate.wait(PATIENCE)))
    assert started.wait(PATIENCE)
    # Let go together: the worker that ends the parent takes the first, and nobody is ready for another to wake to.
    busy = scheduler.options(after=parent).submit(free.wait, 20)
    job = scheduler.options(after=parent, delay=0.3).submit(lambda: 7)
    gate.set()
    assert job.result(PATIENCE) == 7
    free.set()
    assert busy.result(PATIENCE)
    scheduler.shutdown(drain="none")


def test_all_parents_have_to_be_done(field: Field):
    """With several parents the last one decides."""
    parents = [field.scheduler.options(delay=delay).submit(int) for delay in (3, 1, 2)]
    job = field.scheduler.options(after=parents).submit(field.clock.now)
    field.go(2)
    assert "job 1 (int, PENDING)" in job.explain()[0].detail
    assert "job 2" not in job.explain()[0].detail
    field.go(1)
    assert job.result(0) == 3


def test_first_failure_decides_and_the_others_are_forgotten(field: Field):
    """One failed parent of several cancels at once; the others go on and do not know of the job any more."""
    late = field.scheduler.options(delay=5).submit(int)
    early = field.scheduler.options(delay=1).submit(boom)
    job = field.scheduler.options(after=[late, early]).submit(int)
    field.go(1)
    assert job.status is CANCELLED
    assert not late._attached.rules[0].waiting  # type: ignore[union-attr]
    field.go(4)
    assert late.status is DONE


def test_dependent_keeps_its_place_in_the_order(field: Field):
    """A job let go by its parent is ordered by priority and submission like any other ready job."""
    order: list[str] = []
    scheduler = Field("stepped-lazy", workers=1).scheduler
    parent = scheduler.submit(order.append, "parent")
    for priority, name in ((5, "a"), (1, "b"), (5, "c")):
        scheduler.options(after=parent, priority=priority).submit(order.append, name)
    scheduler.drain()
    assert order == ["parent", "b", "a", "c"]


# ---------------------------------------------------------------- what may be given


@pytest.mark.parametrize("value", ["abc", "", b"ab", 3, object(), [1], ["abc"], [None], print], ids=repr)
def test_what_is_no_future_is_refused(value: Any):
    """Anything but futures in `after` is a TypeError that shows the value."""
    scheduler = StepScheduler()
    with pytest.raises(TypeError, match="after must") as caught:
        scheduler.options(after=value)
    shown = value[0] if isinstance(value, list) else value
    assert repr(shown) in str(caught.value)


def test_job_id_is_no_parent():
    """Parents are given as jobs, not as their ids."""
    scheduler = StepScheduler()
    with pytest.raises(TypeError, match="not 'load'"):
        scheduler.options(after="load")


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_after_any_outcome_is_a_bool(value: Any):
    """The flag is a bool and nothing that merely looks true."""
    with pytest.raises(TypeError, match=f"after_any_outcome must be a bool, not {value!r}"):
        StepScheduler().options(after_any_outcome=value)


@pytest.mark.parametrize("nobody", [None, [], (), iter(())])
def test_no_parents_is_no_rule(nobody: Any):
    """None and an empty iterable mean that the job waits for nobody."""
    scheduler = StepScheduler()
    job = scheduler.options(after=nobody, after_any_outcome=True).submit(int)
    assert job._attached is None
    scheduler.drain()
    assert job.result(0) == 0


def test_parents_from_a_generator_serve_every_submission(field: Field):
    """A generator is read once, at options(); a list changed later changes nothing."""
    first, second = (field.scheduler.options(delay=delay).submit(int) for delay in (1, 2))
    options = field.scheduler.options(after=(one for one in (first, second)))
    jobs = [options.submit(field.clock.now) for _ in range(2)]
    given = [first]
    other = field.scheduler.options(after=given)
    given.append(second)
    jobs.append(other.submit(field.clock.now))
    field.go(2)
    assert [job.result(0) for job in jobs] == [2, 2, 1]


def test_same_parent_twice_counts_once(field: Field):
    """Duplicates are one parent, own or foreign."""
    own = field.scheduler.options(delay=1).submit(int)
    foreign: Future[int] = Future()
    job = field.scheduler.options(after=[own, foreign, own, foreign]).submit(lambda: 7)
    field.go(1)
    assert job.status is PENDING
    foreign.set_result(1)
    field.go()
    assert job.result(0) == 7


def test_map_with_parents(field: Field):
    """`map` of a submitter with parents waits for them too."""
    parent = field.scheduler.options(delay=1).submit(int)
    results = field.scheduler.options(after=parent).map(str, range(3))
    assert field.scheduler.stats().waiting == 3
    field.go(1)
    assert list(results) == ["0", "1", "2"]


def test_f38_edges_lead_to_existing_jobs_only():
    """There is no way to add a parent to a job that exists, so a ring of dependencies cannot be made."""
    scheduler = StepScheduler()
    parent = scheduler.submit(int)
    job = scheduler.options(after=parent).submit(int)
    assert job.seq > parent.seq
    assert not [name for name in dir(Job) if "after" in name or "parent" in name]
    with pytest.raises(TypeError):
        scheduler.options(after=job, id=parent)  # type: ignore[arg-type]
    scheduler.drain()
    assert (parent.status, job.status) == (DONE, DONE)


def test_f38_parents_run_first_whatever_the_policy(field: Field):
    """The order of a policy never puts a dependent before its parent."""
    order: list[str] = []
    field.scheduler.policy = FifoPolicy()
    parent = field.scheduler.options(delay=1, priority=9).submit(order.append, "parent")
    field.scheduler.options(after=parent, priority=1).submit(order.append, "child")
    field.go(1)
    assert order == ["parent", "child"]


# ---------------------------------------------------------------- shapes


def test_diamond(field: Field):
    """Both sides of a diamond run before its foot, which runs once."""
    ran: list[str] = []
    top = field.scheduler.options(delay=1).submit(ran.append, "top")
    sides = [field.scheduler.options(after=top, delay=delay).submit(ran.append, "side") for delay in (1, 3)]
    field.scheduler.options(after=[*sides, top]).submit(ran.append, "foot")
    field.go(3)
    assert ran == ["top", "side", "side", "foot"]


def test_diamond_that_fails_at_the_top_names_it_once(field: Field):
    """Of two ways from a failure to a job the first decides; it is cancelled and told of once."""
    top = field.scheduler.options(delay=1, id="top").submit(boom)
    sides = [field.scheduler.options(after=top, id=f"side {n}").submit(int) for n in range(2)]
    foot = field.scheduler.options(after=sides).submit(int)
    told = Told(foot)
    field.go(1)
    with pytest.raises(DependencyError, match=r"its parent, job 'side 0' \(int\), ended CANCELLED, because job 'top'"):
        foot.result(0)
    assert told.seen == [CANCELLED]


def test_any_outcome_stops_the_cascade(field: Field):
    """A job that runs after any outcome shields those that depend on it."""
    parent = field.scheduler.options(delay=1).submit(boom)
    shield = field.scheduler.options(after=parent, after_any_outcome=True).submit(lambda: 7)
    behind = field.scheduler.options(after=shield).submit(lambda: 8)
    beside = field.scheduler.options(after=[shield, parent]).submit(lambda: 9)
    field.go(1)
    assert (shield.result(0), behind.result(0), beside.status) == (7, 8, CANCELLED)


def test_running_job_may_be_a_parent(field: Field):
    """A job may submit jobs that wait for itself; they start after it has ended."""
    children: list[Job[str]] = []
    state = ["running"]

    def parent() -> None:
        children.append(field.scheduler.options(after=current_job()).submit(lambda: state[0]))
        children.append(field.scheduler.options(after=children).submit(lambda: state[0]))

    job = field.scheduler.submit(parent)
    job.add_done_callback(lambda _: state.append("ended"))
    field.go()
    assert job.status is DONE
    state[0] = "later"
    field.go()
    assert all(child.status is DONE for child in children)


@pytest.mark.proof
@pytest.mark.parametrize("ending", ["done", "failed"])
@pytest.mark.parametrize("kind", FIELDS)
def test_chain_of_a_hundred_thousand(kind: str, ending: str):
    """A chain of 100,000 runs, or falls, from end to end without recursion; the last error names the first job."""
    count = 100_000 if exhaustive() else 10_000
    field = Field(kind, history=0)
    parent: Future[Any] = Future()
    job: Any = parent
    for _ in range(count):
        job = field.scheduler.options(after=job).submit(int)
    assert field.scheduler.stats().waiting == count
    if ending == "done":
        parent.set_result(None)
        if field.stepped:
            while field.scheduler.tick():
                continue
        assert job.result(60) == 0
        assert field.scheduler.stats().done == count
    else:
        parent.set_exception(Boom("the first"))
        if field.stepped:
            field.scheduler.tick()
        with pytest.raises(DependencyError, match="because the future <Future") as caught:
            job.result(60)
        assert isinstance(caught.value.__cause__, Boom)  # not a chain of 100,000 causes
        assert field.scheduler.stats().cancelled == count
    field.scheduler.shutdown()


@pytest.mark.parametrize("kind", FIELDS)
def test_chain_of_cancels(kind: str):
    """Cancelling the first of a long chain cancels all of it on the calling thread, callbacks included."""
    count = 5_000
    field = Field(kind)
    first = job = field.scheduler.options(delay=1).submit(int)
    told = Told()
    for _ in range(count):
        job = field.scheduler.options(after=job).submit(int)
        job.add_done_callback(told)
    assert first.cancel()
    assert len(told.seen) == count
    assert job.cancelled()
    field.close()


def test_chain_to_and_fro_between_two_schedulers():
    """A cascade that alternates between two schedulers does not grow the stack with each link."""
    count = 3_000
    one, two = Field("stepped-lazy"), Field("stepped-indexed")
    first = job = one.scheduler.options(delay=1).submit(int)
    for number in range(count):
        side = (two, one)[number % 2]
        job = side.scheduler.options(after=job).submit(int)
    first.cancel()
    one.go()
    two.go()
    assert job.cancelled()
    with pytest.raises(DependencyError) as caught:
        job.result(0)
    assert "job 1 (int) ended CANCELLED" in str(caught.value)
    one.close()
    two.close()


# ---------------------------------------------------------------- cancel, claim, retry


def test_waiting_job_can_be_cancelled(field: Field):
    """`cancel` takes a waiting job at once, and its parent goes on without it."""
    parent = field.scheduler.options(delay=1).submit(int)
    job = field.scheduler.options(after=parent).submit(int)
    told = Told(job)
    assert job.cancel()
    assert told.seen == [CANCELLED]
    assert (field.scheduler.stats().waiting, field.scheduler.stats().pending) == (0, 1)
    field.go(1)
    assert parent.status is DONE


def test_waiting_job_can_be_claimed(field: Field):
    """A waiting job is PENDING, so its claimer gets it and its parents do not matter any more."""
    foreign: Future[int] = Future()
    parent = field.scheduler.options(delay=1).submit(boom)
    job = field.scheduler.options(after=[parent, foreign]).submit(int)
    child = field.scheduler.options(after=job).submit(lambda: 7)
    assert job.claim()
    assert field.scheduler.stats().waiting == 1
    field.go(1)
    foreign.set_exception(Boom())
    field.go()
    assert job.status is JobStatus.RUNNING
    job.set_result(3)
    field.go()
    assert (job.result(0), child.result(0)) == (3, 7)


def test_retry_of_a_dependent_is_not_held_again(field: Field):
    """A dependent that fails and is retried does not wait for its parents a second time."""
    parent = field.scheduler.options(delay=1).submit(int)
    job = field.scheduler.options(after=parent, retries=1, backoff=2).submit(flaky)
    field.go(1)
    assert [reason.kind for reason in job.explain()] == ["retry"]
    assert field.scheduler.stats().waiting == 0
    field.go(2)
    assert (job.status, job.attempts) == (DONE, 2)


def test_clear_cancels_dependents_with_their_parents(field: Field):
    """`clear` takes all that is pending in one go; nobody is let go by the end of a parent in between."""
    if field.stepped:
        return
    parent = field.scheduler.options(delay=1).submit(int)
    jobs = [field.scheduler.options(after=parent, after_any_outcome=flag).submit(int) for flag in (False, True)]
    assert field.scheduler.clear() == 3
    assert [job.status for job in jobs] == [CANCELLED] * 2
    field.go(1)


def test_policy_swap_orders_waiting_jobs_too(field: Field):
    """A policy assigned while jobs wait gives them their keys, so they are ordered right when let go."""
    order: list[int] = []
    stepped = Field("stepped-lazy", workers=1)
    parent = stepped.scheduler.submit(int)
    for number, priority in enumerate((9, 1, 5)):
        stepped.scheduler.options(after=parent, priority=priority).submit(order.append, number)
    stepped.scheduler.policy = FifoPolicy()
    stepped.scheduler.drain()
    assert order == [0, 1, 2]


def test_wait_idle_counts_waiting_jobs():
    """A scheduler is not idle while a job waits for a parent."""
    scheduler = Scheduler(1)
    foreign: Future[int] = Future()
    scheduler.options(after=foreign).submit(int)
    assert not scheduler.wait_idle(0)
    foreign.set_result(1)
    assert scheduler.wait_idle(5)
    scheduler.shutdown()


def test_ended_dependent_is_told_to_wait_and_as_completed():
    """`concurrent.futures.wait` hears of a job that its parent's end cancels."""
    field = Field("threaded-lazy")
    parent = field.scheduler.options(delay=1).submit(boom)
    jobs = [field.scheduler.options(after=parent).submit(int) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(concurrent.futures.wait, jobs, 5)
        while not all(job._attached.condition for job in jobs):  # type: ignore[union-attr]
            continue
        field.clock.advance(1)
        assert waiting.result(5).done == set(jobs)
    assert isinstance(parent.exception(), Boom)
    field.close()


# ---------------------------------------------------------------- the error


def test_dependency_error_is_a_cancelled_error_of_ours():
    """It is caught as CancelledError and as ThreadschedError, and survives pickling with its fields."""
    scheduler = StepScheduler()
    parent = scheduler.options(id="p").submit(boom)
    job = scheduler.options(after=parent).submit(int)
    scheduler.tick()
    for kind in (concurrent.futures.CancelledError, ThreadschedError):
        with pytest.raises(kind):
            job.result(0)
        with pytest.raises(kind):
            job.exception(0)
    with pytest.raises(DependencyError) as caught:
        job.result(0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.parent, copied.root, str(copied)) == ("p", "job 'p' (boom) ended FAILED", str(caught.value))
    assert "DependencyError: job 2 was given up" in job.explain()[0].detail
    assert isinstance(parent.exception(0), Boom)


class Rude(Future):  # type: ignore[type-arg]
    """A future whose text cannot be had."""

    def __repr__(self) -> str:
        raise Boom("repr")

    def __eq__(self, other: object) -> bool:
        raise Boom("eq")

    def __hash__(self) -> int:
        raise Boom("hash")


def test_foreign_future_with_a_bad_repr(field: Field):
    """A foreign future whose methods raise is named without its text, and still decides."""
    future = Rude()
    job = field.scheduler.options(after=[future]).submit(int)
    assert "an unprintable Rude" in job.explain()[0].detail
    future.set_exception(Boom())
    field.go()
    with pytest.raises(DependencyError, match="an unprintable Rude") as caught:
        job.result(0)
    assert isinstance(caught.value.__cause__, Boom)


class Silent(Future):  # type: ignore[type-arg]
    """A future that cannot say how it ended."""

    def cancelled(self) -> bool:
        raise Boom("no answer")


def test_foreign_future_that_cannot_say_how_it_ended(field: Field):
    """What a future raises when it is asked for its end counts as its failure."""
    future = Silent()
    job = field.scheduler.options(after=[future]).submit(int)
    future.set_result(1)
    field.go()
    with pytest.raises(DependencyError) as caught:
        job.result(0)
    assert isinstance(caught.value.__cause__, Boom)


class Deaf(Future):  # type: ignore[type-arg]
    """A future that takes no callbacks."""

    def add_done_callback(self, fn: Any) -> None:
        raise Boom("not here")


def test_foreign_future_that_takes_no_callback_fails_the_submission(field: Field):
    """A parent that cannot be registered with fails the submission, and nothing is queued."""
    with pytest.raises(Boom):
        field.scheduler.options(after=[Deaf()]).submit(int)
    assert field.scheduler.stats().submitted == 0


def test_many_open_parents_are_counted_in_an_explanation():
    """An explanation names the first ten open parents and counts the rest."""
    scheduler = StepScheduler()
    parents = [scheduler.submit(int) for _ in range(25)]
    job = scheduler.options(after=parents).submit(int)
    detail = job.explain()[0].detail
    assert detail.count("job ") == 10
    assert detail.endswith(", 15 more")

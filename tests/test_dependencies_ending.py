"""Dependencies at the ends: shutdown in its three modes, fork, what is kept alive, and what breaks in on them."""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from tests.dependency_fields import FIELDS, PATIENCE, Boom, Field, Told, boom
from tests.support import run_script
from threadsched import DependencyError, InvariantError, Job, JobStatus, Scheduler
from threadsched._core import Core
from threadsched._dependencies import Dependents, Parents
from threadsched._runtime import Runtime
from threadsched.testing import StepScheduler

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus


@pytest.fixture(params=FIELDS)
def field(request: pytest.FixtureRequest) -> Iterator[Field]:
    """One of the four kinds of scheduler."""
    field = Field(request.param)
    yield field
    field.close()


# ---------------------------------------------------------------- shutdown


def test_drain_all_waits_for_parents(field: Field):
    """Under "all" waiting jobs run once their parents have ended, delayed parents and foreign ones included."""
    foreign: Future[int] = Future()
    parent = field.scheduler.options(delay=2).submit(int)
    job = field.scheduler.options(after=[parent, foreign]).submit(lambda: 7)
    field.scheduler.shutdown(wait=False)
    field.go(2)
    assert job.status is PENDING
    foreign.set_result(1)
    field.go()
    assert job.result(0) == 7


# What an open parent is at shutdown("due"): (builder, does the dependent stay).
def ready_parent(field: Field) -> Any:
    return field.scheduler.submit(int)


def delayed_parent(field: Field) -> Any:
    return field.scheduler.options(delay=5).submit(int)


def foreign_parent(field: Field) -> Any:
    return Future()


def waiting_on_ready(field: Field) -> Any:
    return field.scheduler.options(after=field.scheduler.submit(int)).submit(int)


def waiting_on_delayed(field: Field) -> Any:
    return field.scheduler.options(after=delayed_parent(field)).submit(int)


def late_waiting_on_ready(field: Field) -> Any:
    return field.scheduler.options(after=field.scheduler.submit(int), delay=5).submit(int)


DUE = {
    "ready": (ready_parent, True),
    "delayed": (delayed_parent, False),
    "foreign": (foreign_parent, False),
    "waiting for a ready one": (waiting_on_ready, True),
    "waiting for a delayed one": (waiting_on_delayed, False),
    "waiting, its time to come": (late_waiting_on_ready, False),
}


@pytest.mark.parametrize("any_outcome", [False, True])
@pytest.mark.parametrize("case", DUE)
@pytest.mark.parametrize("kind", FIELDS)
def test_drain_due_keeps_whose_ancestors_come(kind: str, case: str, any_outcome: bool):
    """Under "due" a waiting job runs if every open ancestor is ready or running here; otherwise it is cancelled."""
    build, stays = DUE[case]
    field = Field(kind, workers=1)
    gate = threading.Event()
    if not field.stepped:
        started = threading.Event()
        field.scheduler.submit(lambda: (started.set(), gate.wait(PATIENCE)))
        assert started.wait(PATIENCE)
    parent = build(field)
    job = field.scheduler.options(after=parent, after_any_outcome=any_outcome).submit(lambda: 7)
    after_it = field.scheduler.options(after=job, after_any_outcome=any_outcome).submit(lambda: 8)
    late = field.scheduler.options(after=parent, delay=1).submit(lambda: 9)
    told = Told(job, after_it, late)
    field.scheduler.shutdown(wait=False, drain="due")
    assert late.status is CANCELLED
    assert told.seen == [CANCELLED] * (1 if stays else 3)
    gate.set()
    field.go()
    if stays:
        assert (job.result(0), after_it.result(0)) == (7, 8)
    else:
        for one in (job, after_it):
            assert one.cancelled()
            with pytest.raises(CancelledError) as caught:
                one.result(0)
            assert not isinstance(caught.value, DependencyError)
    field.close()


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_drain_due_keeps_whose_parent_runs(queue: str):
    """Under "due" the child of a running job runs after it, and is cancelled if it fails."""
    field = Field(f"threaded-{queue}")
    gate, started = threading.Event(), threading.Barrier(3)

    def task(outcome: str) -> None:
        started.wait(PATIENCE)
        gate.wait(PATIENCE)
        if outcome == "failed":
            raise Boom

    good, bad = (field.scheduler.submit(task, outcome) for outcome in ("done", "failed"))
    started.wait(PATIENCE)
    jobs = [field.scheduler.options(after=parent).submit(lambda: 7) for parent in (good, bad)]
    field.scheduler.shutdown(wait=False, drain="due")
    assert [job.status for job in jobs] == [PENDING] * 2
    gate.set()
    field.go()
    assert jobs[0].result(5) == 7
    with pytest.raises(DependencyError):
        jobs[1].result(5)
    assert isinstance(bad.exception(), Boom)
    field.close()


def test_drain_due_ends_a_chain_in_backoff(field: Field):
    """Under "due" a parent in backoff ends FAILED, and those that wait for it are cancelled."""
    parent = field.scheduler.options(retries=1, backoff=5).submit(boom)
    field.go()
    jobs = [field.scheduler.options(after=parent, after_any_outcome=flag).submit(int) for flag in (False, True)]
    field.scheduler.shutdown(wait=False, drain="due")
    field.go()
    assert parent.status is FAILED
    assert isinstance(parent.exception(0), Boom)
    assert [job.status for job in jobs] == [CANCELLED] * 2


def test_drain_due_cancels_dependents_before_their_parent_in_backoff_fails(field: Field):
    """Its end would let go whom any outcome will do, and a worker could have started that by then."""
    parent = field.scheduler.options(retries=1, backoff=5).submit(boom)
    field.go()
    child = field.scheduler.options(after=parent, after_any_outcome=True).submit(int)
    seen: list[Any] = []
    parent.add_done_callback(lambda parent: seen.append((parent.exception(), child.status)))
    field.scheduler.shutdown(wait=False, drain="due")
    field.go()
    assert [(type(error), status) for error, status in seen] == [(Boom, CANCELLED)]


@pytest.mark.parametrize("drain", ["due", "none"])
def test_shutdown_of_a_long_chain_lets_nobody_go(field: Field, drain: Any):
    """However many batches a cancelling shutdown needs, no member is let go by the end of another."""
    job: Any = field.scheduler.options(delay=5).submit(int)
    ran: list[int] = []
    for number in range(1_000):
        job = field.scheduler.options(after=job, after_any_outcome=True).submit(ran.append, number)
    field.scheduler.shutdown(wait=False, drain=drain)
    field.go(5)
    assert ran == []
    assert field.scheduler.stats().cancelled == 1_001


def test_workers_finish_an_interrupted_give_up():
    """A "due" shutdown by code that interrupted the scheduler leaves the waiting jobs to the workers."""
    field = Field("threaded-lazy")
    foreign: Future[int] = Future()
    job = field.scheduler.options(after=foreign).submit(int)
    with field.scheduler._runtime.lock:  # as a signal handler would find it
        field.scheduler.shutdown(wait=False, drain="due")
    with pytest.raises(CancelledError):
        job.result(5)
    field.scheduler.shutdown(timeout=5)
    field.close()


def test_workers_sleep_while_a_kept_job_waits(monkeypatch: pytest.MonkeyPatch):
    """Under "due", with a job kept back for a running parent, idle workers sleep and do not look again and again."""
    field = Field("threaded-lazy", workers=3)
    gate, started = threading.Event(), threading.Event()
    parent = field.scheduler.submit(lambda: (started.set(), gate.wait(PATIENCE)))
    assert started.wait(PATIENCE)
    job = field.scheduler.options(after=parent).submit(lambda: 7)
    field.scheduler.shutdown(wait=False, drain="due")
    passes: list[int] = []
    spinning = threading.Event()
    real = Runtime.give_up_rest

    def counted(runtime: Runtime) -> None:
        passes.append(1)
        if len(passes) > 20:
            spinning.set()
        real(runtime)

    monkeypatch.setattr(Runtime, "give_up_rest", counted)
    assert not spinning.wait(0.05)
    gate.set()
    assert job.result(5) == 7
    field.scheduler.shutdown(timeout=5)
    field.close()


# ---------------------------------------------------------------- what is kept alive


class Big:
    """A result or argument that weak references can watch."""


def test_parents_are_dropped_when_they_have_ended(field: Field):
    """A job that waits for its time does not keep the parents that have ended, nor do its options or its record."""
    gc.disable()
    try:
        parents: list[Any] = [field.scheduler.options(delay=1).submit(Big), Future()]
        job = field.scheduler.options(after=parents, delay=5, id="named", retries=1).submit(int)
        watched = [weakref.ref(parent) for parent in parents]
        parents.pop().set_result(1)
        field.go(1)
        parents.clear()
        field.go(1)
        assert [ref() for ref in watched] == [None, None]
        field.go(3)
        assert job.status is DONE
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["cancel", "claim", "doomed"])
def test_parents_are_dropped_when_the_job_leaves(field: Field, how: str):
    """A job that is cancelled, claimed or doomed drops its open parents at once, outside of the lock."""
    gc.disable()
    try:
        seen: list[bool] = []
        runtime = field.scheduler._runtime
        foreign: Any = Future()
        weakref.finalize(foreign, lambda: seen.append(runtime.lock._is_owned()))
        parent = field.scheduler.options(delay=2).submit(int)
        bad = field.scheduler.options(delay=1).submit(boom)
        job = field.scheduler.options(after=[parent, foreign, bad]).submit(int)
        del foreign
        assert seen == []
        if how == "doomed":
            field.go(1)
        else:
            assert getattr(job, how)()
            field.go()  # a worker that came for the outbox at the same time has dropped what it took
        assert seen == [False]
        assert job.status is (RUNNING if how == "claim" else CANCELLED)
        if how == "claim":
            job.set_result(1)
        field.go(2)
        assert isinstance(bad.exception(0), Boom)
    finally:
        gc.enable()


def test_dependents_do_not_pile_up_on_a_long_lived_parent(field: Field):
    """Cancelled dependents leave nothing on their parents: neither on a job, nor on a foreign future."""
    foreign: Future[int] = Future()
    parent = field.scheduler.options(delay=50).submit(int)
    options = field.scheduler.options(after=[parent, foreign])
    gone = []
    for _ in range(2_000):
        job = options.submit(int)
        gone.append(weakref.ref(job))
        assert job.cancel()
        del job
    assert parent._attached is not None
    assert [len(rule.waiting) for rule in parent._attached.rules] == [0]
    assert len(foreign._done_callbacks) == 1  # type: ignore[attr-defined]
    assert len([ref for ref in gone if ref() is not None]) <= 1


def test_callback_on_a_foreign_future_keeps_nothing_alive():
    """A foreign future that outlives the scheduler keeps neither it nor its jobs."""
    foreign: Future[int] = Future()
    scheduler = StepScheduler()
    job = scheduler.options(after=foreign).submit(int)
    watched = [weakref.ref(thing) for thing in (scheduler, scheduler._runtime, job)]
    job.cancel()
    del scheduler, job
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
    foreign.set_result(1)  # and its end finds nobody


def test_dropped_scheduler_serves_its_waiting_jobs():
    """A scheduler that is dropped finishes the jobs that wait for a foreign future, then its threads end."""
    foreign: Future[int] = Future()
    scheduler = Scheduler(1)
    job = scheduler.options(after=foreign).submit(lambda: 7)
    del scheduler
    gc.collect()
    foreign.set_result(1)
    assert job.result(5) == 7


def test_settled_job_is_freed_without_the_collector(field: Field):
    """The rules of a dependency make no reference cycle: parent and child go when nobody holds them."""
    gc.collect()
    gc.disable()
    try:
        parent = field.scheduler.options(delay=1).submit(int)
        child = field.scheduler.options(after=parent).submit(int)
        fallen = field.scheduler.options(after=field.scheduler.options(delay=1).submit(boom)).submit(int)
        watched = [weakref.ref(job) for job in (parent, child, fallen)]
        field.go(1)
        assert (child.status, fallen.status) == (DONE, CANCELLED)
        del parent, child, fallen
        field.scheduler.submit(int)  # a worker drops its last job when it takes another
        field.go()
        assert [ref() for ref in watched] == [None] * 3
    finally:
        gc.enable()


# ---------------------------------------------------------------- fork


@pytest.mark.subprocess
def test_fork_cancels_dependents_with_the_rest():
    """In a forked child waiting jobs are CANCELLED; the parent's go on; the child's own parents work."""
    run_script(
        """
        import os
        from concurrent.futures import Future
        from threadsched import Scheduler

        scheduler = Scheduler(2)
        foreign = Future()
        parent = scheduler.options(delay=0.3).submit(int)
        job = scheduler.options(after=[parent]).submit(lambda: 7)
        other = scheduler.options(after=[foreign], after_any_outcome=True).submit(lambda: 8)
        child = os.fork()
        if child == 0:
            assert job.cancelled() and other.cancelled() and parent.cancelled()
            assert scheduler.stats().waiting == 0
            assert job._attached.rules == parent._attached.rules == ()  # and keep nobody alive
            foreign.set_result(1)
            late = scheduler.options(after=parent).submit(int)
            assert late.cancelled(), late
            first = scheduler.options(delay=0.05).submit(int)
            assert scheduler.options(after=[first, foreign]).submit(lambda: 9).result(5) == 9
            scheduler.check()
            scheduler.shutdown()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        foreign.set_result(1)
        assert (job.result(5), other.result(5)) == (7, 8)
        scheduler.shutdown()
        """
    )


@pytest.mark.subprocess
def test_exit_with_waiting_jobs():
    """An interpreter that exits runs the children of what is ready and cancels those of foreign futures, promptly."""
    done = run_script(
        """
        import os
        from concurrent.futures import Future
        from threadsched import Scheduler

        scheduler = Scheduler(1)
        parent = scheduler.submit(int)
        scheduler.options(after=parent).submit(os.write, 1, b"child\\n")
        foreign = Future()
        job = scheduler.options(after=foreign).submit(os.write, 1, b"never\\n")
        job.add_done_callback(lambda job: os.write(1, b"cancelled\\n"))
        """
    )
    assert sorted(done.stdout.splitlines()) == ["cancelled", "child"]
    assert done.stderr == ""


# ---------------------------------------------------------------- races


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads switch every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race(*actions: Any) -> None:
    """Run each action on a thread of its own; they start together."""
    barrier = threading.Barrier(len(actions))
    faults: list[BaseException] = []

    def run(action: Any) -> None:
        barrier.wait(PATIENCE)
        try:
            action()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert faults == []


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("outcome", ["done", "failed", "cancelled"])
@pytest.mark.parametrize("kind", ["own", "foreign", "other"])
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_submission_against_the_end_of_its_parent(queue: Any, kind: str, outcome: str):
    """Whenever a parent ends while dependents are submitted, each of them ends as the table says."""
    scheduler, other = Scheduler(2, queue=queue, history=0), StepScheduler()
    for _ in range(25):
        parent: Any = (
            Future() if kind == "foreign" else (scheduler if kind == "own" else other).options(delay=1000).submit(int)
        )
        jobs: list[Job[int]] = []

        def submit(parent: Any = parent, jobs: list[Job[int]] = jobs) -> None:
            for flag in (False, True, False):
                jobs.append(scheduler.options(after=[parent], after_any_outcome=flag).submit(lambda: 7))

        def end(parent: Any = parent) -> None:
            if outcome == "cancelled":
                assert parent.cancel()
                return
            if kind != "foreign":
                assert parent.claim()
            parent.set_result(1) if outcome == "done" else parent.set_exception(Boom())

        race(submit, submit, end)
        ended: list[int | None] = []
        for job in jobs:
            try:
                ended.append(job.result(5))
            except DependencyError:
                ended.append(None)
        assert ended.count(7) == (6 if outcome == "done" else 2)
        if outcome == "failed":
            assert isinstance(parent.exception(0), Boom)
        scheduler.check()
    assert scheduler.stats().waiting == 0
    scheduler.shutdown()


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_cancel_against_the_end_of_the_parent(queue: Any):
    """A dependent that is cancelled while its parent ends either runs or is cancelled, and is told of once."""
    scheduler = Scheduler(2, queue=queue, history=0)
    for _ in range(60):
        foreign: Future[int] = Future()
        runs: list[int] = []
        job = scheduler.options(after=foreign).submit(runs.append, 1)
        told = Told(job)
        answers: list[bool] = []
        race(
            lambda answers=answers, job=job: answers.append(scheduler.cancel(job.id)),
            lambda foreign=foreign: foreign.set_result(1),
        )
        assert scheduler.wait_idle(5)
        assert len(runs) + answers.count(True) == 1
        assert told.heard.wait(PATIENCE)
        assert told.seen == [DONE if runs else CANCELLED]
        scheduler.check()
    scheduler.shutdown()


@pytest.mark.usefixtures("switching")
def test_wide_cascade_with_many_workers():
    """Many workers that tell of a failure's dependents at once tell each of them once."""
    scheduler = Scheduler(8, history=0)
    foreign: Future[int] = Future()
    options = scheduler.options(after=foreign)
    jobs = [options.submit(int) for _ in range(3_000)]
    counts = [0] * len(jobs)

    def count(number: int) -> None:
        counts[number] += 1

    for number, job in enumerate(jobs):
        job.add_done_callback(lambda _, number=number: count(number))  # type: ignore[misc]
    race(lambda: foreign.set_exception(Boom()), *[lambda: [scheduler.submit(int) for _ in range(50)]] * 3)
    assert scheduler.wait_idle(10)
    scheduler.check()
    scheduler.shutdown()  # whoever tells has told
    assert set(counts) == {1}


# ---------------------------------------------------------------- interrupts


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_ctrl_c_while_dependents_are_told(kind: str, monkeypatch: pytest.MonkeyPatch):
    """If Ctrl-C strikes while a parent tells its dependents, the next look at the queue finds them."""
    scheduler = StepScheduler()
    parent: Any = scheduler.submit(int) if kind == "own" else Future()
    jobs = [scheduler.options(after=parent).submit(lambda: 7) for _ in range(3)]
    strikes = [1]
    real = Core.release

    def struck(self: Core, job: Job[Any]) -> None:
        if strikes and job is jobs[1]:
            strikes.pop()
            raise KeyboardInterrupt
        real(self, job)

    monkeypatch.setattr(Core, "release", struck)
    with pytest.raises(KeyboardInterrupt):
        scheduler.tick() if kind == "own" else parent.set_result(1)
    scheduler.drain()
    assert [job.status for job in jobs] == [DONE] * 3
    scheduler.check()


def test_submission_broken_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """If Ctrl-C strikes after a waiting job was held and before it is accepted, no trace of it is left."""
    scheduler = StepScheduler()
    parent = scheduler.submit(int)
    real = Core.enter

    def struck(self: Core, job: Job[Any], seq: int) -> bool:
        real(self, job, seq)
        raise KeyboardInterrupt

    monkeypatch.setattr(Core, "enter", struck)
    with pytest.raises(KeyboardInterrupt):
        scheduler.options(after=parent).submit(int)
    monkeypatch.undo()
    assert (scheduler.stats().submitted, scheduler.stats().waiting) == (1, 0)
    scheduler.drain()
    assert parent.status is DONE
    scheduler.check()


def test_end_of_a_foreign_parent_inside_the_lock():
    """A handler that interrupts the scheduler may end a foreign parent: decided at once, told by a worker."""
    scheduler = Scheduler(1)
    good: Future[int] = Future()
    bad: Future[int] = Future()
    job, fallen = (scheduler.options(after=parent).submit(lambda: 7) for parent in (good, bad))
    with scheduler._runtime.lock:  # as a signal handler would find it
        good.set_result(1)
        bad.set_exception(Boom())
    assert job.result(5) == 7
    with pytest.raises(DependencyError):
        fallen.result(5)
    scheduler.shutdown()


def test_stepped_scheduler_takes_up_what_a_handler_left():
    """In the stepped scheduler it is the next tick that cancels whom such an end dooms."""
    scheduler = StepScheduler()
    bad: Future[int] = Future()
    fallen = scheduler.options(after=bad).submit(int)
    with scheduler._runtime.lock:
        bad.set_exception(Boom())
    assert fallen.status is PENDING
    assert fallen.explain()[0].detail == "a parent did not end DONE: about to be cancelled"
    assert scheduler.tick() == []
    assert fallen.status is CANCELLED


# ---------------------------------------------------------------- the audit


def test_audit_notices_an_edge_known_to_one_side_only():
    """`check` fails if a parent does not know a job that waits for it, or knows one that does not."""
    scheduler = StepScheduler()
    foreign: Future[int] = Future()
    parent = scheduler.submit(int)
    job = scheduler.options(after=[parent, foreign]).submit(int)
    scheduler.check()
    assert parent._attached is not None
    assert job._attached is not None
    (told,), (rule,) = parent._attached.rules, job._attached.rules
    assert (type(told), type(rule)) == (Dependents, Parents)
    told.waiting.clear()
    with pytest.raises(InvariantError, match="does not know of it"):
        scheduler.check()
    told.waiting[job.seq] = job
    scheduler.check()
    teller = rule.foreign[id(foreign)][1]
    teller.waiting.clear()
    with pytest.raises(InvariantError, match="foreign"):
        scheduler.check()
    teller.waiting[job.seq] = job
    told.waiting[parent.seq] = parent
    with pytest.raises(InvariantError, match="does not wait for it"):
        scheduler.check()
    del told.waiting[parent.seq]
    scheduler.drain(limit=1)
    rule.own[parent.seq] = parent
    with pytest.raises(InvariantError, match="which has ended"):
        scheduler.check()

"""A bounded queue: the five rules of `on_full`, and what a rule may not do."""

import asyncio
import concurrent.futures
import queue as queues
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import make_job
from tests.gates import PATIENCE, Gate, occupied
from tests.producers import make
from threadsched import (
    AgingPolicy,
    FifoPolicy,
    Job,
    JobDroppedError,
    JobStatus,
    PriorityPolicy,
    QueueFullError,
    Scheduler,
    SchedulerClosedError,
    _full,
    current_job,
)
from threadsched._core import Core
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])
DROPS = ["drop_oldest", "drop_lowest"]


@both
def test_sub_12_reject(queue: Any):
    """The call is refused, what was accepted is untouched and completes, and nothing is left of the refused job."""
    with make("reject", queue=queue) as s:
        with occupied(s):
            kept = s.submit(int)
            with pytest.raises(queues.Full, match="max_pending=1"):
                s.options(id="refused").submit(int)
            assert s.get("refused") is None
            assert s.stats().pending == 1
            s.check()
        assert kept.result(PATIENCE) == 0
        assert s.options(id="refused").submit(int).result(PATIENCE) == 0


@both
def test_sub_12_drop_oldest(queue: Any):
    """The oldest waiting job never runs and its future says why; the new one runs. Callbacks are called."""
    ran: list[str] = []
    told: list[Any] = []
    with make("drop_oldest", 2, queue=queue) as s:
        with occupied(s):
            old = s.submit(ran.append, "old")
            old.add_done_callback(told.append)
            middle = s.submit(ran.append, "middle")
            new = s.submit(ran.append, "new")
            assert told == [old]
            with pytest.raises(JobDroppedError, match="2 jobs were pending, and it had waited longest"):
                old.result(0)
            assert (old.status, s.stats().pending) == (JobStatus.CANCELLED, 2)
            s.check()
        concurrent.futures.wait([middle, new], PATIENCE)
    assert ran == ["middle", "new"]


@both
def test_sub_12_caller_runs(queue: Any):
    """The task runs on the submitting thread, as that job, and the queue is untouched."""
    where: list[Any] = []

    def task() -> None:
        job = current_job()
        assert job is not None
        where.append((threading.get_ident(), job.status, s.stats().running, job.info().worker))

    with make("caller_runs", queue=queue) as s:
        with occupied(s):
            kept = s.submit(int)
            job = s.submit(task)
            assert job.status is JobStatus.DONE
            assert not kept.done()
            s.check()
        assert current_job() is None
    assert where == [(threading.get_ident(), JobStatus.RUNNING, 2, threading.current_thread().name)]


def test_sub_12_drop_lowest():
    """The job that the policy ranks last gives way, be it delayed or ready; the newcomer, if that is itself last."""
    with make("drop_lowest", 3) as s:
        with occupied(s):
            ready = s.options(priority=3).submit(int)
            lowest = s.options(priority=9).submit(int)
            delayed = s.options(priority=7, delay=3600).submit(int)
            new = s.options(priority=4).submit(int)
            with pytest.raises(JobDroppedError, match="ranked last under PriorityPolicy"):
                lowest.result(0)
            newer = s.options(priority=5).submit(int)
            assert delayed.cancelled()
            last = s.options(priority=5, id="last").submit(int)  # an equal that came later is last
            assert last.cancelled()
            with pytest.raises(JobDroppedError, match="'last' was dropped"):
                last.result(0)
            assert s.status_of("last") is JobStatus.CANCELLED
            assert s.stats().cancelled == 3
            s.check()
        for job in (ready, new, newer):
            assert job.result(PATIENCE) == 0


@pytest.mark.parametrize("policy", [AgingPolicy(1), FifoPolicy()], ids=["aging", "fifo"])
def test_drop_lowest_where_the_newcomer_is_always_last(policy: Any):
    """Under an order by age the newcomer is the one to go; its future is settled when `submit` returns."""
    s = StepScheduler(policy=policy, max_pending=2, on_full="drop_lowest", queue="indexed")
    jobs = [s.submit(int) for _ in range(5)]
    assert [job.cancelled() for job in jobs] == [False, False, True, True, True]
    s.check()
    assert len(s.drain()) == 2


def test_drop_lowest_follows_set_priority_and_the_policy():
    """The victim is chosen by the order of the moment, also by `before` and by keys of the user's."""

    class Keys:
        def key(self, job: Job[Any]) -> Any:
            return (-job.priority, "x")

    class Before:
        def before(self, a: Job[Any], b: Job[Any]) -> bool:
            return a.priority < b.priority

    s = StepScheduler(max_pending=3, on_full="drop_lowest", queue="indexed")
    a, b, c = (
        s.options(id=name, priority=priority).submit(int) for name, priority in zip("abc", (1, 2, 3), strict=True)
    )
    assert a.set_priority(8)
    s.options(priority=4).submit(int)
    assert (a.cancelled(), c.cancelled()) == (True, False)
    s.policy = Keys()
    s.options(priority=9).submit(int)
    assert b.cancelled()
    s.policy = Before()
    s.check()
    s.options(priority=0).submit(int)
    assert sorted(job.priority for job in s._runtime.core.pending.values()) == [0, 3, 4]
    s.policy = PriorityPolicy()
    s.check()


@pytest.mark.parametrize("on_full", ["reject", *DROPS, "caller_runs"])
def test_stepped_scheduler_has_the_rules_that_do_not_block(on_full: Any):
    """The same rules without threads; every job that was returned ends."""
    s = StepScheduler(max_pending=3, on_full=on_full, queue="indexed")
    jobs = []
    for number in range(8):
        try:
            jobs.append(s.options(priority=-number).submit(int))
        except QueueFullError:
            assert on_full == "reject"
        assert s.stats().pending <= 3
        s.check()
    s.drain()
    assert all(job.done() for job in jobs)
    assert len(jobs) == (3 if on_full == "reject" else 8)


@pytest.mark.parametrize(
    ("make_one", "error", "words"),
    [
        (lambda: Scheduler(max_pending=0), ValueError, "max_pending must be greater than 0"),
        (lambda: Scheduler(max_pending=-3), ValueError, "-3"),
        (lambda: Scheduler(max_pending=2.5), TypeError, "max_pending must be an int, not 2.5"),
        (lambda: Scheduler(max_pending=True), TypeError, "max_pending must be an int, not True"),
        (lambda: Scheduler(on_full="wait"), ValueError, "on_full must be one of 'block'.*not 'wait'"),
        (lambda: Scheduler(on_full=["block"]), ValueError, "on_full must be one of"),
        (lambda: Scheduler(on_full=None), ValueError, "not None"),
        (lambda: Scheduler(max_pending=3, on_full="drop_lowest"), ValueError, "needs queue='indexed', not 'lazy'"),
        (lambda: StepScheduler(max_pending=3, on_full="block"), ValueError, "must not be 'block'"),
        (lambda: StepScheduler().options(submit_timeout=-1), ValueError, "submit_timeout"),
        (lambda: StepScheduler().options(submit_timeout="1"), TypeError, "submit_timeout"),
    ],
)
def test_bad_values_are_refused(make_one: Callable[[], Any], error: type[Exception], words: str):
    """What makes no bound and no rule is refused at the door, by name."""
    with pytest.raises(error, match=words):
        make_one()


def test_caller_runs_only_what_could_start_at_once():
    """A delayed job, a pause, a coroutine inside a running loop: QueueFullError, and nothing is left."""
    with make("caller_runs") as s, occupied(s):
        s.submit(int)
        with pytest.raises(QueueFullError, match="could start at once"):
            s.options(delay=1, id="x").submit(int)
        s.pause()
        with pytest.raises(QueueFullError):
            s.options(id="x").submit(int)
        s.resume()
        assert s.options(id="x").submit(int).done()
        s.check()


def test_caller_runs_no_coroutine_inside_a_loop(monkeypatch: pytest.MonkeyPatch):
    """On a thread whose event loop runs, a coroutine cannot be run: QueueFullError rather than a stopped loop."""
    monkeypatch.setattr(_full, "is_asynchronous", lambda fn: fn is int)

    async def inside() -> None:
        with pytest.raises(QueueFullError, match="running event loop"):
            s.submit(int)
        assert s.submit(str).done()

    with make("caller_runs") as s, occupied(s):
        s.submit(int)
        asyncio.run(inside())
        assert s.submit(int).done()


def test_caller_runs_fails_and_retries_like_any_job():
    """The task's error is its job's, not the submitter's; a retry goes through the queue."""
    clock = FakeClock()
    with make("caller_runs", clock=clock) as s:
        gate = Gate()
        s.submit(gate)
        gate.await_start()
        s.submit(int)
        failed = s.submit(int, "x")
        assert isinstance(failed.exception(0), ValueError)
        again = s.options(retries=1, backoff=1).submit(int, "x")
        assert (again.status, again.attempts) == (JobStatus.PENDING, 1)
        gate.open()
        clock.advance(1)
        assert isinstance(again.exception(PATIENCE), ValueError)
        assert again.attempts == 2
        s.check()


def test_caller_runs_inside_itself():
    """A task that submits to the full queue runs what it submits, nested, each as its own job."""
    seen: list[Any] = []

    def outer() -> None:
        before = current_job()
        inner = s.submit(lambda: seen.append(current_job()))
        assert inner.done()
        assert seen == [inner]
        assert current_job() is before

    with make("caller_runs") as s, occupied(s):
        s.submit(int)
        assert s.submit(outer).exception(0) is None


def test_ctrl_c_in_a_task_of_the_callers_is_not_swallowed():
    """The job fails with it, and the submitting main thread gets it."""
    with make("caller_runs") as s, occupied(s):
        s.submit(int)
        job: list[Any] = []

        def strike() -> None:
            job.append(current_job())
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            s.submit(strike)
        assert isinstance(job[0].exception(0), KeyboardInterrupt)
        s.check()


@pytest.mark.parametrize("on_full", ["drop_oldest", "drop_lowest", "caller_runs"])
def test_rule_after_the_door_closed(on_full: Any):
    """A full and closed scheduler is closed first of all; nobody is dropped for a job that is refused."""
    s = make(on_full)
    with occupied(s):
        kept = s.submit(int)
        s.shutdown(wait=False)
        with pytest.raises(SchedulerClosedError):
            s.submit(int)
        assert not kept.done()
    s.shutdown()


def test_no_cost_and_no_gate_without_a_bound():
    """A scheduler without `max_pending` has no gate at all."""
    s = StepScheduler()
    s.submit(int)
    s.drain()
    assert s._runtime.core.gate is None


@pytest.mark.parametrize("retries", [0, 1])
def test_interrupt_beside_the_callers_task(monkeypatch: pytest.MonkeyPatch, retries: int):
    """Ctrl-C between the start and the task ends the job with it: none runs for ever with nobody to run it."""

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    with make("caller_runs") as s, occupied(s):
        s.submit(int)
        monkeypatch.setattr(_full._outcome, "run_attempt", strike)
        with pytest.raises(KeyboardInterrupt):
            s.options(id="struck", retries=retries).submit(int)
        assert s.status_of("struck") is JobStatus.FAILED
        assert s.stats().running == 1
        s.check()


@pytest.mark.parametrize("on_full", ["drop_lowest", "caller_runs"])
def test_interrupt_while_a_newcomer_is_decided(monkeypatch: pytest.MonkeyPatch, on_full: Any):
    """Ctrl-C before the newcomer was dropped or started leaves nothing of it, and its id is free."""

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    with make(on_full) as s, occupied(s):
        kept = s.submit(int)
        with monkeypatch.context() as patch:
            if on_full == "drop_lowest":
                patch.setattr(Core, "cancel", strike)
            else:
                patch.setattr(Job, "_claim", strike)
            with pytest.raises(KeyboardInterrupt):
                s.options(id="struck").submit(int)
        assert s.status_of("struck") is None
        assert s.stats().submitted == 2
        s.check()
        s.options(id="struck").submit(int)
        assert not kept.done()


class Never:
    """A rule that says no, and counts what it is told."""

    def __init__(self, admits: bool) -> None:
        self.admitting = admits
        self.told: list[str] = []

    def admits(self, job: Job[Any]) -> bool:
        return self.admitting

    def may_start(self, job: Job[Any], now: float) -> bool:
        return False

    def started(self, job: Job[Any], now: float) -> None:
        self.told.append("started")

    def ended(self, job: Job[Any], now: float) -> None:
        self.told.append("ended")


@pytest.mark.parametrize("admits", [False, True])
def test_caller_runs_nothing_that_a_rule_holds_back(admits: bool):
    """A job with an open parent or a limit without room is not run; the rules that were asked are told of its end."""
    s = StepScheduler(max_pending=1, on_full="caller_runs")
    job = make_job(id="held")
    job._runtime = s._runtime
    yes, no = Never(True), Never(admits)
    yes.may_start = lambda job, now: True  # type: ignore[method-assign]
    unasked = Never(True)
    job._attach().rules = (yes, no, unasked)
    assert not _full.claim_newcomer(s._runtime.core, job, "held", 0.0, None)
    assert (yes.told, no.told, unasked.told) == (["ended"], ["ended"], [])
    assert s.get("held") is None
    s.check()

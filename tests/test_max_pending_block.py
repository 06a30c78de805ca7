"""Producers that block at a full queue: order, grants, interruptions, shutdown, storms."""

import concurrent.futures
import os
import signal
import threading
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, occupied
from tests.producers import Asleep, Call, hasty_switches, together
from tests.support import run_script
from threadsched import (
    DuplicateJobError,
    Job,
    JobStatus,
    QueueFullError,
    Scheduler,
    SchedulerClosedError,
)
from threadsched._gate import RULES
from threadsched._gate import Gate as Bound
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])
DROPS = ["drop_oldest", "drop_lowest"]


def make(on_full: Any, max_pending: int = 1, workers: int = 1, **more: Any) -> Scheduler:
    more.setdefault("queue", "indexed")
    return Scheduler(workers, max_pending=max_pending, on_full=on_full, **more)


def line(s: Scheduler) -> dict[Any, Any]:
    gate = s._runtime.core.gate
    assert gate is not None
    return gate.line


def test_blocked_producer_gets_the_place_of_a_started_job(monkeypatch: pytest.MonkeyPatch):
    """`submit` returns when a job has started, not when it has ended."""
    asleep = Asleep(monkeypatch)
    first, second = Gate(), Gate()
    with make("block") as s:
        s.submit(first)
        first.await_start()
        s.submit(second)
        call = Call(s.submit, int)
        asleep.await_one()
        assert not call.over
        s.check()
        first.open()
        second.await_start()
        job = call.outcome()
        second.open()
        assert job.result(PATIENCE) == 0
        s.check()


@pytest.mark.parametrize("how", ["cancel", "clear", "claim", "drop the job's id", "request"])
def test_f52_whatever_frees_a_place_wakes_a_producer(monkeypatch: pytest.MonkeyPatch, how: str):
    """A cancel of any kind, and a claim by hand, free the place at once; nothing else has to happen."""
    asleep = Asleep(monkeypatch)
    with make("block") as s, occupied(s):
        queued = s.options(id="queued").submit(int)
        call = Call(s.submit, int)
        asleep.await_one()
        {
            "cancel": queued.cancel,
            "clear": s.clear,
            "claim": queued.claim,
            "drop the job's id": lambda: s.cancel("queued"),
            "request": queued.request_cancel,
        }[how]()
        job = call.outcome()
        assert not job.done()
        if how == "claim":
            queued.set_result(1)
        s.check()


def test_producers_are_served_in_the_order_they_came(monkeypatch: pytest.MonkeyPatch):
    """First come, first served; a newcomer queues behind them although there is a place for the first."""
    asleep = Asleep(monkeypatch)
    s = make("block")
    s.pause()
    queued = [s.submit(int)]
    calls = []
    for number in range(5):
        calls.append(Call(s.options(id=str(number)).submit, int))
        asleep.await_one()
    for number, call in enumerate(calls):
        assert queued.pop().cancel()
        job = call.outcome()
        assert job.id == str(number)
        queued.append(job)
        assert sum(call.over for call in calls) == number + 1
        s.check()
    assert s.shutdown(drain="none")


def test_grant_counts_as_taken_before_its_producer_wakes():
    """A newcomer does not get the place that was granted to the first in line but not entered yet."""
    bound = Bound(2)
    jobs: list[Any] = [StepScheduler().submit(int) for _ in range(4)]

    class Token:
        released = 0

        def release(self) -> None:
            self.released += 1

    tokens = [Token() for _ in jobs]
    for job, token in zip(jobs, tokens[:2], strict=False):
        assert not bound.admits(job, range(2))
        bound.line[job] = token
    assert not bound.admits(jobs[2], range(0))  # a place that nobody has granted yet, after an interrupt
    bound.freed(range(1))
    assert (tokens[0].released, tokens[1].released) == (1, 0)
    assert not bound.admits(jobs[2], range(1))
    bound.withdraw(jobs[0], range(1))  # interrupted: hands it on
    assert tokens[1].released == 1
    assert not bound.admits(jobs[2], range(1))
    assert bound.admits(jobs[1], range(1))
    assert not bound.admits(jobs[2], range(2))
    assert bound.admits(jobs[2], range(1))
    bound.check_invariants(range(2), closed=False)


def test_submit_timeout(monkeypatch: pytest.MonkeyPatch):
    """After `submit_timeout` real seconds: QueueFullError, and its place goes to the next; 0 never waits."""
    asleep = Asleep(monkeypatch)
    with make("block", clock=FakeClock()) as s:
        s.pause()
        queued = s.submit(int)
        with pytest.raises(QueueFullError, match="within 0 s"):
            s.options(submit_timeout=0).submit(int)
        first = Call(s.options(submit_timeout=0.05).submit, int)
        asleep.await_one()
        second = Call(s.submit, int)
        asleep.await_one()
        with pytest.raises(QueueFullError, match=r"within 0\.05 s"):
            first.outcome()
        assert not second.over
        queued.cancel()
        second.outcome()
        assert not line(s)
        s.check()


def test_refused_producer_hands_its_grant_on(monkeypatch: pytest.MonkeyPatch):
    """A job whose key raises after the wait leaves its place to the next in line."""
    asleep = Asleep(monkeypatch)
    calls = [0]

    class Policy:
        def key(self, job: Job[Any]) -> float:
            if job.name == "bad":
                calls[0] += 1
                if calls[0] == 2:  # the first one is before the wait
                    raise LookupError("no key")
            return job.priority

    with make("block", policy=Policy()) as s:
        s.pause()
        queued = s.submit(int)
        bad = Call(s.options(name="bad").submit, int)
        asleep.await_one()
        good = Call(s.submit, int)
        asleep.await_one()
        queued.cancel()
        with pytest.raises(LookupError):
            bad.outcome()
        assert not good.outcome().done()
        s.check()


def test_duplicate_neither_waits_nor_drops():
    """An id that is taken is refused at once, whatever the rule; no other job pays for it."""
    for on_full in RULES:
        with make(on_full) as s, occupied(s):
            kept = s.options(id="a").submit(int)
            with pytest.raises((DuplicateJobError, QueueFullError)) as caught:
                s.options(id="a").submit(int)
            assert isinstance(caught.value, QueueFullError if on_full == "reject" else DuplicateJobError)
            assert not kept.done()
            s.check()


@pytest.mark.parametrize("how", ["all", "due", "none", "dropped"])
def test_f52_shutdown_wakes_every_blocked_producer(monkeypatch: pytest.MonkeyPatch, how: Any):
    """All of them get SchedulerClosedError, in each mode, and none leaves a job behind."""
    asleep = Asleep(monkeypatch)
    s = make("block")
    gate = Gate()
    s.submit(gate)
    gate.await_start()
    queued = s.submit(int)
    submitter = s.options()
    calls = []
    for _ in range(3):
        calls.append(Call(submitter.submit, int))
        asleep.await_one()
    if how == "dropped":
        runtime = s._runtime
        del s
    else:
        runtime = s._runtime
        s.shutdown(wait=False, drain=how)
    for call in calls:
        with pytest.raises(SchedulerClosedError):
            call.outcome()
    gate.open()
    concurrent.futures.wait([queued], PATIENCE)
    assert runtime.wait_left(PATIENCE)
    bound = runtime.core.gate
    assert bound is not None
    assert not {**bound.line, **bound.grants}
    assert runtime.core.done + runtime.core.cancelled == 2


def test_broken_scheduler_wakes_the_blocked(monkeypatch: pytest.MonkeyPatch):
    """An initializer that raises refuses those who wait for a place too."""
    asleep = Asleep(monkeypatch)
    go_on = threading.Event()

    def fail() -> None:
        go_on.wait(PATIENCE)
        raise ValueError("no")

    s = make("block", initializer=fail)
    queued = s.submit(int)
    call = Call(s.submit, int)
    asleep.await_one()
    go_on.set()
    with pytest.raises(concurrent.futures.BrokenExecutor):
        call.outcome()
    with pytest.raises(concurrent.futures.BrokenExecutor):
        queued.result(PATIENCE)
    s.shutdown()


def test_f52_job_that_submits_jobs_does_not_hang():
    """On a worker a full queue is QueueFullError at once, not a wait for ever; what fitted runs."""
    outcomes: list[Any] = []

    def parent() -> None:
        for _ in range(3):
            try:
                outcomes.append(s.submit(int))
            except QueueFullError as error:
                outcomes.append(str(error))

    with make("block") as s:
        s.submit(parent).result(PATIENCE)
        assert s.wait_idle(PATIENCE)
    assert ["worker" in str(job) for job in outcomes] == [False, True, True]
    assert outcomes[0].result(0) == 0


def test_worker_of_another_scheduler_may_block(monkeypatch: pytest.MonkeyPatch):
    """Only its own scheduler's queue must not block a worker."""
    asleep = Asleep(monkeypatch)
    with make("block") as s, Scheduler(1) as other, occupied(s):
        queued = s.submit(int)
        call = other.submit(s.submit, int)
        asleep.await_one()
        queued.cancel()
        assert not call.result(PATIENCE).done()


@pytest.mark.parametrize("on_full", ["block", "caller_runs", "reject", *DROPS])
def test_full_queue_under_the_lock(on_full: Any):
    """A submission by code that interrupted the scheduler on its own thread never waits nor runs a task there."""
    with make(on_full) as s, occupied(s):
        s.submit(int)
        with s._runtime.lock:
            if on_full in DROPS:
                job = s.options(priority=-1).submit(int)
            else:
                with pytest.raises(QueueFullError):
                    s.submit(int)
                job = None
        assert job is None or not job.cancelled()
        s.check()


@pytest.mark.parametrize("on_full", RULES)
@both
def test_retry_needs_no_place(on_full: Any, queue: Any):
    """A job goes back for its retry though the queue is full: not blocked, not dropped, and it runs again."""
    if on_full == "drop_lowest" and queue == "lazy":
        return
    clock = FakeClock()
    gate = Gate()
    attempts: list[int] = []

    def task() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            gate()
            raise ValueError("again")

    with make(on_full, queue=queue, clock=clock) as s:
        job = s.options(retries=1, backoff=5).submit(task)
        gate.await_start()
        other = s.options(delay=100).submit(int)
        gate.open()
        clock.advance(0)
        assert (job.status, s.stats().pending) == (JobStatus.PENDING, 2)
        s.check()
        clock.advance(5)
        assert job.result(PATIENCE) is None
        assert not other.done()
        other.cancel()


@both
def test_delayed_and_backoff_count(queue: Any):
    """Every pending job counts, delayed or waiting for a retry; a running one does not."""
    s = StepScheduler(max_pending=2, queue=queue)

    def fail() -> None:
        raise ValueError("again")

    failing = s.options(retries=1, backoff=9).submit(fail)
    s.options(delay=9).submit(int)
    with pytest.raises(QueueFullError):
        s.submit(int)
    s.tick()
    with pytest.raises(QueueFullError):
        s.submit(int)
    s.drain()
    assert isinstance(failing.exception(0), ValueError)
    s.submit(int)


def test_times_count_from_the_acceptance(monkeypatch: pytest.MonkeyPatch):
    """What was blocked starts its delay, its deadline and its expiry when it is accepted."""
    asleep = Asleep(monkeypatch)
    clock = FakeClock()
    with make("block", clock=clock) as s:
        s.pause()
        queued = s.submit(int)
        call = Call(s.options(delay=5, deadline=7, expires=9).submit, int)
        asleep.await_one()
        clock.jump(100)
        queued.cancel()
        job = call.outcome()
        assert (job.submitted_at, job.run_at, job.deadline) == (100, 105, 107)
        assert job.explain()[-1].until == 109
        job.cancel()


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs pthread_kill")
def test_interrupted_producer_hands_its_place_on():
    """Ctrl-C ends a blocked submission of the main thread; the next in line is served, nothing is left."""
    run_script("""
        import signal, threading
        from threadsched import Scheduler, _full
        asleep = threading.Semaphore(0)
        sleep_on = _full.sleep_on
        def counted(token, timeout):
            asleep.release()
            return sleep_on(token, timeout)
        _full.sleep_on = counted
        s = Scheduler(1, max_pending=1)
        s.pause()
        queued = s.submit(int)
        main = threading.main_thread().ident
        jobs = []
        def second():
            assert asleep.acquire(timeout=5)
            helper = threading.Thread(target=lambda: jobs.append(s.submit(int)))
            helper.start()
            assert asleep.acquire(timeout=5)
            signal.pthread_kill(main, signal.SIGINT)
            helper.join(10)
        thread = threading.Thread(target=second)
        thread.start()
        try:
            s.submit(str)
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit("not interrupted")
        s.check()
        assert len(s._runtime.core.gate.line) == 1
        queued.cancel()
        thread.join(10)
        assert len(jobs) == 1 and not s._runtime.core.gate.line and not s._runtime.core.gate.grants
        s.check()
        s.resume()
        s.shutdown()
        assert jobs[0].result() == 0
    """)


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_forgets_the_line():
    """The child's queue is empty and its bound whole, though producers of the parent stood in line."""
    run_script(
        """
        import os, threading
        from threadsched import QueueFullError, Scheduler, _full
        asleep = threading.Semaphore(0)
        sleep_on = _full.sleep_on
        def counted(token, timeout):
            asleep.release()
            return sleep_on(token, timeout)
        _full.sleep_on = counted
        s = Scheduler(1, max_pending=1)
        s.pause()
        queued = s.submit(int)
        producer = threading.Thread(target=s.submit, args=(int,))
        producer.start()
        assert asleep.acquire(timeout=5)
        child = os.fork()
        if child == 0:
            try:
                s.submit(int)
                try:
                    s.options(submit_timeout=0).submit(int)
                except QueueFullError:
                    s.check()
                    s.resume()
                    assert s.wait_idle(5)
                    s.shutdown()
                    os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        s.resume()
        producer.join(5)
        s.shutdown()
    """,
        options=["-W", "ignore"],
    )


@pytest.mark.parametrize("on_full", RULES)
@both
def test_f06_bound_holds_under_a_storm(on_full: Any, queue: Any):
    """Eight producers, two workers, cancels and priorities beside them: never more than the bound, none left open."""
    if on_full == "drop_lowest" and queue == "lazy":
        return
    limit, most = 5, [0]
    counts: list[Job[Any]] = []
    refused: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            most[0] = max(most[0], s.stats().pending)

    def produce(offset: int) -> None:
        for number in range(60):
            try:
                job = s.options(priority=(number + offset) % 7).submit(int)
            except QueueFullError:
                refused.append(1)
                continue
            counts.append(job)
            if number % 5 == 0:
                job.cancel()
            elif number % 7 == 0:
                job.set_priority(number % 3)

    stop = threading.Event()
    with hasty_switches(), make(on_full, limit, workers=2, queue=queue) as s:
        watcher = Call(watch)
        for call in together(*[lambda offset=offset: produce(offset) for offset in range(8)]):
            call.outcome()
        assert s.wait_idle(4 * PATIENCE)
        stop.set()
        watcher.outcome()
        s.check()
        stats = s.stats()
    assert most[0] <= limit
    assert len(counts) + len(refused) == 480
    assert (not refused) or on_full in ("reject", "caller_runs")
    for job in counts:
        assert job.done()
        if job.cancelled():
            with pytest.raises(concurrent.futures.CancelledError):
                job.result(0)
        else:
            assert job.result(0) == 0
    assert stats.submitted == len(counts) == stats.done + stats.cancelled


def test_f06_thousand_jobs_through_a_queue_of_ten():
    """One producer, one worker, bound 10: never more pending, all run, in order."""
    order: list[int] = []
    most: list[int] = []

    def task(number: int) -> None:
        order.append(number)
        most.append(s.stats().pending)

    with make("block", 10) as s:
        for number in range(1000):
            s.submit(task, number)
    assert order == list(range(1000))
    assert max(most) <= 10


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_storm_against_shutdown(drain: Any):
    """Producers that block while the door closes: each is refused or its job ends; nobody hangs."""
    accepted: list[Job[Any]] = []
    with hasty_switches():
        s = make("block", 2, workers=2)

        def produce() -> None:
            try:
                while True:
                    accepted.append(s.submit(int))
                    if len(accepted) > 50:
                        ready.set()
            except SchedulerClosedError:
                pass

        def stop() -> None:
            assert ready.wait(PATIENCE)
            s.shutdown(drain=drain)

        ready = threading.Event()
        for call in together(*[produce] * 6, stop):
            call.outcome()
    assert all(job.done() for job in accepted)
    s.check()

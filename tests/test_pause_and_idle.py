"""`pause`, `resume` and `wait_idle`."""

import concurrent.futures
import random
import threading
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, occupied
from tests.producers import Call, asleep_waiting, hasty_switches, together
from threadsched import JobStatus, PriorityPolicy, Scheduler, SchedulerClosedError
from threadsched._runtime import Runtime
from threadsched.testing import FakeClock, StepScheduler

both = pytest.mark.parametrize("queue", ["lazy", "indexed"])


def kinds(job: Any) -> list[str]:
    return [reason.kind for reason in job.explain()]


# ---------------------------------------------------------------- pause


@both
def test_pau_01_paused_before_the_start(queue: Any):
    """Paused from the beginning, all wait and none runs; resumed, as many run as there are workers."""
    with Scheduler(2, queue=queue) as s:
        s.pause()
        gates = [Gate() for _ in range(4)]
        jobs = [s.submit(gate) for gate in gates]
        s.check()
        stats = s.stats()
        assert (stats.pending, stats.running) == (4, 0)
        assert kinds(jobs[0]) == ["paused"]
        s.resume()
        gates[0].await_start()
        gates[1].await_start()
        stats = s.stats()
        assert (stats.pending, stats.running) == (2, 2)
        assert kinds(jobs[3]) == ["queued"]
        for gate in gates:
            gate.open()
        concurrent.futures.wait(jobs, PATIENCE)
    assert all(job.done() for job in jobs)


def test_pau_02_pause_and_resume_again_and_again():
    """Resuming what is not paused changes nothing; running ones are untouched; resume fills free slots only."""
    with Scheduler(2) as s:
        s.resume()
        with occupied(s, 1) as (running,):
            s.pause()
            s.pause()
            first, second = Gate(), Gate()
            s.submit(first)
            s.submit(second)
            assert running.status is JobStatus.RUNNING
            assert s.stats().pending == 2
            s.resume()
            first.await_start()
            assert s.stats().pending == 1
            s.pause()
            s.resume()
            assert s.stats().running == 2
            first.open()
            second.await_start()
            second.open()
            assert running.status is JobStatus.RUNNING
        assert s.wait_idle(PATIENCE)
        s.check()


def test_pau_03_pause_from_a_task():
    """A task that pauses its own scheduler ends; the next does not start, though time goes on."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        with occupied(s):
            s.submit(s.pause)
            after = s.submit(int)
        clock.advance(100)
        assert after.status is JobStatus.PENDING
        s.resume()
        assert after.result(PATIENCE) == 0


@both
def test_pau_04_fast_cycles(queue: Any):
    """Quick pauses and resumes, from several threads: in the end all have run, none twice."""
    ran: list[int] = []
    with hasty_switches(), Scheduler(2, queue=queue) as s:

        def cycle() -> None:
            for _ in range(50):
                s.pause()
                s.resume()

        def produce() -> None:
            for number in range(100):
                s.submit(ran.append, number)

        for call in together(cycle, cycle, produce):
            call.outcome()
        s.resume()
        assert s.wait_idle(PATIENCE)
        s.check()
    assert sorted(ran) == list(range(100))


@both
def test_f44_pause_is_no_time_out_of_time(queue: Any):
    """While paused due times pass; on resume the one-shots run, late, once, in order; pausing twice is once."""
    clock = FakeClock()
    ran: list[str] = []
    with Scheduler(1, clock=clock, queue=queue) as s:
        s.options(delay=7).submit(ran.append, "7")
        s.options(delay=5).submit(ran.append, "5")
        far = s.options(delay=100).submit(ran.append, "100")
        clock.advance(2)
        s.pause()
        s.pause()
        assert kinds(far) == ["paused", "delayed"]
        clock.advance(58)
        assert ran == []
        assert s.stats().ready == 2  # timers went on: they are due, and promoted
        s.check()
        s.resume()
        clock.advance(0)
        assert ran == ["7", "5"]  # by the policy: equal priorities, submission order
        assert not far.done()
        far.cancel()


def test_pause_keeps_the_policys_order():
    """What became due during a pause starts by the policy, not by the time it became due."""
    clock = FakeClock()
    ran: list[int] = []
    with Scheduler(1, clock=clock, policy=PriorityPolicy()) as s:
        s.pause()
        for number in range(5):
            s.options(delay=number, priority=-number).submit(ran.append, number)
        clock.advance(10)
        s.resume()
        clock.advance(0)
    assert ran == [4, 3, 2, 1, 0]


def test_retry_waits_out_a_pause():
    """A retry whose time comes during a pause is made after it."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        job = s.options(retries=1, backoff=1).submit(int, "x")
        clock.advance(0)
        assert job.attempts == 1
        s.pause()
        assert kinds(job) == ["paused", "retry"]
        clock.advance(10)
        assert job.attempts == 1
        s.resume()
        clock.advance(0)
        assert job.attempts == 2
        assert isinstance(job.exception(0), ValueError)


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shutdown_lifts_a_pause(drain: Any):
    """A paused scheduler shuts down like any other; a closed one cannot be paused again."""
    s = Scheduler(1)
    s.pause()
    job = s.submit(int)
    assert s.shutdown(drain=drain)
    assert job.cancelled() == (drain == "none")
    s.pause()
    assert kinds(job) == ["ended"]
    with pytest.raises(SchedulerClosedError):
        s.submit(int)
    s.check()


def test_leaving_with_lifts_a_pause():
    """So the block ends, and what waited has run."""
    with Scheduler(1) as s:
        s.pause()
        job = s.submit(int)
    assert job.result(0) == 0


def test_cancel_and_claim_during_a_pause():
    """Jobs can be given up, taken and re-ordered while nothing starts."""
    with Scheduler(1) as s:
        s.pause()
        a, b, c = (s.submit(int) for _ in range(3))
        assert a.cancel()
        assert b.claim()
        b.set_result(7)
        assert c.set_priority(1)
        s.check()
        s.resume()
        assert (b.result(0), c.result(PATIENCE)) == (7, 0)


def test_resume_wakes_as_many_as_are_needed(monkeypatch: pytest.MonkeyPatch):
    """Of eight sleepers, resume wakes two for two jobs, and both run at once."""
    with Scheduler(8) as s:
        s.start()
        s.pause()
        gates = [Gate(), Gate()]
        for gate in gates:
            s.submit(gate)
        woken: list[int] = []
        wake = Runtime._wake_locked
        with monkeypatch.context() as patch:
            patch.setattr(Runtime, "_wake_locked", lambda runtime: (woken.append(1), wake(runtime)))
            s.resume()
        count = len(woken)
        for gate in gates:
            gate.await_start()
            gate.open()
        assert count <= 2


def test_pause_under_the_lock():
    """Code that interrupted the scheduler on its own thread may pause and resume it."""
    with Scheduler(1) as s:
        with s._runtime.lock:
            s.pause()
            job = s.submit(int)
            s.resume()
        assert job.result(PATIENCE) == 0


def test_stepped_pause():
    """Without threads: ticks promote and start nothing; resumed, they go on."""
    s = StepScheduler(2)
    job = s.options(delay=1).submit(int)
    s.pause()
    assert s.drain(limit=3) == []
    assert (job.status, s.stats().ready) == (JobStatus.PENDING, 1)
    assert kinds(job) == ["paused"]
    s.check()
    s.resume()
    assert [one.id for one in s.tick()] == [job.id]


# ---------------------------------------------------------------- wait_idle


def test_idl_02_wait_for_idle(monkeypatch: pytest.MonkeyPatch):
    """Returns with nothing waiting and nothing running; again after more work; at once on an idle one."""
    asleep = asleep_waiting(monkeypatch)
    with Scheduler(2) as s:
        assert s.wait_idle(timeout=0) is True
        for _ in range(2):
            gates = [Gate() for _ in range(3)]
            for gate in gates:
                s.submit(gate)
            call = Call(s.wait_idle)
            asleep.await_one()
            for gate in gates[:2]:
                gate.await_start()
                gate.open()
            gates[2].await_start()
            assert s.stats().pending == 0
            assert not call.over  # an empty queue is not idle while a task runs
            gates[2].open()
            assert call.outcome() is True
            stats = s.stats()
            assert (stats.pending, stats.running) == (0, 0)


def test_idl_05_running_ones_end_while_paused(monkeypatch: pytest.MonkeyPatch):
    """Paused with two running and two waiting: a wait for the running ones ends, that for idle does not.

    There is no call that waits for "nothing runs"; `concurrent.futures.wait` on what runs is the way.
    """
    asleep = asleep_waiting(monkeypatch)
    with Scheduler(2) as s:
        with occupied(s, 2) as running:
            s.pause()
            waiting = [s.submit(int) for _ in range(2)]
            idle = [Call(s.wait_idle) for _ in range(3)]
            for _ in idle:
                asleep.await_one()
        assert not concurrent.futures.wait(running, PATIENCE).not_done
        assert not any(call.over for call in idle)
        assert not any(job.done() for job in waiting)
        assert s.wait_idle(timeout=0.01) is False
        s.resume()
        assert [call.outcome() for call in idle] == [True] * 3


def test_idl_06_order_of_the_waits(monkeypatch: pytest.MonkeyPatch):
    """Paused with two running and two waiting, then resumed: the running end first, then empty, idle last."""
    asleep = asleep_waiting(monkeypatch)
    with Scheduler(2) as s:
        with occupied(s, 2) as running:
            s.pause()
            gates = [Gate(), Gate()]
            for gate in gates:
                s.submit(gate)
            empty, idle = Call(s.wait_below, 1), Call(s.wait_idle)
            asleep.await_one()
            asleep.await_one()
        assert not concurrent.futures.wait(running, PATIENCE).not_done
        assert not empty.over
        s.resume()
        assert empty.outcome() is True
        assert not idle.over
        for gate in gates:
            gate.open()
        assert idle.outcome() is True


def test_idl_07_clear_with_one_running(monkeypatch: pytest.MonkeyPatch):
    """Cleared, the queue is empty at once and idle only after the running one; with none running, both at once."""
    asleep = asleep_waiting(monkeypatch)
    with Scheduler(1) as s:
        with occupied(s):
            s.submit(int)
            s.submit(int)
            empty, idle = Call(s.wait_below, 1), Call(s.wait_idle)
            asleep.await_one()
            asleep.await_one()
            assert s.clear() == 2
            assert empty.outcome() is True
            assert not idle.over
        assert idle.outcome() is True
        s.pause()
        s.submit(int)
        empty, idle = Call(s.wait_below, 1), Call(s.wait_idle)
        asleep.await_one()
        asleep.await_one()
        s.clear()
        assert (empty.outcome(), idle.outcome()) == (True, True)


def test_can_08_clear_leaves_the_running():
    """Two of six run: cleared, nothing waits, and the two go on to their results."""
    with Scheduler(2) as s:
        gates = [Gate() for _ in range(6)]
        jobs = [s.submit(gate, number) for number, gate in enumerate(gates)]
        gates[0].await_start()
        gates[1].await_start()
        assert s.clear() == 4
        assert s.stats().pending == 0
        for gate in gates:
            gate.open()
        assert [job.result(PATIENCE) for job in jobs[:2]] == [0, 1]
        assert s.wait_idle(PATIENCE)


@pytest.mark.parametrize("paused", [False, True])
def test_can_09_futures_of_cleared_jobs_end(monkeypatch: pytest.MonkeyPatch, paused: bool):
    """Who waits for a cleared job gets CancelledError, by `result`, `wait` and callback; nobody waits for ever."""
    asleep = asleep_waiting(monkeypatch)
    told: list[Any] = []
    with Scheduler(1) as s, occupied(s):
        if paused:
            s.pause()
        jobs = [s.submit(int) for _ in range(3)]
        jobs[1].add_done_callback(told.append)
        call = Call(jobs[0].result)
        asleep.await_one()
        assert s.clear() == 3
        with pytest.raises(concurrent.futures.CancelledError):
            call.outcome()
        assert not concurrent.futures.wait(jobs, PATIENCE).not_done
        assert told == [jobs[1]]


def test_wait_idle_counts_delayed_jobs_and_retries():
    """What is still to come is pending; idle is when all of it has ended."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        s.options(delay=10).submit(int)
        job = s.options(retries=1, backoff=20).submit(int, "x")
        clock.advance(0)
        assert s.wait_idle(timeout=0) is False
        clock.advance(10)
        assert s.wait_idle(timeout=0) is False
        clock.advance(10)
        assert s.wait_idle(timeout=PATIENCE) is True
        assert isinstance(job.exception(0), ValueError)


@pytest.mark.parametrize("ends", ["a failure", "a cancel", "a claim", "shutdown", "a drop"])
def test_wait_idle_however_the_last_job_ends(monkeypatch: pytest.MonkeyPatch, ends: str):
    """Whatever ends the last job tells the waiters."""
    asleep = asleep_waiting(monkeypatch)
    s = Scheduler(1, max_pending=1, on_full="drop_oldest")
    s.pause()
    job = s.submit(int, "x")
    call = Call(s.wait_idle)
    asleep.await_one()
    if ends == "a failure":
        s.resume()
    elif ends == "a cancel":
        job.cancel()
    elif ends == "a claim":
        assert job.claim()
        assert not call.over
        job.set_result(0)
    elif ends == "a drop":
        s.submit(int)
        assert job.cancelled()
        assert not call.over
        s.resume()
    else:
        s.shutdown(drain="none")
    assert call.outcome() is True
    job.cancelled() or job.exception(PATIENCE)
    s.shutdown()


def test_wait_idle_in_a_storm():
    """Whenever it returns True, what was submitted before by the same thread has ended."""
    with hasty_switches(), Scheduler(3) as s:

        def work(seed: int) -> None:
            choose = random.Random(seed)
            for _ in range(15):
                jobs = [s.submit(int) for _ in range(choose.randrange(1, 6))]
                if choose.random() < 0.3:
                    jobs[0].cancel()
                assert s.wait_idle(PATIENCE)
                assert all(job.done() for job in jobs)

        for call in together(*[lambda seed=seed: work(seed) for seed in range(4)]):
            call.outcome()
        s.check()


def test_wait_idle_under_the_lock_raises():
    """Code that interrupted the scheduler cannot wait for it; nothing stays registered."""
    with Scheduler(1) as s:
        s.pause()
        s.submit(int)
        with s._runtime.lock, pytest.raises(RuntimeError, match="cannot wait here"):
            s.wait_idle()
        assert not s._runtime.idle_waiters


def test_idle_pool_that_is_paused_makes_no_wake_up():
    """Paused with work waiting, every worker sleeps: turns stand still."""
    with Scheduler(3) as s:
        gate = Gate()
        s.submit(gate)
        gate.await_start()
        s.pause()
        for _ in range(5):
            s.submit(int)
        gate.open()
        runtime = s._runtime
        assert runtime.wait_quiescent(PATIENCE)
        with runtime.lock:
            assert len(runtime.idle) + len(runtime.watch) == 3
        last_turn = runtime.last_reading
        assert not threading.Event().wait(0.02)
        assert runtime.last_reading == last_turn
        s.resume()
        assert s.wait_idle(PATIENCE)

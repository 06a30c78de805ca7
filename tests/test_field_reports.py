"""Kinds of faults that users of other schedulers reported, each made impossible here, as far as its subject is built.

A test's name carries the report's number. Where a report and our contract differ (children submitted while draining,
what a child of fork does, jitter), the contract holds and the docstring says so.
"""

import asyncio
import concurrent.futures
import contextvars
import gc
import inspect
import os
import pickle
import random
import sys
import threading
import time
import warnings
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import pytest

import threadsched
from tests.gates import PATIENCE, Gate, Thing, end_of, in_thread, logged, occupied
from tests.support import run_script
from threadsched import (
    BrokenSchedulerError,
    FifoPolicy,
    JobStatus,
    OldestDuePolicy,
    PriorityPolicy,
    Retry,
    RetryAfter,
    Scheduler,
    current_job,
)
from threadsched.testing import FakeClock


def nothing() -> None:
    pass


def boom(*args: object) -> None:
    raise ValueError("boom")


def test_f01_lateness_never_drops_a_job():
    """A job due while the only worker is busy runs exactly once afterwards, and its record shows how late."""
    clock, ran = FakeClock(), []
    with Scheduler(1, clock=clock) as s:
        with occupied(s):
            job = s.options(delay=0.1).submit(ran.append, 1)
            clock.jump(3600)
        job.result(PATIENCE)
        info = job.info()
        assert ran == [1]
        assert info.started_at is not None
        assert info.started_at - info.run_at == 3599.9
        with pytest.raises(TypeError, match="unknown job option 'misfire_grace_time'"):
            s.options(misfire_grace_time=1)


@pytest.mark.subprocess
@pytest.mark.parametrize("way", ["timeout", "with", "exit"])
def test_f02_a_stuck_job_does_not_hold_the_process(way: str):
    """A job that never ends is reported by a bounded shutdown and named, with its stack, by a bounded exit."""
    done = run_script(
        """
        import sys, threading
        from threadsched import Scheduler
        never, started = threading.Event(), threading.Event()
        def stuck_here():
            started.set()
            never.wait()
        s = Scheduler(1, exit_timeout=0.3)
        job = s.options(name="the stuck one").submit(stuck_here)
        started.wait()
        if sys.argv[1] == "timeout":
            report = s.shutdown(timeout=0.1)
            print(bool(report), [(info.name, "stuck_here" in info.stack) for info in report.running])
        elif sys.argv[1] == "with":
            with Scheduler(1) as other:
                print(other.submit(abs, -1).result())
        """,
        args=[way],
        timeout=10,
    )
    assert done.stdout == {"timeout": "False [('the stuck one', True)]\n", "with": "1\n", "exit": ""}[way]
    assert "the stuck one" in done.stderr
    assert "stuck_here" in done.stderr


def test_f04_a_failure_nobody_consumes_is_told_once():
    """A dropped failure makes one record; one that was looked at, a cancelled job and a retried success make none."""
    clock = FakeClock()
    with logged() as log:
        with Scheduler(1, clock=clock) as s:
            s.options(name="forgotten").submit(boom, "x")
            with pytest.raises(ValueError, match="boom"):
                s.submit(boom).result(PATIENCE)
            s.options(delay=5).submit(nothing).cancel()
            errors = [ValueError("once")]
            s.options(retries=1, backoff=1).submit(lambda: raise_first(errors))
            clock.advance(10)
        gc.collect()
    (text,) = log.of("ERROR")
    assert "forgotten" in text
    assert "ValueError: boom" in text


def raise_first(errors: list[Exception]) -> None:
    if errors:
        raise errors.pop()


def test_f09_wall_clock_steps_do_not_move_delays(monkeypatch: pytest.MonkeyPatch):
    """A step of the wall clock, back or forward, changes nothing for delays and back-off."""
    for step in (-7200.0, 10 * 365 * 86400.0):
        real = time.time
        with monkeypatch.context() as patch, Scheduler(1) as s:
            job = s.options(delay=0.02).submit(time.monotonic)
            patch.setattr(time, "time", lambda real=real, step=step: real() + step)
            assert 0.02 <= job.result(PATIENCE) - job.submitted_at < PATIENCE


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, RecursionError, KeyboardInterrupt])
def test_f12_the_running_mark_goes_whatever_happens(kind: type[BaseException]):
    """However a task, its callback and the hook end, the job is not left running and the slot not taken."""

    def hook(*args: object) -> None:
        raise kind("hook")

    def task() -> None:
        raise kind("task")

    with logged(), Scheduler(1, on_error=hook) as s:
        for _ in range(20):
            job = s.submit(task)
            job.add_done_callback(hook)
            assert isinstance(job.exception(PATIENCE), kind)
        assert s.wait_idle(PATIENCE)
        assert (s.stats().running, s.stats().workers) == (0, 1)
        assert s.submit(abs, -1).result(PATIENCE) == 1


VAR: contextvars.ContextVar[int] = contextvars.ContextVar("VAR", default=0)


def test_f13_context_is_the_submitters_and_leaks_nowhere():
    """A task has the submitter's variables, a job that it submits those of the task, its neighbours none of both."""
    clock = FakeClock()

    def task() -> tuple[int, Any]:
        seen = VAR.get()
        VAR.set(9)
        return seen, s.submit(VAR.get)

    def main() -> None:
        VAR.set(1)
        delayed = s.options(delay=1).submit(task)
        empty = s.options(delay=1, context=False).submit(task)
        VAR.set(2)
        after = s.options(delay=2).submit(VAR.get)
        clock.advance(5)
        assert delayed.result(PATIENCE)[0] == 1
        assert empty.result(PATIENCE)[0] == 0
        assert delayed.result()[1].result(PATIENCE) == empty.result()[1].result(PATIENCE) == 9
        assert after.result(PATIENCE) == 2

    with Scheduler(1, clock=clock) as s:
        contextvars.copy_context().run(main)
        assert s.submit(VAR.get).result(PATIENCE) == 0


# ---------------------------------------------------------------------- memory


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def keeps_a_local(argument: object, ends: list[threading.Event]) -> None:
    thing = Thing()
    ends.append(end_of(thing))
    raise ValueError("boom")


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("end", ["result", "failure", "cancel", "cancel in back-off", "retry", "claim", "stop"])
def test_f14_a_settled_job_keeps_no_argument(end: str):
    """With the collector off, a held future lets go of the task and its arguments as soon as the job has ended."""
    clock = FakeClock()
    with logged(), Scheduler(1, clock=clock) as s:
        thing, word = Thing(), Thing()
        events = [end_of(thing), end_of(word)]
        retried = s.options(retries=2, backoff=1, delay=1)
        task: Any = {"result": nothing_of, "cancel": nothing_of, "claim": nothing_of, "stop": stops}.get(end, boom_of)
        if end == "retry":
            task = FailsOnce()
            events.append(end_of(task))
        job = (retried if end in ("cancel in back-off", "retry") else s.options(delay=1)).submit(task, thing, word=word)
        del thing, word, task
        if end == "cancel":
            assert job.cancel()
        elif end == "claim":
            assert job.claim()
            job.set_result(None)
        elif end == "cancel in back-off":
            clock.advance(1)
            assert job.cancel()
        else:
            clock.advance(10)
        assert job.done()
        if end == "failure":
            # Its error holds the frames of the task, as it must; the arguments live as long as that.
            del job
        for event in events:
            assert event.wait(PATIENCE)


def nothing_of(thing: object, *, word: object) -> None:
    pass


def boom_of(thing: object, *, word: object) -> None:
    raise ValueError("boom")


def stops(thing: object, *, word: object) -> None:
    job = current_job()
    assert job is not None
    job.request_cancel()
    job.check_cancelled()


class FailsOnce:
    failed = False

    def __call__(self, thing: object, *, word: object) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("once")


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("look", ["no", "exception", "result", "callback", "wait"])
def test_f14_a_failure_makes_no_cycle(retries: int, look: str):
    """With the collector off, the error, its frames and their locals die with the future, however it was asked."""
    clock = FakeClock()
    ends: list[threading.Event] = []
    with logged(), Scheduler(1, clock=clock) as s:
        job = s.options(retries=retries, backoff=1).submit(keeps_a_local, Thing(), ends)
        gone = end_of(job)
        if look == "callback":
            job.add_done_callback(lambda job: job.exception())
        clock.advance(10)
        assert job.done()
        if look == "exception":
            job.exception()
        if look == "wait":
            concurrent.futures.wait([job])
        if look == "result":
            try:
                job.result()
            except ValueError:
                pass
        del job
        assert gone.wait(PATIENCE)
        assert len(ends) == retries + 1
        for event in ends:
            assert event.wait(PATIENCE)


@pytest.mark.usefixtures("no_gc")
def test_f14_an_idle_worker_keeps_nothing():
    """With the collector off, idle workers let go of results and of jobs that nobody holds."""
    with Scheduler(3) as s:
        events = []
        for _ in range(30):
            job = s.submit(Thing)
            events += [end_of(job), end_of(job.result(PATIENCE))]
            del job
        for event in events:
            assert event.wait(PATIENCE)


@pytest.mark.subprocess
def test_f15_an_idle_pool_uses_no_cpu():
    """Eight idle workers and a job due in an hour make no wake-ups: their threads are never scheduled."""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts context switches as Linux tells them")
    done = run_script(
        """
        import os, threading, time
        from threadsched import Scheduler
        s = Scheduler(8)
        [job.result() for job in [s.submit(abs, -1) for _ in range(100)]]
        s.options(delay=3600).submit(print)
        while s.stats().idle < 8:
            time.sleep(0.01)
        def switches():
            total = 0
            for task in os.listdir("/proc/self/task"):
                if int(task) != os.getpid():
                    with open(f"/proc/self/task/{task}/status") as status:
                        total += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
            return total
        time.sleep(0.1)
        before, cpu = switches(), time.process_time()
        time.sleep(0.5)
        print(switches() - before, time.process_time() - cpu < 0.02)
        """
    )
    assert done.stdout == "0 True\n"
    with pytest.raises(ValueError, match="greater than 0"):
        Scheduler(0)


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_f16_fork_with_a_live_scheduler():
    """The parent goes on untouched; in the child the inherited jobs are cancelled and new ones run on new workers."""
    done = run_script(
        """
        import os, sys, threading, warnings
        from threadsched import Scheduler
        warnings.simplefilter("ignore")
        s = Scheduler(2)
        stop, gate, lines = threading.Event(), threading.Event(), []
        blocked = [s.submit(gate.wait) for _ in range(2)]
        queued, delayed = s.submit(lines.append, 1), s.options(delay=3600).submit(lines.append, 2)
        def hammer():
            while not stop.is_set():
                s.submit(int)
                s.stats()
                if s.stats().pending > 1000:
                    s.options(priority=-1).submit(int)
                    stop.wait(0.001)
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        [thread.start() for thread in threads]
        child = os.fork()
        if not child:
            ok = queued.cancelled() and delayed.cancelled() and s.submit(abs, -7).result(5) == 7
            ok = ok and s.stats().submitted == 1 and lines == []
            os._exit(0 if ok and s.shutdown(timeout=5) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        [thread.join() for thread in threads]
        gate.set()
        queued.result(5)
        delayed.cancel()
        print(lines, bool(s.shutdown(timeout=5)))
        """
    )
    assert done.stdout == "0\n[1] True\n"


# ---------------------------------------------------------------------- faults of the user's own code


def test_f19_a_faulty_key_or_hook_stops_nothing():
    """One job's key that raises fails that submission; a hook that raises anything, or a clock that fails once, none."""

    class Key:
        def key(self, job: Any) -> int:
            if job.name == "bad":
                raise LookupError("no key")
            return 0

    class Clock(FakeClock):
        sick = 0

        def now(self) -> float:
            if self.sick and threading.current_thread().name.startswith("f19"):
                self.sick -= 1
                raise OSError("no time")
            return super().now()

    def hook(*args: object) -> None:
        raise BaseException("hook")

    clock = Clock()
    with logged() as log, Scheduler(2, name="f19", policy=Key(), clock=clock, on_error=hook) as s:
        jobs = []
        for number in range(100):
            if number == 50:
                with pytest.raises(LookupError, match="no key"):
                    s.options(name="bad").submit(nothing)
            jobs.append(s.submit(boom if number % 10 == 0 else nothing))
            if number == 70:
                clock.sick = 3
        assert concurrent.futures.wait(jobs, PATIENCE).not_done == set()
        assert (s.stats().done, s.stats().failed, s.stats().workers) == (90, 10, 2)
        s.check()
    assert len([text for text in log.of("ERROR") if "on_error" in text]) == 10


def test_f20_cancel_against_start_has_one_winner(rng: random.Random):
    """Whatever the moment, a cancel is True exactly if the body never ran; callbacks come once; nothing is logged."""
    ran: list[int] = []
    told: list[int] = []
    cancelled: list[int] = []
    with logged() as log, Scheduler(2) as s:
        for number in range(3000):
            job = s.submit(ran.append, number)
            job.add_done_callback(lambda job, number=number: told.append(number))
            sum(range(rng.randrange(200)))
            if job.cancel():
                cancelled.append(number)
                with pytest.raises(CancelledError):
                    job.result(PATIENCE)
        assert s.wait_idle(PATIENCE)
    assert not set(ran) & set(cancelled)
    assert sorted(ran + cancelled) == sorted(told) == list(range(3000))
    assert log.lines == []


@pytest.mark.parametrize("drain", ["none", "due"])
def test_f21_every_cancel_tells_who_waits(drain: Any):
    """A shutdown that cancels releases `as_completed`, `wait` and `result` for queued, delayed and retrying jobs."""
    clock = FakeClock()
    s = Scheduler(1, clock=clock)
    retrying = s.options(retries=1, backoff=3600).submit(boom)
    clock.advance(0)
    with occupied(s):
        delayed = [s.options(delay=3600).submit(nothing) for _ in range(5)]
        jobs = [s.submit(nothing) for _ in range(5)] + delayed + [retrying]
        joins = [
            in_thread(lambda: len(list(concurrent.futures.as_completed(jobs, PATIENCE)))),
            in_thread(lambda: len(concurrent.futures.wait(jobs, PATIENCE).done)),
            in_thread(lambda: sum(job.exception(PATIENCE) is None for job in jobs if not cancelled_in_time(job))),
        ]
        plain = s.options(delay=9).submit(nothing)
        plain.cancel()
        assert concurrent.futures.wait([plain]).done == {plain}
        s.shutdown(wait=False, drain=drain)
        assert concurrent.futures.wait(delayed, 0).not_done == set()
    assert [join() for join in joins[:2]] == [11, 11]
    joins[2]()
    assert s.shutdown()
    assert {job.status for job in delayed} == {JobStatus.CANCELLED}
    assert retrying.status is (JobStatus.CANCELLED if drain == "none" else JobStatus.FAILED)


def cancelled_in_time(job: Any) -> bool:
    try:
        job.exception(PATIENCE)
    except CancelledError:
        return True
    return False


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_f23_cancelled_timers_leave_the_heap(queue: Any):
    """Of 20,000 far-off jobs that are cancelled neither arguments nor heap entries stay."""
    s = Scheduler(1, queue=queue)
    far = s.options(delay=3600)
    events = []
    for _ in range(20_000 if queue == "lazy" else 5_000):
        thing = Thing()
        job = far.submit(nothing_of, thing, word=None)
        if len(events) < 100:
            events.append(end_of(thing))
        del thing
        if len(events) % 2:
            job.cancel()
    s.clear()
    assert s.stats().pending == 0
    assert all(event.is_set() for event in events)
    assert len(s._runtime.core.delayed) < 1000
    kept = [far.submit(nothing) for _ in range(1000)]
    assert s.stats().delayed == 1000
    s.check()
    assert s.shutdown(drain="none")
    assert all(job.cancelled() for job in kept)


def test_f24_back_off_keeps_no_worker():
    """With a thousand jobs in back-off on two workers a fresh one starts at once."""
    clock = FakeClock()
    with logged():
        s = Scheduler(2, clock=clock)
        slow = s.options(retries=1, backoff=3600)
        jobs = [slow.submit(boom) for _ in range(1000)]
        clock.advance(0)
        assert (s.stats().delayed, s.stats().running, s.stats().idle) == (1000, 0, 2)
        assert s.submit(abs, -1).result(PATIENCE) == 1
        assert s.shutdown(drain="none")
        assert {job.status for job in jobs} == {JobStatus.CANCELLED}


def test_f25_jitter_only_when_asked_and_within_bounds():
    """Without jitter all pauses are alike and exact; with it they spread within the cap, repeatably by the seed.

    The report wants jitter by default; our contract leaves it off unless asked for.
    """
    error = OSError()
    plain = Retry(5, backoff=1)
    assert [plain.pause(number, error) for number in range(1, 7)] == [1, 2, 4, 8, 16, None]
    spread = Retry(5, backoff=1, jitter=0.5, max_backoff=3)
    random.seed(7)
    first = [spread.pause(attempt, error) or 0 for attempt in (1, 2, 3, 4, 5) for _ in range(1000)]
    random.seed(7)
    assert first == [spread.pause(attempt, error) or 0 for attempt in (1, 2, 3, 4, 5) for _ in range(1000)]
    assert max(first[:1000]) - min(first[:1000]) >= 0.3
    assert all(0.5 <= pause <= 1 for pause in first[:1000])
    assert all(0 <= pause <= 3 for pause in first)
    clock = FakeClock()
    with logged():
        s = Scheduler(2, clock=clock)
        jobs = [s.options(retry=Retry(1, 10, jitter=1)).submit(boom) for _ in range(100)]
        exact = s.options(retry=Retry(1, 10, jitter=1)).submit(raise_after, 7.25)
        clock.advance(0)
        assert len({job.run_at for job in jobs}) > 90
        assert all(0 <= job.run_at <= 10 for job in jobs)
        assert exact.run_at == 7.25
        s.shutdown(drain="none")


def raise_after(seconds: float) -> None:
    raise RetryAfter(seconds)


def test_f26_back_off_saturates_and_far_waits_are_clamped():
    """Huge factors end at the cap, even at attempt 2000; delays of years wait; impossible ones are refused."""
    patient = Retry(5000, backoff=1, factor=10)
    cap = patient.max_backoff
    assert cap <= threading.TIMEOUT_MAX
    assert patient.pause(2000, OSError()) == patient.pause(5000, OSError()) == cap
    assert Retry(5000, backoff=1, factor=10, max_backoff=60).pause(2000, OSError()) == 60
    assert Retry(5000, backoff=0, factor=10).pause(2000, OSError()) == 0
    clock = FakeClock()
    with logged(), Scheduler(1, clock=clock) as s:
        job = s.options(retry=Retry(2000, backoff=1, factor=10, max_backoff=5)).submit(boom)
        clock.advance(timedelta(days=1))
        assert isinstance(job.exception(PATIENCE), ValueError)
        assert job.attempts == 2001
    s = Scheduler(1)
    for delay in (10**9, timedelta.max, 1e308):
        s.options(delay=delay).submit(nothing)
    assert s.submit(abs, -1).result(PATIENCE) == 1
    for delay in (float("nan"), float("inf"), -1):
        with pytest.raises(ValueError, match="delay"):
            s.options(delay=delay)
    assert s.shutdown(drain="none")


def test_f27_stopping_wakes_every_sleeper():
    """A cancelling shutdown returns though a job is due in an hour, one waits for a retry, and a leader sleeps."""
    s = Scheduler(4)
    with logged():
        retrying = s.options(retries=1, backoff=3600).submit(boom)
        s.options(delay=3600).submit(nothing)
        assert s.submit(nothing).result(PATIENCE) is None
        join = in_thread(lambda: s.wait_idle())
        began = time.monotonic()
        assert s.shutdown(drain="none")
        assert time.monotonic() - began < 2
        assert join() is True
        assert retrying.done()


MODES = {
    "all": {"running": "DONE", "ready": "DONE", "delayed": "DONE", "retrying": "FAILED"},
    "due": {"running": "DONE", "ready": "DONE", "delayed": "CANCELLED", "retrying": "FAILED"},
    "none": {"running": "DONE", "ready": "CANCELLED", "delayed": "CANCELLED", "retrying": "CANCELLED"},
}


@pytest.mark.parametrize("drain", MODES)
def test_f28_each_way_to_stop_has_its_exact_outcome(drain: Any):
    """Running, ready, delayed and retrying jobs end as the mode says; a child submitted meanwhile is refused."""
    clock = FakeClock()
    s = Scheduler(1, clock=clock)
    gate, children = Gate(), []

    def parent() -> None:
        gate()
        try:
            s.submit(nothing)
        except RuntimeError as error:
            children.append(error)

    with logged():
        jobs: dict[str, Any] = {"retrying": s.options(retries=1, backoff=50).submit(boom)}
        clock.advance(0)
        jobs["running"] = s.submit(parent)
        gate.await_start()
        jobs["ready"] = s.submit(nothing)
        jobs["delayed"] = s.options(delay=3600).submit(nothing)
        report = s.shutdown(wait=False, drain=drain)
        assert (report.pending, len(report.running)) == ({"all": 3, "due": 1, "none": 0}[drain], 1)
        gate.open()
        jobs["running"].result(PATIENCE)
        clock.advance(4000)
        report = s.shutdown()
        assert report
        assert {name: job.status.name for name, job in jobs.items()} == MODES[drain]
        assert (report.done, report.failed, report.cancelled) == tuple(
            list(MODES[drain].values()).count(status) for status in ("DONE", "FAILED", "CANCELLED")
        )
        if drain != "none":
            assert jobs["retrying"].attempts == (2 if drain == "all" else 1)
            assert isinstance(jobs["retrying"].exception(0), ValueError)
    assert len(children) == 1


@pytest.mark.parametrize("where", ["job", "callback", "hook", "two jobs"])
def test_f29_shutdown_from_inside(where: str):
    """A shutdown that waits, called by the scheduler's own threads, returns, joins nobody, and all threads end."""
    reports: list[Any] = []

    def stop(*args: object) -> None:
        reports.append(s.shutdown(wait=True))

    meeting = threading.Barrier(2)

    def meet() -> None:
        meeting.wait(PATIENCE)
        stop()

    s = Scheduler(2, on_error=stop if where == "hook" else None)
    if where == "two jobs":
        jobs = [s.submit(meet), s.submit(meet)]
    else:
        with occupied(s, 2):
            jobs = [s.submit({"job": stop, "callback": nothing, "hook": boom}[where])]
            if where == "callback":
                jobs[0].add_done_callback(stop)
    assert concurrent.futures.wait(jobs, PATIENCE).not_done == set()
    assert s.shutdown(timeout=PATIENCE)
    assert len(reports) == len(jobs)
    assert s.stats().workers == 0


@pytest.mark.subprocess
def test_f30_signal_handlers_may_use_the_scheduler():
    """A handler at 1 kHz that submits, counts and at last shuts down meets no deadlock; what was accepted ends."""
    done = run_script(
        """
        import signal, sys
        from threadsched import Scheduler
        s = Scheduler(2)
        calls = 0
        def handler(*_):
            global calls
            calls += 1
            if calls < 400:
                s.stats()
                s.submit(int)
                s.options(delay=0.001).submit(int)
            elif calls == 400:
                s.shutdown(wait=False)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            while True:
                s.submit(int)
        except RuntimeError:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(bool(s.shutdown()))
        stats = s.stats()
        s.check()
        print(stats.submitted == stats.done, stats.pending, stats.running)
        """
    )
    assert done.stdout == "True\nTrue 0 0\n"


def test_f32_no_lock_is_held_while_user_code_runs():
    """Callbacks, reprs and finalizers may use the scheduler, even through a thread that they wait for."""

    class Curious:
        def __repr__(self) -> str:
            return str(in_thread(lambda: s.stats().submitted)())

        def __del__(self) -> None:
            gone.append(in_thread(lambda: s.submit(abs, -2).result(PATIENCE))())

        def __call__(self) -> None: ...

    gone: list[Any] = []
    clock = FakeClock()
    with Scheduler(2, clock=clock) as s:
        said: list[Any] = []
        with occupied(s):
            job = s.submit(nothing)
            job.add_done_callback(lambda job: said.append(in_thread(lambda: s.submit(abs, -1).result(PATIENCE))()))
        clock.advance(0)
        assert said == [1]
        with occupied(s, 2):
            held = s.options(delay=3600).submit(nothing_of, Curious(), word=Curious())
            s.snapshot()
            repr(held)
            cancelled = in_thread(held.cancel)
        assert cancelled() is True
        s.submit(Curious()).result(PATIENCE)
        clock.advance(0)
    assert gone == [2, 2, 2]


def test_f34_nothing_a_task_raises_shrinks_the_pool():
    """After ten tasks that raise what ends threads elsewhere, both workers still meet, and they are the same ones."""
    kinds = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]

    def task(kind: type[BaseException]) -> None:
        raise kind(threading.get_ident())

    with Scheduler(2) as s:
        meeting = threading.Barrier(2)

        def meet() -> int:
            meeting.wait(PATIENCE)
            return threading.get_ident()

        before = {job.result(PATIENCE) for job in [s.submit(meet), s.submit(meet)]}
        jobs = [s.submit(task, kind) for kind in kinds * 2]
        for job, kind in zip(jobs, kinds * 2, strict=True):
            assert type(job.exception(PATIENCE)) is kind
        assert {job.result(PATIENCE) for job in [s.submit(meet), s.submit(meet)]} == before


# ---------------------------------------------------------------------- order


class Unordered:
    def __lt__(self, other: object) -> bool:
        raise TypeError("arguments are never compared")

    __gt__ = __le__ = __ge__ = __lt__

    def __eq__(self, other: object) -> bool:
        raise TypeError("arguments are never compared")

    __hash__ = object.__hash__


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_f40_equal_priorities_run_in_submission_order(queue: Any):
    """A thousand equal jobs whose arguments cannot be compared keep their order, also through swaps of the policy."""
    with Scheduler(1, queue=queue) as s:
        order: list[int] = []
        with occupied(s):
            for number in range(1000):
                s.options(priority=number % 2).submit(lambda thing, number=number: order.append(number), Unordered())
            s.policy = FifoPolicy()
            s.check()
            s.policy = PriorityPolicy()
            s.policy = FifoPolicy()
            assert s.stats().pending == 1000
        assert s.wait_idle(PATIENCE)
        assert order == list(range(1000))


@pytest.mark.parametrize(
    ("policy", "expected"), [(OldestDuePolicy(), "12345"), (PriorityPolicy(), "54321"), (FifoPolicy(), "53142")]
)
def test_f41_due_together_after_a_stall(policy: Any, expected: str):
    """Jobs that became due while the worker was stalled run as the policy says, not as they were inserted."""
    clock, order = FakeClock(), []
    with Scheduler(1, clock=clock, policy=policy) as s:
        with occupied(s):
            for due in (5, 3, 1, 4, 2):
                s.options(delay=due, priority=-due).submit(order.append, str(due))
            clock.jump(10)
        assert s.wait_idle(PATIENCE)
    assert "".join(order) == expected


# ---------------------------------------------------------------------- coroutines, loops


def test_f50_coroutines_never_succeed_unrun():
    """A coroutine function is refused at submission, a coroutine that a task returns fails the job and is closed."""

    async def main() -> None: ...

    with warnings.catch_warnings(), Scheduler(1) as s:
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="coroutine function"):
            s.submit(main)
        job = s.submit(lambda: main())
        with pytest.raises(TypeError, match="coroutine"):
            job.result(PATIENCE)
        del job
        gc.collect()


@pytest.mark.subprocess
def test_f51_a_loop_that_closes_first():
    """A loop that ends while its job still runs hears nothing of it; what was queued behind is cancelled with it."""
    done = run_script(
        """
        import asyncio, threading
        from threadsched import Scheduler
        s = Scheduler(1)
        gate, started = threading.Event(), threading.Event()
        def task():
            started.set()
            return gate.wait(10)
        running, queued = s.submit(task), s.submit(print, "never")
        async def main():
            waits = [asyncio.ensure_future(asyncio.wrap_future(job)) for job in (running, queued)]
            via = asyncio.get_running_loop().run_in_executor(s, print, "never")
            await asyncio.get_running_loop().run_in_executor(None, started.wait)
            for wait in (*waits, via):
                wait.cancel()
            ends = await asyncio.gather(*waits, via, return_exceptions=True)
            print([type(end).__name__ for end in ends])
        asyncio.run(main())
        print(queued.cancelled(), running.running(), s.stats().pending)
        gate.set()
        print(running.result(), bool(s.shutdown()))
        """
    )
    assert done.stdout == "['CancelledError', 'CancelledError', 'CancelledError']\nTrue True 0\nTrue True\n"
    assert done.stderr == ""


def test_f56_a_running_job_can_be_asked_to_stop_and_waited_for():
    """A polling task ends soon after the request; its end is told apart from success and can be waited for."""
    with Scheduler(1) as s:
        started = threading.Event()

        def poll() -> None:
            job = current_job()
            assert job is not None
            started.set()
            while job.sleep(0.001):
                pass
            job.check_cancelled()

        job = s.submit(poll)
        assert started.wait(PATIENCE)
        assert job.cancel() is False
        assert job.request_cancel() is True
        assert concurrent.futures.wait([job], PATIENCE).done == {job}
        assert job.status is JobStatus.CANCELLED
        assert s.submit(abs, -1).result(PATIENCE) == 1


def test_f58_no_thread_per_timer():
    """Ten thousand delayed jobs need no thread beyond the workers."""
    before = threading.active_count()
    s = Scheduler(2)
    for number in range(10_000):
        s.options(delay=3600 + number).submit(nothing)
    assert threading.active_count() <= before + 2
    assert s.shutdown(drain="none")
    assert threading.active_count() == before


def test_f66_any_callable_with_any_argument_and_no_pickles():
    """Lambdas, closures, locks and generators are tasks and arguments; pickling ours says why it cannot be."""
    with Scheduler(1) as s:
        lock = threading.Lock()
        assert s.submit(lambda lock: lock.locked(), lock).result(PATIENCE) is False
        assert s.submit((number for number in [7]).__next__).result(PATIENCE) == 7
        for thing, words in ((s, "a Scheduler cannot be pickled"), (s.submit(nothing), "a Job cannot be pickled")):
            with pytest.raises(TypeError, match=words):
                pickle.dumps(thing)


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("history", [0, 10])
def test_f67_ended_jobs_are_forgotten(history: int):
    """With the collector off, no ended job that nobody holds stays; the history has so many words and no more."""
    clock, alive = FakeClock(), set()

    def watch(job: Any) -> None:
        end = end_of(job)
        alive.add(end)

    with logged(), Scheduler(2, clock=clock, history=history) as s:
        for number in range(500):
            job: Any = s.options(retries=number % 3, backoff=0).submit([nothing, boom][number % 2])
            watch(job)
            late = s.options(delay=5).submit(nothing_of, Thing(), word=Thing())
            watch(late)
            late.cancel()
        del job, late
        clock.advance(10)
        for event in alive:
            assert event.wait(PATIENCE)
        assert len(s.snapshot()) == history
        assert s._runtime.core.named == {}
        assert len(s._runtime.core.delayed) < 200


def test_f68_schedulers_share_nothing():
    """There is no global scheduler; two have jobs, ids, counts and ends of their own."""
    assert not [name for name, value in vars(threadsched).items() if isinstance(value, Scheduler)]
    with Scheduler(1) as one:
        with Scheduler(1) as two:
            jobs = [s.options(id="same").submit(abs, number) for number, s in enumerate((one, two))]
            assert [job.result(PATIENCE) for job in jobs] == [0, 1]
            two.submit(nothing).result(PATIENCE)
            assert (one.stats().done, two.stats().done) == (1, 2)
            assert two.shutdown()
        assert not one.closed
        assert one.submit(abs, -5).result(PATIENCE) == 5


def test_f69_a_timeout_of_the_waiter_is_the_waiters_alone():
    """`result(timeout)` only waits: the job runs all the same, once it can."""
    with Scheduler(1) as s:
        with occupied(s):
            job = s.submit(abs, -1)
            with pytest.raises(TimeoutError):
                job.result(0.001)
            assert job.status is JobStatus.PENDING
        assert job.result(PATIENCE) == 1


def test_f70_an_initializer_that_fails_late():
    """If it fails on the second worker only, the scheduler is broken: all pending jobs end, and no thread is left."""
    turn, met = threading.Lock(), []

    def initializer() -> None:
        with turn:
            met.append(1)
            if len(met) == 2:
                raise OSError("no second connection")

    with logged() as log:
        s = Scheduler(2, initializer=initializer)
        jobs = []
        try:
            for _ in range(10):
                jobs.append(s.submit(nothing))
        except BrokenSchedulerError:
            pass
        done, not_done = concurrent.futures.wait(jobs, PATIENCE)
        assert not not_done
        assert {type(job.exception()) for job in done} <= {BrokenSchedulerError, type(None)}
        join = in_thread(lambda: s.wait_idle(PATIENCE))
        assert join() is True
        with pytest.raises(BrokenSchedulerError) as caught:
            while True:
                s.submit(nothing)
        assert isinstance(caught.value.__cause__, OSError)
        s.shutdown()
        assert s.stats().workers == 0
    assert len(log.of("CRITICAL")) == 1


def test_f72_a_month_under_the_fake_clock():
    """A month of daily jobs with retries gives the same trace each time, and the real clock is never read."""

    def trace() -> list[tuple[int, float]]:
        clock, runs = FakeClock(), []

        def task(day: int) -> None:
            runs.append((day, clock.now()))
            if day % 3 == 0:
                raise OSError("again")

        with logged(), Scheduler(2, clock=clock) as s:
            for day in range(30):
                s.options(delay=day * 86400, retries=2, backoff=60).submit(task, day)
            clock.advance(31 * 86400)
            assert s.wait_idle(0)
        return runs

    first = trace()
    assert len(first) == 30 + 2 * 10
    assert first[:4] == [(0, 0.0), (0, 60.0), (0, 180.0), (1, 86400.0)]
    assert all(trace() == first for _ in range(5))


def test_f73_human_errors_are_refused():
    """Misspelled options, bools, strings and wrong units are refused at the door; a timedelta is as good as seconds."""
    with Scheduler(1) as s:
        for options, words in [
            ({"retrys": 3}, "unknown job option 'retrys'; did you mean"),
            ({"timeot": 3}, "unknown job option 'timeot'"),
            ({"retries": True}, "retries must be an int"),
            ({"delay": "5s"}, "delay must be seconds"),
            ({"priority": "high"}, "priority must be a real number"),
        ]:
            with pytest.raises(TypeError, match=words):
                s.options(**options)
        job = s.options(delay=timedelta(minutes=90)).submit(nothing)
        assert job.run_at - job.submitted_at == pytest.approx(5400)
        job.cancel()
    assert os.path.exists(os.path.join(os.path.dirname(threadsched.__file__), "py.typed"))


def test_f74_keywords_belong_to_the_task():
    """Keywords named like options reach the task, with `submit` and with options set beside them."""

    def task(**keywords: Any) -> dict[str, Any]:
        return keywords

    given = {
        "timeout": 1,
        "priority": 2,
        "delay": 3,
        "id": 4,
        "name": 5,
        "retries": 6,
        "context": 7,
        "fn": 8,
        "self": 9,
    }
    with Scheduler(1) as s:
        assert s.submit(task, **given).result(PATIENCE) == given
        assert s.options(delay=0, priority=1).submit(task, **given).result(PATIENCE) == given


def test_f76_only_public_parts_of_the_standard_library():
    """A scheduler is an Executor, a job a Future, and no module of ours imports a private name of `concurrent`."""
    with Scheduler(1) as s:
        assert isinstance(s, concurrent.futures.Executor)
        assert isinstance(s.options(), concurrent.futures.Executor)
        assert isinstance(s.submit(nothing), concurrent.futures.Future)
    modules = [module for name, module in sys.modules.items() if name.startswith("threadsched")]
    assert len(modules) > 10
    for module in modules:
        source = inspect.getsource(module)
        for private in ("concurrent.futures._", "concurrent.futures.thread", "futures.thread", "threading._register"):
            assert private not in source, module.__name__

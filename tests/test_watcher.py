"""The thread that watches the time limits: when there is one, what it keeps alive; and the ends of a scheduler."""

import gc
import os
import threading
import time
import weakref
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, occupied
from tests.overruns import Late, home, overrun, threads_of, watcher_of
from tests.producers import Call
from tests.support import run_script
from threadsched import (
    InvariantError,
    Job,
    JobExpiredError,
    JobStatus,
    JobTimeoutError,
    Scheduler,
    WorkerDiedError,
)
from threadsched import _locks as locks_module
from threadsched import _watcher as watcher_module
from threadsched.testing import FakeClock


def await_end(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive()


def expired(job: Job[Any]) -> JobExpiredError:
    with pytest.raises(JobExpiredError) as caught:
        job.result(PATIENCE)
    return caught.value


# ---------------------------------------------------------------- the watcher


def test_watcher_exists_only_while_there_is_something_to_watch(clock: FakeClock):
    """No job with a time limit, no thread; the first one starts it, and after the last one it leaves."""
    with Scheduler(1, clock=clock, name="pool") as s:
        s.submit(int).result(PATIENCE)
        assert watcher_of(s) is None
        job = s.options(expires=9, delay=5).submit(int)
        assert "pool (watcher)" in threads_of(s)
        first = watcher_of(s)
        clock.advance(5)
        assert job.done()
        await_end(first)
        assert s.options(timeout=9).submit(int).result(PATIENCE) == 0
        second = watcher_of(s)
        assert second is not first
        await_end(second)
        assert s._runtime.core.time_limits.watcher is None
        s.check()


def test_stream_of_single_jobs_needs_one_watcher(monkeypatch: pytest.MonkeyPatch):
    """It stays a moment when there is nothing to watch, so jobs one after another share it."""
    monkeypatch.setattr(watcher_module, "LINGER", 3600)
    with Scheduler(1) as s:
        limited = s.options(timeout=60, expires=60)
        seen = set()
        for _ in range(50):
            limited.submit(int).result(PATIENCE)
            seen.add(watcher_of(s))
        assert len(seen) == 1
    assert threads_of(s) == []  # once closed, it does not stay


def test_limits_come_on_time_with_every_worker_busy():
    """In real time, with the only worker at work all the while."""
    with Scheduler(1) as s, occupied(s):
        jobs = [s.options(expires=0.01 * n).submit(int) for n in range(10)]
        for job in jobs:
            assert expired(job)
        s.check()


def test_many_jobs_expire_at_once(clock: FakeClock):
    """More than one batch of them: all are cancelled, each with its own reason, and every place is free."""
    with Scheduler(1, clock=clock, max_pending=1000) as s, occupied(s):
        jobs = [s.options(expires=5).submit(int) for _ in range(700)]
        clock.jump(5)
        assert len({str(expired(job)) for job in jobs}) == 700
        assert s.stats().pending == 0
        s.check()


def test_an_earlier_limit_wakes_the_watcher(clock: FakeClock):
    """It sleeps until the first limit it knows; one that comes before that is kept as well."""
    with Scheduler(1, clock=clock) as s, occupied(s):
        later = s.options(expires=50).submit(int)
        sooner = s.options(expires=5).submit(int)
        clock.jump(5)
        assert expired(sooner)
        assert not later.done()
        now = s.options(expires=0).submit(int)
        assert expired(now)


def test_fake_clock_stops_at_each_limit(clock: FakeClock):
    """`advance` goes through the limits as through any due time, and waits until all is told."""
    ends: list[tuple[float, Any]] = []
    with Scheduler(2, clock=clock) as s:
        blocker = s.options(priority=0).submit(lambda: None)
        s.pause()
        for seconds in (3, 1, 2):
            job = s.options(expires=seconds).submit(int)
            job.add_done_callback(lambda job: ends.append((clock.now(), type(job._result).__name__)))
        clock.advance(10)
        assert ends == [(n, "JobExpiredError") for n in (1, 2, 3)]
        s.resume()
        assert blocker.exception(PATIENCE) is None


def test_fake_clock_that_passed_a_limit_which_was_lifted(clock: FakeClock):
    """The watcher sleeps until the next limit that there is, also if the one it had slept for never came."""
    with Scheduler(2, clock=clock) as s, occupied(s):
        far = s.options(expires=1000, delay=900).submit(int)
        gate = Gate()
        job = s.options(timeout=5).submit(gate)
        gate.await_start()
        pause = threading.Event()
        while s._runtime.core.time_limits.until != 5:
            pause.wait(0.001)
        gate.open()
        job.result(PATIENCE)
        clock.jump(10)
        assert expired(s.options(expires=0).submit(int))
        assert far.cancel()


def test_sleeping_task_overruns_under_advance(clock: FakeClock):
    """A task in `job.sleep()` is woken at its limit, and the job fails on the very reading."""
    ends: list[Any] = []
    with Scheduler(1, clock=clock) as s:

        def task() -> None:
            from threadsched import current_job

            job = current_job()
            assert job is not None
            ends.append(job.sleep(100))

        job = s.options(timeout=7).submit(task)
        clock.advance(20)
        assert isinstance(job.exception(0), JobTimeoutError)
        assert job._finished_at == 7
        assert s._runtime.wait_told(PATIENCE)
        s.check()
    assert ends == [False]


def test_watcher_does_not_keep_a_dropped_scheduler_alive():
    """A scheduler that is dropped with limits far off lets its jobs finish, and all threads go."""
    gate = Gate()
    s: Any = Scheduler(1)
    job = s.options(timeout=3600).submit(gate, "done")
    gate.await_start()
    watcher = watcher_of(s)
    runtime = weakref.ref(s._runtime)
    del s
    gc.collect()
    gate.open()
    assert job.result(PATIENCE) == "done"
    await_end(watcher)
    del job
    deadline = time.monotonic() + PATIENCE
    while runtime() is not None and time.monotonic() < deadline:
        gc.collect()
    assert runtime() is None


def test_watcher_leaves_when_its_scheduler_is_no_more(clock: FakeClock):
    """Asleep for ever beside jobs that nobody can end, it is woken when the last reference is gone."""
    s: Any = Scheduler(1, clock=clock)
    s.pause()
    s.options(expires=9).submit(int)
    runtime = s._runtime
    watcher = watcher_of(s)
    while not runtime.core.time_limits.asleep:
        threading.Event().wait(0.001)
    with runtime.lock:  # as if every worker had died: nobody but the watcher is left
        runtime.close("all")
        job = next(iter(runtime.core.pending.values()))
        runtime.core.pending.clear()
        runtime.core.ready.lane.clear()
        runtime._wake_all_locked()
    del job, s
    reference = weakref.ref(runtime)
    del runtime
    deadline = time.monotonic() + PATIENCE
    while reference() is not None and time.monotonic() < deadline:
        gc.collect()
    assert reference() is None
    await_end(watcher)


def test_submission_without_a_watcher_is_refused(monkeypatch: pytest.MonkeyPatch):
    """If the watcher's thread cannot be started the submission raises, and nothing is queued; the next may succeed."""
    start = locks_module.start_thread

    def refuse(target: Any, args: Any, name: str) -> Any:
        if "watcher" in name:
            raise RuntimeError("can't start new thread")
        return start(target, args, name)

    with Scheduler(1) as s:
        assert s.submit(int).result(PATIENCE) == 0
        monkeypatch.setattr(locks_module, "start_thread", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            s.options(timeout=9, id="a").submit(int)
        assert s.stats().submitted == 1
        monkeypatch.undo()
        assert s.options(timeout=9, id="a").submit(int).result(PATIENCE) == 0
        s.check()


def test_watcher_that_left_during_a_submission_is_started_again(monkeypatch: pytest.MonkeyPatch):
    """A submission that finds at the door that nobody watches any more goes round once."""
    with Scheduler(1) as s:
        parent = s.options(delay=0.001).submit(int)
        enter = s._runtime.core.enter
        limits = s._runtime.core.time_limits
        times = []

        class Core(type(s._runtime.core)):  # type: ignore[misc]
            def enter(self, job: Any, seq: int) -> bool:
                if not times:
                    limits.watcher = None
                times.append(seq)
                return bool(enter(job, seq))

        monkeypatch.setattr(type(s._runtime.core), "enter", Core.enter)
        job = s.options(timeout=9, expires=9, after=parent, id="a", delay=0.001).submit(int, 3)
        monkeypatch.undo()
        assert len(times) == 2
        assert job.result(PATIENCE) == 3
        s.check()


@pytest.mark.parametrize("refused", ["telling", "pool"])
def test_without_threads_the_watcher_does_it_all(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, refused: str):
    """With no teller or no successor to be had, limits are kept all the same; a later submission brings the worker."""
    start = locks_module.start_thread
    told: list[Any] = []

    def refuse(target: Any, args: Any, name: str) -> Any:
        if (refused == "telling" and refused in name) or (refused == "pool" and name == "pool_1"):
            raise RuntimeError("can't start new thread")
        return start(target, args, name)

    with Scheduler(1, clock=clock, name="pool") as s:
        gate = Late()
        job = s.options(timeout=1).submit(gate)
        job.add_done_callback(told.append)
        gate.await_start()
        monkeypatch.setattr(locks_module, "start_thread", refuse)
        clock.jump(1)
        assert isinstance(job.exception(PATIENCE), JobTimeoutError)
        s._runtime.wait_told(PATIENCE)
        while not told:
            threading.Event().wait(0.001)
        assert s.stats().workers == (refused == "telling")
        monkeypatch.undo()
        assert s.submit(int).result(PATIENCE) == 0
        s.check()
        home(s, gate)
        s.check()


# ---------------------------------------------------------------- shutdown


def test_shutdown_reports_lost_threads_and_does_not_join_them(clock: FakeClock):
    """The report is false while one runs, and has its name and stack; once it is home the report is true."""
    s = Scheduler(1, clock=clock)
    gate, job = overrun(s, clock, id="slow")
    report = s.shutdown()
    assert not report
    [info] = report.running
    assert (info.id, info.worker, info.status) == ("slow", "threadsched_0 (lost: slow)", JobStatus.FAILED)
    assert "in __call__" in (info.stack or "")
    assert (report.failed, report.pending) == (1, 0)
    home(s, gate)
    assert s.shutdown()
    assert job.done()
    assert threads_of(s) == []


def test_shutdown_that_waits_goes_on_when_the_thread_is_written_off(clock: FakeClock):
    """It waits for a running task, and no longer from the moment on at which that has overrun."""
    s = Scheduler(1, clock=clock)
    gate = Late()
    job = s.options(timeout=1).submit(gate)
    gate.await_start()
    call = Call(s.shutdown)
    while not s._runtime.exit_waiters:
        threading.Event().wait(0.001)
    clock.jump(1)
    report = call.outcome()
    assert [info.name for info in report.running] == ["Late"]
    assert isinstance(job.exception(0), JobTimeoutError)
    home(s, gate)


def test_shutdown_does_not_wait_for_stuck_workers_either(clock: FakeClock):
    """Nor for an overrun task whose thread could not be replaced, unless jobs are pending that only it could run."""
    s = Scheduler(1, clock=clock)
    gates = [overrun(s, clock)[0] for _ in range(2)]
    pending = s.submit(int)
    assert len(s.shutdown(timeout=0.01).running) == 2
    assert not pending.done()
    assert len(s.shutdown(drain="none").running) == 2
    assert pending.cancelled()
    for gate in gates:
        gate.open()
        await_end(gate.thread)
    assert s.shutdown()


def test_pending_jobs_run_after_the_door_closed_on_a_lost_worker(clock: FakeClock):
    """A draining scheduler replaces the worker that overran, also for a retry of that very job."""
    first = Late()
    calls = iter([first, lambda: threading.current_thread().name])
    s = Scheduler(1, clock=clock)
    job = s.options(timeout=1, retries=1, backoff=0).submit(lambda: next(calls)())
    first.await_start()
    call = Call(s.shutdown)
    while not s.closed:
        threading.Event().wait(0.001)
    clock.jump(1)
    assert job.result(PATIENCE) == "threadsched_1"
    assert not call.outcome()
    home(s, first)


def test_callback_of_an_overrun_may_shut_the_scheduler_down(clock: FakeClock):
    """On the thread that tells, a shutdown waits for the workers and not for itself."""
    reports: list[Any] = []
    s = Scheduler(1, clock=clock)
    gate = Late()
    job = s.options(timeout=1).submit(gate)
    job.add_done_callback(lambda _: reports.append(s.shutdown()))
    gate.await_start()
    clock.jump(1)
    assert not s.shutdown()
    assert len(reports) == 1
    home(s, gate)


@pytest.mark.parametrize("nested", [True, False])
def test_worker_that_dies_lost_is_not_replaced_twice(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, nested: bool):
    """A lost thread that dies in our own code leaves a whole pool; a job that it still had fails as with any worker."""
    gate = Late()
    with Scheduler(1, clock=clock) as s:
        late: list[Any] = []

        def outer() -> Any:
            late.append(s.options(timeout=1).submit(gate))
            return late[0].exception()

        job = s.submit(outer) if nested else s.options(timeout=1).submit(gate)
        gate.await_start()
        clock.jump(1)
        assert s.submit(int).result(PATIENCE) == 0
        finish = type(s._runtime).finish

        def die(runtime: Any, settled: Any, *args: Any) -> Any:
            if settled is job:
                raise MemoryError("in our own code")
            return finish(runtime, settled, *args)

        monkeypatch.setattr(type(s._runtime), "finish", die)
        gate.open()
        assert isinstance(job.exception(PATIENCE), WorkerDiedError if nested else JobTimeoutError)
        await_end(gate.thread)
        monkeypatch.undo()
        stats = s.stats()
        assert (stats.workers, stats.lost_workers, stats.replaced_workers) == (1, 0, 1)
        assert not s._runtime.core.time_limits.away
        s.check()


def test_initializer_runs_on_a_successor(clock: FakeClock):
    """A successor is a worker like any other."""
    ran: list[str] = []
    with Scheduler(1, clock=clock, initializer=lambda: ran.append(threading.current_thread().name)) as s:
        gate, _ = overrun(s, clock)
        assert s.submit(int).result(PATIENCE) == 0
        home(s, gate)
    assert ran == ["threadsched_0", "threadsched_1"]


@pytest.mark.parametrize("fault", ["post", "many", "both", "flag", "away"])
def test_audit_notices(clock: FakeClock, fault: str):
    """`check()` finds a lost thread that is counted wrongly."""
    with Scheduler(1, clock=clock) as s:
        gate, _ = overrun(s, clock)
        runtime = s._runtime
        s.submit(int).result(PATIENCE)
        s.check()
        with runtime.lock:
            [lost], [serves] = runtime.written_off.values(), runtime.workers.values()
            undo = {
                "post": lambda: runtime.posts.append(serves.number) if not runtime.posts.clear() else None,
                "many": lambda: runtime.written_off.pop(99),
                "both": lambda: runtime.workers.pop(0),
                "flag": lambda: setattr(serves, "detached", False),
                "away": lambda: lost.overrun.append(next(iter(runtime.core.time_limits.away.values()))),
            }[fault]
            if fault == "post":
                runtime.posts.append(0)
            elif fault == "many":
                runtime.written_off[99] = lost
            elif fault == "both":
                runtime.workers[0] = lost
            elif fault == "flag":
                serves.detached = True
            else:
                lost.overrun.clear()
            with pytest.raises(InvariantError):
                s.check()
            undo()
        s.check()
        home(s, gate)


# ---------------------------------------------------------------- exit, fork

EXIT = """
import os, sys, threading, time, logging
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
from threadsched import Scheduler

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def stuck_for_ever():
    threading.Event().wait()

s = Scheduler(1, exit_timeout=10)
job = s.options(timeout=0.05, name="the stuck one").submit(stuck_for_ever)
say(type(job.exception()).__name__)
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("how", ["live", "shut down", "drains"])
def test_exit_names_lost_threads_and_does_not_wait_for_them(how: str):
    """The process ends at once, whatever is lost; the log says which job is left behind, and where it stands."""
    more = {
        "live": "",
        "shut down": "say('report', bool(s.shutdown()))",
        "drains": "s.submit(say, 'drained')\ns.options(timeout=0.05).submit(stuck_for_ever)",
    }[how]
    began = time.monotonic()
    done = run_script(EXIT + more)
    assert time.monotonic() - began < 9  # exit_timeout was not used up: nobody waited for the lost thread
    assert "JobTimeoutError" in done.stdout
    assert "the process exits while job 1 (the stuck one) still runs on threadsched_0 (lost: 1)" in done.stdout
    assert "in stuck_for_ever" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert ("drained" in done.stdout) == (how == "drains")


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_starts_without_limits_and_lost_threads():
    """In the child nothing is watched or lost, and jobs with limits work; the parent's go on untouched."""
    done = run_script(
        EXIT
        + """
gate = threading.Event()
def forks():
    pid = os.fork()
    if not pid:
        stats = s.stats()
        say("child", stats.lost_workers, stats.submitted, len(threading.enumerate()))
        say("child's", s.options(timeout=5, expires=5).submit(int, 7).result(5))
        s.check()
        s.shutdown()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    gate.wait()
    return "late"

waits = s.options(expires=30, delay=30).submit(int)
late = s.options(timeout=0.5).submit(forks)
say(type(late.exception()).__name__)
gate.set()
say("parent", s.stats().pending, s.submit(int, 5).result(5))
waits.cancel()
s.check()
"""
    )
    assert "child 0 0 1\nchild's 7\n" in done.stdout
    assert "parent 1 5" in done.stdout


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_lost_thread_that_forks_ends_in_the_child():
    """The child of a lost thread leaves by the worker's loop, as the child of any worker's does."""
    done = run_script(
        """
import os, threading, time
from threadsched import Scheduler, current_job

lost = threading.Event()
def task():
    assert lost.wait(10)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        print("child ended", flush=True)

s = Scheduler(1)
job = s.options(timeout=0.05).submit(task)
job.exception()
lost.set()
while s.stats().lost_workers:
    time.sleep(0.001)
print(s.submit(int, 3).result(5), bool(s.shutdown()))
"""
    )
    assert done.stdout == "child ended\n3 True\n"

"""``os.fork()`` with a live scheduler: the parent goes on untouched, the child starts with an empty one."""

import os
import sys

import pytest

from tests.support import run_script, size

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork"),
]

# in_child(action) forks, runs the action in the child, and returns what it said and how the child ended.
PRELUDE = """
import concurrent.futures, os, signal, sys, threading, time, traceback, warnings
from threadsched import Scheduler, JobStatus, current_job

warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads is the very point

def in_child(action, normal_exit=False, seconds=10):
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)  # faulthandler's own watch does not survive a fork
        os.close(receive)
        try:
            os.write(send, str(action()).encode())
            status = 0
        except BaseException:
            os.write(send, traceback.format_exc().encode())
        if normal_exit:
            sys.exit(status)
        os._exit(status)
    os.close(send)
    said = b""
    while piece := os.read(receive, 65536):
        said += piece
    os.close(receive)
    _, status = os.waitpid(pid, 0)
    return said.decode(), os.waitstatus_to_exitcode(status)

def cancelled(job):
    try:
        job.result(0)
    except concurrent.futures.CancelledError:
        return job.cancelled() and job.done()
    return False
"""


def run(script: str) -> str:
    done = run_script(PRELUDE + script)
    assert done.stderr == ""
    return done.stdout


def test_the_child_starts_empty_and_the_parent_goes_on() -> None:
    """In the child the inherited jobs are cancelled and a submission runs; the parent sees none of it."""
    run("""
scheduler = Scheduler(1, name="pool")
gate, started = threading.Event(), threading.Event()
def run():
    started.set()
    assert gate.wait(10)
    return "ran"
told = []
running = scheduler.submit(run)
assert started.wait(5)
ready = scheduler.submit(lambda: "ready")
delayed = scheduler.options(delay=0.01, id="delayed").submit(lambda: "delayed")
failing = scheduler.options(retries=1, backoff=0).submit(lambda: 1 / 0)
ended = None
for job in (running, ready, delayed):
    job.add_done_callback(told.append)
watched = scheduler.submit(lambda: "watched")
concurrent.futures.wait([watched], 0)   # has a condition now

def child():
    for job in (running, ready, delayed, failing, watched):
        assert cancelled(job), job
    assert told == []
    assert scheduler.stats().submitted == 0 and scheduler.stats().workers == 0, scheduler.stats()
    assert scheduler.get("delayed") is None
    assert not scheduler.closed
    assert len(concurrent.futures.wait([running, watched], 5).done) == 2
    assert scheduler.wait_idle(0)
    scheduler.check()
    assert scheduler.options(id="delayed").submit(int, 7).result(5) == 7
    assert [t.name for t in threading.enumerate()] == ["MainThread", "pool_0"]
    assert scheduler.map(abs, [-1, -2]).__next__() == 1
    scheduler.check()
    assert scheduler.shutdown(timeout=5)
    assert told == []
    return "fine"

assert in_child(child) == ("fine", 0), in_child(child)
gate.set()
assert (running.result(5), ready.result(5), delayed.result(5)) == ("ran", "ready", "delayed")
assert watched.result(5) == "watched"
assert isinstance(failing.exception(5), ZeroDivisionError)
assert scheduler.shutdown(timeout=5).done == 4
scheduler.check()
assert len(told) == 3
""")


def test_workers_may_start_after_a_preloading_fork() -> None:
    """A scheduler made before the fork and used only after it works in parent and child."""
    run("""
scheduler = Scheduler(2)
def use():
    return sum(job.result(5) for job in [scheduler.submit(int, number) for number in range(10)])
assert in_child(use) == ("45", 0)
assert in_child(lambda: in_child(use)) == ("('45', 0)", 0)
assert use() == 45
scheduler.shutdown()
""")


def test_a_closed_scheduler_stays_closed() -> None:
    """A scheduler that was shut down refuses in the child too."""
    run("""
scheduler = Scheduler(2)
scheduler.submit(int).result()
scheduler.shutdown()
def child():
    try:
        scheduler.submit(int)
    except RuntimeError:
        return "refused"
assert in_child(child) == ("refused", 0)
""")


def test_the_child_exits_by_itself() -> None:
    """A child that leaves normally is not held by the jobs that stayed with the parent, nor by its own delayed ones."""
    run("""
scheduler = Scheduler(2, exit_timeout=20)
gate = threading.Event()
jobs = [scheduler.submit(gate.wait, 10) for _ in range(4)]
scheduler.options(delay=3600).submit(int)
began = time.monotonic()
def child():
    scheduler.options(delay=3600).submit(int)
    return scheduler.submit(int, 3).result(5)
said = in_child(child, normal_exit=True)
assert said == ("3", 0), said
assert in_child(lambda: "unused", normal_exit=True) == ("unused", 0)
assert time.monotonic() - began < 5
gate.set()
assert all(job.result(5) for job in jobs)
scheduler.shutdown(cancel_futures=True)
""")


def test_fork_from_inside_a_task() -> None:
    """A task that forks goes on in both processes; in the child its job is detached and the scheduler is fresh."""
    run("""
scheduler = Scheduler(2, name="pool")
gate = threading.Event()
other = scheduler.submit(gate.wait, 10)
behind = scheduler.options(delay=0.01).submit(lambda: "behind")

def child():
    assert cancelled(other) and cancelled(behind)
    assert scheduler.submit(int, 7).result(5) == 7
    assert len([job for job in [scheduler.submit(abs, n) for n in range(20)] if job.result(5) >= 0]) == 20
    assert not task_job.cancelled()
    scheduler.check()
    assert scheduler.stats().done == 21
    assert scheduler.shutdown(timeout=5)
    assert not [t.name for t in threading.enumerate() if t is not threading.current_thread() and t.name[:4] == "pool"]
    return "fine"

ready = threading.Event()
def task():
    assert ready.wait(5)
    return in_child(child)
task_job = scheduler.submit(task)
ready.set()
assert task_job.result(15) == ("fine", 0), task_job.result()
gate.set()
assert behind.result(5) == "behind" and other.result(5) is True
scheduler.check()
assert scheduler.shutdown(timeout=5).done == 3
""")


def test_a_child_that_returns_from_the_task() -> None:
    """A child that lets its task return leaves the worker's loop: nothing of the parent's runs there."""
    run("""
scheduler = Scheduler(1)
log_reader, log_writer = os.pipe()
def task():
    pid = os.fork()
    return pid
def mark():
    os.write(log_writer, b"x")
started = threading.Event()
first = scheduler.submit(started.wait, 5)
job = scheduler.submit(task)
behind = [scheduler.submit(mark) for _ in range(20)]
started.set()
pid = job.result(5)
assert pid > 0
deadline = time.monotonic() + 5
while True:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        break
    if time.monotonic() > deadline:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the child lives on")
    time.sleep(0.01)
for one in behind:
    one.result(5)
scheduler.shutdown()
os.close(log_writer)
assert os.read(log_reader, 100) == b"x" * 20
""")


FORKS_OF_ONE = 20
FORKS = size(10 * FORKS_OF_ONE, FORKS_OF_ONE)  # each process by so many: it keeps all of its jobs, and grows
LOADED_FORKS = f"FORKS = {FORKS_OF_ONE}"
LOADED_FORKS += """
sys.setswitchinterval(1e-4)
scheduler = Scheduler(4)
runs, jobs, stop = {}, [], threading.Event()

def work(key):
    runs[key] = runs.get(key, 0) + 1
    return key

def hammer(number):
    count = 0
    while not stop.is_set():
        key = (number, count)
        jobs.append((key, scheduler.options(delay=0.001 if count % 5 == 0 else 0).submit(work, key)))
        count += 1
        if count % 10 == 0:
            jobs[-1][1].result(10)

threads = [threading.Thread(target=hammer, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()

def child():
    for key, job in list(jobs)[-500:]:
        assert job.done(), job
    assert scheduler.stats().submitted == 0
    assert [scheduler.submit(int, number).result(5) for number in range(3)] == [0, 1, 2]
    scheduler.check()
    assert scheduler.shutdown(timeout=5)
    return "fine"

for _ in range(FORKS):
    said = in_child(child)
    assert said == ("fine", 0), said
stop.set()
for thread in threads:
    thread.join(5)
    assert not thread.is_alive()
for key, job in jobs:
    assert job.result(5) == key
    assert runs[key] == 1
report = scheduler.shutdown(timeout=5)
assert report.done == len(jobs), (report, len(jobs))
scheduler.check()
"""


@pytest.mark.proof
@pytest.mark.skipif(sys.gettrace() is not None, reason="another thread may hold the tracer's own lock at the fork")
def test_many_forks_under_load() -> None:
    """200 forks under load (20 in a sample): no child hangs or fails, and each of the parent's jobs runs once."""
    for _ in range(FORKS // FORKS_OF_ONE):
        run(LOADED_FORKS)


def test_fork_while_another_thread_holds_the_lock() -> None:
    """A fork waits for a thread inside the scheduler, so the child inherits no held lock and no half change."""
    run("""
inside, leave = threading.Event(), threading.Event()
class Slow:
    # before() runs inside the lock, which is what this needs.
    armed = False
    def before(self, a, b):
        if self.armed:
            self.armed = False
            inside.set()
            assert leave.wait(5)
        return False
policy = Slow()
scheduler = Scheduler(1, policy=policy)
gate = threading.Event()
held = scheduler.submit(gate.wait, 10)
while held.status is not JobStatus.RUNNING:
    time.sleep(0.001)
first = scheduler.submit(int)
policy.armed = True
submitted = []
holder = threading.Thread(target=lambda: submitted.append(scheduler.submit(int)))
holder.start()
assert inside.wait(5)
threading.Timer(0.05, leave.set).start()

def child():
    assert leave.is_set()
    assert cancelled(first)
    return scheduler.submit(int, 5).result(5)
assert in_child(child) == ("5", 0)
holder.join(5)
gate.set()
assert first.result(5) == 0 and submitted[0].result(5) == 0
scheduler.check()
scheduler.shutdown()
""")


def test_several_threads_fork_at_once() -> None:
    """Threads that fork at the same moment, with several schedulers alive, disturb neither each other nor the pools."""
    run("""
sys.setswitchinterval(1e-6)
schedulers = [Scheduler(1, name=f"pool{number}") for number in range(3)]
for scheduler in schedulers:
    scheduler.submit(int).result(5)
noise = []
sys.unraisablehook = lambda info: noise.append(repr(info.exc_value))
barrier = threading.Barrier(4)

def fork_often():
    for _ in range(20):
        barrier.wait(10)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

threads = [threading.Thread(target=fork_often, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(15)
    assert not thread.is_alive()
assert noise == [], noise
for scheduler in schedulers:
    assert scheduler.submit(int, 3).result(5) == 3
    assert scheduler.shutdown(timeout=5)
""")


def test_waiters_in_the_child_are_released() -> None:
    """A thread that forks inside a wait of its own finds the job cancelled in the child."""
    run("""
scheduler = Scheduler(1)
gate = threading.Event()
job = scheduler.submit(gate.wait, 10)
outcome = []
def on_alarm(*_):
    outcome.append(in_child(lambda: cancelled(job)))
    gate.set()
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.1)
assert job.result(10) is True
assert outcome == [("True", 0)], outcome
scheduler.shutdown()
""")


def test_a_parked_waiter_wakes_in_the_child() -> None:
    """A handler that forks while its thread sleeps in ``result()`` ends that sleep in the child."""
    run("""
scheduler = Scheduler(1)
gate = threading.Event()
job = scheduler.submit(gate.wait, 10)
pids = []
def on_alarm(*_):
    pid = os.fork()
    pids.append(pid)
    if pid:
        gate.set()
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(8)
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    answer = job.result(10)
except concurrent.futures.CancelledError:
    answer = "cancelled"
if pids == [0]:
    os._exit(0 if answer == "cancelled" else 1)
assert answer is True
_, status = os.waitpid(pids[0], 0)
assert os.waitstatus_to_exitcode(status) == 0, status
scheduler.shutdown()
""")

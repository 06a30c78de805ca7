"""The interpreter exits with a live scheduler: what runs, what is given up, how long it may take, what is printed."""

import itertools
import re
import sys
import textwrap
import time

import pytest

from tests.support import run_script, sample

pytestmark = pytest.mark.subprocess

# What a script begins with: a way to say something that survives whatever happens afterwards.
PRELUDE = """
import os, signal, sys, threading, time
from threadsched import Scheduler, SchedulerClosedError, current_job

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def block():
    threading.Event().wait()
"""

# Kinds of jobs a process may exit with, and what each needs to be so at that moment.
KINDS = {
    "running": """
started = threading.Event()
def run():
    started.set()
    time.sleep(0.2)
    say("running: done")
scheduler.submit(run)
assert started.wait(5)
""",
    "stuck": """
hung = threading.Event()
def hang_for_ever():
    hung.set()
    block()
scheduler.options(name="the stuck one").submit(hang_for_ever)
assert hung.wait(5)
""",
    "retrying": """
def fail():
    say("retrying: attempt")
    raise ValueError("still broken")
retrying = scheduler.options(retries=5, backoff=30).submit(fail)
while not (retrying.attempts and retrying.status.name == "PENDING"):
    time.sleep(0.001)
retrying.add_done_callback(lambda job: say("retrying:", repr(job.exception())))
""",
    "delayed": """
delayed = scheduler.options(delay=30).submit(say, "delayed: ran")
delayed.add_done_callback(lambda job: say("delayed: cancelled", job.cancelled()))
""",
    "ready": """
def brief(number):
    time.sleep(0.002)
    say("ready:", number)
for number in range(40):
    scheduler.submit(brief, number)
""",
}

COMBINATIONS = [combination for size in range(1, len(KINDS) + 1) for combination in itertools.combinations(KINDS, size)]


def outcome(script: str, **options: object) -> tuple[list[str], str, float]:
    """Run a script that must end with 0; return its lines, its stderr and the seconds it took."""
    began = time.monotonic()
    done = run_script(PRELUDE + textwrap.dedent(script), **options)  # type: ignore[arg-type]
    return done.stdout.splitlines(), done.stderr, time.monotonic() - began


@pytest.mark.proof
@pytest.mark.parametrize("closing", ["nothing", "shutdown(wait=False)", "exception"])
@pytest.mark.parametrize(
    "combination", [pytest.param(one, id="+".join(one)) for one in sample(COMBINATIONS, 2, "exit")]
)
def test_exit_with_jobs(combination: tuple[str, ...], closing: str) -> None:
    """What runs and what is ready finishes, what is delayed is cancelled, what backs off fails, what is stuck is named.

    The process ends on its own in bounded time with the status of the main program, and prints nothing else.
    """
    stuck = "stuck" in combination
    script = f"scheduler = Scheduler(3, exit_timeout={0.6 if stuck else 10})\n"
    script += "".join(KINDS[kind] for kind in combination)
    if closing == "shutdown(wait=False)":
        script += "scheduler.shutdown(wait=False, drain='due')\n"
    if closing == "exception":
        script += "sys.exit(3)\n"
    began = time.monotonic()
    done = run_script(PRELUDE + script, expect=3 if closing == "exception" else 0)
    seconds = time.monotonic() - began
    lines = done.stdout.splitlines()
    assert ("running: done" in lines) == ("running" in combination)
    assert sum(line.startswith("ready:") for line in lines) == (40 if "ready" in combination else 0)
    assert lines.count("retrying: attempt") == ("retrying" in combination)
    assert lines.count("retrying: ValueError('still broken')") == ("retrying" in combination)
    assert lines.count("delayed: cancelled True") == ("delayed" in combination)
    assert "delayed: ran" not in lines
    assert "Traceback" not in done.stderr
    if stuck:
        assert "'the stuck one'" not in lines
        assert re.search(r"the stuck one.*still runs on threadsched_\d", done.stderr), done.stderr
        assert "in hang_for_ever" in done.stderr
        assert "in block" in done.stderr
        assert done.stderr.count("still runs on") == 1
        assert "_runtime.py" not in done.stderr
    else:
        assert done.stderr == ""
    assert seconds < 10


def test_exit_with_more_ready_jobs_than_time() -> None:
    """Ready jobs that do not fit into ``exit_timeout`` are cancelled; the process ends in time."""
    lines, stderr, seconds = outcome("""
        scheduler = Scheduler(1, exit_timeout=0.3)
        for number in range(1000):
            job = scheduler.submit(time.sleep, 0.01)
        job.add_done_callback(lambda job: say("last one cancelled", job.cancelled()))
    """)
    assert lines == ["last one cancelled True"]
    assert seconds < 5
    assert "Traceback" not in stderr


def test_exit_timeout_zero() -> None:
    """With ``exit_timeout=0`` the process does not wait at all."""
    lines, stderr, seconds = outcome("""
        scheduler = Scheduler(1, exit_timeout=0)
        scheduler.submit(block)
        scheduler.submit(say, "ready")
        time.sleep(0.1)
    """)
    assert lines == []
    assert stderr.count("still runs on") == 1
    assert seconds < 5


def test_a_job_that_looks_is_asked_to_stop_at_half_time() -> None:
    """At half of ``exit_timeout`` the cancel token of what runs is set, so a task that looks ends in good order."""
    lines, stderr, seconds = outcome("""
        scheduler = Scheduler(3, exit_timeout=0.6)

        def sleeper():
            woken = current_job().sleep(3600)
            say("sleeper", woken, current_job().cancel_requested)

        def poller():
            me = current_job()
            while me.sleep(0.01):
                pass
            say("poller")

        def leaver():
            while True:
                current_job().check_cancelled()
                time.sleep(0.01)

        for task in (sleeper, poller):
            scheduler.submit(task)
        left = scheduler.submit(leaver)
        left.add_done_callback(lambda job: say("leaver", job.status.name))
        time.sleep(0.1)
        import atexit
        # Registered before none of ours: runs first. The last word is said by a finalizer of threading's own list.
        atexit.register(lambda: say("exit begins"))
    """)
    assert lines[0] == "exit begins"
    assert sorted(lines[1:]) == ["leaver CANCELLED", "poller", "sleeper False True"]
    assert stderr == ""
    assert 0.3 < seconds < 5


def test_several_schedulers_share_one_deadline() -> None:
    """Five stuck schedulers hold the process for one ``exit_timeout``, not for five, and each stuck job is named."""
    lines, stderr, seconds = outcome("""
        schedulers = [Scheduler(1, name=f"pool{number}", exit_timeout=1) for number in range(5)]
        for scheduler in schedulers:
            scheduler.submit(block)
        time.sleep(0.1)
        say("end")
    """)
    assert lines == ["end"]
    assert seconds < 4
    assert sorted(re.findall(r"still runs on (pool\d)_0", stderr)) == [f"pool{number}" for number in range(5)]


def test_idle_and_unused_schedulers_do_not_delay_the_exit() -> None:
    """Schedulers that never ran anything, that idle, or that were shut down let the process go at once."""
    _, stderr, seconds = outcome("""
        unused, idle, closed = Scheduler(), Scheduler(4), Scheduler(2)
        idle.submit(int).result()
        closed.submit(int)
        closed.shutdown()
        watching = Scheduler(2)
        watching.options(delay=3600).submit(int)
    """)
    assert stderr == ""
    assert seconds < 5


def test_shutdown_without_waiting_then_exit_finishes_all() -> None:
    """After ``shutdown(wait=False)`` the exit still waits for what runs and what is ready."""
    lines, stderr, _ = outcome("""
        scheduler = Scheduler(1)
        def slow(number):
            time.sleep(0.1)
            say(number)
        for number in range(3):
            scheduler.submit(slow, number)
        scheduler.shutdown(wait=False)
        say("main ends")
    """)
    assert lines == ["main ends", "0", "1", "2"]
    assert stderr == ""


def test_sys_exit_inside_with() -> None:
    """``sys.exit`` inside ``with`` drains what is due and ends with its status."""
    done = run_script(
        PRELUDE
        + """
with Scheduler(1) as scheduler:
    scheduler.submit(time.sleep, 0.1)
    scheduler.submit(say, "ready ran")
    scheduler.options(delay=3600).submit(say, "delayed ran")
    sys.exit(5)
""",
        expect=5,
    )
    assert (done.stdout, done.stderr) == ("ready ran\n", "")


def test_an_uncaught_exception_keeps_its_status_and_traceback() -> None:
    """A main program that fails prints its own traceback alone and exits with 1, after the jobs are drained."""
    done = run_script(
        PRELUDE
        + """
scheduler = Scheduler(1)
scheduler.submit(time.sleep, 0.1)
scheduler.submit(say, "ready ran")
raise LookupError("of the main program")
""",
        expect=1,
    )
    assert done.stdout == "ready ran\n"
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("LookupError: of the main program")


# ---------------------------------------------------------------- submitting while the process ends


@pytest.mark.parametrize("order", ["before", "after"])
def test_submit_from_an_atexit_hook(order: str) -> None:
    """A hook registered after the scheduler still submits; one registered before it is refused by a RuntimeError."""
    lines, stderr, _ = outcome(f"""
        import atexit
        def hook():
            try:
                say("result", scheduler.submit(int, 7).result(5))
            except RuntimeError as error:
                say(type(error).__mro__[1].__name__, str(error).startswith("cannot schedule new futures"))
        if {order == "before"}:
            atexit.register(hook)
        scheduler = Scheduler(1)
        scheduler.submit(int).result()
        if {order == "after"}:
            atexit.register(hook)
    """)
    assert lines == ["SchedulerClosedError True" if order == "before" else "result 7"]
    assert stderr == ""


def test_first_submit_from_an_atexit_hook() -> None:
    """A hook that makes the very first submission gets its result or a RuntimeError, and nothing stays behind.

    Some interpreters refuse new threads at that time.
    """
    lines, stderr, _ = outcome("""
        import atexit
        scheduler = Scheduler(2)
        @atexit.register
        def hook():
            try:
                say("result", scheduler.submit(int, 7).result(5))
            except RuntimeError as error:
                say("refused", scheduler.stats().submitted)
    """)
    assert lines in (["result 7"], ["refused 0"])
    assert stderr == ""


def test_submit_from_del_at_exit() -> None:
    """An object that dies with its module and submits from ``__del__`` gets a RuntimeError, without any noise."""
    lines, stderr, _ = outcome("""
        class Late:
            def __init__(self, scheduler):
                self.scheduler = scheduler
                self.say, self.RuntimeError = say, RuntimeError
            def __del__(self):
                try:
                    self.scheduler.submit(print)
                except self.RuntimeError:
                    self.say("refused")
        scheduler = Scheduler(1)
        scheduler.submit(int).result()
        late = Late(scheduler)
        cycle = [Late(scheduler)]
        cycle.append(cycle)
        del scheduler
    """)
    assert lines == ["refused", "refused"]
    assert stderr == ""


def test_a_non_daemon_thread_goes_on_using_the_pool() -> None:
    """A thread of the user's that outlives the main program is served to its end, delayed jobs included."""
    lines, stderr, _ = outcome("""
        scheduler = Scheduler(2)
        def work():
            main.join()
            for number in range(3):
                say(scheduler.options(delay=0.02).submit(int, number).result(5))
            say("first submission elsewhere", Scheduler(1, name="late").submit(int, 9).result(5)
                if sys.version_info[:3] != (3, 12, 1) else 9)
        main = threading.main_thread()
        scheduler.submit(int).result()
        threading.Thread(target=work).start()
    """)
    assert lines == ["0", "1", "2", "first submission elsewhere 9"]
    assert stderr == ""


def test_daemon_threads_that_submit_do_not_hold_the_exit() -> None:
    """Daemon threads that submit without pause are refused at exit and neither hang nor print."""
    _, stderr, seconds = outcome("""
        scheduler = Scheduler(2)
        def hammer():
            try:
                while True:
                    scheduler.submit(int)
            except RuntimeError:
                pass
        for _ in range(4):
            threading.Thread(target=hammer, daemon=True).start()
        time.sleep(0.1)
    """)
    assert stderr == ""
    assert seconds < 8


def test_a_job_may_submit_until_the_door_closes() -> None:
    """Jobs that submit their successor for ever are stopped by the exit: the chain breaks with a RuntimeError."""
    lines, stderr, _ = outcome("""
        scheduler = Scheduler(2)
        def link(number):
            time.sleep(0.001)
            try:
                scheduler.submit(link, number + 1)
            except SchedulerClosedError:
                say("chain broken")
        scheduler.submit(link, 0)
        time.sleep(0.1)
    """)
    assert lines == ["chain broken"]
    assert stderr == ""


def test_exit_inside_a_job_does_not_exit() -> None:
    """``sys.exit`` in a task ends that job alone; the process goes on."""
    lines, stderr, _ = outcome("""
        scheduler = Scheduler(1)
        say(repr(scheduler.submit(sys.exit, 9).exception()))
        say(scheduler.submit(int, 3).result())
    """)
    assert lines == ["SystemExit(9)", "3"]
    assert stderr == ""


# ---------------------------------------------------------------- Ctrl-C

# Sends the process as many Ctrl-C as there are delays, each some time after the one before.
INTERRUPTS = """
def interrupt(*delays):
    def run():
        for delay in delays:
            time.sleep(delay)
            say("ctrl-c")
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=run, daemon=True).start()

signal.signal(signal.SIGINT, signal.default_int_handler)
running, release = threading.Event(), threading.Event()
def run():
    running.set()
    release.wait(10)
    say("job done")
"""

WAITS = {
    "shutdown": "scheduler.shutdown()",
    "shutdown with a timeout": "scheduler.shutdown(timeout=5)",
    "with": "scheduler.__exit__(None, None, None)",
    "result": "job.result()",
    "result with a timeout": "job.result(5)",
    "exception": "job.exception()",
    "wait_idle": "scheduler.wait_idle()",
    "wait_idle with a timeout": "scheduler.wait_idle(5)",
    "wait": "concurrent.futures.wait([job])",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_while_waiting(wait: str) -> None:
    """Ctrl-C ends any wait with KeyboardInterrupt at once; the scheduler is whole, and one can wait again."""
    lines, stderr, _ = outcome(
        INTERRUPTS
        + f"""
import concurrent.futures
scheduler = Scheduler(2)
job = scheduler.submit(run)
assert running.wait(5)
interrupt(0.1)
try:
    {WAITS[wait]}
    say("not interrupted")
except KeyboardInterrupt:
    say("interrupted", job.done())
release.set()
scheduler.check()
{WAITS[wait]}
say("again", job.done())
say(bool(scheduler.shutdown()))
"""
    )
    assert lines == ["ctrl-c", "interrupted False", "job done", "again True", "True"]
    assert stderr == ""


@pytest.mark.parametrize("wait", ["shutdown", "result", "wait_idle"])
def test_a_second_ctrl_c(wait: str) -> None:
    """A second Ctrl-C, during the wait that the handler of the first one began, interrupts that too."""
    lines, stderr, _ = outcome(
        INTERRUPTS
        + f"""
scheduler = Scheduler(2)
job = scheduler.submit(run)
assert running.wait(5)
interrupt(0.05, 0.1)
try:
    try:
        {WAITS[wait]}
    finally:
        scheduler.shutdown()
except KeyboardInterrupt as error:
    say("interrupted", job.done(), type(error.__context__).__name__)
release.set()
say(scheduler.closed, bool(scheduler.shutdown()))
"""
    )
    assert lines == ["ctrl-c", "ctrl-c", "interrupted False KeyboardInterrupt", "job done", "True True"]
    assert stderr == ""


@pytest.mark.parametrize("presses", [1, 2, 5])
def test_ctrl_c_during_the_exit_hook(presses: int) -> None:
    """Ctrl-C while the exiting process waits for a job ends the wait; the job is named, there is no traceback."""
    lines, stderr, seconds = outcome(
        INTERRUPTS
        + f"""
scheduler = Scheduler(1, exit_timeout=20)
def hang():
    running.set()
    block()
scheduler.submit(hang)
assert running.wait(5)
interrupt(0.2, *[0.0001] * {presses - 1})
"""
    )
    assert lines[0] == "ctrl-c"
    assert seconds < 8
    # What somebody interrupts after our hook, logging's own one for instance, is not ours to silence.
    assert "threadsched" not in stderr.partition("Exception ignored")[2], stderr
    if presses == 1:
        assert stderr.count("still runs on") == 1
        assert "Traceback" not in stderr
    else:
        assert "still runs on" in stderr


def test_ctrl_c_in_the_main_program_drains_due() -> None:
    """A main program that dies of Ctrl-C inside ``with`` ends as Python does, and what was ready has run."""
    done = run_script(
        PRELUDE
        + INTERRUPTS
        + """
with Scheduler(1) as scheduler:
    scheduler.submit(run)
    assert running.wait(5)
    scheduler.submit(say, "ready ran")
    scheduler.options(delay=3600).submit(say, "delayed ran")
    interrupt(0.05)
    threading.Timer(0.2, release.set).start()
    time.sleep(5)
""",
        expect=None,
    )
    assert done.returncode in (-2, 130)
    assert done.stdout.splitlines() == ["ctrl-c", "job done", "ready ran"]
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_sigterm_that_exits() -> None:
    """A SIGTERM handler that shuts down without waiting and leaves by ``sys.exit`` ends the process in good order."""
    lines, stderr, _ = outcome("""
        scheduler = Scheduler(2)
        def stop(*_):
            scheduler.shutdown(wait=False, drain="due")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        def slow():
            time.sleep(0.3)
            say("slow done")
        scheduler.submit(slow)
        scheduler.options(delay=3600).submit(say, "delayed ran")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            scheduler.submit(int).result()
    """)
    assert lines == ["slow done"]
    assert stderr == ""


# ---------------------------------------------------------------- other ways out


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("kind", ["ready", "stuck", "delayed"])
def test_a_multiprocessing_child_made_by_fork(kind: str) -> None:
    """A forked child of ``multiprocessing`` that used a scheduler ends with 0 on every version, in bounded time."""
    lines, stderr, seconds = outcome(f"""
        import multiprocessing, warnings
        warnings.simplefilter("ignore")
        inherited = Scheduler(1, name="inherited")
        inherited.submit(int).result()

        def child():
            own = Scheduler(1, exit_timeout=0.5)
            for scheduler in (inherited, own):
                scheduler.submit(int).result(5)
            if {kind == "ready"}:
                for number in range(20):
                    own.submit(time.sleep, 0.005)
                own.submit(say, "the last one ran")
            if {kind == "stuck"}:
                own.submit(block)
            if {kind == "delayed"}:
                own.options(delay=3600).submit(say, "ran")

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(10)
        say("exit code", process.exitcode)
        say(inherited.submit(int, 4).result(5))
    """)
    ran = ["the last one ran"] if kind == "ready" else []
    assert lines == [*ran, "exit code 0", "4"]
    assert "Traceback" not in stderr
    if kind == "stuck":
        assert stderr.count("still runs on") == 1
    assert seconds < 8


def test_the_hook_is_unregistered_with_its_scheduler() -> None:
    """Schedulers that were shut down or dropped leave no exit hook behind."""
    lines, _, _ = outcome("""
        import gc, weakref
        hooks, threads = [], []
        for number in range(20):
            scheduler = Scheduler(1)
            hooks.append(weakref.ref(scheduler._runtime.exit_hook))
            if number % 2:
                scheduler.submit(int).result()
            if number % 3:
                scheduler.shutdown()
            threads += [t for t in threading.enumerate() if t.name.startswith("threadsched")]
        del scheduler
        gc.collect()
        for thread in threads:
            thread.join(5)
        say(len(threads) > 3, [hook() for hook in hooks if hook() is not None])
    """)
    assert lines == ["True []"]

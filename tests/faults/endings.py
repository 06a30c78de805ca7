"""A program: ends a process that has a live scheduler, in one way, many times. Run by test_endings.py.

    python -m tests.faults.endings WAY TIMES SEED

Each trial is a forked child with a scheduler full of every kind of job, and goes through a real end at a moment of its
own. The parent judges what it wrote: a job writes its letter when it has run.
"""

import asyncio
import atexit
import contextlib
import os
import random
import re
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from tests.faults.apart import Trials
from threadsched import Limit, Scheduler, SchedulerClosedError

READY, LIMITED, DEPENDENT, COROUTINE = 30, 3, 2, 3
# What must have been written once everything that was due has run: ready, limited, dependent, coroutine, running.
ALL_DUE = Counter(r=READY, l=LIMITED, p=DEPENDENT, c=COROUTINE, R=1)


# What Python itself prints of a Ctrl-C that strikes inside a finalizer, and then drops.
# At the entry of a function it underlines nothing, which is an empty line.
STRUCK_FINALIZER = re.compile(r"Exception ignored in: .*\n(Traceback .*\n((  .*)?\n)*?)?\s*KeyboardInterrupt:? *\n*")


def write(letter: str) -> None:
    os.write(1, letter.encode())


def fill(rng: random.Random, **options: Any) -> Scheduler:
    """Return a scheduler with running, ready, limited, dependent, coroutine, delayed, retrying and recurring jobs."""
    scheduler = Scheduler(3, limits={"one": Limit(concurrency=1)}, **options)
    started = threading.Event()

    def run() -> None:
        started.set()
        time.sleep(rng.random() * 0.01)
        write("R")

    async def coroutine() -> None:
        await asyncio.sleep(0)
        write("c")

    def fail() -> None:
        raise ValueError("on purpose")

    running = scheduler.submit(run)
    assert started.wait(5)
    # What ends FAILED or is dropped at exit would be told by the log if nobody had asked: that is a feature.
    retrying = scheduler.options(retries=3, backoff=30).submit(fail)
    retrying.add_done_callback(lambda job: None)
    scheduler.options(delay=30).submit(write, "X")
    scheduler.every(30, write, "X")
    steps: list[Callable[[], Any]] = [lambda: scheduler.submit(write, "r")] * READY
    steps += [lambda: scheduler.options(limits="one").submit(write, "l")] * LIMITED
    steps += [lambda: scheduler.options(after=[running]).submit(write, "p")] * DEPENDENT
    steps += [lambda: scheduler.submit(coroutine)] * COROUTINE
    rng.shuffle(steps)
    for step in steps:
        step()
    return scheduler


def judge_all_due(said: str, noise: str) -> None:
    assert Counter(said) == ALL_DUE, f"{Counter(said)} is not {ALL_DUE}"
    assert noise == "", "noise"


def at_most_once(said: str, noise: str) -> None:
    assert not Counter(said) - ALL_DUE, f"{Counter(said)} is more than {ALL_DUE}"
    assert noise == "", "noise"


def signals(*numbers: int) -> Callable[[int, random.Random], None]:
    """Return who sends these signals, each within a few milliseconds of the one before."""

    def disturb(pid: int, rng: random.Random) -> None:
        for number in numbers:
            time.sleep(rng.random() * 0.006)
            os.kill(pid, number)

    return disturb


# ---------------------------------------------------------------- the interpreter exits


def exit_(trials: Trials) -> None:
    """The program ends, also beside a pause: what is due runs, the rest is given up, nothing is printed."""
    rng = trials.each(judge_all_due)
    scheduler = fill(rng)
    globals()["kept"] = scheduler
    if rng.random() < 0.3:
        scheduler.pause()
    time.sleep(rng.random() * 0.01)
    if rng.random() < 0.3:
        scheduler.shutdown(wait=False, drain="due")


def dropped(trials: Trials) -> None:
    """Nobody holds the scheduler when the program ends."""
    rng = trials.each(judge_all_due)
    fill(rng)
    time.sleep(rng.random() * 0.01)


def stuck(trials: Trials) -> None:
    """Beside a job that never ends, which is named: all else as ever, in bounded time."""

    def judge(said: str, noise: str) -> None:
        assert Counter(said) == ALL_DUE, f"{Counter(said)} is not {ALL_DUE}"
        assert noise.count("still runs on") == 1, "the stuck one is not named once"
        assert "in block" in noise, "no stack"
        assert "Traceback" not in noise, "a traceback"

    rng = trials.each(judge)

    def block() -> None:
        threading.Event().wait()

    scheduler = globals()["kept"] = fill(rng, exit_timeout=0.3)
    scheduler.options(priority=-9).submit(block)
    time.sleep(rng.random() * 0.01)


def os_exit(trials: Trials) -> None:
    """``os._exit`` at any moment: it ends there, with its status, and says nothing."""
    rng = trials.each(at_most_once)
    scheduler = fill(rng)
    if rng.random() < 0.5:
        threading.Thread(target=scheduler.shutdown, daemon=True).start()
    time.sleep(rng.random() * 0.01)
    os._exit(7)


def late(trials: Trials) -> None:
    """Submissions from an ``atexit`` hook before and after ours, and from a finalizer of a dying module."""

    def judge(said: str, noise: str) -> None:
        count = Counter(said)
        assert count["A"] + count["a"] == 2, "a hook was neither served nor refused"
        assert count["F"] + count["f"] == 1, "a finalizer was neither served nor refused"
        assert noise == "", "noise"

    rng = trials.each(judge)

    def hook() -> None:
        try:
            scheduler.submit(int).result(5)
            write("A")
        except RuntimeError:
            write("a")

    class Last:
        def __del__(self, write: Any = write, hook: Any = hook) -> None:
            try:
                scheduler.submit(int)
                write("F")
            except RuntimeError:
                write("f")

    atexit.register(hook)
    scheduler = Scheduler(2)
    atexit.register(hook)
    if rng.random() < 0.7:
        scheduler.submit(time.sleep, rng.random() * 0.002).result()
    sys.modules["last"] = Last()  # type: ignore[assignment]


# ---------------------------------------------------------------- signals


def sigterm(trials: Trials) -> None:
    """A SIGTERM handler that calls ``shutdown(wait=False)``, while the main thread submits and waits."""

    def judge(said: str, noise: str) -> None:
        assert said == "done", said
        assert noise == "", "noise"

    rng = trials.each(judge, signals(signal.SIGTERM, signal.SIGTERM))
    scheduler = Scheduler(2)
    signal.signal(signal.SIGTERM, lambda *_: scheduler.shutdown(wait=False, drain=rng.choice(["all", "due", "none"])))
    trials.ready()
    jobs = []
    with contextlib.suppress(SchedulerClosedError, CancelledError):
        while True:
            jobs += [scheduler.submit(int) for _ in range(rng.randrange(1, 5))]
            jobs[-1].exception(5)
    assert scheduler.closed
    scheduler.shutdown()
    assert all(job.done() for job in jobs)
    scheduler.check()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the interpreter gives handlers up before its end
    write("done")


def in_shutdown(trials: Trials, first: int, second: int) -> None:
    """Signals strike somewhere in a waiting shutdown: SIGINT breaks it off, SIGTERM's handler sharpens it."""

    def judge(said: str, noise: str) -> None:
        assert said.endswith("whole"), "not whole"
        assert not Counter(said.removesuffix("whole")) - ALL_DUE, "run twice"
        assert STRUCK_FINALIZER.sub("", noise) == "", "noise"

    rng = trials.each(judge, signals(first, second))
    scheduler = globals()["kept"] = fill(rng)
    armed = False

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    def shut() -> bool:
        nonlocal armed
        try:
            armed = True
            report = scheduler.shutdown(drain=rng.choice(["due", "none"]))
            armed = False
            return bool(report)
        except KeyboardInterrupt:
            armed = False
            return False

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, lambda *_: scheduler.shutdown(wait=False, drain="none"))
    trials.ready()
    time.sleep(rng.random() * 0.002)
    try:
        shut()
        shut()
    except KeyboardInterrupt:  # the second one, in the line that answers the first
        pass
    armed = False
    report = scheduler.shutdown(drain="none", timeout=5)
    assert report, report
    scheduler.check()
    stats = scheduler.stats()
    assert stats.submitted == stats.done + stats.failed + stats.cancelled, stats
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write("whole")


# ---------------------------------------------------------------- fork


def fork(trials: Trials) -> None:
    """Threads submit, cancel and wait, and the process is forked at any moment, also by a task, also twice over."""

    def judge(said: str, noise: str) -> None:
        assert said.count("k") == 4, "a child did not serve"
        assert said.endswith("parent"), "the parent did not go on"
        assert noise == "", "noise"

    rng = trials.each(judge)
    warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of forking beside threads
    sys.setswitchinterval(1e-5)
    scheduler = globals()["kept"] = Scheduler(3)
    stop = threading.Event()
    jobs: list[Any] = []

    def produce() -> None:
        while not stop.is_set():
            mine = [scheduler.options(delay=number % 2 * 0.001).submit(int) for number in range(6)]
            jobs.extend(mine)
            mine[-2].cancel()
            mine[-3].exception(5)

    def branch(deeper: bool) -> int:
        """Fork; serve in the child and end it there; return the child's number in the parent."""
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.alarm(10)  # not faulthandler's timer, which a fork breaks
            assert scheduler.stats().submitted == 0
            assert all(job.done() for job in list(jobs)[:50])
            assert scheduler.submit(int, 7).result(5) == 7
            if deeper:
                ended(branch(False))
            scheduler.check()
            assert scheduler.shutdown(timeout=5)
            write("k")
            os._exit(0)
        finally:
            os._exit(1)

    def ended(pid: int) -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    threads = [threading.Thread(target=produce, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(rng.random() * 0.005)
    ended(branch(False))
    ended(scheduler.submit(branch, False).result(5))
    ended(branch(True))
    stop.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert all(job.cancelled() or job.exception(5) is None for job in jobs)
    assert scheduler.shutdown(timeout=5)
    scheduler.check()
    write("parent")


WAYS: dict[str, tuple[Callable[[Trials], None], tuple[int, ...]]] = {
    "exit": (exit_, (0,)),
    "dropped": (dropped, (0,)),
    "stuck": (stuck, (0,)),
    "os._exit": (os_exit, (7,)),
    "late": (late, (0,)),
    "sigterm": (sigterm, (0,)),
    "int, int": (lambda trials: in_shutdown(trials, signal.SIGINT, signal.SIGINT), (0,)),
    "term, int": (lambda trials: in_shutdown(trials, signal.SIGTERM, signal.SIGINT), (0,)),
    "int, term": (lambda trials: in_shutdown(trials, signal.SIGINT, signal.SIGTERM), (0,)),
    "fork": (fork, (0,)),
}

if __name__ == "__main__":
    way, status = WAYS[sys.argv[1]]
    way(Trials(sys.argv[3], int(sys.argv[2]), status))

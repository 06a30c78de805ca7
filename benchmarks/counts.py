"""What the hot path executes: bytecodes and calls of a submission, a worker's turn (settle one job, claim the next),
the run of the task between, and ``result()``; and processor instructions, where ``valgrind`` is installed.

Counts repeat from run to run, whatever else the machine does, so they show what a change removed or added where a
clock shows noise. Everything runs on one thread: the workers are not started, and this thread takes their turns.
``ThreadPoolExecutor`` is counted in the same way.

- Bytecodes by ``sys.settrace`` or ``sys.monitoring``, calls by ``sys.setprofile``, after a warm-up.
- Instructions by ``valgrind --tool=callgrind``: those of a process that runs a phase so many times, less those of one
  that does not; the task's count with the turn's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from types import CodeType, FrameType
from typing import Any

from benchmarks._command import Settings, run
from benchmarks._pools import POOL, WORKERS, noop
from benchmarks._rows import ROOT, Row
from threadsched import Scheduler, _exit, _locks
from threadsched._worker import Worker, run_task

PHASES = ("submit", "turn", "task", "result")
WORDS = {
    "submit": "submit a no-op",
    "turn": "a worker's turn: settle one, claim the next",
    "task": "run the task in its context",
    "result": "result() of a job that has ended",
    "job": "all of it, for one job",
    "options": "make options(priority=..., retries=...)",
    "delayed": "make options(delay=...) and submit with it",
    "cancel": "cancel a delayed job",
}
EXTRAS = ("options", "delayed", "cancel")
WARM = 200
EMPTY = Context()


class Ours:
    """A scheduler whose workers were never started; this thread is the one worker."""

    def __init__(self) -> None:
        start, _locks.start_thread = _locks.start_thread, lambda *_: threading.current_thread()
        try:
            self.scheduler = Scheduler(WORKERS, exit_timeout=0)  # nobody would answer at exit
            self.scheduler.start()
        finally:
            _locks.start_thread = start
        self.runtime = self.scheduler._runtime
        self.worker = Worker(self.runtime, 0)
        self.ended: deque[Any] = deque()
        self.job: Any = None  # claimed in the last turn
        self.last: Any = None

    def submit(self) -> None:
        self.last = self.scheduler.submit(noop)

    def turn(self) -> None:
        settled, self.job = self.job, None
        if settled is not None:
            self.ended.append(settled)
        self.job = self.runtime.turn(self.worker, settled, None, "noop", self.runtime.now())

    def task(self) -> None:
        job = self.job
        context = job._result  # until it has ended
        run_task(job._fn, job._args, EMPTY if context is None else context)

    def result(self) -> None:
        self.ended.popleft().result()

    def options(self) -> None:
        self.scheduler.options(priority=3, retries=2)

    def delayed(self) -> None:
        self.last = self.scheduler.options(delay=3600).submit(noop)

    def cancel(self) -> None:
        self.last.cancel()

    def close(self) -> None:
        """Settle what runs and leave nothing to wait for at exit."""
        self.scheduler.shutdown(wait=False, cancel_futures=True)
        self.turn()
        self.runtime.launched.clear()
        _exit.forget(self.runtime)


class Standard:
    """``ThreadPoolExecutor``, likewise. It has one phase where ours has two: its work item runs and settles."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(WORKERS)
        self.pool._adjust_thread_count = lambda: None  # type: ignore[method-assign]  # start no thread
        self.ended: deque[Any] = deque()

    def submit(self) -> None:
        self.ended.append(self.pool.submit(noop))

    def turn(self) -> None:
        self.pool._work_queue.get(block=True).run()

    def task(self) -> None:
        """Nothing: the turn has run it."""

    def result(self) -> None:
        self.ended.popleft().result()

    def close(self) -> None:
        """End the pool."""
        self.pool.shutdown(cancel_futures=True)


def bytecodes(work: Callable[[], object]) -> int:
    """Return how many bytecodes ``work`` executes, those of frames in this file aside."""
    # From 3.12 on tracing goes through sys.monitoring, and settrace() may miss opcodes of frames that it has not seen.
    return _monitored(work) if sys.version_info >= (3, 12) else _traced(work)


def _traced(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _monitored(work: Callable[[], object]) -> int:
    if sys.version_info < (3, 12):
        raise NotImplementedError("sys.monitoring is of 3.12")
    count = 0
    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID

    def instruction(code: CodeType, offset: int) -> object:
        nonlocal count
        if code.co_filename == __file__:
            return monitoring.DISABLE
        count += 1
        return None

    monitoring.use_tool_id(tool, "counts")
    try:
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, instruction)
        monitoring.set_events(tool, monitoring.events.INSTRUCTION)
        work()
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
    finally:
        monitoring.free_tool_id(tool)
    return count


def calls(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many calls of Python functions and of C functions ``work`` makes, those from this file aside."""
    python = c = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal python, c
        if frame.f_code.co_filename != __file__:
            python += event == "call"
            c += event == "c_call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return python, c


def counts_of(work: Callable[[], object], between: Callable[[], object] | None) -> dict[str, float]:
    """Count what one call executes and, after what has to come between two of them, what it calls."""
    executed = bytecodes(work)
    if between is not None:
        between()
    python, c = calls(work)
    return {"bytecodes": executed, "calls": python, "c_calls": c}


def counted(side: Any, extras: tuple[str, ...] = ()) -> dict[str, dict[str, float]]:
    """Count each phase of one side, once warm, and what else it can do."""
    for _ in range(WARM):
        for phase in PHASES:
            if phase == "result" and not side.ended:
                continue  # the first of our turns settles nothing
            getattr(side, phase)()
    for _ in range(3):
        side.submit()
    found: dict[str, dict[str, float]] = {}
    for phase in PHASES:
        found[phase] = counts_of(getattr(side, phase), side.task if phase == "turn" else None)
    for _ in range(WARM if extras else 0):  # now, for what is delayed makes each turn look whether it is due
        side.delayed()  # one that stays: so many live ones that no cancel has to sweep
        for extra in extras:
            getattr(side, extra)()
    for extra in extras:
        found[extra] = counts_of(getattr(side, extra), side.delayed if extra == "cancel" else None)
    side.close()
    return found


# ---------------------------------------------------------------- instructions


def child(side: str, repeats: int, phases: int) -> None:
    """Run the first so many phases ``repeats`` times and the others a few times; what callgrind looks at."""
    subject: Any = {"ours": Ours, "standard": Standard}[side]()
    few = 50

    def rounds(phase: int) -> int:
        return few + (repeats if phase < phases else 0)

    for _ in range(rounds(0)):
        subject.submit()
    for _ in range(min(rounds(1), rounds(0) - 1)):
        subject.turn()
        subject.task()
    for _ in range(min(rounds(2), len(subject.ended) - 1)):
        subject.result()
    sys.stdout.flush()
    os._exit(0)


def instructions(side: str, repeats: int, phases: int) -> int | None:
    """Return what one child executes in all, or None if valgrind says nothing."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        "-m",
        "benchmarks.counts",
        "--child",
        side,
        str(repeats),
        str(phases),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    match = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    return int(match[1]) if match else None


def all_instructions(side: str, repeats: int, marks: tuple[int, ...]) -> list[float]:
    """Return the instructions between so many phases and so many, for each neighbouring two of ``marks``."""
    totals = [instructions(side, repeats, phases) for phases in marks]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        return []
    return [(after - before) / repeats for before, after in itertools.pairwise(known)]


def answer(settings: Settings) -> list[Row]:
    """Count both sides."""
    own, other = counted(Ours(), EXTRAS), counted(Standard())
    own["job"], other["job"] = total(own), total(other)
    if shutil.which("valgrind"):
        repeats = 500 if settings.quick else 3_000
        steps = [] if settings.quick else all_instructions("ours", repeats, (0, 1, 2, 3))
        for phase, figure in zip(("submit", "turn", "result"), steps, strict=False):
            own[phase]["instructions"] = figure
        own["job"] |= instructions_of_all("ours", repeats) if not steps else {"instructions": sum(steps)}
        if not settings.quick:
            other["job"] |= instructions_of_all("standard", repeats)
    else:
        print("no valgrind here: bytecodes and calls only")
    rows = []
    for phase, words in WORDS.items():
        figures = dict(own[phase])
        alone = phase == "task" or phase in EXTRAS
        if not alone:
            figures |= {f"{name}_theirs": figure for name, figure in other[phase].items()}
        rows.append(Row(phase, words, None if alone else POOL, figures=figures))
    return rows


def total(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Add the phases up."""
    return {name: sum(found[phase][name] for phase in PHASES) for name in found["submit"]}


def instructions_of_all(side: str, repeats: int) -> dict[str, float]:
    """Return the instructions of a whole job."""
    steps = all_instructions(side, repeats, (0, 3))
    return {"instructions": steps[0]} if steps else {}


if __name__ == "__main__":
    if "--child" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--child", nargs=3)
        side, repeats, phases = parser.parse_args().child
        child(side, int(repeats), int(phases))
    run("counts", __doc__, answer)

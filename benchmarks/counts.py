"""What the hot path executes: bytecodes and calls of a submission, a worker's turn (settle one job, claim the next), the
run of the task between, and ``result()``; and processor instructions, where ``valgrind`` is installed.

Counts repeat from run to run, whatever else the machine does, so they show what a change removed or added where a
clock shows noise. Everything runs on one thread: the workers are not started, and this thread takes their turns.
``ThreadPoolExecutor`` is counted in the same way.

- Bytecodes by ``sys.settrace`` on opcodes, calls by ``sys.setprofile``, after a warm-up.
- Instructions by ``valgrind --tool=callgrind``: a process that runs each phase so many times, less one that does not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from benchmarks._command import Settings, run
from benchmarks._pools import noop
from benchmarks._rows import ROOT, Row
from threadsched import Scheduler, _locks
from threadsched._worker import Worker, run_task

PHASES = ("submit", "turn", "task", "result")
WORDS = {
    "submit": "submit a no-op",
    "turn": "a worker's turn: settle one, claim the next",
    "task": "run the task in its context",
    "result": "result() of a job that has ended",
}
WARM = 200


class Ours:
    """A scheduler whose workers were never started; this thread is the one worker."""

    def __init__(self) -> None:
        start, _locks.start_thread = _locks.start_thread, lambda *_: threading.current_thread()
        try:
            self.scheduler = Scheduler(4)
            self.scheduler.start()
        finally:
            _locks.start_thread = start
        self.runtime = self.scheduler._runtime
        self.worker = Worker(self.runtime, 0)
        self.jobs: list[Any] = []
        self.ended: list[Any] = []
        self.job: Any = None

    def submit(self) -> None:
        self.jobs.append(self.scheduler.submit(noop))

    def turn(self) -> None:
        settled, self.job = self.job, None
        if settled is not None:
            self.ended.append(settled)
        self.job = self.runtime.turn(self.worker, settled, None, "noop", self.runtime.now())

    def task(self) -> None:
        job = self.job
        context = job._context
        run_task(job._fn, job._args, job._kwargs, EMPTY if context is None else context)

    def result(self) -> None:
        self.ended.pop().result()


class Standard:
    """``ThreadPoolExecutor``, likewise. It has one phase where ours has two: its work item runs and settles."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(4)
        self.pool._adjust_thread_count = lambda: None  # type: ignore[method-assign]  # start no thread
        self.ended: list[Any] = []

    def submit(self) -> None:
        self.ended.append(self.pool.submit(noop))

    def turn(self) -> None:
        self.pool._work_queue.get(block=True).run()

    def task(self) -> None:
        """Nothing: the turn has run it."""

    def result(self) -> None:
        self.ended.pop().result()


EMPTY = __import__("contextvars").Context()


class Counter:
    """Counts what runs below one call."""

    def __init__(self) -> None:
        self.opcodes = self.calls = self.c_calls = 0

    def bytecodes(self, work: Callable[[], object]) -> int:
        """Return how many bytecodes ``work`` executes, those of its own frame aside."""
        self.opcodes = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            if event == "opcode" and frame.f_code is not work.__code__:  # type: ignore[attr-defined]
                self.opcodes += 1
            return trace

        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(None)
        return self.opcodes

    def count_calls(self, work: Callable[[], object]) -> tuple[int, int]:
        """Return how many calls of Python functions and of C functions ``work`` makes."""
        self.calls, self.c_calls = -1, -1  # work itself, and the call that ends the counting

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                self.calls += 1
            elif event == "c_call":
                self.c_calls += 1

        sys.setprofile(profile)
        work()
        sys.setprofile(None)
        return self.calls, self.c_calls


def counted(side: Any) -> dict[str, dict[str, float]]:
    """Count each phase of one side, once warm."""
    for _ in range(WARM):
        for phase in PHASES:
            if phase == "result" and not side.ended:
                continue  # the first of our turns settles nothing
            getattr(side, phase)()
    for _ in range(3):
        side.submit()
    found: dict[str, dict[str, float]] = {}
    for phase in PHASES:
        found[phase] = {}
        counter = Counter()
        method = getattr(type(side), phase).__get__(side)
        work = _Named(method)
        found[phase]["bytecodes"] = counter.bytecodes(work.call)
        if phase in ("turn", "task"):
            side.task()
        calls, c_calls = counter.count_calls(work.call)
        found[phase]["calls"], found[phase]["c_calls"] = calls, c_calls
    return found


class _Named:
    """A call of one of our phases; what the phase's own few lines cost is counted with it, on both sides."""

    def __init__(self, method: Callable[[], object]) -> None:
        self.method = method

        def call() -> object:
            return method()

        self.call = call


# ---------------------------------------------------------------- instructions


def child(side: str, repeats: int, phases: int) -> None:
    """Run the first so many phases ``repeats`` times and the others a few times; what callgrind looks at."""
    subject = {"ours": Ours, "standard": Standard}[side]()
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


def all_instructions(side: str, repeats: int) -> dict[str, float]:
    """Return the instructions for each phase, by differences; the task counts with the turn."""
    totals = [instructions(side, repeats, phases) for phases in range(4)]
    if None in totals:
        return {}
    known = [total for total in totals if total is not None]
    steps = [(after - before) / repeats for before, after in zip(known, known[1:], strict=False)]
    return dict(zip(("submit", "turn", "result"), steps, strict=True))


def answer(settings: Settings) -> list[Row]:
    """Count both sides."""
    own, other = counted(Ours()), counted(Standard())
    if shutil.which("valgrind"):
        repeats = 500 if settings.quick else 3_000
        for found, side in ((own, "ours"), (other, "standard")):
            for phase, figure in all_instructions(side, repeats).items():
                found[phase]["instructions"] = figure
    else:
        print("no valgrind here: bytecodes and calls only")
    rows = []
    for phase in PHASES:
        figures = dict(own[phase])
        if phase != "task":
            figures |= {f"{name}_theirs": figure for name, figure in other[phase].items()}
        rows.append(Row(phase, WORDS[phase], "ThreadPoolExecutor" if phase != "task" else None, figures=figures))
    return rows


if __name__ == "__main__":
    if "--child" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--child", nargs=3)
        side, repeats, phases = parser.parse_args().child
        child(side, int(repeats), int(phases))
    run("counts", __doc__, answer)

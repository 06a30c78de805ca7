"""Does the cost of an operation grow? With 10² to 10⁶ pending jobs, for both queue structures and each policy; with 1
to 64 workers; with 1 to 64 submitting threads. Nothing worse than O(log n) should show.

For the pending jobs, each structure and policy in a process of its own: one worker, paused; the queue is filled to
each size in turn, and there a block of jobs is submitted, a block cancelled, and, with the pause lifted, a block run.
Median of several blocks. Keys are random, so that no structure sees its best case.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import threadsched
from benchmarks._command import Settings, run
from benchmarks._pairs import compare, in_a_process
from benchmarks._pools import OURS, STANDARD, noop, submissions
from benchmarks._rows import Row
from threadsched import Scheduler

STRUCTURES = ("lazy", "indexed")
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
COUNTS = (1, 2, 4, 8, 16, 32, 64)
BLOCK, BLOCKS = 500, 5


class Before:
    """A policy that compares; the dearest there is."""

    def before(self, a: Any, b: Any) -> bool:
        return bool(a.priority < b.priority)


POLICIES: dict[str, Callable[[], Any]] = {
    "priority": lambda: threadsched.PriorityPolicy(),
    "fifo": lambda: threadsched.FifoPolicy(),
    "oldest due": lambda: threadsched.OldestDuePolicy(),
    "deadline": lambda: threadsched.DeadlinePolicy(),
    "aging": lambda: threadsched.AgingPolicy(0.01),
    "before": Before,
}


class Runner:
    """Lets a paused scheduler with one worker run a given number of its jobs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.left = 0
        self.ended = threading.Event()

    def step(self) -> None:
        """The task of every job."""
        self.left -= 1
        if self.left == 0:
            self.scheduler.pause()
            self.ended.set()

    def run(self, count: int) -> float:
        """Run so many; return the seconds."""
        self.left = count
        self.ended.clear()
        start = perf_counter()
        self.scheduler.resume()
        self.ended.wait()
        return perf_counter() - start


def pending_costs(policy: str, structure: Any, sizes: tuple[int, ...]) -> list[dict[str, float]]:
    """Return the microseconds for each operation at each size."""
    draws = random.Random(1)
    delayed = policy == "delayed"
    chosen = None if delayed else POLICIES[policy]()
    scheduler = Scheduler(1, policy=chosen, queue=structure, history=0)
    scheduler.submit(noop).result()
    if not delayed:
        scheduler.pause()
    runner = Runner(scheduler)
    options, step = scheduler.options, runner.step
    # One set of options for many jobs, so that what is measured is the queue.
    if delayed:
        kinds = [options(delay=3600 + draws.random() * 3600).submit for _ in range(1_009)]
    elif policy == "deadline":
        kinds = [options(deadline=draws.random() * 3600).submit for _ in range(1_009)]
    else:
        kinds = [options(priority=draws.randrange(1_000_000)).submit for _ in range(1_009)]
    rows = []
    for size in sizes:
        while (missing := size - scheduler.stats().pending) > 0:
            for _ in range(missing):
                draws.choice(kinds)(step)
        submits, cancels, runs = [], [], []
        for _ in range(BLOCKS):
            block = draws.choices(kinds, k=BLOCK)
            start = perf_counter()
            jobs = [submit(step) for submit in block]
            middle = perf_counter()
            for job in jobs:
                job.cancel()
            end = perf_counter()
            submits.append(middle - start)
            cancels.append(end - middle)
            del jobs, job
            if not delayed:
                for submit in block:
                    submit(step)
                runs.append(runner.run(BLOCK))
        row = {"n": size, "submit": median_us(submits), "cancel": median_us(cancels)}
        if runs:
            row["run"] = median_us(runs)
        rows.append(row)
    return rows


def median_us(seconds: list[float]) -> float:
    """Return the median of blocks in microseconds a job."""
    return statistics.median(seconds) / BLOCK * 1e6


def child(send: Any, policy: str, structure: str, sizes: tuple[int, ...]) -> None:
    """Measure in a process of its own, and leave without tearing down a million jobs."""
    send(pending_costs(policy, structure, sizes))
    os._exit(0)


def pending_rows(policy: str, structure: str, sizes: tuple[int, ...]) -> list[Row]:
    """Measure one structure under one policy."""
    found = in_a_process(child, policy, structure, sizes)
    words = "delayed jobs" if policy == "delayed" else f"{policy} policy"
    return [
        Row(f"pending {structure} {policy} {figures['n']}", f"{words}, {structure}, us at a size", figures=figures)
        for figures in found
    ]


def count_rows(what: str, count: int, jobs: int, pairs: int) -> Row:
    """Measure with so many workers or submitters, against the standard pool with as many."""
    width, submitters = (count, 1) if what == "workers" else (4, count)
    return compare(
        f"{what} {count}",
        f"{jobs:,} no-ops with {count} {what if count > 1 else what[:-1]}",
        f"ThreadPoolExecutor({width})",
        partial(submissions, OURS, jobs, submitters, width),
        partial(submissions, STANDARD, jobs, submitters, width),
        pairs=pairs,
        operations=jobs,
    )


def answer(settings: Settings) -> list[Row]:
    """Measure all."""
    sizes = SIZES[:3] if settings.quick else SIZES
    rows = []
    for policy in ("delayed", *POLICIES):
        for structure in STRUCTURES:
            rows += pending_rows(policy, structure, sizes)
    jobs = settings.size(20_000)
    for what in ("workers", "submitters"):
        rows += [count_rows(what, count, jobs, settings.few()) for count in COUNTS]
    return rows


if __name__ == "__main__":
    run("growth", __doc__, answer)

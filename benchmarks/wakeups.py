"""How many threads wake when a delayed job becomes due, and how many in an idle pool.

Linux counts for each thread how often it gave the processor up by itself. A thread that sleeps and is not woken does
not move that count, so no instrument inside the scheduler is needed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep

from benchmarks._command import Settings, run
from benchmarks._pools import noop
from benchmarks._rows import Row, Spread
from threadsched import Scheduler

WIDTH = 16
NAME = "counted"

# Seconds: until everybody who was woken sleeps again, on a machine that is not too busy.
CALM = 0.15


def counts() -> dict[int, int]:
    """Return for each worker how often it gave up the processor by itself."""
    found = {}
    for thread in threading.enumerate():
        if thread.name.startswith(NAME) and thread.native_id is not None:
            lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
            found[thread.native_id] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


def moved(before: dict[int, int]) -> tuple[int, int]:
    """Return how many workers have woken since, and how often all of them together."""
    steps = [after - before[thread] for thread, after in counts().items()]
    return sum(step > 0 for step in steps), sum(steps)


def idle_pool() -> Scheduler:
    """Return a pool whose workers have all run something and sleep."""
    scheduler = Scheduler(WIDTH, name=NAME)
    barrier = threading.Barrier(WIDTH)
    for job in [scheduler.submit(barrier.wait) for _ in range(WIDTH)]:
        job.result()
    sleep(CALM)
    return scheduler


def at_due_job(others: int) -> int:
    """Return how many workers woke for one due job, with so many timers pending beyond it."""
    with idle_pool() as scheduler:
        for _ in range(others):
            scheduler.options(delay=3600).submit(noop)
        job = scheduler.options(delay=2 * CALM).submit(noop)
        sleep(CALM)  # the worker that sleeps until then has been told by now
        before = counts()
        job.result()
        sleep(CALM)
        woken, _ = moved(before)
        scheduler.shutdown(drain="none")
    return woken


def in_idle_pool(seconds: float, timers: int) -> int:
    """Return how often workers woke in an idle pool, with so many far-off timers."""
    with idle_pool() as scheduler:
        for _ in range(timers):
            scheduler.options(delay=3600).submit(noop)
        sleep(CALM)
        before = counts()
        sleep(seconds)
        _, wakeups = moved(before)
        scheduler.shutdown(drain="none")
    return wakeups


def answer(settings: Settings) -> list[Row]:
    """Measure all; without Linux's counts there is nothing to say."""
    if not sys.platform.startswith("linux"):
        print("not measured: this needs Linux's count of context switches for each thread")
        return []

    def row(key: str, words: str, work: Callable[[], int], rounds: int) -> Row:
        spread = Spread.of([work() for _ in range(rounds)])
        figures = {"lowest": spread.lowest, "highest": spread.highest}
        return Row(key, words, ours=spread.median, pairs=rounds, figures=figures)

    idle = 1.0 if settings.quick else 10.0
    words = f"threads woken by a due job, {WIDTH} idle workers"
    return [
        row("alone", f"{words}, no other timer", lambda: at_due_job(0), settings.pairs),
        row("among", f"{words}, another timer pending", lambda: at_due_job(1), settings.pairs),
        row("idle", f"wake-ups of an idle pool in {idle:g} s", lambda: in_idle_pool(idle, 0), 1),
        row("idle timer", f"the same with a far-off timer, {idle:g} s", lambda: in_idle_pool(idle, 1), 1),
    ]


if __name__ == "__main__":
    run("wakeups", __doc__, answer)

"""Tasks that release the GIL, hashing and sleeping, from one thread and from eight: throughput, and how long a job
waits before it starts, against ``ThreadPoolExecutor``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from time import perf_counter, sleep

from benchmarks._command import Settings, run
from benchmarks._pairs import Sample, compare
from benchmarks._pools import OURS, POOL, STANDARD, WORKERS, Maker, in_threads, noop
from benchmarks._rows import Row

KIB = 1024
SUBMITTERS = (1, 8)


def hashing(size: int) -> Callable[[], object]:
    """Return a task that hashes so many bytes; beyond 2 KB the hash runs without the GIL."""
    block = bytes(size)
    return lambda: sha256(block).digest()


def sleeping(seconds: float) -> Callable[[], object]:
    """Return a task that sleeps."""
    return lambda: sleep(seconds)


# key, what it does, the task, how many of them: a fifth of a second's worth for each run.
TASKS = (
    ("sha256 16 KB", "SHA-256 of 16 KB", hashing(16 * KIB), 8_000),
    ("sha256 64 KB", "SHA-256 of 64 KB", hashing(64 * KIB), 3_200),
    ("sha256 1 MB", "SHA-256 of 1 MB", hashing(KIB * KIB), 240),
    ("sleep 0.2 ms", "time.sleep of 0.2 ms", sleeping(0.0002), 2_400),
    ("sleep 2 ms", "time.sleep of 2 ms", sleeping(0.002), 400),
)


def load(make: Maker, task: Callable[[], object], jobs: int, submitters: int) -> Sample:
    """Submit all, then take all results; the wait of a job is from before its submission to its start.

    A pool that holds submissions up has short waits by that, so the starts are counted from the beginning, too.
    """
    waits: list[float] = []
    starts: list[float] = []

    def timed(submitted: float) -> None:
        now = perf_counter()
        waits.append(now - submitted)
        starts.append(now)
        task()

    with make(WORKERS) as pool:
        pool.submit(noop).result()
        submit = pool.submit

        def work() -> None:
            futures = [submit(timed, perf_counter()) for _ in range(jobs // submitters)]
            for future in futures:
                future.result()

        begun = perf_counter()
        seconds = in_threads(work, submitters)
    waits.sort()
    starts.sort()
    started = at(starts, 0.99) - begun
    return Sample(
        seconds, {"p50_ms": at(waits, 0.5) * 1e3, "p99_ms": at(waits, 0.99) * 1e3, "started_ms": started * 1e3}
    )


def at(values: list[float], share: float) -> float:
    """Return the quantile of sorted values."""
    return values[min(int(len(values) * share), len(values) - 1)]


def answer(settings: Settings) -> list[Row]:
    """Measure all."""
    rows = []
    for key, words, task, full in TASKS:
        jobs = settings.size(full, 16)
        for submitters in SUBMITTERS:
            rows.append(
                compare(
                    f"{key} {submitters}",
                    f"{words}, {submitters} submitter{'s' * (submitters > 1)}",
                    POOL,
                    partial(load, OURS, task, jobs, submitters),
                    partial(load, STANDARD, task, jobs, submitters),
                    pairs=settings.pairs,
                    operations=jobs,
                )
            )
    return rows


if __name__ == "__main__":
    run("gil_releasing", __doc__, answer)

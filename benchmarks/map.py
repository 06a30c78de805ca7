"""How long ``map`` takes for each of many cheap calls, against pools of the same width."""

from __future__ import annotations

import multiprocessing.pool
from time import perf_counter

from benchmarks._command import Settings, run
from benchmarks._pairs import compare
from benchmarks._pools import OURS, POOL, STANDARD, WORKERS, MoreExecutors, StandardThreadPool, mapped
from benchmarks._rows import Row


def target_rows(settings: Settings) -> list[Row]:
    """Against ``ThreadPoolExecutor``."""
    jobs = settings.size(100_000)
    return [
        compare(
            "pool",
            f"map over {jobs:,} cheap calls",
            f"{POOL}.map",
            lambda: mapped(OURS, jobs),
            lambda: mapped(STANDARD, jobs),
            pairs=settings.pairs,
            operations=jobs,
        )
    ]


def chunked(jobs: int) -> float:
    """``ThreadPool.map``, which cuts the input into chunks of many calls: one task of the pool for each."""
    with multiprocessing.pool.ThreadPool(WORKERS) as pool:
        pool.map(abs, range(WORKERS))
        start = perf_counter()
        pool.map(abs, range(jobs))
        return perf_counter() - start


def answer(settings: Settings) -> list[Row]:
    """Measure all."""
    few, many = settings.size(10_000), settings.size(100_000)
    others = [
        ("ThreadPool.imap", few, lambda: mapped(StandardThreadPool, few)),
        ("ThreadPool.map, in chunks", many, lambda: chunked(many)),
        ("more-executors map", few, lambda: mapped(MoreExecutors, few)),
    ]
    return [
        *target_rows(settings),
        *(
            compare(
                name,
                f"map over {jobs:,} cheap calls",
                name,
                lambda jobs=jobs: mapped(OURS, jobs),
                theirs,
                pairs=settings.few(),
                operations=jobs,
            )
            for name, jobs, theirs in others
        ),
    ]


if __name__ == "__main__":
    run("map", __doc__, answer)

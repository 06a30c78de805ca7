"""How long ``map`` takes for each of many cheap calls, against pools of the same width."""

from __future__ import annotations

import multiprocessing.pool
from functools import partial
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
            partial(mapped, OURS, jobs),
            partial(mapped, STANDARD, jobs),
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
        ("ThreadPool.imap", few, partial(mapped, StandardThreadPool, few)),
        ("ThreadPool.map, in chunks", many, partial(chunked, many)),
        ("more-executors map", few, partial(mapped, MoreExecutors, few)),
    ]
    return [
        *target_rows(settings),
        *(
            compare(
                name,
                f"map over {jobs:,} cheap calls",
                name,
                partial(mapped, OURS, jobs),
                theirs,
                pairs=settings.few(),
                operations=jobs,
            )
            for name, jobs, theirs in others
        ),
    ]


if __name__ == "__main__":
    run("map", __doc__, answer)

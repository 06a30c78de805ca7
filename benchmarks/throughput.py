"""How many no-op jobs a second, against pools of the same width, with one submitting thread and with sixteen; and what
that costs in context switches."""

from __future__ import annotations

import threading
from functools import partial
from time import perf_counter

from benchmarks._command import Settings, run
from benchmarks._pairs import compare
from benchmarks._pools import OTHERS, OURS, POOL, STANDARD, WORKERS, noop, submissions
from benchmarks._rows import Row

CROWD = 16


def target_rows(settings: Settings) -> list[Row]:
    """Against ``ThreadPoolExecutor``."""
    jobs = settings.size(100_000)
    return [
        compare(
            key,
            f"{jobs:,} no-ops, {words}",
            POOL,
            partial(submissions, OURS, jobs, submitters),
            partial(submissions, STANDARD, jobs, submitters),
            pairs=settings.pairs,
            operations=jobs,
        )
        for key, words, submitters in (("one", "one submitter", 1), ("sixteen", "sixteen submitters", CROWD))
    ]


def other_rows(settings: Settings) -> list[Row]:
    """Against the other peers, with fewer jobs, for they take long."""
    jobs = settings.size(10_000)
    rows = []
    for name, maker in OTHERS.items():
        for key, words, submitters in (("one", "one submitter", 1), ("sixteen", "sixteen submitters", CROWD)):
            rows.append(
                compare(
                    f"{key} {name.partition('(')[0]}",
                    f"{jobs:,} no-ops, {words}",
                    name,
                    partial(submissions, OURS, jobs, submitters),
                    partial(submissions, maker, jobs, submitters),
                    pairs=settings.few(),
                    operations=jobs,
                )
            )
    return rows


def calendar_row(settings: Settings) -> Row:
    """Against APScheduler, which runs a job without a trigger at once."""
    jobs = settings.size(1_000)

    def theirs() -> float:
        from apscheduler.executors.pool import ThreadPoolExecutor as Threads
        from apscheduler.schedulers.background import BackgroundScheduler

        ended = threading.Semaphore(0)
        scheduler = BackgroundScheduler(
            executors={"default": Threads(WORKERS)}, job_defaults={"misfire_grace_time": None}
        )
        scheduler.start()
        try:
            scheduler.add_job(ended.release)
            ended.acquire()
            start = perf_counter()
            for _ in range(jobs):
                scheduler.add_job(ended.release)
            for _ in range(jobs):
                ended.acquire()
            return perf_counter() - start
        finally:
            scheduler.shutdown()

    def ours() -> float:
        ended = threading.Semaphore(0)
        with OURS(WORKERS) as scheduler:
            scheduler.submit(noop).result()
            start = perf_counter()
            for _ in range(jobs):
                scheduler.submit(ended.release)
            for _ in range(jobs):
                ended.acquire()
            return perf_counter() - start

    return compare(
        "one APScheduler",
        f"{jobs:,} calls that release a semaphore, one submitter",
        f"APScheduler, {WORKERS} threads",
        ours,
        theirs,
        pairs=settings.few(),
        operations=jobs,
    )


def answer(settings: Settings) -> list[Row]:
    """Measure all."""
    return [*target_rows(settings), *other_rows(settings), calendar_row(settings)]


if __name__ == "__main__":
    run("throughput", __doc__, answer)

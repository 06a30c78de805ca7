"""How many no-op jobs a second, against ``ThreadPoolExecutor`` of the same width: one submitter, sixteen, ``map``,
one round trip at a time."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter

from benchmarks._pairs import Comparison, compare, show
from threadsched import Scheduler

WORKERS = 4
PEER = f"ThreadPoolExecutor({WORKERS})"


def noop() -> None:
    """Do nothing."""


def submissions(make: Callable[[int], Executor], jobs: int, submitters: int) -> float:
    """Submit ``jobs`` no-ops from so many threads, each of which then takes its results; return the seconds."""
    with make(WORKERS) as executor:
        executor.submit(noop).result()

        def submit() -> None:
            futures = [executor.submit(noop) for _ in range(jobs // submitters)]
            for future in futures:
                future.result()

        if submitters == 1:
            start = perf_counter()
            submit()
            return perf_counter() - start
        threads = [threading.Thread(target=submit) for _ in range(submitters)]
        start = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return perf_counter() - start


def round_trips(make: Callable[[int], Executor], jobs: int) -> float:
    """Submit one and wait for it, again and again; return the seconds."""
    with make(WORKERS) as executor:
        executor.submit(noop).result()
        start = perf_counter()
        for _ in range(jobs):
            executor.submit(noop).result()
        return perf_counter() - start


def mapped(make: Callable[[int], Executor], jobs: int) -> float:
    """Map a cheap function over so many numbers; return the seconds."""
    with make(WORKERS) as executor:
        executor.submit(noop).result()
        start = perf_counter()
        for _ in executor.map(abs, range(jobs)):
            pass
        return perf_counter() - start


def run(pairs: int, jobs: int) -> list[Comparison]:
    """Ask all the questions."""

    def pair(work: Callable[..., float], *args: int) -> tuple[Callable[[], float], Callable[[], float]]:
        return (lambda: work(Scheduler, *args)), (lambda: work(ThreadPoolExecutor, *args))

    questions = (
        (f"{jobs:,} no-ops, one submitter", pair(submissions, jobs, 1), jobs),
        (f"{jobs:,} no-ops, sixteen submitters", pair(submissions, jobs, 16), jobs),
        (f"map over {jobs:,} cheap calls", pair(mapped, jobs), jobs),
        ("round trip of one no-op", pair(round_trips, jobs // 20), jobs // 20),
    )
    return [
        compare(question, PEER, ours, theirs, pairs=pairs, operations=operations)
        for question, (ours, theirs), operations in questions
    ]


def main() -> None:
    """Run alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    show(run(given.pairs, given.jobs), as_json=given.json)


if __name__ == "__main__":
    main()

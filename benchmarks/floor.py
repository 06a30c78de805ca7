"""How far from the floor: the barest pool that there can be, and what each step from there to the scheduler costs.

The floor is a deque, one lock and a token for each worker: no future, no number, no queue that orders. ``_ladder`` has
its source and the steps; the same load, no-ops from one thread and from sixteen, runs on each.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from benchmarks._command import Settings, run
from benchmarks._ladder import FUTURES, STEPS, build
from benchmarks._pairs import summarise, tour
from benchmarks._pools import OURS, WORKERS, in_threads, noop, submissions, timed_submissions
from benchmarks._rows import Row

CROWD = 16


def on_step(pool_type: Any, jobs: int, submitters: int, *, futures: bool) -> float:
    """Run the load on one step; without futures it has ended when the pool has."""
    pool = pool_type(WORKERS)
    if futures:
        pool.submit(noop).result()
        seconds = timed_submissions(pool.submit, jobs, submitters)
        pool.close()
        return seconds
    submit, share = pool.submit, jobs // submitters

    def work() -> None:
        for _ in range(share):
            submit(noop)

    start = perf_counter()
    in_threads(work, submitters)
    pool.close()
    return perf_counter() - start


def answer(settings: Settings) -> list[Row]:
    """Measure all steps and the scheduler by turns; the ratio is the step's time by the scheduler's."""
    jobs = settings.size(100_000)
    rows = []
    for submitters, words in ((1, "one submitter"), (CROWD, "sixteen submitters")):
        works: dict[str, Any] = {}
        for step in STEPS:
            futures = step.number >= FUTURES
            works[str(step.number)] = partial(on_step, build(step.number), jobs, submitters, futures=futures)
        works["ours"] = partial(submissions, OURS, jobs, submitters)
        rounds = {name: settings.few() for name in works}
        rounds |= {"1": settings.pairs, "ours": settings.pairs}
        tour(works, dict.fromkeys(works, 1), jobs)  # to warm up
        found = tour(works, rounds, jobs)
        rows += [
            summarise(
                f"{'one' if submitters == 1 else 'sixteen'} {step.number}",
                f"{words}: {'' if step.number == 1 else '+ '}{step.adds}",
                f"step {step.number}",
                list(zip(found["ours"], found[str(step.number)], strict=False)),
                operations=jobs,
            )
            for step in STEPS
        ]
    return rows


if __name__ == "__main__":
    run("floor", __doc__, answer)

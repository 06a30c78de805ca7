"""Does the pool recover from one long hold of its lock? Context switches and time a job, after such a hold was seeded.

With the GIL a lock convoy, once formed, keeps itself alive: each hold of the lock costs a switch from then on. Whoever
holds the lock for 12 ms, longer than two switch intervals, makes everybody else queue on it, which is how one forms.
The seed takes the scheduler's own lock from outside and leaves no mark, so that nobody steps aside for it: the worst
case. ``ThreadPoolExecutor`` is run beside it without a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep

from benchmarks._command import Settings, run
from benchmarks._pairs import Sample, compare, switches
from benchmarks._pools import POOL, STANDARD, WORKERS, noop, timed_submissions
from benchmarks._rows import Row
from threadsched import Scheduler

HOLD = 0.012
CROWD = 16


def spin(seconds: float) -> None:
    """Keep the processor, and the GIL, busy."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def seeded(jobs: int, submitters: int, hold: Callable[[float], object]) -> Sample:
    """Run the load; once a tenth of it has been submitted, hold the lock. Counts only what comes after that."""
    with Scheduler(WORKERS) as scheduler:
        scheduler.submit(noop).result()
        lock, submit = scheduler._runtime.lock, scheduler.submit
        wanted, held = threading.Event(), threading.Event()
        released: list[tuple[int, float, int]] = []
        numbers = iter(range(jobs * 2))

        def seed() -> None:
            wanted.wait()
            with lock:
                held.set()
                hold(HOLD)
            released.append((switches(), perf_counter(), next(numbers)))

        def counted(fn: Callable[[], object]) -> object:
            if next(numbers) == jobs // 10:
                wanted.set()
                held.wait()
            return submit(fn)

        seeder = threading.Thread(target=seed)
        seeder.start()
        timed_submissions(counted, jobs, submitters)
        end, after = perf_counter(), switches()
        seeder.join()
    before, start, done = released[0]
    left = max(jobs - done, 1)
    return Sample((end - start) * jobs / left, {"switches": (after - before) / left, "share": left / jobs})


def plain(jobs: int, submitters: int) -> float:
    """The same load on the standard pool."""
    with STANDARD(WORKERS) as pool:
        pool.submit(noop).result()
        return timed_submissions(pool.submit, jobs, submitters)


def target_rows(settings: Settings) -> list[Row]:
    """With one submitter and sixteen, after each kind of hold."""
    jobs = settings.size(30_000)
    rows = []
    for submitters, words in ((1, "one submitter"), (CROWD, "sixteen submitters")):
        for key, hold, kind in (("asleep", sleep, "asleep"), ("busy", spin, "busy with the GIL")):
            question = f"{words}, after {HOLD * 1e3:.0f} ms {kind} in the lock"
            rows.append(
                compare(
                    f"{'one' if submitters == 1 else 'sixteen'} {key}",
                    question,
                    f"{POOL}, no seed",
                    partial(seeded, jobs, submitters, hold),
                    partial(plain, jobs, submitters),
                    pairs=settings.pairs,
                    operations=jobs,
                )
            )
    return rows


if __name__ == "__main__":
    run("convoy", __doc__, target_rows)

"""How late do timers fire? A thousand of them over five seconds, on an otherwise idle process, against the barest loop
there is (a heap and ``Condition.wait``), asyncio, ``threading.Timer`` and APScheduler."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heapify, heappop
from time import monotonic, time

from benchmarks._command import Settings, run
from benchmarks._pairs import Sample, summarise, tour
from benchmarks._pools import WORKERS, noop
from benchmarks._rows import Row
from benchmarks.gil_releasing import at
from threadsched import Scheduler

# Seconds before the first timer: by then all are set.
LEAD = 0.3

Note = Callable[[float], object]


def ours(due: Sequence[float], note: Note, ended: threading.Event) -> None:
    with Scheduler(WORKERS) as scheduler:
        scheduler.submit(noop).result()
        for instant in due:
            scheduler.options(delay=max(instant - monotonic(), 0)).submit(note, instant)
        ended.wait()


def bare(due: Sequence[float], note: Note, ended: threading.Event) -> None:
    """One thread that waits for the head of a heap and calls, with a lock that a producer could take."""
    heap = list(due)
    heapify(heap)
    condition = threading.Condition()

    def serve() -> None:
        while heap:
            with condition:
                while (left := heap[0] - monotonic()) > 0:
                    condition.wait(left)
                instant = heappop(heap)
            note(instant)

    thread = threading.Thread(target=serve)
    thread.start()
    ended.wait()
    thread.join()


def on_loop(due: Sequence[float], note: Note, ended: threading.Event) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    for instant in due:
        loop.call_at(instant, note, instant)  # its clock is time.monotonic
    thread.start()
    ended.wait()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def timers(due: Sequence[float], note: Note, ended: threading.Event) -> None:
    threads = []
    for instant in due:
        timer = threading.Timer(max(instant - monotonic(), 0), note, (instant,))
        timer.start()
        threads.append(timer)
    ended.wait()
    for timer in threads:
        timer.join()


def calendar(due: Sequence[float], note: Note, ended: threading.Event) -> None:
    from apscheduler.executors.pool import ThreadPoolExecutor as Threads
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(
        timezone=UTC,
        executors={"default": Threads(WORKERS)},
        job_defaults={"misfire_grace_time": None},
    )
    for instant in due:
        wall = datetime.fromtimestamp(time(), UTC) + timedelta(seconds=instant - monotonic())
        scheduler.add_job(note, "date", (instant,), run_date=wall)
    scheduler.start()
    ended.wait()
    scheduler.shutdown()


CANDIDATES = {
    "ours": ours,
    "bare": bare,
    "asyncio": on_loop,
    "Timer": timers,
    "APScheduler": calendar,
}

WORDS = {
    "bare": "a bare Condition.wait loop",
    "asyncio": "asyncio",
    "Timer": "threading.Timer",
    "APScheduler": f"APScheduler, {WORKERS} threads",
}


def measure(work: Callable[..., None], count: int, span: float) -> Sample:
    """Run one candidate; the seconds are the median lateness."""
    draws = random.Random(count)
    start = monotonic() + LEAD
    due = [start + draws.random() * span for _ in range(count)]
    late: list[float] = []
    ended = threading.Event()

    def note(instant: float) -> None:
        late.append(monotonic() - instant)
        if len(late) >= count:
            ended.set()

    work(due, note, ended)
    late.sort()
    figures = {"p99_us": at(late, 0.99) * 1e6, "max_us": late[-1] * 1e6, "early": sum(one < 0 for one in late)}
    return Sample(at(late, 0.5), figures)


def answer(settings: Settings) -> list[Row]:
    """Measure all by turns."""
    count, span = settings.size(1_000), 5.0 / (20 if settings.quick else 1)
    rounds = {name: settings.few() for name in CANDIDATES}
    rounds |= {"ours": settings.pairs, "bare": settings.pairs, "asyncio": min(settings.pairs, 5)}
    works = {name: partial(measure, work, count, span) for name, work in CANDIDATES.items()}
    found = tour(works, rounds, count)
    return [
        summarise(
            name,
            f"median lateness of {count:,} timers over {span:g} s",
            words,
            list(zip(found["ours"], found[name], strict=False)),
        )
        for name, words in WORDS.items()
    ]


if __name__ == "__main__":
    run("lateness", __doc__, answer)

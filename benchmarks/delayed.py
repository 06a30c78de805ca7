"""What a pending delayed job costs: time to submit and to cancel, resident bytes.

Each candidate is measured in a process of its own, so that memory is its own, and the processes take turns. The delays
are random, an hour or two, and the cancels come in the order of submission. Peers whose cost grows with their number,
or that need a thread for each, get fewer jobs, which favours them; APScheduler is compared with as many of ours.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random
import sched
import statistics
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks._command import Settings, run
from benchmarks._pairs import Sample, in_a_process, summarise, tour
from benchmarks._pools import noop
from benchmarks._rows import Row
from threadsched import Scheduler

# sched needs O(n) for a cancel: so many show it.
FEW_CANCELS = 5

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO")


def resident() -> int:
    """Return the bytes of memory in use by this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Ours:
    """An ``options(delay=...)`` for each job."""

    queue: Any = "lazy"

    def __init__(self) -> None:
        self.scheduler = Scheduler(1, queue=self.queue, history=0)
        self.scheduler.submit(noop).result()

    def fill(self, delays: Sequence[float]) -> list[Any]:
        options = self.scheduler.options
        return [options(delay=delay).submit(noop) for delay in delays]

    def empty(self, handles: list[Any]) -> int:
        for handle in handles:
            handle.cancel()
        return len(handles)


class Indexed(Ours):
    """The same in the other queue structure."""

    queue = "indexed"


class WithContext(Ours):
    """The same where a context variable is set, so that each job has a context of its own."""

    def fill(self, delays: Sequence[float]) -> list[Any]:
        WHO.set("somebody")
        return super().fill(delays)


class Alike(Ours):
    """One ``options(delay=...)`` for all."""

    def fill(self, delays: Sequence[float]) -> list[Any]:
        submit = self.scheduler.options(delay=delays[0]).submit
        return [submit(noop) for _ in delays]


class Asyncio:
    """``loop.call_later`` on a loop that is not run meanwhile."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def fill(self, delays: Sequence[float]) -> list[Any]:
        call_later = self.loop.call_later
        return [call_later(delay, noop) for delay in delays]

    def empty(self, handles: list[Any]) -> int:
        for handle in handles:
            handle.cancel()
        return len(handles)


class AsyncioAlike(Asyncio):
    """The same with one delay for all."""

    def fill(self, delays: Sequence[float]) -> list[Any]:
        call_later, delay = self.loop.call_later, delays[0]
        return [call_later(delay, noop) for _ in delays]


class Sched:
    """``sched.scheduler``."""

    def __init__(self) -> None:
        self.scheduler = sched.scheduler()

    def fill(self, delays: Sequence[float]) -> list[Any]:
        enter = self.scheduler.enter
        return [enter(delay, 5, noop) for delay in delays]

    def empty(self, handles: list[Any]) -> int:
        for handle in handles[:FEW_CANCELS]:
            self.scheduler.cancel(handle)
        return min(FEW_CANCELS, len(handles))


class Calendar:
    """APScheduler 3, running, jobs in memory, one for each time."""

    def __init__(self) -> None:
        from apscheduler.schedulers.background import BackgroundScheduler

        self.scheduler = BackgroundScheduler(timezone=UTC)
        self.scheduler.start()

    def fill(self, delays: Sequence[float]) -> list[Any]:
        add, now = self.scheduler.add_job, datetime.now(UTC)
        return [add(noop, "date", run_date=now + timedelta(seconds=delay)) for delay in delays]

    def empty(self, handles: list[Any]) -> int:
        for handle in handles:
            handle.remove()
        return len(handles)


class Timers:
    """``threading.Timer``, a thread each."""

    def fill(self, delays: Sequence[float]) -> list[Any]:
        timers = []
        for delay in delays:
            timer = threading.Timer(delay, noop)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # as many threads as the system allows
                break
            timers.append(timer)
        return timers

    def empty(self, handles: list[Any]) -> int:
        for handle in handles:
            handle.cancel()
        return len(handles)


CANDIDATES: dict[str, type[Any]] = {
    "ours": Ours,
    "as few": Ours,
    "asyncio": Asyncio,
    "alike": Alike,
    "asyncio alike": AsyncioAlike,
    "context": WithContext,
    "indexed": Indexed,
    "sched": Sched,
    "APScheduler": Calendar,
    "Timer": Timers,
}

# Of those that do not get a million.
FEWER = {"as few": 20_000, "APScheduler": 20_000, "Timer": 10_000}


def child(send: Any, name: str, jobs: int) -> None:
    """Measure in a process of its own, and leave without tearing down a million jobs."""
    delays = [3600 + random.random() * 3600 for _ in range(jobs)]
    candidate = CANDIDATES[name]()
    gc.collect()
    before, start = resident(), perf_counter()
    handles = candidate.fill(delays)
    filled, after = perf_counter(), resident()
    count = candidate.empty(handles)
    emptied = perf_counter()
    send(
        {
            "submit": (filled - start) / len(handles),
            "cancel": (emptied - filled) / count,
            "bytes": (after - before) / len(handles),
            "jobs": len(handles),
        }
    )
    os._exit(0)


def measure(name: str, jobs: int) -> Sample:
    """Measure one candidate; the seconds are those of a submission."""
    found = in_a_process(child, name, jobs)
    return Sample(found["submit"], {"cancel_us": found["cancel"] * 1e6, "bytes": found["bytes"], "jobs": found["jobs"]})


def answer(settings: Settings) -> list[Row]:
    """Measure all, each as often as its question needs."""
    jobs = {name: settings.size(FEWER.get(name, 1_000_000)) for name in CANDIDATES}
    rounds = {name: settings.few() for name in CANDIDATES}
    rounds |= {"ours": settings.pairs, "asyncio": settings.pairs}
    found = tour({name: partial(measure, name, jobs[name]) for name in CANDIDATES}, rounds, 1)
    for samples in found.values():
        for sample in samples:
            sample.figures.pop("switches")  # of this process, which only waits

    def against(key: str, own: str, peer: str, words: str) -> Row:
        pairs = list(zip(found[own], found[peer], strict=False))
        return summarise(key, f"submit a delayed job, {words}", peer, pairs)

    def alone(name: str, words: str) -> Row:
        samples = found[name]
        figures = {key: statistics.median(one.figures[key] for one in samples) for key in samples[0].figures}
        seconds = statistics.median(one.seconds for one in samples)
        return Row(name, words, ours=seconds * 1e6, unit="us", pairs=len(samples), figures=figures)

    million = f"{jobs['ours']:,} pending"
    return [
        against("asyncio", "ours", "asyncio", f"{million}, an options() each"),
        against("asyncio alike", "alike", "asyncio alike", f"{million}, all with one delay"),
        against("sched", "ours", "sched", million),
        against("APScheduler", "as few", "APScheduler", f"{jobs['APScheduler']:,} pending"),
        against("Timer", "ours", "Timer", f"{million}, theirs {jobs['Timer']:,}"),
        alone("ours", f"a delayed job, {million}, empty context"),
        alone("context", f"a delayed job, {million}, with a context variable"),
        alone("indexed", f"a delayed job, {million}, indexed queue"),
    ]


if __name__ == "__main__":
    run("delayed", __doc__, answer)

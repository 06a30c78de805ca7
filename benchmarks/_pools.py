"""Pools of the same width with one face, ``submit(fn) -> thing with result()``, and the loads that run on them."""

from __future__ import annotations

import multiprocessing.pool
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

from threadsched import Scheduler

WORKERS = 4
POOL = f"ThreadPoolExecutor({WORKERS})"

Maker = Callable[[int], AbstractContextManager[Any]]


def noop() -> None:
    """Do nothing."""


class _Adapter:
    """A pool of another library, seen as an executor."""

    def __enter__(self) -> _Adapter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class StandardThreadPool(_Adapter):
    """``multiprocessing.pool.ThreadPool``."""

    def __init__(self, width: int) -> None:
        self._pool = multiprocessing.pool.ThreadPool(width)
        self.map = self._pool.imap

    def submit(self, fn: Callable[[], object]) -> Any:
        result: Any = self._pool.apply_async(fn)
        result.result = result.get  # one attribute, to give it the common face
        return result

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class Pebble(_Adapter):
    """``pebble.ThreadPool``."""

    def __init__(self, width: int) -> None:
        import pebble

        self._pool: Any = pebble.ThreadPool(max_workers=width)
        self.submit = self._pool.schedule

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class MoreExecutors(_Adapter):
    """``more_executors``' thread pool with retries, the part of it that a pool alone does not have."""

    def __init__(self, width: int) -> None:
        from more_executors import Executors

        self._pool: Any = Executors.thread_pool(max_workers=width).with_retry(max_attempts=2)
        self.submit = self._pool.submit
        self.map = self._pool.map

    def close(self) -> None:
        self._pool.shutdown(wait=True)


OTHERS: dict[str, Maker] = {
    f"multiprocessing.pool.ThreadPool({WORKERS})": StandardThreadPool,
    f"pebble.ThreadPool({WORKERS})": Pebble,
    f"more-executors({WORKERS}) with_retry": MoreExecutors,
}
"""The peers beside ``ThreadPoolExecutor``, by name."""

OURS: Maker = Scheduler
STANDARD: Maker = ThreadPoolExecutor


def submissions(make: Maker, jobs: int, submitters: int, width: int = WORKERS) -> float:
    """Submit so many no-ops from so many threads, each of which then takes its results; return the seconds."""
    with make(width) as pool:
        pool.submit(noop).result()
        return timed_submissions(pool.submit, jobs, submitters)


def timed_submissions(submit: Callable[[Callable[[], object]], Any], jobs: int, submitters: int) -> float:
    """The same on a pool that is there."""

    def work() -> None:
        futures = [submit(noop) for _ in range(jobs // submitters)]
        for future in futures:
            future.result()

    return in_threads(work, submitters)


def in_threads(work: Callable[[], object], count: int) -> float:
    """Run ``work`` on so many threads at once, on this one if it is 1; return the seconds."""
    if count == 1:
        start = perf_counter()
        work()
        return perf_counter() - start
    threads = [threading.Thread(target=work) for _ in range(count)]
    start = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - start


def round_trips(make: Maker, jobs: int) -> float:
    """Submit one and wait for it, again and again; return the seconds."""
    with make(WORKERS) as pool:
        pool.submit(noop).result()
        start = perf_counter()
        for _ in range(jobs):
            pool.submit(noop).result()
        return perf_counter() - start


def mapped(make: Maker, jobs: int) -> float:
    """Map a cheap function over so many numbers; return the seconds."""
    with make(WORKERS) as pool:
        pool.submit(noop).result()
        start = perf_counter()
        for _ in pool.map(abs, range(jobs)):
            pass
        return perf_counter() - start

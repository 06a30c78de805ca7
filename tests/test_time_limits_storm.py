"""Everything at once, on real threads in real time: timeouts, expiries, cancels, failures, retries, limits.

What must hold whatever the threads do: no limit is exceeded, the tasks of written-off threads included, none leaks,
every job ends once, and no thread is left.
"""

import asyncio
import contextlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE, Records
from tests.support import exhaustive
from threadsched import Job, Limit, Scheduler, ThreadschedError, current_job
from threadsched import _log as log_module

MOST = {"one": 1, "two": 2, "three": 3}
JOBS = 400 if not exhaustive() else 6000


class Inside:
    """Counts the tasks inside each limit, and the most there ever were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @contextlib.contextmanager
    def __call__(self, names: list[str]) -> Iterator[None]:
        with self.lock:
            for name in names:
                self.now[name] += 1
                self.most[name] = max(self.most[name], self.now[name])
        try:
            yield
        finally:
            with self.lock:
                for name in names:
                    self.now[name] -= 1


@pytest.fixture
def restless() -> Iterator[None]:
    """Many thread switches, and no log."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    log_module.logger.addHandler(Records())
    propagate, log_module.logger.propagate = log_module.logger.propagate, False
    yield
    log_module.logger.propagate = propagate
    log_module.logger.handlers.clear()
    sys.setswitchinterval(interval)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_storm_exceeds_no_limit_and_leaks_none(queue: Any, rng: random.Random, restless: None):
    """Hundreds of jobs overrun, fail, expire, are cancelled, wait for each other: the books are right at the end."""
    inside = Inside()
    ended: Counter[int] = Counter()
    jobs: list[Job[Any]] = []

    def work(s: Scheduler, names: list[str], how: str, pause: float) -> Any:
        with inside(names):
            job = current_job()
            assert job is not None
            if how == "sleeps":
                job.sleep(pause)
            elif how == "blocks":
                threading.Event().wait(pause)
            elif how == "fails":
                threading.Event().wait(pause / 4)
                raise ValueError(how)
            elif how == "stops":
                while pause > 0:
                    job.check_cancelled()
                    threading.Event().wait(0.001)
                    pause -= 0.001
            elif how == "waits":
                child = s.options(timeout=0.004).submit(work, s, [], "blocks", pause / 2)
                with contextlib.suppress(TimeoutError, ThreadschedError):
                    return child.result()
        return how

    async def drift(names: list[str], pause: float) -> None:
        with inside(names):
            await asyncio.sleep(pause)

    limits = {name: Limit(concurrency=most) for name, most in MOST.items()}
    with Scheduler(4, queue=queue, limits=limits) as s:
        for number in range(JOBS):
            names = rng.sample(list(MOST), rng.choice([0, 1, 1, 2, 3]))
            options: dict[str, Any] = {"limits": names, "priority": rng.randrange(9)}
            if rng.random() < 0.7:
                options["timeout"] = rng.choice([0.001, 0.003, 0.01, 5])
            if rng.random() < 0.3:
                options["expires"] = rng.choice([0, 0.005, 0.02, 5])
            if rng.random() < 0.3:
                options.update(retries=rng.randrange(3), backoff=rng.choice([0, 0.002]))
            pause = rng.choice([0, 0.002, 0.006])
            how = rng.choice(["sleeps", "blocks", "fails", "stops", "waits", "drifts"])
            args: tuple[Any, ...] = (drift, names, pause) if how == "drifts" else (work, s, names, how, pause)
            job = s.options(**options).submit(*args)
            job.add_done_callback(lambda job: ended.update([job.seq]))
            jobs.append(job)
            if rng.random() < 0.1:
                rng.choice(jobs).request_cancel()
            if rng.random() < 0.1:
                rng.choice(jobs).cancel()
            if number % 50 == 49:
                s.check()
                s.stats()
        assert s.wait_idle(60)
        assert s._runtime.wait_told(PATIENCE)
        while s._runtime.core.time_limits.away or s._runtime.written_off:
            threading.Event().wait(0.001)
        s.check()
        assert {name: info.in_use for name, info in s.limits.items()} == dict.fromkeys(MOST, 0)
    for name, most in MOST.items():
        assert inside.most[name] <= most, f"{name} was exceeded"
    assert not +inside.now
    assert [job.seq for job in jobs if ended[job.seq] != 1] == []
    for job in jobs:
        with contextlib.suppress(BaseException):
            job.exception(0)  # looked at: nobody is to log it
    stats = s.stats()
    assert stats.submitted == stats.done + stats.failed + stats.cancelled
    assert stats.workers == stats.lost_workers == 0

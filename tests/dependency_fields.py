"""What the tests of dependencies share: one face for the stepped and the threaded scheduler, on a fake clock."""

import threading
from collections.abc import Callable
from typing import Any

from threadsched import Job, JobStatus, Scheduler
from threadsched.testing import FakeClock, StepScheduler

FIELDS = [f"{kind}-{queue}" for kind in ("stepped", "threaded") for queue in ("lazy", "indexed")]

# Real seconds that only a failure waits.
PATIENCE = 5.0


class Field:
    """A scheduler of one kind, with a clock that `go` moves until all that is due has run."""

    def __init__(self, name: str, workers: int = 2, **options: Any) -> None:
        kind, queue = name.split("-")
        self.stepped = kind == "stepped"
        self.clock = FakeClock()
        make: Callable[..., Any] = StepScheduler if self.stepped else Scheduler
        self.scheduler = make(workers, clock=self.clock, queue=queue, **options)

    def go(self, seconds: float = 0.0) -> None:
        """Move on second by second, as the threaded kind's clock does from due time to due time."""
        if self.stepped:
            self._run_all()
            for _ in range(int(seconds)):
                self.clock.advance(1)
                self._run_all()
        else:
            self.clock.advance(seconds)
        self.scheduler.check()

    def _run_all(self) -> None:
        while self.scheduler.tick() or self.scheduler._runtime.core.outbox:
            continue

    def close(self) -> None:
        self.scheduler.check()
        self.scheduler.shutdown(cancel_futures=True)
        self.go()
        assert not self.scheduler.stats().pending
        assert not self.scheduler._runtime.core.waiting
        assert not self.scheduler._runtime.core.outbox


class Told:
    """A done-callback that remembers the status it saw."""

    def __init__(self, *jobs: Job[Any]) -> None:
        self.seen: list[JobStatus] = []
        self.heard = threading.Event()
        for job in jobs:
            job.add_done_callback(self)

    def __call__(self, job: Any) -> None:
        self.seen.append(job.status)
        self.heard.set()


class Boom(Exception):
    """What a task of these tests fails with."""


def boom() -> None:
    raise Boom("no luck")

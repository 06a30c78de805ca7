"""A scheduler whose one worker is played by the test, so that a turn at the lock is taken when the test says so."""

from typing import Any

from threadsched import Job, Scheduler
from threadsched._locks import make_token
from threadsched._worker import Worker
from threadsched.testing import FakeClock


class HandClock:
    """A clock that a test moves, and that is none of the virtual ones: by those nobody sleeps."""

    def __init__(self) -> None:
        self.reading = 0.0

    def now(self) -> float:
        return self.reading


class Hand:
    """A scheduler whose one worker is the test itself."""

    def __init__(self, **options: Any) -> None:
        self.clock = options.pop("clock", None) or FakeClock()
        self.scheduler = Scheduler(1, clock=self.clock, **options)
        self.runtime: Any = self.scheduler._runtime
        self.worker = Worker(self.runtime, 0)
        assert self.runtime.arrive(self.worker)
        self.runtime.manned = True

    def turn(self, settled: Job[Any] | None = None, result: object = None) -> Job[Any] | None:
        self.worker.order = ""
        job: Job[Any] | None = self.runtime.turn(self.worker, settled, result, "name", self.clock.now())
        return job

    def sleeper(self, place: list[Any]) -> Any:
        """Put another sleeping worker on a list."""
        token = make_token()
        place.append(token)
        return token

    def free(self) -> None:
        """Give up what is left, and let the worker go."""
        self.runtime.idle.clear()
        self.runtime.watch.clear()
        self.scheduler.shutdown(wait=False, cancel_futures=True)
        self.runtime.leave(self.worker)


def woken(token: Any) -> bool:
    return bool(token.acquire(False))

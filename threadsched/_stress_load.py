"""The load of a stress run: what its submitters and its tasks do, and what they write down.

Nothing that is written down needs an atomic operation, nor a lock of ours that would put the threads in step: every
list has one thread that appends to it, and is read by others for its length alone until that thread has moved on.
"""

from __future__ import annotations

import concurrent.futures
import random
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from threadsched import Job, Retry, SchedulerClosedError, current_job
from threadsched._stress_plan import (
    BACKOFF,
    DELAYS,
    LONG_LIMIT,
    PRIORITIES,
    RETRIES,
    SHORT_LIMIT,
    DeliberateError,
    Kind,
    draw_kind,
    failures,
    meets_limit,
)

if TYPE_CHECKING:
    from threadsched._stress import Run

# What a submitter heard when it cancelled a job.
UNASKED, REFUSED, CANCELLED = range(3)

# How many submissions later a submitter cancels a job. Half of those jobs rank before all others, so that a worker is
# about to claim them; the others are deep in the queue.
_CANCEL_AFTER = (0, 1, 2, 5, 10, 40)
_URGENT = -1

# Seconds that a task with a time limit stays if nothing stops it.
_STAY = 600.0

# One job in so many has an id of the submitter's.
_NAMED = 50


class StartLog:
    """The starts of tasks on one thread, in their order; written by that thread alone."""

    __slots__ = ("after", "ended", "numbers", "started", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.ended = 0.0  # when the latest task ended: this thread claimed nothing else before
        self.clear()

    def clear(self) -> None:
        """Forget the starts; the thread must not be running a task."""
        self.numbers = array("q")
        self.after = array("d")  # for each start: `ended` at that time
        self.started = array("d")


class _Here(threading.local):
    """The log of the calling thread."""

    def __init__(self, logs: list[StartLog]) -> None:
        self.log = StartLog()
        logs.append(self.log)


class Tasks:
    """The task of every job, and the logs of the threads that run it."""

    def __init__(self) -> None:
        self.logs: list[StartLog] = []
        self.overrunning = threading.Semaphore(0)  # one for each start of a task that will meet its limit
        self._here = _Here(self.logs)
        self.logs.clear()  # of the thread that makes this, which runs no tasks

    def run(self, number: int, kind: Kind) -> int:
        """Be the task of one job."""
        started = time.monotonic()
        log = self._here.log
        log.numbers.append(number)
        log.after.append(log.ended)
        log.started.append(started)
        try:
            if kind is Kind.FAIL:
                raise DeliberateError(number)
            if kind is Kind.RETRY or kind is Kind.TIMEOUT:
                self._obey(number, kind)
            return number
        finally:
            log.ended = time.monotonic()

    def _obey(self, number: int, kind: Kind) -> None:
        # Without a variable for the job: in a traceback's frame it would be a cycle through the job, and its memory
        # come back when the collector pleases.
        if kind is Kind.RETRY and _this_job().attempts <= failures(number):
            raise DeliberateError(number)
        if kind is Kind.TIMEOUT and meets_limit(number):
            self.overrunning.release()
            _this_job().sleep(_STAY)  # woken when the limit is reached

    def await_overruns(self, batches: Iterable[Batch], patience: float) -> None:
        """Wait for the start of every task that met its limit: a job may do that before its thread gets to the task."""
        for batch in batches:
            for offset, job in enumerate(batch.jobs):
                limited = Kind(batch.kinds[offset]) is Kind.TIMEOUT and meets_limit(batch.first + offset)
                if limited and job.attempts and not self.overrunning.acquire(timeout=patience):
                    return  # which the check will tell

    def take(self) -> list[tuple[array[int], array[float], array[float]]]:
        """Return all starts since the last call and forget them. No task may be running but abandoned ones."""
        taken = [(log.numbers, log.after, log.started) for log in self.logs]
        for log in self.logs:
            log.clear()
        self.logs[:] = [log for log in self.logs if log.thread.is_alive()]
        return taken


def _this_job() -> Job[Any]:
    job = current_job()
    assert job is not None  # tasks run on workers
    return job


class Batch:
    """One submitter's share of a round; job `offset` has the number `first + offset`."""

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.size = size
        self.begun = 0  # submissions begun; at most one more than there are jobs
        self.over = False  # no submission and no cancel is to come
        self.jobs: list[Job[int]] = []
        self.returned = array("d")  # when the submission had returned
        self.kinds = bytearray()
        self.delayed = bytearray()
        self.watched = bytearray()
        self.heard = bytearray()  # UNASKED, REFUSED or CANCELLED
        # Offsets, once for each call of a done-callback. Appended by any thread: one append is whole on every build.
        self.told: list[int] = []
        self.tellings = threading.Semaphore(0)  # released once for each of them

    def hear(self, offset: int) -> None:
        """Write down that the callback of a job was called."""
        self.told.append(offset)
        self.tellings.release()

    def await_callbacks(self, patience: float) -> None:
        """Wait for as many calls as callbacks were added: those of a job come after its end."""
        for _ in range(sum(self.watched)):
            if not self.tellings.acquire(timeout=patience):
                return  # which the check will tell


class Submitter:
    """Submits one batch, cancels some of it, and waits for it in one way or another; a thread's main function."""

    def __init__(self, run: Run, batch: Batch, draw: random.Random) -> None:
        self._run = run
        self._batch = batch
        self._draw = draw
        self._doomed: deque[tuple[int, int]] = deque()  # (at how many jobs, offset), the order of both

    def main(self) -> None:
        """Do it all; whatever goes wrong breaks the run."""
        try:
            try:
                self._submit()
            finally:
                self._batch.over = True
            self._draw.choice((self._result_of_each, self._wait, self._as_completed, self._leave))()
        except SchedulerClosedError as error:
            if not self._run.abandoned:
                self._run.broke(f"a submission was refused: {error}")
        except Exception as error:
            self._run.broke(f"a submitter met {type(error).__name__}: {error}", error)

    def _submit(self) -> None:
        batch, run, draw = self._batch, self._run, self._draw
        for offset in range(batch.size):
            if run.stop.is_set():
                break
            number = batch.first + offset
            kind = draw_kind(run.settings, draw)
            delay = draw.choice(DELAYS) if draw.random() < run.settings.delay else 0.0
            urgent = kind is Kind.CANCEL and draw.random() < 0.5
            submit = run.doors.open(kind, number, delay, _URGENT if urgent else draw.randrange(PRIORITIES))
            batch.begun += 1
            job = submit(run.tasks.run, number, kind)
            batch.returned.append(time.monotonic())
            batch.kinds.append(kind)
            batch.delayed.append(delay > 0)
            batch.heard.append(UNASKED)
            batch.watched.append(draw.random() < 0.25)
            batch.jobs.append(job)  # last: who looks at the length finds the rest
            if batch.watched[offset]:
                job.add_done_callback(lambda _, offset=offset: batch.hear(offset))  # type: ignore[misc]
            if kind is Kind.CANCEL:
                self._doomed.append((offset + draw.choice(_CANCEL_AFTER), offset))
            while self._doomed and self._doomed[0][0] <= offset:
                self._cancel(self._doomed.popleft()[1])
        while self._doomed:
            self._cancel(self._doomed.popleft()[1])

    def _cancel(self, offset: int) -> None:
        job = self._batch.jobs[offset]
        if self._draw.random() < 0.5:
            time.sleep(0)  # a worker may claim it just now
        cancelled = self._run.scheduler.cancel(job.id) if self._draw.random() < 0.5 else job.cancel()
        self._batch.heard[offset] = CANCELLED if cancelled else REFUSED

    # ---------------------------------------------------------------- ways of waiting

    def _leave(self) -> None:
        """Wait for nothing."""

    def _result_of_each(self) -> None:
        for job in self._batch.jobs:
            while not job.cancelled():
                try:
                    job.exception(self._run.settings.patience)
                    break
                except concurrent.futures.CancelledError:
                    break
                except TimeoutError:
                    self._slept_on([job])
                    if self._run.stop.is_set():
                        return

    def _wait(self) -> None:
        left: Any = set(self._batch.jobs)
        while left and not self._run.abandoned:
            left = concurrent.futures.wait(left, self._run.settings.patience).not_done
            self._slept_on(list(left))

    def _as_completed(self) -> None:
        left = set(self._batch.jobs)
        while left and not self._run.abandoned:
            try:
                for job in concurrent.futures.as_completed(left, self._run.settings.patience):
                    left.discard(job)
                return
            except TimeoutError:
                self._slept_on(list(left))

    def _slept_on(self, jobs: list[Job[int]]) -> None:
        """Break the run if one of these jobs, on which a wait ran out of time, had ended long before that."""
        long_ago = time.monotonic() - self._run.settings.patience / 2
        for job in jobs:
            ended = job.info().finished_at
            if ended is not None and ended < long_ago:
                self._run.broke(f"{job!r} has ended, and whoever waits for it sleeps on")


class Doors:
    """The ways of submitting: for each combination of job options one submitter of the scheduler, made once."""

    def __init__(self, run: Run) -> None:
        self._scheduler = run.scheduler
        self._deadlines = run.settings.policy == "deadline"
        self._retry = Retry(RETRIES, backoff=BACKOFF)
        self._made: dict[tuple[object, ...], Any] = {}

    def open(self, kind: Kind, number: int, delay: float, rank: int) -> Callable[..., Job[int]]:
        """Return what submits a job of this kind; `rank` is the lower, the sooner it shall start."""
        special: object = kind is Kind.RETRY
        if kind is Kind.TIMEOUT:
            special = SHORT_LIMIT if meets_limit(number) else LONG_LIMIT
        if number % _NAMED == 0:
            return self._make(special, delay, rank, f"job {number}").submit  # type: ignore[no-any-return]
        if not special and not delay and rank == 5:
            return self._scheduler.submit  # what most users call
        key = special, delay, rank
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(*key)  # two may make it at once: either will do
        return made.submit  # type: ignore[no-any-return]

    def _make(self, special: object, delay: float, rank: int, id: str | None = None) -> Any:
        options: dict[str, Any] = {"priority": rank, "delay": delay, "id": id}
        if special is True:
            options["retry"] = self._retry
        elif special:
            options["timeout"] = special
        if self._deadlines:
            options["deadline"] = 0.1 * (rank - _URGENT)
        return self._scheduler.options(**options)

"""What is checked of a round when it is over: each job's account, and the order in which jobs were started.

**Order without a guess about time.** Nobody outside can see when exactly a job was claimed; what can be seen are
bounds, and they are enough. A task writes down when it began (``started``) and when the task before it on the same
thread had ended (``after``). The claim of a job lies between the two, for a thread claims nothing while it runs a task.
A job was ready at the latest when its submission had returned and its time had come (``ready``): whoever claims later
than that finds it in the ready queue, for a worker reads the clock, and promotes what is due, before each claim. So

- job A *certainly waited* from ``A.ready`` to ``A.after``, and
- the claim of job B lies within ``B.after`` to ``B.started``.

If the first interval encloses the second, A was in the queue whenever it was that B was chosen. Then A must not rank
before B: a lower key, or the same key and an earlier submission. That is a proof and no guess: however slow the machine
and whatever was switched out in between, no correct scheduler is accused. What it does not see is an overtaking within
about the length of one task. With one worker, ``B.started < A.after`` holds for every B that was started before A, and
the check is exact but for submissions that were under way during the claim.

Jobs that are retried take no part, for they are ready more than once.
"""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import threadsched
from threadsched import Job, JobStatus
from threadsched._stress_load import CANCELLED, Batch
from threadsched._stress_plan import DeliberateError, Kind, meets_limit, promised

if TYPE_CHECKING:
    from threadsched._stress_report import Account

# What ends a job at its time limit; where there are no time limits, no job has one.
_LIMIT_ERROR: type[BaseException] = getattr(threadsched, "JobTimeoutError", TimeoutError)


class BrokenPromiseError(Exception):
    """Raised when the scheduler did something that it must not do; the text says what."""


class Start(NamedTuple):
    """The first start of a job, with what is known of its claim; see the top of this file."""

    key: float
    seq: int
    ready: float
    after: float
    started: float
    number: int


def find_overtaking(starts: Iterable[Start]) -> tuple[Start, Start] | None:
    """Return two starts, the second of which was made although the first had to come before it, or None.

    Cost: O(n log n). The jobs enter in the order in which they became ready a tree over their ranks, which answers
    which of those that rank before a given one waited longest.
    """
    ranked = sorted(starts)  # by key, then by submission
    # Fenwick tree: node n tells, of the n & -n ranks that end with n, the job that certainly waited longest.
    until = [-math.inf] * (len(ranked) + 1)
    whose = [0] * (len(ranked) + 1)
    waiting = sorted((one.ready, rank) for rank, one in enumerate(ranked) if one.after > one.ready)
    entered = 0
    for after, rank in sorted((one.after, rank) for rank, one in enumerate(ranked)):
        while entered < len(waiting) and waiting[entered][0] < after:
            inner = waiting[entered][1]
            entered += 1
            node, value = inner + 1, ranked[inner].after
            while node < len(until):
                if until[node] < value:
                    until[node], whose[node] = value, inner
                node += node & -node
        node, started = rank, ranked[rank].started
        while node:
            if until[node] > started:
                return ranked[whose[node]], ranked[rank]
            node &= node - 1
    return None


class RoundCheck:
    """Goes through one round; raises `BrokenPromiseError` at the first job that was not treated as promised."""

    def __init__(
        self,
        batches: Sequence[Batch],
        logs: Sequence[tuple[array[int], array[float], array[float]]],
        *,
        key: Callable[[Job[Any]], float],
        opened: float,
        paused_until: float | None,
        account: Account,
    ) -> None:
        """Prepare the check.

        Args:
            batches: What the submitters wrote down, by number.
            logs: What the workers wrote down.
            key: What the policy must rank a job by.
            opened: When the round began; no job of it was claimed before.
            paused_until: If the round began with the scheduler paused, just before that was lifted; else None.
            account: Where what is found is entered.
        """
        self._batches = batches
        self._firsts = [batch.first for batch in batches]
        self._logs = logs
        self._key = key
        self._opened = opened
        self._paused_until = paused_until
        self._account = account

    def run(self) -> None:
        """Check it all."""
        starts, first = self._count_starts()
        judged = []
        for batch in self._batches:
            told = _count(batch.told, len(batch.jobs))
            for earlier, later in itertools.pairwise(batch.jobs):
                if earlier.seq >= later.seq:  # the numbers that decide ties below
                    raise BrokenPromiseError(f"{earlier!r} has number {earlier.seq}, {later!r} after it {later.seq}")
            for offset, job in enumerate(batch.jobs):
                number = batch.first + offset
                kind = Kind(batch.kinds[offset])
                self._check_job(job, kind, number, batch.heard[offset] == CANCELLED, starts.get(number, 0))
                if told[offset] != batch.watched[offset]:
                    raise BrokenPromiseError(f"the callback of {_name(job, number)} was called {told[offset]} times")
                self._account.enter(kind, job.status, starts.get(number, 0), delayed=bool(batch.delayed[offset]))
                if number in first and kind is not Kind.RETRY:
                    delayed = bool(batch.delayed[offset])
                    judged.append(self._judge(job, number, batch.returned[offset], delayed, *first[number]))
        pair = find_overtaking(judged)
        if pair is not None:
            raise BrokenPromiseError(_describe_overtaking(*pair))
        self._account.judged += len(judged)

    def _count_starts(self) -> tuple[dict[int, int], dict[int, tuple[float, float]]]:
        """Return how often each job was started, and the bounds of its first claim."""
        starts: dict[int, int] = {}
        first: dict[int, tuple[float, float]] = {}
        for numbers, after, started in self._logs:
            for index, number in enumerate(numbers):
                if not self._submitted_here(number):
                    raise BrokenPromiseError(f"job {number} was started again in a later round")
                starts[number] = starts.get(number, 0) + 1
                bounds = after[index], started[index]
                if number not in first or bounds[1] < first[number][1]:
                    first[number] = bounds
        return starts, first

    def _submitted_here(self, number: int) -> bool:
        index = bisect.bisect_right(self._firsts, number) - 1
        return index >= 0 and number - self._firsts[index] < len(self._batches[index].jobs)

    def _check_job(self, job: Job[int], kind: Kind, number: int, cancelled: bool, starts: int) -> None:
        name = _name(job, number)
        status = job.status
        if not status.ended:
            raise BrokenPromiseError(f"{name} has not ended")
        if cancelled and starts:
            raise BrokenPromiseError(f"{name} was started although a cancel had said True")
        wanted = promised(kind, number, cancelled)
        if starts > wanted.starts:
            raise BrokenPromiseError(f"{name} was started {starts} times, not {wanted.starts}")
        if status is not wanted.status:
            raise BrokenPromiseError(f"{name} ended {status.name}, not {wanted.status.name}{_error_of(job)}")
        if starts != wanted.starts or job.attempts != starts:
            raise BrokenPromiseError(f"{name} was started {starts} times, not {wanted.starts}, and says {job.attempts}")
        if status is JobStatus.DONE and job.result(0) != number:
            raise BrokenPromiseError(f"{name} has the result {job.result(0)!r}")
        if status is JobStatus.FAILED:
            error = job.exception(0)
            fits = isinstance(error, _LIMIT_ERROR) if kind is Kind.TIMEOUT and meets_limit(number) else False
            if not fits and not (isinstance(error, DeliberateError) and error.args == (number,)):
                raise BrokenPromiseError(f"{name} failed for another reason than its own{_error_of(job)}")

    def _judge(self, job: Job[int], number: int, returned: float, delayed: bool, after: float, started: float) -> Start:
        """Return what is known of a start; one before its time is a broken promise."""
        if started < job.run_at:
            raise BrokenPromiseError(f"{_name(job, number)} was started {job.run_at - started:.6f} s before its time")
        due = max(job.submitted_at, job.run_at)
        self._account.lateness.add(started - due)
        if delayed:
            self._account.lateness_delayed.add(started - due)
        ready = max(returned, job.run_at)
        if self._paused_until is not None:
            after = max(after, self._paused_until)
            if delayed:
                # A worker may have read the clock before the pause was lifted and claimed afterwards, without it.
                ready = max(ready, self._paused_until)
        return Start(self._key(job), job.seq, ready, max(after, self._opened), started, number)


def _count(offsets: Iterable[int], size: int) -> list[int]:
    """Return how often each offset occurs."""
    counts = [0] * size
    for offset in offsets:
        counts[offset] += 1
    return counts


def _name(job: Job[Any], number: int) -> str:
    return f"job {number} ({job!r})"


def _error_of(job: Job[Any]) -> str:
    error = None if job.cancelled() or not job.done() else job.exception(0)
    return "" if error is None else f": {type(error).__name__}: {error}"


def _describe_overtaking(earlier: Start, later: Start) -> str:
    return (
        f"job {later.number} was started before job {earlier.number}, which was ready and ranks before it:"
        f" ({earlier.key:g}, {earlier.seq}) against ({later.key:g}, {later.seq})"
    )

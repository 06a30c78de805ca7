"""How many jobs may be pending, and who waits for a place or for fewer of them. No thread, lock, clock or I/O.

A :class:`Gate` is part of the core, called like it. The tokens in it were made elsewhere; here they are released only.

**First come, first served.** A blocked producer stands in ``line``. Whatever frees a place *grants* it, then and there,
to the first in line; a newcomer finds the line and queues behind it. A place that is granted counts as taken until its
producer has entered, or has handed it on because its time ran out, Ctrl-C struck, or its job was refused after all.
The rejected alternative, to wake the first and let it try, lets every newcomer jump the line.

**Only newcomers are counted at the gate.** A retry goes back into the queue without asking, so the count may exceed
the limit by as many as run; nobody gets in until it has fallen below.

A release is a hint, the grant is what counts. It is released first, so that an exception between the two
(Ctrl-C in a thread that frees a place) leaves a producer that wakes, looks, and helps itself.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from threadsched import _numbers
from threadsched._errors import InvariantError
from threadsched._job import Job

BLOCK = "block"
REJECT = "reject"
DROP_OLDEST = "drop_oldest"
DROP_LOWEST = "drop_lowest"
CALLER_RUNS = "caller_runs"

# What a full queue does with a newcomer.
RULES = (BLOCK, REJECT, DROP_OLDEST, DROP_LOWEST, CALLER_RUNS)


class Gate:
    """The bound, the line before it, and those who wait for fewer pending jobs. Guarded by the scheduler's lock.

    ``pending`` is the core's map of pending jobs itself, not its length, which who breaks in may change.

    Args:
        limit: how many jobs may be pending; None for any number (then only ``wait_below`` needs the gate).
        on_full: one of ``RULES``.
    """

    def __init__(self, limit: int | None, on_full: str = BLOCK) -> None:
        self.limit = limit
        self.on_full = on_full
        self.line: dict[Job[Any], Any] = {}  # job -> its producer's token, in order of arrival
        self.grants: dict[Job[Any], None] = {}  # jobs whose place is free for them
        self.below: list[Any] = []  # tokens of wait_below
        self.wanted: dict[Any, int] = {}  # token -> fewer pending jobs than this

    def admits(self, job: Job[Any], pending: Sized) -> bool:
        """Let a newcomer in if it was granted a place, or if there is one and nobody queues for it."""
        if self.grants and self.grants.pop(job, self) is None:
            return True
        return self.limit is None or (not self.line and len(pending) + len(self.grants) < self.limit)

    def take(self, job: Job[Any], pending: Sized) -> bool:
        """Grant a place now, if ``admits`` would let the newcomer in."""
        if self.admits(job, pending):
            self.grants[job] = None
            return True
        return False

    def freed(self, pending: Sized) -> None:
        """Grant what places there are to the first in line, and wake who waits for so few. O(1) for each."""
        limit, line, grants = self.limit, self.line, self.grants
        while limit is not None:
            job = _first(line)
            if job is None:
                break
            if len(pending) + len(grants) >= limit:
                break
            token = line.get(job)
            if token is not None:
                _wake(token)
            if job in line:  # else somebody who broke in has granted it
                grants[job] = None
                line.pop(job, None)
        if self.below:
            self._wake_below(pending)

    def _wake_below(self, pending: Sized) -> None:
        for token in list(self.below):
            if len(pending) < self.wanted.get(token, 0):
                _wake(token)
                try:
                    self.below.remove(token)
                except ValueError:
                    continue  # who broke in was faster

    def withdraw(self, job: Job[Any], pending: Sized) -> None:
        """A producer leaves, whatever it has: out of the line, and its grant goes to the next."""
        self.line.pop(job, None)
        self.grants.pop(job, None)
        self.freed(pending)

    def wake_all(self) -> None:
        """Wake every blocked producer, for the door has closed."""
        for token in list(self.line.values()):
            _wake(token)

    def reset(self) -> None:
        """Forget who waits, in the child of a fork; one that is this very thread's looks again."""
        self.wake_all()
        for registry in (self.line, self.grants, self.below, self.wanted):
            registry.clear()

    def check_invariants(self, pending: Sized, *, closed: bool) -> None:
        """Raise InvariantError on the first broken one."""
        if self.line and not closed and self.limit is not None and len(pending) + len(self.grants) < self.limit:
            raise InvariantError("a producer waits although there is a place")
        if set(self.line) & set(self.grants):
            raise InvariantError("a producer with a grant stands in the line")
        if not set(self.below) <= set(self.wanted):
            raise InvariantError("somebody waits for nobody knows how few pending jobs")


def _first(line: dict[Job[Any], Any]) -> Job[Any] | None:
    for job in line:  # not next(iter(...)): who broke in between the two would find the dict in use
        return job
    return None


def _wake(token: Any) -> None:
    """Release a token that may be released already; no look first, for somebody could come between."""
    try:
        token.release()
    except RuntimeError:
        return


def make_gate(max_pending: object, on_full: object, queue: str, *, stepped: bool = False) -> Gate | None:
    """Check what the user asked for; None without a bound."""
    if not isinstance(on_full, str) or on_full not in RULES:
        raise ValueError(f"on_full must be one of {', '.join(map(repr, RULES))}, not {_numbers.describe(on_full)}")
    if stepped and on_full == BLOCK:
        raise ValueError("on_full must not be 'block' here: only the submitting thread itself could make a place")
    if on_full == DROP_LOWEST and queue != "indexed":
        raise ValueError(
            f"on_full='drop_lowest' needs queue='indexed', not {queue!r}: a heap does not know its last job"
        )
    return None if max_pending is None else Gate(_numbers.count("max_pending", max_pending, least=1), str(on_full))

"""One limit at work: who is inside, who was sent, when the latest starts were. ``_limits`` has the whole picture."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from threadsched._heap import Entry
from threadsched._job import Job
from threadsched._limit import Limit
from threadsched._records import Reason

if TYPE_CHECKING:
    from threadsched._limits import Group


class Gate:
    """One limit and those inside. Guarded by the scheduler's lock, like all in this file."""

    __slots__ = ("alarm", "coming", "inside", "last", "limit", "name", "number", "parked", "sent", "starts")

    def __init__(self, name: str, limit: Limit, number: int) -> None:
        self.name = name
        self.limit = limit
        self.number = number
        self.reset()

    def reset(self) -> None:
        """Forget everything but the limit."""
        self.starts: deque[float] = deque(maxlen=self.limit.rate or 0)  # the latest, oldest first
        self.inside: dict[int, None] = {}  # seq of a running job, or the number of a Kept
        self.coming: dict[int, None] = {}  # of those inside: allowed, and not counted as started yet
        self.clear()

    def clear(self) -> None:
        """Forget who waits."""
        self.sent: dict[int, None] = {}  # seq of jobs in the ready queue that are to take the room there is
        self.last: Entry | None = None  # not before any of those sent
        self.parked: list[tuple[Any, int, int, Group]] = []  # Heap of (key, seq, ticket, group): of the group's first
        self.alarm: float | None = None

    def opens_at(self, extra: int) -> float:
        """Return from when the rate allows one start more than ``extra`` others; inf if only they can tell."""
        rate, starts = self.limit.rate, self.starts
        if rate is None:
            return -math.inf
        if extra >= rate:
            return math.inf
        before = len(starts) - rate + extra
        return -math.inf if before < 0 else starts[before] + self.limit.per

    def fits(self, now: float) -> bool:
        """Say whether all who are inside, the last to come included, may be."""
        concurrency = self.limit.concurrency
        if concurrency is not None and len(self.inside) > concurrency:
            return False
        return self.limit.rate is None or self.opens_at(len(self.coming) - 1) <= now

    def has_place(self, extra: int) -> bool:
        """Say whether the number at once allows one more than those inside and ``extra`` others."""
        concurrency = self.limit.concurrency
        return concurrency is None or len(self.inside) + extra < concurrency

    def can_send(self, now: float, entry: Entry, pending: Mapping[int, Job[Any]]) -> bool:
        """Say whether there is room for a held job beside those inside and those sent that the policy puts before it.

        O(1), or O(sent) for one that comes from another gate and ranks before some who were sent.
        """
        sent = len(self.sent)
        if self._takes(sent, now):
            return True
        if not sent or not self._takes(0, now) or self.last is None or self.last < entry:
            return False
        ahead = [seq for seq in list(self.sent) if (job := pending.get(seq)) is not None and (job._key, seq) < entry]
        return self._takes(len(ahead), now)

    def _takes(self, extra: int, now: float) -> bool:
        return self.has_place(extra) and self.opens_at(len(self.coming) + extra) <= now

    def send(self, job: Job[Any]) -> None:
        """Take note that a job was sent."""
        entry = (job._key, job._seq)
        if not self.sent or self.last is None or self.last < entry:
            self.last = entry
        self.sent[job._seq] = None

    def count(self, now: float) -> None:
        """Count a start."""
        if self.limit.rate is not None:
            starts = self.starts
            # A clock that went back must not make the window shorter.
            starts.append(max(now, starts[-1]) if starts else now)

    def next_room_at(self, now: float) -> float | None:
        """Return from when the rate allows a start, or None if it does."""
        at = self.opens_at(len(self.coming))
        return at if now < at < math.inf else None

    def reason(self, now: float) -> Reason | None:
        """Say why there is no room, or None if there is."""
        limit, at = self.limit, self.next_room_at(now)
        if not self.has_place(0):
            return Reason("limit", f"limit {self.name!r}: {len(self.inside)} of {limit.concurrency} run", at)
        if at is not None:
            why = f"limit {self.name!r}: {limit.rate} started within {limit.per:g} s; room in {at - now:g} s"
            return Reason("limit", why, at)
        return None


@dataclass(frozen=True, slots=True)
class Kept:
    """The room of a thread that was written off: its job has moved on, and it still runs."""

    number: int
    gates: tuple[Gate, ...]

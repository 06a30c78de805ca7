"""Two queue structures behind one small interface, alike in every answer.

Both hold entries ``(rank, seq)``, smallest first, and know nothing of jobs: an entry whose ``seq`` is no longer in
the job map is *dead*, and whoever pops it throws it away. So no entry keeps a user's object alive.

- :class:`LazyQueue` is a ``heapq`` list with a *lane* beside it. An entry that comes in order, not before the last one
  of the lane, is appended to the lane in O(1) and popped from it in O(1); any other goes through the heap in O(log n).
  Queues are mostly fed in order (one and the same delay, a policy by time), and with 100,000 entries a ``heappop``
  costs more than all the rest of a claim. The *level* is a lane of equals, for the queue of the ready jobs: entries
  with one and the same object for a rank (the default priority) are kept as bare numbers, which spares each job a
  tuple, its comparison and a call. Removing is free: the entry stays, dead, until it is popped or until :meth:`keep`
  filters the queue.
- :class:`IndexedQueue` is a ``sortedcontainers.SortedList``: removal at once in O(log n), both ends reachable,
  iteration in order; push costs several times the heap's.

**Re-entrancy.** A signal handler or a finalizer can submit or cancel on the very thread that is inside one of these
calls. CPython runs such code only at function entries, backward jumps and after calls, so a look followed by one C
call on plain numbers (``_insert``) is not broken into. Longer Python code (``SortedList``, a policy's ``before``, a
filter) is: there the public ``push`` attribute is the guard. While a change is under way it leads to an inbox, and the
change empties the inbox before it leaves. A change broken off by an exception (Ctrl-C) leaves ``untidy`` set, and the
owner rebuilds from the job map before it looks again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from itertools import compress
from operator import itemgetter
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from threadsched._policy import BeforeRaisedError, Ranking

# (rank, seq): rank is run_at or the policy's key.
Entry: TypeAlias = tuple[Any, int]

_seq_of = itemgetter(1)

NO_RANK = object()  # is nobody's rank


class LazyQueue:
    """A lane and a heap with lazy deletion. Truth of ``lane or heap``: there is an entry, dead or alive."""

    indexed = False

    def __init__(self, ranking: Ranking | None = None, *, levelled: bool = False) -> None:
        self.lane: deque[Entry] = deque()  # (rank, seq) in ascending order
        self.heap: Any = []  # Heap of (rank, seq)
        self.level: deque[int] = deque()  # seqs in ascending order, of entries whose rank is level_rank
        self.level_rank: Any = NO_RANK
        self.open_rank: object = NO_RANK  # the same where anybody may append to the level, now
        self.untidy = False  # to be rebuilt before anybody looks
        self.broken = False  # ... and not to be touched before, for an exception left it half changed
        self._inbox: list[Entry] = []
        self._ranking = ranking
        self._levelled = levelled and not self.indexed and not (ranking is not None and ranking.comparing)
        guarded = self.indexed or (ranking is not None and ranking.comparing)
        self.resting_push: Callable[[Entry], None] = self._guarded_push if guarded else self._insert
        self.push: Callable[[Entry], None] = self.resting_push
        # What push is while anybody may put an entry into the lane or the heap himself, as _insert does.
        self.plain_push = None if guarded or self._levelled else self.resting_push
        self.pop: Callable[[], Entry | None] = self._guarded_pop if guarded else self._take

    def __len__(self) -> int:
        return len(self.level) + len(self.lane) + len(self.heap)

    @property
    def busy(self) -> bool:
        """Whether somebody further down this stack is inside a change: no other may begin."""
        return self.push is not self.resting_push

    def first(self) -> Entry | None:
        """Return the smallest entry, dead or alive, or None."""
        lane, heap, level = self.lane, self.heap, self.level
        first: Entry | None = heap[0] if heap else None
        if lane and (first is None or lane[0] < first):
            first = lane[0]
        if level and (first is None or (self.level_rank, level[0]) < first):
            first = (self.level_rank, level[0])
        return first

    def second(self) -> Entry | None:
        """Return the entry after the smallest, dead or alive, or None. For a queue without a level."""
        lane, nearest = self.lane, []
        try:
            nearest += self.heap[:3]
            nearest.append(lane[0])
            nearest.append(lane[1])
        except IndexError:  # it is shorter, perhaps since a finalizer broke in
            pass
        nearest.sort()
        return nearest[1] if len(nearest) > 1 else None

    def entries(self) -> list[Entry]:
        """Return all entries in no particular order."""
        rank = self.level_rank
        return [*[(rank, seq) for seq in self.level], *self.lane, *self.heap]

    def in_order(self) -> bool:
        """Audit the order of what is held."""
        heap, parts = self.heap, [list[Any](self.lane), list[Any](self.level)]
        ascending = not any(b < a for part in parts for a, b in itertools.pairwise(part))
        return ascending and not any(heap[child] < heap[(child - 1) // 2] for child in range(1, len(heap)))

    def discard(self, entry: Entry) -> bool:
        """Take out the entry of a job that left the map; False if it stays, dead, as it always does here."""
        return False

    def keep(self, alive: Collection[int]) -> int:
        """Drop every entry whose seq is not in ``alive`` (a dict or set of ints); return how many. O(n)."""
        if self.push is not self.resting_push:
            return 0  # somebody further down this stack is inside: another time
        dropped: int = self._guarded(self._filter, alive)
        return dropped

    def rebuild(self, make_entries: Callable[[], Iterable[Entry]]) -> None:
        """Replace all by what ``make_entries()`` reads from the job map. O(n log n)."""
        while True:
            self.push = self._divert
            self.open_rank = NO_RANK
            try:
                self.untidy = True
                self._inbox.clear()
                self._fill(make_entries())
                self.untidy = self.broken = False
            finally:
                self.push = self.resting_push
            if not self._inbox:
                return  # else somebody submitted on this thread meanwhile: the map has that job too, read it again

    # ---------------------------------------------------------------- the structure itself

    def _insert(self, entry: Entry) -> None:
        if self._levelled:
            rank, seq = entry
            level = self.level
            if not level:
                self.level_rank = self.open_rank = rank
                level.append(seq)
                return
            if rank is self.level_rank and level[-1] < seq:
                self.open_rank = rank
                level.append(seq)
                return
        lane = self.lane
        if not lane or lane[-1] < entry:
            lane.append(entry)
        else:
            heappush(self.heap, entry)

    def _take(self) -> Entry | None:
        lane, heap, level = self.lane, self.heap, self.level
        if level:
            # The number leaves the level before a tuple is made of it: making one may run a finalizer.
            if not lane and not heap:
                return self.level_rank, level.popleft()
            rank: Any = self.level_rank
            first = lane[0] if lane and (not heap or lane[0] < heap[0]) else heap[0]
            if rank < first[0] or (rank == first[0] and level[0] < first[1]):
                return rank, level.popleft()
        if lane and (not heap or lane[0] < heap[0]):
            return lane.popleft()
        return heappop(heap) if heap else None

    def _filter(self, alive: Collection[int]) -> int:
        dropped = 0
        lives = set(alive).__contains__  # smaller than a map that has been larger: nearer at hand, a tenth of the time
        for part in (self.lane, self.heap):
            kept = list(compress(part, map(lives, map(_seq_of, part))))
            dropped += len(part) - len(kept)
            part.clear()  # in place: a push further down this stack may hold it
            part.extend(kept)
        heapify(self.heap)
        level = self.level
        equals = list(filter(lives, level))
        dropped += len(level) - len(equals)
        level.clear()
        level.extend(equals)
        return dropped

    def _fill(self, entries: Iterable[Entry]) -> None:
        self.lane.clear()
        self.heap.clear()
        self.level.clear()
        self.lane.extend(sorted(entries))

    # ---------------------------------------------------------------- the guard

    def shut(self) -> None:
        """Let nobody who breaks in touch the structure: pushes wait in the inbox, discards leave the dead.

        Whatever breaks off the caller before ``open`` is done, the structure is untidy.
        """
        self.untidy = True
        self.push = self._divert
        self.open_rank = NO_RANK

    def open(self) -> None:
        """Take in what came meanwhile."""
        self.push = self.resting_push
        self.untidy = False
        try:
            while self._inbox:
                self.resting_push(self._inbox.pop())
        except BaseException:
            self.untidy = True
            raise

    def _guarded_push(self, entry: Entry) -> None:
        ranking = self._ranking
        known = len(ranking.faults) if ranking is not None else 0
        self._guarded(self._insert, entry)
        if ranking is not None and len(ranking.faults) > known:
            raise BeforeRaisedError(ranking.faults.pop())

    def _guarded_pop(self) -> Entry | None:
        entry: Entry | None = self._guarded(self._take)
        return entry

    def _guarded(self, change: Callable[..., Any], *args: object) -> Any:
        """Make a change that can be broken into, and take in what was pushed by whoever broke in."""
        self.push = self._divert
        self.open_rank = NO_RANK
        try:
            answer = change(*args)
            while self._inbox:
                self._insert(self._inbox.pop())
        except BaseException:
            self.untidy = self.broken = True
            raise
        finally:
            self.push = self.resting_push
        while self._inbox:  # came between the last look and the line above
            self.resting_push(self._inbox.pop())
        return answer

    def _divert(self, entry: Entry) -> None:
        if self._ranking is not None:
            self._ranking.refuse_in_before()
        self._inbox.append(entry)


class IndexedQueue(LazyQueue):
    """A sorted list, in ``heap``, with immediate removal; its lane stays empty."""

    indexed = True

    def __init__(self, ranking: Ranking | None = None, *, levelled: bool = False) -> None:
        super().__init__(ranking)
        self.heap = SortedList()

    def first(self) -> Entry | None:
        """Return the smallest entry, dead or alive, or None."""
        try:
            first: Entry | None = self.heap[0] if self.heap else None
        except IndexError:  # taken out and not counted yet, by whom this call broke into
            return None
        return first

    def in_order(self) -> bool:
        """Audit the order of what is held."""
        return not any(b < a for a, b in itertools.pairwise(self.heap))

    def discard(self, entry: Entry) -> bool:
        """Take an entry out at once, O(log n).

        False if somebody further down this stack is inside, and it stays, dead, or has it in hand already.
        """
        if self.untidy or self.push is not self.resting_push:
            return False
        taken: bool = self._guarded(self._remove, entry)
        return taken

    def _remove(self, entry: Entry) -> bool:
        try:
            self.heap.remove(entry)
        except ValueError:
            return False
        return True

    def _insert(self, entry: Entry) -> None:
        if not self.broken:  # else an interrupt left the list half changed: it is rebuilt from the map, with this job
            self.heap.add(entry)

    def _take(self) -> Entry | None:
        heap = self.heap
        first: Entry | None = heap.pop(0) if heap else None
        return first

    def _filter(self, alive: Collection[int]) -> int:
        kept = [entry for entry in self.heap if entry[1] in alive]
        dropped = len(self.heap) - len(kept)
        self._fill(kept)
        return dropped

    def _fill(self, entries: Iterable[Entry]) -> None:
        self.heap.clear()
        self.heap.update(entries)


STRUCTURES: dict[str, type[LazyQueue]] = {"lazy": LazyQueue, "indexed": IndexedQueue}

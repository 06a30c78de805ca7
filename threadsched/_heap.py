"""Two queue structures behind one small interface, alike in every answer.

Both hold entries ``(rank, seq)``, smallest first, and know nothing of jobs: an entry whose ``seq`` is no longer in
the job map is *dead*, and whoever pops it throws it away. So no entry keeps a user's object alive.

- :class:`LazyQueue` is a ``heapq`` list. Removing is free: the entry stays, dead, until it is popped or until
  :meth:`keep` filters the list. Push and pop are O(log n) in C.
- :class:`IndexedQueue` is a ``sortedcontainers.SortedList``: removal at once in O(log n), both ends reachable,
  iteration in order; push costs several times the heap's.

**Re-entrancy.** A signal handler or a finalizer can submit or cancel on the very thread that is inside one of these
calls. A C call on plain numbers cannot be interrupted; Python code (``SortedList``, a policy's ``before``) can. There
the public ``push`` attribute is the guard: while a change is under way it is the inbox's ``append``, and the change
empties the inbox before it leaves. A change broken off by an exception (Ctrl-C) leaves ``untidy`` set, and the owner
rebuilds from the job map before it looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import compress
from operator import itemgetter
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from threadsched._policy import BeforeRaisedError, Ranking

# (rank, seq): rank is run_at or the policy's key.
Entry: TypeAlias = tuple[Any, int]

_seq_of = itemgetter(1)


class LazyQueue:
    """A heap with lazy deletion.

    ``entries[0]`` is the smallest, ``push(entry)`` and ``pop()`` are as fast as ``heapq``: they are ``heapq``, unless
    the ranks compare by a policy's ``before``.
    """

    indexed = False

    def __init__(self, ranking: Ranking | None = None) -> None:
        self.entries: Any = []  # Heap of (rank, seq); the list object never changes, only what is in it.
        self.untidy = False
        self._inbox: list[Entry] = []
        self._ranking = ranking
        self._plain_push: Callable[[Entry], None] = partial(heappush, self.entries)
        self._plain_pop: Callable[[], Entry] = partial(heappop, self.entries)
        guarded = ranking is not None and ranking.comparing
        self._idle_push = self._guarded_push if guarded else self._plain_push
        self.push = self._idle_push
        self.pop = self._guarded_pop if guarded else self._plain_pop

    def discard(self, entry: Entry) -> None:
        """Forget an entry whose job left the map: nothing to do, it is dead."""

    def keep(self, alive: Container[int]) -> None:
        """Drop every entry whose seq is not in ``alive`` (a dict or set of ints). O(n)."""
        if self.push is not self._idle_push:
            return  # somebody further down this stack is inside; a dead entry more or less does no harm
        entries = self.entries
        self.untidy = True
        # One C call: no handler and no Ctrl-C can come between the look and the store.
        entries[:] = compress(entries, map(alive.__contains__, map(_seq_of, entries)))
        self._guarded(heapify, entries)
        self.untidy = False

    def rebuild(self, make_entries: Callable[[], Iterable[Entry]]) -> None:
        """Replace all by what ``make_entries()`` reads from the job map. O(n)."""
        while True:
            self.push = self._inbox.append
            try:
                self._inbox.clear()
                self.entries.clear()
                self.untidy = True
                self._fill(make_entries())
                self.untidy = False
            finally:
                self.push = self._idle_push
            if not self._inbox:
                return  # else somebody submitted on this thread meanwhile: the map has that job too, read it again

    def _fill(self, entries: Iterable[Entry]) -> None:
        self.entries.extend(entries)
        heapify(self.entries)

    def _guarded_push(self, entry: Entry) -> None:
        ranking = self._ranking
        if ranking is None:
            self._guarded(self._plain_push, entry)
            return
        known = len(ranking.faults)
        self._guarded(self._plain_push, entry)
        if len(ranking.faults) > known:
            raise BeforeRaisedError(ranking.faults.pop())

    def _guarded_pop(self) -> Entry:
        entry: Entry = self._guarded(self._plain_pop)
        return entry

    def _guarded(self, change: Callable[..., Any], *args: object) -> Any:
        """Run a change that Python code can interrupt, and take in what was pushed by whoever interrupted it."""
        self.push = self._divert
        try:
            answer = change(*args)
            while self._inbox:
                self._plain_push(self._inbox.pop())
        except IndexError:
            raise  # pop from an empty queue: nothing changed
        except BaseException:
            self.untidy = True
            raise
        finally:
            self.push = self._idle_push
        while self._inbox:  # came between the last look and the line above
            self._idle_push(self._inbox.pop())
        return answer

    def _divert(self, entry: Entry) -> None:
        if self._ranking is not None and self._ranking.in_before:
            raise RuntimeError("a policy's before() must not call the scheduler")
        self._inbox.append(entry)


class IndexedQueue(LazyQueue):
    """A sorted list with immediate removal."""

    indexed = True

    def __init__(self, ranking: Ranking | None = None) -> None:
        super().__init__(ranking)
        self.entries = SortedList()
        self._plain_push = self.entries.add
        self._plain_pop = partial(self.entries.pop, 0)
        self._idle_push = self._guarded_push
        self.push = self._idle_push
        self.pop = self._guarded_pop

    def discard(self, entry: Entry) -> None:
        """Remove an entry at once. O(log n)."""
        if self.push is self._idle_push:
            self._guarded(self.entries.discard, entry)

    def keep(self, alive: Container[int]) -> None:
        """Drop every entry whose seq is not in ``alive``. O(n log n), and rarely needed."""
        if self.push is self._idle_push:
            dead = [entry for entry in self.entries if entry[1] not in alive]
            for entry in dead:
                self._guarded(self.entries.discard, entry)

    def _fill(self, entries: Iterable[Entry]) -> None:
        self.entries.update(entries)


STRUCTURES: dict[str, type[LazyQueue]] = {"lazy": LazyQueue, "indexed": IndexedQueue}

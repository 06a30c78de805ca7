"""Both queue structures against a sorted list, and what interruptions inside a change leave behind."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_driver import make_job
from threadsched._heap import NO_RANK, STRUCTURES, IndexedQueue, LazyQueue
from threadsched._policy import BeforeRaisedError, Ranking

both = pytest.mark.parametrize("structure", list(STRUCTURES.values()), ids=list(STRUCTURES))


def drain(queue: LazyQueue) -> list[Any]:
    entries = []
    while (entry := queue.pop()) is not None:
        entries.append(entry)
    return entries


@functools.total_ordering
class Rank:
    """A number whose comparison calls `hook` first, as a finalizer or a signal handler would strike there."""

    hook: Callable[[], object] | None = None

    def __init__(self, value: int) -> None:
        self.value = value

    def _strike(self) -> None:
        hook, Rank.hook = Rank.hook, None
        if hook is not None:
            hook()

    def __lt__(self, other: "Rank") -> bool:
        self._strike()
        return self.value < other.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rank) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rank({self.value})"


class Never:
    """A policy that only has to be there: the ranks of these tests compare themselves."""

    def before(self, a: Any, b: Any) -> bool:
        return False


def comparing() -> Ranking:
    return Ranking(Never())


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(-5, 5)),
        st.tuples(st.just("push"), st.integers(-5, 5)),
        st.tuples(st.just("pop"), st.just(0)),
        st.tuples(st.just("return"), st.just(0)),
        st.tuples(st.just("discard"), st.integers(0, 1000)),
        st.tuples(st.just("keep"), st.integers(1, 3)),
        st.tuples(st.just("rebuild"), st.just(0)),
    ),
    max_size=60,
)


@both
@pytest.mark.parametrize("kind", ["plain", "levelled", "compared"])
@given(operations=OPERATIONS)
def test_behaves_like_a_sorted_list(structure: type[LazyQueue], kind: str, operations: list[tuple[str, int]]):
    """Any run of pushes, pops, discards, filters and rebuilds gives what a sorted list gives."""
    ranked = kind == "compared"
    queue = structure(comparing() if ranked else None, levelled=kind == "levelled")
    model: list[tuple[Any, int]] = []  # the living entries, sorted
    alive: dict[int, tuple[Any, int]] = {}
    seq = 0
    for operation, number in operations:
        if operation == "push":
            seq += 1
            entry = (Rank(number) if ranked else number, seq)
            queue.push(entry)
            alive[seq] = entry
        elif operation == "pop":
            while (popped := queue.pop()) is not None:
                if popped[1] in alive:
                    assert popped == model[0]
                    del alive[popped[1]]
                    break
                assert not queue.indexed, "an indexed queue holds no dead entry"
            else:
                assert not model
        elif operation == "return":
            popped = queue.pop()
            if popped is not None:
                queue.push(popped)
        elif operation == "discard" and alive:
            chosen = sorted(alive)[number % len(alive)]
            queue.discard(alive.pop(chosen))
        elif operation == "keep":
            for chosen in [one for one in alive if one % (number + 1) == 0]:
                del alive[chosen]
            queue.keep(alive)
            assert len(queue) == len(alive)
        elif operation == "rebuild":
            queue.rebuild(lambda: list(alive.values()))
            assert len(queue) == len(alive)
        model = sorted(alive.values())
        assert not queue.untidy
        held = queue.entries()
        assert len(held) == len(queue)
        assert sorted(entry for entry in held if entry[1] in alive) == model
        assert queue.first() == min(held, default=None)
        if kind == "plain":
            assert queue.second() == (sorted(held)[1] if len(held) > 1 else None)
        assert queue.in_order()
        if queue.indexed:
            assert held == model
    assert [entry for entry in drain(queue) if entry[1] in alive] == model


@both
@pytest.mark.parametrize("ranked", [False, True], ids=["plain", "compared"])
def test_empty_queue_gives_nothing(structure: type[LazyQueue], ranked: bool):
    """Popping and looking at an empty queue give None and leave it usable."""
    queue = structure(comparing() if ranked else None)
    assert queue.pop() is None
    assert queue.first() is None
    assert not queue.untidy
    assert not queue.lane
    assert not queue.heap
    queue.push((Rank(1), 1))
    assert queue.lane or queue.heap
    assert queue.pop()[1] == 1
    assert queue.pop() is None


def test_entries_in_order_take_the_lane():
    """What comes in order never enters the heap; what does not goes there, and both pop as one order."""
    queue = LazyQueue()
    for seq, rank in enumerate([1, 1, 3, 2, 5, 0, 5]):
        queue.push((rank, seq))
    assert [rank for rank, _ in queue.lane] == [1, 1, 3, 5, 5]
    assert sorted(rank for rank, _ in queue.heap) == [0, 2]
    assert drain(queue) == [(0, 5), (1, 0), (1, 1), (2, 3), (3, 2), (5, 4), (5, 6)]


def test_equals_take_the_level():
    """One and the same rank is kept as bare numbers; another one, and one that comes late, go elsewhere."""
    queue = LazyQueue(levelled=True)
    for seq, rank in [(1, 5), (3, 5), (2, 5), (4, 7), (5, 5), (6, 1)]:
        queue.push((rank, seq))
    assert list(queue.level) == [1, 3, 5]
    assert queue.open_rank == 5
    assert list(queue.lane) == [(5, 2), (7, 4)]
    assert queue.heap == [(1, 6)]
    assert queue.first() == (1, 6)
    assert drain(queue) == [(1, 6), (5, 1), (5, 2), (5, 3), (5, 5), (7, 4)]
    queue.push((7, 7))
    assert list(queue.level) == [7]  # an empty level takes any rank
    assert queue.first() == (7, 7)


def test_level_is_shut_while_somebody_is_inside():
    """During a rebuild, and while it is shut, nobody appends to the level past the guard."""
    queue = LazyQueue(levelled=True)
    queue.push((5, 1))
    queue.shut()
    assert queue.open_rank is NO_RANK
    queue.push((5, 2))
    assert list(queue.level) == [1]
    queue.open()
    assert queue.open_rank == 5
    seen: list[object] = []
    queue.rebuild(lambda: (seen.append(queue.open_rank), [(5, 3)])[1])
    assert seen == [NO_RANK]
    assert drain(queue) == [(5, 3)]


@pytest.mark.parametrize("part", ["level", "lane", "heap"])
def test_order_audit_sees_each_part(part: str):
    """The audit of the order looks at the level, the lane and the heap."""
    queue = LazyQueue(levelled=True)
    for seq, rank in enumerate([4, 4, 5, 6, 7, 3, 2, 1]):
        queue.push((rank, seq))
    assert queue.in_order()
    getattr(queue, part).reverse()
    assert not queue.in_order()
    indexed = IndexedQueue()
    for seq in range(3):
        indexed.push((seq, seq))
    assert indexed.in_order()
    indexed.heap._lists[0].reverse()
    assert not indexed.in_order()


@both
def test_discard_of_a_stranger_changes_nothing(structure: type[LazyQueue]):
    """Discarding an entry that is not there is allowed."""
    queue = structure()
    queue.push((1, 1))
    queue.discard((1, 2))
    queue.discard((0, 1))
    assert drain(queue) == [(1, 1)]


def test_lazy_discard_is_free_and_indexed_discard_is_at_once():
    """The lazy queue keeps the dead entry until it is filtered; the indexed one removes it."""
    lazy, indexed = LazyQueue(), IndexedQueue()
    for queue in (lazy, indexed):
        for seq in range(3):
            queue.push((seq, seq))
        queue.discard((1, 1))
    assert len(lazy) == 3
    assert indexed.entries() == [(0, 0), (2, 2)]


# ---------------------------------------------------------------- a call from inside a change


def filled(structure: type[LazyQueue], count: int = 8) -> LazyQueue:
    queue = structure(comparing())
    for seq in reversed(range(count)):  # so that most of them are in the lazy queue's heap
        queue.push((Rank(seq * 10), seq))
    return queue


def changes(structure: type[LazyQueue]) -> dict[str, tuple[Callable[[LazyQueue], object], set[int]]]:
    """Return each change that compares, with the sequence numbers that it takes away or adds."""
    table: dict[str, tuple[Callable[[LazyQueue], object], set[int]]] = {
        "push": (lambda queue: queue.push((Rank(5), 50)), {50}),
        "keep": (lambda queue: queue.keep(set(range(8))), set()),
        "rebuild": (lambda queue: queue.rebuild(lambda: [(Rank(seq * 10), seq) for seq in (*range(8), 99, 98)]), set()),
    }
    if structure is LazyQueue:  # a sorted list compares nothing when it pops
        table["pop"] = (lambda queue: queue.pop(), {0})
    else:
        table["discard"] = (lambda queue: queue.discard((Rank(0), 0)), {0})
    return table


CHANGES = [
    pytest.param(structure, name, id=f"{label}-{name}")
    for label, structure in STRUCTURES.items()
    for name in changes(structure)
    if not (structure is IndexedQueue and name == "keep")  # it compares nothing when all live
]


@pytest.mark.parametrize(("structure", "name"), CHANGES)
def test_push_from_inside_a_change_waits_in_the_inbox(structure: type[LazyQueue], name: str):
    """Two pushes by somebody who interrupts a change are in the queue, in order, when that change has left."""
    queue = filled(structure)
    change, seqs = changes(structure)[name]
    seen_inside: list[int] = []

    def strike() -> None:
        queue.push((Rank(35), 99))
        queue.push((Rank(-1), 98))
        seen_inside.append(len(queue))

    Rank.hook = strike
    try:
        change(queue)
    finally:
        Rank.hook = None
    assert seen_inside, "the change compared nothing"
    assert not queue.untidy
    expected = (set(range(8)) | {98, 99}) ^ seqs
    drained = drain(queue)
    assert [rank.value for rank, _ in drained] == sorted(rank.value for rank, _ in drained)
    assert {seq for _, seq in drained} == expected
    assert len(drained) == len(expected)


@pytest.mark.parametrize(("structure", "name"), CHANGES)
def test_keep_and_discard_from_inside_a_change_do_nothing(structure: type[LazyQueue], name: str):
    """A sweep or a removal by somebody who interrupts a change leaves the entries for later."""
    queue = filled(structure)
    change, seqs = changes(structure)[name]
    struck: list[bool] = []

    def strike() -> None:
        queue.keep(set())
        queue.discard((Rank(70), 7))
        struck.append(True)

    Rank.hook = strike
    try:
        change(queue)
    finally:
        Rank.hook = None
    assert struck
    expected = (set(range(8)) | ({98, 99} if name == "rebuild" else set())) ^ seqs
    assert {seq for _, seq in drain(queue)} == expected


@pytest.mark.parametrize(("structure", "name"), CHANGES)
def test_interrupted_change_is_untidy_and_healed_by_a_rebuild(structure: type[LazyQueue], name: str):
    """Ctrl-C inside a comparison leaves the queue marked, usable, and whole again after a rebuild."""
    queue = filled(structure)
    change, _ = changes(structure)[name]

    def strike() -> None:
        raise KeyboardInterrupt

    Rank.hook = strike
    try:
        with pytest.raises(KeyboardInterrupt):
            change(queue)
    finally:
        Rank.hook = None
    assert queue.untidy
    queue.push((Rank(1), 77))  # nobody is inside any more
    truth = [(Rank(seq * 10), seq) for seq in range(8)] + [(Rank(1), 77)]
    queue.rebuild(lambda: truth)
    assert not queue.untidy
    assert [seq for _, seq in drain(queue)] == [0, 77, *range(1, 8)]


@both
def test_push_while_the_map_is_read_reads_it_again(structure: type[LazyQueue]):
    """A push by somebody who interrupts a rebuild makes it read the map again, so nothing is twice in or lost."""
    queue = structure()
    truth = [(3, 3), (1, 1)]
    reads = 0

    def read() -> list[tuple[int, int]]:
        nonlocal reads
        reads += 1
        entries = list(truth)
        if reads == 1:
            truth.append((2, 2))
            queue.push((2, 2))
        return entries

    queue.rebuild(read)
    assert reads == 2
    assert drain(queue) == [(1, 1), (2, 2), (3, 3)]


@both
def test_rebuild_whose_source_raises_stays_untidy(structure: type[LazyQueue]):
    """A rebuild that could not read the map leaves the queue marked for the next one."""
    queue = structure()
    queue.push((1, 1))

    def read() -> list[Any]:
        raise MemoryError

    with pytest.raises(MemoryError):
        queue.rebuild(read)
    assert queue.untidy
    queue.rebuild(lambda: [(1, 1)])
    assert not queue.untidy
    assert drain(queue) == [(1, 1)]


@both
def test_queue_is_busy_inside_a_change_and_while_it_is_shut(structure: type[LazyQueue]):
    """Whoever breaks into a change can see that somebody is at it."""
    queue = filled(structure)
    seen: list[bool] = [queue.busy]
    Rank.hook = lambda: seen.append(queue.busy)
    queue.rebuild(lambda: [(Rank(3), 3), (Rank(1), 1)])
    seen.append(queue.busy)
    queue.shut()
    seen.append(queue.busy)
    queue.open()
    assert [*seen, queue.busy] == [False, True, False, True, False]


@both
def test_queue_that_was_shut_takes_in_what_came_when_it_opens(structure: type[LazyQueue]):
    """While a queue is shut a push waits and a discard leaves its entry; both are in order after it is opened."""
    queue = structure()
    queue.push((2, 2))
    queue.shut()
    queue.push((3, 3))
    queue.push((1, 1))
    assert queue.discard((2, 2)) is False
    assert queue.untidy
    assert len(queue) == 1
    queue.open()
    assert not queue.untidy
    assert drain(queue) == [(1, 1), (2, 2), (3, 3)]


@both
def test_opening_that_is_broken_off_is_untidy(structure: type[LazyQueue]):
    """An interrupt while the inbox is taken in leaves the queue open to pushes and to be rebuilt before a look."""
    queue = structure()
    queue.shut()
    queue.push((1, 1))

    def interrupted(entry: object) -> None:
        raise KeyboardInterrupt

    resting = queue.resting_push
    queue.resting_push = interrupted
    with pytest.raises(KeyboardInterrupt):
        queue.open()
    queue.push = queue.resting_push = resting
    assert queue.untidy
    queue.rebuild(lambda: [(1, 1)])
    assert not queue.untidy
    assert drain(queue) == [(1, 1)]


@pytest.mark.parametrize("structure", [LazyQueue, IndexedQueue])
def test_push_between_the_last_look_and_the_reopening_is_taken_in(structure: type[LazyQueue]):
    """What comes into the inbox just before the guard opens again is not forgotten there."""

    class LateInbox(list):  # type: ignore[type-arg]
        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                self.append((Rank(3), 3))
                return False
            return len(self) > 0

    queue = filled(structure, 2)
    queue._inbox = LateInbox()
    queue.push((Rank(1), 9))
    assert {seq for _, seq in drain(queue)} == {0, 1, 3, 9}


# ---------------------------------------------------------------- a policy's before


class Moody:
    """A before-policy by priority that raises when told to, or calls back."""

    def __init__(self) -> None:
        self.hook: Callable[[], object] | None = None

    def before(self, a: Any, b: Any) -> bool:
        if self.hook is not None:
            self.hook()
        return bool(a.priority < b.priority)


def compared(structure: type[LazyQueue]) -> tuple[Moody, Ranking, LazyQueue, Callable[[int, float], Any]]:
    policy = Moody()
    ranking = Ranking(policy)

    def entry(seq: int, priority: float) -> Any:
        job = make_job(priority=priority)
        job._seq = seq
        return (ranking.key_of(job), seq)

    return policy, ranking, structure(ranking), entry


def boom() -> None:
    raise LookupError("no opinion")


@both
def test_before_orders_the_queue(structure: type[LazyQueue]):
    """With a before-policy the queue pops in its order, ties by number."""
    _, ranking, queue, entry = compared(structure)
    for seq, priority in enumerate([5, 1, 5, 3, 1]):
        queue.push(entry(seq, priority))
    assert [seq for _, seq in drain(queue)] == [1, 4, 3, 0, 2]
    assert ranking.faults == []


@both
def test_before_that_raises_in_a_push_says_so_and_leaves_the_queue_whole(structure: type[LazyQueue]):
    """The push raises BeforeRaisedError with the policy's error; the entry is in, and nothing is untidy."""
    policy, ranking, queue, entry = compared(structure)
    for seq in range(4):
        queue.push(entry(seq, 5))
    policy.hook = boom
    with pytest.raises(BeforeRaisedError) as caught:
        queue.push(entry(4, 1))
    assert isinstance(caught.value.error, LookupError)
    policy.hook = None
    assert not queue.untidy
    ranking.faults.clear()
    queue.push(entry(5, 9))
    assert {seq for _, seq in drain(queue)} == set(range(6))


@both
def test_before_that_raises_in_a_pop_keeps_the_fault(structure: type[LazyQueue]):
    """A pop never fails by a policy: it goes by submission order and keeps the errors for the log."""
    policy, ranking, queue, entry = compared(structure)
    for seq in range(8):
        queue.push(entry(seq, -seq))
    policy.hook = boom
    assert {seq for _, seq in drain(queue)} == set(range(8))
    if structure is LazyQueue:  # a sorted list compares nothing when it pops
        assert ranking.faults
    assert not queue.untidy


@both
def test_push_from_inside_before_is_refused(structure: type[LazyQueue]):
    """A before that pushes gets a RuntimeError, which becomes the fault of the push that asked it."""
    policy, _, queue, entry = compared(structure)
    queue.push(entry(0, 5))
    policy.hook = lambda: queue.push(entry(9, 1))
    with pytest.raises(BeforeRaisedError) as caught:
        queue.push(entry(1, 1))
    assert "must not call the scheduler" in str(caught.value.error)
    policy.hook = None
    assert {seq for _, seq in drain(queue)} == {0, 1}


@both
def test_interrupt_inside_before_is_untidy(structure: type[LazyQueue]):
    """Ctrl-C inside a before leaves the queue marked, and a rebuild heals it."""
    policy, _, queue, entry = compared(structure)
    queue.push(entry(0, 5))

    def interrupt() -> None:
        raise KeyboardInterrupt

    policy.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.push(entry(1, 1))
    policy.hook = None
    assert queue.untidy
    queue.rebuild(lambda: [entry(0, 5), entry(1, 1)])
    assert [seq for _, seq in drain(queue)] == [1, 0]

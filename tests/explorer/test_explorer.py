"""The explorer itself: it finds known faults, passes their mended twins, and misses and repeats no schedule."""

import gc
import itertools
import math
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from tests.explorer import seeded
from tests.explorer.cases import case_of
from tests.explorer.install import Laboratory, laboratory
from tests.explorer.kernel import Failure, Kernel
from tests.explorer.lines import EVERYWHERE, OUTSIDE
from tests.explorer.primitives import SIM_THREADING, SimLock, SimQueue, SimRLock, SimThread
from tests.explorer.search import Found, Scenario, depth_first, priorities, read, replay, run, walk, write
from tests.explorer.strategies import DepthFirst, Plain, Walk
from tests.support import exhaustive
from threadsched import Scheduler, _worker

pytestmark = pytest.mark.proof

# Schedules within which each seeded fault must be found: about twice what the worst of the ten seeds takes.
DEPTH_FIRST = 400
PRIORITIES = 600
WALK = 150
SEEDS = range(10)


@pytest.fixture(scope="module")
def place() -> Iterator[Laboratory]:
    with laboratory() as made:
        yield made


# ---------------------------------------------------------------- seeded faults


def assert_found(found: Found, kinds: str) -> None:
    assert found.failure is not None, f"not found in {found.schedules} schedules"
    assert found.failure.kind in kinds.split()


@pytest.mark.parametrize("name", seeded.PROGRAMS)
def test_depth_first_finds_a_seeded_fault(place: Laboratory, name: str) -> None:
    """Depth first, with at most two preemptions, finds each seeded fault soon."""
    found = depth_first(place, seeded.scenario(name, broken=True), bound=2, limit=DEPTH_FIRST)
    assert_found(found, seeded.PROGRAMS[name][1])


@pytest.mark.parametrize("name", seeded.PROGRAMS)
def test_random_priorities_find_a_seeded_fault(place: Laboratory, name: str) -> None:
    """PCT finds each seeded fault from ten seeds out of ten."""
    for seed in SEEDS:
        found = priorities(place, seeded.scenario(name, broken=True), seed, PRIORITIES)
        assert_found(found, seeded.PROGRAMS[name][1])


@pytest.mark.parametrize("name", seeded.PROGRAMS)
def test_a_random_walk_finds_a_seeded_fault(place: Laboratory, name: str) -> None:
    """A random walk finds each seeded fault from ten seeds out of ten."""
    for seed in SEEDS:
        found = walk(place, seeded.scenario(name, broken=True), seed, WALK)
        assert_found(found, seeded.PROGRAMS[name][1])


@pytest.mark.parametrize("name", seeded.PROGRAMS)
def test_the_mended_program_holds(place: Laboratory, name: str) -> None:
    """No schedule within the bound breaks a program whose fault was mended: the explorer gives no false alarm."""
    found = depth_first(place, seeded.scenario(name, broken=False), bound=2 if exhaustive() else 1)
    assert found.complete
    assert found.failure is None, found.report()


# ---------------------------------------------------------------- nothing missed, nothing twice


def steps(counts: tuple[int, ...], seen: list[str]) -> Any:
    """Threads that write their letter so many times, with a point before each."""

    def body(kernel: Kernel) -> None:
        order: list[str] = []

        def write_letters(letter: str, count: int) -> None:
            for _ in range(count):
                kernel.point("writes")
                order.append(letter)

        kernel.quiet = True
        threads = [SimThread(target=write_letters, args=("abcd"[at], count)) for at, count in enumerate(counts)]
        for thread in threads:
            thread.start()
        kernel.quiet = False
        for thread in threads:
            thread.join()
        seen.append("".join(order))

    return body


@pytest.mark.parametrize("counts", [(2, 2), (3, 3), (1, 4)])
def test_every_interleaving_is_run(place: Laboratory, counts: tuple[int, ...]) -> None:
    """Without a bound every order of the threads' steps comes up, as many as there are by arithmetic."""
    seen: list[str] = []
    found = depth_first(place, Scenario("steps", steps(counts, seen)), bound=99)
    assert found.complete
    orders = math.factorial(sum(counts)) // math.prod(map(math.factorial, counts))
    assert len(set(seen)) == orders


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_the_bound_is_on_preemptions(place: Laboratory, bound: int) -> None:
    """With a bound exactly those orders come up that change threads so often where the thread could have gone on."""
    seen: list[str] = []
    depth_first(place, Scenario("steps", steps((3, 3), seen)), bound=bound)
    every = {"".join(order) for order in itertools.permutations("aaabbb")}

    def preemptions(order: str) -> int:
        changes = sum(before != after for before, after in itertools.pairwise(order))
        return changes - 1  # one change, the last away from a thread that has ended, is free

    # A thread can also be preempted once more before its first step than the order shows, which yields no new order.
    least = {order for order in every if preemptions(order) <= bound}
    assert set(seen) == least


def test_a_schedule_repeats(place: Laboratory) -> None:
    """A random schedule of the real scheduler, written down and replayed, takes the same steps to the last."""

    def body(kernel: Kernel) -> None:
        with Scheduler(2) as scheduler:
            jobs = [scheduler.options(delay=number % 3).submit(int, number) for number in range(5)]
            jobs[3].cancel()

    for lines in (None, {"_core.py": EVERYWHERE, "_runtime.py": OUTSIDE}):
        scenario = Scenario("repeat", body, explore_time=True, lines=lines)
        for seed in range(5):
            first: list[str] = []
            failure, kernel = run(place, scenario, Walk(seed), first)
            assert failure is None
            name, again = read(write("repeat", kernel.choices))
            assert name == "repeat"
            second: list[str] = []
            _, repeated = replay(place, scenario, again, second)
            assert repeated.choices == kernel.choices
            assert second == first


def test_a_failing_schedule_is_shortened_to_one_line(place: Laboratory) -> None:
    """What a random walk found is reported with few deviations and a line that replays it."""
    scenario = seeded.scenario("double-run", broken=True)
    found = walk(place, scenario, 1, WALK)
    assert found.choices is not None
    assert len(found.choices) == 1
    assert found.line in found.report()
    assert "\n" not in found.line
    name, choices = read(found.line.split("'")[1])
    assert name == scenario.name
    failure, _ = replay(place, scenario, choices)
    assert failure is not None
    assert failure.kind == "runs"


# ---------------------------------------------------------------- the kernel


def outcome(place: Laboratory, body: Any, **how: Any) -> Failure | None:
    return run(place, Scenario("one", body, **how), Plain())[0]


def test_a_deadlock_is_told_with_every_thread(place: Laboratory) -> None:
    """When every thread is blocked and no deadline is left, the run ends and says where each of them stands."""

    def body(kernel: Kernel) -> None:
        lock = SimLock()
        lock.acquire()
        thread = SimThread(target=lock.acquire, name="other")
        thread.start()
        thread.join()

    failure = outcome(place, body)
    assert failure is not None
    assert failure.kind == "deadlock"
    assert "main on other" in str(failure)
    assert "other on lock" in str(failure)


def test_an_endless_loop_is_told(place: Laboratory) -> None:
    """A schedule that does not end is given up after a number of steps."""

    def body(kernel: Kernel) -> None:
        lock = SimRLock()
        while True:
            with lock:
                pass

    failure = outcome(place, body)
    assert failure is not None
    assert failure.kind == "livelock"


def test_an_exception_in_a_thread_is_a_failure(place: Laboratory) -> None:
    """What leaves a thread is reported with its traceback."""

    def body(kernel: Kernel) -> None:
        thread = SimThread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

    failure = outcome(place, body)
    assert failure is not None
    assert "ZeroDivisionError" in str(failure)


def test_a_worker_that_dies_of_a_fault_of_ours_is_a_failure(place: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler replaces such a worker and goes on; the explorer reports it all the same."""

    def break_down(self: Any) -> None:
        raise RuntimeError("a fault of ours")

    def body(kernel: Kernel) -> None:
        with Scheduler(1) as scheduler:
            scheduler.submit(int)

    before = _worker.Worker.rest
    monkeypatch.setattr(_worker.Worker, "rest", lambda self: (monkeypatch.undo(), break_down(self)))
    failure = outcome(place, body)
    assert failure is not None
    assert failure.kind == "log"
    assert _worker.Worker.rest is before


def test_late_time_moves_only_when_nothing_else_can(place: Laboratory) -> None:
    """In late mode no schedule lets a sleep end while another thread could run."""
    seen = set()

    def body(kernel: Kernel) -> None:
        def count() -> None:
            for _ in range(3):
                kernel.point("counts")
                seen.add(kernel.now)

        thread = SimThread(target=count)
        thread.start()
        kernel.sleep(1.0)
        assert kernel.now == 1.0

    assert depth_first(place, Scenario("late", body), bound=3).complete
    assert seen == {0.0}


def test_explored_time_moves_at_any_point(place: Laboratory) -> None:
    """In explore mode a deadline may pass before, between and after the steps of the others."""
    seen = set()

    def body(kernel: Kernel) -> None:
        readings: list[float] = []

        def count() -> None:
            for _ in range(2):
                kernel.point("counts")
                readings.append(kernel.now)

        thread = SimThread(target=count)
        thread.start()
        kernel.sleep(1.0)
        thread.join()
        seen.add(tuple(readings))

    assert depth_first(place, Scenario("explore", body, explore_time=True), bound=2).complete
    assert seen == {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}


@pytest.mark.parametrize("kind", ["lock", "event", "condition", "queue", "join"])
def test_a_timed_wait_ends_at_its_time(place: Laboratory, kind: str) -> None:
    """Each wait with a timeout ends exactly then, and says so."""

    def body(kernel: Kernel) -> None:
        lock = SimLock()
        lock.acquire()
        if kind == "lock":
            assert not lock.acquire(timeout=2.5)
        elif kind == "event":
            assert not SIM_THREADING.Event().wait(2.5)
        elif kind == "condition":
            condition = SIM_THREADING.Condition()
            with condition:
                assert not condition.wait(2.5)
                assert condition._is_owned()
        elif kind == "queue":
            with pytest.raises(queue.Empty):
                SimQueue().get(timeout=2.5)
        else:
            thread = SimThread(target=lock.acquire)
            thread.start()
            thread.join(2.5)
            assert thread.is_alive()
            lock.release()
            thread.join()
            assert not thread.is_alive()
        assert kernel.now == 2.5

    failure = outcome(place, body)
    assert failure is None, failure


def test_a_released_lock_may_go_to_anybody(place: Laboratory) -> None:
    """Which of several waiters gets a lock is a choice, and so is that a newcomer is faster."""
    winners = set()

    def body(kernel: Kernel) -> None:
        lock, order = SimLock(), []
        lock.acquire()

        def take(name: str) -> None:
            lock.acquire()
            order.append(name)
            lock.release()

        threads = [SimThread(target=take, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        lock.release()
        take("m")
        for thread in threads:
            thread.join()
        winners.add("".join(order))

    assert depth_first(place, Scenario("barging", body), bound=2).complete
    assert winners == {"".join(order) for order in itertools.permutations("abm")}


def test_a_lock_that_is_not_held_cannot_be_released(place: Laboratory) -> None:
    """The simulated locks refuse what the real ones refuse."""

    def body(kernel: Kernel) -> None:
        with pytest.raises(RuntimeError):
            SimLock().release()
        lock = SimRLock()
        with pytest.raises(RuntimeError):
            lock.release()
        other = SimThread(target=lock.acquire)
        other.start()
        other.join()
        with pytest.raises(RuntimeError):
            lock.release()

    failure = outcome(place, body)
    assert failure is None, failure


def test_a_choice_that_leads_elsewhere_is_noticed() -> None:
    """Depth first refuses to go on when the same choices lead to another number of candidates."""
    strategy = DepthFirst(2)
    strategy.choose(1, ["a", "b"], True)
    assert strategy.next()
    with pytest.raises(Exception, match="candidates"):
        strategy.choose(1, ["a", "b", "c"], True)


def test_a_choice_that_is_none_any_more_is_noticed() -> None:
    """It refuses as well when what was a choice does not come up again."""
    strategy = DepthFirst(2)
    strategy.choose(1, ["a", "b"], True)
    assert strategy.next()
    with pytest.raises(Exception, match="step 1"):
        strategy.next()


def test_turns_are_bounded_apart_from_preemptions(place: Laboratory) -> None:
    """With a bound on turns, so many of the free choices are other than the plain one, and no more."""
    seen: list[str] = []
    scenario = Scenario("steps", steps((1, 1, 1, 1), seen))
    counts = []
    for turns in range(5):
        seen.clear()
        assert depth_first(place, scenario, bound=0, turns=turns).complete
        counts.append(len(set(seen)))
    assert counts[0] == 1
    assert counts[:4] == sorted(set(counts[:4]))
    assert counts[-1] == math.factorial(4)


def test_a_run_leaves_nothing_behind(place: Laboratory) -> None:
    """Whatever a run made can be collected after it: a hundred thousand of them follow each other."""
    scenario = case_of("submit+cancel/1/fine").scenario()
    gc.collect()
    before = sum(type(one) is Kernel for one in gc.get_objects())
    for _ in range(20):
        run(place, scenario, Plain())
    gc.collect()
    assert sum(type(one) is Kernel for one in gc.get_objects()) <= before + 2

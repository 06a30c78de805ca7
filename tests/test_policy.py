"""What each policy says of two jobs, and what the ready heap makes of a policy."""

import enum
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from threadsched import AgingPolicy, DeadlinePolicy, FifoPolicy, Job, OldestDuePolicy, PriorityPolicy, Scheduler
from threadsched._policy import BeforeRaisedError, Ranked, Ranking
from threadsched.testing import FakeClock

TRUSTED = [PriorityPolicy, FifoPolicy, OldestDuePolicy, DeadlinePolicy, lambda: AgingPolicy(0.5)]


class KeyOf:
    """A policy whose key is what a function says."""

    def __init__(self, key: Callable[[Job[Any]], Any]) -> None:
        self.key = key


class Before:
    """A policy that compares by what a function says."""

    def __init__(self, before: Callable[[Job[Any], Job[Any]], Any]) -> None:
        self.before = before


def numbered(seq: int, **options: Any) -> Job[Any]:
    job = make_job(**options)
    job._seq = seq
    return job


def ranked(policy: Any, jobs: list[Job[Any]]) -> list[int]:
    """Return the jobs' numbers in the order in which the policy lets them start."""
    ranking = Ranking(policy)
    return [job.seq for _, _, job in sorted((ranking.key_of(job), job.seq, job) for job in jobs)]


JOBS = [
    {"priority": 5, "delay": 3},
    {"priority": 1, "delay": 9},
    {"priority": 5, "delay": 0},
    {"priority": -2.5, "delay": 9},
    {"priority": math.inf, "delay": 0},
    {"priority": 10**400, "delay": 1},
    {"priority": 7, "delay": 2, "deadline": 4},
    {"priority": 6, "delay": 7, "deadline": 3},
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PriorityPolicy(), [4, 2, 1, 3, 8, 7, 6, 5]),
        (FifoPolicy(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (OldestDuePolicy(), [3, 5, 6, 7, 1, 8, 2, 4]),
        (DeadlinePolicy(), [8, 7, 1, 2, 3, 4, 5, 6]),
        (AgingPolicy(0), [4, 2, 1, 3, 8, 7, 5, 6]),
        (AgingPolicy(0.5), [4, 3, 2, 1, 7, 8, 5, 6]),
        (AgingPolicy(2), [3, 1, 7, 4, 2, 8, 5, 6]),
        (KeyOf(lambda job: (-job.run_at, job.priority)), [4, 2, 8, 1, 7, 6, 3, 5]),
        (Before(lambda a, b: a.run_at > b.run_at), [2, 4, 8, 1, 7, 6, 3, 5]),
        (Before(lambda a, b: False), [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
    ids=[
        "priority", "fifo", "oldest-due", "deadline", "aging-0", "aging-half", "aging-2", "key", "before",
        "before-never",
    ],
)  # fmt: skip
def test_order_of_each_policy(policy: Any, expected: list[int]):
    """Each policy orders the same eight jobs as it says, ties in submission order."""
    assert ranked(policy, [numbered(seq, **options) for seq, options in enumerate(JOBS, 1)]) == expected


@pytest.mark.parametrize("kind", TRUSTED)
def test_trusted_key_is_the_public_key(kind: Any):
    """The C-coded key of a built-in policy orders jobs as its public key() does."""
    jobs = [numbered(seq, **options) for seq, options in enumerate(JOBS, 1)]
    trusted, policy = Ranking(kind()), kind()
    assert trusted.trusted
    assert sorted(jobs, key=lambda job: (trusted.key_of(job), job.seq)) == sorted(
        jobs, key=lambda job: (policy.key(job), job.seq)
    )
    if kind is not FifoPolicy:  # there the submission number, which decides ties anyway, is the whole key
        assert [trusted.key_of(job) for job in jobs] == [policy.key(job) for job in jobs]


@pytest.mark.parametrize("priority", [10**400, -(10**400), math.inf, -math.inf])
def test_priority_beyond_every_float_does_not_age(priority: float):
    """A priority that no number of points could change ranks first or last for ever, and never as NaN."""
    job = numbered(1, priority=priority, delay=1e300)
    assert AgingPolicy(1e300).key(job) == (math.inf if priority > 0 else -math.inf)


def test_aging_says_its_rate():
    """The rate of an aging policy can be read, and stands in its repr."""
    policy = AgingPolicy(0.25)
    assert policy.rate == 0.25
    assert repr(policy) == "AgingPolicy(0.25)"


def test_deadline_policy_puts_those_without_one_last():
    """A job without a deadline has the key infinity, behind any deadline however late."""
    policy = DeadlinePolicy()
    assert policy.key(numbered(1)) == math.inf
    assert policy.key(numbered(2, deadline=1e9, now=2.0)) == 1e9 + 2


def test_subclass_of_a_built_in_policy_is_asked():
    """A subclass may say something else, so its own key is called and checked."""

    class Reversed(PriorityPolicy):
        def key(self, job: Job[Any], /) -> float:
            return -job.priority

    ranking = Ranking(Reversed())
    assert not ranking.trusted
    assert ranking.key_of(numbered(1, priority=3)) == -3


@pytest.mark.parametrize("kind", [PriorityPolicy, AgingPolicy, KeyOf, Before])
def test_class_for_an_instance_is_refused(kind: type):
    """A policy class given for an instance is a TypeError that says what to write."""
    with pytest.raises(TypeError, match=rf"write {kind.__name__}\(\)"):
        Ranking(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [object(), None, 3, lambda job: 0])
def test_what_is_no_policy_is_refused(value: Any):
    """An object without key and before is a TypeError that names both."""
    with pytest.raises(TypeError, match=r"key\(job\) or before\(a, b\)"):
        Ranking(value)


def test_key_wins_over_before():
    """A policy with both is used by its key."""

    class Both:
        def key(self, job: Job[Any]) -> int:
            return 7

        def before(self, a: Job[Any], b: Job[Any]) -> bool:
            raise AssertionError("was asked")

    ranking = Ranking(Both())
    assert not ranking.comparing
    assert ranking.key_of(numbered(1)) == 7


@pytest.mark.parametrize("key", [0, -1, 10**400, 1.5, math.inf, (), (1,), (1, "a", 2.5), ("a",)])
def test_keys_of_allowed_shapes(key: object):
    """Ints, floats, and tuples of ints, floats and strs are keys and come back unchanged."""
    assert Ranking(KeyOf(lambda job: key)).key_of(numbered(1)) == key


@pytest.mark.parametrize("key", [None, True, 1j, [1], {1}, b"a", "a", (1, None), (1, True), (1, (2,)), ([],)])
def test_keys_of_other_types(key: object):
    """Any other key, a lone str among them, is a TypeError that names the policy and the key."""
    with pytest.raises(TypeError, match=r"KeyOf\.key") as caught:
        Ranking(KeyOf(lambda job: key)).key_of(numbered(1))
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("key", [math.nan, (1, math.nan), (math.nan, "a")])
def test_nan_is_no_key(key: object):
    """NaN is refused, alone and inside a tuple."""
    with pytest.raises(ValueError, match="NaN has no place in an order"):
        Ranking(KeyOf(lambda job: key)).key_of(numbered(1))


def test_first_key_fixes_the_shape():
    """Ints and floats mix; another shape than the first one's is a TypeError, and the first shape stays."""
    keys: list[object] = [(1, "a"), (2.5, "b"), (1, 2), (1,), 1, ("a", 1), (3, "c")]
    ranking = Ranking(KeyOf(lambda job: keys[job.seq]))
    assert ranking.key_of(numbered(0)) == (1, "a")
    assert ranking.key_of(numbered(1)) == (2.5, "b")
    for seq in (2, 3, 4, 5):
        with pytest.raises(TypeError, match="not comparable with its earlier keys"):
            ranking.key_of(numbered(seq))
    assert ranking.key_of(numbered(6)) == (3, "c")


def test_a_refused_key_fixes_nothing():
    """A key that was refused does not decide what shape the next ones must have."""
    keys: list[object] = [None, (1, math.nan), "a", 4]
    ranking = Ranking(KeyOf(lambda job: keys[job.seq]))
    for seq in range(3):
        with pytest.raises((TypeError, ValueError)):
            ranking.key_of(numbered(seq))
    assert ranking.key_of(numbered(3)) == 4


class Urgency(enum.IntEnum):
    HIGH = 1
    LOW = 9


class Grade(float):
    def __lt__(self, other: object) -> bool:
        raise AssertionError("a foreign comparison ran")


class Queue(str, enum.Enum):  # noqa: UP042 -- its str() is not its value, which is the point
    NIGHT = "a"
    DAY = "b"


class Caption(str):
    def __str__(self) -> str:
        return "zzz"


def test_subclass_keys_become_plain():
    """Instances of subclasses, such as an IntEnum's, are compared by their plain value: no foreign code in a heap."""
    keys: list[Any] = [Urgency.LOW, Urgency.HIGH, Grade(3.0)]
    ranking = Ranking(KeyOf(lambda job: keys[job.seq]))
    got = [ranking.key_of(numbered(seq)) for seq in range(3)]
    assert got == [9, 1, 3.0]
    assert [type(key) for key in got] == [int, int, float]


@pytest.mark.parametrize(("part", "plain"), [(Queue.NIGHT, "a"), (Caption("b"), "b")])
def test_str_subclass_in_a_key_keeps_its_characters(part: str, plain: str):
    """A str enum or another subclass in a tuple is ordered by its characters, not by what str() makes of it."""
    (key,) = Ranking(KeyOf(lambda job: (part,))).key_of(numbered(1))
    assert type(key) is str
    assert key == plain


def test_error_of_a_key_comes_out():
    """What key() raises reaches whoever submitted."""
    with pytest.raises(ZeroDivisionError):
        Ranking(KeyOf(lambda job: 1 / 0)).key_of(numbered(1))


def test_before_is_asked_once_per_comparison():
    """One call decides a comparison, with the later job first when it is asked whether that overtakes."""
    asked: list[tuple[int, int]] = []

    def before(a: Job[Any], b: Job[Any]) -> bool:
        asked.append((a.seq, b.seq))
        return a.priority < b.priority

    ranking = Ranking(Before(before))
    first, second = ranking.key_of(numbered(1, priority=5)), ranking.key_of(numbered(2, priority=5))
    assert first < second
    assert not second < first
    assert asked == [(2, 1), (2, 1)]


def test_before_answers_any_truth():
    """A true answer that is no bool counts as True."""
    ranking = Ranking(Before(lambda a, b: "yes" if a.priority < b.priority else 0))
    low, high = ranking.key_of(numbered(1, priority=9)), ranking.key_of(numbered(2, priority=1))
    assert high < low
    assert not low < high
    assert (high < low) is True


def test_failing_before_means_submission_order():
    """A before that raises counts as submission order for that comparison, and its error is kept bare."""
    ranking = Ranking(Before(lambda a, b: 1 / 0))
    first, second = ranking.key_of(numbered(1)), ranking.key_of(numbered(2))
    assert isinstance(first, Ranked)
    assert first < second
    assert not second < first
    assert [type(error) for error in ranking.faults] == [ZeroDivisionError, ZeroDivisionError]
    assert all(error.__traceback__ is None for error in ranking.faults)  # it would hold the frames, and the jobs
    assert not ranking.in_before


def test_interrupt_inside_before_goes_on():
    """Ctrl-C inside a before is nobody's fault and is not swallowed."""

    def before(a: Job[Any], b: Job[Any]) -> bool:
        raise KeyboardInterrupt

    ranking = Ranking(Before(before))
    with pytest.raises(KeyboardInterrupt):
        assert ranking.key_of(numbered(1)) < ranking.key_of(numbered(2))
    assert ranking.faults == []
    assert not ranking.in_before


def test_submission_with_a_failing_before_names_the_fault():
    """In the core a push during which before raised says so, and the heap is whole and in submission order."""
    driver = Driver(policy=Before(lambda a, b: a.unknown))
    driver.submit()
    with pytest.raises(BeforeRaisedError) as caught:
        driver.submit()
    assert isinstance(caught.value.error, AttributeError)
    driver.core.entering = None
    driver.check()


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_before_that_raises_during_a_claim_is_logged(queue: Any, caplog: pytest.LogCaptureFixture):
    """With real workers too, what before raises outside of a submission is logged once and not kept."""
    failing = False
    ran: list[int] = []

    def before(a: Job[Any], b: Job[Any]) -> bool:
        if failing:
            raise LookupError("cannot compare")
        return False

    clock = FakeClock()
    with (
        caplog.at_level(logging.ERROR, "threadsched"),
        Scheduler(1, policy=Before(before), clock=clock, queue=queue) as scheduler,
    ):
        for number in range(8):
            scheduler.options(delay=1).submit(ran.append, number)
        failing = True
        clock.advance(1)
        assert ran == list(range(8))
        assert scheduler._runtime.core.ranking.faults == []
    assert "before() raised LookupError: cannot compare" in caplog.text


def test_before_that_calls_the_scheduler_fails_the_submission():
    """A before must not submit: it gets a RuntimeError, which fails the submission that asked it."""
    free, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert free.wait(5)

    with Scheduler(1, policy=Before(lambda a, b: scheduler.submit(int)), clock=FakeClock()) as scheduler:
        scheduler.submit(hold)
        try:
            assert started.wait(5)
            scheduler.submit(int)
            with pytest.raises(RuntimeError, match="must not call the scheduler"):
                scheduler.submit(int)
            assert scheduler.stats().pending == 1
            scheduler.check()
        finally:
            free.set()

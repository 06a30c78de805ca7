"""Which ready job goes next: the policies, and what the ready heap makes of one.

A policy is an object with ``key(job)``, or with ``before(a, b) -> bool``. Whatever it says, the submission number has
the last word, so jobs that rank alike start in submission order.

``key`` is the better form: it is called outside the scheduler's lock, once at submission and once before each retry,
its value is checked there, and the heap compares plain numbers, strings and tuples in C. ``before`` has to be called
under the lock, log2(n) times a submission and a claim: it must be quick, must not block, and must not call the
scheduler, which raises.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from threadsched import _locks, _numbers

if TYPE_CHECKING:
    from threadsched._job import Job


class KeyPolicy(Protocol):
    """A policy that gives each job a number, a string or a tuple of them; the smallest goes first."""

    def key(self, job: Job[Any], /) -> Any:
        """Return an int, a float that is not NaN, or a tuple of ints, floats and strs, of one shape for all jobs."""
        ...


class BeforePolicy(Protocol):
    """A policy that compares two jobs; it must be a consistent strict order."""

    def before(self, a: Job[Any], b: Job[Any], /) -> bool:
        """Return True if ``a`` must go before ``b``; False both ways means submission order."""
        ...


OrderingPolicy: TypeAlias = KeyPolicy | BeforePolicy


class PriorityPolicy:
    """Lower priority number first, ties in submission order. The default.

    A steady stream of urgent jobs can keep an unimportant one waiting for ever.
    """

    def key(self, job: Job[Any], /) -> float:
        """Return the priority."""
        return job.priority


class FifoPolicy:
    """Submission order, whatever the priorities."""

    def key(self, job: Job[Any], /) -> int:
        """Return the submission number."""
        return job.seq


class OldestDuePolicy:
    """Earliest ``run_at`` first: after a stall, what should have run first runs first."""

    def key(self, job: Job[Any], /) -> float:
        """Return the earliest start."""
        return job.run_at


class DeadlinePolicy:
    """Earliest ``deadline`` first; jobs without one come last. A deadline orders and does nothing else."""

    def key(self, job: Job[Any], /) -> float:
        """Return the deadline, or infinity without one."""
        deadline = job.deadline
        return math.inf if deadline is None else deadline


class AgingPolicy:
    """By priority, but a waiting job gains ``rate`` priority points a second, so none starves.

    All jobs age alike, so what one has gained over another never changes: ``priority + rate * run_at`` is a fixed key
    and nothing is sorted again. A job of priority ``p`` due at ``t`` lets nobody of priority ``q`` or more go first
    who is due later than ``t + (p - q) / rate``: from then on only the jobs that were due by then are before it.

    Args:
        rate: priority points a second, a finite real number of at least 0; 0 is :class:`PriorityPolicy`.

    Raises:
        TypeError: ``rate`` is not a number.
        ValueError: ``rate`` is negative, infinite or NaN.
    """

    __slots__ = ("_rate",)

    def __init__(self, rate: float) -> None:
        self._rate = float(_numbers.share("rate", rate))

    @property
    def rate(self) -> float:
        """Priority points a second."""
        return self._rate

    def key(self, job: Job[Any], /) -> float:
        """Return ``priority + rate * run_at``."""
        try:
            priority = float(job.priority)
        except OverflowError:  # an int beyond every float
            priority = math.inf if job.priority > 0 else -math.inf
        # An infinite priority does not age: -inf + inf would be NaN.
        return priority if math.isinf(priority) else priority + self._rate * job.run_at

    def __repr__(self) -> str:
        return f"AgingPolicy({self._rate:g})"


class BeforeRaisedError(Exception):
    """Carries what a ``before`` raised during a push out of the heap to the submission; never leaves the package."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


# The keys of the built-in policies are read from our own slots by C code: nothing to check, and safe under the lock.
# (AgingPolicy's sum takes a few lines of Python, but lines of ours that touch nothing else.)
BY_PRIORITY = operator.attrgetter("_priority")
_TRUSTED: dict[type, Callable[[Any], Any]] = {
    PriorityPolicy: BY_PRIORITY,
    FifoPolicy: operator.attrgetter("_no_rank"),
    OldestDuePolicy: operator.attrgetter("_run_at"),
    DeadlinePolicy: operator.attrgetter("_deadline"),
}


class Ranking:
    """A policy made ready for the heap.

    ``key_of(job)`` gives what the heap compares. ``trusted``: it is our own C code. ``comparing``: what it gives are
    :class:`Ranked` objects, whose comparison runs the user's ``before``.
    """

    __slots__ = ("_shape", "comparing", "faults", "in_before", "key_of", "policy", "trusted")

    def __init__(self, policy: OrderingPolicy) -> None:
        if isinstance(policy, type):
            raise TypeError(f"policy must be an instance, not the class itself: write {policy.__name__}()")
        self.policy = policy
        self.faults: list[BaseException] = []
        self.in_before = False
        self.comparing = False
        self._shape: dict[None, object] = {}
        trusted = policy.key if type(policy) is AgingPolicy else _TRUSTED.get(type(policy))
        self.trusted = trusted is not None
        self.key_of: Callable[[Any], Any]
        if trusted is not None:
            self.key_of = trusted
        elif callable(getattr(policy, "key", None)):
            self.key_of = self._checked_key
        elif callable(getattr(policy, "before", None)):
            self.comparing = True
            self.key_of = self._ranked
        else:
            raise TypeError(
                f"policy must have a method key(job) or before(a, b), which {_numbers.describe(policy)} has not"
            )

    def _checked_key(self, job: Job[Any]) -> object:
        key = self.policy.key(job)  # type: ignore[union-attr]  # looked at in __init__
        if isinstance(key, tuple):
            shape: object = tuple([self._kind(part, key) for part in key])
            key = tuple([_plain(part) for part in key])
        else:
            shape = self._kind(key, key)
            key = _plain(key)
            if shape is str:
                raise TypeError(f"{self._name()} returned {_numbers.describe(key)}: a str is a key inside a tuple only")
        first = self._shape.setdefault(None, shape)  # one C call: two first submissions agree
        if first != shape:
            raise TypeError(
                f"{self._name()} returned {_numbers.describe(key)}, which is not comparable with its earlier keys"
            )
        return key

    def _kind(self, part: object, key: object) -> type:
        if isinstance(part, bool) or not isinstance(part, (int, float, str)):
            raise TypeError(
                f"{self._name()} must return an int, a float, or a tuple of ints, floats and strs,"
                f" not {_numbers.describe(key)}"
            )
        if part != part:
            raise ValueError(f"{self._name()} returned {_numbers.describe(key)}: NaN has no place in an order")
        return str if isinstance(part, str) else float

    def refuse_in_before(self) -> None:
        """Raise if it is the policy itself that calls the scheduler, from inside a comparison. Lock held."""
        if self.in_before:
            raise RuntimeError("a policy's before() must not call the scheduler")

    def _name(self) -> str:
        return f"{type(self.policy).__name__}.key"

    def _ranked(self, job: Job[Any]) -> Ranked:
        return Ranked(self, job)


def _plain(part: Any) -> Any:
    """Turn an instance of a subclass (an IntEnum, say) into its plain base, whose comparison is C code."""
    if isinstance(part, str):
        return str.__str__(part)
    return int.__int__(part) if isinstance(part, int) else float.__float__(part)


class Ranked:
    """One job in a heap that is ordered by ``before``.

    A ``before`` that raises is replaced by submission order for that comparison and its error is kept in
    ``ranking.faults``: so the heap is whole whatever it does.
    """

    __slots__ = ("job", "ranking")

    def __init__(self, ranking: Ranking, job: Job[Any]) -> None:
        self.ranking = ranking
        self.job = job

    def __lt__(self, other: Ranked) -> bool:
        a, b, ranking = self.job, other.job, self.ranking
        ranking.in_before = True
        try:
            # One call decides: the earlier submission goes first unless the later one is before it.
            if a._seq < b._seq:
                return not bool(ranking.policy.before(b, a))  # type: ignore[union-attr]
            return bool(ranking.policy.before(a, b))  # type: ignore[union-attr]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _locks.on_main_thread():
                raise  # Ctrl-C, which merely struck here
            ranking.faults.append(BaseException.with_traceback(error, None))
            return a._seq < b._seq
        finally:
            ranking.in_before = False

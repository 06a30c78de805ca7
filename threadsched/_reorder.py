"""Other places in the order: ``job.set_priority``, and another policy for all that is pending.

A key of the user's is computed outside the lock, and what it was computed from may have changed when it arrives: the
policy, the priority (another call), ``run_at`` (a retry). So each key comes with its basis, is compared with it under
the lock, and is computed again if they differ. Decided by one hold, a change has happened whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from threadsched._core import Core
from threadsched._job import READY, Job
from threadsched._policy import OrderingPolicy, Ranking

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


class Glimpse(Job[Any]):
    """What a policy's ``key`` is shown of a job that is to get another priority: the job, as if it had it already.

    The alternative, to set the priority and take it back if the key raises or the job starts meanwhile, would show
    everybody a priority that never was. It equals its job and hashes like it, so a policy may look it up. It cannot be
    moved.
    """

    __slots__ = ("_original",)

    def __init__(self, job: Job[Any], priority: float) -> None:
        for slot in Job.__slots__:
            if hasattr(job, slot):
                setattr(self, slot, getattr(job, slot))
        self.__dict__.update(job.__dict__)
        self._original = job
        self._priority = priority

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"a policy's key() must not move the job it ranks ({self!r})")

    cancel = claim = request_cancel = set_priority = _refuse
    set_result = set_exception = add_done_callback = _refuse


def set_priority(runtime: Runtime, job: Job[Any], priority: float) -> bool:
    """Move a pending job to where another priority puts it; False if it is not pending any more."""
    core = runtime.core
    now = runtime.read_clock() if core.keepers else 0.0
    while True:
        with runtime.lock:
            ranking = core.ranking
            ranking.refuse_in_before()
            if core.pending.get(job._seq) is not job:
                return False
            if ranking.trusted or ranking.comparing:
                return _reorder_and_tell(runtime, job, priority, None, now)
            glimpse = Glimpse(job, priority)
        key = ranking.key_of(glimpse)
        with runtime.lock:
            if core.ranking is ranking and job._run_at is glimpse._run_at:
                return _reorder_and_tell(runtime, job, priority, key, now)
        del glimpse  # not under the lock: it may hold the last references to what the job dropped meanwhile


def _reorder_and_tell(runtime: Runtime, job: Job[Any], priority: float, key: object, now: float) -> bool:
    """Reorder, and let who holds the job back look again; lock held."""
    core = runtime.core
    if not core.keepers:
        return reorder(core, job, priority, key)
    try:
        moved = reorder(core, job, priority, key)
        if moved:
            core.rekeyed(job, now)
    except BaseException:
        core.ready.untidy = core.delayed.untidy = True  # its place in a line may be the old one
        raise
    runtime._settled_locked()
    return moved


def reorder(core: Core, job: Job[Any], priority: float, key: object) -> bool:
    """Give a pending job another priority and key, lock held; False if it is not pending. O(log n) amortised.

    A trusted ranking computes the key here. One that compares jobs sees the new priority at once, in entries that stand
    where the old one put them: the heap is then rebuilt at the next claim, once for any number of changes.
    """
    seq, ranking, ready = job._seq, core.ranking, core.ready
    if core.pending.get(seq) is not job:
        return False
    job._priority = priority
    if ranking.comparing:
        ready.untidy = True
        return True
    if ranking.trusted:
        key = ranking.key_of(job)
    old = job._key
    if key == old:
        return True  # plain numbers, strings and tuples: no foreign comparison
    if job._place is not READY:
        job._key = key
        return True
    # The lazy structure keeps the old entry, which is stale then. In this order a job whose move is broken off anywhere
    # has one entry that counts, the old one or the new; unless who breaks in sweeps the heap between the two.
    outer, core.entering = core.entering, job
    try:
        core.stale += 1
        ready.push((key, seq))
        job._key = key
        if ready.discard((old, seq)):
            core.stale -= 1
    finally:
        core.entering = outer
    core.sweep()
    return True


def set_policy(runtime: Runtime, policy: OrderingPolicy) -> None:
    """Order pending and future jobs by another policy; keys are computed outside the lock, then all at once."""
    ranking = Ranking(policy)
    keys: dict[int, object] = {}
    bases: dict[int, tuple[object, object]] = {}
    missing: list[Job[Any]] | None = []
    while missing is not None:
        # Each round is for what was submitted or moved during the one before, so the rounds shrink.
        for job in missing:
            bases[job._seq] = job._priority, job._run_at
            keys[job._seq] = ranking.key_of(job)
        with runtime.lock:
            runtime.core.ranking.refuse_in_before()
            missing = runtime.core.rerank(ranking, keys, bases)
            if missing is None:
                runtime._settled_locked()
    runtime.log_faults()

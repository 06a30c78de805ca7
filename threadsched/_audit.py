"""What must hold of a core at any moment at which nothing is being changed. For tests and ``check()``.

Part of the core and called like it: lock held (or nothing, in tests), no clock, no foreign code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadsched._errors import InvariantError
from threadsched._job import DELAYED, READY, WAITING
from threadsched._records import JobStatus

if TYPE_CHECKING:
    from threadsched._core import Core


def check_invariants(core: Core) -> None:
    """Audit a core: maps against statuses, heaps against maps, counters against both."""

    def require(truth: object, what: str) -> None:
        if not truth:
            raise InvariantError(what)

    require(set(core.waiting) <= set(core.pending), "a job is held back that is not pending")
    require(not set(core.pending) & set(core.running), "a job is pending and running at once")
    for seq, job in core.pending.items():
        if job._seq == seq and job._state == "PENDING" and job._place in (DELAYED, READY) and seq not in core.waiting:
            continue  # most jobs, in one look: the texts below cost more than what they tell of
        require(job._seq == seq, f"{job!r} stands under the number {seq}")
        require(job.status is JobStatus.PENDING, f"{job!r} is in the pending map")
        require(job._place in (DELAYED, READY, WAITING), f"{job!r} is pending at {job._place!r}")
        held = seq in core.waiting or core.ready.untidy  # or will be asked again, before anybody looks
        require(held if job._place is WAITING else seq not in core.waiting, f"{job!r} and the waiting map disagree")
    for seq, job in core.running.items():
        if job._seq == seq and job._state == "RUNNING":
            continue
        require(job._seq == seq, f"{job!r} stands under the number {seq}")
        require(job.status is JobStatus.RUNNING, f"{job!r} is in the running map")
    for id, job in core.named.items():
        holder = core.pending.get(job._seq) or core.running.get(job._seq)
        # An interrupt may have left the name of a job that has ended; reserve() takes it from it.
        require(holder is job or job.done(), f"the id {id!r} belongs to a job that is not live")
    core.alarms.audit(require)
    core.time_limits.audit(require)
    for series in core.series.values():
        series.audit(core, require)
    for queue, place in ((core.delayed, DELAYED), (core.ready, READY)):
        if queue.untidy:
            continue  # will be rebuilt before anybody looks
        entries = queue.entries()
        live = [entry[1] for entry in entries if core.stands_for_job(queue, entry)]
        if core.stale and place is READY:
            live = list(set(live))  # a priority changed there and back made a stale entry current again
        require(len(set(live)) == len(live), f"a job stands twice in the {place} queue")
        require(
            set(live) == {seq for seq, job in core.pending.items() if job._place is place},
            f"the {place} queue does not hold the {place} jobs",
        )
        unsure = place is READY and core.ranking.comparing  # a user's before() may contradict itself
        require(unsure or queue.in_order(), f"the {place} queue is out of order")
        if place is DELAYED:
            require(core.dead_delayed == len(entries) - len(live), "the count of dead delayed entries is off")
    waits = len(core.delayed) or core.alarms.things or core.alarm is not None
    require(core.timed or not waits, "something has its time, and no turn would look for it")
    if core.gate is not None:
        core.gate.check_invariants(core.pending, closed=core.closed)
    require(core.stale >= 0, "the count of stale entries is negative")
    require(min(core.done, core.failed, core.cancelled, core.retries) >= 0, "a counter is negative")
    require(len(core._ended) <= core.history, "the history is longer than it may be")
    for keeper in core.keepers:
        keeper.audit(require)

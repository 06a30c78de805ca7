"""The seam of the core: what may hold a job back, and wants to be told of its moves.

Limits, parents, time limits and schedules are rules; the core asks and tells them, and knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from threadsched._job import Job


class Rule(Protocol):
    """What may hold a job back, and wants to be told of its moves; kept in ``job._attached.rules``.

    The seam for limits, parents, time limits and schedules: the core asks and tells, and knows none of them. All
    methods are called like the core's own (lock held, no foreign code). A job without rules pays nothing for it.
    """

    def admits(self, job: Job[Any]) -> bool:
        """Say whether the job may enter its queue; if not, the rule calls ``core.release(job)`` once it may."""
        ...

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Say whether the job, first in the ready queue, may start now; if not, as above.

        A rule that takes something for the job when it allows comes last: it is not told if another one refuses.
        """
        ...

    def started(self, job: Job[Any], now: float) -> None:
        """Take note of a claim: all rules of the job allowed it."""
        ...

    def ended(self, job: Job[Any], now: float) -> None:
        """Take note that an attempt, or the job, ended, however it did; ``job.status`` says how.

        The thread of an attempt that was written off may still be in the task. A rule to which that matters has
        ``until_home = True``, ``away()``, called before this, and ``came_home(job, now)``, called when it is out.
        """
        ...


class Keeper(Protocol):
    """What a family of rules has in common: told of what concerns all of their jobs; kept in ``core.keepers``."""

    def reset(self) -> None:
        """Forget every job, in the child of a fork."""
        ...

    def held(self, rule: Rule, job: Job[Any], now: float) -> None:
        """Take note that ``rule`` refused a claim and the job waits now; look again, and ``core.readmit(job)`` once."""
        ...

    def holds(self, job: Job[Any]) -> bool:
        """Say whether the job was refused and is to be readmitted: nobody else may let it go."""
        ...

    def has_room(self, job: Job[Any]) -> bool:
        """Say whether a job that is held could start all the same, if it were asked for now. Takes nothing."""
        ...

    def ring(self, now: float) -> None:
        """``core.alarm`` has come: let go what may go, and set another one or None."""
        ...

    def rekeyed(self, job: Job[Any], now: float) -> None:
        """Take note that a pending job has another key."""
        ...

    def reorder(self) -> None:
        """Take note that every pending job has another key and ``core.ranking`` is another."""
        ...

    def repair(self) -> None:
        """Rebuild from the maps: an exception struck inside a change."""
        ...

    def audit(self, require: Callable[[object, str], None]) -> None:
        """Call ``require(truth, what)`` for each invariant."""
        ...

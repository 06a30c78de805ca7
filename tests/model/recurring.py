"""A schedule that goes from one grid point to the next, one at a time, however many there are."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from tests.model.words import Recurrence
from threadsched import JobStatus

if TYPE_CHECKING:
    from tests.model.naive import Job, Naive


@dataclasses.dataclass(eq=False)
class Run:
    """One run of a schedule."""

    schedule: "Schedule"
    slot: float | None
    """The point that it is for; None: out of turn."""
    began: float | None = None
    number: int = 0
    """Of the runs that were started before it."""


class Schedule:
    """What ``every`` makes."""

    def __init__(self, plan: Recurrence, now: float, sees: str | None, draw: float) -> None:
        self.plan = plan
        self.sees = sees
        self.draw = draw
        self.until = math.inf if plan.until is None else now + plan.until
        first = now + (plan.seconds if plan.start is None else plan.start)
        while first < now:
            first += plan.seconds
        self.slot = first  # the next one
        self.next_at = self.spread(first, now)
        self.run: Run | None = None
        self.job: Job | None = None  # of the run under way
        self.ended_run: tuple[float | None, float, float] | None = None  # (slot, began, ended)
        self.paused = self.wanted = False
        self.over: str | None = None
        self.armed: tuple[float, int] | None = None  # (when, number of the arming)
        self.runs = self.failures = self.skipped = self.row = 0
        self.started = 0
        self.last_run: float | None = None

    def spread(self, slot: float, now: float) -> float:
        """Return when a slot is due: moved by the jitter, but a late one."""
        plan = self.plan
        if not plan.jitter or slot <= now:
            return slot
        at = slot + min(plan.jitter, plan.seconds) * (2 * self.draw - 1)
        at = min(at, math.nextafter(slot + plan.seconds, -math.inf))
        return min(max(at, now), self.until)

    @property
    def next_run(self) -> float | None:
        under_way = self.run is not None and self.run.slot is not None
        return None if under_way or self.over is not None else self.next_at

    def step(self, naive: "Naive") -> None:
        """Submit the next run if it is due, or be armed for it."""
        plan = self.plan
        while True:
            if naive.closed:
                self.end("shutdown")
            if self.over is not None or self.run is not None:
                return
            if plan.max_failures is not None and self.row >= plan.max_failures:
                self.end("max_failures")
            elif plan.max_runs is not None and self.runs >= plan.max_runs:
                self.end("max_runs")
            elif self.ended_run is not None:
                self.follow(naive.now)
            elif self.wanted:
                naive.accept_run(self, Run(self, None), naive.now)
            elif self.paused:
                self.armed = None
                return
            elif self.next_at > naive.now or naive.halted:
                if self.armed is None or self.armed[0] != self.next_at:
                    naive.armings += 1
                    self.armed = (self.next_at, naive.armings)
                return
            elif plan.missed == "skip" and plan.mode == "rate" and self.slot + plan.seconds <= naive.now:
                slot, left_out = self.slot, 0
                while slot < naive.now or left_out == 0:
                    slot, left_out = slot + plan.seconds, left_out + 1
                self.go_to(slot, left_out, naive.now)
            else:
                naive.accept_run(self, Run(self, self.slot), self.next_at)

    def follow(self, now: float) -> None:
        """Find the slot after a run."""
        plan = self.plan
        assert self.ended_run is not None
        slot, began, ended = self.ended_run
        self.ended_run = None
        if plan.mode == "delay":
            self.go_to(ended + plan.seconds, 0, now)
        elif slot is not None:
            following, left_out = slot + plan.seconds, 0
            if plan.missed == "coalesce":
                while following <= began:  # the run has done the work of all up to its start
                    following, left_out = following + plan.seconds, left_out + 1
            if plan.missed == "skip":
                while following < ended:
                    following, left_out = following + plan.seconds, left_out + 1
            self.go_to(following, left_out, now)

    def go_to(self, slot: float, left_out: int, now: float) -> None:
        self.skipped += left_out
        if slot > self.until:
            self.end("until")
        else:
            self.slot, self.next_at = slot, self.spread(slot, now)

    def run_ended(self, run: Run, job: "Job") -> None:
        """Count a run whose job has ended, retries included."""
        self.run = self.job = None
        now = job.finished_at
        assert now is not None
        if run.began is None:
            self.skipped += run.slot is not None
        else:
            self.runs += 1
            self.last_run = job.started_at
            if job.status is JobStatus.FAILED:
                self.failures += 1
                self.row += 1
            elif job.status is JobStatus.DONE:
                self.row = 0
        self.ended_run = (run.slot, now if run.began is None else run.began, now)

    def end(self, why: str) -> None:
        """Plan no further run."""
        if self.over is None:
            self.over = why
            self.armed = None
            self.let_go()

    def let_go(self) -> None:
        """Put a run back in its queue that a pause held."""
        if self.job is not None and self.job.place == "held":
            self.job.place = "delayed"

    def pause(self) -> None:
        if self.over is None:
            self.paused = True
            self.armed = None

    def resume(self, naive: "Naive") -> None:
        self.paused = False
        self.let_go()
        self.step(naive)

    def run_now(self, naive: "Naive") -> bool:
        if self.over is not None or naive.closed:
            return False
        self.wanted = True
        self.step(naive)
        return True

    def cancel(self, naive: "Naive") -> bool:
        if self.over is not None:
            return False
        self.end("cancelled")
        if self.job is not None:
            naive.cancel(self.job)
        return True

    def seen(self) -> dict[str, Any]:
        """Return what its handle shows."""
        return {
            "next_run": self.next_run,
            "next_due": None if self.next_run is None else self.slot,
            "last_run": self.last_run,
            "runs": self.runs,
            "failures": self.failures,
            "skipped": self.skipped,
            "paused": self.paused,
            "ended": self.over,
        }

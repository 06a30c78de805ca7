"""The inside of a schedule: which run is next, which is under way, and the steps between.

A *series* belongs to the core, which holds it in ``core.series`` until it has ended. It moves in steps::

    armed ──due──> submitted ──claim──> runs ──ended──> next slot found ──> armed ...

- Armed, it is an entry of ``core.alarms`` and no job: nobody waits for it, it takes no place, a shutdown drops it.
- Due, it is put into the outbox, and whoever drains that submits a job, like any other, for the run.
- The job has a :class:`Run` among its rules, and by it the series hears of the end. Only then is the next slot looked
  for. That is why runs do not overlap whatever they do: there is one place, ``run``, and it is taken until the job is
  settled, its retries included.

**Steps are taken outside the lock** (``proceed``), since they ask foreign code: time zones, the policy's key for the
new job, the random generator. Each reads the state, decides, and commits under the lock only if ``version`` is still
the same; else it looks again. So it does not matter who takes a step, whether two threads try, or whether Ctrl-C breaks
one off: the series stays in the outbox until a step has been made to its end.

Locking: every field below is guarded by the scheduler's lock, but for those set once.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple

from threadsched import _log
from threadsched._arming import Armable, Ring
from threadsched._cron import Cron
from threadsched._errors import BrokenSchedulerError, SchedulerClosedError
from threadsched._grid import BURST, Grid, Slot, follow, overtaken, spread
from threadsched._job import WAITING, Job
from threadsched._options import Options
from threadsched._plan import Plan
from threadsched._records import JobStatus
from threadsched._wall import DIGITS

if TYPE_CHECKING:
    from threadsched._core import Core
    from threadsched._runtime import Runtime


class SupersededError(Exception):
    """Raised inside a submission of a run that is not wanted any more; nobody outside sees it."""


class Finished(NamedTuple):
    """A run that ended and whose successor was not looked for yet; times on the scheduler's clock."""

    slot: Slot | None
    """None for a run that was asked for out of turn."""
    began: float
    ended: float


class Run:
    """One run: what times its job at submission, and a rule of that job from then on."""

    until_home = True  # a run whose thread was written off is over when the thread has come home

    def __init__(self, series: Series, slot: Slot | None, due: float | None, version: int) -> None:
        self.series = series
        self.slot = slot  # None: asked for out of turn
        self.due = due  # on the scheduler's clock
        self.version = version  # of the series, for which this was decided
        self.job: Job[Any] | None = None
        self.began: float | None = None
        self.out = 0  # attempts that were written off and whose thread is still in the task

    def attach(self, runtime: Runtime, job: Job[Any]) -> None:
        """Give a new job what belongs to a run: its due time, a copy of the schedule's context, this rule."""
        if self.due is not None:
            job._run_at = self.due
        context = self.series.context
        job._result = None if context is None else context.copy()
        attached = job._attach()
        attached.rules = (self, *attached.rules)

    def admits(self, job: Job[Any]) -> bool:
        """Take the series' one place for this run, or refuse the submission; a pause holds it back, see below."""
        self.series.accept(self, job)
        return not self.paused

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Hold a run back while its schedule is paused, unless it was asked for all the same."""
        return not self.paused

    @property
    def paused(self) -> bool:
        """Whether a pause holds it back. One that comes after its submission does so at the claim."""
        series = self.series
        return series.paused and self.slot is not None and series.over is None

    def started(self, job: Job[Any], now: float) -> None:
        """Note when the run began."""
        if self.began is None:
            self.began = now

    def ended(self, job: Job[Any], now: float) -> None:
        """Free the series' place when the job has ended and its threads are back."""
        if not self.out and job.status.ended and self.series.run is self:
            self.series.run_ended(self, job, now)

    def away(self) -> None:
        """Take note that an attempt was written off."""
        self.out += 1

    def came_home(self, job: Job[Any], now: float) -> None:
        """Take note that the thread of one is back."""
        self.out -= 1
        self.ended(job, now)


class Series(Armable):
    """A schedule without its face. See the top of this file."""

    def __init__(
        self,
        *,
        name: str,
        what: str,
        plan: Plan,
        table: Grid | Cron,
        until: float | None,
        task: tuple[Any, ...],
        context: Context | None,
        options: Options,
    ) -> None:
        # Set once.
        self.name = name
        self.what = what  # "every 10 s"
        self.plan = plan
        self.table = table
        self.until = until  # on the table's clock
        self.context = context
        self.options = options
        self.number = 0  # set at registration
        # Guarded by the scheduler's lock.
        self.task: tuple[Any, ...] | None = task  # fn, args, kwargs; None once it has ended
        self.face: Callable[[], Any] = _no_face  # a weak reference to the Schedule
        self.version = 0
        self.over: str | None = None  # why it ended
        self.paused = False
        self.wanted = False  # a run out of turn was asked for
        self.slot: Slot | None = None  # the next one
        self.next_at: float | None = None  # when that is due on the scheduler's clock, jitter included
        self.last_slot: Slot | None = None  # the one that ran last
        self.run: Run | None = None  # the one under way
        self.finished: Finished | None = None
        self.stepped = 0.0  # by how much the wall clock was set since the slot was found
        self.runs = self.failures = self.skipped = 0
        self.drawn = (-1, 0.0)  # the version for which a random number was drawn, and the number
        self.row = 0  # failures without a success between
        self.last_run: float | None = None

    @property
    def on_wall(self) -> bool:
        """Whether its slots are on the wall clock."""
        return type(self.table) is Cron

    # ---------------------------------------------------------------- told under the lock

    def accept(self, run: Run, job: Job[Any]) -> None:
        """Take the place for a run, or raise: something has happened since it was decided."""
        if self.run is run:
            return  # asked again, for a job that was held back
        if self.run is not None or self.version != run.version or self.over is not None:
            raise SupersededError
        job._runtime.core.alarms.disarm(self)
        run.job = job
        self.version += 1
        self.wanted = self.wanted and run.slot is not None
        self.run = run

    def run_ended(self, run: Run, job: Job[Any], now: float) -> None:
        """Count a run that ended, free its place, and have the next slot looked for."""
        self.run = run.job = None
        self.version += 1
        began = run.began if run.began is not None else job._started_at
        if began is None:
            self.skipped += run.slot is not None  # cancelled before its start
        else:
            self.runs += 1
            self.last_run = job._started_at
            if job.status is JobStatus.FAILED:
                self.failures += 1
                self.row += 1
            elif job.status is JobStatus.DONE:
                self.row = 0
        self.finished = Finished(run.slot, now if began is None else began, now)
        job._runtime.core.outbox.append(Ring(self))

    def closed(self, core: Core) -> None:
        """The door closed: nothing is armed any more; a run that was held back goes like any job."""
        self.end(core, "shutdown")

    def end(self, core: Core, why: str) -> None:
        """End for the reason given, unless it has ended. Who calls this holds the series by something else too."""
        if self.over is not None:
            return
        self.over = why
        self.version += 1
        try:
            core.alarms.disarm(self)
            self.next_at = None
            self.let_go(core)
        except BaseException:  # struck in there: it has ended, and whoever takes its next step lets go of it
            core.alarms.disarm(self)
            core.outbox.append(Ring(self))
            raise

    def let_go(self, core: Core) -> None:
        """Release a run that was held back by a pause."""
        job = None if self.run is None else self.run.job
        if job is not None and job._place is WAITING:
            core.release(job)

    def audit(self, core: Core, require: Callable[[object, str], None]) -> None:
        """Call ``require(truth, what)`` for each invariant. Steps of other threads may be under way."""
        if self.over is not None:
            require(not self.ticket, f"schedule {self.name!r} has ended and is armed")
        if self.run is not None:
            require(not self.ticket, f"schedule {self.name!r} is armed beside a run")
        if self.ticket:
            require(core.alarms.things.get(self.ticket) is self, f"schedule {self.name!r} has a ticket of another")
        require(min(self.runs - self.failures, self.failures - self.row, self.skipped) >= 0, "a count is off")

    # ---------------------------------------------------------------- steps, outside the lock

    def proceed(self, runtime: Runtime) -> None:
        """Take steps until there is nothing to do but to wait."""
        try:
            while self._step(runtime):
                continue
        except Exception as error:  # a time zone's, say: without a next time there is no next run
            told = _log.describe_error(error)
            _log.report(logging.ERROR, "schedule %r ends: finding its next run raised %s", self.name, told, error=error)
            with runtime.lock:
                self.end(runtime.core, "error")
        if self.over is not None:
            self.leave(runtime)

    def leave(self, runtime: Runtime) -> None:
        """Let go of an ended series and of its task."""
        with runtime.lock:
            task, self.task = self.task, None
            known = runtime.core.series.pop(self.number, None)
            follower = runtime.wall.followers.pop(self.number, None)
        del task, known, follower

    def _step(self, runtime: Runtime) -> bool:
        """Take one step; False if there is none to take."""
        offset = runtime.wall.look(runtime) if self.on_wall else 0.0
        now = runtime.read_clock()
        with runtime.lock:
            if self._resting_locked(runtime.core):
                return False
            version, finished, slot, stepped = self.version, self.finished, self.slot, self.stepped
            failed = self.plan.max_failures is not None and self.row >= self.plan.max_failures
        if failed:
            return self._give_up(runtime)
        if self.plan.max_runs is not None and self.runs >= self.plan.max_runs:
            return self._finish(runtime, version, "max_runs")
        if finished is not None:
            return self._find_next(runtime, version, finished, now, offset)
        if stepped:
            return self._follow_step(runtime, version, stepped, now, offset)
        if self.wanted:
            return self._submit(runtime, Run(self, None, None, version))
        if slot is None:
            return self._finish(runtime, version, "until")
        if not self._is_due(runtime, version, now):
            return False
        gone = overtaken(self.table, self.plan.missed, slot, now + offset)
        if gone is not None:
            return self._plan(runtime, version, gone[0], gone[1], now, offset)
        return self._submit(runtime, Run(self, slot, self.next_at, version))

    def _resting_locked(self, core: Core) -> bool:
        """Whether it has ended, or a run is under way, so that there is no step to take."""
        if core.closed:
            self.end(core, "shutdown")
        if self.over is not None:
            return True
        job = None if self.run is None else self.run.job
        if job is not None and job._seq not in core.pending and job.status is JobStatus.PENDING:
            self.run = None  # its submission was broken off at the very last: it has not happened
        return self.run is not None

    def _is_due(self, runtime: Runtime, version: int, now: float) -> bool:
        """Whether to start the next run now; if not, arm the series for it, unless it is paused."""
        with runtime.lock:
            core, at = runtime.core, self.next_at
            if self.version != version or at is None:
                core.outbox.append(Ring(self))  # something happened just now: look again
                return False
            if self.paused:
                core.alarms.disarm(self)
                return False
            if at <= now and not core.halted:
                return True
            if not (self.ticket and self.armed_at == at) and core.arm(self, at):
                runtime._new_head_locked()
            if self.over is not None:
                core.alarms.disarm(self)  # ended by a handler that broke in
            return False

    def _find_next(self, runtime: Runtime, version: int, finished: Finished, now: float, offset: float) -> bool:
        """After a run: the next slot."""
        slot, began, ended = finished
        if slot is not None:
            following, left_out = follow(self.table, self.plan.missed, slot, began + offset, ended + offset)
            return self._plan(runtime, version, following, left_out, now, offset)
        kept = self.slot
        if kept is not None:
            after_end = self.table.follow_end(kept, ended + offset)
            if after_end is not None:
                return self._plan(runtime, version, after_end, 0, now, offset)
        with runtime.lock:  # a run out of turn changes nothing
            if self.version == version:
                self.version += 1
                self.finished = None
        return True

    def _follow_step(self, runtime: Runtime, version: int, stepped: float, now: float, offset: float) -> bool:
        """The wall clock was set: what it jumped over is one late run; set back, it is a new day."""
        slot, wall, left_out = self.slot, now + offset, 0
        if isinstance(self.table, Cron):
            if stepped < 0:
                start = self.plan.start
                lowest = max(wall, start.seconds) if start is not None and start.wall else wall
                slot = self.table.after_step(self.last_slot, lowest)
            elif slot is not None and self.plan.missed == BURST:
                slot = self.table.latest(slot, wall)
        return self._plan(runtime, version, slot, left_out, now, offset)

    def _plan(
        self, runtime: Runtime, version: int, slot: Slot | None, left_out: int, now: float, offset: float
    ) -> bool:
        """Commit the next slot, and when that is on the scheduler's clock; or the end."""
        if slot is None or (self.until is not None and slot.at > self.until):
            return self._finish(runtime, version, "until", left_out)
        next_at = self.time_of(runtime, version, slot, now, offset)
        with runtime.lock:
            if self.version == version:
                self.version += 1
                if self.finished is not None and self.finished.slot is not None:
                    self.last_slot = self.finished.slot
                self.finished, self.stepped = None, 0.0
                self.slot, self.next_at = slot, next_at
                self.skipped += left_out
        return True

    def time_of(self, runtime: Runtime, version: int, slot: Slot, now: float, offset: float) -> float:
        """Return when a slot is due on the scheduler's clock; draws the jitter, which moves no late run."""
        at = slot.at
        if self.plan.jitter and at > now + offset:
            at = max(spread(self.table, slot, self.plan.jitter, self._draw(runtime, version)), now + offset)
            if self.until is not None:
                at = min(at, self.until)
        return round(at - offset, DIGITS) if self.on_wall else at

    def _draw(self, runtime: Runtime, version: int) -> float:
        """Return the random number of this step: one for all who take it at once, so that a seed repeats it."""
        with runtime.lock:
            if self.version == version and self.drawn[0] != version:  # else the step is taken, and this is in vain
                self.drawn = (version, random.random())
            return self.drawn[1]

    def _finish(self, runtime: Runtime, version: int, why: str, left_out: int = 0) -> bool:
        with runtime.lock:
            if self.version == version:
                self.skipped += left_out
                self.end(runtime.core, why)
        return self.over is None

    def _give_up(self, runtime: Runtime) -> bool:
        """End for too many failures in a row, and say so."""
        with runtime.lock:
            first = self.over is None
            self.end(runtime.core, "max_failures")
        if first:
            _log.report(logging.ERROR, "schedule %r ends: its last %d runs failed (max_failures)", self.name, self.row)
        return False

    def _submit(self, runtime: Runtime, run: Run) -> bool:
        """Submit the job of a run."""
        task = self.task
        if task is None:
            return True
        options = copy.copy(self.options)
        # The context is the schedule's, and the run's to copy.
        options.timing, options.special, options.context = run, True, False
        try:
            fn, args, kwargs = task
            runtime.submit(fn, args, kwargs, options, 0.0)
        except SupersededError:
            pass
        except (SchedulerClosedError, BrokenSchedulerError):
            with runtime.lock:
                self.end(runtime.core, "shutdown")
        except Exception as error:  # the policy's key, or no worker could be started
            self._could_not_submit(runtime, run, error)
        return True

    def _could_not_submit(self, runtime: Runtime, run: Run, error: Exception) -> None:
        """Report a run that could not even be submitted, count it as a failure, and go on to the next."""
        told = _log.describe_error(error)
        _log.report(logging.ERROR, "a run of schedule %r could not be submitted: %s", self.name, told, error=error)
        now = runtime.read_clock()
        with runtime.lock:
            if self.run is run:
                self.run = run.job = None
            self.version += 1
            self.runs += 1
            self.failures += 1
            self.row += 1
            self.wanted = self.wanted and run.slot is not None
            self.finished = Finished(run.slot, now, now)

    # ---------------------------------------------------------------- told outside the lock

    def kick(self, runtime: Runtime) -> None:
        """Take the steps there are to take; under the lock, in a handler or finalizer, leave them to a worker."""
        with runtime.lock:
            runtime.core.outbox.append(Ring(self))
        try:
            runtime.drain_outbox()
        except BaseException:  # Ctrl-C: a worker takes over
            with runtime.lock:
                runtime._wake_locked()
            raise

    def wall_stepped(self, runtime: Runtime, moved: float) -> None:
        """The wall clock was set by ``moved`` seconds."""
        with runtime.lock:
            if self.over is None:
                self.stepped += moved
                self.version += 1
                runtime.core.outbox.append(Ring(self))
                runtime._new_head_locked()


def is_held(job: Job[Any]) -> bool:
    """Say whether a job is a run that a pause of its schedule keeps from starting."""
    attached = job._attached
    return attached is not None and any(type(rule) is Run and rule.paused for rule in attached.rules)


def _no_face() -> None:
    """Stand for a Schedule that is not there."""

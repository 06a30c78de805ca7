"""The handle of a recurring job, and how one is made. What happens inside is in ``_series``."""

from __future__ import annotations

import contextvars
import datetime
import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from threadsched import _numbers, _outcome
from threadsched._cron import Cron
from threadsched._errors import SchedulerClosedError
from threadsched._grid import DELAY, SHORTEST_INTERVAL, Grid, Pauses, Slot
from threadsched._job import Job, task_name
from threadsched._options import Options
from threadsched._plan import Plan
from threadsched._series import Series

if TYPE_CHECKING:
    from threadsched._runtime import Runtime

_numbers_of_series = itertools.count(1)


class Schedule:
    """A task that recurs; made by ``every`` and ``cron``.

    Each run is a job of its own. Runs of one schedule never overlap: the next is planned when one has ended, its
    retries included. While the next run is only planned it is no job: it counts neither as pending nor for
    ``wait_idle`` and ``max_pending``, and every shutdown drops it.

    The handle keeps its scheduler alive, and the scheduler keeps the schedule going whether anybody holds the handle or
    not. Times are readings of the scheduler's clock.

    Thread safety: everything from any thread, from inside a run, from a signal handler or a finalizer. Cost: O(log n)
    in the schedules for what plans a run, O(1) for the rest.
    """

    __slots__ = ("__weakref__", "_runtime", "_scheduler", "_series")

    def __init__(self, runtime: Runtime, scheduler: Any, series: Series) -> None:
        self._runtime = runtime
        self._scheduler = scheduler  # held, and not used: see the class
        self._series = series
        series.face = weakref.ref(self)

    @property
    def name(self) -> str:
        """The option ``name``, or the task's qualified name."""
        return self._series.name

    @property
    def next_run(self) -> float | None:
        """When the next run is due, jitter included; None while a run is under way and after the end.

        While the schedule is paused, it is when the run would have been due.
        """
        series = self._series
        with self._runtime.lock:
            taken = series.run is not None and series.run.slot is not None
            return None if taken or series.finished is not None or series.over is not None else series.next_at

    @property
    def next_due(self) -> float | datetime.datetime | None:
        """The next run's place in the plan, jitter not included; for ``cron`` an aware datetime in its time zone."""
        with self._runtime.lock:
            planned = self.next_run is not None
            slot, table = self._series.slot, self._series.table
        if not planned or slot is None:
            return None
        if isinstance(table, Cron):
            return table.date(slot.at)
        return slot.at

    @property
    def last_run(self) -> float | None:
        """When the last run that has ended was started (its last attempt); None before that."""
        return self._series.last_run

    @property
    def runs(self) -> int:
        """How many runs have ended, however they did; retries are not counted apart."""
        return self._series.runs

    @property
    def failures(self) -> int:
        """How many of the runs ended FAILED."""
        return self._series.failures

    @property
    def skipped(self) -> int:
        """How many planned runs were left out: passed over by the rule ``missed``, or cancelled before their start.

        For ``cron``, more than a hundred left out at once are counted as a hundred.
        """
        return self._series.skipped

    @property
    def job(self) -> Job[Any] | None:
        """The run under way, pending or running; None between runs."""
        with self._runtime.lock:
            run = self._series.run
            return None if run is None else run.job

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._series.paused

    @property
    def ended(self) -> str | None:
        """Why there will be no further run; None while there will.

        ``"cancelled"``, ``"until"`` (also when a cron expression has no further time), ``"max_runs"``,
        ``"max_failures"``, ``"shutdown"``, ``"fork"`` (in the child), or ``"error"`` (a time zone raised).
        """
        return self._series.over

    def pause(self) -> None:
        """Start no run until ``resume``; one that runs goes on, one that is pending is held back.

        Time goes on: see ``resume``. Independent of the scheduler's own pause. Pausing twice is pausing once.
        """
        series = self._series
        with self._runtime.lock:
            if series.over is None:
                series.paused = True
                series.version += 1
                self._runtime.core.alarms.disarm(series)

    def resume(self) -> None:
        """Lift a pause. Runs that were due meanwhile are treated as missed: by default one late run, at once."""
        series = self._series
        with self._runtime.lock:
            series.paused = False
            series.version += 1
            series.let_go(self._runtime.core)
            self._runtime._settled_locked()
        series.kick(self._runtime)

    def run_now(self) -> bool:
        """Ask for a run out of turn: at once, or right after the one that is under way. The plan does not change.

        Asked several times during one run, there is one more. It runs although the schedule is paused, and counts
        for ``max_runs``. With ``mode="delay"`` the next interval begins at its end.

        Returns:
            True if it will run; False if the schedule has ended.
        """
        series = self._series
        with self._runtime.lock:
            if series.over is not None or self._runtime.core.closed:
                return False
            series.wanted = True
            series.version += 1
        series.kick(self._runtime)
        return True

    def cancel(self) -> bool:
        """End the schedule. A pending run is cancelled; a running one goes on and is not retried.

        Returns:
            True if this call ended it; False if it had ended.
        """
        series, runtime = self._series, self._runtime
        with runtime.lock:
            if series.over is not None:
                return False
            series.end(runtime.core, "cancelled")
        job = self.job
        if job is not None:
            runtime.cancel(job)
        series.leave(runtime)
        return True

    def __repr__(self) -> str:
        series = self._series
        if series.over is not None:
            state = f"ended: {series.over}"
        elif series.paused:
            state = "paused"
        else:
            next_run = self.next_run
            state = "a run is under way" if next_run is None else f"next at {next_run:g}"
        return f"<Schedule {series.name} {series.what}, {series.runs} runs, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Schedule cannot be pickled or copied: it belongs to its scheduler ({self!r})")


def every(
    runtime: Runtime, seconds: object, task: tuple[Callable[..., Any], Any, Any], options: Options, plan: Plan
) -> Schedule:
    """Make an interval schedule and set it going; see ``Scheduler.every``."""
    interval = _numbers.seconds("seconds", seconds, zero=False)
    if interval < SHORTEST_INTERVAL:
        raise ValueError(f"seconds must be at least {SHORTEST_INTERVAL:g}, not {_numbers.describe(seconds)}")
    _outcome.check_task(task[0])
    now = runtime.read_clock()
    # A datetime is turned into a reading of the scheduler's clock once: intervals do not follow the wall clock.
    dated = any(when is not None and when.wall for when in (plan.start, plan.until))
    offset = runtime.wall.look(runtime) if dated else 0.0
    anchor = now + interval if plan.start is None else plan.start.on_clock(now, offset)
    until = None if plan.until is None else plan.until.on_clock(now, offset)
    table = (Pauses if plan.mode == DELAY else Grid)(anchor, interval)
    what = f"every {interval:g} s"
    return _begin(runtime, what, table, table.first(now), until, task, options, plan, now, 0.0)


def cron(
    runtime: Runtime, expression: object, task: tuple[Callable[..., Any], Any, Any], options: Options, plan: Plan
) -> Schedule:
    """Make a cron schedule and set it going; see ``Scheduler.cron``."""
    table = Cron(expression, datetime.UTC if plan.tz is None else plan.tz)
    _outcome.check_task(task[0])
    offset = runtime.wall.look(runtime)
    now = runtime.read_clock()
    until = None if plan.until is None else plan.until.on_wall(now, offset)
    wall = now + offset
    if plan.start is None:
        at = table.next_after(wall)
        slot = None if at is None else Slot(at, 0)
    else:
        slot = table.first(max(plan.start.on_wall(now, offset), wall))
    if slot is None:
        raise ValueError(f"expression {table.text!r} has no time after this")
    return _begin(runtime, f"cron {table.text!r}", table, slot, until, task, options, plan, now, offset)


def _begin(
    runtime: Runtime,
    what: str,
    table: Grid | Cron,
    first: Slot,
    until: float | None,
    task: tuple[Callable[..., Any], Any, Any],
    options: Options,
    plan: Plan,
    now: float,
    offset: float,
) -> Schedule:
    """Register a series whose first slot is known, and let it take its first step."""
    if until is not None and first.at > until:
        end, start = (_shown(table, at) for at in (until, first.at))
        raise ValueError(f"until must not be before the first run: there would be none until {end}, only at {start}")
    series = Series(
        name=options.name or task_name(task[0]),
        what=what,
        plan=plan,
        table=table,
        until=until,
        task=task,
        context=contextvars.copy_context() if options.context else None,
        options=options,
    )
    series.slot, series.next_at = first, series.time_of(runtime, series.version, first, now, offset)
    if not runtime.manned:
        runtime.man()
    try:
        with runtime.lock:
            if runtime.core.closed or runtime.broken is not None:
                runtime._refuse()
            scheduler = runtime.face()
            if scheduler is None:
                raise SchedulerClosedError(f"cannot schedule new futures: scheduler {runtime.name!r} was dropped")
            series.number = next(_numbers_of_series)
            schedule = Schedule(runtime, scheduler, series)
            if series.on_wall:
                series.stepped = runtime.wall.offset - offset  # if it was set since we looked
                runtime.wall.followers[series.number] = series
                runtime.wall.keep_looking_locked(runtime, now)
            runtime.core.series[series.number] = series
        series.kick(runtime)
    except BaseException:
        with runtime.lock:
            series.end(runtime.core, "cancelled")
        series.leave(runtime)
        raise
    return schedule


def _shown(table: Grid | Cron, at: float) -> str:
    """Return a time of a table as a reader knows it."""
    if isinstance(table, Cron):
        return str(table.date(at))
    return f"{at} on the scheduler's clock"


def schedules(runtime: Runtime) -> list[Schedule]:
    """Return the handles of all schedules that have not ended; a handle that was dropped is made anew."""
    with runtime.lock:
        scheduler = runtime.face()
        going = [series for series in runtime.core.series.values() if series.over is None]
        return [series.face() or Schedule(runtime, scheduler, series) for series in going]

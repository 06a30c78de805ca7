"""The state that a scheduler's rooms share: the lock, what it guards, and the wake-ups.

Locking
-------
``lock`` guards everything in the block marked so in ``Shared.__init__``, the core and every job's fields. It is one
``RLock``, entered only as ``with self.lock:`` (see ``_locks``, also for the mark that hot sections set). Under it only
our own memory is changed. Never: tasks, callbacks, hooks, logging, clocks, starting or joining threads, dropping the
last reference to a user's object. Decide under the lock, act outside it.

The order of locks is: a job's condition (where one exists), then ``lock``.

Waking
------
Each worker sleeps on a token of its own. ``idle`` is a stack, so the last to fall asleep is the first to be woken. At
most one token stands on ``watch``: that of the *leader*, who sleeps until the head of the delayed queue is due. One of
the idle may be the *deputy*, who sleeps until the one after the head is. All others sleep without a timeout, and an
idle pool with nothing delayed makes no wake-up at all.

- A token stands on at most one list, and is released only by whoever took it off.
- A new ready job wakes one sleeper, an idle one rather than the leader; a plain one before it is made, see
  :meth:`Shared._wake_ahead`.
- A new head of the delayed queue wakes the leader, or makes an idle worker the leader.
- A worker that takes a job wakes the next sleeper if more is ready, and hands the watch on if it had it: to the
  deputy, who then sleeps on, if he wakes in time for the new head; else to whom it wakes for that.
- Where no worker sleeps, those that wait inside a task may help (see ``_helping``): one whose job became ready is rung
  for, and one of them stands in for the leader.
- A worker that finds nothing registers, *looks again*, and only then sleeps (``Runtime._rest_locked``). So a wake-up
  that comes in between, be it from a finalizer on this very thread, is either seen or remembered by the token.
"""

from __future__ import annotations

import itertools
import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from threadsched import _locks, _log
from threadsched._clock import Clock, VirtualClock
from threadsched._core import Core
from threadsched._dependencies import ForeignParent
from threadsched._errors import BrokenSchedulerError, InterpreterExitRuntimeError, SchedulerClosedError
from threadsched._job import Job
from threadsched._limit import Limit
from threadsched._limits import Limits
from threadsched._locks import make_waker
from threadsched._policy import Ranking
from threadsched._wall import WallWatch
from threadsched._worker import WATCH, Worker, current_worker


def _no_face() -> None:
    """Stand for a scheduler that is not there."""


class Shared:
    """Fields, wake-ups and the clock; the base of all rooms."""

    # All fields, and no dictionary: see Core.
    __slots__ = (
        "__weakref__",
        "_wake_idle",
        "_wake_watch",
        "awaits",
        "broken",
        "cleared",
        "clearing",
        "clock",
        "coming",
        "core",
        "deputy",
        "due_until",
        "exit_hook",
        "exit_timeout",
        "exit_waiters",
        "exiting",
        "face",
        "foreign",
        "generation",
        "helpers",
        "idle",
        "idle_waiters",
        "initializer",
        "last_reading",
        "launched",
        "left",
        "limits",
        "lock",
        "lost",
        "manned",
        "mark",
        "name",
        "now",
        "numbers",
        "on_error",
        "posts",
        "quiet_waiters",
        "readmissions",
        "replaced",
        "sleepers",
        "stand_in",
        "stepped",
        "tellers",
        "ticker",
        "told_waiters",
        "turn_waiters",
        "virtual",
        "wall",
        "watch",
        "watched",
        "watcher",
        "width",
        "workers",
        "written_off",
    )

    def __init__(
        self,
        *,
        width: int,
        ranking: Ranking,
        clock: Clock,
        name: str = "threadsched",
        queue: str = "lazy",
        history: int = 1000,
        on_error: Callable[[Job[Any], BaseException], object] | None = None,
        initializer: Callable[[], object] | None = None,
        exit_timeout: float = 10.0,
        stepped: bool = False,
        limits: Mapping[str, Limit] | None = None,
    ) -> None:
        # Set once.
        self.width = width
        self.name = name
        self.clock = clock
        self.now = clock.now
        self.virtual = isinstance(clock, VirtualClock)
        self.on_error = on_error
        self.initializer = initializer
        self.exit_timeout = exit_timeout
        self.stepped = stepped
        # The lock, and the hint of who is about to hold it.
        self.lock = _locks.make_lock()
        self.mark: object = None
        # Guarded by lock.
        self.core = Core(ranking, queue, history, stepped=stepped)
        self.wall = WallWatch(clock)
        self.face: Callable[[], Any] = _no_face  # a weak reference to the scheduler
        self.limits = Limits(self.core, limits or {})
        if limits:
            self.core.keepers = (*self.core.keepers, self.limits)
        self.workers: dict[int, Worker] = {}  # number -> worker, from its arrival to its leaving
        self.launched: set[int] = set()  # numbers whose thread was started and has not left
        # Threads that leave, or have left: a shutdown joins them. Those of workers that died long ago fall out.
        self.left: deque[Any] = deque(maxlen=2 * width)
        self.manned = stepped  # every worker was launched: submissions need not look
        self.idle: list[Any] = []  # Stack of tokens.
        self.watch: list[Any] = []  # No token or the leader's.
        self.coming: object = None  # the sign of a worker woken ahead of its job, until any worker takes a turn
        self.deputy: Worker | None = None  # if its token is on idle and its order WATCH; else there is none
        self.helpers: dict[int, Any] = {}  # id -> Bell, of workers that sleep inside a task until a job ends
        self.stand_in: Any = None  # the Bell of the helper that watches the delayed heap because no worker does
        self.awaits: dict[int, list[Job[Any]]] = {}  # seq of a running job -> the jobs that it waits for
        self.ticker = 0  # the thread that steps a stepped scheduler
        self.watched = math.inf  # until when that one sleeps
        self.readmissions = 0  # how many of the core's were told to the workers
        self.sleepers: dict[Any, tuple[float, Worker]] = {}  # token -> until when, and who, of tasks in job.sleep()
        self.due_until = 0.0  # under drain="due": the reading when the door was closed
        self.clearing = False  # somebody is giving up what a shutdown leaves unstarted
        self.cleared = "all"  # the mode for which that is done
        # id(future) -> our callback on a parent that is no job of ours, while anybody holds it.
        self.foreign: weakref.WeakValueDictionary[int, ForeignParent] = weakref.WeakValueDictionary()
        self.broken: BaseException | None = None
        self.exiting = False  # the door was closed by the interpreter's exit
        self.generation = 0  # one more in each child of a fork
        # The numbers of the threads that should serve, and the next new one. A number is never used by two workers
        # that live at the same time; a thread that was written off keeps its own.
        self.posts = list(range(width))
        self.numbers = itertools.count(width)
        self.written_off: dict[int, Worker] = {}  # number -> worker whose thread is lost and got a successor
        # Who does, outside of the lock, what is to be done about a limit that came: key -> thread, None before it runs.
        self.tellers: dict[object, Any] = {}
        self.told_waiters: list[Any] = []  # tokens of threads that wait until there are none
        self.watcher: Any = None  # the thread that watches the time limits
        self.lost = 0  # workers that could not be started at the last try
        self.replaced = 0
        self.last_reading = 0.0  # of the clock, at the last turn
        self.exit_hook: Callable[[], None] | None = None
        # Tokens of threads that wait: for all workers to have left (released by the last), for nothing to be pending
        # or running (by whoever ends the last job), for every worker to be asleep (by the last that falls asleep).
        self.exit_waiters: list[Any] = []
        self.idle_waiters: list[Any] = []
        self.quiet_waiters: list[Any] = []
        self.turn_waiters: list[Any] = []  # ... for the next claim, see let_woken_claim
        self._wake_idle = make_waker(self.idle)
        self._wake_watch = make_waker(self.watch)
        self.core.time_limits.wake = make_waker(self.core.time_limits.asleep)

    def _wake_locked(self) -> None:
        """Something became ready: wake one sleeper."""
        if self.idle:
            try:
                self._wake_idle()
                return
            except IndexError:  # a finalizer on this thread was faster
                pass
        if self.watch:
            try:
                self._wake_watch()
                return
            except IndexError:
                pass
        if self.helpers:
            self._ring_helpers_locked()

    def _wake_ahead(self) -> object:
        """Wake an idle worker for a job that is only being made; return the sign of that, or None if nobody idles.

        A worker takes tens of microseconds to come, and making the job but a few. While ``coming`` is the sign, no
        worker has taken a turn since: so the one that was woken still will, and finds the job, and nobody else need be
        woken for it.
        """
        sign = self.mark = object()
        with self.lock:
            try:
                self._wake_idle()
                self.coming = sign
                return sign
            except IndexError:  # somebody was faster
                return None
            finally:
                if self.mark is sign:
                    self.mark = None

    def _ring_helpers_locked(self) -> None:
        """Wake every helper that could run something now."""
        if self.core.halted:
            return
        for bell in list(self.helpers.values()):
            if bell.wanted():
                bell.release()

    def _new_head_locked(self) -> None:
        """The delayed heap has an earlier head, or lost its leader: somebody must set a new alarm."""
        if self.watch:
            try:
                self._wake_watch()
                return
            except IndexError:
                pass
        if self.idle:
            try:
                self._wake_idle()
                return
            except IndexError:
                pass
        if self.helpers:
            self._new_head_for_helpers_locked()

    def _new_head_for_helpers_locked(self) -> None:
        """The same where no worker sleeps but those that wait inside a task.

        One whose thread sleeps stands in for all. If there is none, each coroutine that waits has to look.
        """
        core = self.core
        # Not next_due(), which throws dead heads away: to it, the newcomer is one until it is in the map.
        first = core.delayed.first()
        times = [None if first is None else first[0], core.alarm, None if core.halted else core.alarms.due()]
        due = min([time for time in times if time is not None], default=None)
        bells = list(self.helpers.values())
        sleeper = self.stand_in or next((bell for bell in bells if bell.sleeps), None)
        for bell in bells if sleeper is None else (sleeper,):
            if not bell.watches(due):
                bell.release()

    def _wake_all_locked(self) -> None:
        while self.idle or self.watch:
            self._wake_locked()
        for bell in list(self.helpers.values()):
            bell.release()

    def _pass_on_locked(self, moved: int) -> None:
        """Before running a job: wake who is needed for the rest, and hand the watch on."""
        core = self.core
        ready, delayed = core.ready, core.delayed
        # While nothing may start, nobody is needed for what is ready, and what is armed has no time to watch for.
        if (ready.level or ready.lane or ready.heap) and not core.halted:
            for _ in range(min(max(moved, 1), len(ready))):
                self._wake_locked()
        if core.keepers:
            self._mind_keepers_locked()
        if delayed.lane or delayed.heap or (core.alarms.things and not core.halted):
            unwatched = not self.watch and (self.idle or (self.helpers and self.stand_in is None))
            # What a rule let go may be due before the alarm that is set.
            if core.released or unwatched:
                core.released = False
                if self.watch or not self._deputy_takes_over_locked():
                    self._new_head_locked()

    def _deputy_takes_over_locked(self) -> bool:
        """Make the deputy the leader in its sleep; False if there is none that wakes in time for the head."""
        deputy, self.deputy = self.deputy, None
        if deputy is None or deputy.order is not WATCH:
            return False
        due = self.core.next_due()
        if due is None or deputy.due > due:
            return False
        try:
            self.idle.remove(deputy.token)
        except ValueError:
            return False  # woken since
        self.watch.append(deputy.token)
        self.watched = deputy.due
        return True

    def _settled_locked(self) -> None:
        """A job ended: tell who waits for the last one, and wake a worker for what that let go."""
        self._tell_idle_locked()
        if self.core.keepers:
            self._mind_keepers_locked()

    def _tell_idle_locked(self) -> None:
        if self.core.released:
            self.core.released = False
            if len(self.core.delayed) or self.core.alarms.things:
                self._new_head_locked()
        if self.idle_waiters and not self.core.pending and not self.core.running:
            _locks.release_all(self.idle_waiters)

    def _left_locked(self) -> bool:
        """Whether every worker has left; if nothing is pending, who is stuck in a written-off task need not.

        While a job is pending somebody comes for it, though nobody may be there at this moment: the last worker was
        written off, or died, and its successor is being started.
        """
        if not self.launched:
            return not self.core.pending
        if self.core.pending or not self.core.closed:
            return False
        return sum(worker.stuck for worker in self.workers.values()) >= len(self.launched)

    def _tell_left_locked(self) -> None:
        if self.exit_waiters and self._left_locked():
            _locks.release_all(self.exit_waiters)

    def _mind_keepers_locked(self, resting: bool = False) -> None:
        """Wake a worker for what the keepers let go, and see that somebody sleeps no longer than to their alarm.

        ``resting``: the caller is a worker that is about to sleep, until the alarm if nobody else does.
        """
        core = self.core
        if core.readmissions != self.readmissions:
            self.readmissions = core.readmissions
            if len(core.ready):
                self._wake_locked()
        if self.helpers:
            self._ring_helpers_locked()
        if core.alarm is not None:
            if self.watch:
                until = self.watched
            elif self.stand_in is not None and self.stand_in.due is not None:
                until = self.stand_in.due
            else:
                until = -math.inf if resting else math.inf
            if core.alarm < until:
                self._new_head_locked()

    def _unclear_locked(self) -> bool:
        """Whether a shutdown's mode leaves jobs to give up, and nobody is about it.

        Who is told so by mistake gives up nothing, wakes everybody who may sleep in a closed scheduler, and asks again:
        a spin. What was given up leaves dead entries in the delayed queue, so the length of that is not the answer.
        """
        core = self.core
        if not core.closed or core.drain == "all" or self.clearing or not core.pending:
            return False
        delayed = len(core.delayed) > core.dead_delayed
        return core.drain == "none" or delayed or (bool(core.waiting) and self.cleared != core.drain)

    def _fell_due_locked(self, now: float) -> bool:
        """Put the schedules that are due into the outbox; True if there are any, for a helper to let proceed.

        It may stand in for the watch: were they left where they are, their time would wake it again at once.
        """
        core = self.core
        if self.stepped or not core.alarms.things:
            return False
        before = len(core.outbox)
        core.ring(now)
        return len(core.outbox) > before

    def read_clock(self) -> float:
        """Return the clock's reading, or the last one if the clock raises."""
        try:
            return self.now()
        except BaseException as error:
            return self.clock_raised(error)

    def clock_raised(self, error: BaseException) -> float:
        """Log a clock's failure and go by the last turn's reading: a bad clock must not stop the pool.

        Called where the exception is handled. What was thrown into the thread and did not come out of the user's code,
        and Ctrl-C on its way through that, is not the clock's: it goes on.
        """
        trace = error.__traceback__
        if not isinstance(error, Exception) and (trace is None or trace.tb_next is None or _locks.on_main_thread()):
            raise
        _log.report(logging.ERROR, "the clock raised %s", _log.describe_error(error), error=error)
        return self.last_reading

    def on_worker(self) -> bool:
        """Say whether the calling thread is one of our workers."""
        worker = current_worker()
        return worker is not None and worker.runtime is self and not worker.detached

    def is_overrun_here(self, job: Job[Any]) -> bool:
        """Say whether the calling thread is in a written-off attempt of this job."""
        worker = current_worker()
        return worker is not None and any(one.job is job for one in list(worker.overrun))

    def _refuse(self) -> NoReturn:
        if self.broken is not None:
            raise BrokenSchedulerError(f"the initializer of scheduler {self.name!r} failed") from self.broken
        if self.exiting:
            raise InterpreterExitRuntimeError(f"cannot schedule new futures: the interpreter of {self.name!r} exits")
        raise SchedulerClosedError(f"cannot schedule new futures: scheduler {self.name!r} was shut down")

    def log_faults(self) -> None:
        """Report what a policy's ``before`` raised outside of a submission."""
        faults = self.core.ranking.faults
        while faults:
            error = faults.pop()
            _log.report(logging.ERROR, "the policy's before() raised %s; submission order was used instead",
                        _log.describe_error(error), error=error)  # fmt: skip

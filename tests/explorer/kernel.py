"""Runs simulated threads one at a time, on virtual time, as a strategy chooses.

A *fiber* is a simulated thread; ``crews`` says what it runs on. One has control at a time, so nothing runs in parallel.
Every operation that another thread could notice calls :meth:`Kernel.point` or :meth:`Kernel.block`, and the strategy
says who goes on.

Time is virtual. *late*: the clock moves only when nothing else can run, so a job that starts late does so for no
reason but a lost alarm. *explore*: that the clock reaches the next deadline is one of the choices, at any point.

A run ends in a :class:`Failure` on a deadlock (every fiber blocked, and no deadline left), after too many steps, or
when an exception leaves a fiber. The fibers that are left are then unwound by :class:`Unwind`.
"""

import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Protocol

from tests.explorer.crews import Crew, StuckError, ThreadCrew

# Points in one schedule: a scenario of ours has a few hundred, at lines a thousand.
STEPS = 5_000


class Unwind(BaseException):
    """Ends a fiber whose run is over."""


class Failure(AssertionError):
    """What a schedule broke."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Clock:
    """Stands last among the candidates for "the clock reaches the next deadline"."""

    name = "clock"
    number = -1


CLOCK = Clock()


class Strategy(Protocol):
    """Chooses who goes on."""

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        """Return an index into at least two candidates; 0 is the plain way.

        ``running``: the first is the fiber that runs now and could go on; to choose another one is a preemption.
        """
        ...

    def asks_at(self, step: int) -> float:
        """Return the first step after this one at which a fiber that runs may be preempted."""
        ...


class Quiet:
    """What a fiber waits for that goes on when no other one can."""

    free = False

    def __repr__(self) -> str:
        return "time"


QUIET = Quiet()
STILL = Quiet()  # likewise, and no deadline is left either
NEVER = Quiet()  # of a fiber that has ended


class Fiber:
    """One simulated thread."""

    __slots__ = ("deadline", "doom", "expired", "free", "inside", "name", "number", "rank", "seat", "thread", "waits")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.seat: Any = None
        self.thread: Any = None  # the simulated Thread
        self.waits: Any = None  # what it is blocked on: something with ``free``
        self.deadline: float | None = None
        self.doom: BaseException | None = None  # thrown into it when it is no longer blocked
        self.expired = False  # its deadline has passed; it goes on without what it waited for
        self.free = False  # it has ended; joiners wait for that
        self.inside = 0  # schedulers' locks that it holds
        self.rank = 0.0  # a strategy's own

    def __repr__(self) -> str:
        return self.name


class Kernel:
    """One run of one scenario under one schedule."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        explore_time: bool = False,
        coarse: bool = False,
        crew: Crew | None = None,
        log: list[str] | None = None,
    ) -> None:
        self.strategy = strategy
        self.explore_time = explore_time
        self.coarse = coarse  # no points after a release, see after()
        self.crew = ThreadCrew() if crew is None else crew
        self.own_crew = crew is None
        self.now = 0.0
        self.steps = 0
        self.asked = 0  # how often there was a choice
        self.unwinding = False  # the run has ended; every fiber that is left raises Unwind at its next operation
        self.over = False  # nothing is simulated any more; what is left of the run may still be collected
        self.failure: Failure | None = None
        self.choices: dict[int, int] = {}  # step -> choice, where that was not the plain one
        self.fibers: list[Fiber] = []  # those that have not ended, in the order of their start
        self.born = 0
        self.numbered = 0  # objects that are told apart by number here, not by address
        self.expected: Callable[[str], bool] = lambda text: False  # whether an error that is logged is no fault
        self.refuses: Callable[[str], bool] = lambda name: False  # whether no thread of this name can be started
        self.leave_to: Callable[[], NoReturn] | None = None  # in the child of a fork: where to end instead of outside
        self.on_fiber: Callable[[], None] | None = None  # called on each fiber's thread at its start ...
        self.off_fiber: Callable[[], None] | None = None  # ... and at its end
        self.log = log  # one line for each point, when a schedule is looked at
        self.quiet = False

    @property
    def quiet(self) -> bool:
        """Whether points are not taken: the scenario builds its stage, or takes it down."""
        return self._quiet

    @quiet.setter
    def quiet(self, quiet: bool) -> None:
        self._quiet = quiet
        if not quiet:
            self.steps = 0  # how the stage was built is not to change the number of a step
        self._look_out()

    def _look_out(self) -> None:
        """Set the step up to which a fiber that runs goes on whatever happens."""
        asks = STEPS if self._quiet else self.strategy.asks_at(self.steps)
        self.asks = self.steps if self.log is not None else min(asks, STEPS)

    # ---------------------------------------------------------------- a run

    def run(self, body: Callable[[], None]) -> Failure | None:
        """Run ``body`` as the first fiber until it ends, and return what broke."""
        self.main = self.spawn(body, "main")
        self._enter(self.main)
        self.unwinding = True
        for fiber in list(self.fibers):
            self._enter(fiber)
        self.over = True
        if self.own_crew:
            self.crew.dismiss()
        return self.failure

    def _enter(self, fiber: Fiber) -> None:
        self.current = fiber
        try:
            self.crew.enter(fiber.seat)
        except StuckError as error:
            told = "\n".join(self.where(one, depth=12) for one in self.fibers)
            raise StuckError(f"{error}: {self.current.name}\n{told}") from None
        if self.leave_to is not None:
            self.leave_to()

    def spawn(self, work: Callable[[], None], name: str) -> Fiber:
        """Make a fiber, which can be chosen from now on."""
        fiber = Fiber(self.born, name)
        self.born += 1
        box = [work]

        def live() -> None:
            try:
                if not self.unwinding:
                    if self.on_fiber is not None:
                        self.on_fiber()
                    box.pop()()
            except Unwind:
                pass
            except BaseException as error:
                self._raised(error, fiber)
            if self.off_fiber is not None:
                self.off_fiber()
            box.clear()  # whatever this drops, it drops it while it has control
            self._end(fiber)

        fiber.seat = self.crew.seat(live)
        self.fibers.append(fiber)
        return fiber

    def _raised(self, error: BaseException, fiber: Fiber) -> None:
        if self.failure is None:
            if isinstance(error, Failure):
                self.failure = error
            else:
                told = "".join(traceback.format_exception(error)).rstrip()
                self.failure = Failure("exception", f"in {fiber.name}: {told}")
        self.unwinding = True
        error.__traceback__ = None  # it knows the whole run

    def _end(self, fiber: Fiber) -> None:
        following = None
        fiber.free = True
        fiber.waits = NEVER
        if not self.unwinding and fiber is not self.main:
            self.steps += 1
            try:
                following = self._next(fiber, running=False)
            except Unwind:
                following = None
        self.fibers.remove(fiber)
        if following is not None:
            self.current = following
        self.crew.leave(fiber.seat, None if following is None else following.seat)

    def forget(self) -> None:
        """Let go of the stage, which holds the scheduler, as whose finalizer holds its locks and so this kernel."""
        del self.expected, self.refuses, self.on_fiber, self.off_fiber

    # ---------------------------------------------------------------- what a fiber calls

    def point(self, what: str, subject: object = None, wanted: Any = None) -> None:
        """Let another fiber go first, if the strategy says so.

        ``wanted`` is free and will be taken then: while it is not, this fiber cannot go on.
        """
        if self.unwinding:
            raise Unwind
        self.steps += 1
        if self.steps < self.asks:
            return
        if self.steps > STEPS:
            self.fail("livelock", f"no end after {STEPS} steps")
        if self._quiet:
            return
        me = self.current
        if self.log is not None:
            self._tell(me, what, subject)
        me.waits = wanted
        following = self._next(me, running=True)
        if following is not me:
            self._give(me, following)
        me.waits = None

    def after(self, what: str, subject: object) -> None:
        """Likewise after something was released.

        What follows up to the next acquisition touches nothing that is guarded by a lock, so for code whose shared
        data is all guarded this point adds nothing to the one before that acquisition: *coarse* leaves it out.
        """
        if not self.coarse:
            self.point(what, subject)
        elif self.log is not None:
            self._tell(self.current, what, subject)

    def block(self, waits: Any, deadline: float | None, what: str = "waits for") -> bool:
        """Stop until ``waits.free``; False if the deadline passed first."""
        if self.unwinding:
            raise Unwind
        me = self.current
        self.steps += 1
        if self.steps > STEPS:
            self.fail("livelock", f"no end after {STEPS} steps")
        if self.log is not None:
            self._tell(me, what, waits)
        me.waits, me.deadline, me.expired = waits, deadline, False
        following = self._next(me, running=False)
        if following is not me:
            self._give(me, following)
        expired, me.waits, me.deadline, me.expired = me.expired, None, None, False
        if me.doom is not None:
            doom, me.doom = me.doom, None
            raise doom
        return not expired

    def settle(self) -> None:
        """Let all other fibers run until none can go on without the clock."""
        self.block(QUIET, None, "waits for quiet")

    def wait_out(self) -> None:
        """Let all other fibers run, and time pass, until nothing at all can happen."""
        self.block(STILL, None, "waits for stillness")

    def sleep(self, seconds: float) -> None:
        """Sleep on virtual time."""
        self.block(Quiet(), self.now + seconds, "sleeps for")

    def fail(self, kind: str, text: str) -> NoReturn:
        """End the run as broken."""
        if self.failure is None:
            self.failure = Failure(kind, text)
        self.unwinding = True
        raise Unwind

    def number(self) -> int:
        """Return the next number for an object."""
        self.numbered += 1
        return self.numbered

    # ---------------------------------------------------------------- who is next

    def _give(self, me: Fiber, following: Fiber) -> None:
        self.current = following
        self.crew.give(me.seat, following.seat)
        if self.unwinding:
            raise Unwind

    def _next(self, me: Fiber, running: bool) -> Fiber:
        while True:
            able = [
                fiber
                for fiber in self.fibers
                if (waits := fiber.waits) is None or waits.free or fiber.expired  # one that has ended waits for ever
            ]
            if len(able) > 1:
                # In turn: those after this one, in the order of their start, then those before it.
                number = me.number
                candidates: list[Any] = [me] if running else []
                candidates += [fiber for fiber in able if fiber.number > number]
                candidates += [fiber for fiber in able if fiber.number < number]
                if not running and me in able:
                    candidates.append(me)
            elif able:
                candidates = able
            else:
                patient = self._patient(QUIET)
                if patient is None:
                    if self._advance():
                        continue
                    patient = self._patient(STILL)
                if patient is None:
                    self.fail("deadlock", "every thread waits\n" + "\n".join(map(self.where, self.fibers)))
                patient.expired = True
                return patient
            if self._quiet:
                return candidates[0]
            if self.explore_time and self._waiting():
                candidates.append(CLOCK)
            if len(candidates) == 1:
                return candidates[0]
            self.asked += 1
            choice = self.strategy.choose(self.steps, candidates, running)
            picked = candidates[choice]
            if choice:
                self.choices[self.steps] = choice
                if self.log is not None:
                    self.log[-1] += f"   <- {self.steps}.{choice}: {picked.name}"
            self._look_out()
            if picked is not CLOCK:
                return picked
            self._advance()
            self.steps += 1  # no two choices have one number

    def _patient(self, quiet: Quiet) -> Fiber | None:
        return next((fiber for fiber in self.fibers if fiber.waits is quiet), None)

    def _advance(self) -> bool:
        """Move the clock to the next deadline; False if there is none."""
        waiting = self._waiting()
        if not waiting:
            return False
        self.now = max(self.now, min(deadline for deadline, _ in waiting))
        for deadline, fiber in waiting:
            if deadline <= self.now:
                fiber.expired = True
        return True

    def _waiting(self) -> list[tuple[float, Fiber]]:
        """Return who waits for a deadline; of one that can go on already it is no event any more."""
        return [
            (fiber.deadline, fiber)
            for fiber in self.fibers
            if fiber.deadline is not None and not fiber.expired and not fiber.waits.free
        ]

    # ---------------------------------------------------------------- telling

    def where(self, fiber: Fiber, depth: int = 3) -> str:
        """Say where a fiber stands."""
        frame = sys._getframe() if fiber is self.current else self.crew.frame(fiber.seat)
        places = []
        for place in _outside(frame):
            places.append(place)
            if len(places) == depth:
                break
        waits = "" if fiber.waits is None else f" on {fiber.waits!r}"
        until = "" if fiber.deadline is None else f" until {fiber.deadline:g}"
        return f"  {fiber.name}{waits}{until}: {' < '.join(places) or 'not started'}"

    def _tell(self, me: Fiber, what: str, subject: object) -> None:
        assert self.log is not None
        place = next(iter(_outside(sys._getframe())), "")
        self.log.append(f"{self.now:7.3f} {me.name:<14} {what} {'' if subject is None else subject}  {place}")


def _outside(frame: FrameType | None) -> list[str]:
    """Return the places on a stack that are neither the explorer's machinery nor the standard library's."""
    found = []
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if not path.endswith(
            (
                "/explorer/kernel.py",
                "/explorer/primitives.py",
                "/explorer/lines.py",
                "/explorer/crews.py",
                "threading.py",
            )
        ):
            found.append(f"{path.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found

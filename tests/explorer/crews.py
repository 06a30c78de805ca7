"""What fibers run on: real threads of which one at a time holds the baton, or greenlets where those are installed.

Both keep their seats from one schedule to the next. Greenlets are several times faster, most of all on a busy machine,
for no switch goes through the operating system. Threads are needed where lines are traced, and are checked against
greenlets by a test: the same schedule must take the same steps on both.
"""

import _thread
import contextvars
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

try:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ModuleNotFoundError  # importing it might switch the GIL on
    import greenlet
except ModuleNotFoundError:  # an optional package; threads do
    greenlet = None  # type: ignore[assignment]

Work = Callable[[], None]


class StuckError(Exception):
    """A fault of the explorer itself: a fiber blocked for real."""


class Crew(Protocol):
    """Seats for fibers, and the ways in which control moves between them."""

    def seat(self, work: Work) -> Any:
        """Return a seat on which ``work`` begins once control is given to it."""
        ...

    def enter(self, seat: Any) -> None:
        """From outside: give control to a seat and wait until it comes back."""
        ...

    def give(self, mine: Any, following: Any) -> None:
        """From a seat: give control to another one and wait until somebody gives it back."""
        ...

    def leave(self, mine: Any, following: Any) -> None:
        """At the end of the work: give up the seat, and control to another one or, with None, to the outside."""
        ...

    def frame(self, seat: Any) -> FrameType | None:
        """Return where a seat that has no control stands."""
        ...

    def dismiss(self) -> None:
        """Let go of the seats."""
        ...


class ThreadSeat:
    """A real thread."""

    __slots__ = ("baton", "ident", "work")

    def __init__(self) -> None:
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self.work: list[Work | None] = []


class ThreadCrew:
    """Real threads; ``locals`` are the thread-local objects that a new fiber must find empty."""

    # Real seconds after which a fiber that has control is taken for blocked.
    PATIENCE = 20.0

    def __init__(self, locals: list[Any] = []) -> None:  # noqa: B006 -- read only
        self.locals = locals
        self.resting: list[ThreadSeat] = []
        self.finished = _thread.allocate_lock()
        self.finished.acquire()

    def seat(self, work: Work) -> ThreadSeat:
        if self.resting:
            seat = self.resting.pop()
        else:
            seat = ThreadSeat()
            _thread.start_new_thread(self._serve, (seat,))
        seat.work.append(work)
        return seat

    def _serve(self, seat: ThreadSeat) -> None:
        seat.ident = _thread.get_ident()
        while True:
            seat.baton.acquire()
            work = seat.work.pop()
            if work is None:
                return
            for one in self.locals:
                one.__dict__.clear()
            contextvars.Context().run(work)
            work = None

    def enter(self, seat: ThreadSeat) -> None:
        seat.baton.release()
        if not self.finished.acquire(timeout=self.PATIENCE):
            raise StuckError("a fiber neither ended nor reached a point")

    def give(self, mine: ThreadSeat, following: ThreadSeat) -> None:
        following.baton.release()
        mine.baton.acquire()

    def leave(self, mine: ThreadSeat, following: ThreadSeat | None) -> None:
        self.resting.append(mine)
        # From here on this thread touches nothing of the run.
        (self.finished if following is None else following.baton).release()

    def frame(self, seat: ThreadSeat) -> FrameType | None:
        return sys._current_frames().get(seat.ident)

    def dismiss(self) -> None:
        while self.resting:
            seat = self.resting.pop()
            seat.work.append(None)
            seat.baton.release()


class GreenletSeat:
    """A greenlet, with the thread's local values as they are for it."""

    __slots__ = ("greenlet", "kept", "work")

    def __init__(self) -> None:
        self.greenlet: Any = None
        self.work: list[Work] = []
        self.kept: list[dict[str, Any]] = []


class GreenletCrew:
    """Greenlets of the calling thread."""

    def __init__(self, locals: list[Any] = []) -> None:  # noqa: B006 -- read only
        self.locals = locals
        self.resting: list[GreenletSeat] = []
        self.outside: Any = None
        self.following: Any = None

    def seat(self, work: Work) -> GreenletSeat:
        if self.resting:
            seat = self.resting.pop()
        else:
            seat = GreenletSeat()
            seat.greenlet = greenlet.greenlet(lambda: self._serve(seat))
        seat.work.append(work)
        return seat

    def _serve(self, seat: GreenletSeat) -> None:
        while True:
            for one in self.locals:
                one.__dict__.clear()
            work = seat.work.pop()
            contextvars.Context().run(work)
            work = None  # type: ignore[assignment]
            self.following.switch()

    def enter(self, seat: GreenletSeat) -> None:
        self.outside = greenlet.getcurrent()
        seat.greenlet.switch()

    def give(self, mine: GreenletSeat, following: GreenletSeat) -> None:
        mine.kept = [dict(one.__dict__) for one in self.locals]
        following.greenlet.switch()
        for one, values in zip(self.locals, mine.kept, strict=True):
            one.__dict__.clear()
            one.__dict__.update(values)

    def leave(self, mine: GreenletSeat, following: GreenletSeat | None) -> None:
        self.resting.append(mine)
        self.following = self.outside if following is None else following.greenlet

    def frame(self, seat: GreenletSeat) -> FrameType | None:
        found: FrameType | None = seat.greenlet.gr_frame
        return found

    def dismiss(self) -> None:
        self.resting.clear()

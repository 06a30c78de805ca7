"""How foreign code breaks into a thread: as a finalizer, a weakref's callback, a signal handler, or a plain call.

For each there is a function that makes of an action one that comes in this way. They must behave alike; what differs
is what Python does with an exception of the action (only a handler's comes out), and who else runs between.
"""

import gc
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any

Action = Callable[[], object]


class _Finalized:
    def __init__(self, action: Action) -> None:
        self.action = action
        self.cycle = self

    def __del__(self) -> None:
        self.action()


class _Plain:
    cycle: Any = None


def by_finalizer(action: Action) -> Action:
    """By the collector, which finds a cycle with a ``__del__`` in it."""

    def strike() -> None:
        _Finalized(action)
        gc.collect(0)

    return strike


def by_weakref(action: Action) -> Action:
    """By the collector, which finds a cycle that somebody watches."""

    def strike() -> None:
        thing = _Plain()
        thing.cycle = thing
        reference = weakref.ref(thing, lambda _: action())
        del thing
        gc.collect(0)
        while reference() is not None:  # another collection came between, and it is not among the youngest any more
            gc.collect()

    return strike


def by_signal(action: Action) -> Action:
    """By a signal, whose handler runs at once; on the main thread only."""

    def handle(*_: object) -> None:
        action()

    def strike() -> None:
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)

    return strike


VEHICLES: dict[str, Callable[[Action], Action]] = {
    "call": lambda action: action,
    "finalizer": by_finalizer,
    "weakref": by_weakref,
    "signal": by_signal,
}


def loud() -> None:
    """Have an exception that a finalizer or a weakref's callback lets out end the process with a traceback."""
    import os
    import traceback

    def hook(info: Any) -> None:
        traceback.print_exception(info.exc_type, info.exc_value, info.exc_traceback)
        sys.stderr.flush()
        os._exit(71)

    sys.unraisablehook = hook

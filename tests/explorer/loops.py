"""An event loop of asyncio on simulated threads: its own code, with the wait for something to happen simulated.

A loop waits in one place: in its selector, until a descriptor is ready, a timer is due, or another thread has written
to it. Here there are no descriptors, so what is left is a flag that other threads raise and a deadline on virtual time.

What runs on a loop runs on a real thread (see ``crews``): which loop runs, and which of its tasks, is kept by thread.
"""

import asyncio
import asyncio.base_events
from collections.abc import Sequence
from typing import Any

from tests.explorer import primitives


class SimSelector:
    """Waits for the flag."""

    def __init__(self) -> None:
        self.kernel = primitives.active
        self.free = False  # somebody has written to it

    def __repr__(self) -> str:
        return "selector"

    def select(self, timeout: float | None = None) -> Sequence[Any]:
        kernel = self.kernel
        if kernel.over:
            return ()
        kernel.point("selects", self)
        if not self.free and (timeout is None or timeout > 0):
            kernel.block(self, None if timeout is None else kernel.now + timeout, "selects")
        self.free = False
        return ()

    def wake(self) -> None:
        self.free = True
        if not (self.kernel.over or self.kernel.unwinding):
            self.kernel.after("wrote to", self)


class SimLoop(asyncio.base_events.BaseEventLoop):
    """``asyncio.SelectorEventLoop`` without descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = SimSelector()
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return primitives.monotonic()

    def _process_events(self, events: Sequence[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        self._selector.wake()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        kernel = self._selector.kernel
        if not (kernel.over or kernel.unwinding):
            super().call_exception_handler(context)

    def __del__(self) -> None:  # a run that is broken off leaves its loops open
        return

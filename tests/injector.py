"""Strikes once, at a chosen point of an operation, on the operation's own thread.

What a signal, a finalizer or a Ctrl-C does, but at every point in turn rather than by luck. Two sets of points:

*Lines*: each line event. More than CPython can do, which is fine for a handler that calls back.

*Exact*: where CPython 3.11 to 3.13 look whether something is pending, namely on entry to a function, after a call of
C code and on a backward jump. Only there may an exception be raised: anywhere else, at the exit of a ``with`` for
instance, it would leave a lock held that no real Ctrl-C can leave held.
"""

import dis
import functools
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import threadsched

_WATCHED = (Path(threadsched.__file__).parent.as_posix() + "/", "/sortedcontainers/")
# Here a look and the store that relies on it stand on neighbouring lines without a call or an allocation in between.
# No signal, finalizer or Ctrl-C can come there, so these functions are struck at exact points only.
_ATOMIC = {
    "LazyQueue._insert", "LazyQueue._take", "Core._promote", "Core.promote", "Core.rerank", "Core.turn",
    "Core.enter_many", "Runtime.submit",
}  # fmt: skip
_CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}


class Injector:
    """Counts the points that the traced thread passes, and calls `strike` at number `at`."""

    def __init__(self, strike: Callable[[], object], at: int, *, exact: bool) -> None:
        self.strike = strike
        self.at = at
        self.exact = exact
        self.passed = 0
        self.struck = False
        self.where = ""
        self.places: list[tuple[str, int]] = []  # of the points passed so far, by function and line or instruction
        self._calls = 0  # of functions in Python, watched or not

    def run(self, operation: Callable[[], Any]) -> Any:
        """Run the operation on this thread under observation and return what it returns."""
        gc.disable()  # or a finalizer's own code would be struck at random
        before = sys.gettrace()  # that of the coverage, perhaps
        sys.settrace(self.on_call)
        try:
            return operation()
        finally:
            sys.settrace(before)
            gc.enable()

    def on_call(self, frame: FrameType, event: str, _: object) -> Any:
        self._calls += 1
        code = frame.f_code
        path = code.co_filename.replace("\\", "/")
        if self.struck or not any(part in path for part in _WATCHED):
            return None
        if not self.exact and code.co_qualname not in _ATOMIC:
            return self._on_line
        on_opcode = self._make_on_opcode(code)
        trace_opcodes(frame, on_opcode)
        self._pass(frame)
        return on_opcode

    def _on_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._pass(frame)
        return self._on_line

    def _make_on_opcode(self, code: CodeType) -> Any:
        names, guards = _layout(code)
        before = calls = -1

        def on_opcode(frame: FrameType, event: str, _: object) -> Any:
            nonlocal before, calls
            if event == "opcode" and not self.struck:
                here = frame.f_lasti
                name = names.get(before, "")
                # The exception of an interrupt belongs to the instruction that has just ended. We raise at the next
                # one, so where that is guarded by another handler (the call was the last thing inside a `with`), the
                # injection would skip the handler that a real interrupt runs: not a point. Nor is the return from a
                # function in Python, where nothing is looked at.
                point = guards.get(before) == guards.get(here) and (
                    (name in _CALLS and calls == self._calls) or (name.startswith("JUMP_BACKWARD") and here < before)
                )
                before, calls = here, self._calls
                if point:
                    self._pass(frame)
            return on_opcode

        return on_opcode

    def _pass(self, frame: FrameType) -> None:
        if self.struck:
            return
        self.passed += 1
        code = frame.f_code
        self.places.append((code.co_qualname, frame.f_lasti if self.exact else frame.f_lineno))
        if self.passed == self.at:
            self.struck = True
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            leave_opcodes(frame)
            self.strike()


def trace_opcodes(frame: FrameType, trace: Callable[..., Any]) -> None:
    """At the call of a function, have its instructions traced and not its lines.

    The trace function is set here although the call's event sets it soon: 3.13 looks at the last line only whether
    there is one. (3.12 traces no instruction before the second `settrace` of a process. To make it do so sooner ends
    some processes: it rewrites code that other threads are in.)
    """
    frame.f_trace, frame.f_trace_lines = trace, False
    frame.f_trace_opcodes = True


def leave_opcodes(frame: FrameType | None) -> None:
    """Before a strike, have no frame of this stack traced by instructions any more.

    An exception out of a trace function ends the thread's tracing, and 3.12.1 crashes where it then comes to a frame
    that asked for instructions.
    """
    while frame is not None:
        if frame.f_trace_opcodes:
            frame.f_trace_opcodes = False
        frame = frame.f_back


def numbers_of(places: list[tuple[str, int]]) -> list[int]:
    """Return the numbers of the points that are worth a strike: each place's first two passes and its last.

    A loop over a hundred jobs passes the same places a hundred times.
    """
    passes: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(places, 1):
        passes.setdefault(place, []).append(number)
    return sorted({number for numbers in passes.values() for number in (*numbers[:2], numbers[-1])})


@functools.cache
def _layout(code: CodeType) -> tuple[dict[int, str], dict[int, int]]:
    """Return, by offset, the instructions' names and the handler that guards each."""
    bytecode = dis.Bytecode(code)
    names = {instruction.offset: instruction.opname for instruction in bytecode}
    guards = {}
    for entry in bytecode.exception_entries:  # type: ignore[attr-defined]  # there since 3.11
        for offset in range(entry.start, entry.end, 2):
            guards[offset] = entry.target
    return names, guards


def bounded(action: Callable[[], Any], what: str, seconds: float = 5.0) -> Any:
    """Call the action on another thread; end the process with all stacks if it does not come back."""
    import faulthandler
    import os

    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(action()), daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        sys.stderr.write(f"stuck: {what}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        os._exit(70)
    if not answers:
        raise AssertionError(f"failed: {what}")
    return answers[0]

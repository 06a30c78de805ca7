"""Where threads stand, read without a risk to the process.

A stack is that of another thread, which may be running. `read` looks at all that are asked for at once, and says
nothing of a thread rather than raise: who asks has a job to settle.

The plain way is to follow ``f_back`` from `sys._current_frames`. On Python 3.11 that can end the process. A running
thread's frames get their objects when somebody asks for them; to make one may start a garbage collection; a finalizer
that lets other threads run lets the watched one return, out of the very frame whose object is being made. What follows
is a read or a write of memory that is something else by then: a segmentation fault, or an object of the wrong type.
`sys._current_frames` alone does that too, and worse: it collects while it holds the lock of all threads' states, so
that a thread which starts or ends meanwhile stops the whole process for good. Since 3.12 a collection waits until the
interpreter is between two instructions, and neither can happen.

So on 3.11 the walk is done *inside* a collection, during which no other starts, whatever the threads do: the collector
tells its callbacks of its beginning, and one of them walks. The youngest generation is enough, which is what the
collector goes through at every few hundred objects anyway. A collector that is turned off is left alone, and none can
be started while another thread collects: then there is no stack. Rejected were

- to turn the collector off for the walk: it is the process's, and whoever turns it off or on meanwhile would be
  overruled;
- `faulthandler`, which writes the stacks of all threads in one call that makes no object and keeps the GIL: on 3.11 it
  crashes on a thread that another library has started and that is just entering the interpreter (seen within seconds
  where such threads come and go all the time). It also sees no more than the 100 threads that started last.

Without a GIL a walk reads what the other thread is changing, whatever the collector does. There `faulthandler` is the
way: from 3.14 on it stops all threads for its time. Before that no way is known to be safe.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from types import FrameType
from typing import IO

from threadsched._locks import GIL

Place = tuple[str, int, str]  # file, line, function

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+) ")
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def read(idents: Iterable[int]) -> dict[int, list[Place]]:
    """Return where these threads stand, by ident, each from the outermost frame inwards; reads no source.

    A thread of which nothing can be said, for whatever reason, is not among them.
    """
    wanted = set(idents)
    try:
        return _read(wanted) if wanted else {}
    except Exception:  # no file to be had, no memory: a job without its stack is better than one that is not settled
        return {}


def _walk(wanted: set[int]) -> dict[int, list[Place]]:
    found = sys._current_frames()
    frames: list[tuple[int, FrameType | None]] = [(ident, found[ident]) for ident in wanted if ident in found]
    found.clear()
    stacks: dict[int, list[Place]] = {}
    while frames:  # taken out one by one: if our own frame is among them, to hold it would be a cycle
        ident, frame = frames.pop()
        places: list[Place] = []
        while frame is not None:
            places.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
            frame = frame.f_back
        stacks[ident] = places[::-1]
    return stacks


def _walk_in_collection(wanted: set[int]) -> dict[int, list[Place]]:
    """Walk while no collection can start, because one is going on; no stack if the collector is off or at work."""
    stacks: dict[int, list[Place]] = {}
    raised: list[BaseException] = []
    reader = get_ident()

    def begun(phase: str, _: object) -> None:
        if phase != "start" or get_ident() != reader:  # other threads collect too, before ours begins
            return
        try:
            stacks.update(_walk(wanted))
        except BaseException as error:  # the collector would print it, and go on: not with a Ctrl-C
            raised.append(error)

    if not gc.isenabled():
        return stacks
    gc.callbacks.append(begun)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(begun)
    if raised:
        raise raised.pop()
    return stacks


def _dump(wanted: set[int]) -> dict[int, list[Place]]:
    with _scratch() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode("ascii", "replace")
    return _parse(text, wanted)


def _scratch() -> IO[bytes]:
    """Open a file without a name, in memory if possible: no thread runs during the dump, and a disk may be slow."""
    try:
        # The opener leaves no moment at which the descriptor is nobody's.
        return open("stacks", "w+b", buffering=0, opener=lambda name, _: os.memfd_create(name))
    except (AttributeError, OSError):  # not Linux, or forbidden
        import tempfile

        return tempfile.TemporaryFile(buffering=0)


def _parse(text: str, wanted: set[int]) -> dict[int, list[Place]]:
    """Return the stacks of these threads out of a dump; whatever else is in it is passed over."""
    stacks: dict[int, list[Place]] = {}
    places: list[Place] = []
    for line in text.split("\n"):
        if thread := _THREAD.match(line):
            places = []
            if (ident := int(thread[1], 16)) in wanted:
                stacks[ident] = places
        elif frame := _FRAME.fullmatch(line):
            file, number, function = frame.groups()
            name = "???" if file is None else _unescape(file)
            places.append((name, 0 if number == "???" else int(number), _unescape(function)))
    return {ident: stacks[ident][::-1] for ident in stacks if stacks[ident]}


def _unescape(text: str) -> str:
    """Give a name back the characters that a dump writes as escapes.

    A backslash is written as it is, so a name can look like an escape. What would stand for printable ASCII is none,
    for that is written plainly; of the rest the likelier is taken.
    """

    def character(escape: re.Match[str]) -> str:
        code = int(escape[escape.lastindex or 0], 16)
        return escape[0] if 32 <= code <= 126 or code > sys.maxunicode else chr(code)

    return _ESCAPE.sub(character, text)


def _pass(wanted: set[int]) -> dict[int, list[Place]]:
    return {}


_read: Callable[[set[int]], dict[int, list[Place]]]
if not GIL:
    _read = _dump if sys.version_info >= (3, 14) else _pass
elif sys.version_info < (3, 12):
    _read = _walk_in_collection
else:
    _read = _walk

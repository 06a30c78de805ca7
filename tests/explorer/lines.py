"""Makes lines of chosen files points."""

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from tests.explorer.kernel import Kernel, Unwind

EVERYWHERE = "everywhere"
OUTSIDE = "outside"  # while no scheduler's lock is held: inside, what is read and written is guarded by it


class Lines:
    """Traces the fibers of one run; a fiber's thread is traced from its start to its end, and no other thread is."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.chosen: dict[str, str | None] = {}

    def watch(self, kernel: Kernel) -> None:
        """Trace the fibers of this run."""
        self.kernel = kernel
        kernel.on_fiber = lambda: sys.settrace(self._call)
        kernel.off_fiber = lambda: sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if name not in self.chosen:
            self.chosen[name] = self.files.get(name.replace("\\", "/").rpartition("/")[2])
        where = self.chosen[name]
        if where is None:
            return None
        return self._line if where is EVERYWHERE else self._line_outside

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not self.kernel.unwinding:
            try:
                self.kernel.point("line")
            except Unwind:
                sys.settrace(None)  # it would be called again for each frame that is unwound
                raise
        return self._line

    def _line_outside(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not self.kernel.current.inside:
            self._line(frame, event, None)
        return self._line_outside

"""Makes every line of chosen files a point."""

import sys
from types import FrameType
from typing import Any

from tests.explorer.kernel import Kernel, Unwind


class Lines:
    """Traces the fibers of one run; a fiber's thread is traced from its start to its end, and no other thread is."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.endings = tuple(f"/{name}" for name in files)
        self.chosen: dict[str, bool] = {}

    def watch(self, kernel: Kernel) -> None:
        """Trace the fibers of this run."""
        self.kernel = kernel
        kernel.on_fiber = lambda: sys.settrace(self._call)
        kernel.off_fiber = lambda: sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        chosen = self.chosen.get(name)
        if chosen is None:
            chosen = self.chosen[name] = name.replace("\\", "/").endswith(self.endings)
        return self._line if chosen else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not self.kernel.unwinding:
            try:
                self.kernel.point("line")
            except Unwind:
                sys.settrace(None)  # it would be called again for each frame that is unwound
                raise
        return self._line

"""Live progress of the demonstration: one line that rewrites itself on a terminal, plain lines elsewhere.

In here: the line itself (`progress_line`, a pure function) and when it is written (`Progress`). The summary
at the end is in `_demo_report`.
"""

import time
from dataclasses import dataclass

from threadsched._terminal import CLEAR, Terminal

# Seconds between two lines where they cannot be rewritten.
_PLAIN_INTERVAL = 1.0

# Columns of the bar; with fewer than the second it says nothing.
_BAR = 24
_LEAST_BAR = 6


@dataclass(frozen=True)
class Figures:
    """How far a run has come: jobs by what they are doing, retries so far, seconds since it began."""

    elapsed: float
    done: int
    running: int
    waiting: int
    retries: int

    @property
    def rate(self) -> float:
        """Jobs done a second; 0 before the first."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until all are done, if it goes on like this; None before the first is done."""
        return (self.running + self.waiting) / self.rate if self.rate else None


class Progress:
    """Shows how a run is getting on; used by one thread.

    On a terminal the line is rewritten at every `show`; elsewhere a line is written about once a second.
    """

    def __init__(self, terminal: Terminal) -> None:
        """Show progress on this terminal."""
        self._terminal = terminal
        self._next_line = 0.0
        self._open = False

    def show(self, figures: Figures) -> None:
        """Show the figures: now on a terminal, elsewhere if it is time for a line."""
        if self._terminal.live:
            line = progress_line(figures, width=self._terminal.width - 1, unicode=self._terminal.unicode)
            self._terminal.write(CLEAR + line)
            self._open = True
        elif (now := time.monotonic()) >= self._next_line:
            self._next_line = now + _PLAIN_INTERVAL
            self._terminal.write(progress_line(figures) + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Write a line of its own, above the progress line if there is one."""
        text = self._terminal.style(style, text) if style else text
        self._terminal.write((CLEAR if self._open else "") + text + "\n")

    def finish(self, figures: Figures) -> None:
        """Show the final figures, and leave them standing."""
        self._next_line = 0.0
        self.show(figures)
        self._next_line = 0.0
        if self._open:
            self._terminal.write("\n")
            self._open = False

    def abandon(self) -> None:
        """Remove a half-finished line, before something else is printed."""
        if self._open:
            self._terminal.write(CLEAR)
            self._open = False


def progress_line(figures: Figures, *, width: int | None = None, unicode: bool = True) -> str:
    """Return one line: how many jobs are done, running and waiting, the retries, the rate and the time left.

    Args:
        figures: What to show.
        width: Columns that the line may take, with a bar if there is room for one; None: no limit, and the
            time that has passed instead of a bar.
        unicode: Whether the bar may be drawn with block characters.
    """
    total = figures.done + figures.running + figures.waiting
    eta = "-" if figures.eta is None else f"{figures.eta:.1f} s"
    text = (
        f" {figures.done:>4}/{total} done  {figures.running:>2} running  {figures.waiting:>4} waiting"
        f"  {figures.retries:>3} retries  {figures.rate:>3.0f}/s  ETA {eta:>6}"
    )
    if width is None:
        return f"  {figures.elapsed:4.1f} s {text}"
    room = min(_BAR, width - len(text) - len("   "))
    if room >= _LEAST_BAR:
        text = f"  {_bar(figures.done / total if total else 1.0, room, unicode)} {text}"
    return text[:width]


def _bar(share: float, cells: int, unicode: bool) -> str:
    """Return a bar of which `share`, from 0 to 1, is filled."""
    full, empty = ("█", "░") if unicode else ("#", ".")
    filled = int(share * cells)
    return full * filled + empty * (cells - filled)

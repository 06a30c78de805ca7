"""What looks on while a stress run is under way: the audit of counts and structures, the log, and the memory."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from threadsched import Stats
from threadsched._errors import InvariantError

if TYPE_CHECKING:
    from threadsched._stress import Run

# Seconds between two looks at the counts, and looks between two audits of the structures, which hold the lock longer.
_LOOK = 0.002
_AUDIT = 25

# Seconds for which the run's main thread, which never waits for long, may be held up: far beyond what a busy machine
# does.
HELD_UP = 120.0

# What a soak allows. The fitted line may rise by so many bytes a second, and beside that by an allowance for how
# coarsely an allocator takes and returns memory, which a short run cannot tell from a rise. In ten minutes at ten
# thousand jobs a second both together are less than a byte a job: an object that is left behind by every sixtieth job
# shows.
SLOPE_BOUND = 4096.0
ALLOWANCE = 2 * 2**20

# The share of a run in which memory may rise: pools, caches and the allocator's arenas find their size.
WARM_UP = 0.2


def impossible(stats: Stats, before: Stats, accepted: int, begun: int, workers: float) -> str:
    """Say what is impossible about counts, or return an empty string.

    Args:
        stats: The counts.
        before: Those of an earlier look.
        accepted: Submissions that had returned before the look.
        begun: Submissions that had begun after it.
        workers: How many jobs may run at once, written-off ones aside.
    """
    ended = stats.done + stats.failed + stats.cancelled
    if stats.submitted != stats.pending + stats.running + ended:
        return "submitted is not pending + running + done + failed + cancelled"
    if stats.pending != stats.delayed + stats.ready + stats.waiting:
        return "pending is not delayed + ready + waiting"
    if not accepted <= stats.submitted <= begun:
        return f"at least {accepted} and at most {begun} jobs had been accepted"
    if stats.running > workers + stats.lost_workers:
        return f"more run than there are workers, {workers:g}, and threads that were written off"
    if min(stats.pending, stats.running, stats.delayed, stats.ready, stats.waiting, stats.idle) < 0:
        return "a count is negative"
    for name in ("submitted", "done", "failed", "cancelled", "retries"):
        if getattr(stats, name) < getattr(before, name):
            return f"{name} has become less: {getattr(before, name)} before"
    return ""


class Auditor:
    """A thread that compares `stats()` with what the submitters know, and calls `check()`, all the time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._main, name="stress auditor", daemon=True)
        self.looks = self.audits = 0

    def __enter__(self) -> Auditor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _main(self) -> None:
        before = self._run.scheduler.stats()
        while not self._over.wait(_LOOK):
            try:
                before = self.look(before)
                if self.looks % _AUDIT == 0:
                    self._run.scheduler.check()
                    self.audits += 1
            except InvariantError as error:
                self._run.broke(f"check() found that {error}")
                return
            except Exception as error:
                self._run.broke(f"looking on met {type(error).__name__}: {error}", error)
                return

    def look(self, before: Stats) -> Stats:
        """Look once, and break the run if the counts are impossible; return them."""
        run = self._run
        accepted = run.accepted()
        stats = run.scheduler.stats()
        # A job that overran counts as running until it is settled, and its thread may be back by then.
        workers = math.inf if run.settings.timeout else run.settings.workers
        wrong = impossible(stats, before, accepted, run.begun(), workers)
        if wrong:
            run.broke(f"stats() says what cannot be: {wrong}; {stats}")
        self.looks += 1
        return stats


class Watchdog:
    """A thread that ends the process if the run itself is held up, as by a lock of the scheduler's that is never free.

    It asks the scheduler nothing, and neither waits nor cleans up: whoever is held up could not.
    """

    def __init__(self, repeat: str, limit: float) -> None:
        self._repeat = repeat
        self._limit = limit
        self._beat = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._main, name="stress watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._beat.set()
        self._thread.join()

    def beat(self) -> None:
        """Say that the run goes on."""
        self._beat.set()

    def _main(self) -> None:
        while self._beat.wait(self._limit):
            self._beat.clear()
            if self._over:
                return
        what = f"the run has been held up for {self._limit:g} s, as by a lock that is never free"
        print(f"\nBROKEN: {what}\n{self._repeat}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


class LogTrap(logging.Handler):
    """Keeps what the scheduler logs off the screen; an error among it is a broken promise, for all of ours are seen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings = 0
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())
        else:
            self.warnings += 1

    @contextmanager
    def set(self) -> Iterator[LogTrap]:
        """Stand in for all other handlers of the scheduler's logger."""
        logger = logging.getLogger("threadsched")
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield self
        finally:
            logger.removeHandler(self)
            logger.propagate = propagated


# ---------------------------------------------------------------- memory


def resident() -> float | None:
    """Return how many bytes of memory this process has now; None where nobody says."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True, text=True)
        return float(said.stdout) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def peak() -> float | None:
    """Return how many bytes of memory this process had at most; None where nobody says."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most * 1024)


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much the least-squares line through (x, y) rises for each unit of x; 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    middle_x = sum(x for x, _ in samples) / len(samples)
    middle_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - middle_x) ** 2 for x, _ in samples)
    return sum((x - middle_x) * (y - middle_y) for x, y in samples) / spread if spread else 0.0


class Memory:
    """Samples of the process's memory, one a round, at which nothing is pending and nothing is kept."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        # Of numbers, not of objects: what a soak keeps of each round must not look like a leak itself.
        self._times = array("d")
        self._sizes = array("d")
        self.latest: float | None = None

    def sample(self) -> None:
        """Take one."""
        self.latest = resident()
        if self.latest is not None:
            self._times.append(time.monotonic() - self._began)
            self._sizes.append(self.latest)

    @property
    def samples(self) -> list[tuple[float, float]]:
        """All samples: (seconds since the beginning, bytes)."""
        return list(zip(self._times, self._sizes, strict=True))

    @property
    def judged(self) -> list[tuple[float, float]]:
        """The samples after the warm-up."""
        last = self._times[-1] if self._times else 0.0
        return [sample for sample in self.samples if sample[0] >= WARM_UP * last]

    def verdict(self) -> tuple[bool, str]:
        """Say whether the memory is flat, and how it was found."""
        judged = self.judged
        if len(judged) < 3:
            return False, "unknown: fewer than three samples"
        rise, span = slope(judged), judged[-1][0] - judged[0][0]
        most = SLOPE_BOUND * span + ALLOWANCE
        text = (
            f"{rise / 1024:+.2f} KiB/s over {span:.0f} s, {rise * span / 2**20:+.2f} MiB"
            f" (at most {most / 2**20:.2f}: {SLOPE_BOUND / 1024:g} KiB/s and {ALLOWANCE / 2**20:g} MiB)"
        )
        return rise * span <= most, text


def new_threads(before: set[Any], patience: float) -> list[str]:
    """Return the names of the living threads that were not there before; waits up to `patience` seconds for them."""
    deadline = time.monotonic() + patience
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        left[0].join(min(remaining, 0.1))
    return sorted(thread.name for thread in left)

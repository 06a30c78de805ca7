"""What a stress run prints: the account of all jobs, the table at the end, and the line that shows it at work."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

from threadsched import JobStatus, Stats
from threadsched._stress_plan import KIND_NAMES, Kind
from threadsched._terminal import CLEAR, Terminal

# Buckets of a histogram for each doubling: a percentile is exact to 3 %.
_FINE = 24

# Seconds, and the width of the first bucket.
_LEAST = 1e-6

# Seconds between two lines where they cannot be rewritten: the second from a minute on.
_PLAIN_INTERVALS = (1.0, 10.0)


class Histogram:
    """Counts of durations in buckets that grow with the duration, so its size does not grow with their number."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total = 0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[max(0, math.ceil(math.log2(max(seconds, _LEAST) / _LEAST) * _FINE))] += 1
        self.total += 1
        self.most = max(self.most, seconds)

    def percentile(self, share: float) -> float:
        """Return the duration that this share of all does not exceed; NaN without any."""
        wanted = share * self.total
        for bucket in sorted(self._counts):
            wanted -= self._counts[bucket]
            if wanted <= 0:
                return min(_LEAST * 2 ** (bucket / _FINE), self.most)
        return math.nan


class Account:
    """What became of all jobs of a run."""

    def __init__(self) -> None:
        self._ended: Counter[tuple[Kind, JobStatus]] = Counter()
        self._starts: Counter[Kind] = Counter()
        self._delayed: Counter[JobStatus] = Counter()
        self._starts_delayed = 0
        self.judged = 0  # starts whose place in the order was judged
        self.lateness = Histogram()
        self.lateness_delayed = Histogram()

    def enter(self, kind: Kind, status: JobStatus, starts: int, *, delayed: bool) -> None:
        """Enter one job that has ended."""
        self._ended[kind, status] += 1
        self._starts[kind] += starts
        if delayed:
            self._delayed[status] += 1
            self._starts_delayed += starts

    def count(self, status: JobStatus) -> int:
        """Return how many jobs ended so."""
        return sum(self._ended[kind, status] for kind in Kind)

    @property
    def jobs(self) -> int:
        """How many jobs were submitted, all of which have ended."""
        return self._ended.total()

    @property
    def starts(self) -> int:
        """How many starts there were."""
        return self._starts.total()

    @property
    def retries(self) -> int:
        """How many of the starts were not a job's first."""
        ran = sum(count for (_, status), count in self._ended.items() if status is not JobStatus.CANCELLED)
        return self.starts - ran

    def rows(self) -> Iterable[tuple[str, int, int, int, int, int]]:
        """Yield (kind, submitted, done, failed, cancelled, starts), the sum and the delayed ones last."""
        ends = (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)
        for kind in Kind:
            done, failed, cancelled = (self._ended[kind, status] for status in ends)
            if done + failed + cancelled:
                yield (KIND_NAMES[kind], done + failed + cancelled, done, failed, cancelled, self._starts[kind])
        done, failed, cancelled = (self.count(status) for status in ends)
        yield ("all", self.jobs, done, failed, cancelled, self.starts)
        done, failed, cancelled = (self._delayed[status] for status in ends)
        yield ("of these delayed", self._delayed.total(), done, failed, cancelled, self._starts_delayed)


def table(account: Account) -> str:
    """Return the account as a table."""
    lines = [f"  {'jobs':<18}{'submitted':>12} {'= done':>12} {'+ failed':>12} {'+ cancelled':>12} {'starts':>12}"]
    for name, *counts in account.rows():
        lines.append(f"  {name:<18}" + " ".join(f"{count:>12,}" for count in counts))
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Return a duration with the unit that fits it."""
    if math.isnan(value):
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def distribution(histogram: Histogram) -> str:
    """Return p50, p99 and the maximum."""
    p50, p99 = (seconds(histogram.percentile(share)) for share in (0.5, 0.99))
    return f"p50 {p50}, p99 {p99}, max {seconds(histogram.most)}" if histogram.total else "-"


def size(count: float | None) -> str:
    """Return a number of bytes in MiB."""
    return "unknown here" if count is None else f"{count / 2**20:,.1f} MiB"


class Live:
    """Shows how the run is getting on: one line that rewrites itself on a terminal, a line now and then elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        """Show it on this terminal."""
        self._terminal = terminal
        self._began = time.monotonic()
        self._next = 0.0
        self._open = False
        self._before = (self._began, 0)  # when the rate was last computed, and how many jobs had ended then
        self._rate = 0.0

    def show(self, stats: Stats, memory: float | None) -> None:
        """Show the figures of this moment, if it is time for that."""
        now = time.monotonic()
        if not self._terminal.live and now < self._next:
            return
        ended = stats.done + stats.failed + stats.cancelled
        since, earlier = self._before
        if now - since >= 0.5:
            self._rate = (ended - earlier) / (now - since)
            self._before = (now, ended)
        line = (
            f"  {now - self._began:6.1f} s  {stats.submitted:>11,} submitted  {ended:>11,} ended"
            f"  {self._rate:>8,.0f}/s  {stats.pending:>7,} pending  {stats.running:>3} running  {size(memory)}"
        )
        if self._terminal.live:
            self._terminal.write(CLEAR + line[: self._terminal.width - 1])
            self._open = True
        else:
            self._next = now + _PLAIN_INTERVALS[now - self._began > 60]
            self._terminal.write(line + "\n")

    def close(self) -> None:
        """Remove the line, before something else is printed."""
        if self._open:
            self._terminal.write(CLEAR)
            self._open = False

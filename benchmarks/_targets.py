"""The targets: what is promised of the speed, and whether the results of one interpreter keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks._rows import Row, Spread

Results = Mapping[str, Mapping[str, Row]]
"""Of one version of Python: benchmark, then key, to row."""


NONE = "–"
"""What stands where nothing was measured."""


@dataclass(frozen=True)
class Cell:
    """What was found, and whether it keeps the target; None where nothing is promised."""

    text: str
    kept: bool | None = None

    def __str__(self) -> str:
        return self.text if self.kept is None else f"{self.text} {'✓' if self.kept else '✗'}"


@dataclass(frozen=True)
class Target:
    """One row of the table. ``found`` raises KeyError where the results do not have it."""

    work: str
    against: str
    promise: str
    found: Callable[[Results, str], Cell]

    def cell(self, results: Results, version: str) -> str:
        """Return the cell for one version, a dash if it was not measured."""
        try:
            return str(self.found(results, version))
        except KeyError:
            return NONE


def figure(value: float) -> str:
    """Return a figure in three digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 2 if abs(value) >= 1 else 3 if abs(value) >= 0.1 else 4
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.{digits}f}"


def spread(found: Spread, sign: str = "×") -> str:
    """Return a median with its spread."""
    return f"{figure(found.median)} {sign} ({figure(found.lowest)}–{figure(found.highest)})"


def row_ratio(row: Row) -> Spread:
    """Return the ratio of a row that has one."""
    if row.ratio is None:
        raise KeyError(row.key)
    return row.ratio


def faster(benchmark: str, key: str, least: float, least_311: float | None = None) -> Callable[[Results, str], Cell]:
    """At least so many times as fast as the peer."""

    def found(results: Results, version: str) -> Cell:
        ratio = row_ratio(results[benchmark][key])
        bound = least_311 if least_311 is not None and version == "3.11" else least
        return Cell(spread(ratio), ratio.median >= bound)

    return found


def share(benchmark: str, key: str, most: float, most_311: float | None = None) -> Callable[[Results, str], Cell]:
    """At most so much of the peer's time."""

    def found(results: Results, version: str) -> Cell:
        ratio = row_ratio(results[benchmark][key]).inverted()
        bound = most_311 if most_311 is not None and version == "3.11" else most
        return Cell(spread(ratio), ratio.median <= bound)

    return found


def below(most: float, *places: tuple[str, str, str]) -> Callable[[Results, str], Cell]:
    """The largest of figures, each named by benchmark, key and name, is at most so much."""

    def found(results: Results, version: str) -> Cell:
        worst = max(results[benchmark][key].figures[name] for benchmark, key, name in places)
        return Cell(figure(worst), worst <= most)

    return found


def every_ratio(benchmark: str, least: float, words: str = "") -> Callable[[Results, str], Cell]:
    """The smallest ratio of those keys that hold ``words`` is at least so much."""

    def found(results: Results, version: str) -> Cell:
        ratios = [row_ratio(row).median for key, row in results[benchmark].items() if words in key]
        if not ratios:
            raise KeyError(words)
        return Cell(f"{figure(min(ratios))} to {figure(max(ratios))} ×", min(ratios) >= least)

    return found


def every_figure(benchmark: str, name: str, most: float) -> Callable[[Results, str], Cell]:
    """The largest figure of that name is at most so much, over all rows."""

    def found(results: Results, version: str) -> Cell:
        known = [row.figures[name] for row in results[benchmark].values()]
        return Cell(f"{figure(min(known))} to {figure(max(known))} ×", max(known) <= most)

    return found


def woken(key: str, most: int) -> Callable[[Results, str], Cell]:
    """So many wake-ups at most."""

    def found(results: Results, version: str) -> Cell:
        row = results["wakeups"][key]
        count = 0 if row.ours is None else row.ours
        return Cell(f"{count:g}", count <= most)

    return found


def plain_ratio(benchmark: str, key: str) -> Callable[[Results, str], Cell]:
    """How many times as fast as the peer; nothing is promised."""

    def found(results: Results, version: str) -> Cell:
        return Cell(spread(row_ratio(results[benchmark][key])))

    return found


def plain_share(benchmark: str, key: str) -> Callable[[Results, str], Cell]:
    """The share of the peer's time; nothing is promised."""

    def found(results: Results, version: str) -> Cell:
        return Cell(spread(row_ratio(results[benchmark][key]).inverted()))

    return found


POOL = "`ThreadPoolExecutor(4)`"
SEEDED = ("one asleep", "one busy", "sixteen asleep", "sixteen busy")

ONE = Target(
    "submit 100,000 no-ops from one thread, then their results",
    POOL,
    "≥ 4 × on 3.11, ≥ 3.5 × on 3.13",
    faster("throughput", "one", 3.5, 4.0),
)
SIXTEEN = Target("the same from 16 threads", POOL, "≥ 7 ×", faster("throughput", "sixteen", 7.0))
TRIP = Target(
    "round trip: submit one, wait for its result, 5,000 times",
    POOL,
    "≤ 0.95 of its time on 3.11, ≤ 1.0 on 3.13",
    share("round_trip", "pool", 1.0, 0.95),
)

TARGETS = (
    ONE,
    SIXTEEN,
    Target(
        "context switches a job in both",
        "",
        "≤ 0.05",
        below(0.05, ("throughput", "one", "switches"), ("throughput", "sixteen", "switches")),
    ),
    Target(
        "the same after one hold of the lock for 12 ms",
        "",
        "≤ 0.05",
        below(0.05, *(("convoy", key, "switches") for key in SEEDED)),
    ),
    TRIP,
    Target("`map` of 100,000 cheap calls", "`ThreadPoolExecutor(4).map`", "≥ 5 ×", faster("map", "pool", 5.0)),
    Target(
        "tasks that release the GIL, 1 and 8 submitters, least and most: throughput",
        POOL,
        "≥ 0.97 ×",
        every_ratio("gil_releasing", 0.97),
    ),
    Target("… SHA-256 of 64 KB", POOL, "≥ 1.3 ×", every_ratio("gil_releasing", 1.3, "64 KB")),
    Target("… p99 of the wait for a start", POOL, "≤ 1.1 ×", every_figure("gil_releasing", "p99_ms_ratio", 1.1)),
    Target(
        "with `priority` and `retries`, one `options(...)` re-used",
        "a plain `submit`",
        "≥ 0.8 of the rate",
        faster("options_cost", "kept", 0.8),
    ),
    Target(
        "… an `options(...)` for each job", "a plain `submit`", "≥ 0.5 of the rate", faster("options_cost", "made", 0.5)
    ),
    Target(
        "one million delayed jobs: submit, an `options(...)` each",
        "`asyncio.loop.call_later`",
        "≤ 1.5 × its time",
        share("delayed", "asyncio", 1.5),
    ),
    Target(
        "… submit, all with one delay",
        "`asyncio.loop.call_later`",
        "≤ 1.5 × its time",
        share("delayed", "asyncio alike", 1.5),
    ),
    Target("… submit", "APScheduler, 20,000 jobs of each", "≥ 20 ×", faster("delayed", "APScheduler", 20.0)),
    Target(
        "… submit",
        "`threading.Timer`, 10,000",
        "",
        plain_ratio("delayed", "Timer"),
    ),
    Target("… submit", "`sched`", "", plain_ratio("delayed", "sched")),
    Target("… cancel, µs each, amortised", "", "≤ 1.5", below(1.5, ("delayed", "ours", "cancel_us"))),
    Target("… resident bytes each, empty context", "", "≤ 450", below(450, ("delayed", "ours", "bytes"))),
    Target("… resident bytes each, with a context", "", "≤ 500", below(500, ("delayed", "context", "bytes"))),
    Target(
        "lateness of 1,000 timers over 5 s, p50",
        "a bare `Condition.wait` loop",
        "≤ 1.2 × its lateness",
        share("lateness", "bare", 1.2),
    ),
    Target("… p99", "the best of the peers", "≤ 1.1 × its lateness", every_figure("lateness", "p99_us_ratio", 1.1)),
    Target("start of a due job, 16 idle workers: threads woken", "", "1", woken("alone", 1)),
    Target("… with another timer pending", "", "2", woken("among", 2)),
    Target("wake-ups of an idle pool in 10 s", "", "0", woken("idle", 0)),
    Target("the time of a job, one submitter", "[the floor](#the-floor)", "", plain_share("floor", "one 1")),
    Target("… sixteen submitters", "[the floor](#the-floor)", "", plain_share("floor", "sixteen 1")),
)

HEADLINES = (
    ("100,000 no-ops from one thread", ONE, "times the throughput"),
    ("the same from sixteen threads", SIXTEEN, "times the throughput"),
    ("round trip of one job", TRIP, "of its time"),
)
"""What the README shows: the ratios against ``ThreadPoolExecutor(4)`` that matter."""

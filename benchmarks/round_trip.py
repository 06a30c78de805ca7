"""How long it takes to submit one job and have its result, against pools of the same width."""

from __future__ import annotations

from functools import partial

from benchmarks._command import Settings, run
from benchmarks._pairs import compare
from benchmarks._pools import OTHERS, OURS, POOL, STANDARD, Maker, round_trips
from benchmarks._rows import Row


def target_rows(settings: Settings) -> list[Row]:
    """Against ``ThreadPoolExecutor``."""
    return [_row("pool", POOL, STANDARD, settings.size(5_000), settings.pairs)]


def answer(settings: Settings) -> list[Row]:
    """Measure all."""
    jobs = settings.size(2_000)
    others = [_row(name.partition("(")[0], name, maker, jobs, settings.few()) for name, maker in OTHERS.items()]
    return [*target_rows(settings), *others]


def _row(key: str, name: str, maker: Maker, jobs: int, pairs: int) -> Row:
    return compare(
        key,
        f"round trip of one no-op, {jobs:,} times",
        name,
        partial(round_trips, OURS, jobs),
        partial(round_trips, maker, jobs),
        pairs=pairs,
        operations=jobs,
    )


if __name__ == "__main__":
    run("round_trip", __doc__, answer)

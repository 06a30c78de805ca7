"""The arithmetic of schedules against brute force: no drift, no loop over what was missed."""

import itertools
import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import exhaustive
from threadsched._grid import BURST, COALESCE, MISSED, SKIP, Grid, Pauses, Slot, follow, overtaken, spread

# Dyadic numbers, whose sums and products are exact, so that a naive loop is an oracle.
dyadic = st.integers(-(2**20), 2**20).map(lambda n: n / 64)
intervals = st.integers(1, 2**12).map(lambda n: n / 64)


def naive(anchor: float, interval: float, until: float) -> list[float]:
    """Return every point of a grid up to `until`, found by adding."""
    return list(itertools.takewhile(lambda at: at <= until, itertools.count(anchor, interval)))


@given(dyadic, intervals, st.integers(0, 300).map(lambda n: n / 3))
def test_first_slot_is_the_first_point_not_before_now(anchor: float, interval: float, later: float):
    """The first slot is the anchor if that is to come, else the next point of its grid."""
    now = anchor + later * interval
    expected = next(at for at in itertools.count(anchor, interval) if at >= now)
    assert Grid(anchor, interval).first(now).at == expected
    assert Grid(anchor, interval).first(anchor - later).at == anchor


@given(dyadic, intervals, st.integers(0, 20), st.integers(0, 400), st.integers(0, 400))
def test_follow_agrees_with_looking_at_every_point(anchor: float, interval: float, number: int, late: int, busy: int):
    """Under each rule the next slot, and how many are left out, are those that a walk over all points finds."""
    grid = Grid(anchor, interval)
    slot = Slot(anchor + number * interval, number)
    began = slot.at + late / 16 * interval
    ended = began + busy / 16 * interval
    points = [at for at in naive(anchor, interval, ended + 2 * interval) if at > slot.at]

    assert follow(grid, BURST, slot, began, ended) == (Slot(points[0], number + 1), 0)

    done = [at for at in points if at <= began]  # by the late run itself
    rest = points[len(done) :]
    assert follow(grid, COALESCE, slot, began, ended) == (Slot(rest[0], number + len(done) + 1), len(done))

    gone = [at for at in points if at < ended]
    assert follow(grid, SKIP, slot, began, ended) == (Slot(points[len(gone)], number + len(gone) + 1), len(gone))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e5), st.integers(0, 10**9))
def test_slot_is_one_multiplication_away(anchor: float, interval: float, number: int):
    """Whatever the interval, slot k is at anchor + k * interval, and is found again from its own time."""
    grid = Grid(anchor, interval)
    before = Slot(anchor + number * interval, number)
    assert grid.after(before) == Slot(anchor + (number + 1) * interval, number + 1)
    found = grid.latest(Slot(anchor, 0), before.at)
    assert found.at == before.at


@pytest.mark.proof
def test_f42_million_runs_do_not_drift():
    """After a million runs at an interval that no float hits, the slot is where one multiplication puts it."""
    runs = 1_000_000 if exhaustive() else 50_000
    grid = Grid(0.1, 0.1)
    slot = grid.first(0.0)
    added = slot.at
    for _ in range(runs):
        following, left_out = follow(grid, COALESCE, slot, slot.at, slot.at)
        assert following is not None
        assert left_out == 0
        slot = following
        added += 0.1
    assert slot == Slot(0.1 + runs * 0.1, runs)
    assert added != slot.at  # what adding up would have given


@pytest.mark.parametrize("missed", MISSED)
def test_f09_ten_years_cost_as_much_as_one_slot(missed: str):
    """Jumping over billions of slots is arithmetic, not a walk."""
    grid, years = Grid(0.0, 0.01), 10 * 365 * 86400.0
    began = time.perf_counter()
    for _ in range(1000):
        follow(grid, missed, Slot(0.0, 0), years, years)
        overtaken(grid, missed, Slot(0.0, 0), years)
    assert time.perf_counter() - began < 2.0
    following, left_out = follow(grid, SKIP, Slot(0.0, 0), years, years)
    assert following is not None
    assert following.at >= years
    assert left_out == following.number - 1


def test_interval_below_resolution_ends():
    """On a clock whose readings are coarser than the interval the arithmetic still comes to an end."""
    grid = Grid(1e12, 1e-6)
    assert grid.first(1e12 + 5).at >= 1e12 + 5
    assert grid.latest(Slot(1e12, 0), 1e12 + 5).number > 0


@given(dyadic, intervals, st.integers(0, 50), st.floats(0, 100), st.randoms(use_true_random=False))
def test_dly_06_jitter_stays_between_the_neighbours(
    anchor: float, interval: float, number: int, jitter: float, rng: random.Random
):
    """A moved run is within the jitter of its slot, not before the slot before and before the one after."""
    grid = Grid(anchor, interval)
    slot = Slot(anchor + number * interval, number)
    for draw in (0.0, math.nextafter(1.0, 0.0), rng.random()):
        at = spread(grid, slot, jitter, draw)
        assert abs(at - slot.at) <= jitter + 1e-9
        assert slot.at - interval <= at < grid.after(slot).at


def test_skip_takes_a_late_start_for_a_miss_only_past_the_next_slot():
    """Under "skip" a run that is a little late runs; one that the next slot has overtaken does not."""
    grid = Grid(0.0, 10.0)
    slot = Slot(20.0, 2)
    assert overtaken(grid, SKIP, slot, 20.0) is None
    assert overtaken(grid, SKIP, slot, 29.9) is None
    assert overtaken(grid, SKIP, slot, 30.0) == (Slot(30.0, 3), 1)
    assert overtaken(grid, SKIP, slot, 65.0) == (Slot(70.0, 7), 5)
    assert overtaken(grid, COALESCE, slot, 65.0) is None
    assert overtaken(grid, BURST, slot, 65.0) is None
    assert overtaken(Pauses(0.0, 10.0), SKIP, slot, 65.0) is None


@pytest.mark.parametrize("missed", MISSED)
def test_delay_counts_from_the_end(missed: str):
    """With fixed delay no slot is ever left out: the next is an interval after the end."""
    pauses = Pauses(0.0, 10.0)
    assert pauses.first(-1.0) == Slot(0.0, 0)
    assert follow(pauses, missed, Slot(0.0, 0), 7.0, 45.0) == (Slot(55.0, 1), 0)

"""Faults seeded into the real scheduler are found in the cases that are explored anyway."""

from collections.abc import Iterator

import pytest

from tests.explorer.cases import case_of
from tests.explorer.install import Laboratory, laboratory
from tests.explorer.mutants import MUTANTS, Mutant, seeded
from tests.explorer.search import depth_first, priorities, walk
from tests.support import exhaustive

pytestmark = pytest.mark.proof

# Schedules within which each must be found.
DEPTH_FIRST = 1500
AT_RANDOM = 300  # of either kind, for each of ten seeds


@pytest.fixture(scope="module")
def place() -> Iterator[Laboratory]:
    with laboratory() as made:
        yield made


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "_") for mutant in MUTANTS])
def test_a_fault_of_the_scheduler_is_found(place: Laboratory, mutant: Mutant) -> None:
    """Depth first with one preemption finds the fault; without it, the case holds under the schedule that showed it."""
    scenario = case_of(mutant.case).scenario()
    with seeded(mutant):
        found = depth_first(place, scenario, bound=1, limit=DEPTH_FIRST)
        assert found.failure is not None, f"not found in {found.schedules} schedules"
        assert found.choices is not None
    name, choices = found.line.split("'")[1].rsplit(":", 1)
    assert name == scenario.name
    assert len(choices) < 80
    sound = depth_first(place, scenario, bound=0)
    assert sound.failure is None, sound.report()


@pytest.mark.skipif(not exhaustive(), reason="part of make proof")
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "_") for mutant in MUTANTS])
def test_a_fault_of_the_scheduler_is_found_at_random(place: Laboratory, mutant: Mutant) -> None:
    """A random walk or random priorities find it too, from at least one of ten seeds.

    A thread that spins is found by priorities alone: a walk is fair, so it lets another one end the spin.
    """
    scenario = case_of(mutant.case).scenario()
    with seeded(mutant):
        assert any(
            search(place, scenario, seed, AT_RANDOM).failure for seed in range(10) for search in (walk, priorities)
        )

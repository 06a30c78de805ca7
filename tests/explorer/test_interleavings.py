"""The real scheduler under the explorer: pairs and triples of operations, here a sample, in make proof all of them."""

import os
from collections.abc import Iterator

import pytest

from tests.explorer import table
from tests.explorer.__main__ import scenario_of
from tests.explorer.cases import OVERRUNS, PAIRED, SECTIONS, TRIPLES, Case, Section, pairs
from tests.explorer.install import Laboratory, laboratory
from tests.explorer.search import ANY, Found, depth_first, priorities, read, replay, walk
from tests.explorer.strategies import Walk
from tests.support import SEED, exhaustive, sample
from threadsched import _locks

pytestmark = pytest.mark.proof

proof = pytest.mark.skipif(not exhaustive(), reason="part of make proof")

# A count may differ a little from the page's: by interpreter, and by what was changed since. More means: write it anew.
TOLERANCE = 0.25

# Schedules that showed a fault, as short as they were found, and what it was.
REGRESSIONS = {
    "shutdown+shutdown_due/1/fine:37.1": "shutdown() returned before the thread of a worker had ended",
    "shutdown_due+shutdown_due/1/fine:41.1": "likewise",
    "shutdown_none+shutdown_none/1/fine:45.1": "likewise",
    "shutdown_due+limited/2/fine:5.2,13.1": "an idle worker never slept",
    "shutdown_due+nested/2/fine:5.2,18.1": "nor did a worker that waits inside a task",
    "result_timeout+nested+every/2/fine:34.1": "nor did one when a schedule fell due",
    "cancel+wait/1/coarse:1.2,3.2,7.1,20.1": "a waiter was told of a job it had found ended, and returned early",
    "timeout+shutdown/1/coarse:": "nor did it wait for the successor of a worker that was written off",
    "start_refused_2+drop/2/coarse:": "the error of a thread that could not start kept a dropped scheduler",
    "drop+look/1/fine:3.2": "a task that looked at its own stack stayed in memory, and kept a dropped scheduler",
}


@pytest.fixture(scope="module")
def place() -> Iterator[Laboratory]:
    with laboratory() as made:
        yield made


def assert_holds(found: Found) -> None:
    assert found.failure is None, found.report()


def rows() -> dict[str, list[Case]]:
    """Return all pairs by their first operation."""
    found: dict[str, list[Case]] = {}
    for first, second in pairs():
        found.setdefault(first, []).append(Case((first, second)))
    return found


# ---------------------------------------------------------------- a sample


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("first", rows())
def test_a_pair_without_preemption(place: Laboratory, first: str, workers: int) -> None:
    """Each pair holds in every schedule in which threads only change where one is blocked or ends."""
    for case in rows()[first]:
        wider = Case(case.operations, workers)
        assert_holds(depth_first(place, wider.scenario(), bound=0, limit=ANY if exhaustive() else 20 // workers))


# Not in make proof, which explores them all, by section.
@pytest.mark.parametrize(
    "case", [] if exhaustive() else sample(SECTIONS["pairs"].cases, 8, "pairs"), ids=lambda case: case.name
)
def test_some_pairs_with_a_preemption(place: Laboratory, case: Case) -> None:
    """A few pairs hold in every schedule with one preemption."""
    assert_holds(depth_first(place, case.scenario(), bound=1))


@pytest.mark.parametrize(
    "section", [key for key in SECTIONS if key not in ("pairs", "triples", "crowds", "lines", "overruns")]
)
def test_some_cases_of_the_other_sections(place: Laboratory, section: str) -> None:
    """A few cases of each section hold in some schedules with one preemption, the plain one first."""
    for case in sample(SECTIONS[section].cases, 6, section):
        if table.is_possible(place, case):
            assert_holds(depth_first(place, case.scenario(), bound=0, limit=5, turns=1))
            assert_holds(walk(place, case.scenario(), SEED, limit=5))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_triples_at_random(place: Laboratory, workers: int) -> None:
    """Each triple holds in some schedules drawn at random, evenly and by random priorities."""
    for triple in TRIPLES + OVERRUNS:
        scenario = Case(triple, workers).scenario()
        if "timeout" not in triple:
            # Priorities are not fair: the time that the watcher stays could run out before each submission, for ever.
            assert_holds(priorities(place, scenario, SEED, limit=5))
        assert_holds(walk(place, scenario, SEED, limit=5))


@pytest.mark.parametrize("case", SECTIONS["lines"].cases, ids=lambda case: case.name)
def test_lines_at_random(place: Laboratory, case: Case) -> None:
    """Where fields are read without the lock, a pair holds in some schedules that switch at source lines."""
    assert_holds(priorities(place, case.scenario(), SEED, limit=6))
    assert_holds(walk(place, case.scenario(), SEED, limit=3))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "operations",
    [
        ("submit_delayed", "between"),
        ("submit_delayed", "cancel_delayed"),
        ("submit_delayed", "submit"),
        ("long", "every"),
    ],
    ids="+".join,
)
def test_a_leader_that_wakes_early_is_on_time(
    place: Laboratory, monkeypatch: pytest.MonkeyPatch, operations: tuple[str, ...], workers: int
) -> None:
    """Where the system was late and is not any more, each leader wakes early, and yet no job is late."""
    monkeypatch.setattr(_locks.Lag, "lead", lambda lag: 0.125)
    scenario = Case(operations, workers).scenario()
    assert_holds(depth_first(place, scenario, bound=1 if exhaustive() else 0))
    assert_holds(walk(place, scenario, SEED, limit=20))


@pytest.mark.parametrize("line", REGRESSIONS)
def test_a_schedule_that_showed_a_fault(place: Laboratory, line: str) -> None:
    """Schedules that once failed hold."""
    name, choices = read(line)
    failure, _ = replay(place, scenario_of(name), choices)
    assert failure is None, failure


def test_threads_and_greenlets_agree(place: Laboratory) -> None:
    """The same schedule takes the same steps whether fibers are threads or greenlets."""
    if place.quick is place.threads:
        pytest.skip("greenlet is not installed")
    for number, case in enumerate(sample(SECTIONS["triples"].cases, 20, "crews")):
        scenario = case.scenario()
        quick, slow = [], []
        for crew, told in ((place.quick, quick), (place.threads, slow)):
            place.quick, kept = crew, place.quick
            try:
                failure, _ = place.run(scenario.body, Walk(number), explore_time=True, told=told)
            finally:
                place.quick = kept
            assert failure is None, failure
        assert quick == slow


@pytest.mark.skipif("EXPLORE" not in os.environ, reason="EXPLORE names no schedule")
def test_the_schedule_named_in_the_environment(place: Laboratory) -> None:
    """The schedule in EXPLORE holds."""
    name, choices = read(os.environ["EXPLORE"])
    failure, _ = replay(place, scenario_of(name), choices)
    assert failure is None, failure


# ---------------------------------------------------------------- all of it


def parts() -> Iterator[tuple[str, Section]]:
    """Give the sections in parts of which each is explored well within a test's time."""
    for key, section in SECTIONS.items():
        grouped: dict[str, list[Case]] = {}
        for case in section.cases:
            grouped.setdefault(case.operations[0], []).append(case)
        for first, cases in grouped.items():
            yield f"{key}-{first}", Section(section.title, tuple(cases), section.bound, section.turns)


@proof
@pytest.mark.parametrize("part", [part for _, part in parts()], ids=[name for name, _ in parts()])
def test_every_schedule_within_the_bound(place: Laboratory, part: Section) -> None:
    """Each case holds in all schedules up to its bound, and has about as many as the page says."""
    written = table.read_page(table.PAGE.read_text(encoding="utf-8"))
    known = {name: number for counts in written.values() for name, number in counts.items()}
    for name, number in table.count(place, part).items():
        assert abs(number - known[name]) <= max(TOLERANCE * known[name], 20), (
            f"{name} has {number} schedules, and the page says {known[name]}: run python -m tests.explorer table"
        )


# ---------------------------------------------------------------- the page


def test_the_page_has_every_case() -> None:
    """The page names exactly the cases that are explored, and is what the generator makes of its numbers."""
    text = table.PAGE.read_text(encoding="utf-8")
    counts = table.read_page(text)
    for key, section in SECTIONS.items():
        assert set(counts[key]) == {case.name for case in section.cases}
    assert text == table.page(counts)


def test_the_design_page_has_the_summary() -> None:
    """The small table in the design page adds up what the large one says."""
    counts = table.read_page(table.PAGE.read_text(encoding="utf-8"))
    assert table.BEGIN + table.summary(counts) + table.END in table.DESIGN.read_text(encoding="utf-8")


def test_every_operation_is_paired_with_every_other() -> None:
    """The pairs are all there are, each operation with itself too."""
    count = len(PAIRED)
    assert len(set(SECTIONS["pairs"].cases)) == count * (count + 1) // 2

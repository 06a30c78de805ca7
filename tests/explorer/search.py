"""Runs schedule after schedule, shortens one that fails, and writes and reads the line that replays it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.explorer.install import Laboratory
from tests.explorer.kernel import Failure, Kernel
from tests.explorer.strategies import DepthFirst, Priorities, Replay, Walk

# No bound.
ANY = 10**9

# Runs spent on shortening a failing schedule.
SHORTEN = 300


@dataclass(frozen=True)
class Scenario:
    """What is run: a body for the first thread, and how."""

    name: str
    body: Callable[[Kernel], None]
    explore_time: bool = False
    coarse: bool = False
    """No points after a release: see ``Kernel.after``."""
    threads: bool = False
    """The fibers have to be real threads."""
    lines: Mapping[str, str] | None = None
    """Files in which lines are points, and where: see ``lines``. None means synchronisation operations alone."""


@dataclass
class Found:
    """What came of an exploration."""

    scenario: Scenario
    schedules: int = 0
    complete: bool = False
    """Every schedule within the bound was run."""
    points: int = 0
    """The most choices that a schedule had."""
    failure: Failure | None = None
    choices: Mapping[int, int] | None = None
    """The shortest schedule found that fails, as deviations from the plain one."""

    @property
    def line(self) -> str:
        """The one line that replays the failure."""
        return f"EXPLORE='{write(self.scenario.name, self.choices or {})}' python -m tests.explorer"

    def report(self) -> str:
        """Say what failed and how to see it again."""
        after = f"after {self.schedules} schedule(s) of {self.scenario.name}; replay it with"
        return f"{self.failure}\n{after}\n{self.line}"


def write(name: str, choices: Mapping[int, int]) -> str:
    """Write a schedule: the scenario, then ``step.choice`` for each deviation."""
    return name + ":" + ",".join(f"{at}.{choice}" for at, choice in sorted(choices.items()))


def read(text: str) -> tuple[str, dict[int, int]]:
    """Read what :func:`write` wrote."""
    name, _, rest = text.strip().rpartition(":")
    pairs = (pair.split(".") for pair in rest.split(",") if pair)
    return name, {int(at): int(choice) for at, choice in pairs}


def run(
    place: Laboratory, scenario: Scenario, strategy: Any, told: list[str] | None = None
) -> tuple[Failure | None, Kernel]:
    """Run one schedule."""
    lines = None
    if scenario.lines:
        from tests.explorer.lines import Lines

        lines = Lines(scenario.lines)
    how: dict[str, Any] = {"explore_time": scenario.explore_time, "coarse": scenario.coarse}
    return place.run(scenario.body, strategy, lines=lines, told=told, threads=scenario.threads, **how)


def replay(place: Laboratory, scenario: Scenario, choices: Mapping[int, int], told: list[str] | None = None) -> Any:
    """Run a schedule that was written down."""
    return run(place, scenario, Replay(choices), told)


def depth_first(place: Laboratory, scenario: Scenario, bound: int, limit: int = ANY, turns: int = ANY) -> Found:
    """Run every schedule with at most ``bound`` preemptions, or ``limit`` of them; stop at the first that fails."""
    strategy = DepthFirst(bound, turns)
    found = Found(scenario)
    while True:
        failure, kernel = run(place, scenario, strategy)
        if _count(place, found, failure, kernel):
            return found
        if not strategy.next():
            found.complete = True
            return found
        if found.schedules >= limit:
            return found


def priorities(place: Laboratory, scenario: Scenario, seed: object, limit: int, depth: int = 3) -> Found:
    """Run ``limit`` schedules by random priorities; stop at the first that fails."""

    def strategies() -> Iterator[Any]:
        for number in range(limit):
            yield Priorities(f"{seed}:{number}", 2 + number % (depth - 1), max(found.points, 10))

    found = Found(scenario)
    return _each(place, found, strategies())


def walk(place: Laboratory, scenario: Scenario, seed: object, limit: int) -> Found:
    """Run ``limit`` schedules at random; stop at the first that fails."""
    return _each(place, Found(scenario), (Walk(f"{seed}:{number}") for number in range(limit)))


def _each(place: Laboratory, found: Found, strategies: Iterator[Any]) -> Found:
    for strategy in strategies:
        failure, kernel = run(place, found.scenario, strategy)
        if _count(place, found, failure, kernel):
            break
    return found


def _count(place: Laboratory, found: Found, failure: Failure | None, kernel: Kernel) -> bool:
    found.schedules += 1
    found.points = max(found.points, kernel.asked)
    if failure is None:
        return False
    found.failure, found.choices = shorten(place, found.scenario, dict(kernel.choices), failure)
    return True


def shorten(
    place: Laboratory, scenario: Scenario, choices: dict[int, int], failure: Failure
) -> tuple[Failure, dict[int, int]]:
    """Leave deviations out, halves first and then one by one, as long as the schedule still fails in the same way."""
    runs, size = 0, max(len(choices) // 2, 1)
    while size and choices and runs < SHORTEN and failure.kind != "livelock":  # one such run takes as long as a hundred
        ordered = sorted(choices)
        for start in range(0, len(ordered), size):
            without = {at: choices[at] for at in ordered[:start] + ordered[start + size :]}
            runs += 1
            other, kernel = replay(place, scenario, without)
            actual = kernel.choices
            if other is not None and other.kind == failure.kind and len(actual) < len(choices):
                choices, failure = actual, other
                break
        else:
            size //= 2
            continue
        size = min(size, max(len(choices) // 2, 1))
    return failure, choices

"""Ways to choose who goes on: exhaustively, at random, by random priorities, or as written down."""

import math
import random
from collections.abc import Mapping
from typing import Any

from tests.explorer.kernel import CLOCK


class Plain:
    """Nobody is preempted; who is blocked is followed by the next in turn."""

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        return 0

    def asks_at(self, step: int) -> float:
        return math.inf


class Replay:
    """As written down: the choice at some steps, the plain way at all others."""

    def __init__(self, choices: Mapping[int, int]) -> None:
        self.choices = choices
        self.steps = sorted(choices)

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        choice = self.choices.get(step, 0)
        return choice if choice < len(candidates) else 0

    def asks_at(self, step: int) -> float:
        return next((later for later in self.steps if later > step), math.inf)


class Branch:
    """A step at which there is a choice."""

    __slots__ = ("choice", "count", "free", "preemptions", "step", "turns")

    def __init__(self, step: int, count: int, free: int, preemptions: int, turns: int) -> None:
        self.step = step
        self.choice = 0
        self.count = count  # how many there are to choose from
        self.free = free  # the first so many are no preemption
        self.preemptions = preemptions  # left before it
        self.turns = turns  # likewise

    def left(self, choice: int) -> tuple[int, int]:
        """Return the preemptions and the turns that a choice leaves."""
        preempts = choice >= self.free
        return self.preemptions - preempts, self.turns - (choice > 0 and not preempts)


class DepthFirst:
    """Every schedule with at most ``bound`` preemptions, one for each :meth:`next` that is True.

    A preemption is to let another fiber go on where the present one could, or to move the clock where somebody could.
    Whom to take when the present one is blocked is free, so all of those choices are made; with ``turns`` only so many
    of them in one schedule are other than the next in turn.

    Where no preemption is left, or the way is known, a fiber that runs is not asked at its points, and nobody looks who
    else could go on: most steps of most schedules cost next to nothing.
    """

    def __init__(self, bound: int, turns: int = 10**9) -> None:
        self.path: list[Branch] = []
        self.left = (bound, turns)  # preemptions and turns, once the known way is over
        self._take_up()

    def _take_up(self) -> None:
        self.known = {branch.step: branch for branch in self.path}
        self.stops = [branch.step for branch in self.path if branch.choice]
        self.last = self.stops[-1] if self.stops else -1  # where the known way is over
        self.reached = not self.stops

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        count = len(candidates)
        if step > self.last:
            free = 1 if running else count - (candidates[-1] is CLOCK)
            self.path.append(Branch(step, count, free, *self.left))
            return 0
        self.reached = self.reached or step == self.last
        branch = self.known.get(step)
        if branch is None:
            return 0
        if branch.count != count:
            raise RepeatError(f"step {step} had {branch.count} candidates before and has {candidates} now")
        return branch.choice

    def asks_at(self, step: int) -> float:
        for stop in self.stops:
            if stop > step:
                return stop
        return step + 1 if self.left[0] else math.inf

    def next(self) -> bool:
        """Go to the next schedule; False if there is none."""
        if not self.reached:
            raise RepeatError(f"step {self.last} was a choice before and is none now")
        path = self.path
        while path:
            branch = path[-1]
            branch.choice += 1
            if branch.choice < branch.count and min(left := branch.left(branch.choice)) >= 0:
                self.left = left
                break
            path.pop()
        self._take_up()
        return bool(path)


class RepeatError(Exception):
    """The same choices led elsewhere: the explorer has left something to chance."""


class Walk:
    """Any candidate, evenly, at each point."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        return self.random.randrange(len(candidates))

    def asks_at(self, step: int) -> float:
        return step + 1


class Priorities:
    """PCT: the fiber of the highest random priority goes on; at some random points it falls below all others.

    A fault that needs ``depth`` ordering constraints is found with a probability of at least 1 / (fibers × points **
    (depth - 1)) in each schedule (Burckhardt et al., 2010). The clock has a priority like a fiber.

    Args:
        seed: of all that is drawn.
        depth: constraints; one less is how often a priority falls.
        points: how many points a schedule has, about.
    """

    def __init__(self, seed: object, depth: int, points: int) -> None:
        self.random = random.Random(str(seed))
        self.falls = {self.random.randrange(max(points, 1)): -index for index in range(1, depth)}
        self.ranks: dict[int, float] = {}
        self.at = -1

    def asks_at(self, step: int) -> float:
        return step + 1

    def choose(self, step: int, candidates: list[Any], running: bool) -> int:
        self.at += 1
        for one in candidates:
            if one.number not in self.ranks:
                self.ranks[one.number] = 1 + self.random.random()
        if self.at in self.falls and running:
            self.ranks[candidates[0].number] = float(self.falls[self.at])
        best = max(range(len(candidates)), key=lambda index: self.ranks[candidates[index].number])
        if candidates[best] is CLOCK:
            self.ranks[CLOCK.number] = self.random.random() - 1  # once it has moved, others come first for a while
        return best

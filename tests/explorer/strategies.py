"""Ways to choose who goes on: exhaustively, at random, by random priorities, or as written down."""

import random
from collections.abc import Mapping
from typing import Any

from tests.explorer.kernel import CLOCK


class Plain:
    """Nobody is preempted; who is blocked is followed by the next in turn."""

    def choose(self, candidates: list[Any], running: bool) -> int:
        return 0


class Replay:
    """As written down: the choice at each of some points, the plain way at all others."""

    def __init__(self, choices: Mapping[int, int]) -> None:
        self.choices = choices
        self.at = -1

    def choose(self, candidates: list[Any], running: bool) -> int:
        self.at += 1
        choice = self.choices.get(self.at, 0)
        return choice if choice < len(candidates) else 0


class DepthFirst:
    """Every schedule with at most ``bound`` preemptions, one for each :meth:`next` that is True.

    A preemption is to let another fiber go on where the present one could, or to move the clock where somebody could.
    Whom to take when the present one is blocked is free, so all of those choices are made.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.path: list[list[int]] = []  # [choice, how many, preemptions before it, how many of them are free]
        self.depth = 0
        self.spent = 0

    def choose(self, candidates: list[Any], running: bool) -> int:
        count = len(candidates)
        if self.depth < len(self.path):
            step = self.path[self.depth]
            choice = step[0]
            if step[1] != count:
                raise RepeatError(f"point {self.depth} had {step[1]} candidates before and has {candidates} now")
        else:
            free = 1 if running else count - (candidates[-1] is CLOCK)
            step = [0, count, self.spent, free]
            self.path.append(step)
            choice = 0
        self.depth += 1
        self.spent += choice >= step[3]
        return choice

    def next(self) -> bool:
        """Go to the next schedule; False if there is none."""
        path = self.path
        while path:
            choice, count, before, free = path[-1]
            choice += 1
            if choice < count and before + (choice >= free) <= self.bound:
                path[-1][0] = choice
                break
            path.pop()
        self.depth = self.spent = 0
        return bool(path)


class RepeatError(Exception):
    """The same choices led elsewhere: the explorer has left something to chance."""


class Walk:
    """Any candidate, evenly, at each point."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))

    def choose(self, candidates: list[Any], running: bool) -> int:
        return self.random.randrange(len(candidates))


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

    def choose(self, candidates: list[Any], running: bool) -> int:
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

"""Writes random programs, with whatever picks: a random generator, or Hypothesis, which then makes them smaller.

A program that uses everything rarely has two jobs that want the same thing. So there are *themes*: each has much of one
thing, and a little of the rest.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model.words import IF_EXISTS, POLICIES, Again, Operation, Recurrence, Spec, Work

# Picks one of several; the first is the plainest.
Pick = Callable[[Sequence[Any]], Any]

INDICES = range(12)
# All times are exact in binary, so that sums compare equal whatever their order.
PAUSES = (0, 0.25, 0.5, 1.0, 2.0)
PRIORITIES = (5, 5, 5, 1, 9, -2.5, float("inf"), 10**30)
ERRORS = (
    ("value", 0), ("value", 0), ("hopeless", 0), ("os", 0), ("exit", 0), ("after", 0), ("after", 1.5), ("stop", 0)
)  # fmt: skip
LIMITED = (
    ("one",), ("one",), ("two",), ("slow",), ("mail",), ("both",), ("one", "mail"), ("slow", "two"), ("none",)
)  # fmt: skip
ENDS = ("result", "exception", "cancel")
ASKED = ("cancel", "cancel future", "request cancel", "claim", "claim", "priority", "priority")
STEPS = ("pause", "pause", "pause", "resume", "resume", "resume", "run now", "run now", "cancel")
DRAINS = ("all", "due", "due", "none")


@dataclass(frozen=True)
class Theme:
    """How much there is of what: weights, of which 0 means never and 10 means always."""

    retries: int = 3
    limits: int = 2
    after: int = 2
    at: int = 1
    every: int = 1
    tasks: int = 2
    """Tasks that do something to the scheduler."""
    ids: int = 2
    full: int = 2
    """A bound on the pending jobs."""
    control: int = 2
    """Pauses, other policies, set clocks."""
    time: int = 2
    """Tasks that take their time, timeouts, and jobs that expire."""
    endless: bool = True
    """Tasks may ask for another run of a schedule, be it their own."""


THEMES = {
    "a bit of everything": Theme(),
    "limits": Theme(limits=9, retries=5, after=0, at=0, every=1, full=1),
    "dependencies": Theme(after=8, limits=1, at=3, every=0, full=1),
    "recurring": Theme(every=6, limits=1, after=1, at=0, ids=0, control=4),
    "a full queue": Theme(full=10, every=3, after=3, ids=3, limits=1, at=0),
    "tasks that act": Theme(tasks=9, every=2, retries=5),
    "time": Theme(time=7, retries=5, every=2, full=1, at=2),
}


def chance(pick: Pick, weight: int) -> bool:
    return bool(pick((False,) * (10 - weight) + (True,) * weight))


def some_again(pick: Pick) -> Again:
    retries, backoff = pick((1, 2, 3)), pick(PAUSES)
    if chance(pick, 5):
        return Again(retries, backoff)
    return Again(
        retries,
        backoff,
        whole=True,
        factor=pick((2, 1, 0.5)),
        max_backoff=pick((None, None, 0.5, 3.0)),
        jitter=pick((0, 0, 0.5, 1)),
        only_os_errors=chance(pick, 3),
        give_up=pick((None, None, None, "hopeless", "raises")),
    )


def some_work(pick: Pick, theme: Theme, depth: int) -> Work:
    failing = chance(pick, theme.retries + 1)
    return Work(
        name=pick((None, None, "a name")),
        priority=pick(PRIORITIES),
        again=some_again(pick) if chance(pick, theme.retries + 2) else Again(0),
        deadline=pick((None, None, 0, 1.0, 5.0)),
        expires=pick((0, 0.5, 1.0, 2.0, 5.0)) if chance(pick, theme.time) else None,
        dated=chance(pick, theme.at),
        timeout=pick((0.5, 1.0, 2.5)) if chance(pick, theme.time) else None,
        limits=pick(LIMITED) if chance(pick, theme.limits) else (),
        context=chance(pick, 8),
        takes=pick((0.25, 0.5, 1.0, 4.0)) if chance(pick, theme.time) else 0,
        fails=pick((1, 1, 2, 4)) if failing else 0,
        every=pick((1, 1, 2, 3)) if failing else 1,
        error=pick(ERRORS) if failing else ERRORS[0],
        does=something(pick, theme, depth) if depth and chance(pick, theme.tasks) else None,
    )


def some_spec(pick: Pick, theme: Theme, depth: int = 1) -> Spec:
    on_wall = chance(pick, theme.at)
    parents = pick((1, 1, 2, 3)) if chance(pick, theme.after) else 0
    return Spec(
        work=some_work(pick, theme, depth),
        id=pick(("a", "b", "c")) if chance(pick, theme.ids) else None,
        if_exists=pick(("raise", "return", "replace")) if IF_EXISTS else "raise",
        delay=(1 if chance(pick, 1) else 0) if on_wall else pick((0, 0, 0, 0.5, 1.0, 1.0, 3.5)),
        at=pick((0.5, 2.0, 4.0, 7.0)) if on_wall else None,
        after=tuple([(pick(("job", "job", "job", "foreign")), pick(INDICES)) for _ in range(parents)]),
        any_outcome=bool(parents) and chance(pick, 4),
        watched=chance(pick, 3),
    )


def some_recurrence(pick: Pick, theme: Theme, depth: int = 1) -> Recurrence:
    return Recurrence(
        work=some_work(pick, theme, depth),
        seconds=pick((1, 0.5, 2)),
        mode=pick(("rate", "rate", "delay")),
        missed=pick(("coalesce", "skip", "burst")),
        start=pick((None, None, 0, 0, 0.25, -0.75, 3)),
        until=pick((None, None, None, None, 0.25, 3.0, 6.0)),
        max_runs=pick((None, None, None, 1, 3)),
        max_failures=pick((None, None, 1, 2)),
        jitter=pick((0, 0, 0, 0.25, 4)),
    )


def something(pick: Pick, theme: Theme, depth: int) -> Operation:
    """Return what a task may do as well as anybody outside."""
    kinds = ["submit"] * 4 + ["ask"] * 4
    kinds += ["every"] * (theme.every // 2) + ["schedule"] * theme.every + ["foreign"] * (theme.after // 2)
    kinds += ["swap", "pause", "resume", "shutdown"]
    return an_operation(pick, theme, pick(kinds), depth - 1)


def an_operation(pick: Pick, theme: Theme, kind: str, depth: int = 1) -> Operation:
    """Return an operation of a kind."""
    match kind:
        case "submit":
            return ("submit", some_spec(pick, theme, depth))
        case "every":
            return ("every", some_recurrence(pick, theme, depth))
        case "ask":
            what = pick(ASKED)
            return (what, pick(INDICES), pick(PRIORITIES)) if what == "priority" else (what, pick(INDICES))
        case "schedule":
            what = pick(STEPS)
            if what == "run now" and not depth and not theme.endless:
                what = "resume"
            return ("schedule", what, pick(INDICES))
        case "foreign":
            return ("end foreign", pick(INDICES), pick(ENDS)) if chance(pick, 6) else ("foreign",)
        case "settle":
            return ("settle", pick(INDICES), chance(pick, 6))
        case "swap":
            return ("swap", pick(tuple(POLICIES)))
        case "pause" | "resume":
            return (kind,)
        case "step wall":
            return ("step wall", pick((2, -3)))
        case "shutdown":
            return ("shutdown", pick(DRAINS))
        case "advance":
            return ("advance", pick((0.5, 0.25, 1.0, 3.0)))
        case "drain":
            return ("drain", pick((0.5, 1.0)), pick((1, 2, 3)))
        case _:
            return (kind,)


def kinds_for(theme: Theme) -> tuple[str, ...]:
    """Return what is done from outside, each as often as the theme has it."""
    kinds = ["tick"] * 10 + ["submit"] * 12 + ["advance"] * 6 + ["drain"] + ["ask"] * 4 + ["settle"] * 2
    kinds += ["every"] * theme.every + ["schedule"] * theme.every * 2 + ["foreign"] * theme.after
    kinds += ["pause"] * (theme.control // 2) + ["resume"] * theme.control + ["swap"] * theme.control
    kinds += ["step wall"] * theme.at * 2
    return tuple(kinds)


def a_configuration(pick: Pick, theme: Theme) -> dict[str, Any]:
    """Return the arguments of a scheduler."""
    on_full = pick(("reject", "drop_oldest", "drop_lowest", "caller_runs"))
    return {
        "policy": pick(tuple(POLICIES)),
        "workers": pick((1, 2, 3)),
        "history": pick((1000, 1000, 0, 2)),
        "max_pending": pick((1, 2, 3, 4, 5)) if chance(pick, theme.full) else None,
        "on_full": on_full,
        "queue": "indexed" if on_full == "drop_lowest" else pick(("lazy", "indexed")),
        "draw": pick((0.125, 0.25, 0.75)),
    }


def cut_down(program: list[Operation], fails: Callable[[list[Operation]], bool]) -> list[Operation]:
    """Leave out what a failing program does not need to fail."""
    size = len(program)
    while size:
        start, before = 0, len(program)
        while start < len(program):
            shorter = program[:start] + program[start + size :]
            if fails(shorter):
                program = shorter
            else:
                start += size
        if len(program) == before:
            size //= 2
    return program


def a_program(rng: random.Random, theme: Theme, length: int) -> tuple[dict[str, Any], list[Operation]]:
    """Return a configuration and operations; some programs end with a shutdown."""
    configuration = a_configuration(rng.choice, theme)
    kinds = kinds_for(theme)
    operations = [an_operation(rng.choice, theme, rng.choice(kinds)) for _ in range(length)]
    if rng.random() < 0.3:
        operations += [("shutdown", rng.choice(DRAINS)), *[("tick",), ("advance", 0.5)] * 4]
    return configuration, operations


# A thread that keeps the time, or a task that takes some, would come into the worker's way by chance. A worker goes on
# until nothing is due, so a schedule whose runs ask for the next one would never let it rest.
THREADED_THEMES = {
    name: dataclasses.replace(theme, time=0, endless=False) for name, theme in THEMES.items() if name != "time"
}


def a_threaded_program(rng: random.Random, theme: Theme, phases: int) -> tuple[dict[str, Any], list[Operation]]:
    """Return a configuration and operations: in each phase some are asked for during a pause, then time goes on."""
    configuration = a_configuration(rng.choice, theme) | {"workers": 1}
    unwanted = ("tick", "drain", "advance", "pause", "resume")
    kinds = [kind for kind in kinds_for(theme) if kind not in unwanted] + ["clear"]
    program: list[Operation] = []
    for _ in range(phases):
        program.append(("pause",))
        program += [an_operation(rng.choice, theme, rng.choice(kinds)) for _ in range(rng.randrange(1, 8))]
        program += [("resume",), an_operation(rng.choice, theme, "advance")]
    if rng.random() < 0.3:
        program += [("shutdown", rng.choice(DRAINS)), ("advance", 3.0)]
    return configuration, program

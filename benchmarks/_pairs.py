"""Measuring two things in alternation.

What both sides get alike: one unmeasured run each to warm up, the garbage of earlier runs collected before each run and
the collector on while it runs, no pinning to a core. The pairs take turns in who goes first, so a machine that slowly
becomes warmer, or busier, favours nobody; and each ratio is that of one pair, measured within a second or two.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks._rows import Row, Spread


@dataclass(frozen=True)
class Sample:
    """One run: the seconds it took, and whatever else it found, by name."""

    seconds: float
    figures: dict[str, float] = field(default_factory=dict)


Work = Callable[[], "float | Sample"]


def switches() -> int:
    """Return how often this process gave up the processor by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def run_once(work: Work, operations: int) -> Sample:
    """Run it with a clean collector; adds the context switches an operation to its figures."""
    gc.collect()
    before = switches()
    found = work()
    switched = (switches() - before) / operations
    sample = found if isinstance(found, Sample) else Sample(found)
    return Sample(sample.seconds, {"switches": switched, **sample.figures})


def compare(
    key: str,
    question: str,
    peer: str,
    ours: Work,
    theirs: Work,
    *,
    pairs: int,
    operations: int,
    scale: float = 1e6,
    unit: str = "us",
) -> Row:
    """Run both in alternation; each returns the seconds it took for so many operations, or a :class:`Sample`.

    A figure that a side reports comes back as its median, under its name for ours, with ``_theirs`` for theirs, and
    with ``_ratio`` for the median over the pairs of ours by theirs, where that can be said.
    """
    run_once(theirs, operations), run_once(ours, operations)
    rounds = []
    for number in range(pairs):
        if number % 2:
            own, other = run_once(ours, operations), run_once(theirs, operations)
        else:
            other, own = run_once(theirs, operations), run_once(ours, operations)
        rounds.append((own, other))
    return summarise(key, question, peer, rounds, operations=operations, scale=scale, unit=unit)


def tour(works: Mapping[str, Work], rounds: Mapping[str, int], operations: int) -> dict[str, list[Sample]]:
    """Run each of several by turns, for so many rounds each; every other round goes backwards."""
    found: dict[str, list[Sample]] = {name: [] for name in works}
    for number in range(max(rounds.values())):
        names = [name for name in works if number < rounds[name]]
        for name in reversed(names) if number % 2 else names:
            found[name].append(run_once(works[name], operations))
    return found


def summarise(
    key: str,
    question: str,
    peer: str,
    rounds: Sequence[tuple[Sample, Sample]],
    *,
    operations: int = 1,
    scale: float = 1e6,
    unit: str = "us",
) -> Row:
    """Make a row of measured pairs, ours first; see :func:`compare`."""
    figures = {}
    for name in rounds[0][0].figures:
        figures[name] = statistics.median(own.figures[name] for own, _ in rounds)
        both = [(own.figures[name], other.figures[name]) for own, other in rounds if name in other.figures]
        if both:
            figures[f"{name}_theirs"] = statistics.median(second for _, second in both)
        if both and name != "switches" and all(second for _, second in both):
            figures[f"{name}_ratio"] = statistics.median(first / second for first, second in both)
    return Row(
        key,
        question,
        peer,
        Spread.of(other.seconds / own.seconds for own, other in rounds),
        statistics.median(own.seconds for own, _ in rounds) / operations * scale,
        statistics.median(other.seconds for _, other in rounds) / operations * scale,
        unit,
        len(rounds),
        figures,
    )


def in_a_process(child: Callable[..., None], *arguments: object) -> Any:
    """Call ``child(send, *arguments)`` in a fresh process, and return the one thing that it sends."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=child, args=(sender.send, *arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured {', '.join(map(str, arguments))} died") from None
    finally:
        process.join()

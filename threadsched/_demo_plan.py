"""The demonstration's plan: which files are fetched, in which wave, and the figures of a run.

In here: everything that is decided before the first job is submitted, as a pure function of the files
found, the number of workers and the seed. So two runs with the same arguments ask for the same files and
meet the same refusals.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from threadsched._demo_client import Source
from threadsched._demo_server import MAX_REFUSALS, Behaviour

MISSING = "no_such_module.py"

# Lower runs first. Packages open before their modules; the missing file comes in between, so that its failure
# is seen early.
PRIORITY_PACKAGE = 0
PRIORITY_MISSING = 1
PRIORITY_MODULE = 5

RETRIES = MAX_REFUSALS

# The first pause before a retry, in answers' times: large against one, as a backoff should be, and small
# enough for a demonstration.
_BACKOFF_ANSWERS = 5.0

BUSY_SHARE = 0.12

# Seconds that the server's answers take together, divided by the workers: long enough to watch, and short
# enough that the fetch and its comparison stay well within twenty seconds, however many files there are.
_FETCH_TIME = 2.6

# Seconds. With few files the answers would otherwise become so slow that they look like a fault.
_MAX_LATENCY = 0.02

# Seconds from the first submission to the opening of the first wave. Everything is submitted by then,
# so that it is the priority that decides what comes first, and not who was submitted first.
LEAD = 0.3

# The second wave is about so large, and opens after this share of the expected time: before the first is
# through, so that no worker goes idle in between.
_SECOND_WAVE_SHARE = 0.3
_SECOND_WAVE_OPENS = 0.6

# The largest package below this share of all files is the one that gets cancelled.
_DOOMED_SHARE = 0.12


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
        root: The folder that the paths are relative to.
        workers: Worker threads, and so the most requests in flight.
        first: The files of the first wave, by path.
        second: The files of the second wave, by path, those to be cancelled last.
        doomed: The package that is cancelled halfway.
        second_delay: Seconds from the opening of the first wave to that of the second.
        backoff: Seconds before the first retry of a file; each further pause is twice as long.
        behaviour: How the server answers.
    """

    root: Path
    workers: int
    first: tuple[Source, ...]
    second: tuple[Source, ...]
    doomed: str
    second_delay: float
    backoff: float
    behaviour: Behaviour

    @property
    def sources(self) -> tuple[Source, ...]:
        """All files of both waves."""
        return self.first + self.second

    @property
    def paths(self) -> frozenset[str]:
        """All paths that exist; `MISSING` is not among them."""
        return frozenset(source.path for source in self.sources)

    @property
    def doomed_paths(self) -> tuple[str, ...]:
        """The paths of the package that is cancelled halfway."""
        return tuple(source.path for source in self.second if source.package == self.doomed)


def make_plan(root: Path, sources: Sequence[Source], *, workers: int, seed: int) -> Plan:
    """Divide the files into waves and scale the server's answers to their number.

    Raises:
        ValueError: The files are too few to be divided so.
    """
    sizes = Counter(source.package for source in sources if source.package)
    doomed = _largest_below(sizes, _DOOMED_SHARE * len(sources))
    late = _second_wave(sizes, doomed, len(sources))
    first = tuple(source for source in sources if source.package not in late)
    second = [source for source in sources if source.package in late]
    second.sort(key=lambda source: source.package == doomed)
    if not first or not doomed:
        raise ValueError(f"{len(sources)} Python files are too few to show anything")
    requests = len(sources) / (1 - BUSY_SHARE)
    latency = min(_MAX_LATENCY, _FETCH_TIME * workers / requests)
    return Plan(
        root=root,
        workers=workers,
        first=first,
        second=tuple(second),
        doomed=doomed,
        second_delay=_SECOND_WAVE_OPENS * requests * latency / workers,
        backoff=_BACKOFF_ANSWERS * latency,
        behaviour=Behaviour(seed, BUSY_SHARE, latency),
    )


def _largest_below(sizes: Counter[str], most: float) -> str:
    """Return the largest package of at most `most` files, or an empty string if there is none."""
    fitting = [(-count, package) for package, count in sizes.items() if count <= most]
    return min(fitting)[1] if fitting else ""


def _second_wave(sizes: Counter[str], doomed: str, files: int) -> frozenset[str]:
    """Choose the packages that come later: the one to be cancelled, and the largest others that still fit."""
    room = _SECOND_WAVE_SHARE * files - sizes[doomed]
    late = {doomed}
    for package, count in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if package != doomed and count <= room:
            late.add(package)
            room -= count
    return frozenset(late)

"""What is explored: every pair of operations, triples that matter, on one to three workers, and how thoroughly.

A case is known by its name, ``operation+operation/workers/granularity``, from which it can be made again.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.explorer.kernel import Kernel
from tests.explorer.lines import EVERYWHERE, OUTSIDE
from tests.explorer.operations import OPERATIONS
from tests.explorer.primitives import SIM_THREADING
from tests.explorer.search import Scenario
from tests.explorer.stage import Stage

# How fine the points are.
FINE = "fine"  # before and after each synchronisation operation
COARSE = "coarse"  # before each acquisition: see Kernel.after
LINES = "lines"  # as fine, and at each line of the package where its lock is not held

# The files whose lines are points: where threads meet. What is only text, options and checks of arguments is not here.
FILES = dict.fromkeys(
    (
        "_awaiting.py",
        "_dependencies.py",
        "_ending.py",
        "_exit.py",
        "_full.py",
        "_helping.py",
        "_outcome.py",
        "_pool.py",
        "_reorder.py",
        "_runtime.py",
        "_shared.py",
        "_waiting.py",
        "_worker.py",
    ),
    OUTSIDE,
)
FILES["_job.py"] = EVERYWHERE  # a job's fields are read without the lock


@dataclass(frozen=True)
class Case:
    """Operations that meet on one stage."""

    operations: tuple[str, ...]
    workers: int = 1
    granularity: str = FINE

    @property
    def name(self) -> str:
        """Its name, from which :func:`case_of` makes it again."""
        return f"{'+'.join(self.operations)}/{self.workers}/{self.granularity}"

    def scenario(self) -> Scenario:
        """Return it as something to run."""
        operations = [OPERATIONS[name] for name in self.operations]
        needs = {need for operation in operations for need in operation.needs}
        closes = any(operation.closes for operation in operations)
        gives_up = any(operation.gives_up for operation in operations)

        def body(kernel: Kernel) -> None:
            kernel.quiet = True
            stage = Stage(kernel, self.workers, needs)
            threads = []
            for at, operation in enumerate(operations):
                name = f"{operation.name} {at + 1}"
                threads.append(SIM_THREADING.Thread(target=operation.act, args=(stage,), name=name))
                threads[-1].start()
            kernel.quiet = False
            kernel.settle()
            kernel.quiet = True
            stage.finish()
            for thread in threads:
                thread.join()
            kernel.settle()
            stage.close()
            if stage.refused and not closes:
                kernel.fail("refused", f"{stage.refused} submissions were refused")
            if not gives_up:
                lost = [track.name for track in stage.tracks if track.job.cancelled()]
                if lost:
                    kernel.fail("lost", f"cancelled, and nobody cancels: {lost}")

        lines = FILES if self.granularity == LINES else None
        explore_time = any(operation.explore_time for operation in operations)
        threads = any(operation.loops for operation in operations)
        coarse = self.granularity == COARSE
        return Scenario(self.name, body, explore_time=explore_time, coarse=coarse, threads=threads, lines=lines)


def case_of(name: str) -> Case:
    """Make a case from its name."""
    operations, workers, granularity = name.split("/")
    return Case(tuple(operations.split("+")), int(workers), granularity)


@dataclass(frozen=True)
class Section:
    """Cases that are explored alike."""

    title: str
    cases: tuple[Case, ...]
    bound: int
    """Preemptions up to which all schedules of each case are run."""
    turns: int | None = None
    """Likewise, how often another than the next in line follows a thread that is blocked or ends; None: any number."""


# Operations that decide who gets a job, who sleeps and who is told; the others are variations of them.
CORE = ("submit", "submit_delayed", "cancel", "settle", "shutdown_due", "callback", "result", "wait", "drop", "block")

# Where what is read without the lock decides something.
READERS = (
    ("submit", "shutdown"),
    ("submit", "policy"),
    ("cancel", "settle"),
    ("settle", "callback"),
    ("settle", "result"),
    ("settle", "wait"),
    ("cancel", "wait"),
    ("cancel", "result"),
    ("retry", "cancel"),
    ("block", "cancel"),
    ("nested", "settle"),
    ("drop", "submit"),
)

TRIPLES = (
    ("submit", "cancel", "shutdown_none"),
    ("submit", "submit", "shutdown"),
    ("submit", "submit_delayed", "close"),
    ("submit", "pause", "resume"),
    ("submit", "policy", "set_priority"),
    ("submit", "cancel", "drop"),
    ("submit_delayed", "cancel_delayed", "promote"),
    ("long", "submit_delayed", "cancel_delayed"),
    ("submit", "submit_delayed", "between"),
    ("claim", "cancel", "settle"),
    ("claim", "wait", "cancel"),
    ("settle", "cancel", "wait"),
    ("settle", "cancel", "as_completed"),
    ("settle", "cancel", "callback"),
    ("settle", "result", "result"),
    ("settle", "after", "cancel"),
    ("settle", "nested", "cancel"),
    ("settle", "nested", "shutdown_due"),
    ("result_timeout", "nested", "every"),
    ("settle", "limited", "limited"),
    ("settle", "limited", "shutdown_due"),
    ("retry", "cancel", "shutdown_due"),
    ("retry", "request_cancel", "result"),
    ("block", "block", "cancel"),
    ("block", "cancel_delayed", "shutdown_due"),
    ("block", "wait_below", "clear"),
    ("every", "promote", "shutdown_due"),
    ("wait_idle", "cancel_delayed", "settle"),
    ("close", "shutdown_due", "cancel_delayed"),
)

# Each overrun brings a watcher, two that tell, and a successor.
OVERRUNS = (
    ("timeout", "shutdown", "submit"),
    ("timeout", "shutdown_none", "result"),
    ("timeout", "retry", "cancel"),
    ("timeout", "pause", "resume"),
    ("timeout", "cancel", "drop"),
    ("timeout", "nested", "settle"),
    ("timeout", "limited", "shutdown_due"),
    ("timeout", "expires", "request_cancel"),
)

# Operations that start workers, or race with that, and need no job to be there.
COLD = (
    "submit",
    "submit_delayed",
    "start",
    "every",
    "timeout",
    "look",
    "shutdown",
    "shutdown_due",
    "shutdown_none",
    "close",
    "drop",
    "pause",
    "policy",
    "wait_idle",
    "wait_below",
    "start_refused_1",
)

# Where a thread that is not there, or dies, is missed.
MANNED = ("submit", "claim", "cancel", "settle", "retry", "shutdown", "shutdown_none", "result", "drop", "nested")


# What is paired with everything.
PAIRED = tuple(OPERATIONS)[: tuple(OPERATIONS).index("timeout")]


def pairs(operations: Iterable[str] = PAIRED) -> Iterator[tuple[str, ...]]:
    """Give every unordered pair of operations, each with itself too."""
    return itertools.combinations_with_replacement(operations, 2)


def against(firsts: Iterable[str], others: Iterable[str], workers: int = 1) -> tuple[Case, ...]:
    """Set each of some operations against each of others."""
    return tuple(Case(pair, workers, COARSE) for pair in itertools.product(firsts, others))


# What is explored whole by `make proof`. The page docs/reference/explored.md has a table for each.
SECTIONS = {
    "pairs": Section("Every pair of operations, one worker", tuple(Case(pair) for pair in pairs()), 1),
    "deeper": Section(
        "Pairs of the core operations, one worker, deeper", tuple(Case(pair, 1, COARSE) for pair in pairs(CORE)), 2, 3
    ),
    "wider": Section(
        "Pairs of the core operations, two workers", tuple(Case(pair, 2, COARSE) for pair in pairs(CORE)), 1
    ),
    "lines": Section("Pairs at lines, one worker", tuple(Case(pair, 1, LINES) for pair in READERS), 1),
    "limits": Section("Overruns, one worker", against(("timeout",), (*PAIRED, "timeout")), 1, 2),
    "overruns": Section(
        "Triples with an overrun, one worker", tuple(Case(triple, 1, COARSE) for triple in OVERRUNS), 1, 2
    ),
    "starts": Section(
        "Threads that cannot start, two workers",
        against(("start_refused_1", "start_refused_2", "start_refused_3"), COLD, 2),
        1,
        2,
    ),
    "deaths": Section(
        "Workers that die, one worker", against(("die",), PAIRED) + against(("die_refused",), MANNED), 1, 2
    ),
    "successors": Section(
        "Overruns where a thread cannot start, one worker",
        against([f"timeout_refused_{number}" for number in range(1, 6)], MANNED),
        1,
        1,
    ),
    "coroutines": Section(
        "Coroutines, one worker",
        against(("await_later", "resolve"), PAIRED) + against(("timeout_on_loop",), CORE),
        1,
        2,
    ),
    "loops": Section("Coroutines, two workers", against(("await_first", "resolve"), CORE, 2), 1, 1),
    "forks": Section(
        "Forks, one worker", against(("fork",), (*PAIRED, "timeout")) + against(("fork_inside",), CORE), 1, 1
    ),
    "triples": Section(
        "Triples, one and two workers",
        tuple(Case(triple, workers, COARSE) for workers in (1, 2) for triple in TRIPLES),
        1,
        2,
    ),
    "crowds": Section("Triples, three workers", tuple(Case(triple, 3, COARSE) for triple in TRIPLES + OVERRUNS), 0, 3),
}

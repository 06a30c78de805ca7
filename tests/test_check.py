"""``Scheduler.check()``: each invariant of pool and gate, broken by hand, is named."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core_driver import make_job
from threadsched import InvariantError
from threadsched._gate import Gate
from threadsched._locks import make_token
from threadsched._worker import Worker
from threadsched.testing import StepScheduler


def arrived(runtime: Any, number: int) -> Worker:
    worker = Worker(runtime, number)
    assert runtime.arrive(worker)
    return worker


def two_watch(runtime: Any) -> None:
    runtime.watch += [arrived(runtime, number).token for number in range(2)]


def on_two_lists(runtime: Any) -> None:
    token = arrived(runtime, 0).token
    runtime.idle.append(token)
    runtime.watch.append(token)


def has_left(runtime: Any) -> None:
    runtime.idle.append(make_token())


def too_many_run(runtime: Any) -> None:
    runtime.stepped = False
    job = next(iter(runtime.core.pending.values()))
    worker = Worker(runtime, 0)
    runtime.core.promote(0.0)
    assert runtime.core.claim(0.0, worker) is job


def waits_and_does_not_run(runtime: Any) -> None:
    runtime.awaits[99] = []


def stands_in_and_is_awake(runtime: Any) -> None:
    runtime.stand_in = object()


def granted_and_in_line(runtime: Any) -> None:
    gate = runtime.core.gate = Gate(1)
    job = make_job()
    gate.line[job] = make_token()
    gate.grants[job] = None


def waits_for_nobody_knows_what(runtime: Any) -> None:
    runtime.core.gate = Gate(None)
    runtime.core.gate.below.append(make_token())


DAMAGES: dict[Callable[[Any], None], str] = {
    two_watch: "two workers watch the delayed heap",
    on_two_lists: "a worker stands on two lists of sleepers",
    has_left: "a worker that has left is on a list of sleepers",
    too_many_run: "more jobs run than there are workers",
    waits_and_does_not_run: "a job waits for another and does not run",
    stands_in_and_is_awake: "who stands in for the watch is not asleep",
    granted_and_in_line: "a producer with a grant stands in the line",
    waits_for_nobody_knows_what: "somebody waits for nobody knows how few pending jobs",
}


@pytest.mark.parametrize("damage", list(DAMAGES), ids=lambda damage: damage.__name__)
def test_check_names_what_is_broken(damage: Callable[[Any], None]):
    """A sound scheduler passes; with one thing broken the check names that thing."""
    scheduler = StepScheduler(2)
    runtime = scheduler._runtime
    job = scheduler.submit(int)
    scheduler.check()
    damage(runtime)
    with pytest.raises(InvariantError, match=f"^{DAMAGES[damage]}$"):
        scheduler.check()
    job.done()

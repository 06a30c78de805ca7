"""The stepped scheduler against 200 recorded runs of an independent implementation of the same rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from threadsched import DuplicateJobError, FifoPolicy, OldestDuePolicy, PriorityPolicy, SchedulerClosedError
from threadsched.testing import FakeClock, StepScheduler

TRACES = json.loads((Path(__file__).parent / "data" / "step-traces.json").read_text())
POLICIES = {"priority": PriorityPolicy, "fifo": FifoPolicy, "oldest-due": OldestDuePolicy}


def failing_task(name: str, fails: int) -> Callable[[], str]:
    """Return a task that raises the first ``fails`` times."""
    calls = 0

    def task() -> str:
        nonlocal calls
        calls += 1
        if calls <= fails:
            raise Exception(f"boom {name}")
        return f"ok {name}"

    return task


def shown(ran: list[Any]) -> list[dict[str, Any]]:
    return [{"worker": one.worker, "id": one.id, "status": one.status.name} for one in ran]


def replay(trace: dict[str, Any], queue: str) -> None:
    clock = FakeClock(trace["start"])
    scheduler = StepScheduler(trace["workers"], policy=POLICIES[trace["policy"]](), clock=clock, queue=queue)
    jobs: dict[str, Any] = {}
    for op in trace["ops"]:
        match op["op"]:
            case "submit":
                spec = {"backoff": 10, **op["spec"]}
                try:
                    job = scheduler.options(**spec).submit(failing_task(spec["id"], op["fails"]))
                except DuplicateJobError:
                    assert (op["ok"], op["err"]) == (False, "duplicate")
                else:
                    assert op["ok"]
                    jobs[spec["id"]] = job
            case "cancel":
                assert scheduler.cancel(op["id"]) is op["result"]
            case "advance":
                clock.advance(op["by"])
                assert clock.now() == op["now"]
            case "tick":
                assert shown(scheduler.tick()) == op["ran"]
            case "status":
                status = scheduler.status_of(op["id"])
                assert (status and status.name) == op["status"]
            case "drain":
                assert shown(scheduler.drain(op["step"], 1000)) == op["ran"]
                assert clock.now() == op["now"]
            case "final":
                assert {id: job.status.name for id, job in jobs.items()} == op["status"]
                assert {id: job.attempts for id, job in jobs.items()} == op["attempts"]
            case "shutdown":
                scheduler.shutdown()
                with pytest.raises(SchedulerClosedError):
                    scheduler.submit(int)
        scheduler.check()
    for job in jobs.values():
        if job.done() and not job.cancelled():
            job.exception()  # asked, so nothing is logged for it


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: f"seed{trace['seed']}")
def test_recorded_run_is_reproduced(trace: dict[str, Any], queue: str) -> None:
    """Each recorded run comes out the same, operation by operation, with either queue structure."""
    replay(trace, queue)

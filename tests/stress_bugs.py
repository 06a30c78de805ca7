"""Broken schedulers, for the tests of `python -m threadsched stress`: each function puts one bug into the package.

`BUGS` tells for each what the run must say about it; an empty text where that depends on who notices first.
"""

import dataclasses
import itertools
import logging
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest

from threadsched import Scheduler, Stats, _core, _ending, _inspect, _job, _locks, _policy, _runtime, _worker
from threadsched._errors import InvariantError

# Set when a broken scheduler's thread that hangs may end.
LET_GO = threading.Event()


def every(count: int) -> Any:
    """Return a function that is true at every `count`-th call, on whichever thread."""
    calls = itertools.count(1)
    return lambda: next(calls) % count == 0


class Runner:
    """Stands for the context in which a worker runs a task."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run


def run_twice(patch: pytest.MonkeyPatch) -> None:
    """A worker runs a task twice."""
    due = every(50)

    def run(fn: Any, *args: Any) -> Any:
        if due():
            fn(*args)
        return fn(*args)

    patch.setattr(_worker, "Context", lambda: Runner(run))


def run_once_more_later(patch: pytest.MonkeyPatch) -> None:
    """A worker runs a task again that it ran a thousand jobs ago."""
    ran: list[Any] = []

    def run(fn: Any, *args: Any) -> Any:
        ran.append((fn, args))
        if len(ran) == 1000:
            fn, args = ran[10]
        return fn(*args)

    patch.setattr(_worker, "Context", lambda: Runner(run))


def lose_jobs(patch: pytest.MonkeyPatch) -> None:
    """A job is accepted and stands in no queue; the audit, which would notice, does not look."""
    patch.setattr(_inspect, "check", lambda runtime: None)
    genuine, due = _core.Core.turn, every(300)

    def turn(self: Any, *arguments: Any) -> Any:
        if due():
            self.ready.pop()
        return genuine(self, *arguments)

    patch.setattr(_core.Core, "turn", turn)


def drop_jobs(patch: pytest.MonkeyPatch) -> None:
    """A job is claimed, counted as nothing, and forgotten."""
    genuine, due = _core.Core.claim, every(300)

    def claim(self: Any, now: float, place: object) -> Any:
        job = genuine(self, now, place)
        if job is not None and due():
            self.running.pop(job.seq)
            return genuine(self, now, place)
        return job

    patch.setattr(_core.Core, "claim", claim)


def drop_futures(patch: pytest.MonkeyPatch) -> None:
    """A job is counted as done, and its future stays open."""
    genuine, due = _job.Job._finish, every(300)

    def finish(self: Any, *args: Any) -> None:
        if not due():
            genuine(self, *args)

    patch.setattr(_job.Job, "_finish", finish)


def reverse_priorities(patch: pytest.MonkeyPatch) -> None:
    """The least urgent job goes first."""
    patch.setitem(_policy._TRUSTED, _policy.PriorityPolicy, lambda job: -job._priority)


def ignore_priorities(patch: pytest.MonkeyPatch) -> None:
    """The urgent job waits for its turn."""
    patch.setitem(_policy._TRUSTED, _policy.PriorityPolicy, operator.attrgetter("_no_rank"))


def confuse_ties(patch: pytest.MonkeyPatch) -> None:
    """Of equals, the last one goes first."""
    genuine = _core.Core.enter

    def enter(self: Any, job: Any, seq: int) -> Any:
        job._key = job._key * 1_000_000 - seq
        return genuine(self, job, seq)

    patch.setattr(_core.Core, "enter", enter)


def number_backwards(patch: pytest.MonkeyPatch) -> None:
    """A later submission has the lower number."""
    genuine = _core.Core.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        genuine(self, *args, **kwargs)
        self.numbers = itertools.count(10**6, -1)

    patch.setattr(_core.Core, "__init__", make)


def start_early(patch: pytest.MonkeyPatch) -> None:
    """Jobs are due a little before their time."""
    genuine = _core.Core.promote
    patch.setattr(_core.Core, "promote", lambda self, now: genuine(self, now + 0.02))


def boast_of_cancels(patch: pytest.MonkeyPatch) -> None:
    """A cancel says True whether it did anything or not."""
    genuine = Scheduler.cancel
    patch.setattr(Scheduler, "cancel", lambda self, job_id: genuine(self, job_id) or True)


def run_cancelled(patch: pytest.MonkeyPatch) -> None:
    """A cancelled job is started all the same."""
    genuine, due = _ending.Ending.cancel, every(20)

    def cancel(self: Any, job: Any) -> bool:
        task, args = job._fn, job._args
        answer = genuine(self, job)
        if answer and due():
            task(*args)
        return answer

    patch.setattr(_ending.Ending, "cancel", cancel)


def forget_callbacks(patch: pytest.MonkeyPatch) -> None:
    """A done-callback is not called."""
    genuine, due = _ending.Ending.run_callbacks, every(50)
    patch.setattr(_ending.Ending, "run_callbacks", lambda self, job: None if due() else genuine(self, job))


def repeat_callbacks(patch: pytest.MonkeyPatch) -> None:
    """A done-callback is called twice."""
    genuine, due = _ending.call_hook, every(50)

    def call_hook(*args: Any) -> None:
        genuine(*args)
        if due():
            genuine(*args)

    patch.setattr(_ending, "call_hook", call_hook)


def mix_up_results(patch: pytest.MonkeyPatch) -> None:
    """A job gets the result of another one."""
    genuine, due = _core.Core.finish, every(300)

    def finish(self: Any, job: Any, result: Any, *rest: Any) -> Any:
        return genuine(self, job, result + 1 if due() else result, *rest)

    patch.setattr(_core.Core, "finish", finish)


def mix_up_errors(patch: pytest.MonkeyPatch) -> None:
    """A job fails with an error that is not its task's."""
    genuine = _job.Failure.__init__
    patch.setattr(_job.Failure, "__init__", lambda self, job, error: genuine(self, job, ValueError(str(error))))


def retry_once_too_often(patch: pytest.MonkeyPatch) -> None:
    """A job is started more often than it is allowed."""
    genuine, due = _job.Job._claim, every(2)

    def claim(self: Any, *args: Any) -> None:
        genuine(self, *args)
        if self._attempts == 2 and due():
            self._attempts = 1

    patch.setattr(_job.Job, "_claim", claim)


def count_wrong(patch: pytest.MonkeyPatch) -> None:
    """stats() knows a job too many now and then."""
    genuine, due = _inspect.stats, every(7)

    def stats(runtime: Any) -> Stats:
        found = genuine(runtime)
        return dataclasses.replace(found, ready=found.ready + 1) if due() else found

    patch.setattr(_inspect, "stats", stats)


def break_the_audit(patch: pytest.MonkeyPatch) -> None:
    """check() finds a broken invariant."""

    def check(runtime: Any) -> None:
        raise InvariantError("the ready queue is out of order")

    patch.setattr(_inspect, "check", check)


def miscount_retries(patch: pytest.MonkeyPatch) -> None:
    """A retry is counted twice."""
    genuine = _core.Core.retry

    def retry(self: Any, *args: Any) -> Any:
        self.retries += 1
        return genuine(self, *args)

    patch.setattr(_core.Core, "retry", retry)


def sleep_on(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a result is not woken."""

    def release_all(tokens: list[Any]) -> None:
        pass

    patch.setattr(_locks, "release_all", release_all)


def leave_a_thread(patch: pytest.MonkeyPatch) -> None:
    """A thread of the scheduler's stays after its shutdown."""
    genuine = _worker.Worker.serve

    def serve(self: Any) -> None:
        genuine(self)
        if self.number == 0:
            LET_GO.wait(10)

    patch.setattr(_worker.Worker, "serve", serve)


def accept_after_shutdown(patch: pytest.MonkeyPatch) -> None:
    """A submission is accepted after shutdown()."""
    genuine = Scheduler.submit

    def submit(self: Scheduler, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return object() if fn is int else genuine(self, fn, *args, **kwargs)

    patch.setattr(Scheduler, "submit", submit)


def log_an_error(patch: pytest.MonkeyPatch) -> None:
    """Something goes wrong and is logged, and nobody notices otherwise."""
    genuine, due = _core.Core.promote, every(100)

    def promote(self: Any, now: float) -> Any:
        if due():
            logging.getLogger("threadsched").error("something went wrong")
        return genuine(self, now)

    patch.setattr(_core.Core, "promote", promote)


def refuse_submissions(patch: pytest.MonkeyPatch) -> None:
    """A submission fails for no reason."""
    genuine, due = _runtime.Runtime.submit, every(300)

    def submit(self: Any, *args: Any) -> Any:
        if due():
            raise RuntimeError("no reason")
        return genuine(self, *args)

    patch.setattr(_runtime.Runtime, "submit", submit)


BUGS = {
    run_twice: "was started",
    run_once_more_later: "was started again in a later round",
    lose_jobs: "nothing has moved for 0.5 s",
    drop_jobs: "",
    drop_futures: "",
    reverse_priorities: "which was ready and ranks before it",
    ignore_priorities: "which was ready and ranks before it",
    confuse_ties: "which was ready and ranks before it",
    number_backwards: "has number",
    start_early: "before its time",
    boast_of_cancels: "cancel had said True",
    run_cancelled: "cancel had said True",
    forget_callbacks: "was called 0 times",
    repeat_callbacks: "was called 2 times",
    mix_up_results: "has the result",
    mix_up_errors: "for another reason than its own",
    retry_once_too_often: "was started",
    count_wrong: "pending is not delayed + ready + waiting",
    break_the_audit: "check() found that the ready queue is out of order",
    miscount_retries: "by each job's account",
    sleep_on: "sleeps on",
    leave_a_thread: "1 threads were left behind: stress_0",
    accept_after_shutdown: "after shutdown() was accepted",
    log_an_error: "the scheduler logged an error: something went wrong",
    refuse_submissions: "a submitter met RuntimeError: no reason",
}

"""Calls of the user's that are struck: what came of them is told to everybody, however the strike came in."""

import itertools
import sys
from typing import Any

import pytest

from tests.core_driver import Driver
from tests.crowds import PATIENCE, Gate
from tests.faults.table import program
from tests.gates import in_thread
from tests.injector import Injector
from tests.support import exhaustive, rng, sample
from threadsched import Job, Scheduler, WorkerDiedError
from threadsched._rules import Rule

pytestmark = pytest.mark.proof

OPERATIONS = ("submit", "cancel", "result", "shutdown", "shutdown_wait")
STRIKES = ("submit", "cancel", "stats", "shutdown")
WAYS = ("signal", "finalizer", "weakref")
CASES = [
    (operation, strike, WAYS[number % len(WAYS)])
    for number, (operation, strike) in enumerate(itertools.product(OPERATIONS, STRIKES))
]


@pytest.mark.subprocess
@pytest.mark.parametrize(("operation", "strike", "way"), sample(CASES, 3, "ways in"))
def test_each_way_in_at_every_line(operation: str, strike: str, way: str) -> None:
    """A signal handler, a finalizer and a weakref's callback at any line of a call lose nothing and hang nobody."""
    step = 1 if exhaustive() else 9
    offset = rng(f"ways {operation} {strike} {way}").randrange(step)
    program("tests.sweep", operation, strike, "lazy", "lines", str(step), str(offset), way)


@pytest.mark.subprocess
@pytest.mark.parametrize("variant", ["lazy", "indexed"])
def test_ctrl_c_at_every_point_of_a_waiting_shutdown(variant: str) -> None:
    """A KeyboardInterrupt anywhere in ``shutdown()`` leaves a scheduler that can be shut down again."""
    step = 1 if exhaustive() else 9
    program("tests.sweep", "shutdown_wait", "interrupt", variant, "exact", str(step), "0")


class Held(Rule):
    """A rule that holds its job back until it is told otherwise."""

    def __init__(self) -> None:
        self.free = False

    def admits(self, job: Job[Any]) -> bool:
        return self.free

    def ended(self, job: Job[Any], now: float) -> None:
        return


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_cancel_that_breaks_in_while_a_rule_lets_a_job_go(queue: str) -> None:
    """A handler that cancels the job just as it leaves the waiting map leaves no entry behind that nobody counted."""
    driver, rule = Driver(queue), Held()
    job = driver.submit(rules=(rule,))

    class Breaking(dict[int, Job[Any]]):
        def pop(self, *key: Any) -> Any:
            found = super().pop(*key)
            driver.cancel(job)
            return found

    rule.free = True
    driver.core.waiting = Breaking(driver.core.waiting)
    driver.core.release(job)
    assert job.cancelled()
    driver.check()
    driver.promote(100.0)
    driver.check()


class StruckError(BaseException):
    """Thrown into a thread."""


def strike() -> None:
    raise StruckError


def struck_everywhere(prepare: Any) -> int:
    """Call `prepare()` for (operation, verify) and strike the operation at each point in turn; return how many."""
    at = 0
    while True:
        at += 1
        operation, verify = prepare()
        injector = Injector(strike, at, exact=True)
        try:
            injector.run(operation)
        except StruckError:
            pass
        verify(injector.where)
        if not injector.struck:
            return at - 1


def behind_a_gate(scheduler: Scheduler) -> tuple[Gate, Job[int]]:
    """Keep the one worker at a gate, and return that and a job which waits for the worker."""
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    return gate, scheduler.submit(int)


@pytest.mark.parametrize("outcome", ["result", "error"])
def test_whoever_waits_is_told_though_the_teller_was_struck(outcome: str) -> None:
    """An exception strikes in ``set_result`` once the job has ended: waiters and callbacks hear of it all the same.

    They did not: only a cancel that was broken off was handed on to a worker.
    """
    with Scheduler(1) as scheduler:

        def prepare() -> Any:
            gate, job = behind_a_gate(scheduler)
            told: list[Any] = []
            job.add_done_callback(told.append)
            assert job._condition is not None  # as wait() makes it
            heard: list[str] = []
            job._waiters.append(Waiter(heard))
            sleeper = in_thread(lambda: job.exception(PATIENCE))
            assert job.claim()

            def settle() -> None:
                job.set_result(1) if outcome == "result" else job.set_exception(ValueError())

            def verify(where: str) -> None:
                if not job.done():
                    settle()  # it has not happened
                gate.open()
                sleeper()
                scheduler.submit(int).result(PATIENCE)
                scheduler.submit(int).result(PATIENCE)
                # The one callback that was in hand, taken off the list and not yet called, may go with the strike.
                assert told == [job] or where.startswith(("Ending.run_callbacks", "call_hook")), where
                assert len(told) <= 1, where
                assert heard == [outcome], where

            return settle, verify

        assert struck_everywhere(prepare) > 20


def test_a_failure_told_to_a_callback_is_not_unseen_though_the_call_was_struck(caplog: Any) -> None:
    """The strike may take the callback in hand with it: the log does not say then that nobody asked for the result."""
    with Scheduler(1) as scheduler:

        def prepare() -> Any:
            gate, job = behind_a_gate(scheduler)
            job.add_done_callback(lambda job: None)
            assert job.claim()

            def settle() -> None:
                job.set_exception(ValueError("on purpose"))

            def verify(where: str) -> None:
                nonlocal job
                if not job.done():
                    settle()
                gate.open()
                for _ in range(2):  # of which one is given what was left to tell
                    scheduler.submit(int).result(PATIENCE)
                del job
                assert not [record.getMessage() for record in caplog.records], where

            return settle, verify

        assert struck_everywhere(prepare) > 20


class Waiter:
    """What `wait` puts among a job's waiters."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def add_result(self, future: object) -> None:
        self.heard.append("result")

    def add_exception(self, future: object) -> None:
        self.heard.append("error")

    def add_cancelled(self, future: object) -> None:
        self.heard.append("cancelled")


# A strike may land where Python closes a generator: it reports that, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_job_claimed_by_a_struck_helper_ends() -> None:
    """A job that a waiting worker has claimed, and an exception keeps it from running, ends with WorkerDiedError.

    It stayed RUNNING for ever, on a thread that had gone on.
    """
    ends: set[str] = set()
    with Scheduler(1) as scheduler:
        at = 0
        struck = True
        while struck:
            at += 1
            inner: list[Any] = []
            injector = Injector(strike, at, exact=True)

            def outer(injector: Injector = injector, inner: list[Any] = inner) -> Any:
                inner.append(scheduler.submit(int))
                before = sys.gettrace()
                try:
                    return injector.run(inner[0].result)
                finally:
                    sys.settrace(before)

            error = scheduler.submit(outer).exception(PATIENCE)
            assert error is None or isinstance(error, StruckError), injector.where
            fate = inner[0].exception(PATIENCE)
            assert fate is None or isinstance(fate, (StruckError, WorkerDiedError)), injector.where
            ends.add(type(fate).__name__)
            scheduler.wait_idle(PATIENCE)
            scheduler.check()
            struck = injector.struck
        assert at > 50
    assert ends == {"NoneType", "WorkerDiedError"} or ends == {"NoneType", "WorkerDiedError", "StruckError"}

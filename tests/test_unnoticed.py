"""Faults that were seeded by hand, or found by a sweep, and that no other test noticed: one test for each."""

from typing import Any

import pytest

from tests.core_driver import Driver, make_job
from threadsched import Job, Scheduler
from threadsched._waiting import Waiting


class Refusing:
    """A rule that refuses a submission by an exception, as the run of a schedule does that is not wanted any more."""

    def admits(self, job: Job[Any]) -> bool:
        raise LookupError

    def may_start(self, job: Job[Any], now: float) -> bool:
        return True

    def started(self, job: Job[Any], now: float) -> None:
        pass

    def ended(self, job: Job[Any], now: float) -> None:
        pass


def test_a_refused_submission_that_is_not_withdrawn_is_held_back_nowhere():
    """Ctrl-C that strikes as a refused submission is about to be withdrawn leaves nothing among the waiting."""
    core = Driver().core
    job = make_job()
    job._attach().rules = (Refusing(),)
    job._key = 5
    with pytest.raises(LookupError):
        core.enter(job, next(core.numbers))
    # Here strikes Ctrl-C: no withdraw().
    core.entering = None  # as the next turn does
    core.check_invariants()
    assert not core.waiting


def test_wait_below_that_is_interrupted_before_it_sleeps_stands_on_no_list(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C between the registration and the sleep: nobody is waited for, and nobody pays for a gate."""

    def struck(self: Waiting, token: object, registry: object, timeout: object) -> bool:
        raise KeyboardInterrupt

    with Scheduler(1) as s:
        s.options(delay=60).submit(int)
        with monkeypatch.context() as patch:
            patch.setattr(Waiting, "_wait_on", struck)
            with pytest.raises(KeyboardInterrupt):
                s.wait_below(1)
        s.check()
        assert s._runtime.core.gate is None
        s.clear()

"""Job options: what is accepted, what is refused, and that defaults cost nothing."""

import math
from datetime import timedelta
from typing import Any

import pytest

from threadsched import Retry, Scheduler, Submitter
from threadsched._options import DEFAULTS, Options, make_options
from threadsched.testing import StepScheduler


def test_defaults():
    """Without options a job is ready at once, with priority 5, its submitter's context and no retry."""
    assert (DEFAULTS.id, DEFAULTS.name, DEFAULTS.delay, DEFAULTS.priority) == (None, None, 0.0, 5)
    assert (DEFAULTS.context, DEFAULTS.retry) == (True, None)
    assert {slot: getattr(make_options({}), slot) for slot in Options.__slots__} == {
        slot: getattr(DEFAULTS, slot) for slot in Options.__slots__
    }


def test_values_are_checked_and_plain():
    """Each option comes back as the plain value that the scheduler works with."""
    options = make_options(
        {
            "id": "a",
            "name": "b",
            "delay": timedelta(minutes=1),
            "priority": -2.5,
            "retries": 3,
            "backoff": 2,
            "context": False,
        }
    )
    assert (options.id, options.name, options.delay, options.priority, options.context) == ("a", "b", 60.0, -2.5, False)
    assert options.retry is not None
    assert (options.retry.retries, options.retry.backoff, options.retry.factor) == (3, 2.0, 2.0)


def test_backoff_is_a_hundredth_of_a_second_unless_said():
    """Retries alone bring the default backoff."""
    retry = make_options({"retries": 1}).retry
    assert retry is not None
    assert retry.backoff == 0.01


@pytest.mark.parametrize("given", [{}, {"retries": 0}, {"backoff": 5}, {"retry": Retry(0)}, {"retry": None}])
def test_no_retries_means_no_rule(given: dict[str, object]):
    """A job that is never retried carries no retry rule, so its end costs nothing extra."""
    assert make_options(given).retry is None


def test_retry_is_taken_as_it_is():
    """A Retry object is shared, not copied."""
    retry = Retry(2, jitter=0.5)
    assert make_options({"retry": retry}).retry is retry


@pytest.mark.parametrize("extra", [{"retries": 1}, {"backoff": 1}, {"retries": 0}, {"retries": 1, "backoff": 1}])
def test_retry_excludes_the_short_forms(extra: dict[str, object]):
    """A Retry together with retries or backoff is a TypeError: one of the two would be ignored."""
    with pytest.raises(TypeError, match="retry cannot be given together"):
        make_options({"retry": Retry(1), **extra})


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"id": 7}, TypeError),
        ({"id": b"a"}, TypeError),
        ({"name": 7}, TypeError),
        ({"delay": "1"}, TypeError),
        ({"delay": None}, TypeError),
        ({"delay": True}, TypeError),
        ({"delay": -1}, ValueError),
        ({"delay": math.nan}, ValueError),
        ({"delay": math.inf}, ValueError),
        ({"priority": "high"}, TypeError),
        ({"priority": True}, TypeError),
        ({"priority": math.nan}, ValueError),
        ({"retries": -1}, ValueError),
        ({"retries": 1.5}, TypeError),
        ({"backoff": -1}, ValueError),
        ({"backoff": "1"}, TypeError),
        ({"retry": 3}, TypeError),
        ({"context": 1}, TypeError),
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(given: dict[str, object], kind: type[Exception]):
    """A bad value is a TypeError or ValueError that names the option, before any job exists."""
    (name,) = given
    with pytest.raises(kind, match=name):
        make_options(given)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("priorty", "priority"), ("retrys", "retry"), ("dely", "delay"), ("back_off", "backoff")]
)
def test_unknown_option_says_what_was_meant(wrong: str, meant: str):
    """A misspelt option is a TypeError with the likely name."""
    with pytest.raises(TypeError, match=f"unknown job option '{wrong}'; did you mean '{meant}'"):
        make_options({wrong: 1})


def test_unknown_option_without_a_likeness():
    """An option unlike any other is named without a guess."""
    with pytest.raises(TypeError, match=r"^unknown job option 'xyzzy'$"):
        make_options({"xyzzy": 1})


@pytest.mark.parametrize("make", [lambda: Scheduler(1), StepScheduler], ids=["threaded", "stepped"])
def test_none_means_the_default(make: Any):
    """None for an id, a name or a Retry is the same as not giving it, with both schedulers."""
    nothing: dict[str, Any] = {"id": None, "name": None, "retry": None}
    scheduler = make()
    job = scheduler.options(delay=1, **nothing).submit(int)
    assert job._options.retry is None
    assert isinstance(job.id, int)
    assert job.cancel()
    scheduler.shutdown()


@pytest.mark.parametrize("make", [lambda: Scheduler(1), StepScheduler], ids=["threaded", "stepped"])
def test_options_are_refused_before_a_submission(make: Any):
    """Both schedulers refuse at options(), not at submit()."""
    scheduler = make()
    with pytest.raises(TypeError, match="unknown job option 'timout'"):
        scheduler.options(timout=1)
    with pytest.raises(ValueError, match="delay"):
        scheduler.options(delay=-1)


@pytest.mark.parametrize("make", [lambda: Scheduler(1), StepScheduler], ids=["Scheduler", "StepScheduler"])
def test_equal_options_give_the_same_submitter(make: Any):
    """Plain options that were given before are not checked again; a value of another type is."""
    s = make()
    first = s.options(priority=1, retries=2)
    assert s.options(priority=1, retries=2) is first
    assert s.options(priority=1.0, retries=2) is not first
    assert s.options(priority=1, retries=3) is not first
    with pytest.raises(TypeError, match="priority"):
        s.options(priority=True, retries=2)
    with pytest.raises(TypeError, match="priority"):
        s.options(priority=True, retries=2)
    assert type(s.options(priority=1).submit(int).priority) is int
    assert type(s.options(priority=1.0).submit(int).priority) is float
    named = s.options(id="a")
    assert s.options(id="a") is not named
    s.shutdown()


def test_submitters_remembered_are_few():
    """Options that are different each time do not pile up."""
    s = StepScheduler()
    for number in range(10_000):
        assert s.options(priority=number).submit(int).priority == number
    assert len(s._submitters._made) <= s._submitters.MOST


def test_only_a_scheduler_makes_submitters():
    """Submitter() says so."""
    with pytest.raises(TypeError, match="made by a scheduler"):
        Submitter()

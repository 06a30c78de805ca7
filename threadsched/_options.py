"""The options of a job, checked once at the door and shared by all jobs submitted with them."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal, TypedDict

from threadsched import _numbers
from threadsched._retry import Retry

_UNSET = object()

Seconds = float | timedelta


class JobOptions(TypedDict, total=False):
    """The options of a job, as a type checker sees them; ``Scheduler.options`` says what they mean."""

    id: str | None
    name: str | None
    delay: Seconds
    at: datetime | None
    priority: float
    retries: int
    backoff: Seconds
    retry: Retry | None
    timeout: Seconds | None
    expires: Seconds | datetime | None
    deadline: Seconds | datetime | None
    submit_timeout: Seconds | None
    context: bool
    after: Future[Any] | Iterable[Future[Any]] | None
    after_any_outcome: bool
    limits: str | Iterable[str] | None
    if_exists: Literal["raise", "return", "replace"]


class ScheduleOptions(JobOptions, total=False):
    """The options of a schedule and of its runs; ``Scheduler.options`` says what they mean."""

    mode: Literal["rate", "delay"]
    missed: Literal["coalesce", "skip", "burst"]
    start: Seconds | datetime | None
    until: Seconds | datetime | None
    max_runs: int | None
    max_failures: int | None
    jitter: Seconds
    tz: tzinfo | None


# What a submission does whose ``id`` belongs to a live job.
RAISE = "raise"
RETURN = "return"
REPLACE = "replace"

DEFAULTS: Options = None  # type: ignore[assignment]  # made below, and asked for by the first of them


class When:
    """A point in time as it was given: ``seconds`` from now, or since 1970 where ``wall`` is true."""

    __slots__ = ("seconds", "wall")

    def __init__(self, seconds: float, *, wall: bool) -> None:
        self.seconds = seconds
        self.wall = wall

    def on_clock(self, now: float, offset: float) -> float:
        """Return it as a reading of the scheduler's clock, which the wall clock is ``offset`` ahead of."""
        return round(self.seconds - offset, 6) if self.wall else now + self.seconds

    def on_wall(self, now: float, offset: float) -> float:
        """Return it in seconds since 1970."""
        return self.seconds if self.wall else now + offset + self.seconds


class At:
    """The option ``at``: an instant on the wall clock, in seconds since 1970."""

    __slots__ = ("planned",)

    def __init__(self, planned: float) -> None:
        self.planned = planned

    def attach(self, runtime: Any, job: Any) -> None:
        """Time a new job."""
        runtime.wall.attach(runtime, job, self.planned)


class Options:
    """Checked options; immutable, and one object for any number of jobs, so a plain job pays for none of them."""

    __slots__ = (
        "after",
        "after_any_outcome",
        "context",
        "deadline",
        "delay",
        "expires",
        "id",
        "if_exists",
        "lasting",
        "limits",
        "name",
        "priority",
        "retry",
        "special",
        "submit_timeout",
        "timeout",
        "timing",
    )

    def __init__(
        self,
        *,
        id: object = None,
        name: object = None,
        delay: object = _UNSET,
        at: object = None,
        priority: object = 5,
        retries: object = _UNSET,
        backoff: object = _UNSET,
        retry: object = None,
        timeout: object = None,
        expires: object = None,
        deadline: object = None,
        submit_timeout: object = None,
        context: object = True,
        after: object = None,
        after_any_outcome: object = False,
        limits: object = None,
        if_exists: object = RAISE,
    ) -> None:
        self.id = None if id is None else _numbers.text("id", id)
        self.if_exists = _numbers.choice("if_exists", if_exists, (RAISE, RETURN, REPLACE))
        self.name = None if name is None else _numbers.text("name", name)
        self.delay = 0.0 if delay is _UNSET else _numbers.seconds("delay", delay)
        self.priority = _numbers.real("priority", priority)
        self.context = context is True or _numbers.flag("context", context)
        self.timeout = None if timeout is None else _numbers.seconds("timeout", timeout, zero=False)
        self.expires = None if expires is None else _checked_when("expires", expires)
        self.deadline = None if deadline is None else _checked_when("deadline", deadline)
        self.submit_timeout = None if submit_timeout is None else _numbers.seconds("submit_timeout", submit_timeout)
        self.retry = _checked_retry(retries, backoff, retry)
        self.after: tuple[Future[Any], ...] = ()
        self.after_any_outcome = after_any_outcome is not False and _numbers.flag(
            "after_any_outcome", after_any_outcome
        )
        # What times a job otherwise than by a delay: an object with ``attach(runtime, job)``, asked at submission.
        self.timing: Any = None
        if at is not None:
            if delay is not _UNSET:
                raise TypeError("at cannot be given together with delay: both say when")
            self.timing = At(_numbers.moment("at", at))
        self.limits = () if limits is None else _checked_names(limits)
        # What a job keeps: if nothing in here outlasts the submission, the defaults, so that a million jobs with a
        # delay of their own do not keep a million of these.
        plain = self.id is None and self.name is None and self.retry is None and self.timing is None
        plain = plain and not self.limits
        self.lasting: Options = DEFAULTS if plain and DEFAULTS is not None else self
        parents = () if after is None else _checked_parents(after)
        if parents:
            if self.lasting is self:
                self.lasting = copy.copy(self)  # a job must not keep its parents, nor must its record
                self.lasting.lasting = self.lasting
            self.after = parents
        # One test a submission for all that few jobs have: an id, parents, limits, a timing, or times of their own.
        own_times = at is not None or timeout is not None or expires is not None or deadline is not None
        self.special = own_times or bool(parents or self.limits) or self.id is not None

    def delayed(self, delay: float) -> Options:
        """Return the same with this delay."""
        if delay == self.delay:
            return self
        options = copy.copy(self)
        options.delay = delay
        return options


def _checked_when(name: str, value: object) -> When:
    if isinstance(value, datetime):
        return When(_numbers.moment(name, value), wall=True)
    return When(_numbers.seconds(name, value), wall=False)


def _checked_names(limits: object) -> tuple[str, ...]:
    """Return the names of limits in order, each once: jobs that name the same ones share a line."""
    if isinstance(limits, str):
        return (_numbers.text("limits", limits),)
    if isinstance(limits, (bytes, bytearray)) or not isinstance(limits, Iterable):
        raise TypeError(f"limits must be a limit's name or names, not {_numbers.describe(limits)}")
    return tuple(sorted({_numbers.text("a name in limits", name) for name in limits}))


def _checked_retry(retries: object, backoff: object, retry: object) -> Retry | None:
    if retries is _UNSET and backoff is _UNSET and retry is None:
        return None
    if retry is not None:
        if retries is not _UNSET or backoff is not _UNSET:
            raise TypeError("retry cannot be given together with retries or backoff: a Retry says both")
        if not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry, not {_numbers.describe(retry)}")
        return retry if retry.retries else None
    checked_backoff = 0.01 if backoff is _UNSET else _numbers.seconds("backoff", backoff)
    allowed = 0 if retries is _UNSET else _numbers.count("retries", retries)
    return Retry(allowed, checked_backoff) if allowed else None


def _checked_parents(after: object) -> tuple[Future[Any], ...]:
    """Return the parents, each once; only their identity counts, so no method of theirs is called."""
    if isinstance(after, Future):
        return (after,)
    if isinstance(after, str | bytes) or not isinstance(after, Iterable):
        raise TypeError(f"after must be a future or several of them, not {_numbers.describe(after)}")
    parents: dict[int, Future[Any]] = {}
    for parent in after:
        if not isinstance(parent, Future):
            raise TypeError(f"after must hold concurrent.futures futures, not {_numbers.describe(parent)}")
        parents.setdefault(id(parent), parent)
    return tuple(parents.values())


def make_options(given: dict[str, object]) -> Options:
    """Check keyword options; an unknown one is a TypeError that names it and what was probably meant."""
    if not KNOWN.issuperset(given):
        name = next(name for name in given if name not in KNOWN)
        close = difflib.get_close_matches(name, ScheduleOptions.__annotations__, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"unknown job option {name!r}{hint}")
    return Options(**given)


KNOWN = frozenset(JobOptions.__annotations__)

DEFAULTS = Options()

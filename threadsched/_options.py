"""The options of a job, checked once at the door and shared by all jobs submitted with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import timedelta
from typing import TypedDict

from threadsched import _numbers
from threadsched._retry import Retry

_UNSET = object()

Seconds = float | timedelta


class JobOptions(TypedDict, total=False):
    """The options of a job, as a type checker sees them; ``Scheduler.options`` says what they mean."""

    id: str | None
    name: str | None
    delay: Seconds
    priority: float
    retries: int
    backoff: Seconds
    retry: Retry | None
    context: bool
    limits: str | Iterable[str] | None


DEFAULTS: Options = None  # type: ignore[assignment]  # made below, and asked for by the first of them


class Options:
    """Checked options; immutable, and one object for any number of jobs, so a plain job pays for none of them."""

    __slots__ = ("context", "delay", "id", "lasting", "limits", "name", "priority", "retry")

    def __init__(
        self,
        *,
        id: object = None,
        name: object = None,
        delay: object = 0.0,
        priority: object = 5,
        retries: object = _UNSET,
        backoff: object = _UNSET,
        retry: object = None,
        context: object = True,
        limits: object = None,
    ) -> None:
        self.id = None if id is None else _numbers.text("id", id)
        self.name = None if name is None else _numbers.text("name", name)
        self.delay = _numbers.seconds("delay", delay)
        self.priority = _numbers.real("priority", priority)
        self.context = _numbers.flag("context", context)
        self.retry = _checked_retry(retries, backoff, retry)
        self.limits = _checked_names(limits)
        # What a job keeps: if nothing in here outlasts the submission, the defaults, so that a million jobs with a
        # delay of their own do not keep a million of these.
        plain = self.id is None and self.name is None and self.retry is None and not self.limits
        self.lasting: Options = DEFAULTS if plain and DEFAULTS is not None else self


def _checked_names(limits: object) -> tuple[str, ...]:
    """Return the names of limits in order, each once: jobs that name the same ones share a line."""
    if limits is None:
        return ()
    if isinstance(limits, str):
        return (_numbers.text("limits", limits),)
    if isinstance(limits, (bytes, bytearray)) or not isinstance(limits, Iterable):
        raise TypeError(f"limits must be a limit's name or names, not {_numbers.describe(limits)}")
    return tuple(sorted({_numbers.text("a name in limits", name) for name in limits}))


def _checked_retry(retries: object, backoff: object, retry: object) -> Retry | None:
    if retry is not None:
        if retries is not _UNSET or backoff is not _UNSET:
            raise TypeError("retry cannot be given together with retries or backoff: a Retry says both")
        if not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry, not {_numbers.describe(retry)}")
        return retry if retry.retries else None
    checked_backoff = 0.01 if backoff is _UNSET else _numbers.seconds("backoff", backoff)
    allowed = 0 if retries is _UNSET else _numbers.count("retries", retries)
    return Retry(allowed, checked_backoff) if allowed else None


def make_options(given: dict[str, object]) -> Options:
    """Check keyword options; an unknown one is a TypeError that names it and what was probably meant."""
    known = JobOptions.__annotations__
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"unknown job option {name!r}{hint}")
    return Options(**given)


DEFAULTS = Options()

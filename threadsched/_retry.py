"""Whether, and after what pause, a failed attempt is followed by another. Pure: no clock, no lock, no sleep."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from threadsched import _numbers
from threadsched._errors import RetryAfter

# Seconds: threading.TIMEOUT_MAX on 64-bit platforms, the longest wait that can be expressed (292 years).
LONGEST_PAUSE = 9223372036.0


class Retry:
    """How a job is retried: at most ``retries`` extra starts, each after an exponential pause.

    The pause after the k-th attempt is ``backoff * factor ** (k - 1)`` seconds, at most ``max_backoff``. It counts from
    the clock's reading after the attempt ended and keeps no worker busy. Only ``Exception``s are retried.

    Args:
        retries: extra starts allowed, an int; 0 means none.
        backoff: the first pause in seconds or a ``timedelta``; 0 means at once.
        factor: what each pause is multiplied by for the next, a real number of at least 0; 1 keeps it constant.
        max_backoff: the longest pause in seconds; None means as long as a wait can be (292 years).
        jitter: the share of each pause, from 0 to 1, that is drawn at random: with 0.5 a pause lies anywhere
            between half of the formula's value and the whole of it. 0 makes the formula exact. The draws come from
            the module ``random``, so ``random.seed`` repeats them.
        on: the exception classes worth a retry, one or a tuple.
        give_up: called with the error, outside every lock; a true answer ends the job. What it raises counts as true
            and is shown in a note on the job's own error.

    Raises:
        TypeError: an argument of another type.
        ValueError: a negative, NaN or infinite number, or ``jitter`` above 1.

    Thread safety: immutable; share one between any number of jobs.
    """

    __slots__ = ("backoff", "factor", "give_up", "jitter", "max_backoff", "on", "retries")

    def __init__(
        self,
        retries: int,
        backoff: float | timedelta = 0.01,
        factor: float = 2,
        max_backoff: float | timedelta | None = None,
        jitter: float = 0,
        on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
        give_up: Callable[[Exception], object] | None = None,
    ) -> None:
        self.retries = _numbers.count("retries", retries)
        self.backoff = _numbers.seconds("backoff", backoff)
        self.factor = _numbers.share("factor", factor)
        self.max_backoff = LONGEST_PAUSE if max_backoff is None else _numbers.seconds("max_backoff", max_backoff)
        self.jitter = _numbers.share("jitter", jitter, most=1.0)
        kinds: tuple[Any, ...] = on if isinstance(on, tuple) else (on,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"on must be exception classes, not {_numbers.describe(kind)}")
        self.on: tuple[type[BaseException], ...] = kinds
        if give_up is not None and not callable(give_up):
            raise TypeError(f"give_up must be callable, not {_numbers.describe(give_up)}")
        self.give_up = give_up

    def __repr__(self) -> str:
        return f"Retry({self.retries}, backoff={self.backoff:g}, factor={self.factor:g})"

    def pause(self, attempts: int, error: BaseException) -> float | None:
        """Return the seconds to wait after failed attempt number ``attempts``, or None to give up.

        Raises what ``on`` (a class with a check of its own) or ``give_up`` raise.
        """
        if attempts > self.retries or not isinstance(error, Exception):
            return None
        if isinstance(error, RetryAfter):
            return error.seconds
        if not isinstance(error, self.on):
            return None
        if self.give_up is not None and self.give_up(error):
            return None
        try:
            pause = min(self.backoff * self.factor ** (attempts - 1), self.max_backoff)
        except OverflowError:
            pause = self.max_backoff if self.backoff else 0.0
        return pause * (1 - self.jitter * random.random()) if self.jitter else pause

"""How the scheduler speaks: one logger, and no way for a bad handler or ``__repr__`` to harm a worker.

Nothing here is called with the scheduler's lock held, except from ``__del__`` of a forgotten failure, which may run
anywhere.
"""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger("threadsched")


def report(level: int, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log one record; what a handler raises is dropped, for there is nobody left to tell.

    The arguments must be strings and numbers of ours: a user's ``__repr__`` goes through :func:`describe_error` first.
    """
    try:
        logger.log(level, message, *args, exc_info=error)
    except Exception:
        try:  # the traceback may be what cannot be printed
            logger.log(level, message, *args)
        except Exception:  # a handler that raises must not cost a worker its life
            return


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an exception's traceback past whatever its class does with attributes."""
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return trace


def describe_error(error: BaseException) -> str:
    """Return ``Type: text`` for an exception, whatever its ``__str__`` does."""
    name = type(error).__name__
    try:
        text = str.__str__(str(error))  # a plain str, whatever class it came in
    except BaseException:  # the task's own class: anything may come out of it
        return f"{name} (its text cannot be had)"
    return f"{name}: {text}" if text else name

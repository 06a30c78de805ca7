"""A scheduler seen through a set of job options."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from threadsched import _schedule, _taken
from threadsched._core import IdTakenError
from threadsched._job import Job
from threadsched._map import map_over
from threadsched._options import Options, Seconds, make_options
from threadsched._plan import DEFAULT_PLAN, RECURRING, Plan, refuse_recurring, refuse_single
from threadsched._runtime import Runtime
from threadsched._schedule import Schedule

P = ParamSpec("P")
T = TypeVar("T")

new: Any = object.__new__
INF = math.inf


class Terms:
    """What submitters have in common that differ in nothing but the delay, which are made by the million."""

    __slots__ = ("delayed", "given", "options", "plan", "runtime")

    delayed: Terms  # the same where a delay was given, too; those have none themselves, or each were a cycle

    def __init__(self, runtime: Runtime, options: Options, plan: Plan, given: Iterable[str]) -> None:
        if options.limits:
            runtime.limits.check_names(options.limits)
        self.runtime = runtime
        self.options = options
        self.plan = plan
        self.given = given  # the names of the options
        if "delay" not in given:
            self.delayed = delayed = new(Terms)  # copy.copy() takes longer than all the rest
            delayed.runtime, delayed.options, delayed.plan = runtime, options, plan
            delayed.given = (*given, "delay")


class Submitter(concurrent.futures.Executor):
    """A scheduler seen through a set of job options; made by :meth:`Scheduler.options`.

    It is an executor: ``submit`` and ``map`` work as the scheduler's do. It owns nothing, so ``shutdown``, and leaving
    it as a context manager, do nothing. It does not keep the scheduler alive.
    """

    _terms: Terms
    _delay: float

    def __init__(self) -> None:
        raise TypeError("a Submitter is made by a scheduler: call its options()")

    @overload
    def submit(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Accept ``fn(*args, **kwargs)`` with these options; as ``Scheduler.submit``.

        Raises:
            DuplicateJobError: the ``id`` belongs to a live or remembered job. It is a ValueError.
            TypeError: there is an option for schedules among them.
        """
        terms = self._terms
        if terms.plan is not DEFAULT_PLAN:
            refuse_recurring(terms.given)
        options = terms.options
        try:
            job: Job[Any] = terms.runtime.submit(fn, args, kwargs, options, self._delay)
        except IdTakenError as taken:  # and the option if_exists says what to do
            job = _taken.settle(terms.runtime, taken, options.delayed(self._delay))
        if options.after:
            terms.runtime.drain_or_leave()  # a parent that has failed already counts before anybody has the job
        return job

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Seconds | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Submit ``fn`` for each input with these options; as ``Scheduler.map``."""
        terms = self._terms
        bulk = None if terms.plan is not DEFAULT_PLAN else (terms.runtime, terms.options, self._delay)
        return map_over(self.submit, fn, iterables, timeout, chunksize, buffersize, bulk)

    def every(self, seconds: Seconds, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` every ``seconds`` with these options; as ``Scheduler.every``.

        Raises:
            TypeError: there is an option for single jobs among them (``id``, ``delay``, ``at``), or ``tz``.
            ValueError: ``until`` lies before the first run.
        """
        terms = self._terms
        refuse_single(terms.given, "every")
        return _schedule.every(terms.runtime, seconds, (fn, args, kwargs), terms.options, terms.plan)

    def cron(self, expression: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Run ``fn(*args, **kwargs)`` whenever the expression says so, with these options; as ``Scheduler.cron``.

        Raises:
            TypeError: there is an option for single jobs among them (``id``, ``delay``, ``at``), or ``mode``.
            ValueError: ``until`` lies before the first run.
        """
        terms = self._terms
        refuse_single(terms.given, "cron")
        return _schedule.cron(terms.runtime, expression, (fn, args, kwargs), terms.options, terms.plan)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: shut the scheduler down instead."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Submitter cannot be pickled or copied: it belongs to its scheduler; make another by options()"
        )


def make_submitter(terms: Terms, delay: float) -> Submitter:
    """Return a submitter with a delay in seconds, which was checked."""
    submitter: Submitter = new(Submitter)
    submitter._terms = terms
    submitter._delay = delay
    return submitter


class Submitters:
    """Makes the submitters of one scheduler, and remembers those for plain options: few differ, many are asked for.

    A delay, which may be another one each time, is no part of what is remembered.
    """

    # Types whose equal values mean the same option, as long as the type is the same: True and 1 do not.
    PLAIN = frozenset({int, float, str, bool, timedelta, type(None)})
    MOST = 256

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: dict[tuple[object, ...], Submitter] = {}
        self._delayed = self._make({})._terms.delayed

    def get(self, options: Any) -> Submitter:
        """Return a submitter with these options, a dictionary that becomes its own, checked."""
        delay = options.get("delay")
        if type(delay) is float and 0.0 <= delay < INF:
            if len(options) == 1:
                submitter: Submitter = new(Submitter)  # make_submitter(), without its call
                submitter._terms = self._delayed
                submitter._delay = delay
                return submitter
            if "at" not in options:
                del options["delay"]
                return make_submitter(self.get(options)._terms.delayed, delay)
        kinds = tuple(map(type, options.values()))
        if "id" in options or not self.PLAIN.issuperset(kinds):
            return self._make(options)
        key = (kinds, *options, *options.values())
        made = self._made.get(key)
        if made is None:
            made = self._make(options)
            if len(self._made) >= self.MOST:
                self._made.clear()
            self._made[key] = made
        return made

    def _make(self, given: dict[str, Any]) -> Submitter:
        """Check options, those of jobs and those of schedules apart."""
        if RECURRING.isdisjoint(given):
            terms = Terms(self._runtime, make_options(given), DEFAULT_PLAN, given)
        else:
            recurring = {name: given.pop(name) for name in list(given) if name in RECURRING}
            terms = Terms(self._runtime, make_options(given), Plan(**recurring), (*given, *recurring))
        return make_submitter(terms, terms.options.delay)

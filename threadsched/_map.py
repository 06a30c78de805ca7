"""``map``: one task over many arguments, results in the order of the input, reading ahead no further than asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Generic, TypeVar

from threadsched import _numbers
from threadsched._errors import QueueFullError
from threadsched._job import Job

T = TypeVar("T")


class Results(Iterator[T], Generic[T]):
    """The results of a ``map``, in input order.

    Reading it to its end, an error, :meth:`close` and dropping it half read all end it; what has not started then is
    cancelled. Dropped without being read, it lets all run: so code does that maps for the effect alone. A class and not
    a generator, because closing a generator that was never advanced does not run its ``finally``.

    Thread safety: for one thread at a time, like any iterator.
    """

    def __init__(
        self,
        submit: Callable[..., Job[T]],
        fn: Callable[..., T],
        inputs: Iterator[tuple[Any, ...]],
        timeout: float | None,
        window: int | None,
    ) -> None:
        self._submit = submit
        self._fn = fn
        self._inputs: Iterator[tuple[Any, ...]] | None = inputs  # None: read to its end, or given up
        self._deadline = None if timeout is None else monotonic() + timeout
        self._timeout = timeout
        self._window = window
        self._begun = False  # somebody reads it
        self._jobs: deque[Job[T]] = deque()  # submitted, result not yet handed out; oldest first
        self._held: tuple[Any, ...] | None = None  # read, and found the queue full
        self._fault: BaseException | None = None  # ended the input; raised after the results before it
        try:
            self._read_ahead()
            self._raise_fault()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Results[T]:
        return self

    def __next__(self) -> T:
        self._begun = True
        try:
            # Not before the last result was handed out: the first one is there after `window` inputs.
            self._read_ahead()
            if self._jobs:
                return self._take()
            self._raise_fault()
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def _raise_fault(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _take(self) -> T:
        job = self._jobs.popleft()
        try:
            return job.result() if self._deadline is None else job.result(self._deadline - monotonic())
        except TimeoutError:
            if not job.done():
                job.cancel()
                raise TimeoutError(f"{job!r} had not ended within {self._timeout:g} s of the call of map") from None
            raise  # the task's own
        finally:
            del job  # its result is the caller's now

    def _read_ahead(self) -> None:
        """Submit until the window is full, the input ends, or the queue is full and a result of ours is to come."""
        while self._inputs is not None and (self._window is None or len(self._jobs) < self._window):
            try:
                if self._held is None:
                    self._held = next(self._inputs)
                job = self._submit(self._fn, *self._held)
            except StopIteration:
                self._inputs = None
            except QueueFullError:
                if not self._jobs:
                    raise
                return  # once one of these has ended, there may be a place
            except Exception as error:  # the input's, or a refused submission
                self._inputs = None
                self._fault = error
            else:
                self._held = None
                self._jobs.append(job)

    def close(self) -> None:
        """Cancel what has not started, and read no further. May be called again."""
        self._inputs = self._held = None
        while self._jobs:
            try:
                self._jobs.pop().cancel()
            except IndexError:
                return

    def __del__(self) -> None:
        if getattr(self, "_begun", False):
            self.close()


def map_over(
    submit: Callable[..., Job[T]],
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    timeout: object,
    chunksize: object,
    buffersize: object,
) -> Iterator[T]:
    """Check the arguments of a ``map`` and start it."""
    if not callable(fn):
        raise TypeError(f"the task must be callable, not {_numbers.describe(fn)}")
    _numbers.count("chunksize", chunksize, least=1)
    window = None if buffersize is None else _numbers.count("buffersize", buffersize, least=1)
    limit = None if timeout is None else _numbers.seconds("timeout", timeout)
    return Results(submit, fn, zip(*iterables, strict=False), limit, window)

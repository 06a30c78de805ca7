"""``map``: one task over many arguments, results in the order of the input, reading ahead no further than asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from threadsched import _numbers, _outcome
from threadsched._bulk import BATCH, submit_many, takes_many
from threadsched._errors import QueueFullError
from threadsched._job import FINISHED, Failure, Job
from threadsched._options import Options
from threadsched._runtime import Runtime

T = TypeVar("T")

# Whose items are all there: none is worth waiting for, so nothing starts later for being submitted with others.
AT_HAND = (list, tuple, range, str, bytes, set, frozenset, dict, deque)


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
        bulk: tuple[Runtime, Options, float] | None,
    ) -> None:
        self._submit = submit
        self._bulk = bulk  # where to submit in batches, with what
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
            jobs = self._jobs
            if self._inputs is None and self._deadline is None and jobs:
                job = jobs.popleft()
                if job._state is FINISHED and type(job._result) is not Failure:
                    return job._result  # type: ignore[no-any-return]  # result(), without its call
                jobs.appendleft(job)
                del job  # an error's traceback knows this frame
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
        if self._bulk is not None and self._held is None:
            self._read_batches(*self._bulk)
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

    def _read_batches(self, runtime: Runtime, options: Options, delay: float) -> None:
        """Submit in batches as far as that goes; what is left of the input is for the loop above."""
        while self._inputs is not None and takes_many(runtime, options):
            size = BATCH if self._window is None else min(BATCH, self._window - len(self._jobs))
            if size < 2:
                return
            batch: list[tuple[Any, ...]] = []
            try:
                batch.extend(islice(self._inputs, size))  # what was read before an error of the input is in it
            except Exception as error:
                self._fault = error
            if len(batch) < size:
                self._inputs = None
            try:
                submit_many(runtime, self._fn, batch, options, delay, self._jobs)
            except Exception as error:  # refused
                self._inputs = None
                self._fault = error

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
    bulk: tuple[Runtime, Options, float] | None,
) -> Iterator[T]:
    """Check the arguments of a ``map`` and start it.

    ``bulk`` says where ``submit`` leads and with which options, if it is our own: then batches may go past it.
    """
    _outcome.check_task(fn)
    _numbers.count("chunksize", chunksize, least=1)
    window = None if buffersize is None else _numbers.count("buffersize", buffersize, least=1)
    limit = None if timeout is None else _numbers.seconds("timeout", timeout)
    if not all(type(iterable) in AT_HAND for iterable in iterables):
        bulk = None
    return Results(submit, fn, zip(*iterables, strict=False), limit, window, bulk)

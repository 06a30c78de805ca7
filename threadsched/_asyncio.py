"""The scheduler seen from asyncio: awaiting a job, and leaving ``async with`` without blocking the loop.

Imported when it is first needed, for it imports ``asyncio``, which users without coroutines do not pay for.

The loop never waits for a thread. A job tells the awaiting loop by a done-callback that hands over to it with
``call_soon_threadsafe``; if the loop was closed meanwhile, nobody is there to be told and the news is dropped quietly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from threadsched import _locks
from threadsched._errors import ThreadschedError

if TYPE_CHECKING:
    from threadsched._job import Job

T = TypeVar("T")


class AwaitedJobCancelledError(ThreadschedError, concurrent.futures.CancelledError, asyncio.CancelledError):
    """Raised by ``await job`` when the job was cancelled.

    It is the CancelledError of both libraries: who awaits expects asyncio's, who waits for futures the other.
    """


def wait_for(job: Job[T]) -> Generator[Any, None, T]:
    """``job.__await__()``: wait for the job on the running loop, then return its value or raise its error."""
    try:
        if not job.done():
            yield from _until_done(job)
        if job.cancelled() and job._result is None:
            raise AwaitedJobCancelledError(f"{job!r}")
        return job.result()
    finally:
        del job  # an error's traceback holds this frame: without this line it would be a cycle


def _until_done(job: Job[Any]) -> Generator[Any, None, None]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    tell = _teller(loop, future)
    runtime = job._runtime
    wait = runtime.wait_on_loop(job, loop, future)
    try:
        if wait is None:
            job.add_done_callback(tell)
        else:
            wait.start()
        yield from future
    except asyncio.CancelledError:
        # Whoever awaits was cancelled, and the job was its: give it up, or ask it to stop.
        job.request_cancel()
        raise
    finally:
        if wait is not None:
            try:
                wait.end()
            except BaseException:  # struck in there: it may be done twice
                wait.end()
                raise
        elif not future.done() or future.cancelled():
            runtime.forget_callback(job, tell)


def _teller(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Callable[[object], None]:
    def wake(outcome: Any = None) -> None:
        if not future.done():
            future.set_result(outcome)

    def tell(outcome: object) -> None:
        try:
            loop.call_soon_threadsafe(wake, outcome)
        except RuntimeError:  # the loop is closed
            pass

    return tell


async def call_off_loop(function: Callable[[], T], name: str) -> T:
    """Call a function that blocks, on a thread of its own, and wait for it on the running loop.

    Not on the loop's executor, whose threads may all be waiting for the very scheduler that is shut down here. If the
    awaiting task is cancelled, the call goes on.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    tell = _teller(loop, future)

    def call() -> None:
        try:
            tell((function(), None))
        except BaseException as error:
            tell((None, error))

    _locks.start_thread(call, (), name)
    value, error = await future
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value

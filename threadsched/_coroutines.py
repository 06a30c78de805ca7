"""Coroutines as tasks: each worker drives them on an event loop of its own.

The loop is made when a worker meets its first coroutine, serves all that it meets later, and is closed by that worker
when it ends. ``asyncio`` is imported then and not before: who submits no coroutine does not pay for it.

What a coroutine leaves behind on the loop (asyncio tasks that it started and did not await) is cancelled and awaited
before its job settles, so the next job finds the loop empty; what such a task raises goes to the loop's exception
handler, which logs it. A loop that cannot be cleared is thrown away and replaced.

Everything here runs on the thread of the worker, with no lock held, but for :data:`Attached.stopper`, the way in which
other threads ask the running attempt to stop.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from types import CoroutineType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any

from threadsched import _log
from threadsched._errors import JobStoppedError

if TYPE_CHECKING:
    import asyncio

    from threadsched._job import Job
    from threadsched._worker import Worker

# Rounds of cancelling what a job left behind: each takes what the one before started while it was being cancelled.
ROUNDS = 10

# The job that a coroutine belongs to, as far as that lives. A context variable, so that the asyncio tasks that it
# starts know it too; weak, so that a job submitted from a coroutine, which copies the context, does not keep that one
# alive.
job_here: ContextVar[weakref.ref[Job[Any]] | None] = ContextVar("threadsched_job", default=None)

# Loops that a fork left in a child of it. Closing one there would take its file descriptors out of the epoll object
# that the parent goes on using, so they are kept as they are.
_inherited: list[Any] = []


def run(worker: Worker, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
    """Drive a coroutine to its end on the worker's loop and return its value; raises what it raises.

    Raises:
        JobStoppedError: it was asked to stop, and let the CancelledError out.
        RuntimeError: this thread is inside a running event loop already.
    """
    job = worker.job
    try:
        loop = _loop_of(worker)
        task = _make_task(job, loop, coroutine, context)
    except BaseException:
        coroutine.close()
        raise
    error: BaseException | None = None
    stopper = None if job is None else _make_stopper(worker, job, loop, task)
    try:
        worker.driven = job
        _publish(worker, job, task, stopper)
        try:
            _run_until_done(worker, loop, task)
        except BaseException as raised:  # KeyboardInterrupt and SystemExit come through the loop, not out of the task
            error = raised
        finally:
            _clear_up(worker, loop)
        if not task.cancelled():
            error = error or task.exception()
            if error is None:
                return task.result()
        elif job is not None and job.cancel_requested:
            raise JobStoppedError(f"{job!r} was asked to stop")
        if error is None:
            error = _cancellation_of(task)
        raise BaseException.with_traceback(error, _from_task(_log.traceback_of(error)))
    finally:
        worker.driven = None
        _unpublish(job, stopper)
        # The traceback of an error holds this frame, and so do, by f_back, the coroutine's frames: without this line
        # both would be cycles.
        del task, error, coroutine, job, stopper


def _loop_of(worker: Worker) -> asyncio.AbstractEventLoop:
    import asyncio

    if is_loop_running():
        raise RuntimeError("a coroutine cannot be driven on a thread that is inside a running event loop: await it")
    if worker.loop is None:
        worker.loop = asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = worker.loop
    return loop


def _make_task(
    job: Job[Any] | None, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Context
) -> asyncio.Task[Any]:
    if job is not None:
        context.run(job_here.set, weakref.ref(job))
    return loop.create_task(coroutine, context=context)


def adopt(
    worker: Worker,
    job: Job[Any],
    coroutine: Coroutine[Any, Any, Any],
    context: Context,
    then: Callable[[Job[Any], BaseException | None, Any], None],
) -> None:
    """Make a coroutine one more task of the loop that runs on this worker; ``then`` hears of its end, on the loop."""
    loop: asyncio.AbstractEventLoop = worker.loop
    try:
        task = _make_task(job, loop, coroutine, context)
    except BaseException:
        coroutine.close()
        raise

    def ended(task: asyncio.Task[Any]) -> None:
        worker.tasks.pop(task, None)
        _unpublish(job, stopper)
        error: BaseException | None
        if task.cancelled():
            asked = job.cancel_requested
            error = JobStoppedError(f"{job!r} was asked to stop") if asked else _cancellation_of(task)
        else:
            error = task.exception()
        if error is not None:
            BaseException.with_traceback(error, _from_task(_log.traceback_of(error)))
        try:
            then(job, error, None if error is not None else task.result())
        finally:
            del error

    stopper = _make_stopper(worker, job, loop, task)
    worker.tasks[task] = job
    _publish(worker, job, task, stopper)
    task.add_done_callback(ended)


def _publish(worker: Worker, job: Job[Any] | None, task: asyncio.Task[Any], stopper: Callable[[], None] | None) -> None:
    """Let other threads ask the attempt to stop, and do what was asked before it was possible."""
    if job is None:
        return
    with worker.runtime.lock:
        overrun = worker.runtime.is_overrun_here(job)  # its thread is lost already
        attached = job._attach()
        if not overrun:
            attached.stopper = stopper
        asked = attached.stop or overrun
    if asked:
        task.cancel()


def _unpublish(job: Job[Any] | None, stopper: Callable[[], None] | None) -> None:
    """Take the stopper back, unless it is another attempt's by now."""
    attached = None if job is None else job._attached
    if attached is not None and attached.stopper is stopper:
        attached.stopper = None


def _make_stopper(
    worker: Worker, job: Job[Any], loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]
) -> Callable[[], None]:
    def cancel() -> None:
        import asyncio

        if not task.done():
            task.cancel()
        elif worker.driven is job:  # else this comes late, and the loop is another job's
            # The coroutine has ended, and what it left behind has not: the job settles after that.
            for one in asyncio.all_tasks(loop):
                one.cancel()

    def stop() -> None:
        try:
            loop.call_soon_threadsafe(cancel)
        except RuntimeError:  # closed: the attempt is over
            pass

    stop.task = task  # type: ignore[attr-defined]  # for frames_of
    return stop


def frames_of(stopper: Any) -> list[tuple[str, int, str]]:
    """Return where the coroutine behind a stopper waits, as (file, line, function); none if it does not. Any thread."""
    frames: list[tuple[str, int, str]] = []
    task = getattr(stopper, "task", None)
    one: Any = None if task is None else task.get_coro()
    while True:
        if type(one) is CoroutineType and not one.cr_running:
            frame, after = one.cr_frame, one.cr_await
        elif type(one) is GeneratorType and not one.gi_running:
            frame, after = one.gi_frame, one.gi_yieldfrom
        else:
            return frames  # the end of the chain; or it is at work, and its thread's stack says where
        if frame is None:
            return frames
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        one = after


def _run_until_done(worker: Worker, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """Run the loop until the task is done, also if somebody stops the loop meanwhile.

    KeyboardInterrupt and SystemExit leave the loop from whichever task raises them. Out of another job's, which was
    adopted, they are that job's failure alone, and the loop goes on.

    Not ``run_until_complete``, which raises the task's error and so adds its frames to that traceback.
    """
    over = False

    def stop(done: asyncio.Task[Any]) -> None:
        if not over:  # else one of those two has ended the run, and this would end the next one
            loop.stop()

    task.add_done_callback(stop)
    try:
        while not task.done():
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                if not _came_from(error, worker.tasks):
                    raise
    finally:
        over = True
        del task  # as in run()


def _came_from(error: BaseException, tasks: dict[asyncio.Task[Any], Job[Any]]) -> bool:
    return any(one.done() and not one.cancelled() and one.exception() is error for one in tasks)


def _clear_up(worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
    """Leave an empty loop to the next job: cancel and await every task, or give the loop up."""
    try:
        for job in list(worker.tasks.values()):
            worker.runtime.request_cancel(job)  # nobody is left on this loop who could await it
        cleared = _cancel_tasks(loop)
        if worker.thread is None:
            close(worker)  # no thread of the pool, but a stepped slot: it has no end at which to close it
            return
    except BaseException as error:  # thrown into this thread: the job's outcome stands
        _log.report(
            logging.ERROR, "clearing an event loop was broken off by %s", _log.describe_error(error), error=error
        )
        cleared = False
    if not cleared:
        _log.report(logging.ERROR, "the event loop of %s cannot be cleared and is replaced", worker.name)
        close(worker)


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel and await what is left on the loop; False if it keeps starting new tasks."""
    import asyncio

    for _ in range(ROUNDS):
        left = asyncio.all_tasks(loop)
        if not left:
            return True
        for task in left:
            task.cancel()
        try:
            loop.run_until_complete(asyncio.wait(left))
        except (KeyboardInterrupt, SystemExit, RuntimeError, asyncio.CancelledError):
            pass  # out of one of them, or it stopped the loop, or we were cancelled too: the rest is for the next round
        for task in left:
            if task.done() and not task.cancelled() and task.exception() is not None:
                loop.call_exception_handler(
                    {
                        "message": "a task that a job left behind raised while it was cancelled",
                        "exception": task.exception(),
                        "task": task,
                    }
                )
    return not asyncio.all_tasks(loop)


def _cancellation_of(task: asyncio.Task[Any]) -> BaseException:
    """Return the CancelledError with which a task ended."""
    try:
        task.result()
    except BaseException as error:
        return error
    raise AssertionError("not a cancelled task")


def _from_task(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames, outermost, that are ours and asyncio's."""
    inner = trace
    while inner is not None:
        module = inner.tb_frame.f_globals.get("__name__", "")
        if module != __name__ and not module.startswith("asyncio."):
            return inner
        inner = inner.tb_next
    return trace


def refuse_to_block(job: Job[Any]) -> None:
    """Raise RuntimeError if waiting for this job, which has not ended, would block the running loop it may need."""
    if is_loop_running() and not job.done() and is_coroutine_job(job):
        raise RuntimeError(f"{job!r} is a coroutine: await it here, for result() would block the event loop it needs")


def is_loop_running() -> bool:
    """Whether the calling thread is inside a running event loop."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def is_coroutine_job(job: Job[Any]) -> bool:
    """Whether a job is known to be a coroutine: one that is being driven, or a coroutine function in any wrapping."""
    import inspect

    attached = job._attached
    if attached is not None and attached.stopper is not None:
        return True
    fn = job._fn
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004 -- its code is asked for, not whether it is there
    except Exception:  # an attribute hook of the caller's
        return False


def close(worker: Worker) -> None:
    """Close the worker's loop, if it has one; by that worker alone. What goes wrong is logged."""
    loop, worker.loop = worker.loop, None
    if loop is None:
        return
    if worker.generation != worker.runtime.generation:
        _inherited.append(loop)
        return
    try:
        try:
            _cancel_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
    except BaseException as error:
        _log.report(logging.ERROR, "closing an event loop raised %s", _log.describe_error(error), error=error)

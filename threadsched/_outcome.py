"""What comes of an attempt: the decisions around a task that run outside of the lock.

Refusing what cannot be run, deciding between another attempt and the end, explaining earlier attempts in the error's
notes, telling the watchers of ``concurrent.futures.wait``, and cleaning up after a worker that died.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from threadsched import _locks, _log, _numbers, _worker
from threadsched._errors import JobStoppedError, WorkerDiedError
from threadsched._job import Job, task_name

if TYPE_CHECKING:
    from threadsched._ending import Ending
    from threadsched._pool import Pool
    from threadsched._worker import Worker


def check_task(fn: object) -> None:
    """Refuse what is not callable, and coroutine functions in any wrapping."""
    if not callable(fn):
        raise TypeError(f"the task must be callable, not {_numbers.describe(fn)}")
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    # A callable object is known by its class's method; callable() has been asked already.
    method = getattr(type(inner), "__call__", None)  # noqa: B004 -- not a test of callability
    try:
        asynchronous = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(method)
    except Exception:  # an attribute hook of the caller's
        return
    if asynchronous:
        refuse_coroutine(inner)


def refuse_coroutine(fn: object) -> NoReturn:
    """Raise for an ``async def`` task: on a thread it would "succeed" without having run."""
    raise TypeError(f"{task_name(fn)} is a coroutine function; submit a function that calls asyncio.run on it")


def attempt_failed(runtime: Ending, job: Job[Any], error: BaseException) -> None:
    """Retry, stop or fail a job whose attempt raised."""
    trace = _log.traceback_of(error)
    while trace is not None and trace.tb_frame.f_code is not _worker.run_task.__code__:
        trace = trace.tb_next
    if trace is not None:
        BaseException.with_traceback(error, trace.tb_next)  # as the task left it, without the worker's own frames
    if isinstance(error, JobStoppedError) and job.cancel_requested:
        runtime.stop(job)
        return
    text = _log.describe_error(error)
    if _retried(runtime, job, error, text):
        return
    _note_earlier_attempts(job, error)
    runtime.fail(job, error, text)


def _retried(runtime: Ending, job: Job[Any], error: BaseException, text: str) -> bool:
    """Put the job back if another attempt is due to it.

    A ``Retry`` or a policy that raises means the end: its error is logged, and noted on the job's own.
    """
    retry = job._options.retry
    if retry is None:
        return False
    due = job._run_at
    try:
        pause = retry.pause(job._attempts, error)
        if pause is None:
            return False
        ranking = runtime.core.ranking
        now = runtime.read_clock()
        run_at = now + pause
        with runtime.lock:
            job._run_at = run_at  # the policy must see when it will run; the job is ours until the retry is decided
        if runtime.retry(job, run_at, ranking.key_of(job), now, error, text):
            return True
    except BaseException as fault:
        told = _log.describe_error(fault)
        _log.report(logging.ERROR, "job %r is not retried: deciding on it raised %s", job.id, told, error=fault)
        _add_note(error, f"not retried: deciding on it raised {told}")
    with runtime.lock:
        job._run_at = due
    return False


def _note_earlier_attempts(job: Job[Any], error: BaseException) -> None:
    attached = job._attached
    if attached is not None:
        attached.error = None
        for line in attached.trail:
            _add_note(error, line)


def _add_note(error: BaseException, note: str) -> None:
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:  # an exception class may refuse attributes; the note is a courtesy
        return


def fail_in_backoff(runtime: Ending, job: Job[Any], error: BaseException) -> None:
    """Fail a job that a shutdown found waiting for its retry, with its last error."""
    _add_note(error, "not retried: the scheduler was shut down")
    runtime.fail(job, error, _log.describe_error(error))


def tell_waiters(job: Job[Any], condition: _locks.JobCondition) -> None:
    """Tell ``wait`` and ``as_completed`` that the job has ended. The condition held, the scheduler's lock not."""
    job._tell_cancelled()
    for waiter in condition.waiters:
        if job.cancelled():
            waiter.add_cancelled(job)
        elif job._exception is not None:
            job._look_at_failure()
            waiter.add_exception(job)
        else:
            waiter.add_result(job)


def worker_died(runtime: Pool, worker: Worker, error: BaseException) -> None:
    """Clean up after a worker that an exception ended outside of any task (an asynchronous one, or a fault of ours)."""
    with runtime.lock:
        # The structures may have been left half changed: the map is the truth, and is audited first.
        runtime.core.repair()
        for tokens in (runtime.idle, runtime.watch):
            if worker.token in tokens:
                tokens.remove(worker.token)
        held = [job for job in runtime.core.running.values() if job._place is worker]
        runtime.replaced += 1
        if runtime.workers.get(worker.number) is worker:
            del runtime.workers[worker.number]
            runtime.launched.discard(worker.number)
        runtime.manned = False
    told = _log.describe_error(error)
    _log.report(logging.ERROR, "worker %s died of %s; it is replaced", worker.name, told, error=error)
    for job in held:
        died = WorkerDiedError(f"worker {worker.name} died of {told} while it had job {job.id!r}")
        died.__cause__ = error
        attempt_failed(runtime, job, died)
    with runtime.lock:
        runtime._wake_locked()  # it may have been on its way to a job
        wanted = not runtime.core.closed or runtime.core.pending
    if wanted:
        try:
            runtime.man(replacing=True)
        except BaseException as failure:
            _log.report(
                logging.ERROR,
                "no successor for worker %s: %s; tried again at the next submission",
                worker.name, _log.describe_error(failure),
            )  # fmt: skip


def orphan(runtime: Pool, jobs: list[Job[Any]], own: Job[Any] | None) -> None:
    """In the child of a fork: cancel the jobs that stayed with the parent; no callbacks, no locks to wait for."""
    now = runtime.last_reading
    for job in jobs:
        if job is own:
            continue  # this very task goes on in the child, detached
        attached = job._attached
        job._cancel(job._options.name or task_name(job._fn), now, orphaned=True)
        if attached is not None:
            attached.condition = None
            attached.callbacks.clear()
            _locks.release_all(attached.tokens)

"""What comes of an attempt: the decisions around a task that run outside of the lock.

Refusing what cannot be run, deciding between another attempt and the end, explaining earlier attempts in the error's
notes, telling the watchers of ``concurrent.futures.wait``, and cleaning up after a worker that died.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from threadsched import _locks, _log, _numbers, _worker
from threadsched._errors import JobStoppedError, WorkerDiedError
from threadsched._job import CANCELLED, Job, task_name
from threadsched._time_limits import Attempt, Right

if TYPE_CHECKING:
    from threadsched._ending import Ending
    from threadsched._pool import Pool
    from threadsched._worker import Worker


def check_task(fn: object) -> None:
    """Refuse what is not callable."""
    if not callable(fn):
        raise no_task(fn)


def no_task(fn: object) -> TypeError:
    """Return the error that says so."""
    return TypeError(f"the task must be callable, not {_numbers.describe(fn)}")


def run_attempt(runtime: Ending, slot: _worker.Worker, job: Job[Any]) -> BaseException | None:
    """Run a claimed job on the calling thread as if it were ``slot``, settle it, and return what it raised."""
    fn, args, held = job._fn, job._args, job._result
    outcome: BaseException | None = None
    with _worker.on_slot(slot, job):
        try:
            result = _worker.run_task(fn, args, _worker.own_context(job))
        except BaseException as error:  # as on a worker: that job's failure alone
            outcome = error
    if outcome is None:
        runtime.finish(job, result, job.name, slot.attempt)
    else:
        runtime.attempt_failed(job, outcome, slot.attempt)
    slot.attempt = None
    try:
        return outcome
    finally:
        # The error's traceback knows this frame: what it keeps would be kept for as long as the error.
        del held, fn, args, outcome, job


def attempt_failed(runtime: Ending, job: Job[Any], error: BaseException, right: Right | None = None) -> None:
    """Retry, stop or fail a job whose attempt raised; one that raised too late has timed out."""
    if type(right) is Attempt:
        if right.job is not job:
            right = None
        elif right.late(job, runtime.read_clock()):
            attempt_came_late(runtime, right, error)
            return
    _attempt_failed(runtime, job, error, right)
    if type(right) is Attempt and right.over:
        runtime.attempt_came_home(right)  # written off just now: what has come of it was dropped


def attempt_came_late(runtime: Ending, attempt: Attempt, cause: BaseException | None = None) -> None:
    """Drop what an attempt brought that was written off; one that comes late before that has timed out all the same."""
    if not attempt.over:
        _attempt_failed(runtime, attempt.job, attempt.limit.timed_out(cause), attempt)
    if attempt.over:
        runtime.attempt_came_home(attempt)


def _attempt_failed(runtime: Ending, job: Job[Any], error: BaseException, right: Right | None) -> None:
    trace = _log.traceback_of(error)
    while trace is not None and trace.tb_frame.f_code not in _worker.OUTER_CODE:
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code in _worker.OUTER_CODE:
        trace = trace.tb_next
        BaseException.with_traceback(error, trace)  # as the task left it, without the worker's own frames
    if isinstance(error, JobStoppedError) and job.cancel_requested:
        runtime.stop(job, right)
        return
    text = _log.describe_error(error)
    if _retried(runtime, job, error, text, right):
        return
    _note_earlier_attempts(job, error)
    runtime.fail(job, error, text, right)


def _retried(runtime: Ending, job: Job[Any], error: BaseException, text: str, right: Right | None) -> bool:
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
        now = runtime.read_clock()
        run_at = now + pause
        with runtime.lock:
            if right is not None and not right.may_settle():
                return False
            job._run_at = run_at  # the policy must see when it will run; the job is ours until the retry is decided
        decided = None
        while decided is None:  # again if the policy was swapped since the key was computed
            ranking = runtime.core.ranking
            decided = runtime.retry(job, run_at, ranking, ranking.key_of(job), now, error, text, right)
        if decided:
            return True
    except BaseException as fault:
        told = _log.describe_error(fault)
        _log.report(logging.ERROR, "job %r is not retried: deciding on it raised %s", job.id, told, error=fault)
        _add_note(error, f"not retried: deciding on it raised {told}")
    with runtime.lock:
        if right is None or right.may_settle():
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
    """Tell ``wait`` and ``as_completed`` that the job has ended. The condition held, the scheduler's lock not.

    Whoever was told counts as told before the call: begun again after a Ctrl-C, or by a second thread, this tells
    nobody twice, and none of those who came when the job had ended already.
    """
    if condition.to_tell is None or job._state is CANCELLED:
        condition.to_tell = len(condition.waiters)
    error = job._exception
    cancelled = error is None and job.cancelled()
    if error is not None:
        job._look_at_failure()
    while condition.told < min(condition.to_tell, len(condition.waiters)):
        waiter = condition.waiters[condition.told]
        condition.told += 1
        if cancelled:
            waiter.add_cancelled(job)
        elif error is not None:
            waiter.add_exception(job)
        else:
            waiter.add_result(job)
    job._tell_cancelled()


def death_of(worker: Worker, job: Job[Any], error: BaseException) -> WorkerDiedError:
    """Return the failure of a job whose worker an exception struck outside of its task."""
    died = WorkerDiedError(f"worker {worker.name} died of {_log.describe_error(error)} while it had job {job.id!r}")
    died.__cause__ = error
    return died


def worker_died(runtime: Pool, worker: Worker, error: BaseException) -> None:
    """Clean up after a worker that an exception ended outside of any task (an asynchronous one, or a fault of ours)."""
    with runtime.lock:
        # The structures may have been left half changed: the map is the truth, and is audited first.
        runtime.core.repair()
        for tokens in (runtime.idle, runtime.watch):
            if worker.token in tokens:
                tokens.remove(worker.token)
        overrun = [attempt.job for attempt in worker.overrun]  # those are settled by others
        held = [job for job in runtime.core.running.values() if job._place is worker and job not in overrun]
        lost = runtime.written_off.pop(worker.number, None) is worker
        runtime.replaced += not (lost or worker.dead)  # else it has its successor
        worker.dead = True
        runtime.left.append(worker.thread)
        if runtime.workers.get(worker.number, worker) is worker:  # not even there, if it was struck on arrival
            runtime.workers.pop(worker.number, None)
            runtime.launched.discard(worker.number)
        runtime.manned = False
    told = _log.describe_error(error)
    _log.report(logging.ERROR, "worker %s died of %s; it is replaced", worker.name, told, error=error)
    settled = worker.settled
    if settled is not None and settled.done():
        runtime.tell_again(settled)
    settled = worker.settled = None
    for job in held:
        attempt_failed(runtime, job, death_of(worker, job, error))
    with runtime.lock:
        runtime.coming = None  # this was perhaps the one, and takes no turn
        runtime._wake_locked()  # it may have been on its way to a job
        wanted = not runtime.core.closed or runtime.core.pending
    if wanted:
        runtime.replace(f"worker {worker.name}")
    for attempt in list(worker.overrun):
        runtime.attempt_came_home(attempt)


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
            job.__dict__.pop("_condition", None)
            attached.callbacks.clear()
            attached.rules = ()  # edges between jobs that are all gone
            _locks.release_all(attached.tokens)

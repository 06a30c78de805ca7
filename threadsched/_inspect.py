"""What can be seen from outside: records of jobs, reasons why one does not run, stacks, the audit.

Everything is read under the lock and turned into text outside of it.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from threadsched import _dependencies, _log, _series, _stacks
from threadsched._errors import InvariantError
from threadsched._job import DELAYED, Job
from threadsched._limit import LimitInfo
from threadsched._records import JobInfo, JobStatus, Reason, Stats
from threadsched._time_limits import Attempt, limit_of
from threadsched._worker import Worker

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


def stats(runtime: Runtime) -> Stats:
    """Count everything at one instant. O(1)."""
    with runtime.lock:
        core = runtime.core
        pending, running = len(core.pending), len(core.running)
        waiting = min(len(core.waiting), pending)  # one that just enters is held before it is accepted
        delayed = min(max(len(core.delayed) - core.dead_delayed, 0), pending - waiting)
        return Stats(
            workers=len(runtime.workers),
            idle=len(runtime.idle) + len(runtime.watch),
            running=running,
            pending=pending,
            delayed=delayed,
            ready=pending - delayed - waiting,
            waiting=waiting,
            submitted=pending + running + core.done + core.failed + core.cancelled,
            done=core.done,
            failed=core.failed,
            cancelled=core.cancelled,
            retries=core.retries,
            lost_workers=runtime.lost + len(runtime.written_off),
            replaced_workers=runtime.replaced,
        )


def info_of(runtime: Runtime, job: Job[Any]) -> JobInfo:
    """Describe one job, without a stack."""
    return _look(runtime, job)[0]


def _look(runtime: Runtime, job: Job[Any]) -> tuple[JobInfo, Worker | None]:
    """Describe one job, and say on which worker it runs, if it does."""
    name = job.name
    with runtime.lock:
        status, place = job.status, job._place
        error = job._exception
        attached = job._attached
        if error is None and attached is not None:
            error = attached.error
        record = (
            job._priority,
            job._attempts,
            job._submitted_at,
            job._run_at,
            job._started_at,
            job._finished_at,
            getattr(place, "name", None),
        )
    info = JobInfo(
        job.id,
        name,
        status,
        *record,
        error=None if error is None else _log.describe_error(error),
        stack=None,
    )
    return info, place if status is JobStatus.RUNNING and isinstance(place, Worker) else None


def _with_stacks(seen: list[tuple[JobInfo, Worker | None]]) -> list[JobInfo]:
    """Add to what was seen of jobs where the threads stand now: all stacks are read at once, after the jobs."""
    stacks = _stacks.read([worker.ident for _, worker in seen if worker is not None])
    return [
        info if worker is None else dataclasses.replace(info, stack=format_frames(stacks.get(worker.ident, [])))
        for info, worker in seen
    ]


def frames_of(worker: Worker) -> list[_stacks.Place]:
    """Return where a worker's thread stands, as (file, line, function) from the outermost; reads no source."""
    return _stacks.read([worker.ident]).get(worker.ident, [])


def format_frames(places: list[_stacks.Place]) -> str | None:
    """Return a stack as text, from the task inwards; None if there is none. Reads the source, so never under a lock."""
    if not places:
        return None
    frames = traceback.StackSummary.from_list([(*place, None) for place in places])
    # Our own frames are the outermost; what the reader wants is the task's.
    inner = [entry for entry in frames if "/threadsched/_" not in entry.filename.replace("\\", "/")]
    outside = ("threading.py",)
    shown = [
        entry
        for entry in inner
        if not entry.filename.endswith(outside) or entry.name not in ("_bootstrap", "_bootstrap_inner", "run")
    ]
    return "".join(traceback.format_list(shown or list(frames)))


def snapshot(runtime: Runtime) -> list[JobInfo]:
    """Describe the history, what runs (with stacks) and what is pending, in this order."""
    with runtime.lock:
        ended, numbers = runtime.core.ended(), runtime.core.ended_numbers()
        running = list(runtime.core.running.values())
        pending = list(runtime.core.pending.values())
    live = _with_stacks([_look(runtime, job) for job in running if job._seq not in numbers])
    return ended + live + [info_of(runtime, job) for job in pending if job._seq not in numbers]


def running(runtime: Runtime) -> tuple[JobInfo, ...]:
    """Describe what runs, with stacks; tasks whose attempt was written off among them."""
    with runtime.lock:
        jobs = list(runtime.core.running.values())
        away = list(runtime.core.time_limits.away.values())
    seen = [one for job in jobs if not (one := _look(runtime, job))[0].status.ended]
    return tuple(_with_stacks([*seen, *[_overrun(runtime, attempt) for attempt in away]]))


def _overrun(runtime: Runtime, attempt: Attempt) -> tuple[JobInfo, Worker]:
    """Describe the task of a written-off attempt, which still runs while its job has moved on."""
    worker = attempt.worker
    name = worker.name if worker.thread is None else worker.thread.name
    return dataclasses.replace(info_of(runtime, attempt.job), worker=name), worker


def explain(runtime: Runtime, job: Job[Any]) -> list[Reason]:
    """Say why a job is not running, and last which time limit is to come."""
    now = runtime.read_clock()
    reasons = _reasons(runtime, job, now)
    with runtime.lock:
        return reasons + runtime.core.time_limits.reason(job, now)


def _reasons(runtime: Runtime, job: Job[Any], now: float) -> list[Reason]:
    info = info_of(runtime, job)
    with runtime.lock:
        delayed = job._place is DELAYED and info.run_at > now
        ahead, width = len(runtime.core.ready), runtime.width
        halted, paused = runtime.core.halted, runtime.core.paused
        awaited = list(runtime.awaits.get(job._seq, ()))
        limits = runtime.limits.reasons(job, now)
    if info.status is JobStatus.RUNNING:
        waits = "".join(f"; it waits for job {one.id!r} ({one.name})" for one in awaited)
        return [Reason("running", f"attempt {info.attempts} runs on {info.worker or 'its claimer'}{waits}")]
    if info.status.ended:
        why = info.error
        if info.status is JobStatus.CANCELLED and job._result is not None:
            why = _log.describe_error(job._result)
        return [Reason("ended", f"ended {info.status.name}" + (f": {why}" if why else ""))]
    reasons = [Reason("paused", "the scheduler is paused")] if paused else []
    if _series.is_held(job):
        reasons.append(Reason("paused", "its schedule is paused"))
    held = _dependencies.reasons(runtime, job)
    if held or reasons:
        early = _delayed(info, now) if info.run_at > now else []
        return reasons + early + held + limits
    if halted:
        return [Reason("queued", "the scheduler was told to give up what is pending")]
    if delayed:
        return _delayed(info, now)
    if limits:
        return limits
    return [Reason("queued", f"due; {ahead} entries in the ready queue for {width} workers")]


def _delayed(info: JobInfo, now: float) -> list[Reason]:
    left = f"{info.run_at - now:g} s"
    if info.attempts:
        what = f"attempt {info.attempts} failed ({info.error}); the next is due in {left}"
        return [Reason("retry", what, info.run_at)]
    return [Reason("delayed", f"due in {left}", info.run_at)]


def limits(runtime: Runtime) -> Mapping[str, LimitInfo]:
    """Describe every limit."""
    now = runtime.read_clock()
    with runtime.lock:
        return runtime.limits.look(now)


def check(runtime: Runtime) -> None:
    """Audit every invariant of core and pool; InvariantError on the first broken one."""
    with runtime.lock:
        runtime.core.check_invariants()
        _dependencies.audit(runtime.core)
        _check_pool(runtime)
        tokens = runtime.idle + runtime.watch
        ours = {id(worker.token) for worker in runtime.workers.values()}
        problem = runtime.wall.audit(runtime)
        if problem is not None:
            pass
        elif len(runtime.watch) > 1:
            problem = "two workers watch the delayed heap"
        elif len({id(token) for token in tokens}) != len(tokens):
            problem = "a worker stands on two lists of sleepers"
        elif not {id(token) for token in tokens} <= ours:
            problem = "a worker that has left is on a list of sleepers"
        elif not runtime.stepped and sum(map(_needs_worker, runtime.core.running.values())) > sum(
            1 + worker.depth + len(worker.adopted)
            for worker in (*runtime.workers.values(), *runtime.written_off.values())
        ):
            problem = "more jobs run than there are workers"
        elif not set(runtime.awaits) <= set(runtime.core.running):
            problem = "a job waits for another and does not run"
        elif runtime.stand_in is not None and id(runtime.stand_in) not in runtime.helpers:
            problem = "who stands in for the watch is not asleep"
    if problem:
        raise InvariantError(problem)


def _needs_worker(job: Job[Any]) -> bool:
    """Whether a running job takes a worker: not if claimed, run by its submitter, or written off and yet to settle."""
    limit = limit_of(job)
    over = limit is not None and limit.attempt is not None and limit.attempt.over
    return isinstance(job._place, Worker) and job._place.number >= 0 and not over


def _check_pool(runtime: Runtime) -> None:
    """Audit who is in the pool and who was written off. Lock held."""
    lost = runtime.written_off
    problem = None
    if len(set(runtime.posts)) != runtime.width:
        problem = f"there are {len(set(runtime.posts))} posts for {runtime.width} workers"
    elif len(lost) > runtime.width:
        problem = f"{len(lost)} threads of {runtime.width} workers are lost"
    elif set(lost) & (set(runtime.posts) | runtime.launched | set(runtime.workers)):
        problem = "a lost thread is in the pool"
    elif not all(worker.detached for worker in lost.values()):
        problem = "a lost thread takes itself for a member of the pool"
    elif any(worker.detached for worker in runtime.workers.values()):
        problem = "a worker takes itself for lost"
    elif not runtime.stepped and not runtime.launched <= set(runtime.posts):
        problem = "a worker holds no post"
    if problem:
        raise InvariantError(problem)

"""A submission that found the queue full: waiting for a place, dropping a job, or running the task right here.

The gate (see ``_gate``) says what is decided under the lock; here is what surrounds it. Whatever ends a submission that
was held up, its place in the line and its grant go to the next.
"""

from __future__ import annotations

import inspect
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadsched import _log, _outcome, _time_limits
from threadsched._core import Core, IdTakenError, Spoils
from threadsched._errors import JobDroppedError, QueueFullError
from threadsched._gate import BLOCK, CALLER_RUNS, DROP_LOWEST, REJECT, Gate
from threadsched._heap import Entry
from threadsched._job import READY, WAITING, Job
from threadsched._locks import holds, make_token, on_main_thread, sleep_on
from threadsched._options import Options
from threadsched._time_limits import UnwatchedError
from threadsched._worker import Worker

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


class StillFullError(QueueFullError):
    """Raised to ``make_room`` by a second try that came too late for the place; never leaves the package."""


def make_room(runtime: Runtime, job: Job[Any], options: Options) -> Job[Any]:
    """Do with a newcomer what ``on_full`` says, and return it accepted, dropped or run; or raise QueueFullError."""
    core, gate = runtime.core, runtime.core.gate
    assert gate is not None
    if options.id is not None:
        with runtime.lock:  # a duplicate shall neither wait nor cost another job its place
            try:
                core.reserve(job, options.id)
            finally:
                core.withdraw(job, core.entering)
    if gate.on_full == REJECT:
        raise full(runtime, gate)
    if gate.on_full == CALLER_RUNS:
        run_here(runtime, gate, job, options)
        return job
    try:
        while True:
            if gate.on_full == BLOCK:
                wait_for_place(runtime, gate, job, options)
            elif drop(runtime, gate, job, options):
                return job
            try:
                return runtime.enter(job, options, held=True)
            except StillFullError:
                continue  # somebody else took the place that the dropped job left
    except BaseException:
        try:
            with runtime.lock:
                gate.withdraw(job, core.pending)
        except BaseException:  # struck in there: it may be done twice
            with runtime.lock:
                gate.withdraw(job, core.pending)
            raise
        raise


def full(runtime: Runtime, gate: Gate, why: str = "") -> QueueFullError:
    """Return the error that says so."""
    return QueueFullError(
        f"scheduler {runtime.name!r} has max_pending={gate.limit} jobs pending" + (why and f": {why}")
    )


def wait_for_place(runtime: Runtime, gate: Gate, job: Job[Any], options: Options) -> None:
    """Sleep until a place is granted or the door closes; QueueFullError after ``submit_timeout`` real seconds."""
    if runtime.on_worker():
        raise full(runtime, gate, "a worker must not wait for a place in its own scheduler's queue")
    if holds(runtime.lock):
        raise full(runtime, gate, "this code interrupted the scheduler on its own thread and cannot wait")
    timeout = options.submit_timeout
    deadline = None if timeout is None else monotonic() + timeout
    token = make_token()
    core = runtime.core
    while True:
        with runtime.lock:
            gate.freed(core.pending)
            if core.closed or gate.take(job, core.pending):
                break  # in, or to be refused
            if deadline is not None and monotonic() >= deadline:
                raise full(runtime, gate, f"no place became free within {timeout:g} s")
            gate.line.setdefault(job, token)
        sleep_on(token, None if deadline is None else deadline - monotonic())
    now = runtime.now()
    job._restamp(options, now)
    _time_limits.restamp(job, now)


def drop(runtime: Runtime, gate: Gate, job: Job[Any], options: Options) -> bool:
    """Cancel the job that has to give way; True if that was the newcomer itself."""
    core = runtime.core
    by_rank = gate.on_full == DROP_LOWEST
    name, now = job.name, runtime.read_clock()
    while True:
        ranking = core.ranking
        with runtime.lock:
            job._seq = next(core.numbers)
        if by_rank:
            job._key = ranking.key_of(job)
        spoils: Spoils | None = None
        with runtime.lock:
            if core.closed or gate.admits(job, core.pending):
                return False
            if by_rank and core.ranking is not ranking:
                continue  # the key belongs to another order
            victim = lowest(core) if by_rank else oldest(core)
            if by_rank and (victim is None or not job._key < victim._key):
                victim = job  # of equals the last to come is the last
                spoils = admit_dropped(core, job, options.id, name, now, dropped(job, gate, ranking.policy))
        if victim is job:
            del spoils  # the last references, now that the lock is free
            runtime.drain_outbox()
            return True
        if victim is not None:
            runtime.cancel_batch([victim], dropped(victim, gate, ranking.policy if by_rank else None))
        return False


def dropped(job: Job[Any], gate: Gate, policy: object) -> JobDroppedError:
    """Return what ``result()`` of a dropped job raises."""
    why = "had waited longest" if policy is None else f"ranked last under {type(policy).__name__}"
    return JobDroppedError(f"job {job.id!r} was dropped: {gate.limit} jobs were pending, and it {why}")


def oldest(core: Core) -> Job[Any] | None:
    """Return the job that has been in the queue longest; a retry counts from when it came back."""
    for job in core.pending.values():  # not next(iter(...)): nobody can break in between the two here
        return job
    return None


def lowest(core: Core) -> Job[Any] | None:
    """Return the pending job that the policy ranks last.

    O(log n) if all that is pending is ready; what is not has to be gone through.
    """
    if core.ready.untidy:
        core.repair()
    ready, pending = core.ready, core.pending
    last: Entry | None = None
    for entry in reversed(ready.heap):
        job = pending.get(entry[1])
        if job is not None and core.is_current(job, entry):
            last = entry
            break
    if len(ready) < len(pending):
        others = [(job._key, job._seq) for job in list(pending.values()) if job._place is not READY]
        last = max(others if last is None else [*others, last], default=None)
    return None if last is None else pending.get(last[1])


def admit_dropped(
    core: Core, job: Job[Any], id: str | None, name: str, now: float, reason: JobDroppedError
) -> Spoils | None:
    """Accept a newcomer and cancel it in the same hold: it is counted and remembered, and was never in a heap."""
    try:
        if id is not None:
            core.reserve(job, id)
        job._place = WAITING
        core.pending[job._seq] = job
        return core.cancel(job, name, now, reason)
    except BaseException:
        core.pending.pop(job._seq, None)
        core.waiting.pop(job._seq, None)  # where a cancel that was broken off has put it back
        core.withdraw(job, core.entering)
        raise


def run_here(runtime: Runtime, gate: Gate, job: Job[Any], options: Options) -> None:
    """Run a newcomer on the calling thread, past the queue, if it could start at once; else QueueFullError."""
    if holds(runtime.lock):
        raise full(runtime, gate, "this code interrupted the scheduler on its own thread and cannot run a task")
    if is_asynchronous(job._fn) and inside_event_loop():
        raise full(runtime, gate, "a coroutine cannot be run inside a running event loop")
    core = runtime.core
    thread = threading.current_thread()
    slot = Worker(runtime, -1)
    slot.name, slot.ident, slot.thread = thread.name, threading.get_ident(), thread
    now = runtime.read_clock()
    try:
        while True:
            try:
                with runtime.lock:
                    if core.closed or runtime.broken is not None:
                        runtime._refuse()
                    started = claim_newcomer(core, job, options.id, now, slot)
                    runtime._settled_locked()
                break
            except UnwatchedError:
                runtime.watch_limits()
        if not started:
            raise full(runtime, gate, "and only a job that could start at once runs on its submitter's thread")
        error = _outcome.run_attempt(runtime, slot, job)
    except BaseException as strike:  # an interrupt, outside of the task: no job may run with nobody to run it
        if job._state == "RUNNING":
            runtime.fail(job, strike, _log.describe_error(strike))
        raise
    if isinstance(error, KeyboardInterrupt) and on_main_thread():
        raise error  # Ctrl-C, which merely struck in the task


def claim_newcomer(core: Core, job: Job[Any], id: str | None, now: float, place: object) -> bool:
    """Start a newcomer at once, past the queue, if nothing is in its way; False leaves nothing of it behind."""
    if core.halted or job._run_at > now:
        return False
    job._seq = next(core.numbers)
    rules = job._attached.rules if job._attached is not None else ()
    try:
        if id is not None:
            core.reserve(job, id)
        for asked, rule in enumerate(rules, 1):
            if not rule.admits(job) or not rule.may_start(job, now):
                for told in rules[:asked]:
                    told.ended(job, now)
                core.withdraw(job, core.entering)
                return False
        core.running[job._seq] = job
        job._claim(now, place)
    except BaseException as error:
        if job._state == "PENDING":
            core.running.pop(job._seq, None)
            core.withdraw(job, core.entering)
            for rule in rules if not isinstance(error, IdTakenError) else ():
                rule.ended(job, now)
        raise
    for rule in rules:
        rule.started(job, now)
    return True


def is_asynchronous(fn: Any) -> bool:
    """Say whether calling the task makes a coroutine; what a plain function returns cannot be known before."""
    method = getattr(type(fn), "__call__", None)  # noqa: B004 -- not a test of callability
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(method)


def inside_event_loop() -> bool:
    """Say whether an asyncio loop runs on this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None

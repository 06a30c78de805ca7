"""A submission whose ``id`` belongs to a live job, and which does not want an error: ``if_exists``.

Under "return" whoever asks second gets the job that is there. Under "replace" a job that has not started gives way:
the newcomer is accepted and the old job cancelled in one hold of the lock, so there is no moment with both or neither.
It takes the old one's place in a bounded queue too, and asks nobody for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadsched import _dependencies, _full, _time_limits
from threadsched._core import IdTakenError
from threadsched._errors import DuplicateJobError
from threadsched._job import READY, Job
from threadsched._options import RETURN, Options
from threadsched._policy import BeforeRaisedError
from threadsched._time_limits import UnwatchedError

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


def settle(runtime: Runtime, taken: IdTakenError, options: Options) -> Job[Any]:
    """Return the live job with the newcomer's id, or the newcomer in its place; DuplicateJobError if that one runs."""
    while True:
        job, holder = taken.job, taken.holder
        if options.if_exists == RETURN:
            return holder
        if replace(runtime, job, holder, options):
            return job
        try:  # it has ended meanwhile: the id is free, unless somebody else was faster
            try:
                return runtime.enter(job, options, held=True)
            except _full.StillFullError:
                return _full.make_room(runtime, job, options)
        except IdTakenError as again:
            taken = again


def replace(runtime: Runtime, job: Job[Any], holder: Job[Any], options: Options) -> bool:
    """Accept a newcomer and cancel the pending job with its id; False if that one has ended."""
    core, id = runtime.core, options.id
    assert id is not None
    name, now = holder.name, runtime.read_clock()
    while True:
        if not runtime.manned:
            runtime.man()
        ranking = core.ranking
        with runtime.lock:
            ranking.refuse_in_before()
            seq = job._seq = next(core.numbers)
        job._key = ranking.key_of(job)
        spoils = None
        with runtime.lock:
            if core.closed or runtime.broken is not None:
                runtime._refuse()
            if core.ranking is not ranking:
                continue  # swapped since the key was computed
            if core.pending.get(holder._seq) is not holder:
                if not holder.done():
                    raise DuplicateJobError(f"id {id!r} belongs to a job that runs: only a pending one is replaced")
                return False
            outer = core.entering
            try:
                core.named[id] = job
                if core.enter(job, seq):
                    runtime._new_head_locked()
                elif job._place is READY:
                    runtime._wake_locked()
                gives_way = (holder, None)
                core.pending[seq] = job  # Linearization point, as in ``Runtime.submit``.
                core.outbox.append(gives_way)  # whatever strikes from here on, it is cancelled
                core.entering = outer
            except BaseException as error:
                core.withdraw(job, outer)
                core.named.setdefault(id, holder)
                if isinstance(error, UnwatchedError):
                    runtime.manned = False
                    continue
                if job._attached is not None and seq not in core.pending:
                    _time_limits.detach(job)
                    _dependencies.detach(job)
                if isinstance(error, BeforeRaisedError):
                    raise error.error from None
                raise
            try:
                spoils = core.cancel(holder, name, now)
                runtime._ended_locked(holder)
                runtime._gave_up_locked()
            except BaseException:
                runtime._hand_on([holder])  # the workers take over
                raise
        del spoils  # the last references, now that the lock is free
        runtime.drain_outbox()
        return True

"""Submitting many plain jobs at once: one hold of the lock for a batch, a wake-up for each worker there is work for.

What ``map`` uses where every input is there and nothing speaks against it: no bound on the pending jobs, no option that
has to be asked about job by job. Each job is accepted by itself, in order, exactly as by ``Runtime.submit``; a batch
that is broken off leaves those accepted that ``accepted`` has, and nothing of the others.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import Any

from threadsched._job import Job
from threadsched._locks import step_aside
from threadsched._options import Options
from threadsched._runtime import Runtime

# Jobs accepted in one hold: the lock costs each a few nanoseconds then, and others wait for it no longer than 0.1 ms.
BATCH = 128

copy_context = contextvars.copy_context


def takes_many(runtime: Runtime, options: Options) -> bool:
    """Say whether jobs with these options may be submitted in batches."""
    return not options.special and runtime.core.gate is None and runtime.core.ranking.trusted


def submit_many(
    runtime: Runtime,
    fn: Any,
    inputs: list[tuple[Any, ...]],
    options: Options,
    delay: float,
    accepted: deque[Job[Any]],
) -> None:
    """Accept ``fn(*args)`` for each ``args`` of ``inputs``, and append the jobs to ``accepted`` as they are."""
    now = runtime.now()
    jobs = []
    for args in inputs:
        context = (copy_context() or None) if options.context else None
        jobs.append(Job(runtime, fn, args, None, options, context, now, delay))
    jobs.reverse()  # they are taken off at the end
    core = runtime.core
    while jobs:
        if not runtime.manned:
            runtime.man()
        ranking = core.ranking
        if not ranking.trusted or core.gate is not None:
            accepted.append(runtime.enter(jobs[-1], options.delayed(delay)))  # that changed meanwhile: one by one
            jobs.pop()
            continue
        for job in jobs:
            job._key = ranking.key_of(job)
        if runtime.mark is not None:
            step_aside(runtime)
        runtime.mark = jobs
        with runtime.lock:
            outer, job = core.entering, jobs[-1]
            try:
                if core.closed:
                    runtime._refuse()
                if core.ranking is not ranking:
                    continue
                if not runtime.launched and not runtime.stepped:
                    runtime.manned = False
                    continue
                # Before the jobs are there, as in Runtime.submit: whoever is woken waits for the lock.
                for _ in range(min(len(jobs), len(runtime.idle) + len(runtime.watch))):
                    runtime._wake_locked()
                while jobs:
                    job = jobs[-1]
                    seq = next(core.numbers)
                    if core.enter(job, seq):
                        runtime._new_head_locked()
                    accepted.append(job)
                    core.pending[seq] = job
                    jobs.pop()
                core.entering = outer
            except BaseException:
                core.withdraw(job, outer)
                raise
            finally:
                if runtime.mark is jobs:
                    runtime.mark = None

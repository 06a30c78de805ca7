"""Submitting many plain jobs at once: one hold of the lock for a batch, a wake-up for each worker there is work for.

What ``map`` uses where every input is there and nothing speaks against it: no bound on the pending jobs, no option that
has to be asked about job by job. The jobs of a batch differ in nothing but their arguments and numbers, so what they
share is looked up once, and they enter the queue and the map by a few calls of C code instead of a few for each.

Each job is accepted by itself, in order, exactly as by ``Runtime.submit``; a batch that is broken off leaves those
accepted that ``accepted`` has, and nothing of the others.
"""

from __future__ import annotations

import contextvars
from collections import deque
from itertools import islice
from typing import Any

from threadsched._job import DELAYED, PENDING, READY, Job, new_job
from threadsched._locks import step_aside
from threadsched._options import Options
from threadsched._runtime import Runtime

# Jobs accepted in one hold: the lock costs each a few nanoseconds then, and others wait for it no longer than 0.1 ms.
BATCH = 128

copy_context = contextvars.copy_context


def takes_many(runtime: Runtime, options: Options) -> bool:
    """Say whether jobs with these options may be submitted in batches."""
    return not options.special and runtime.core.door is not None


def make_jobs(
    runtime: Runtime, fn: Any, inputs: list[tuple[Any, ...]], options: Options, delay: float
) -> list[Job[Any]]:
    """Return the jobs of a batch, accepted by nobody yet."""
    now = runtime.now()
    run_at, place = (now + delay, DELAYED) if delay else (now, READY)
    context = (copy_context() or None) if options.context else None
    lasting, priority = options.lasting, options.priority
    jobs = []
    for args in inputs:
        job: Job[Any] = new_job(Job)
        job._runtime = runtime
        job._fn = fn
        job._args = args
        job._result = context if context is None else copy_context()
        job._options = lasting
        job._priority = priority
        job._submitted_at = now
        job._run_at = run_at
        job._place = place
        job._state = PENDING
        job._attempts = 0
        job._started_at = job._attached = None
        jobs.append(job)
    return jobs


def submit_many(
    runtime: Runtime,
    fn: Any,
    inputs: list[tuple[Any, ...]],
    options: Options,
    delay: float,
    accepted: deque[Job[Any]],
) -> None:
    """Accept ``fn(*args)`` for each ``args`` of ``inputs``, and append the jobs to ``accepted`` as they are."""
    jobs = make_jobs(runtime, fn, inputs, options, delay)
    core = runtime.core
    while jobs:
        if not runtime.manned:
            runtime.man()
        ranking = core.door
        if ranking is None:
            accepted.append(runtime.enter(jobs[0], options.delayed(delay)))  # that changed meanwhile: one by one
            del jobs[0]
            continue
        key = ranking.key_of(jobs[0])
        if runtime.mark is not None:
            step_aside(runtime)
        runtime.mark = jobs
        with runtime.lock:
            outer = core.entering
            try:
                if core.door is not ranking or not runtime.manned:
                    continue
                # Before the jobs are there, as in Runtime.submit: whoever is woken waits for the lock.
                for _ in range(min(len(jobs), len(runtime.idle) + len(runtime.watch))):
                    runtime._wake_locked()
                seqs = list(islice(core.numbers, len(jobs)))
                if core.enter_many(jobs, seqs, key):
                    runtime._new_head_locked()
                core.pending.update(zip(seqs, jobs, strict=True))
                core.entering = outer
                accepted.extend(jobs)
                return
            except BaseException:
                core.withdraw_many(outer)
                accepted.extend(job for job in jobs if core.accepted(job))
                raise
            finally:
                if runtime.mark is jobs:
                    runtime.mark = None

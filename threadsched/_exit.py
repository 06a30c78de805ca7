"""The ends that are not a call of ``shutdown``: interpreter exit, fork, and a scheduler that is dropped.

Both registries hold runtimes weakly. Nothing here starts a thread: some interpreters refuse that at exit.

**Exit.** The interpreter joins non-daemon threads first and runs ``atexit`` hooks then, last registered first; so the
pool still serves the user's threads, and logging works. Each runtime has a hook of its own, registered at
construction; all share one deadline. **Fork.** ``before`` takes every live lock in order of creation, so no structure
is half changed in the child; both sides release it. **Children of multiprocessing** skip ``atexit`` before Python 3.13
and get the hook by ``multiprocessing.util.Finalize``.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING

from threadsched import _inspect, _log, _outcome
from threadsched._locks import holds, join_thread
from threadsched._records import ShutdownReport
from threadsched._worker import current_worker

if TYPE_CHECKING:
    from threadsched._runtime import Runtime
    from threadsched._shared import Shared

# id -> runtime, in order of creation. Written by one C call each, so it needs no lock.
_live: dict[int, weakref.ref[Runtime]] = {}
# When the first exit hook ran, in real time: the start of the deadline that all schedulers share.
_exit_began: float | None = None
# The thread that forks -> the runtimes whose locks it holds; several threads may be about to fork.
_held_for_fork: dict[int, list[Runtime]] = {}


def shutdown(runtime: Runtime, *, wait: bool, drain: str, timeout: float | None) -> ShutdownReport:
    """Close, give up what the mode says, wait for the workers, report."""
    deadline = None if timeout is None else monotonic() + max(timeout, 0.0)
    may_wait = wait and not runtime.on_worker()
    if may_wait and holds(runtime.lock):
        raise RuntimeError("cannot wait here: this code interrupted the scheduler on its own thread")
    if may_wait and drain == "none":
        runtime.let_woken_claim()
    runtime.close(drain)
    runtime.give_up_rest()
    if may_wait:
        join(runtime, deadline)
    return report(runtime)


def join(runtime: Runtime, deadline: float | None) -> bool:
    """Wait for the workers to leave, until ``deadline`` (real time); True if they have."""
    if not runtime.wait_left(None if deadline is None else max(deadline - monotonic(), 0.0)):
        return False
    if not runtime.wait_told(None if deadline is None else max(deadline - monotonic(), 0.0)):
        return False
    with runtime.lock:
        gone = list(runtime.left)
        if not runtime.core.time_limits.live:
            gone.append(runtime.watcher)
    for thread in gone:
        # Each is past its last look at the jobs, and what it still does is the end of it: the watchers of cancelled
        # jobs that it tells, and the interpreter's own last steps.
        if thread is not None:
            join_thread(thread, None if deadline is None else max(deadline - monotonic(), 0.1))
    forget(runtime)
    return True


def report(runtime: Runtime) -> ShutdownReport:
    """Count how the jobs ended and what still runs."""
    now = _inspect.stats(runtime)
    return ShutdownReport(now.done, now.failed, now.cancelled, now.pending, _inspect.running(runtime))


def watch_over(runtime: Runtime) -> None:
    """Register a runtime for exit and fork; called once, at construction."""
    key = id(runtime)
    reference = weakref.ref(runtime)
    _live[key] = reference
    runtime.exit_hook = make_hook(reference)
    atexit.register(runtime.exit_hook)
    weakref.finalize(runtime, _live.pop, key, None).atexit = False


def make_hook(reference: weakref.ref[Runtime]) -> Callable[[], None]:
    """Return the exit hook of one runtime, which does not keep it alive."""

    def hook() -> None:
        runtime = reference()
        if runtime is not None:
            run_down(runtime)

    return hook


def forget(runtime: Shared) -> None:
    """Unregister the exit hook, unless it is to name a written-off thread; never under the lock.

    For a foreign ``__eq__`` may run in there.
    """
    if runtime.exit_hook is not None and not runtime.core.time_limits.away:
        atexit.unregister(runtime.exit_hook)
        runtime.exit_hook = None


def run_down(runtime: Runtime) -> None:
    """The interpreter exits: close, drain what is due, wait a bounded time, name what is stuck."""
    named: list[bool] = []

    def wait() -> None:
        global _exit_began
        if _exit_began is None:
            _exit_began = monotonic()
        runtime.exiting = True
        runtime.close("due")
        runtime.give_up_rest()
        if not runtime.wait_left(max(_exit_began + runtime.exit_timeout / 2 - monotonic(), 0.0)):
            ask_to_stop(runtime)
            runtime.wait_left(max(_exit_began + runtime.exit_timeout - monotonic(), 0.0))

    def give_up() -> None:
        runtime.exiting = True
        if runtime.launched:
            runtime.close("none")
            runtime.give_up_rest()
        if (runtime.launched or runtime.core.time_limits.away) and not named:
            name_stuck(runtime)
            named.append(True)

    _despite_ctrl_c(wait, give_up, 20)


def _despite_ctrl_c(first: Callable[[], None], then: Callable[[], None], presses: int) -> None:
    """Call ``first``, then ``then``; a Ctrl-C breaks off the first, and has the second begun again.

    Each level takes one interrupt, wherever it strikes inside, in the ``except`` clause of the level below too, so
    that many of them leave no traceback of ours at exit. A loop would have a gap at its jump.
    """
    try:
        if presses:
            _despite_ctrl_c(first, then, presses - 1)
        else:
            first()
            then()
    except KeyboardInterrupt:
        then()


def ask_to_stop(runtime: Runtime) -> None:
    """Set the cancel token of everything that runs."""
    with runtime.lock:
        jobs = list(runtime.core.running.values())
    for job in jobs:
        runtime.request_cancel(job)


def name_stuck(runtime: Runtime) -> None:
    """Log each job that the process leaves behind, with its stack."""
    for info in _inspect.running(runtime):
        _log.report(
            logging.ERROR,
            "the process exits while job %r (%s) still runs on %s:\n%s",
            info.id, info.name, info.worker, info.stack or "(no stack)",
        )  # fmt: skip


def abandon(runtime: Runtime) -> None:
    """The scheduler was dropped: its jobs finish, then its threads end. Safe at any instruction; never waits."""
    runtime.close("all")
    if not runtime.launched:
        forget(runtime)


def cover_child_process(runtime: Shared) -> None:
    """Give a child of ``multiprocessing``, which may skip ``atexit``, the same exit."""
    if sys.version_info < (3, 13) and "multiprocessing.process" in sys.modules:
        import multiprocessing
        import multiprocessing.util

        hook = runtime.exit_hook
        if multiprocessing.parent_process() is not None and hook is not None:
            multiprocessing.util.Finalize(None, hook, exitpriority=100)


def _before_fork() -> None:
    held = _held_for_fork.setdefault(get_ident(), [])
    for reference in list(_live.values()):
        runtime = reference()
        if runtime is not None:
            runtime.lock.acquire()
            held.append(runtime)


def _release_after_fork() -> None:
    held = _held_for_fork.pop(get_ident(), [])
    while held:
        held.pop().lock.release()


def _after_fork_in_child() -> None:
    global _exit_began
    _exit_began = None
    worker = current_worker()
    held = _held_for_fork.get(get_ident(), [])
    _held_for_fork.clear()  # the other threads are not here
    _held_for_fork[get_ident()] = held
    for runtime in held:
        if worker is not None and worker.runtime is runtime:
            worker.detached = True  # also one that is no member of the pool: a submitter's
        own = worker.job if worker is not None and worker.runtime is runtime else None
        jobs = runtime.start_afresh()
        _outcome.orphan(runtime, jobs, own)
    _release_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_release_after_fork, after_in_child=_after_fork_in_child)

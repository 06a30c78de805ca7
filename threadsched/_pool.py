"""The pool: starting workers, counting them in and out, replacing the dead, starting afresh after a fork.

Threads are started outside of the lock and before any job is queued for them. A worker counts itself in as its first
act, so a thread that was started twice for one number, after an interrupted start, finds its place taken and ends.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, cast

from threadsched import _exit, _locks, _log, _outcome
from threadsched._awaiting import Awaiting
from threadsched._errors import BrokenSchedulerError
from threadsched._job import Job
from threadsched._worker import Worker

if TYPE_CHECKING:
    from threadsched._runtime import Runtime


class Pool(Awaiting):
    """The room of the threads."""

    __slots__ = ()

    def man(self, *, replacing: bool = False) -> None:
        """Start the workers that are missing; raise if there is none then, and leave nothing queued."""
        if not replacing and (self.core.closed or self.broken is not None):
            self._refuse()
        if self.core.time_limits.wanted:
            self.watch_limits()
        failure: BaseException | None = None
        for number in list(self.posts):
            with self.lock:
                if number in self.launched or (self.core.closed and not self.core.pending):
                    continue  # it is there, or would leave at once
                if number not in self.posts:
                    continue  # that one was written off meanwhile, and its successor has another number
                self.launched.add(number)
            try:
                worker = Worker(cast("Runtime", self), number)
                _locks.start_thread(worker.main, (), worker.name)
            except BaseException as error:
                failure = error
                with self.lock:
                    if number not in self.workers:
                        self.launched.discard(number)
                        self.manned = False  # at once: a submission relies on it
                break
        _exit.cover_child_process(self)
        with self.lock:
            alive, before = len(self.launched), self.lost
            self.lost = 0 if failure is None else self.width - alive
            self.manned = failure is None and alive >= self.width
        if failure is not None:
            try:
                self._cannot_start(failure, alive, told=self.lost == before)
            finally:
                del failure  # its traceback knows this frame, and with it every caller

    def replace(self, whom: str) -> None:
        """Start the workers that are missing because ``whom`` is gone; if none can be started, say so and go on."""
        try:
            self.man(replacing=True)
        except BaseException as failure:
            _log.report(
                logging.ERROR,
                "no successor for %s: %s; tried again at the next submission",
                whom, _log.describe_error(failure),
            )  # fmt: skip

    def _cannot_start(self, failure: BaseException, alive: int, *, told: bool) -> None:
        """Go on with the workers there are, and say so once; with none, end what is queued and raise."""
        if not alive:
            self._fail_pending("no worker could be started", failure)
        if not alive or not isinstance(failure, Exception):
            try:
                raise failure
            finally:
                del failure  # as in man()
        if not told:
            _log.report(
                logging.WARNING,
                "scheduler %r runs with %d of %d workers, for a thread could not be started: %s",
                self.name, alive, self.width, _log.describe_error(failure),
            )  # fmt: skip

    def watch_limits(self) -> None:
        """See that somebody watches the time limits."""
        raise NotImplementedError  # in the next room

    def arrive(self, worker: Worker) -> bool:
        """Count a worker in; False if its number is taken or its pool is not here any more."""
        with self.lock:
            if worker.generation != self.generation or worker.number in self.workers:
                return False
            self.workers[worker.number] = worker
            self.launched.add(worker.number)
            return True

    def initialise(self) -> bool:
        """Run the user's initializer; if it raises, break the scheduler: nothing can run, so nothing may wait."""
        if self.initializer is None:
            return True
        try:
            self.initializer()
            return True
        except BaseException as error:
            self.break_down(error)
            return False

    def break_down(self, error: BaseException) -> None:
        """Refuse submissions from now on and fail what is pending."""
        with self.lock:
            first = self.broken is None
            self.broken = self.broken or error
            self.core.broken = True
            self.core.close("all")
        if first:
            _log.report(
                logging.CRITICAL,
                "the initializer of scheduler %r raised %s: it runs nothing any more",
                self.name, _log.describe_error(error), error=error,
            )  # fmt: skip
        self._fail_pending(f"the initializer of scheduler {self.name!r} failed", error)
        with self.lock:
            self._wake_all_locked()

    def _fail_pending(self, why: str, error: BaseException) -> None:
        with self.lock:
            doomed = list(self.core.pending.values())
        for job in doomed:
            broken = BrokenSchedulerError(why)
            broken.__cause__ = error
            self.fail(job, broken, _log.describe_error(broken))
        with self.lock:
            self._tell_left_locked()

    def worker_died(self, worker: Worker, error: BaseException) -> None:
        """Settle what a dying worker had in hand, make the structures whole, and start its successor."""
        if worker.generation != self.generation:
            return
        _outcome.worker_died(self, worker, error)

    def leave(self, worker: Worker) -> None:
        """Count a worker out; the last one tells those who wait for that."""
        with self.lock:
            if worker.generation != self.generation:
                return
            self.left.append(worker.thread)
            if self.workers.get(worker.number) is worker:
                del self.workers[worker.number]
                self.launched.discard(worker.number)
            last = not self.launched
            self._tell_left_locked()
            _locks.release_all(self.quiet_waiters)  # one sleeper less to wait for: they look again
        self.drain_outbox()
        if last and self.core.closed and not self.exiting:
            _exit.forget(self)  # unless there is still somebody to be named at exit

    def start_afresh(self) -> list[Job[Any]]:
        """In the child of a fork, lock held: forget workers, waiters and jobs, keep the rules; return the jobs."""
        jobs = [*self.core.running.values(), *self.core.pending.values()]
        self.generation += 1
        for series in self.core.series.values():
            series.over = series.over or "fork"
        self.core.reset()
        self.wall.reset()
        for worker in (*self.workers.values(), *self.written_off.values()):
            worker.detached = True
        self.workers.clear()
        self.written_off.clear()
        self.launched.clear()
        self.posts = list(range(self.width))
        self.numbers = itertools.count(self.width)
        self.tellers.clear()
        self.watcher = None
        self.left.clear()
        self.sleepers.clear()
        self.helpers.clear()
        self.awaits.clear()
        self.stand_in = None
        self.readmissions = 0
        for registry in (
            self.idle,
            self.watch,
            self.exit_waiters,
            self.idle_waiters,
            self.quiet_waiters,
            self.turn_waiters,
            self.told_waiters,
        ):
            registry.clear()
        self.mark = self.coming = self.deputy = None
        self.manned = self.stepped
        self.clearing = False
        self.lost = self.replaced = 0
        return jobs

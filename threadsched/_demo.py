"""The demonstration: fetch the interpreter's own sources through the scheduler, and check what happened.

In here: the two runs (`fetch_scheduled`, and `fetch_by_hand` with a `ThreadPoolExecutor` for comparison)
and the program round them. The plan, the server, the client, the checks and the report are in files of
their own; this one is what a user of the scheduler would have to write.
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from threadsched import Job, Retry, Scheduler
from threadsched._demo_checks import Evidence, HandRun, ScheduledRun, run_checks
from threadsched._demo_client import Body, Fetcher, ServerBusyError, Source, find_sources, sources_root
from threadsched._demo_plan import (
    LEAD,
    MISSING,
    PRIORITY_MISSING,
    PRIORITY_MODULE,
    PRIORITY_PACKAGE,
    RETRIES,
    Plan,
    make_plan,
)
from threadsched._demo_progress import Figures, Progress
from threadsched._demo_report import Summary, as_json, introduction
from threadsched._demo_server import SourceServer
from threadsched._terminal import Terminal

# Seconds between two looks at the run: often enough for the eye, seldom enough not to matter.
_REFRESH = 0.1

# Seconds before the second wave opens. The package is cancelled then at the latest, though the first wave
# may not have come halfway on a slow machine: afterwards its first files would already run.
_CANCEL_AHEAD = 0.2


class BulkFetch:
    """One fetch of everything through a scheduler: submits, watches, cancels, and gathers the evidence.

    Used by one thread; the failures alone are handed over by the workers.
    """

    def __init__(self, plan: Plan, scheduler: Scheduler, fetcher: Fetcher, progress: Progress) -> None:
        """Prepare the fetch; nothing is submitted yet."""
        self._plan = plan
        self._scheduler = scheduler
        self._fetcher = fetcher
        self._progress = progress
        self._retry = Retry(RETRIES, backoff=plan.backoff, on=ServerBusyError)
        self._failures: queue.SimpleQueue[tuple[Job[Body], BaseException]] = queue.SimpleQueue()
        self._opens = time.monotonic() + LEAD
        self.second_opens = self._opens + plan.second_delay
        self.jobs: dict[str, Job[Body]] = {}
        self.revoked: frozenset[str] | None = None

    def submit(self) -> None:
        """Submit both waves and the missing file, every job for the moment at which its wave opens."""
        for source in self._plan.first:
            self._submit_source(source, self._opens)
        self._submit(MISSING, "missing", PRIORITY_MISSING, self._opens)
        for source in self._plan.second:
            self._submit_source(source, self.second_opens)

    def watch(self) -> None:
        """Show progress until every job has ended; cancel the doomed package on the way."""
        idle = announced = False
        while not idle:
            idle = self._scheduler.wait_idle(_REFRESH)
            if self.revoked is None and (idle or self._halfway()):
                self._revoke()
            while not self._failures.empty():
                job, error = self._failures.get()
                what = f"{type(error).__name__}: {error}"
                self._progress.say(f"  FAILED {job.id}: {what} (attempt {job.attempts})", "red")
            if not announced and time.monotonic() >= self.second_opens:
                announced = True
                self._progress.say("  the second wave is due")
            if not idle:
                self._progress.show(self._figures())
        self._progress.finish(self._figures())

    def _submit_source(self, source: Source, opens: float) -> None:
        """Submit the fetch of one file that exists."""
        priority = PRIORITY_PACKAGE if source.opens_package else PRIORITY_MODULE
        self._submit(source.path, source.package or "top level", priority, opens)

    def _submit(self, path: str, name: str, priority: int, opens: float) -> None:
        """Submit the fetch of one path."""
        delay = max(0.0, opens - time.monotonic())
        options = self._scheduler.options(id=path, name=name, priority=priority, delay=delay, retry=self._retry)
        job = self.jobs[path] = options.submit(self._fetcher.fetch, path)
        job.add_done_callback(partial(self._note_failure, job))

    def _note_failure(self, job: Job[Body], _: Future[Body]) -> None:
        """Hand a failed job to the watching thread; called by the worker that settled it."""
        if not job.cancelled() and (error := job.exception()) is not None:
            self._failures.put((job, error))

    def _halfway(self) -> bool:
        """Say whether half of the jobs have ended, or the second wave is about to open."""
        stats = self._scheduler.stats()
        return (
            2 * (stats.done + stats.failed) >= stats.submitted or time.monotonic() > self.second_opens - _CANCEL_AHEAD
        )

    def _revoke(self) -> None:
        """Cancel the doomed package."""
        doomed = self._plan.doomed_paths
        self.revoked = frozenset(path for path in doomed if self._scheduler.cancel(path))
        self._progress.say(f"  cancelled {self._plan.doomed}/: {len(self.revoked)} of {len(doomed)} jobs")

    def _figures(self) -> Figures:
        """Return how far the run has come."""
        stats = self._scheduler.stats()
        return Figures(
            elapsed=max(0.0, time.monotonic() - self._opens),
            done=stats.done + stats.failed,
            running=stats.running,
            waiting=stats.pending,
            retries=stats.retries,
        )


def fetch_scheduled(plan: Plan, progress: Progress) -> ScheduledRun:
    """Fetch every file of the plan through a scheduler and return the evidence."""
    with SourceServer(plan.root, plan.paths, plan.behaviour) as server, Fetcher(server.port) as fetcher:
        with Scheduler(workers=plan.workers, name="fetch") as scheduler:
            try:
                fetch = BulkFetch(plan, scheduler, fetcher, progress)
                fetch.submit()
                fetch.watch()
            except BaseException:
                # Leaving the context by an exception would still run what is due, and that may be everything.
                scheduler.shutdown(wait=False, cancel_futures=True)
                raise
            revoked = fetch.revoked or frozenset()
            again = sum(scheduler.cancel(path) for path in revoked)
            audit = _audit(scheduler)
            leftover = scheduler.shutdown()
        ended = {path: job for path, job in fetch.jobs.items() if not job.cancelled()}
        errors = {path: error for path, job in ended.items() if (error := job.exception()) is not None}
        return ScheduledRun(
            infos={path: job.info() for path, job in fetch.jobs.items()},
            bodies={path: job.result() for path, job in ended.items() if path not in errors},
            errors=errors,
            second_opens=fetch.second_opens,
            revoked=revoked,
            revoked_again=again,
            audit=audit,
            stats=scheduler.stats(),
            leftover=leftover,
            attempts=fetcher.attempts(),
            tally=server.tally(),
        )


def _audit(scheduler: Scheduler) -> str:
    """Return what the scheduler's audit of itself found broken, or an empty string."""
    try:
        scheduler.check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class HandRetry:
    """Fetches as is usual with a plain pool: a refused worker sleeps, and tries again.

    Thread safety: any number of threads may call `fetch`.
    """

    def __init__(self, fetcher: Fetcher, backoff: float) -> None:
        """Fetch with `fetcher`, and pause for `backoff` seconds before the first retry."""
        self._fetcher = fetcher
        self._backoff = backoff
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        # Guarded by _lock:
        self.slept = 0.0

    def fetch(self, path: str) -> Body:
        """Fetch one file, with as many retries and the same pauses as the scheduler's."""
        for attempt in range(RETRIES):
            try:
                return self._fetcher.fetch(path)
            except ServerBusyError:
                self._sleep(self._backoff * 2**attempt)
        return self._fetcher.fetch(path)

    def _sleep(self, seconds: float) -> None:
        """Keep the worker asleep, unless the run is being abandoned."""
        self.stopping.wait(seconds)
        with self._lock:
            self.slept += seconds


def fetch_by_hand(plan: Plan, paths: Iterable[str], progress: Progress) -> HandRun:
    """Fetch these files through a `ThreadPoolExecutor` and return the evidence."""
    with SourceServer(plan.root, plan.paths, plan.behaviour) as server, Fetcher(server.port) as fetcher:
        by_hand = HandRetry(fetcher, plan.backoff)
        with ThreadPoolExecutor(plan.workers, thread_name_prefix="pool") as pool:
            try:
                began = time.monotonic()
                futures = {path: pool.submit(by_hand.fetch, path) for path in paths}
                _watch_futures(plan, list(futures.values()), server, began, progress)
            except BaseException:
                by_hand.stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        errors = {path: error for path, future in futures.items() if (error := future.exception()) is not None}
        bodies = {path: future.result() for path, future in futures.items() if path not in errors}
        return HandRun(bodies, errors, fetcher.attempts(), server.tally(), by_hand.slept)


def _watch_futures(
    plan: Plan, futures: list[Future[Body]], server: SourceServer, began: float, progress: Progress
) -> None:
    """Show progress until every future is done."""
    all_done = threading.Event()
    # Appended to by the workers: one append is whole on every build, and whoever comes last sees all.
    done: list[Future[Body]] = []

    def note(future: Future[Body]) -> None:
        done.append(future)
        if len(done) == len(futures):
            all_done.set()

    def figures() -> Figures:
        count = len(done)
        running = min(plan.workers, len(futures) - count)
        waiting = len(futures) - count - running
        return Figures(time.monotonic() - began, count, running, waiting, server.tally().busy)

    for future in futures:
        future.add_done_callback(note)
    while not all_done.wait(_REFRESH):
        progress.show(figures())
    progress.finish(figures())


def gather(plan: Plan, progress: Progress) -> Evidence:
    """Run both fetches, one after the other, and return what came of them."""
    progress.say("Through the scheduler", "bold")
    scheduled = fetch_scheduled(plan, progress)
    progress.say("The same files with a ThreadPoolExecutor, retried by hand", "bold")
    paths = [path for path in scheduled.infos if path not in scheduled.revoked]
    return Evidence(plan, scheduled, fetch_by_hand(plan, paths, progress))


def run_demo(*, workers: int, seed: int, json_only: bool, limit: int | None = None) -> int:
    """Run the demonstration and return its exit status: 0 if every check is ok, else 1.

    Args:
        workers: Worker threads, at least 1.
        seed: Chooses which requests are refused.
        json_only: Print JSON alone to standard output; progress then goes to standard error.
        limit: Fetch at most so many files; None: all.
    """
    began = time.monotonic()
    terminal = Terminal(sys.stderr if json_only else sys.stdout)
    progress = Progress(terminal)
    root = sources_root()
    try:
        plan = make_plan(root, find_sources(root, limit), workers=workers, seed=seed)
    except ValueError as error:
        print(f"threadsched demo: {root}: {error}", file=sys.stderr)
        return 1
    try:
        terminal.write(introduction(plan, terminal))
        evidence = gather(plan, progress)
    finally:
        progress.abandon()
    checks = run_checks(evidence)
    elapsed = time.monotonic() - began
    if json_only:
        print(json.dumps(as_json(evidence, checks, elapsed), indent=2), flush=True)
    else:
        terminal.write(str(Summary(evidence, checks, elapsed, terminal)))
    return 0 if all(check.ok for check in checks) else 1

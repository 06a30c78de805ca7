"""The stress run: many threads submit, delay, cancel and wait at once, and each job is accounted for.

The run goes in rounds, on one scheduler from the first to the last. In a round every submitter submits its batch and
waits for it in some way; when all of it has ended, every job is checked (`_stress_checks`) and its record dropped, so
the memory does not depend on the number of jobs. Every second round begins with the scheduler paused, so that half of
its jobs are ready together when the first one starts. Meanwhile an auditor looks on (`_stress_watch`). The last round
is not waited for: `shutdown()` drains it.

The first broken promise ends the run.
"""

from __future__ import annotations

import platform
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from threadsched import JobStatus, Scheduler, SchedulerClosedError, _stress_watch
from threadsched._errors import InvariantError
from threadsched._stress_checks import BrokenPromiseError, RoundCheck
from threadsched._stress_load import Batch, Doors, Submitter, Tasks
from threadsched._stress_plan import ORDERS, POLICIES, Settings
from threadsched._stress_report import Account, Live, distribution, size, table
from threadsched._stress_watch import Auditor, LogTrap, Memory, Watchdog, new_threads, peak
from threadsched._terminal import Terminal

# Seconds between two looks at the run: often enough for the eye, seldom enough not to matter.
_REFRESH = 0.1

# Seconds that the exit of the interpreter may take when a job hangs, which is when the run has failed.
_EXIT_TIMEOUT = 1.0


class Run:
    """One run, from the first submission to the last check.

    Thread safety: `broke`, `accepted`, `begun` and the public fields are for all threads; the rest is for the one that
    made it.
    """

    def __init__(self, settings: Settings, live: Live, trap: LogTrap, watchdog: Watchdog) -> None:
        """Prepare the run; nothing is submitted yet."""
        self._threads = set(threading.enumerate())
        self.settings = settings
        self.scheduler = Scheduler(
            settings.workers,
            policy=POLICIES[settings.policy](),
            queue=settings.queue,
            name="stress",
            exit_timeout=_EXIT_TIMEOUT,
        )
        self.tasks = Tasks()
        self.doors = Doors(self)
        self.stop = threading.Event()  # submit no more
        self.abandoned = False  # the run has failed, or was interrupted: whatever happens now proves nothing
        self.account = Account()
        self.memory = Memory()
        self.auditor = Auditor(self)
        self.rounds = 0
        self.elapsed = 0.0
        self._live = live
        self._trap = trap
        self._watchdog = watchdog
        self._began = time.monotonic()
        self._submitters: list[threading.Thread] = []
        # Jobs of earlier rounds, and the batches of this one: one attribute, so that whoever looks sees what belongs
        # together.
        self._submitted: tuple[int, list[Batch]] = (0, [])
        self._numbered = 0  # numbers given out; a round that was stopped does not use all of its own
        self._broken: list[tuple[str, BaseException | None]] = []
        self._counts: tuple[int, ...] = ()
        self._moved = self._began  # when the counts were last seen to move

    def broke(self, what: str, cause: BaseException | None = None) -> None:
        """Take note of a broken promise; the first one counts."""
        self._broken.append((what, cause))
        self.stop.set()

    def accepted(self) -> int:
        """Return how many submissions have returned, at least."""
        before, batches = self._submitted
        return before + sum(len(batch.jobs) for batch in batches)

    def begun(self) -> int:
        """Return how many submissions have begun, at most."""
        before, batches = self._submitted
        return before + sum(batch.begun for batch in batches)

    def go(self) -> None:
        """Do it all.

        Raises:
            BrokenPromiseError: the first that was broken.
        """
        self._began = self._moved = time.monotonic()
        self.memory.sample()
        try:
            with self.auditor:
                while not self.scheduler.closed:
                    self._round()
            self._look()
            self._check_end()
        except BaseException:
            self._abandon()
            raise
        finally:
            self.elapsed = time.monotonic() - self._began

    # ---------------------------------------------------------------- a round

    def _round(self) -> None:
        """Do one round; the last one closes the scheduler."""
        opened = time.monotonic()
        paused_until = None
        paused = self.rounds % 2 == 0
        if paused:
            self.scheduler.pause()
        batches = self._start()
        half = sum(batch.size for batch in batches) // 2
        while self._waiting() or paused:
            over = all(batch.over for batch in batches)
            if paused and (over or sum(len(batch.jobs) for batch in batches) >= half):
                paused, paused_until = False, time.monotonic()
                self.scheduler.resume()
            if over and self._is_last():
                self.scheduler.shutdown(wait=False)
            self._look()
            self._join_one(_REFRESH / 5 if paused else _REFRESH)
        while not self.scheduler.wait_idle(_REFRESH):
            self._look()
        self._look()
        self.tasks.await_overruns(batches, self.settings.patience)
        for batch in batches:
            batch.await_callbacks(self.settings.patience)
        check = RoundCheck(
            batches,
            self.tasks.take(),
            key=ORDERS[self.settings.policy],
            opened=opened,
            paused_until=paused_until,
            account=self.account,
        )
        check.run()
        self._compare_stats()
        self._submitted = (self.account.jobs, [])
        self.rounds += 1
        del batches, check  # all that the round has kept, the jobs among it
        self.memory.sample()
        if self._is_last():
            self.scheduler.shutdown(wait=False)

    def _start(self) -> list[Batch]:
        """Start a submitter for each batch of a new round, and return the batches."""
        settings = self.settings
        size = settings.round if settings.jobs is None else min(settings.round, settings.jobs - self._submitted[0])
        batches = []
        self._submitters = []
        for index in range(settings.submitters):
            share = size // settings.submitters + (index < size % settings.submitters)
            batch = Batch(self._numbered, share)
            self._numbered += share
            draw = random.Random(f"{settings.seed}:{self.rounds}:{index}")
            batches.append(batch)
            main = Submitter(self, batch, draw).main
            self._submitters.append(threading.Thread(target=main, name=f"submitter {index}", daemon=True))
        self._submitted = (self._submitted[0], batches)
        for thread in self._submitters:
            thread.start()
        return batches

    def _is_last(self) -> bool:
        """Say whether no round is to come: all jobs are submitted, or the time is over."""
        return self.stop.is_set() or (self.settings.jobs is not None and self.accepted() >= self.settings.jobs)

    def _join_one(self, seconds: float) -> None:
        """Wait a moment for one of the submitters."""
        for thread in self._submitters:
            if thread.is_alive():
                thread.join(seconds)
                return

    def _look(self) -> None:
        """Show how the run is getting on; raise if a promise was broken, or nothing moves any more."""
        now = time.monotonic()
        self._watchdog.beat()
        if now - self._began >= self.settings.seconds:
            self.stop.set()
        if self._broken:
            what, cause = self._broken[0]
            raise BrokenPromiseError(what) from cause
        if self._trap.errors:
            raise BrokenPromiseError(f"the scheduler logged an error: {self._trap.errors[0]}")
        stats = self.scheduler.stats()
        self._live.show(stats, self.memory.latest)
        counts = (stats.submitted, stats.done, stats.failed, stats.cancelled, stats.retries, self._waiting())
        if counts != self._counts:
            self._counts, self._moved = counts, now
        elif now - self._moved > self.settings.patience:
            raise BrokenPromiseError(self._describe_hang())

    def _waiting(self) -> int:
        """Return how many submitters are still at it."""
        return sum(thread.is_alive() for thread in self._submitters)

    def _describe_hang(self) -> str:
        open_jobs = [job for batch in self._submitted[1] for job in batch.jobs if not job.done()]
        stats = self.scheduler.stats()
        text = f"nothing has moved for {self.settings.patience:g} s: {len(open_jobs)} jobs have not ended, {stats}"
        for job in open_jobs[:3]:
            reasons = "; ".join(f"{reason.kind}: {reason.detail}" for reason in job.explain())
            text += f"\n    {job!r}: {reasons or 'no reason given'}"
        return text

    # ---------------------------------------------------------------- what must hold then

    def _compare_stats(self) -> None:
        """Compare the scheduler's counts with the account; nothing is pending and nothing runs."""
        stats, account = self.scheduler.stats(), self.account
        wanted = (
            0,
            0,
            account.jobs,
            *(account.count(status) for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)),
            account.retries,
        )
        found = (
            stats.pending,
            stats.running,
            stats.submitted,
            stats.done,
            stats.failed,
            stats.cancelled,
            stats.retries,
        )
        if found != wanted:
            names = "pending, running, submitted, done, failed, cancelled, retries"
            raise BrokenPromiseError(f"({names}) are {found}, and by each job's account {wanted}")

    def _check_end(self) -> None:
        """Check what must hold when all is over."""
        patience = self.settings.patience
        report = self.scheduler.shutdown(timeout=patience)
        if not report:
            raise BrokenPromiseError(f"shutdown() left something behind: {report}")
        try:
            self.scheduler.submit(int)
        except SchedulerClosedError:
            pass
        else:
            raise BrokenPromiseError("a submission after shutdown() was accepted")
        try:
            self.scheduler.check()
        except InvariantError as error:
            raise BrokenPromiseError(f"check() found that {error}") from None
        self._compare_stats()
        left = new_threads(self._threads, patience)
        if left:
            raise BrokenPromiseError(f"{len(left)} threads were left behind: {', '.join(left[:5])}")
        if self.settings.soak:
            flat, found = self.memory.verdict()
            if not flat:
                raise BrokenPromiseError(f"memory does not stay flat: {found}")

    def _abandon(self) -> None:
        """Give everything up, without waiting for what may hang."""
        self.abandoned = True
        self.stop.set()
        self.scheduler.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for thread in self._submitters:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        for job in [job for batch in self._submitted[1] for job in batch.jobs]:
            if job.done() and not job.cancelled():
                job.exception(0)  # the scheduler logs each failure that nobody has looked at


# ---------------------------------------------------------------- the program


@contextmanager
def switching(interval: float | None) -> Iterator[None]:
    """Let the interpreter switch threads after `interval` seconds; None changes nothing."""
    before = sys.getswitchinterval()
    try:
        if interval is not None:
            sys.setswitchinterval(interval)
        yield
    finally:
        sys.setswitchinterval(before)


def run_stress(settings: Settings) -> int:
    """Run it, print the outcome, and return the exit status: 0 if every promise was kept, else 1."""
    out = Terminal(sys.stdout)
    out.write(out.style("bold", "threadsched stress") + f": {_describe(settings)}\n")
    live = Live(Terminal(sys.stderr))
    trap = LogTrap()
    repeat = f"Repeat with: {settings.command()}"
    with switching(settings.switch_interval), trap.set(), Watchdog(repeat, _stress_watch.HELD_UP) as watchdog:
        run = Run(settings, live, trap, watchdog)
        try:
            run.go()
            broken = ""
        except BrokenPromiseError as error:
            broken = str(error) if error.__cause__ is None else f"{error}\n{_trace(error.__cause__)}"
        finally:
            live.close()
    out.write(_summary(run, broken) + "\n")
    if broken:
        out.write(out.style("red", f"BROKEN: {broken}") + f"\n{repeat}\n")
    else:
        out.write(out.style("green", "every promise was kept") + f" (seed {settings.seed})\n")
    return 1 if broken else 0


def _describe(settings: Settings) -> str:
    jobs = "any number of jobs" if settings.jobs is None else f"up to {settings.jobs:,} jobs"
    return (
        f"{jobs} in {settings.seconds:g} s by {settings.submitters} submitters on {settings.workers} workers,"
        f" policy {settings.policy}, queue {settings.queue}, seed {settings.seed},"
        f" Python {platform.python_version()}"
    )


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _summary(run: Run, broken: str) -> str:
    account, auditor = run.account, run.auditor
    lines = [
        table(account),
        "",
        f"  {account.jobs:,} jobs accounted for in {run.rounds} rounds, {run.elapsed:.1f} s:"
        f" {account.jobs / max(run.elapsed, 1e-9):,.0f} jobs/s with all the checking",
        f"  {'lateness, all':<22}{distribution(account.lateness)}   (from due to started, in a queue kept full)",
        f"  {'lateness, delayed':<22}{distribution(account.lateness_delayed)}",
        f"  {'stats() balanced':<22}at {auditor.looks:,} looks while it ran; check() at {auditor.audits:,}",
        f"  {'peak memory':<22}{size(peak())}",
    ]
    if run.settings.soak:
        lines.append(f"  {'memory over time':<22}{run.memory.verdict()[1]}")
    if not broken:
        kept = {
            "started twice": f"0 of {account.starts:,} starts",
            "started too early": "0",
            "out of order": f"0 of {account.judged:,} starts that were judged",
            "threads left": "0",
        }
        lines += [f"  {name:<22}{value}" for name, value in kept.items()]
    return "\n".join(lines)

"""Dependencies: a job that waits for its parents, and a parent that tells those who wait for it.

``options(after=[a, b])`` gives a job the rule :class:`Parents`, which keeps it out of every queue while a parent is
open. The parent's side depends on whose it is:

- A job of the same scheduler gets the rule :class:`Dependents`. Both sides change under the one lock, so a parent has
  either ended when it is looked at, or tells of its end later; there is nothing in between.
- Any other future, a job of another scheduler included, gets one :class:`ForeignParent` as its done-callback, however
  many dependents it has here: a callback cannot be taken back, so one for each dependent would pile up on a future
  that lives long. It is registered before the first dependent is accepted, without the lock; an end that comes in
  between stands in it, and is seen at the door.

**Which way it goes.** A parent that is DONE, or any parent under ``after_any_outcome``, is struck off the list; the
job whose list is empty is released to its own time. Any other end dooms the dependent: ``(job, DependencyError)`` goes
to the core's outbox, whoever drains it cancels the job, whose own dependents join the outbox in turn. A chain of any
length is a loop, never a recursion.

**No cycles, no leaks.** An edge leads from a new job to futures that exist, so a ring cannot be made. When a job
starts or ends it leaves the list of every open parent, in O(open parents), and drops its own.

Locking: everything here is guarded by the lock of the dependents' scheduler, except where a docstring says otherwise.
A foreign future's methods are never called with it held, nor is the last reference to one dropped: it leaves by the
outbox, as ``(None, futures)``.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, NamedTuple

from threadsched import _numbers
from threadsched._core import Core
from threadsched._errors import DependencyError, InvariantError
from threadsched._job import DELAYED, READY, WAITING, Job
from threadsched._locks import on_main_thread
from threadsched._records import JobStatus, Reason
from threadsched._rules import Rule

if TYPE_CHECKING:
    from threadsched._options import Options
    from threadsched._runtime import Runtime

# How many open parents an explanation names; the rest are counted.
NAMED = 10


class End(NamedTuple):
    """How a parent ended that did not end DONE."""

    who: str
    """The parent in words: ``job 7 (load)``."""
    id: int | str | None
    """The parent's id if it is a job."""
    how: str
    """FAILED or CANCELLED."""
    cause: BaseException | None
    """The error at the bottom of it."""
    root: str
    """Of a parent that fell with a parent of its own: where that began, in words. Else the parent itself."""


def end_of(job: Job[Any]) -> End | None:
    """Say how an ended job ended; None for DONE. Runs no foreign code: its name is a plain str by now."""
    who = f"job {job.id!r} ({job.name})"
    if not job.cancelled():
        error = job._exception
        return None if error is None else End(who, job.id, "FAILED", error, f"{who} ended FAILED")
    reason = job._result
    if isinstance(reason, DependencyError):
        # The first error is the cause all along a chain: one that led from link to link would keep them all alive,
        # and fill a traceback with them.
        return End(who, job.id, "CANCELLED", reason.__cause__, reason.root)
    return End(who, job.id, "CANCELLED", reason, f"{who} ended CANCELLED")


def end_of_foreign(future: Future[Any]) -> End | None:
    """Say how a foreign future ended; None if it has a result. Foreign code: never under the lock."""
    if isinstance(future, Job):
        return end_of(future)
    try:
        who = f"the future {_numbers.describe(future)}"
        how = "CANCELLED"
        error = None if future.cancelled() else future.exception(0)
        if error is not None:
            how = "FAILED"
        elif not future.cancelled():
            return None
    except CancelledError:
        error = None
    except BaseException as fault:  # a future that cannot even say it: that is no success
        if isinstance(fault, KeyboardInterrupt) and on_main_thread():
            raise  # Ctrl-C, which merely struck here: whoever calls this asks again
        who, how, error = "a future", "FAILED", fault
    return End(who, None, how, error, f"{who} ended {how}")


def _error_for(job: Job[Any], end: End) -> DependencyError:
    text = f"job {job.id!r} was given up: its parent, {end.who}, ended {end.how}"
    if not end.root.startswith(end.who):
        text += f", because {end.root}"
    error = DependencyError(text)
    error.parent, error.root = end.id, end.root
    error.__cause__ = end.cause
    return error


class Parents(Rule):
    """The rule of a dependent: it may enter its queue once no parent is open."""

    __slots__ = ("any_outcome", "core", "doomed", "foreign", "own")

    def __init__(self, core: Core, *, any_outcome: bool) -> None:
        self.core = core
        self.any_outcome = any_outcome
        self.doomed = False  # a parent failed: the outbox has the job, to be cancelled
        self.own: dict[int, Job[Any]] = {}  # seq -> open parent
        self.foreign: dict[int, tuple[Future[Any], ForeignParent]] = {}  # id(future) -> open parent, and who tells

    def admits(self, job: Job[Any]) -> bool:
        """Look at every open parent: strike off what has ended, register with what has not. O(open parents).

        Called at the door and whenever the job is released, and by a repair: what an interrupt kept a parent from
        telling is found here.
        """
        # Here as elsewhere no items(): where memory has run out, to begin on a dictionary's ends the process on 3.11.
        for seq in list(self.own):
            parent = self.own.get(seq)
            if parent is None:
                continue  # struck off by who broke in
            if not parent.done() and not self.doomed:
                dependents_of(parent, self.core).waiting[job._seq] = job
            if parent.done():  # looked at again: what broke in before we were on its list has told the list
                self.strike_own(job, seq, end_of(parent))
        for key in list(self.foreign):
            known = self.foreign.get(key)
            if known is None:
                continue
            teller = known[1]
            if not teller.ended and not self.doomed:
                teller.waiting[job._seq] = job
            if teller.ended:
                self.strike_foreign(job, key, teller.end)
        return self.free

    @property
    def free(self) -> bool:
        """Whether nothing holds the job back any more."""
        return not self.own and not self.foreign and not self.doomed

    def strike_own(self, job: Job[Any], seq: int, end: End | None) -> None:
        """Take a parent off the list that ended so; doom the job if it must not run then."""
        if seq in self.own:
            self._weigh(job, end)  # before it is struck off: an interrupt in between must not lose a failure
            self.own.pop(seq, None)

    def strike_foreign(self, job: Job[Any], key: int, end: End | None) -> None:
        """Likewise for a foreign one. The caller holds a reference to the future."""
        if key in self.foreign:
            self._weigh(job, end)
            self.foreign.pop(key, None)

    def _weigh(self, job: Job[Any], end: End | None) -> None:
        if end is not None and not self.any_outcome and not self.doomed:
            # First the decision, then the bookkeeping: an interrupt in between makes at most a second entry, which
            # finds the job cancelled.
            self.core.outbox.append((job, _error_for(job, end)))
            self.doomed = True
            self.forget(job)

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Never in the way: a job in a queue has no open parent."""
        return True

    def started(self, job: Job[Any], now: float) -> None:
        """Let go of the parents of a job that was claimed from under them by ``job.claim()``."""
        self.forget(job)

    def ended(self, job: Job[Any], now: float) -> None:
        """Let go of the parents of a job that was cancelled or failed while it waited."""
        self.forget(job)

    def forget(self, job: Job[Any]) -> None:
        """Leave the lists of the open parents and drop them. O(open parents)."""
        foreign = self.leave(job._seq)
        if foreign:
            self.core.outbox.append((None, foreign))  # may be the last references: dropped outside of the lock

    def leave(self, seq: int) -> dict[int, tuple[Future[Any], ForeignParent]]:
        """Leave the lists of the open parents; return the foreign ones, to be dropped by the caller."""
        own, foreign = self.own, self.foreign
        if own:
            self.own = {}
            for parent in own.values():
                dependents_of(parent, self.core).waiting.pop(seq, None)
        if foreign:
            self.foreign = {}
            for _, teller in foreign.values():
                teller.waiting.pop(seq, None)
        return foreign


class Dependents(Rule):
    """The rule of a parent: it tells those who wait for it when it has ended for good. Holds nothing back."""

    __slots__ = ("core", "waiting")

    def __init__(self, core: Core) -> None:
        self.core = core
        self.waiting: dict[int, Job[Any]] = {}  # seq -> dependent

    def admits(self, job: Job[Any]) -> bool:
        """Never in the way."""
        return True

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Never in the way."""
        return True

    def started(self, job: Job[Any], now: float) -> None:
        """Nothing to note."""

    def ended(self, job: Job[Any], now: float) -> None:
        """Tell the dependents, unless this was but an attempt and another one follows. O(dependents)."""
        if job.done() and self.waiting:
            end = end_of(job)
            for dependent, rule in _take(self.waiting):
                rule.strike_own(dependent, job._seq, end)
                if rule.free:
                    self.core.release(dependent)


class ForeignParent:
    """The done-callback that a scheduler leaves on a future that is not its own; at most one on each.

    It holds the scheduler weakly, and no dependent that has started or ended.
    """

    __slots__ = ("__weakref__", "end", "ended", "future", "runtime", "waiting")

    def __init__(self, runtime: Runtime, future: Future[Any]) -> None:
        self.runtime = weakref.ref(runtime)
        self.future = weakref.ref(future)  # the future holds this callback
        self.ended = False
        self.end: End | None = None
        self.waiting: dict[int, Job[Any]] = {}  # seq -> dependent

    def __call__(self, future: Future[Any]) -> None:
        """Called by the future on the thread that ends it, without our lock."""
        try:
            self._tell(future)
        except BaseException:
            self._tell(future)  # Ctrl-C struck, and the future calls but once
            raise

    def _tell(self, future: Future[Any]) -> None:
        runtime = self.runtime()
        if runtime is None:
            return
        end = self.end if self.ended else end_of_foreign(future)
        core = runtime.core
        with runtime.lock:
            self.end, self.ended = end, True
            key = id(future)
            try:
                for dependent, rule in _take(self.waiting):
                    rule.strike_foreign(dependent, key, end)
                    if rule.free:
                        core.release(dependent)
            except BaseException:
                core.delayed.untidy = core.ready.untidy = True  # the next look asks every waiting job again
                raise
            runtime._settled_locked()
        _drain(runtime)


def _take(waiting: dict[int, Job[Any]]) -> list[tuple[Job[Any], Parents]]:
    """Empty a list of dependents and return them with their rules, in submission order."""
    jobs = list(waiting.values())
    waiting.clear()
    return [(job, rule) for job in jobs if (rule := parents_of(job)) is not None]


def dependents_of(parent: Job[Any], core: Core) -> Dependents:
    """Return the rule by which a live job tells its dependents, made on first use."""
    attached = parent._attach()
    for rule in attached.rules:
        if type(rule) is Dependents:
            return rule
    made = Dependents(core)
    attached.rules = (*attached.rules, made)
    return made


def parents_of(job: Job[Any]) -> Parents | None:
    """Return the rule by which a job waits for its parents, if it has one."""
    for rule in job._attached.rules if job._attached is not None else ():
        if type(rule) is Parents:
            return rule
    return None


class _Here(threading.local):
    draining: deque[Runtime] | None = None


_here = _Here()


def _drain(runtime: Runtime) -> None:
    """Tell the watchers of what a foreign parent's end cancelled. No lock held.

    Those watchers may be foreign parents again: a chain that goes to and fro between two schedulers. Only the
    outermost call on a thread drains, for all of them, or each link would add its frames to the stack.
    """
    if not runtime.core.outbox:
        return
    if _here.draining is not None:
        _here.draining.append(runtime)
        with runtime.lock:
            runtime._wake_locked()  # a worker may be sooner
        return
    queue = _here.draining = deque([runtime])
    try:
        while queue:
            queue.popleft().drain_outbox()
    finally:
        _here.draining = None


# ---------------------------------------------------------------- the door


def attach(runtime: Runtime, job: Job[Any], options: Options) -> None:
    """Give a new job the rule for its parents. Registers with foreign ones, so no lock may be held.

    If a foreign parent's ``add_done_callback`` raises, so does the submission, and nothing is queued.
    """
    rule = Parents(runtime.core, any_outcome=options.after_any_outcome)
    for parent in options.after:
        if isinstance(parent, Job) and parent._runtime is runtime:
            rule.own[parent._seq] = parent
        else:
            rule.foreign[id(parent)] = (parent, _teller(runtime, parent))
    # First of the rules: while a parent is open, no other has to be asked.
    attached = job._attach()
    attached.rules = (rule, *attached.rules)


def detach(job: Job[Any]) -> None:
    """Take a job whose submission was broken off from the lists of its parents. Lock held."""
    rule = parents_of(job)
    if rule is not None:
        # Nothing for the outbox, which nobody empties for a submission that has not happened: its options still hold
        # the parents. Refused before it had a number, it is on no list.
        rule.leave(getattr(job, "_seq", 0))


def _teller(runtime: Runtime, future: Future[Any]) -> ForeignParent:
    """Return the callback that stands on a foreign future, made and registered on first use."""
    key = id(future)
    with runtime.lock:
        known = runtime.foreign.get(key)
        if known is not None and known.future() is future:
            return known
    teller = ForeignParent(runtime, future)
    future.add_done_callback(teller)  # calls it at once if the future has ended
    if not teller.ended:
        # Only now may others rely on it. Two threads may have made one each: each serves its own dependents.
        with runtime.lock:
            runtime.foreign[key] = teller
    return teller


# ---------------------------------------------------------------- shutdown


def given_up(core: Core, mode: str, due_until: float) -> list[Job[Any]]:
    """Return the waiting jobs that a shutdown gives up, dependents before their parents. O(n log n). Lock held.

    Under "due" a job that waits for parents stays if its own time has come by ``due_until`` and every open ancestor
    is ready or running here. Dependents come first so that none is let go by the end of a parent that the same
    shutdown cancels.
    """
    waiting = sorted([(job._seq, job) for job in list(core.waiting.values())])
    if mode == "due":
        stays: dict[int, bool] = {}
        for seq, job in waiting:  # parents first: theirs are the smaller numbers
            rule = parents_of(job)
            stays[seq] = (
                rule is None
                or rule.free  # something else holds it back
                or (
                    job._run_at <= due_until
                    and not rule.foreign
                    and not [seq for seq in list(rule.own) if not stays.get(seq, _comes(core, seq, due_until))]
                )
            )
        waiting = [(seq, job) for seq, job in waiting if not stays[seq]]
    return [job for _, job in reversed(waiting)]


def _comes(core: Core, seq: int, due_until: float) -> bool:
    """Say whether a job that waits for nobody is ready or running."""
    job = core.pending.get(seq)
    if job is None:
        return seq in core.running
    return job._place is READY or (job._place is DELAYED and job._run_at <= due_until)


# ---------------------------------------------------------------- looking inside


def open_parents(job: Job[Any]) -> list[Future[Any]]:
    """Return the parents that a job still waits for. Lock held."""
    rule = parents_of(job)
    return [] if rule is None else [*rule.own.values(), *(future for future, _ in rule.foreign.values())]


def reasons(runtime: Runtime, job: Job[Any]) -> list[Reason]:
    """Name the open parents, if the job waits for any. Runs their ``__repr__``, so no lock may be held."""
    with runtime.lock:
        rule = parents_of(job)
        doomed = rule is not None and rule.doomed and job._place is WAITING
        parents = open_parents(job)
    if doomed:
        return [Reason("parent", "a parent did not end DONE: about to be cancelled")]
    if not parents:
        return []
    named = [_named(runtime, parent) for parent in parents[:NAMED]]
    if len(parents) > NAMED:
        named.append(f"{len(parents) - NAMED} more")
    return [Reason("parent", f"waits for {', '.join(named)}")]


def _named(runtime: Runtime, parent: Future[Any]) -> str:
    if isinstance(parent, Job) and parent._runtime is runtime:
        return f"job {parent.id!r} ({parent.name}, {parent.status.name})"
    return _numbers.describe(parent)


def audit(core: Core) -> None:
    """Raise InvariantError if the two sides of a dependency disagree. O(jobs and edges). Lock held."""
    if core.ready.untidy:
        return  # an interrupt struck: every waiting job is asked again before anybody looks
    for seq, job in core.waiting.items():
        rule = parents_of(job)
        if rule is None:
            continue
        for parent in rule.own.values():
            if parent.status not in (JobStatus.PENDING, JobStatus.RUNNING):
                raise InvariantError(f"{job!r} waits for {parent!r}, which has ended")
            if dependents_of(parent, core).waiting.get(seq) is not job:
                raise InvariantError(f"{job!r} waits for {parent!r}, which does not know of it")
        if any(teller.waiting.get(seq) is not job for _, teller in rule.foreign.values()):
            raise InvariantError(f"{job!r} waits for a foreign future that does not know of it")
    for parent in (*core.pending.values(), *core.running.values()):
        for rule in parent._attached.rules if parent._attached is not None else ():
            if type(rule) is Dependents:
                for seq, job in rule.waiting.items():
                    if core.waiting.get(seq) is not job:
                        raise InvariantError(f"{parent!r} keeps {job!r}, which does not wait for it")

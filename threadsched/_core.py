"""The scheduler's state machine: two heaps, a job map, and the moves between them. No thread, lock, clock or I/O.

**The map is the truth.** ``pending`` holds every accepted job that has not started, ``running`` every one that has
and is not settled. A heap entry ``(rank, seq)`` says only where to look: without its job in ``pending`` it is dead. So

- a job is accepted by the store into ``pending``, which comes last, after its heap entry and the wake-up;
- claim and cancel are decided by one ``pending.pop``, settling by one ``running.pop``: one C call has one winner.

**Who calls.** The threaded scheduler with its lock held, the stepped one and the tests with nothing. Every method can
be broken into, between any two of its steps, by a signal handler or a finalizer on the same thread that submits,
cancels, or reads the counts, which is why nothing here looks first and pops later.

**Time** is handed in as ``now``. **Foreign code** never runs here, a policy's ``before`` aside (see ``_policy``), and
no last reference to a user's object is dropped here: what a cancel takes from a job is returned to the caller.
"""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import CancelledError
from functools import partial
from heapq import heappush
from typing import Any, TypeAlias

from threadsched._arming import Armable, Armings
from threadsched._audit import check_invariants
from threadsched._errors import DuplicateJobError
from threadsched._gate import Gate
from threadsched._heap import STRUCTURES, Entry, LazyQueue
from threadsched._job import _NOTIFIED, DELAYED, FINISHED, READY, RUNNING, WAITING, Failure, Job
from threadsched._options import RAISE, Options
from threadsched._policy import BeforeRaisedError, Ranking
from threadsched._records import JobInfo, JobStatus
from threadsched._rules import Keeper
from threadsched._time_limits import TimeLimits

# Dead entries are swept when the queues hold more than so many entries for each live job, and this many beyond: a sweep
# meets memory in no order, which makes it the dearest part of a cancel among a million, and below the slack it is not
# worth its call.
SWEEP_SHARE = 4
SWEEP_SLACK = 64

# ... and looked for at every so many-th cancel only: the look is a tenth of what a cancel costs. A power of two.
SWEEP_EVERY = 16

# A member of an enum is found more slowly than a global.
DONE, FAILED, CANCELLED = JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED

# How far a shutdown goes, mildest first; a later call may only sharpen it.
DRAINS = ("all", "due", "none")


# What was taken from a job and must be dropped outside the lock.
Spoils: TypeAlias = tuple[Any, ...]


class IdTakenError(DuplicateJobError):
    """Carries a job that was not accepted, and the live one with its id, to ``_taken``; never leaves the package."""

    def __init__(self, job: Job[Any], holder: Job[Any]) -> None:
        super().__init__()
        self.job = job
        self.holder = holder


class Core:
    """Heaps, map, counters and history. See the top of this file for who may call."""

    # All fields, and no dictionary: an interpreter finds a method of such an object as quickly as a field, and either
    # in the same time however many there are.
    __slots__ = (
        "_ended",
        "_ended_ids",
        "alarm",
        "alarms",
        "broken",
        "cancelled",
        "closed",
        "dead_delayed",
        "delayed",
        "done",
        "door",
        "drain",
        "entering",
        "failed",
        "gate",
        "halted",
        "history",
        "indexed",
        "keepers",
        "latest",
        "left_behind",
        "named",
        "numbers",
        "outbox",
        "paused",
        "pending",
        "queue_type",
        "ranking",
        "readmissions",
        "ready",
        "released",
        "retries",
        "running",
        "series",
        "stale",
        "stepped",
        "time_limits",
        "timed",
        "waiting",
    )

    def __init__(self, ranking: Ranking, queue: str = "lazy", history: int = 1000, *, stepped: bool = False) -> None:
        self.queue_type = STRUCTURES[queue]
        self.indexed = self.queue_type.indexed
        self.stepped = stepped  # a due newcomer waits for the next promotion
        self.history = history
        self.ranking = ranking
        self.numbers = itertools.count(1)
        self.closed = False
        self.halted = False  # nothing starts: given up, broken, or paused
        self.paused = False
        self.drain = "all"
        self.broken = False  # an initializer failed: nothing can run
        self.gate: Gate | None = None  # with a bound on the pending jobs, or somebody who waits for fewer
        self.keepers: tuple[Keeper, ...] = ()
        self.time_limits = TimeLimits(self)
        # The ranking, where a plain job may enter without being asked about; else None.
        self.door: Ranking | None = ranking if ranking.trusted and not stepped else None
        self.reset()

    def reset(self) -> None:
        """Forget every job; the rules stay."""
        self.delayed: LazyQueue = self.queue_type()  # Queue of (run_at, seq)
        self.ready: LazyQueue = self.queue_type(self.ranking, levelled=True)  # Queue of (key, seq)
        self.pending: dict[int, Job[Any]] = {}  # seq -> job, in order of acceptance
        self.running: dict[int, Job[Any]] = {}
        self.waiting: dict[int, Job[Any]] = {}  # those of the pending that a rule holds back
        self.alarms = Armings()  # what is to be looked at in its time and is no job
        self.series: dict[int, Any] = {}  # number -> schedule that has not ended
        self.released = False  # since the runtime last looked, a rule let a job go: somebody must wake up
        self.readmissions = 0  # how often that was straight into the ready queue
        self.alarm: float | None = None  # the instant at which the keepers want to be told
        # Something may be delayed or armed, or an alarm set. True before any of that is, and False only by promote(): a
        # turn that has nothing to do with time makes one test instead of four.
        self.timed = False
        # What is to be done outside the lock: a cancelled job whose watchers must still be told, (job, reason) to
        # cancel a job for, an armed thing whose time has come, or (None, spoils) to drop. Appended by anybody who holds
        # the lock, taken off at the front.
        self.outbox: deque[Any] = deque()
        # Of jobs that a waiting worker took from the middle of a queue: an entry may be left there.
        self.left_behind: set[int] = set()
        self.named: dict[str, Job[Any]] = {}  # the live jobs with an id of the user's
        self.entering: Job[Any] | None = None  # has a queue entry and is not in the map yet: no sweep now
        self.latest = 0  # the number of the last job that entered
        self.dead_delayed = 0  # entries of the delayed heap whose job was cancelled
        # Entries that may stand in the ready heap for a job that is pending all the same, but elsewhere: at least as
        # many as there are, and 0 again when the heap is rebuilt. While it is 0 no claim looks for them.
        self.stale = 0
        self.done = self.failed = self.cancelled = self.retries = 0
        if self.gate is not None:
            self.gate.reset()
        self._ended: deque[tuple[Any, ...]] = deque(maxlen=self.history)  # the fields of a JobInfo, oldest first
        self._ended_ids: dict[str, tuple[int, tuple[Any, ...]]] = {}  # id -> (how many had ended then, record)
        self.time_limits.reset()
        for keeper in self.keepers:
            keeper.reset()

    # ---------------------------------------------------------------- in

    def reserve(self, job: Job[Any], id: str) -> None:
        """Take a user's id for a job about to enter, or raise DuplicateJobError; IdTakenError if it asked for that."""
        strict = job._options.if_exists == RAISE
        if strict and self._remembered(id) is not None:
            raise DuplicateJobError(
                f"id {id!r} belongs to a job in the history; ids are unique among live and recent jobs"
            )
        holder = self.named.setdefault(id, job)  # one C call: of two that race, one gets the name
        if holder is not job:
            if not holder.done():
                if not strict:
                    raise IdTakenError(job, holder)
                raise DuplicateJobError(f"id {id!r} belongs to a live job")
            self.named[id] = job  # an interrupt struck when the holder ended, and left its name behind

    def enter(self, job: Job[Any], seq: int) -> bool:
        """Put a new job's entry into its heap; return True if it is the new head of the delayed one.

        The job is accepted only by the caller's ``pending[seq] = job``; between the two lies the wake-up. The caller
        then sets ``entering`` back to what it was, for a submission may have broken into another. Broken off before
        that, the entry is dead and the submission has not happened.
        """
        self.entering = job
        self.latest = job._seq = seq
        if job._attached is not None and not self._admitted(job):
            return False
        if job._place is READY and not self.stepped:
            ready, key = self.ready, job._key
            level = ready.level
            # The same as the push, for an equal of those that are there, without a call.
            if key is ready.open_rank and level and level[-1] < seq:
                level.append(seq)
            else:
                ready.push((key, seq))
            return False
        job._place = DELAYED
        return self.enter_delayed(job, seq)

    def enter_delayed(self, job: Job[Any], seq: int) -> bool:
        """Do the same for a job that nothing but its time keeps from being ready."""
        self.entering = job
        self.latest = job._seq = seq
        self.timed = True
        delayed, run_at = self.delayed, job._run_at
        lane, heap = delayed.lane, delayed.heap
        entry = (run_at, seq)
        if delayed.push is not delayed.plain_push:
            delayed.push(entry)
        elif not lane or lane[-1] < entry:  # push(), without its call
            lane.append(entry)
        else:
            heappush(heap, entry)
        try:
            if ((lane and lane[0][0] < run_at) or (heap and heap[0][0] < run_at)) and not delayed.untidy:
                return False  # the usual answer, without a call
        except IndexError:  # further down this stack somebody is changing a sorted list, and has counted nothing yet
            return True
        return self._heads_delayed(seq)

    def enter_many(self, jobs: list[Job[Any]], seqs: list[int], key: object) -> bool:
        """Do as ``enter`` for new jobs that differ in nothing that orders them, and have nothing attached.

        They are accepted by the caller's ``pending.update(zip(seqs, jobs))``, after which it sets ``entering`` back.
        """
        self.entering = first = jobs[0]
        self.latest = seqs[-1]
        for job, seq in zip(jobs, seqs, strict=True):
            job._seq = seq
            job._key = key
        if first._place is READY:
            ready = self.ready
            level = ready.level
            if not level:
                ready.push((key, seqs[0]))
                rest = seqs[1:]
            else:
                rest = seqs
            if rest and key is ready.open_rank and level and level[-1] < rest[0]:
                level.extend(rest)
            else:
                for seq in rest:
                    ready.push((key, seq))
            return False
        self.timed = True
        run_at = first._run_at
        for seq in seqs:
            self.delayed.push((run_at, seq))
        return self._heads_delayed(seqs[0])

    def withdraw_many(self, outer: Job[Any] | None) -> None:
        """Leave nothing behind of a batch that was broken off: entries without a job, which nobody counted."""
        self.entering = outer
        self.ready.untidy = self.delayed.untidy = True

    def accepted(self, job: Job[Any]) -> bool:
        """Say whether a job that perhaps has no number yet was accepted."""
        return job.done() or self.pending.get(getattr(job, "_seq", 0)) is job

    def withdraw(self, job: Job[Any], outer: Job[Any] | None) -> None:
        """Leave nothing behind of a submission that was broken off: its queue entry is dead, its id free again."""
        entered = self.entering is job
        self.entering = outer
        if getattr(job, "_seq", None) in self.pending:
            return  # the interrupt came after the acceptance
        if entered:
            self.waiting.pop(job._seq, None)
            if job._place is DELAYED:
                self.delayed.untidy = True  # a dead entry that nobody counted
        id = job._options.id
        if id is not None and self.named.get(id) is job:
            self.named.pop(id, None)

    def _admitted(self, job: Job[Any]) -> bool:
        """Ask the rules of a new job; False means that it is held, or that somebody has let it go already.

        It is held before they are asked, so that whoever breaks in and lets it go finds it.
        """
        place = job._place
        self._hold(job)
        try:
            if not self._let_go(job):
                return False
        except BaseException:
            self.waiting.pop(job._seq, None)  # here, for Ctrl-C may keep the submission from withdrawing it
            job._place = place  # it may be submitted again
            raise
        job._place = place
        return True

    def _let_go(self, job: Job[Any]) -> bool:
        """Ask the rules of a held job; True means that none objects and that this call ended its waiting."""
        for keeper in self.keepers:
            if keeper.holds(job):
                return False
        for rule in job._attached.rules if job._attached is not None else ():
            if not rule.admits(job):
                return False
        return self.waiting.pop(job._seq, None) is not None

    def _hold(self, job: Job[Any]) -> None:
        job._place = WAITING
        self.waiting[job._seq] = job

    def release(self, job: Job[Any]) -> None:
        """Let a job go that a rule held back: into the delayed queue, from where it is promoted in its time."""
        if job._seq in self.waiting and self._let_go(job):
            # Whoever broke in there and cancelled it found it in no queue, and counted no dead entry.
            job._place = DELAYED if job._state == "PENDING" else WAITING
            if job._place is DELAYED:
                self.timed = True
                self.delayed.push((job._run_at, job._seq))
                self.released = True

    def readmit(self, job: Job[Any]) -> bool:
        """Put a job back into the ready queue that a rule held back at its claim; False if it does not wait."""
        self.readmissions += 1
        try:
            if self.waiting.pop(job._seq, None) is None:
                return False
            job._place = READY
            self._push_ready(job._key, job._seq)
        except BaseException:
            if self.pending.get(job._seq) is job:
                self.waiting.pop(job._seq, None)
                job._place = READY
                self.ready.untidy = True
            raise
        return True

    def rekeyed(self, job: Job[Any], now: float) -> None:
        """Tell the keepers that a pending job has another key."""
        for keeper in self.keepers:
            keeper.rekeyed(job, now)

    def _heads_delayed(self, seq: int) -> bool:
        if self.delayed.untidy:
            return True  # nobody knows before it is rebuilt, which whoever is woken does
        first = self.delayed.first()
        return first is not None and first[1] == seq

    # ---------------------------------------------------------------- on

    def promote(self, now: float) -> int:
        """Move every job that is due from the delayed to the ready heap; return how many. O(k log n)."""
        if self.delayed.untidy:
            self.repair()
        if self.alarm is not None and self.alarm <= now:
            for keeper in self.keepers:
                keeper.ring(now)
        try:
            moved = self._promote(now)
        except BaseException:
            self.delayed.untidy = self.ready.untidy = True  # an entry may be in neither
            raise
        delayed = self.delayed
        # No call from these looks to the store: whoever breaks in and delays something sets it again.
        if not (delayed.lane or delayed.heap or delayed.untidy or self.alarms.things or self.alarm is not None):
            self.timed = False
        return moved

    def _promote(self, now: float) -> int:
        moved = 0
        delayed, pending = self.delayed, self.pending
        while (first := delayed.first()) is not None and first[0] <= now:
            entry = delayed.pop()
            if entry is None:
                continue  # a finalizer swept it away after the look
            due, seq = entry
            if due > now:
                delayed.push(entry)  # likewise, and the next one came instead
            elif seq not in pending:
                self.dead_delayed -= 1
            else:
                # No call from the look above to the store below: nobody can cancel in between on this thread, so
                # dead_delayed stays exact.
                job = pending[seq]
                job._place = READY
                self._push_ready(job._key, seq)
                moved += 1
        return moved

    def _push_ready(self, key: object, seq: int) -> None:
        try:
            self.ready.push((key, seq))
        except BeforeRaisedError as fault:
            self.ranking.faults.append(fault.error)  # the entry is in; the runtime logs the fault

    def claim(self, now: float, place: object) -> Job[Any] | None:
        """Take the first ready job for a worker: PENDING → RUNNING. O(log n) and one pop per dead entry."""
        ready, pending = self.ready, self.pending
        if ready.untidy:
            self.repair()
        if self.halted:
            return None
        job = None
        pop = ready.pop  # a function in a field is called more quickly from a local variable
        try:
            while (entry := pop()) is not None:
                seq = entry[1]
                job = pending.get(seq)
                if job is None or (self.stale and not self.is_current(job, entry)):
                    continue
                # Held back already: a policy that was swapped meanwhile left a second entry.
                if job._attached is not None and (job._place is not READY or not self._may_start(job, now)):
                    continue
                # Linearization point of a claim: this pop, and nothing else, decides against a cancel.
                if pending.pop(seq, None) is not None:
                    self.running[seq] = job
                    job._claim(now, place)
                    if job._attached is not None:
                        for rule in job._attached.rules:
                            rule.started(job, now)
                    if self.gate is not None:
                        self.gate.freed(pending)
                    return job
        except BaseException:
            if job is not None and self.waiting.pop(job._seq, None) is not None:
                job._place = READY  # broken off while it was being held back: asked again
            self._give_back(job)
            raise
        return None

    def is_current(self, job: Job[Any], entry: Entry) -> bool:
        """Say whether an entry of the ready heap stands for a pending job's present place and rank.

        By identity: an equal rank may be that of an earlier attempt, of a job that waits for its retry now.
        """
        return job._place is READY and entry[0] is job._key

    def stands_for_job(self, queue: LazyQueue, entry: Entry) -> bool:
        """Say whether an entry of one of the two queues is alive. For audits."""
        job = self.pending.get(entry[1])
        return job is not None and (queue is self.delayed or not self.stale or self.is_current(job, entry))

    def _may_start(self, job: Job[Any], now: float) -> bool:
        for rule in job._attached.rules if job._attached is not None else ():
            if not rule.may_start(job, now):
                self._hold(job)
                if job._seq not in self.pending:
                    self.waiting.pop(job._seq, None)  # cancelled while the rule was asked
                    return False
                for keeper in self.keepers:
                    keeper.held(rule, job, now)
                return False
        return True

    def could_start(self, job: Job[Any]) -> bool:
        """Say whether a job in a keeper's line could start at once, past the others there. Takes nothing."""
        for keeper in self.keepers:
            if keeper.holds(job):
                return keeper.has_room(job)
        return False

    def claim_one(self, job: Job[Any], now: float, place: object = None) -> bool:
        """Take one given job for a caller of ``job.claim()``; False if it is not pending or a rule refuses."""
        rules = job._attached.rules if job._attached is not None else ()
        try:
            for rule in rules:
                if job._seq not in self.pending or not rule.may_start(job, now):
                    return False
            if self.pending.pop(job._seq, None) is None:
                return False
            self._left_queue(job)
            self.running[job._seq] = job
            job._claim(now, place)
            for rule in rules:
                rule.started(job, now)
            if self.gate is not None:
                self.gate.freed(self.pending)
        except BaseException:
            self._give_back(job)
            raise
        return True

    def claim_given(self, job: Job[Any], now: float, place: object) -> bool:
        """Take one given job, which is due, for a worker that waits for it; False if it may not start or has gone.

        O(log n). With the lazy structure its entry stays behind, dead.
        """
        if self.halted or job._seq not in self.pending:
            return False
        if job._place is WAITING:
            # Those before it in a keeper's line may wait for a worker for ever: all of them may wait, like this one.
            return self.could_start(job) and self.claim_one(job, now, place)
        place_before = job._place
        try:
            if job._attached is not None and not self._may_start(job, now):
                self.ready.untidy = self.delayed.untidy = True  # a rule holds it now, and its entry must not be found
                return False
            # Linearization point, as in claim().
            if self.pending.pop(job._seq, None) is None:
                return False
            self.left_behind.add(job._seq)
            self._left_queue(job)
            self.running[job._seq] = job
            job._claim(now, place)
            for rule in job._attached.rules if job._attached is not None else ():
                rule.started(job, now)
            if self.gate is not None:
                self.gate.freed(self.pending)
        except BaseException:
            if self.waiting.pop(job._seq, None) is not None:
                job._place = place_before  # broken off while it was being held back: asked again
            self._give_back(job)
            raise
        self.sweep()
        return True

    def _give_back(self, job: Job[Any] | None) -> None:
        """Undo a claim that an exception broke off: the job is pending again, or was never touched."""
        self.ready.untidy = True  # its entry may be gone; the next look rebuilds from the map
        self.delayed.untidy = True
        if job is not None and job._state == "PENDING":
            self.running.pop(job._seq, None)
            if job._place is WAITING:
                self.waiting[job._seq] = job
            self.pending[job._seq] = job
        if self.gate is not None:
            self.gate.freed(self.pending)  # whatever the exception kept it from

    # ---------------------------------------------------------------- both

    def turn(self, settled: Job[Any] | None, result: object, name: str, now: float, place: object) -> Job[Any] | None:
        """Settle a job that nothing is attached to, and claim the next: ``finish`` and ``claim`` for the plain case.

        The same steps in the same order, without six calls, which is a tenth of what a job costs. What is not plain is
        left to those two. Returns ``settled`` itself, untouched, if somebody broke in and attached something to it.
        """
        if settled is not None:
            try:
                seq = settled._seq
                if self.running.pop(seq, None) is not None:
                    if settled._attached is not None:
                        self.running[seq] = settled
                        return settled
                    settled._key = now
                    settled._result = result
                    settled._fn = name
                    settled._args = None
                    settled._state = FINISHED
                    self.done += 1
                    options = settled._options
                    record = (seq, options, name, DONE, settled._priority, settled._attempts, settled._submitted_at,
                              settled._run_at, settled._started_at, now, settled._place, None)  # fmt: skip
                    self._ended.append(record)
                    if options.id is not None:
                        self._remember_id(options.id, record, settled)
            except BaseException:
                self._not_settled(settled)
                raise
        ready = self.ready
        level = ready.level
        if level and not (ready.lane or ready.heap or self.stale or self.halted or self.gate or ready.untidy):
            pending = self.pending
            job = None
            try:
                seq = level.popleft()
                job = pending.get(seq)
                if job is None or (job._attached is not None and job._attached.rules):
                    level.appendleft(seq)  # dead, or to be asked about
                elif pending.pop(seq, None) is not None:  # Linearization point, as in claim().
                    self.running[seq] = job
                    job._place = place
                    job._started_at = now
                    job._attempts += 1
                    job._state = RUNNING
                    return job
            except BaseException:
                self._give_back(job)
                raise
        if level or ready.lane or ready.heap or ready.untidy:
            return self.claim(now, place)
        return None

    # ---------------------------------------------------------------- out

    def finish(self, job: Job[Any], result: object, name: str, now: float) -> bool:
        """RUNNING → DONE; False if somebody else had the right to settle it."""
        try:
            if self.running.pop(job._seq, None) is None:
                return False
            job._finish(result, name, now)
            self.done += 1
            self._remember(job, DONE, None)
            if job._attached is not None and job._attached.rules:
                self._tell_rules(job, now)
        except BaseException:
            self._not_settled(job)
            raise
        return True

    def _not_settled(self, job: Job[Any]) -> None:
        """Undo what an exception broke off before the move was made: the job still runs, or is still pending.

        If it came after the move, the job has ended, and the next look at the queue asks every waiting job again, for
        those who wait for this one may not have been told.
        """
        if job._state == "RUNNING":
            self.running[job._seq] = job
        elif job._state == "PENDING":
            if job._place is WAITING:
                self.waiting[job._seq] = job
            self.pending[job._seq] = job
            self.delayed.untidy = self.ready.untidy = True
        else:
            self.delayed.untidy = self.ready.untidy = True
        if self.gate is not None:
            self.gate.freed(self.pending)  # whatever the exception kept it from

    def _tell_rules(self, job: Job[Any], now: float) -> None:
        for rule in job._attached.rules if job._attached is not None else ():
            rule.ended(job, now)

    def fail(self, job: Job[Any], failure: Failure, error: str, now: float) -> bool:
        """RUNNING or PENDING → FAILED; False if the job is in neither map any more."""
        seq = job._seq
        try:
            if self.running.pop(seq, None) is None:
                if self.pending.pop(seq, None) is None:
                    return False
                self._left_queue(job)
            job._fail(failure, now)
            self.failed += 1
            if self.gate is not None:
                self.gate.freed(self.pending)
            self._remember(job, FAILED, error)
            self._tell_rules(job, now)
        except BaseException:
            self._not_settled(job)
            raise
        return True

    def retry(self, job: Job[Any], run_at: float, key: object, now: float) -> bool:
        """RUNNING → PENDING, into the delayed queue; True if it is the new head there."""
        seq = job._seq
        try:
            if self.running.pop(seq, None) is None:
                return False
            job._retry(run_at, key)
            self.timed = True
            self.retries += 1
            if seq in self.left_behind:
                self.left_behind.discard(seq)
                self.ready.untidy = self.delayed.untidy = True  # the old entry must not come alive again
            self.pending[seq] = job  # before its entry, which a sweep from within would take for a dead one
            self.delayed.push((run_at, seq))
        except BaseException:
            self._not_settled(job)
            raise
        self._tell_rules(job, now)
        return self._heads_delayed(seq)

    def stop(self, job: Job[Any], name: str, now: float) -> bool:
        """RUNNING → CANCELLED, for a task that left by ``check_cancelled``."""
        try:
            if self.running.pop(job._seq, None) is None:
                return False
            job._cancel(name, now)
            self.cancelled += 1
            self._remember(job, CANCELLED, None)
            self._tell_rules(job, now)
        except BaseException:
            self._not_settled(job)
            raise
        return True

    def cancel(self, job: Job[Any], name: str, now: float, reason: CancelledError | None = None) -> Spoils | None:
        """PENDING → CANCELLED; return what the job held, for the caller to drop outside the lock.

        None means that this call did not cancel it. O(1) amortised with the lazy structure, O(log n) with the other.
        """
        pending = self.pending
        attached = job._attached
        spoils = (job._fn, job._args, job._result, attached and attached.error)
        try:
            # Linearization point of a cancel.
            if pending.pop(job._seq, None) is None:
                return None
            if job._place is DELAYED and not self.indexed:
                self.dead_delayed += 1  # what _left_queue() does, without its call
            else:
                self._left_queue(job)
            if job._attached is None:  # Job._cancel(), without its call
                job._key, job._result = now, reason
                job._fn, job._args = name, None
                job._state = _NOTIFIED
            else:
                job._cancel(name, now, reason)
            self.cancelled += 1
            if self.gate is not None:
                self.gate.freed(pending)
            attached = job._attached  # again: what broke in may have been the first to attach something
            if attached is not None:
                attached.error = None
                self._tell_rules(job, now)
            # As _remember() does, without its call.
            options = job._options
            record = (job._seq, options, name, CANCELLED, job._priority, job._attempts, job._submitted_at, job._run_at,
                      job._started_at, now, job._place, None)  # fmt: skip
            self._ended.append(record)
            if options.id is not None:
                self._remember_id(options.id, record, job)
        except BaseException:
            self._not_settled(job)
            raise
        if not self.cancelled & (SWEEP_EVERY - 1):
            self.sweep()
        return spoils

    def _left_queue(self, job: Job[Any]) -> None:
        """Account for the heap entry of a job that left the map otherwise than by being popped."""
        if job._place is WAITING:
            self.waiting.pop(job._seq, None)
        elif job._place is DELAYED:
            if not self.indexed or not self.delayed.discard((job._run_at, job._seq)):
                self.dead_delayed += 1
        elif self.indexed:
            self.ready.discard((job._key, job._seq))

    def sweep(self) -> None:
        """Filter a heap of mostly dead entries: O(1) amortised per cancel."""
        delayed, ready = self.delayed, self.ready
        excess = len(delayed) + len(ready) - SWEEP_SHARE * (len(self.pending) - len(self.waiting))
        if excess <= SWEEP_SLACK or self.entering is not None:
            return  # few dead; or a submission further down this stack has an entry in a heap and none in the map
        if self.dead_delayed * 2 > len(delayed):
            self.dead_delayed -= delayed.keep(self.pending)
        elif not self.stale:
            ready.keep(self.pending)
        elif not ready.busy:
            self.rebuild_ready()  # the map's numbers do not tell which entry of a job is the present one

    def repair(self) -> None:
        """Rebuild both heaps from the map, after an exception struck inside a change. O(n)."""
        self.entering = None
        self.timed = True
        for job in list(self.pending.values()):
            if job._place is WAITING:  # perhaps a rule was kept from releasing it
                self.waiting[job._seq] = job
                if self._let_go(job):
                    job._place = DELAYED
        self.alarms.repair()
        self.time_limits.repair()
        self.delayed.rebuild(self._delayed_entries)
        self.rebuild_ready()
        for keeper in self.keepers:
            keeper.repair()

    def rebuild_ready(self) -> None:
        """Rebuild the ready heap from the map. O(n log n)."""
        ready = self.ready
        ready.untidy = True  # should the next lines be broken off
        self.stale = 0  # first: who breaks in may count one up again
        ready.rebuild(self._ready_entries)

    def _delayed_entries(self) -> list[Entry]:
        values = self.pending.values()
        # No call between these two lines: whatever is cancelled from here on leaves a dead entry, and is counted.
        self.dead_delayed = 0
        jobs = [*values]
        return [(job._run_at, job._seq) for job in jobs if job._place is DELAYED]

    def _ready_entries(self) -> list[Entry]:
        return [(job._key, job._seq) for job in list(self.pending.values()) if job._place is READY]

    def arm(self, thing: Armable, at: float) -> bool:
        """Have a thing put into the outbox at an instant; True if it is the first one due now. O(log n)."""
        self.timed = True
        return self.alarms.arm(thing, at)

    def ring(self, now: float) -> None:
        """Put what is armed and due into the outbox; while nothing may start, it stays armed. O(k log n)."""
        if not self.halted:
            self.alarms.ring(now, self.outbox)

    def next_due(self) -> float | None:
        """Return when the earliest delayed job or armed thing is due or the keepers' alarm rings, or None."""
        delayed = self.delayed
        if not (delayed.lane or delayed.heap or self.alarms.things or delayed.untidy):
            return self.alarm
        due = self._next_delayed()
        if self.alarms.things and not self.halted:
            armed = self.alarms.due()
            if armed is not None and (due is None or armed < due):
                due = armed
        alarm = self.alarm
        return alarm if due is None or (alarm is not None and alarm < due) else due

    def _next_delayed(self) -> float | None:
        """Return when the earliest delayed job is due, or None; throws dead heads away."""
        delayed, pending = self.delayed, self.pending
        if delayed.untidy:
            self.repair()
        while (first := delayed.first()) is not None:
            if first[1] in pending:
                due: float = first[0]
                return due
            try:
                entry = delayed.pop()
                if entry is not None and entry[1] in pending:
                    delayed.push(entry)  # a finalizer changed the head between the look and the pop
                elif entry is not None:
                    self.dead_delayed -= 1
            except BaseException:
                delayed.untidy = True
                raise
        return None

    def close(self, drain: str) -> None:
        """Refuse newcomers, and sharpen what happens to the jobs that are pending; never the other way."""
        self.drain = max(self.drain, drain, key=DRAINS.index)
        self.paused = False
        self.halted = self.drain == "none" or self.broken
        self.closed = True
        self.door = None
        if self.gate is not None:
            self.gate.wake_all()  # the producers in the line are refused
        for series in list(self.series.values()):
            series.closed(self)  # what is armed is dropped, under every mode
        self.time_limits.ring()  # who watches nothing leaves now

    def bound(self, gate: Gate | None) -> None:
        """Bound the pending jobs, before there are any: from now on each newcomer is asked about."""
        self.gate = gate
        if gate is not None:
            self.door = None

    def pause(self, paused: bool) -> None:
        """Start nothing, or start again; a closed scheduler cannot be paused."""
        self.paused = paused and not self.closed
        self.halted = self.paused or self.drain == "none" or self.broken

    # ---------------------------------------------------------------- another rule

    def rerank(
        self, ranking: Ranking, keys: dict[int, object], bases: dict[int, tuple[object, object]] | None = None
    ) -> list[Job[Any]] | None:
        """Order the ready jobs by another ranking, given the keys of all pending jobs; O(n log n).

        ``bases`` maps seq to the priority and run_at that the key was computed from: if they have changed since, the
        key does not count. Returns the jobs whose key is missing: nothing has changed then, and the caller computes
        those (outside the lock) and calls again; or None when it is done. A trusted ranking needs no keys. A submission
        that computed its key before the change and arrives after it sees another ``ranking`` than it used, and computes
        it again.
        """
        latest = self.latest, self.readmissions
        jobs = list(self.pending.values())
        if ranking.trusted:
            keys = {job._seq: ranking.key_of(job) for job in jobs}
            bases = None
        missing = [job for job in jobs if job._seq not in keys or (bases and not _based_on(job, bases[job._seq]))]
        if missing:
            return missing
        ready = self.queue_type(ranking, levelled=True)
        ready.rebuild(partial(_entries_by, keys, jobs))
        ready.shut()  # until the jobs have the keys that it knows them by
        walk, again = iter(jobs), iter(jobs)  # made here: below nothing may want memory
        # No call from this look to the last store: a submission from a handler came before, and is seen, or comes
        # after, and finds the new ranking with its queue.
        if (self.latest, self.readmissions) != latest:
            return []
        self.ranking = ranking
        self.ready = ready
        asked = self.closed or self.stepped or not ranking.trusted or (self.gate and self.gate.limit)
        self.door = None if asked else ranking
        self.stale = 0
        try:
            for job in walk:
                job._key = keys[job._seq]
        except BaseException:
            for job in again:
                job._key = keys[job._seq]
            raise
        finally:
            ready.push = ready.resting_push  # no call: whatever strikes from here on, the door is open
        ready.open()
        for keeper in self.keepers:
            keeper.reorder()
        return None

    # ---------------------------------------------------------------- history

    def _remember(self, job: Job[Any], status: JobStatus, error: str | None) -> None:
        """Keep a small record of an ended job; the oldest falls out by itself. Ends its claim on its id."""
        options = job._options
        record = (
            job._seq,
            options,
            job._fn,
            status,
            job._priority,
            job._attempts,
            job._submitted_at,
            job._run_at,
            job._started_at,
            job._key,  # of an ended job: when that was
            job._place,
            error,
        )
        self._ended.append(record)
        if options.id is not None:
            self._remember_id(options.id, record, job)

    def _remember_id(self, id: str, record: tuple[Any, ...], job: Job[Any]) -> None:
        """Index a record by the user's id. Expired ones are swept when they could outnumber the others."""
        if self.named.get(id) is job:  # else another job has taken its place
            holder = self.named.pop(id, None)
            if holder is not None and holder is not job:
                self.named.setdefault(id, holder)  # and has done so just now
        self._ended_ids[id] = (self.done + self.failed + self.cancelled, record)
        if len(self._ended_ids) > 2 * self.history:
            for known in list(self._ended_ids):
                if self._remembered(known) is None:
                    self._ended_ids.pop(known, None)

    def _remembered(self, id: int | str) -> tuple[Any, ...] | None:
        """Return the record of an ended job: O(1) by an id of the user's, O(history) by a number."""
        if type(id) is str:
            number, record = self._ended_ids.get(id, (None, None))
            if number is None or self.done + self.failed + self.cancelled - number >= self.history:
                return None
            return record
        for record in list(self._ended):
            if record[0] == id and record[1].id is None:
                return record
        return None

    def find(self, id: int | str) -> Job[Any] | None:
        """Return the live job with this id."""
        if type(id) is str:
            return self.named.get(id)
        job = self.pending.get(id) or self.running.get(id)  # type: ignore[arg-type]  # ids are ints or strs
        return None if job is None or job._options.id is not None else job

    def status_of(self, id: int | str) -> JobStatus | None:
        """Return the status of a live or remembered job."""
        job = self.find(id)
        if job is not None:
            return job.status
        record = self._remembered(id)
        return None if record is None else record[3]

    def ended(self) -> list[JobInfo]:
        """Return the history, oldest first."""
        return [_info(*record) for record in list(self._ended)]

    def ended_numbers(self) -> set[int]:
        """Return the submission numbers of the jobs in the history."""
        return {record[0] for record in list(self._ended)}

    def check_invariants(self) -> None:
        """Raise InvariantError on the first broken one. O(n log n); for tests and ``check()``."""
        check_invariants(self)


def _based_on(job: Job[Any], basis: tuple[object, object]) -> bool:
    return basis[0] is job._priority and basis[1] is job._run_at


def _entries_by(keys: dict[int, Any], jobs: list[Job[Any]]) -> list[Entry]:
    return [(keys[job._seq], job._seq) for job in jobs if job._place is READY]


def _info(seq: int, options: Options, name: str, status: JobStatus, *rest: Any) -> JobInfo:
    *known, place, error = rest
    id = seq if options.id is None else options.id
    fields: tuple[Any, ...] = (id, options.name or name, status, *known, getattr(place, "name", None), error)
    return JobInfo(*fields)

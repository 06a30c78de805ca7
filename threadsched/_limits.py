"""Limits: how many jobs that name one may run at once, and how many may start in a time.

Each limit has a :class:`Gate`, which knows who is inside and when the latest starts were. Jobs that name the same set
of limits form a :class:`Group`: they may all start or none of them may, so only the first of a group ever has to be
looked at. A group is the ``Rule`` of its jobs (see ``_rules``), and :class:`Limits` is the ``Keeper`` of them all.

The way of a job
----------------
A job with limits goes through the queues like any other. Popped by a claim it asks for room in all its gates *at
once*: it takes a place in each, then looks whether it fits, and gives all places back if it does not. So a job never
holds a part of what it needs, and two jobs cannot wait for each other.

Without room the job is *held*: it leaves the ready queue for that of its group, which has the policy's order, and the
group is *parked* at one gate that has no room. When room comes there, the first job of all groups parked at the gate is
*sent* back into the ready queue, where it competes with everything else by the policy's order; whoever is popped first
has the room. Of those that the policy puts before a held job at most as many are out as the gate has room for, so a
place that comes free moves one job, not all who wait: O(log n) in the held jobs. A group that turns out to be kept out
by another of its gates is parked there instead and the next one is looked at; that can take as many steps as there are
different sets of limits in use.

Invariants, audited by ``check()``
----------------------------------
- Who is inside a gate is a running attempt, or a thread that was written off and still runs.
- A group with held jobs is parked at one gate, whose room is used up by those inside and those sent before it, or which
  has set an alarm for the instant at which its rate lets the next one start.

Breaking in
-----------
A finalizer or signal handler may submit, cancel, claim or settle between any two steps here, on the same thread.
What it decides is one dict operation (``inside``, ``held``, ``sent``). What has to be moved because of it goes to
``inbox``, and only the outermost call, the one that finds ``working`` False, moves anything.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from threadsched._errors import UnknownLimitError
from threadsched._heap import Entry, LazyQueue
from threadsched._job import READY, Job
from threadsched._limit import Limit, LimitInfo
from threadsched._policy import BeforeRaisedError
from threadsched._records import Reason
from threadsched._turnstile import Gate, Kept

if TYPE_CHECKING:
    from threadsched._core import Core

# Dead entries are swept when they outnumber the living by this many: below it a sweep is not worth its call.
SLACK = 64


class Group:
    """The jobs that name one set of limits; the ``Rule`` of each of them."""

    __slots__ = ("gates", "held", "keeper", "queue", "ticket")

    def __init__(self, keeper: Limits, gates: tuple[Gate, ...]) -> None:
        self.keeper = keeper
        self.gates = gates
        self.clear()

    def clear(self) -> None:
        """Forget the held jobs."""
        core = self.keeper.core
        self.held: dict[int, Job[Any]] = {}  # seq -> job
        self.queue: LazyQueue = core.queue_type(core.ranking)  # Queue of (key, seq); dead unless held
        self.ticket = 0  # which entry in a gate's ``parked`` is ours; 0: none

    def admits(self, job: Job[Any]) -> bool:
        """Let every job into its queue: room is asked for at the claim."""
        return True

    def may_start(self, job: Job[Any], now: float) -> bool:
        """Take a place in every gate, or in none and return False."""
        seq = job._seq
        if seq in self.gates[0].coming:
            return False  # a claim of this very job, further down this stack, is between here and its start
        try:
            for gate in self.gates:
                gate.sent.pop(seq, None)
                # First take, then look: who breaks in between sees the place taken.
                gate.coming[seq] = None
                gate.inside[seq] = None
            fits = True
            for gate in self.gates:
                fits = fits and gate.fits(now)
            # Or cancelled meanwhile: the claim will find out. By its state: a newcomer that its submitter runs is in
            # no map yet.
            if not fits or job._state != "PENDING":
                self._leave(seq)
                self.keeper.look_at(self.gates, now)  # it may have been sent for room that it found taken elsewhere
        except BaseException:
            self._leave(seq)
            raise
        return fits

    def started(self, job: Job[Any], now: float) -> None:
        """Count the start."""
        seq = job._seq
        if self.held.pop(seq, None) is not None:  # a caller took it out of the line
            self.keeper.inbox.append((self.keeper.tidy, self))
        for gate in self.gates:
            gate.inside[seq] = None
            gate.sent.pop(seq, None)
            gate.count(now)
            gate.coming.pop(seq, None)
        self.keeper.look_at(self.gates, now)

    def ended(self, job: Job[Any], now: float) -> None:
        """Give the room back, or leave the line."""
        if self.held.pop(job._seq, None) is not None:
            self.keeper.inbox.append((self.keeper.tidy, self))
        if self._leave(job._seq):
            self.keeper.look_at(self.gates, now)
        else:
            self.keeper.work(now)

    def _leave(self, seq: int) -> bool:
        """Give up every place, and every claim to one; say whether there was any."""
        left = False
        for gate in self.gates:
            gate.coming.pop(seq, None)
            for places in (gate.inside, gate.sent):
                if seq in places:
                    places.pop(seq, None)
                    left = True
        return left

    def holders(self, job: Job[Any]) -> list[tuple[str, list[Job[Any]]]]:
        """Name the limits that have no place for the job, with the jobs inside, where those are all."""
        running = self.keeper.core.running
        full = [gate for gate in self.gates if not gate.has_place(0)]
        inside = [(f"limit {gate.name!r}", [running.get(seq) for seq in list(gate.inside)]) for gate in full]
        return [(name, [one for one in jobs if one is not None]) for name, jobs in inside if None not in jobs]

    def entries(self) -> list[Entry]:
        """Return what the queue should hold."""
        return [(job._key, job._seq) for job in list(self.held.values())]

    def first(self) -> Entry | None:
        """Return the entry of the held job that the policy puts first, or None; throws dead ones away."""
        queue, held, waiting = self.queue, self.held, self.keeper.core.waiting
        while (entry := queue.first()) is not None:
            seq = entry[1]
            job = held.get(seq)
            if job is not None and seq in waiting and job._key == entry[0]:
                return entry
            queue.pop()
            if job is not None and seq in waiting:
                queue.push((job._key, seq))  # it was given another rank
        return None


class Limits:
    """All limits of one scheduler; the ``Keeper`` of their groups."""

    def __init__(self, core: Core, limits: Mapping[str, Limit]) -> None:
        self.core = core
        self.gates = {name: Gate(name, limits[name], number) for number, name in enumerate(limits)}
        self.groups: dict[tuple[str, ...], Group] = {}  # names in order -> group; as many as sets of names were used
        self.kept: dict[int, Kept] = {}
        self.alarms: list[tuple[float, int, Gate]] = []  # Heap of (instant, number, gate); stale unless the gate's own
        self.tickets = itertools.count(1)
        # What is to be moved, and whether somebody further down this stack is at it.
        self.inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.working = False
        self.untidy = False  # an exception broke a move off: rebuild before the next
        self.ranking = core.ranking  # that of the lines; another in the core means the same
        self.now = -math.inf  # the reading that the current call came with

    # ---------------------------------------------------------------- names

    def check_names(self, names: tuple[str, ...]) -> None:
        """Raise UnknownLimitError for a name that no limit has."""
        for name in names:
            if name not in self.gates:
                close = difflib.get_close_matches(name, self.gates, 1)
                known = ", ".join(map(repr, self.gates)) or "none"
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise UnknownLimitError(f"unknown limit {name!r}; the scheduler's limits are: {known}{hint}")

    def group(self, names: tuple[str, ...]) -> Group:
        """Return the group of the jobs with these limits, made on first use. Needs no lock."""
        group = self.groups.get(names)
        if group is None:
            made = Group(self, tuple([self.gates[name] for name in names]))
            group = self.groups.setdefault(names, made)  # one C call: two first submissions agree
        return group

    def group_of(self, job: Job[Any]) -> Group | None:
        """Return the group of a job, or None if it names no limit."""
        return self.groups.get(job._options.limits) if job._options.limits else None

    # ---------------------------------------------------------------- the keeper's part

    def reset(self) -> None:
        """Start afresh, in the child of a fork: nobody is inside, nothing has started."""
        for gate in self.gates.values():
            gate.reset()
        for group in list(self.groups.values()):
            group.clear()
        self.kept.clear()
        self.alarms.clear()
        self.inbox.clear()
        self.working = self.untidy = False
        self.core.alarm = None

    def held(self, rule: object, job: Job[Any], now: float) -> None:
        """Put a job that found no room, and now waits, into its group's line; then look again."""
        if type(rule) is Group:
            rule.held[job._seq] = job
            self.inbox.append((self._line_up, job))
            self.look_at(rule.gates, now)
        elif (group := self.group_of(job)) is not None:  # another rule refused: the room it was sent for is free
            for gate in group.gates:
                gate.sent.pop(job._seq, None)
            self.look_at(group.gates, now)

    def holds(self, job: Job[Any]) -> bool:
        """Say whether the job stands in a line here."""
        group = self.group_of(job)
        return group is not None and job._seq in group.held

    def has_room(self, job: Job[Any]) -> bool:
        """Say whether a held job could start, if it went before those who were sent."""
        group, now = self.group_of(job), self.now
        if group is None or not all(
            gate.has_place(0) and gate.opens_at(len(gate.coming)) <= now for gate in group.gates
        ):
            return False
        attached = job._attached
        return attached is not None and all(rule is group or rule.may_start(job, now) for rule in attached.rules)

    def ring(self, now: float) -> None:
        """Let go whom a rate holds no longer."""
        alarms = self.alarms
        while alarms and alarms[0][0] <= now:
            at, _, gate = heappop(alarms)
            if gate.alarm == at:
                gate.alarm = None
                self.inbox.append((self._look, gate))
        self.work(now)
        self._set_alarm()

    def rekeyed(self, job: Job[Any], now: float) -> None:
        """Take note that a pending job ranks differently: it competes anew, and so do those behind it."""
        group = self.group_of(job)
        if group is None:
            return
        if job._seq in group.held:
            self.inbox.append((self.tidy, group))
            self.core.readmit(job)
            group.held.pop(job._seq, None)
        for gate in group.gates:
            gate.sent.pop(job._seq, None)
        if self.core.ranking.comparing:
            self.reorder()  # it compares otherwise where it stands, so that line is out of order
        self.look_at(group.gates, now)
        self.work(now)

    def repair(self) -> None:
        """Rebuild all from the maps of the core, after an exception. O(n log n)."""
        self._renew(recount=True)

    def reorder(self) -> None:
        """Order the lines by the core's ranking. O(n log n)."""
        self._renew(recount=False)

    def _renew(self, *, recount: bool) -> None:
        if self.working:
            self.untidy = True  # whoever is at it does it
            return
        self.working, self.untidy = True, False
        try:
            if recount:
                for gate in self.gates.values():
                    self._recount(gate)
            self._rebuild()
        except BaseException:
            self.untidy = True
            raise
        finally:
            self.working = False
        self.look_at(tuple(self.gates.values()), self.now)
        self._set_alarm()

    def _rebuild(self) -> None:
        core = self.core
        self.ranking = core.ranking
        self.inbox.clear()
        self.alarms.clear()
        for gate in self.gates.values():
            gate.clear()
        for group in list(self.groups.values()):
            for seq in list(group.held):
                if seq not in core.waiting:
                    group.held.pop(seq, None)
            queue = core.queue_type(core.ranking)
            queue.rebuild(group.entries)
            group.queue = queue
            group.ticket = 0
            if group.held:
                self._park(group, group.gates[0])

    def _recount(self, gate: Gate) -> None:
        """Correct who is inside, without a moment at which a place looks free that is not."""
        core = self.core
        for seq in list(self._running(gate)):
            gate.inside[seq] = None
        for kept in list(self.kept.values()):
            if gate in kept.gates:
                gate.inside[kept.number] = None
        for seq in list(gate.coming):
            job = core.running.get(seq)
            if job is not None and job._started_at is not None:
                gate.count(job._started_at)
            gate.coming.pop(seq, None)
        for seq in list(gate.inside):
            if seq not in core.running and seq not in self.kept:
                gate.inside.pop(seq, None)

    # ---------------------------------------------------------------- written-off threads

    def keep_room(self, job: Job[Any]) -> Kept | None:
        """Leave a running job's room to its thread, which is written off; to be called before the job moves on.

        Returns None if it has no limits; else what :meth:`give_back` needs once the thread has come home.
        """
        group = self.group_of(job)
        if group is None:
            return None
        kept = Kept(-next(self.tickets), group.gates)
        self.kept[kept.number] = kept
        for gate in group.gates:
            gate.inside[kept.number] = None
            gate.inside.pop(job._seq, None)
        return kept

    def give_back(self, kept: Kept | None, now: float) -> None:
        """Give back the room of a written-off thread that came home; a second time does nothing."""
        if kept is not None and self.kept.pop(kept.number, None) is not None:
            for gate in kept.gates:
                gate.inside.pop(kept.number, None)
            self.look_at(kept.gates, now)

    # ---------------------------------------------------------------- moves, by the outermost call alone

    def look_at(self, gates: tuple[Gate, ...], now: float) -> None:
        """Send whom these gates have room for."""
        for gate in gates:
            if gate.parked:
                self.inbox.append((self._look, gate))
        if self.inbox:
            self.work(now)

    def work(self, now: float) -> None:
        """Empty the inbox, unless somebody further down this stack is at it."""
        # Not the latest reading of all, which another worker may have had: who is sent by one reading and refused by an
        # earlier one would be sent again, for ever.
        self.now = now
        while (self.inbox or self._stale()) and not self.working:
            if self._stale():
                self._renew(recount=self.untidy)
                continue
            self.working = True
            try:
                while self.inbox:
                    move, argument = self.inbox.popleft()
                    move(argument)
            except BaseException as error:
                known, self.untidy = self._two_policies_met(error), True
                if not known:
                    raise
            finally:
                self.working = False

    def _two_policies_met(self, error: BaseException) -> bool:
        """Whether a policy was swapped by code that broke into a move, which then compared keys of both."""
        return self._stale() and isinstance(error, TypeError)

    def _stale(self) -> bool:
        return self.untidy or self.ranking is not self.core.ranking

    def _line_up(self, job: Job[Any]) -> None:
        """Give a held job its place in the line of its group."""
        group = self.group_of(job)
        if group is None or job._seq not in group.held:
            return
        if job._seq not in self.core.waiting:
            group.held.pop(job._seq, None)  # cancelled, or taken by a caller, between being refused and lining up
            return
        try:
            group.queue.push((job._key, job._seq))
        except BeforeRaisedError as fault:
            self.core.ranking.faults.append(fault.error)  # the entry is in; the runtime logs the fault
        first = group.first()
        if first is not None and (not group.ticket or first[1] == job._seq):
            self._find_place(group)

    def _find_place(self, group: Group) -> None:
        """Park a group at a gate without room; or send its first job while there is room in all."""
        while (first := group.first()) is not None:
            for gate in group.gates:
                if not gate.can_send(self.now, first, self.core.pending):
                    self._park(group, gate)
                    self._wind(gate)
                    return
            self._send(group)
        group.ticket = 0

    def _look(self, gate: Gate) -> None:
        """Send the first of all who are parked at a gate, while it has room."""
        parked = gate.parked
        while parked:
            _, seq, ticket, group = parked[0]
            if group.ticket != ticket:
                heappop(parked)  # it has moved on
                continue
            first = group.first()
            if first is None or first[1] != seq:
                heappop(parked)  # its first job is not here any more
                self._park(group, gate)
                continue
            if not gate.can_send(self.now, first, self.core.pending):
                break
            heappop(parked)
            pending = self.core.pending
            other = next((other for other in group.gates if not other.can_send(self.now, first, pending)), None)
            if other is None:
                self._send(group)
            self._park(group, gate if other is None else other)
            if other is not None:
                self._wind(other)
        self._wind(gate)

    def _send(self, group: Group) -> None:
        """Put a group's first job back into the ready queue."""
        entry = group.queue.pop()
        job = None if entry is None else group.held.get(entry[1])
        if job is None:
            return
        for gate in group.gates:
            gate.send(job)
        if not self.core.readmit(job):  # cancelled just now
            for gate in group.gates:
                gate.sent.pop(job._seq, None)
        group.held.pop(job._seq, None)  # last: broken off before, it is still in the line

    def _park(self, group: Group, gate: Gate) -> None:
        first = group.first()
        if first is None:
            group.ticket = 0
            return
        group.ticket = ticket = next(self.tickets)
        heappush(gate.parked, (*first, ticket, group))
        if len(gate.parked) > 2 * len(self.groups) + SLACK:
            gate.parked[:] = [entry for entry in gate.parked if entry[3].ticket == entry[2]]
            heapify(gate.parked)

    def tidy(self, group: Group) -> None:
        """Account for held jobs that were cancelled or taken: O(1) amortised."""
        if len(group.queue) > 2 * len(group.held) + SLACK:
            group.queue.keep(group.held)
        if not group.held:
            group.ticket = 0
            for gate in group.gates:
                self._look(gate)  # an alarm for nobody is taken back

    # ---------------------------------------------------------------- alarms

    def _wind(self, gate: Gate) -> None:
        """Set the gate's alarm to when its rate lets the next one go, if anybody waits for that."""
        at = None
        if gate.parked and gate.has_place(0):
            opens = gate.opens_at(len(gate.coming) + len(gate.sent)) if gate.has_place(len(gate.sent)) else math.inf
            if opens == math.inf:  # those who were sent have the room; but a worker that waits may go before them
                opens = gate.opens_at(len(gate.coming))
            at = opens if self.now < opens < math.inf else None
        if at != gate.alarm:
            gate.alarm = at
            if at is not None:
                heappush(self.alarms, (at, gate.number, gate))
            self._set_alarm()

    def _set_alarm(self) -> None:
        alarms = self.alarms
        if len(alarms) > 2 * len(self.gates) + SLACK:
            alarms[:] = {entry for entry in alarms if entry[2].alarm == entry[0]}
            heapify(alarms)
        while alarms and alarms[0][2].alarm != alarms[0][0]:
            heappop(alarms)
        self.core.timed = True
        self.core.alarm = alarms[0][0] if alarms else None

    # ---------------------------------------------------------------- from outside

    def look(self, now: float) -> Mapping[str, LimitInfo]:
        """Describe every limit. O(limits × sets of names in use)."""
        waiting = dict.fromkeys(self.gates, 0)
        for group in list(self.groups.values()):
            for gate in group.gates:
                waiting[gate.name] += len(group.held)
        return MappingProxyType(
            {
                gate.name: LimitInfo(gate.limit, len(gate.inside), waiting[gate.name], gate.next_room_at(now))
                for gate in self.gates.values()
            }
        )

    def reasons(self, job: Job[Any], now: float) -> list[Reason]:
        """Say which limits keep a job from starting; none if it waits for something else."""
        group = self.group_of(job)
        if group is None or not (job._seq in group.held or job._place is READY):
            return []
        return [reason for gate in group.gates if (reason := gate.reason(now)) is not None]

    def audit(self, require: Callable[[object, str], None]) -> None:
        """Check what stands at the top of this file against the core's maps."""
        core = self.core
        require(not self.working and not self.inbox, "the limits' inbox is not empty")
        if self._stale():
            return  # will be rebuilt before anybody looks
        for gate in self.gates.values():
            self._audit_gate(gate, require)
        for names, group in list(self.groups.items()):
            require(set(group.held) <= set(core.waiting), f"a job held by the limits {names} does not wait")
            entries = {seq for key, seq in group.queue.entries() if seq in group.held and group.held[seq]._key == key}
            require(entries == set(group.held), f"the line of the limits {names} does not hold the held jobs")
            require(core.ranking.comparing or group.queue.in_order(), f"the line of {names} is out of order")
            if group.held:
                tickets = [entry for gate in group.gates for entry in gate.parked if entry[2] == group.ticket]
                require(len(tickets) == 1, f"the jobs held by the limits {names} are parked at {len(tickets)} gates")
                first, (key, seq, *_) = group.first(), tickets[0]
                left = seq not in group.held or group.held[seq]._key != key  # noticed when it comes up
                require(first is not None and (left or first[1] == seq), f"a job is before the first of {names}")
        live = [gate.alarm for gate in self.gates.values() if gate.alarm is not None]
        require(core.alarm == min(live, default=None), "the alarm is not that of the first limit to open")

    def _audit_gate(self, gate: Gate, require: Callable[[object, str], None]) -> None:
        name, limit = f"limit {gate.name!r}", gate.limit
        inside = set(self._running(gate)) | {kept.number for kept in self.kept.values() if gate in kept.gates}
        require(set(gate.inside) == inside, f"{name} counts {len(gate.inside)} inside, and {len(inside)} run")
        require(limit.concurrency is None or len(inside) <= limit.concurrency, f"{name} is exceeded: {len(inside)} run")
        require(not gate.coming, f"{name} waits for a start that does not come")
        require(set(gate.sent) <= set(self.core.pending), f"{name} sent a job that is not pending")
        require(
            all(self.core.pending[seq]._place is READY for seq in gate.sent), f"{name} sent a job that is not ready"
        )
        require(list(gate.starts) == sorted(gate.starts), f"the starts of {name} are out of order")
        if any(entry[3].ticket == entry[2] for entry in gate.parked):
            full = not gate.has_place(len(gate.sent))
            require(full or gate.sent or gate.alarm is not None, f"nothing will let go who waits for {name}")

    def _running(self, gate: Gate) -> Iterator[int]:
        for job in list(self.core.running.values()):
            group = self.group_of(job)
            if group is not None and gate in group.gates:
                yield job._seq

"""The ways into the naive scheduler and out of it: submissions, a full queue, what users ask of jobs, shutdown."""

from typing import Any

from tests.model.naive import CANCELLED, DONE, FAILED, PENDING, READY, RUNNING, Foreign, Job, Naive
from tests.model.recurring import Run, Schedule
from tests.model.words import IF_EXISTS, POLICIES, SCHEDULES, Operation, Recurrence, Spec

MODES = ("all", "due", "none")


class Refused(Exception):
    """A submission that was refused; with the name of the error that the caller sees."""


class Scheduler(Naive):
    """The whole of it."""

    def __init__(self, *args: Any, max_pending: int | None = None, on_full: str = "reject", **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_pending = max_pending
        self.on_full = on_full

    def perform(self, operation: Operation) -> Any:
        """Do what an operation says; return what came of it, or the name of the error."""
        what, *arguments = operation
        result = getattr(self, "do_" + what.replace(" ", "_"))(*arguments)
        self.drain_outbox()
        return result

    def pick(self, index: int) -> Job | None:
        return self.jobs[index % len(self.jobs)] if self.jobs else None

    # ---------------------------------------------------------------- submission

    def do_submit(self, spec: Spec) -> Job | str:
        try:
            job = self.submit(spec)
        except Refused as refused:
            return str(refused)
        if job in self.jobs or job in self.running:
            return job  # which was there before
        self.jobs.append(job)
        if spec.watched:
            job.watched = True
            if job.finished_at is not None:
                self.told.append((job, job.status))
        return job

    def submit(self, spec: Spec) -> Job:
        if spec.at is not None and spec.delay:
            raise Refused("TypeError")
        if set(spec.work.limits) - set(self.limits):
            raise Refused("UnknownLimitError")
        job = self.new_job(spec)
        if self.closed:
            raise Refused("SchedulerClosedError")
        full = self.is_full()
        if full and self.on_full == "reject" and not IF_EXISTS:
            raise Refused("QueueFullError")
        holder = self.holder(spec)
        if holder is not None and spec.if_exists == "return":
            return holder
        if holder is not None:
            self.replace(job, holder)
        elif full and self.on_full == "reject":
            raise Refused("QueueFullError")
        elif full and self.on_full == "caller_runs":
            self.run_here(job)
        else:
            self.make_room_for(job)
        return job

    def make_room_for(self, job: Job) -> None:
        while self.is_full():
            if not self.drop_one_for(job):
                return
        if self.closed:
            raise Refused("SchedulerClosedError")
        self.enter(job)

    def holder(self, spec: Spec) -> Job | None:
        """Return the live job with the id of a newcomer that says what to do then; refuse any other duplicate."""
        if spec.id is None:
            return None
        if spec.if_exists == "raise" and self.find(spec.id) is not None:
            raise Refused("DuplicateJobError")
        live = [job for job in self.pending + self.running if job.id == spec.id]
        if live and spec.if_exists == "replace" and live[0].status is RUNNING:
            raise Refused("DuplicateJobError")
        return live[0] if live else None

    def replace(self, job: Job, holder: Job) -> None:
        """Accept a newcomer for the pending job with its id; in a full queue it gets that one's place."""
        self.accept(job)
        self.end(holder, CANCELLED)
        self.drain_outbox()

    def new_job(self, spec: Spec) -> Job:
        work, now = spec.work, self.now
        if spec.at is not None:
            self.look_at_wall()
        parents = []
        for kind, index in spec.after:
            known: list[Any] = self.jobs if kind == "job" else self.futures
            if known and known[index % len(known)] not in parents:
                parents.append(known[index % len(known)])
        return Job(
            work=work,
            id=spec.id,
            seq=0,
            submitted_at=now,
            run_at=now + spec.delay if spec.at is None else max(now, round(spec.at - self.offset, 6)),
            priority=work.priority,
            deadline=self.instant(work, work.deadline),
            expires=self.instant(work, work.expires),
            sees=self.seen_here() if work.context else None,
            at=spec.at,
            any_outcome=spec.any_outcome,
            parents=sorted(parents, key=lambda parent: isinstance(parent, Foreign)),
        )

    def seen_here(self) -> str:
        """Return the context variable's value for whoever submits now: a task has set it."""
        return "a task" if self.inside else "outside"

    def is_full(self) -> bool:
        return self.max_pending is not None and len(self.pending) >= self.max_pending

    def enter(self, job: Job) -> None:
        self.accept(job)
        self.drain_outbox()

    def accept(self, job: Job) -> None:
        """Accept a job, and look at its parents."""
        self.numbers += 1
        job.seq = self.numbers
        self.pending.append(job)
        bad = [parent for parent in job.parents if self.has_ended(parent) and not self.ended_well(parent)]
        job.parents = [parent for parent in job.parents if not self.has_ended(parent)]
        if bad and not job.any_outcome:
            self.doom(job, bad[0])
        self.place(job)

    def place(self, job: Job) -> None:
        """Choose where a newcomer waits for its time; in the stepped scheduler for the next promotion."""

    def has_ended(self, parent: Any) -> bool:
        return parent.ended is not None if isinstance(parent, Foreign) else parent.finished_at is not None

    def ended_well(self, parent: Any) -> bool:
        return parent.ended == "result" if isinstance(parent, Foreign) else parent.status is DONE

    def accept_run(self, schedule: Schedule, run: Run, due: float) -> None:
        """Submit a run of a schedule; a full queue is no obstacle."""
        work, now = schedule.plan.work, self.now
        job = Job(
            work=work,
            id=None,
            seq=0,
            submitted_at=now,
            run_at=due,
            priority=work.priority,
            deadline=self.instant(work, work.deadline),
            expires=self.instant(work, work.expires),
            sees=schedule.sees,
            run=run,
        )
        schedule.run, schedule.job = run, job
        schedule.armed = None
        schedule.wanted = schedule.wanted and run.slot is not None
        self.numbers += 1
        job.seq = self.numbers
        self.pending.append(job)
        self.place(job)
        self.jobs.append(job)
        self.journal.append(("run", self.schedules.index(schedule), job))

    # ---------------------------------------------------------------- a full queue

    def run_here(self, job: Job) -> None:
        """Run a newcomer on its submitter's thread, if it could start at once."""
        waits = any(not self.has_ended(parent) for parent in job.parents)
        fell = any(self.has_ended(parent) and not self.ended_well(parent) for parent in job.parents)
        if self.halted or job.run_at > self.now or waits or (fell and not job.any_outcome):
            raise Refused("QueueFullError")
        if self.has_expired(job) or self.full_limits(job.work.limits, self.now):
            raise Refused("QueueFullError")
        self.numbers += 1
        job.seq = self.numbers
        self.start(job, -1, self.now)
        self.attempt(job)

    def drop_one_for(self, newcomer: Job) -> bool:
        """Cancel the job that has to give way; False if that is the newcomer."""
        victim = self.pending[0]
        if self.on_full == "drop_lowest":
            self.numbers += 1
            newcomer.seq = self.numbers
            victim = max([*self.pending, newcomer], key=self.rank)
        if victim is newcomer:
            self.pending.append(newcomer)
        self.end(victim, CANCELLED, "JobDroppedError")
        self.drain_outbox()
        return victim is not newcomer

    # ---------------------------------------------------------------- what users ask of jobs

    def do_cancel(self, index: int) -> Any:
        """``scheduler.cancel(id)``: what the id stands for now, which may be a later job."""
        job = self.pick(index)
        if job is None:
            return None
        live = [one for one in self.pending + self.running if (one is job if job.id is None else one.id == job.id)]
        return bool(live) and self.cancel(live[0])

    def do_cancel_future(self, index: int) -> Any:
        job = self.pick(index)
        return None if job is None else self.cancel(job) or job.status is CANCELLED

    def do_request_cancel(self, index: int) -> Any:
        job = self.pick(index)
        if job is None:
            return None
        if job.status is RUNNING:
            job.no_retry = job.stop = True
            return True
        return self.cancel(job)

    def do_priority(self, index: int, priority: float) -> Any:
        job = self.pick(index)
        if job is None:
            return None
        if job.status is not PENDING:
            return False
        job.priority = priority
        job.lined_up = False  # it competes anew
        return True

    def do_claim(self, index: int) -> Any:
        job = self.pick(index)
        if job is None:
            return None
        if job.status is not PENDING or self.is_paused(job) or self.has_expired(job):
            return False
        if self.full_limits(job.work.limits, self.now):
            return False
        self.start(job, None, self.now)
        job.claimed = True
        return True

    def do_settle(self, index: int, well: bool) -> Any:
        """``set_result`` or ``set_exception``: for who claimed the job alone."""
        job = self.pick(index)
        if job is None:
            return None
        if job.status is not RUNNING or not job.claimed:
            return "IllegalMoveError"
        if not well:
            job.error = "ArithmeticError"
        self.end(job, DONE if well else FAILED)
        return None

    def do_foreign(self) -> None:
        self.futures.append(Foreign())

    def do_end_foreign(self, index: int, how: str) -> Any:
        future = self.futures[index % len(self.futures)] if self.futures else None
        if future is None or future.ended is not None:
            return False
        future.ended = how
        self.parent_ended(future, how == "result")
        return True

    # ---------------------------------------------------------------- schedules

    def do_every(self, plan: Recurrence) -> int | str | None:
        if len(self.schedules) == SCHEDULES:
            return None
        if set(plan.work.limits) - set(self.limits):
            return "UnknownLimitError"
        schedule = Schedule(plan, self.now, self.seen_here() if plan.work.context else None, self.draw)
        if schedule.slot > schedule.until:
            return "ValueError"
        if self.closed:
            return "SchedulerClosedError"
        self.schedules.append(schedule)
        schedule.step(self)
        return len(self.schedules) - 1

    def do_schedule(self, what: str, index: int) -> Any:
        if not self.schedules:
            return None
        schedule = self.schedules[index % len(self.schedules)]
        match what:
            case "pause":
                schedule.pause()
            case "resume":
                schedule.resume(self)
            case "run now":
                return schedule.run_now(self)
            case "cancel":
                return schedule.cancel(self)
        return None

    # ---------------------------------------------------------------- the scheduler as a whole

    def do_swap(self, policy: str) -> None:
        assert policy in POLICIES
        self.policy = policy

    def do_pause(self) -> None:
        self.paused = not self.closed

    def do_resume(self) -> None:
        self.paused = False

    def do_clear(self) -> int:
        """Cancel all that is pending at this moment."""
        jobs = list(self.pending)
        return self.cancel_all(jobs)

    def cancel_all(self, jobs: list[Job]) -> int:
        """Cancel jobs in one step; what follows from that comes after."""
        pending = [job for job in dict.fromkeys(jobs) if job.status is PENDING]
        for job in pending:
            self.end(job, CANCELLED)
        self.drain_outbox()
        return len(pending)

    def do_shutdown(self, mode: str) -> tuple[int, int, int, int, list[Job]]:
        if mode == "due" and self.drain == "all":
            self.due_until = self.now
        self.drain = max(self.drain, mode, key=MODES.index)
        self.paused, self.closed = False, True
        for schedule in self.schedules:
            schedule.end("shutdown")
        if self.drain != "all":
            self.give_up()
        counts = [sum(job.status is status for job in self.ended) for status in (DONE, FAILED, CANCELLED)]
        return (counts[0], counts[1], counts[2], len(self.pending), list(self.running))

    def give_up(self) -> None:
        """Dependents first, so that they fall by the shutdown and not by their parents."""
        waiting = sorted([job for job in self.pending if job.parents], key=lambda job: -job.seq)
        others = list(self.pending)
        if self.drain == "due":
            waiting = [job for job in waiting if not self.comes(job)]
            others = [job for job in self.pending if not job.parents and not self.comes(job)]
        self.cancel_all(waiting)
        if self.drain == "due":
            for job in others:
                if job.status is PENDING and job.attempts:  # in backoff
                    job.notes = 1
                    self.end(job, FAILED)
                    self.drain_outbox()
        self.cancel_all(others)

    def comes(self, job: Any) -> bool:
        """Say whether a shutdown that drains what is due waits for a job."""
        if isinstance(job, Foreign):
            return False
        if job.status is RUNNING:
            return True
        if job.place is not READY and job.run_at > self.due_until:
            return False
        return all(self.comes(parent) for parent in job.parents)

    # ---------------------------------------------------------------- time

    def do_tick(self) -> Any:
        return self.tick()

    def do_drain(self, step: float, limit: int) -> Any:
        ran = []
        for _ in range(limit):
            if not self.pending:
                break
            ran += self.tick()
            self.do_advance(step)
        return ran

    def do_advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def do_step_wall(self, seconds: float) -> None:
        self.wall += seconds


class Threaded(Scheduler):
    """A scheduler with one worker on a clock that is moved by hand: whenever it stands, all that is due is run."""

    def place(self, job: Job) -> None:
        if job.run_at <= self.now and not job.parents:
            job.place = READY

    def do_advance(self, seconds: float) -> None:
        """Stop at each instant at which something may happen."""
        target = self.now + seconds
        self.settle()
        while self.now < target:
            due = self.next_due()
            at = target if due is None else min(due, target)
            self.wall += at - self.now
            self.now = at
            self.settle()

    def settle(self) -> None:
        while self.tick():
            continue

    def do_step_wall(self, seconds: float) -> None:
        self.wall += seconds
        if any(job.at is not None and not job.attempts for job in self.pending):
            self.look_at_wall()

"""Compares the product with the naive scheduler: what happened since the last look, and how all stands now."""

from concurrent.futures import CancelledError
from typing import Any

from tests.model import naive
from tests.model.doors import Scheduler as Model
from tests.model.naive import CANCELLED, DELAYED, FAILED, RUNNING
from tests.model.subject import Subject
from tests.model.words import Operation
from threadsched import DependencyError, Job, JobStatus
from threadsched.testing import Ran


class Agreement:
    """The two, step by step."""

    def __init__(self, model: Model, subject: Subject) -> None:
        self.model = model
        self.subject = subject
        self.compared = 0  # jobs of the model's history that were compared after their end
        self.vague = False  # the order in which jobs ended
        self.results: list[Any] = []  # of operations: (name, the product's answer, the model's)

    def do(self, operation: Operation) -> None:
        """Tell both."""
        model = self.model
        operation = self.aimed(operation)
        self.results.append((operation[0], self.subject.perform(operation), model.perform(operation)))
        # Which of the jobs that a shutdown cancels together comes first is said nowhere.
        self.vague = model.drain == "none"

    def aimed(self, operation: Operation) -> Operation:
        """Aim what is done to few at those few, if there are any."""
        match operation:
            case ("settle", index, well):
                claimed = [place for place, job in enumerate(self.model.jobs) if job.claimed and job.status is RUNNING]
                return ("settle", claimed[index % len(claimed)] if claimed else index, well)
            case ("schedule", "resume", index):
                paused = [place for place, schedule in enumerate(self.model.schedules) if schedule.paused]
                return ("schedule", "resume", paused[index % len(paused)] if paused else index)
        return operation

    def close(self) -> None:
        self.subject.close()

    # ---------------------------------------------------------------- the same words for both

    def plain(self, thing: Any) -> Any:
        """Replace jobs by their places in the lists, which are the same in both."""
        if isinstance(thing, Job):
            return self.places.get(id(thing), "nobody")
        if isinstance(thing, naive.Job):
            return self.places.get(id(thing), "nobody")
        if isinstance(thing, Ran):
            return [thing.worker, self.numbers[thing.id] if isinstance(thing.id, int) else thing.id, thing.status]
        if isinstance(thing, list | tuple):
            return [self.plain(part) for part in thing]
        return thing

    def expected_ran(self, result: Any) -> Any:
        return [(slot, job if job.id is None else job.id, status) for slot, job, status in result]

    def look(self) -> None:
        """Compare all."""
        model, subject = self.model, self.subject
        self.numbers = {job.seq: place for place, job in enumerate(subject.jobs)}
        self.places = {id(job): place for jobs in (subject.jobs, model.jobs) for place, job in enumerate(jobs)}
        subject.scheduler.check()
        for what, result, wanted in self.results:
            if what in ("tick", "drain"):
                wanted = self.expected_ran(wanted)
            assert self.plain(result) == self.plain(wanted), what
        happened = [self.plain(entry) for entry in subject.journal]
        assert happened == [self.plain(entry) for entry in model.journal]
        told = sorted([self.plain(entry) for entry in subject.told], key=str)
        assert told == sorted([self.plain(entry) for entry in model.told], key=str)
        for journal in (self.results, subject.journal, subject.told, model.journal, model.told):
            journal.clear()
        assert len(subject.jobs) == len(model.jobs)
        self.look_at_jobs()
        self.look_at_schedules()
        self.look_at_counts()

    # ---------------------------------------------------------------- how all stands

    def look_at_jobs(self) -> None:
        model, subject = self.model, self.subject
        fresh = set(map(id, model.ended[self.compared :]))
        self.compared = len(model.ended)
        for real, expected in zip(subject.jobs, model.jobs, strict=True):
            assert real.status is expected.status, (real, expected)
            if expected.finished_at is None or id(expected) in fresh:
                self.look_at_job(real, expected)
            id_ = real.seq if expected.id is None else expected.id
            if not self.vague:
                found = model.find(expected.id) if expected.id is not None else self.known(expected)
                assert subject.scheduler.status_of(id_) is (None if found is None else found.status)

    def known(self, job: naive.Job) -> naive.Job | None:
        return job if job.finished_at is None or job in self.model.remembered() else None

    def look_at_job(self, real: Job[Any], expected: naive.Job) -> None:
        info = real.info()
        work = expected.work
        seen = {
            "attempts": (real.attempts, info.attempts),
            "run_at": (real.run_at, info.run_at),
            "priority": (real.priority, info.priority),
            "deadline": (real.deadline,),
            "submitted_at": (real.submitted_at, info.submitted_at),
            "started_at": (info.started_at,),
            "finished_at": (info.finished_at,),
            "status": (info.status,),
            "stop": (real.cancel_requested,),
        }
        for field, values in seen.items():
            for value in values:
                assert value == getattr(expected, field), (field, real, expected)
        if expected.id is not None:
            assert real.id == expected.id
        if work.name is not None:
            assert (real.name, info.name) == (work.name, work.name)
        reasons = [(reason.kind, reason.until) for reason in real.explain()]
        wanted = self.model.explain(expected)
        if work.limits and self.model.is_paused(expected):
            # Whether it was asked for its limits before the pause struck is nobody's business.
            reasons, wanted = ([one for one in told if one[0] != "limit"] for told in (reasons, wanted))
        assert reasons == wanted, (reasons, wanted, real, expected)
        if expected.finished_at is not None:
            self.look_at_outcome(real, expected)
        elif expected.error is None:
            assert info.error is None
        else:
            assert info.error is not None
            assert info.error.startswith(expected.error)

    def look_at_outcome(self, real: Job[Any], expected: naive.Job) -> None:
        error = outcome_of(real)
        assert (error is not None) is (expected.status in (FAILED, CANCELLED))
        assert isinstance(error, CancelledError) is (expected.status is CANCELLED)
        if error is None:
            return
        assert type(error).__name__ == expected.error
        if isinstance(error, DependencyError):
            parent = expected.fallen_with
            assert error.parent == (None if parent is None else self.real(parent).id)
        if expected.status is FAILED:
            assert len(getattr(error, "__notes__", ())) == expected.notes

    def real(self, job: naive.Job) -> Job[Any]:
        return self.subject.jobs[self.model.jobs.index(job)]

    def look_at_schedules(self) -> None:
        assert len(self.subject.schedules) == len(self.model.schedules)
        for real, expected in zip(self.subject.schedules, self.model.schedules, strict=True):
            shown = expected.seen()
            assert {name: getattr(real, name) for name in shown} == shown
            assert self.plain(real.job) == self.plain(expected.job)
        going = [index for index, schedule in enumerate(self.model.schedules) if schedule.over is None]
        assert self.subject.scheduler.schedules() == [self.subject.schedules[index] for index in going]

    def look_at_counts(self) -> None:
        model, stats = self.model, self.subject.scheduler.stats()
        assert stats.pending == len(model.pending)
        assert stats.running == len(model.running)
        for status, counted in zip(
            (JobStatus.DONE, FAILED, CANCELLED), (stats.done, stats.failed, stats.cancelled), strict=True
        ):
            assert counted == sum(job.status is status for job in model.ended)
        assert stats.submitted == len(model.pending) + len(model.running) + len(model.ended)
        assert stats.retries == model.retries
        assert stats.pending == stats.delayed + stats.ready + stats.waiting
        delayed = [job for job in model.pending if job.place is DELAYED and not job.parents]
        blurred = [job for job in model.pending if job.work.limits and job.run is not None]
        assert abs(stats.delayed - len(delayed)) <= len(blurred)
        held = [job for job in model.pending if job.parents or job.place is naive.HELD]
        lined_up = [job for job in model.pending if job.work.limits and job.place is naive.READY]
        assert len(held) <= stats.waiting + len(blurred)
        assert stats.waiting <= len(held) + len(lined_up) + len(blurred)
        assert (stats.lost_workers, stats.replaced_workers) == (0, 0)
        for name, info in self.subject.scheduler.limits.items():
            assert info.in_use == sum(name in job.work.limits for job in model.running)
            assert info.next_room_at == model.room_at(name, model.now)


def outcome_of(job: Job[Any]) -> BaseException | None:
    """Return what ``result()`` of an ended job raises, or None."""
    try:
        return job.exception(0)
    except CancelledError as reason:
        return reason

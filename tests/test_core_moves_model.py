"""Random programs of the core's moves, with many jobs running at once, against lists and one sorted list.

The stepped scheduler settles each job before it starts the next, and so do the programs of ``test_stepped_model``. Here
the core is called as workers call it: claims and ends of several in any order, with a rule that holds jobs back.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from sortedcontainers import SortedKeyList

from tests.core_driver import Driver, failure_of
from tests.model.words import POLICIES
from tests.support import exhaustive
from threadsched import Job, JobStatus, _core
from threadsched._policy import Ranking
from threadsched._reorder import reorder

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

PENDING, RUNNING, DONE, FAILED, CANCELLED = JobStatus


class Door:
    """A rule that holds its jobs back while it is shut."""

    def __init__(self) -> None:
        self.shut = False

    def admits(self, job: Job[Any]) -> bool:
        return not self.shut

    def may_start(self, job: Job[Any], now: float) -> bool:
        return not self.shut

    def started(self, job: Job[Any], now: float) -> None:
        assert not self.shut

    def ended(self, job: Job[Any], now: float) -> None:
        assert job.status is not RUNNING


@dataclass(eq=False)
class Expected:
    """What the model knows of a job; the fields that policies rank by have the job's own names."""

    real: Job[Any]
    seq: int
    priority: float
    run_at: float
    doored: bool
    status: JobStatus = PENDING
    place: str = "delayed"
    attempts: int = 0
    taken: bool = False
    """By ``claim()``: nobody will put it back."""
    deadline: None = None


@dataclass
class Lists:
    """The core, as naive as can be; the ready queue is sorted, so its first is the next to start."""

    policy: str = "priority"
    now: float = 0.0
    shut: bool = False
    halted: bool = False
    jobs: list[Expected] = field(default_factory=list)
    retries: int = 0

    def __post_init__(self) -> None:
        self.ready: SortedKeyList[Expected, Any] = SortedKeyList(key=self.rank)

    def rank(self, job: Expected) -> Any:
        return POLICIES[self.policy][1](job), job.seq

    def among(self, place: str) -> list[Expected]:
        return [job for job in self.jobs if job.status is PENDING and job.place == place]

    def move(self, job: Expected, place: str) -> None:
        """Take a job out of where it is, and put it there."""
        if job.place == "ready":
            self.ready.remove(job)
        job.place = place
        if place == "ready":
            self.ready.add(job)

    def end(self, job: Expected, status: JobStatus) -> None:
        self.move(job, "out")
        job.status = status

    def start(self, job: Expected) -> None:
        self.end(job, RUNNING)
        job.attempts += 1

    def promote(self) -> int:
        due = [job for job in self.among("delayed") if job.run_at <= self.now]
        for job in due:
            self.move(job, "ready")
        return len(due)

    def claim(self) -> Expected | None:
        while self.ready and not self.halted:
            job = self.ready[0]
            if job.doored and self.shut:
                self.move(job, "waiting")
            else:
                self.start(job)
                return job
        return None


class Program:
    """Does the same to a core and to the lists, and compares."""

    def __init__(self, queue: str, policy: str) -> None:
        self.driver = Driver(queue, POLICIES[policy][0]())
        self.core = self.driver.core
        self.door = Door()
        self.lists = Lists(policy)

    def some(self, index: int, *statuses: JobStatus) -> Expected | None:
        jobs = [job for job in self.lists.jobs if not statuses or job.status in statuses]
        return jobs[index % len(jobs)] if jobs else None

    # ---------------------------------------------------------------- the moves

    def submit(self, index: int, number: int) -> None:
        lists, delay, doored = self.lists, (0, 0, 1, 3)[index % 4], number % 3 == 0
        rules = (self.door,) if doored else ()
        real = self.driver.submit(rules=rules, delay=delay, priority=number)
        job = Expected(real, real.seq, number, lists.now + delay, doored)
        lists.jobs.append(job)
        lists.move(job, "waiting" if doored and lists.shut else "delayed" if delay else "ready")
        first = min(lists.among("delayed"), key=lambda job: (job.run_at, job.seq), default=None)
        assert self.driver.new_head is (first is job) or self.core.delayed.untidy

    def promote(self, index: int, number: int) -> None:
        assert self.driver.promote(self.lists.now) == self.lists.promote()

    def claim(self, index: int, number: int) -> None:
        real, job = self.driver.claim(), self.lists.claim()
        assert real is (None if job is None else job.real)

    def claim_one(self, index: int, number: int) -> None:
        job = self.some(index)
        if job is not None:
            able = job.status is PENDING and not (job.doored and self.lists.shut)
            assert self.core.claim_one(job.real, self.lists.now) is able
            if able:
                self.lists.start(job)
                job.taken = True

    def claim_given(self, index: int, number: int) -> None:
        job = self.some(index)
        if job is None or job.run_at > self.lists.now:
            return
        asked = job.status is PENDING and not self.lists.halted and job.place != "waiting"
        able = asked and not (job.doored and self.lists.shut)
        assert self.core.claim_given(job.real, self.lists.now, "worker") is able
        if able:
            self.lists.start(job)
        elif asked:
            self.lists.move(job, "waiting")

    def cancel(self, index: int, number: int) -> None:
        """Cancel one, or, so that the dead may outnumber the living, several."""
        for place in range(index, index + number):
            job = self.some(place)
            if job is not None:
                assert self.driver.cancel(job.real) is (job.status is PENDING)
                if job.status is PENDING:
                    self.lists.end(job, CANCELLED)

    def settle(self, index: int, number: int) -> None:
        """End one that runs, or did: only the first end counts."""
        job = self.some(index, RUNNING, DONE, FAILED, CANCELLED)
        if job is None:
            return
        status = (DONE, FAILED, CANCELLED)[number % 3]
        now = self.lists.now
        ends = {
            DONE: lambda: self.driver.finish(job.real),
            FAILED: lambda: self.driver.fail(job.real),
            CANCELLED: lambda: self.core.stop(job.real, job.real.name, now),
        }
        assert ends[status]() is (job.status is RUNNING)
        if job.status is RUNNING:
            job.status = status

    def fail_pending(self, index: int, number: int) -> None:
        job = self.some(index, PENDING)
        if job is not None:
            assert self.core.fail(job.real, failure_of(job.real), "in backoff", self.lists.now)
            self.lists.end(job, FAILED)

    def retry(self, index: int, number: int) -> None:
        job = self.some(index, RUNNING)
        if job is not None and not job.taken:
            job.run_at = self.lists.now + number / 2
            self.driver.retry(job.real, job.run_at)
            job.status, job.place = PENDING, "delayed"
            self.lists.retries += 1

    def reorder(self, index: int, number: int) -> None:
        job = self.some(index, PENDING) if number else self.some(index)
        if job is None:
            return
        if job.status is PENDING:
            place = job.place
            self.lists.move(job, "out")
            job.priority = number
            self.lists.move(job, place)
        assert reorder(self.core, job.real, number, self.key(job, number)) is (job.status is PENDING)

    def key(self, job: Expected, priority: float) -> Any:
        """Return what a policy's key says of a job with another priority; not asked for by the core's own policies."""
        return ("odd" if job.attempts % 2 else "even", -priority)

    def swap(self, index: int, number: int) -> None:
        lists = self.lists
        lists.policy = list(POLICIES)[index % len(POLICIES)]
        lists.ready = SortedKeyList(list(lists.ready), key=lists.rank)
        ranking = Ranking(POLICIES[lists.policy][0]())
        keys = {job.seq: ranking.key_of(job.real) for job in lists.jobs if job.status is PENDING}
        assert self.core.rerank(ranking, keys) is None

    def shut(self, index: int, number: int) -> None:
        self.door.shut = self.lists.shut = True

    def open(self, index: int, number: int) -> None:
        """Let everybody go: some of those held at a claim straight into the ready queue, as a limit does."""
        self.door.shut = self.lists.shut = False
        for place, job in enumerate(self.lists.among("waiting")):
            if number % 2 and place % 2:
                assert self.core.readmit(job.real)
                self.lists.move(job, "ready")
            else:
                self.core.release(job.real)
                self.lists.move(job, "delayed")

    def pause(self, index: int, number: int) -> None:
        self.lists.halted = number == 7
        self.core.pause(self.lists.halted)

    def repair(self, index: int, number: int) -> None:
        self.core.repair()

    def advance(self, index: int, number: int) -> None:
        self.lists.now += number / 2
        self.driver.now = self.lists.now

    # ---------------------------------------------------------------- after each

    def compare(self) -> None:
        core, lists = self.core, self.lists
        core.check_invariants()
        for job in lists.jobs:
            assert (job.real.status, job.real.attempts) == (job.status, job.attempts)
            if job.status is PENDING:
                assert (job.real._place, job.real.run_at, job.real.priority) == (job.place, job.run_at, job.priority)
        due = [job.run_at for job in lists.among("delayed")]
        assert core.next_due() == min(due, default=None)
        statuses = [job.status for job in lists.jobs]
        assert (core.done, core.failed) == (statuses.count(DONE), statuses.count(FAILED))
        assert (core.cancelled, core.retries) == (statuses.count(CANCELLED), lists.retries)
        assert len(core.pending) == statuses.count(PENDING)
        assert len(core.waiting) == len(lists.among("waiting"))


MOVES = (
    ["submit"] * 6
    + ["claim"] * 4
    + ["promote"] * 3
    + ["settle"] * 3
    + ["reorder"] * 5
    + ["cancel", "retry", "advance"] * 2
)
MOVES += ["claim_one", "claim_given", "fail_pending", "swap", "shut", "open", "open", "pause", "repair"]


@pytest.mark.timeout(600)  # for the shrinking of a failure
@hypothesis.given(
    queue=st.sampled_from(["lazy", "indexed"]),
    policy=st.sampled_from(list(POLICIES)),
    slack=st.sampled_from([64, 1]),
    program=st.lists(
        st.tuples(st.sampled_from(MOVES), st.integers(0, 15), st.integers(0, 7)), min_size=40, max_size=90
    ),
)
@hypothesis.settings(
    max_examples=1_500 if exhaustive() else 50,
    derandomize=not exhaustive(),
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_moves_of_the_core_agree_with_lists(queue: str, policy: str, slack: int, program: list[tuple[str, int, int]]):
    """Any order of moves, each job's and all jobs', leaves the core as the lists say; sweeps that come early, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "SWEEP_SHARE", 2)
        patch.setattr(_core, "SWEEP_SLACK", slack)
        if slack == 1:
            patch.setattr(_core, "SWEEP_EVERY", 1, raising=False)
        both = Program(queue, policy)
        for move, index, number in program:
            getattr(both, move)(index, number)
            both.compare()

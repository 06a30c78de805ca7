"""Limits against a model that keeps a list of starts for each limit, and against threads that count for themselves."""

import itertools
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import exhaustive
from threadsched import FifoPolicy, Job, JobStatus, Limit, PriorityPolicy, Retry, Scheduler, current_job
from threadsched._core import Core
from threadsched.testing import FakeClock, StepScheduler

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402 -- skipped without it
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule  # noqa: E402

PATIENCE = 5.0

LIMITS = {
    "one": Limit(concurrency=1),
    "two": Limit(concurrency=2),
    "slow": Limit(rate=1, per=2),
    "mail": Limit(rate=3, per=1.5),
    "both": Limit(concurrency=2, rate=2, per=1),
}
WIDTH = 6


class Latest:
    """The last submitted goes first, said by comparisons."""

    def before(self, a: Job[Any], b: Job[Any]) -> bool:
        return a.seq > b.seq


POLICIES = [PriorityPolicy, FifoPolicy, Latest]


class Naive:
    """What limits mean: all starts of each limit, who is inside, and a search through all that is pending."""

    def __init__(self) -> None:
        self.pending: dict[int, tuple[float, tuple[str, ...], int]] = {}  # seq -> (priority, names, failures left)
        self.due: dict[int, float] = {}
        self.claimed: dict[int, tuple[str, ...]] = {}
        self.starts: dict[str, list[float]] = {name: [] for name in LIMITS}
        self.policy: type = PriorityPolicy
        self.latest = 0

    def room(self, name: str, now: float) -> bool:
        limit = LIMITS[name]
        inside = sum(name in names for names in self.claimed.values())
        if limit.concurrency is not None and inside >= limit.concurrency:
            return False
        return limit.rate is None or sum(at + limit.per > now for at in self.starts[name]) < limit.rate

    def may_start(self, seq: int, now: float) -> bool:
        return all(self.room(name, now) for name in self.pending[seq][1])

    def rank(self, seq: int) -> tuple[float, int]:
        if self.policy is Latest:
            return (0, -seq)
        return (self.pending[seq][0] if self.policy is PriorityPolicy else 0, seq)

    def start(self, seq: int, now: float) -> None:
        for name in self.pending[seq][1]:
            self.starts[name].append(now)

    def tick(self, now: float) -> list[tuple[int, JobStatus]]:
        ready = {seq for seq in self.pending if self.due[seq] <= now}
        ran = []
        for _ in range(WIDTH):
            able = [seq for seq in ready if self.may_start(seq, now)]
            if not able:
                break
            seq = min(able, key=self.rank)
            ready.remove(seq)
            self.start(seq, now)
            priority, names, failures = self.pending[seq]
            if failures:
                self.pending[seq] = (priority, names, failures - 1)
                self.due[seq] = now + 0.5
                ran.append((seq, JobStatus.PENDING))
            else:
                del self.pending[seq]
                ran.append((seq, JobStatus.DONE))
        return ran


class LimitsAgainstAModel(RuleBasedStateMachine):
    """Submit, cancel, claim, settle, tick, advance and swap in any order."""

    queue = "lazy"
    jobs = Bundle("jobs")
    claimed = Bundle("claimed")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.stepped = StepScheduler(WIDTH, clock=self.clock, limits=LIMITS, queue=self.queue)
        self.naive = Naive()

    @rule(
        target=jobs,
        names=st.sets(st.sampled_from(sorted(LIMITS)), max_size=3),
        priority=st.integers(0, 3),
        failures=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 0, 0.5, 1.25]),
    )
    def submit(self, names: set[str], priority: int, failures: int, delay: float) -> Job[Any]:
        def task() -> None:
            job = current_job()
            assert job is not None
            if job.attempts <= failures:
                raise ValueError("again")

        retry = Retry(failures, backoff=0.5, factor=1)
        job = self.stepped.options(limits=names, priority=priority, delay=delay, retry=retry).submit(task)
        self.naive.pending[job.seq] = (priority, tuple(sorted(names)), failures)
        self.naive.due[job.seq] = self.clock.now() + delay
        return job

    @rule(job=jobs)
    def cancel(self, job: Job[Any]) -> None:
        assert self.stepped.cancel(job.id) is (self.naive.pending.pop(job.seq, None) is not None)

    @rule(target=claimed, job=jobs)
    def claim(self, job: Job[Any]) -> Job[Any]:
        now = self.clock.now()
        able = job.seq in self.naive.pending and self.naive.may_start(job.seq, now)
        assert job.claim() is able
        if able:
            self.naive.start(job.seq, now)
            self.naive.claimed[job.seq] = self.naive.pending.pop(job.seq)[1]
        return job

    @rule(job=consumes(claimed), failed=st.booleans())
    def settle(self, job: Job[Any], failed: bool) -> None:
        if self.naive.claimed.pop(job.seq, None) is None:
            return
        if failed:
            job.set_exception(ValueError("no"))
            assert job.exception() is not None
        else:
            job.set_result(None)

    @rule()
    def tick(self) -> None:
        ran = [(ran.id, ran.status) for ran in self.stepped.tick()]
        assert ran == self.naive.tick(self.clock.now())

    @rule(seconds=st.sampled_from([0.25, 0.5, 1, 1.5, 10]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(policy=st.sampled_from(POLICIES))
    def swap(self, policy: type) -> None:
        self.stepped.policy = policy()
        self.naive.policy = policy

    @invariant()
    def agree(self) -> None:
        self.stepped.check()
        stats = self.stepped.stats()
        assert (stats.pending, stats.running) == (len(self.naive.pending), len(self.naive.claimed))
        for name, info in self.stepped.limits.items():
            assert info.in_use == sum(name in names for names in self.naive.claimed.values())

    def teardown(self) -> None:
        for _ in range(200):
            if not self.naive.pending:
                break
            for seq in list(self.naive.claimed):
                del self.naive.claimed[seq]
                job = self.stepped.get(seq)
                assert job is not None
                job.set_result(None)
            self.tick()
            self.clock.advance(0.5)
        assert not self.naive.pending
        self.stepped.check()


class IndexedLimitsAgainstAModel(LimitsAgainstAModel):
    queue = "indexed"


LimitsAgainstAModel.TestCase.settings = hypothesis.settings(
    max_examples=400 if exhaustive() else 25, stateful_step_count=40
)
IndexedLimitsAgainstAModel.TestCase.settings = hypothesis.settings(
    max_examples=400 if exhaustive() else 15, stateful_step_count=40
)
TestLazy = LimitsAgainstAModel.TestCase
TestIndexed = IndexedLimitsAgainstAModel.TestCase


# ---------------------------------------------------------------- threads


@pytest.fixture
def restless() -> Iterator[None]:
    """Switch threads every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Counted:
    """Counts of its own, kept by the tasks: how many are inside each limit, and the most there ever were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = dict.fromkeys(("a", "b", "c"), 0)
        self.most = dict.fromkeys(("a", "b", "c"), 0)
        self.ran = 0

    def enter(self, names: tuple[str, ...]) -> None:
        with self.lock:
            self.ran += 1
            for name in names:
                self.inside[name] += 1
                self.most[name] = max(self.most[name], self.inside[name])

    def leave(self, names: tuple[str, ...]) -> None:
        with self.lock:
            for name in names:
                self.inside[name] -= 1

    def task(self, names: tuple[str, ...], seed: int) -> int:
        self.enter(names)
        try:
            for _ in range(seed % 50):
                pass
            if seed % 3 == 0:
                raise OSError("a failure, perhaps followed by another attempt")
            if seed % 11 == 0:
                job = current_job()
                assert job is not None
                job.request_cancel()
                job.check_cancelled()
            return seed
        finally:
            self.leave(names)


STORM_LIMITS = {"a": Limit(concurrency=1), "b": Limit(concurrency=3), "c": Limit(concurrency=2, rate=40, per=0.02)}
SETS = [names for size in (1, 2, 3) for names in itertools.combinations("abc", size)]


@pytest.mark.stress
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_no_limit_is_exceeded_or_leaks_in_a_storm(queue: str, restless: None, rng: random.Random):
    """Producers, cancellers and claimers at once, over failing, retried and stopping tasks: no limit is exceeded."""
    counted = Counted()
    pool = Scheduler(8, queue=queue, limits=STORM_LIMITS)  # type: ignore[arg-type]
    jobs: list[Job[Any]] = []
    barrier = threading.Barrier(6)
    faults: list[BaseException] = []

    def guarded(work: Any, seed: int) -> None:
        try:
            barrier.wait(PATIENCE)
            work(random.Random(seed))
        except BaseException as error:
            faults.append(error)

    def produce(rng: random.Random) -> None:
        for _ in range(150):
            names = rng.choice(SETS)
            some = pool.options(limits=names, priority=rng.randrange(3), retries=rng.randrange(2), backoff=0)
            jobs.append(some.submit(counted.task, names, rng.randrange(1000)))

    def cancel(rng: random.Random) -> None:
        for _ in range(150):
            if jobs:
                rng.choice(jobs).cancel()

    def claim(rng: random.Random) -> None:
        for _ in range(150):
            job = rng.choice(jobs) if jobs else None
            if job is not None and job._attached is not None:
                names = job._options.limits
                if job.claim():
                    counted.enter(names)
                    counted.leave(names)
                    job.set_result(-1)

    work = [produce, produce, produce, cancel, claim, claim]
    threads = [threading.Thread(target=guarded, args=(one, rng.random())) for one in work]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert pool.wait_idle(20)
        pool.check()
        assert faults == []
        assert counted.inside == {"a": 0, "b": 0, "c": 0}
        assert {info.in_use for info in pool.limits.values()} == {0}
        assert {info.waiting for info in pool.limits.values()} == {0}
        assert counted.most["a"] == 1
        assert counted.most["b"] <= 3
        assert counted.most["c"] <= 2
        for job in jobs:
            assert job.done()
            job.cancelled() or job.exception()
    finally:
        pool.shutdown(drain="none", timeout=PATIENCE)


@pytest.mark.stress
def test_rate_holds_among_threads(restless: None):
    """The recorded starts of jobs from many threads keep the window, whoever starts them."""
    rate, per = 7, 0.03
    pool = Scheduler(6, limits={"mail": Limit(rate=rate, per=per)}, history=1000)
    mail = pool.options(limits="mail")
    jobs: list[Job[Any]] = []
    threads = [threading.Thread(target=lambda: jobs.extend(mail.submit(int) for _ in range(20))) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert pool.wait_idle(20)
        times = sorted(job.info().started_at or 0.0 for job in jobs)
        assert len(times) == 80
        # What a claim records is its own reading of the clock, taken just before; the window counts the same ones.
        starts = list(pool._runtime.limits.gates["mail"].starts)
        assert starts == pytest.approx(times[-rate:])
        assert times[-1] - times[0] >= (80 / rate - 2) * per
        pool.check()
    finally:
        pool.shutdown(drain="none", timeout=PATIENCE)


@pytest.mark.stress
def test_workers_that_die_take_no_room_with_them(restless: None, monkeypatch: pytest.MonkeyPatch):
    """Workers struck at random outside of tasks: all jobs end, and every place is free again."""
    pool = Scheduler(4, limits={"a": Limit(concurrency=2), "b": Limit(concurrency=1)})
    whole = Core.claim
    strikes = iter(range(10_000))

    def claim(core: Core, now: float, place: object) -> Any:
        job = whole(core, now, place)
        if next(strikes) % 23 == 22:
            raise SystemError("struck")
        return job

    monkeypatch.setattr(Core, "claim", claim)
    jobs = [pool.options(limits=("a", ["a", "b"], "b")[n % 3], retries=5, backoff=0).submit(int) for n in range(200)]
    try:
        assert pool.wait_idle(20)
        monkeypatch.undo()
        pool.check()
        for job in jobs:
            job.exception()
        assert {info.in_use for info in pool.limits.values()} == {0}
    finally:
        pool.shutdown(drain="none", timeout=PATIENCE)

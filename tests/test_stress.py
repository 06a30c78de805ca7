"""Everything at once, seeded; and nothing at all: what a pool costs while it has nothing to do."""

import gc
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from tests.crowds import PATIENCE, together
from tests.support import rng, run_script, size
from threadsched import (
    FifoPolicy,
    JobStatus,
    OldestDuePolicy,
    PriorityPolicy,
    Retry,
    Scheduler,
    Stats,
    current_job,
)
from threadsched._runtime import Runtime
from threadsched.testing import FakeClock

SUBMITTERS = 16
WORKERS = 4
JOBS = size(600, 80)  # by each submitter


class Deliberate(Exception):
    """What failing tasks raise."""


def balanced(stats: Stats) -> bool:
    ended = stats.done + stats.failed + stats.cancelled
    return (
        stats.submitted == stats.pending + stats.running + ended
        and stats.pending == stats.delayed + stats.ready + stats.waiting
        and stats.running <= WORKERS
        and min(stats.delayed, stats.ready, stats.idle, stats.retries) >= 0
    )


@pytest.mark.proof
@pytest.mark.stress
@pytest.mark.parametrize("interval", [5e-3, 1e-5])
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_a_mixed_storm(queue: Any, interval: float, seed: int) -> None:
    """16 threads submit, delay, cancel, retry and look at once: each job ends once and as it should, the books balance
    at every look, and nothing is left."""
    starts: Counter[int] = Counter()
    told: Counter[int] = Counter()
    running = peak = 0
    lock = threading.Lock()
    storm = threading.Event()
    scheduler = Scheduler(WORKERS, queue=queue, history=50)

    def task(key: int, failures: int, asks: bool) -> int:
        nonlocal running, peak
        with lock:
            starts[key] += 1
            attempt = starts[key]
            running += 1
            peak = max(peak, running)
        try:
            me = current_job()
            assert me is not None
            assert me.attempts == attempt
            if asks:
                me.check_cancelled()
            if attempt <= failures:
                raise Deliberate(key)
            return key
        finally:
            with lock:
                running -= 1

    def tell(key: int) -> Any:
        def called(job: Any) -> None:
            assert job.done()
            with lock:
                told[key] += 1

        return called

    class Tracked:
        """A job with what is expected of it."""

        def __init__(self, key: int, job: Any, failures: int, retries: int) -> None:
            self.key, self.job, self.failures, self.retries = key, job, failures, retries
            self.cancelled = self.watched = False

    def submitter(number: int) -> list[Tracked]:
        random = rng(f"storm:{queue}:{interval}:{number}")
        made: list[Tracked] = []
        for index in range(JOBS):
            key = number * JOBS + index
            retries, failures = random.choice([(0, 0), (0, 0), (0, 1), (2, 0), (2, 1), (2, 3)])
            options: dict[str, Any] = {
                "priority": random.randrange(10),
                "delay": random.choice([0, 0, 0, random.random() * 0.01]),
                "retry": Retry(retries, backoff=random.choice([0, 0.0005, 0.002]), jitter=random.choice([0, 1])),
            }
            if random.random() < 0.2:
                options["id"] = f"job {key}"
            job = scheduler.options(**options).submit(task, key, failures, random.random() < 0.1)
            one = Tracked(key, job, failures, retries)
            made.append(one)
            if random.random() < 0.5:
                one.watched = True
                job.add_done_callback(tell(key))
            choice = random.random()
            if choice < 0.1:
                victim = random.choice(made)
                if scheduler.cancel(victim.job.id):
                    victim.cancelled = True
            elif choice < 0.13:
                random.choice(made).job.request_cancel()
            elif choice < 0.16:
                scheduler.status_of(random.choice(made).job.id)
            elif choice < 0.17:
                scheduler.policy = random.choice([PriorityPolicy(), FifoPolicy(), OldestDuePolicy()])
            elif choice < 0.2:
                random.choice(made).job.done() or random.choice(made).job.info()
        return made

    def watcher() -> int:
        looks = 0
        while not storm.is_set():
            stats = scheduler.stats()
            assert balanced(stats), stats
            looks += 1
            if looks % 200 == 0:
                scheduler.check()
        return looks

    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        watching = threading.Thread(target=watcher, daemon=True)
        watching.start()
        made = [one for some in together(*[lambda n=n: submitter(n) for n in range(SUBMITTERS)]) for one in some]
        assert scheduler.wait_idle(4 * PATIENCE)
    finally:
        storm.set()
        sys.setswitchinterval(before)
    watching.join(PATIENCE)
    assert len(made) == SUBMITTERS * JOBS
    for one in made:
        assert one.job.done(), (seed, one.job)
        if one.job.cancelled():
            continue
        assert not one.cancelled, (seed, one.job)
        error = one.job.exception(0)
        if one.failures <= one.retries and error is None:
            assert one.job.result(0) == one.key
            assert starts[one.key] == one.failures + 1 == one.job.attempts
        else:
            assert isinstance(error, Deliberate), (seed, one.job, error)
            assert starts[one.key] <= one.retries + 1
    assert peak <= WORKERS
    assert running == 0
    scheduler.check()
    report = scheduler.shutdown(timeout=PATIENCE)
    assert report
    assert told == Counter(one.key for one in made if one.watched)
    statuses = Counter(one.job.status for one in made)
    assert (report.done, report.failed, report.cancelled) == tuple(
        statuses[status] for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)
    )
    assert balanced(scheduler.stats())
    assert len(scheduler.snapshot()) <= 50
    del made
    gc.collect()


# ---------------------------------------------------------------- idle


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the workers that looked for work, one entry for each time that one did."""
    made: list[str] = []
    genuine = Runtime.turn

    def turn(self: Runtime, worker: Any, *rest: Any) -> Any:
        made.append(worker.name)
        return genuine(self, worker, *rest)

    monkeypatch.setattr(Runtime, "turn", turn)
    return made


def test_one_job_wakes_one_worker(turns: list[str]) -> None:
    """A submission to an idle pool of eight wakes a single worker, which looks twice: for the job and after it."""
    clock = FakeClock()
    with Scheduler(8, clock=clock) as scheduler:
        scheduler.start()
        clock.advance(0)
        turns.clear()
        for _ in range(20):
            scheduler.submit(int)
            clock.advance(0)
        assert len(turns) <= 3 * 20  # the job, nothing more, and once more with empty hands before it sleeps
        assert len(set(turns)) == 1


def test_a_timer_wakes_one_worker(turns: list[str]) -> None:
    """200 timers, due one after the other, wake the leader and at most one more worker each; the rest sleep on."""
    clock = FakeClock()
    with Scheduler(16, clock=clock) as scheduler:
        jobs = [scheduler.options(delay=1 + number).submit(int) for number in range(200)]
        clock.advance(0)
        turns.clear()
        clock.advance(200)
        assert all(job.done() for job in jobs)
        assert len(turns) <= 4 * 200  # all sixteen would make 3,200


def test_far_off_jobs_cost_nothing(turns: list[str]) -> None:
    """Submitting later and later jobs, and cancelling them, wakes nobody but for a new head."""
    clock = FakeClock()
    with Scheduler(4, clock=clock) as scheduler:
        head = scheduler.options(delay=10).submit(int)
        clock.advance(0)
        turns.clear()
        jobs = [scheduler.options(delay=20 + number).submit(int) for number in range(100)]
        for job in jobs:
            assert job.cancel()
        clock.advance(0)
        assert turns == []
        assert head.cancel()


@pytest.mark.subprocess
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the switches are counted in /proc")
def test_an_idle_pool_is_never_scheduled() -> None:
    """In real time: the threads of an idle pool, one of them watching a job due in an hour, make no context switch."""
    run_script("""
        import pathlib, threading, time
        from threadsched import Scheduler
        scheduler = Scheduler(8)
        gate = threading.Barrier(8)
        jobs = [scheduler.submit(gate.wait, 5) for _ in range(8)]
        far = scheduler.options(delay=3600).submit(int)
        for job in jobs:
            job.result(5)
        ours = [t.native_id for t in threading.enumerate() if t.name.startswith("threadsched")]
        assert len(ours) == 8

        def switches():
            lines = [line for number in ours
                     for line in pathlib.Path(f"/proc/self/task/{number}/status").read_text().splitlines()]
            return [int(line.split()[1]) for line in lines if "ctxt_switches" in line]

        deadline = time.monotonic() + 5
        before = switches()
        while True:   # until they have gone to sleep
            time.sleep(0.1)
            now = switches()
            if now == before:
                break
            before = now
            assert time.monotonic() < deadline
        time.sleep(1)
        assert switches() == before, (before, switches())
        far.cancel()
        scheduler.shutdown()
    """)

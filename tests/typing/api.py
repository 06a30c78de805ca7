"""What a type checker must accept and refuse. Checked by `make types`, never run.

Each `type: ignore` is a negative case: mypy warns about an ignore that is not needed, so a call that is
wrongly accepted fails the check as a wrongly refused one does.
"""

import asyncio
import concurrent.futures
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from threadsched import (
    AgingPolicy,
    FifoPolicy,
    Job,
    JobInfo,
    JobStatus,
    Limit,
    LimitInfo,
    OldestDuePolicy,
    PriorityPolicy,
    Schedule,
    Scheduler,
    ShutdownReport,
    Stats,
    Submitter,
)
from threadsched.testing import FakeClock, Ran, StepScheduler


def double(number: int) -> int:
    return 2 * number


def name_of(number: int, *, upper: bool = False) -> str:
    return str(number).upper() if upper else str(number)


def takes_option_names(delay: float, priority: str) -> bytes:
    return f"{delay}{priority}".encode()


def construction() -> None:
    Scheduler()
    Scheduler(4, policy=FifoPolicy(), clock=FakeClock(), name="mail", queue="indexed")
    Scheduler(workers=None, policy=OldestDuePolicy(), history=0, exit_timeout=2.5)
    Scheduler(max_pending=5, on_full="drop_lowest", queue="indexed", policy=AgingPolicy(0.5))
    Scheduler(on_full="wait")  # type: ignore[arg-type]
    StepScheduler(max_pending=5, on_full="block")  # type: ignore[arg-type]
    Scheduler("4")  # type: ignore[arg-type]
    Scheduler(queue="fast")  # type: ignore[arg-type]
    Scheduler(policy=FifoPolicy)  # type: ignore[arg-type]
    Scheduler(threads=4)  # type: ignore[call-arg]
    limited = Scheduler(limits={"api": Limit(concurrency=2), "mail": Limit(rate=10, per=timedelta(seconds=1))})
    assert_type(limited.limits["api"], LimitInfo)
    limited.options(limits="api").submit(double, 1)
    limited.options(limits=["api", "mail"]).submit(double, 1)
    limited.options(limits=1)  # type: ignore[arg-type]
    Scheduler(limits={"api": 2})  # type: ignore[dict-item]
    Limit(rate=1.5)  # type: ignore[arg-type]


def submission(scheduler: Scheduler) -> None:
    assert_type(scheduler.submit(double, 1), Job[int])
    assert_type(scheduler.submit(name_of, 1, upper=True), Job[str])
    assert_type(scheduler.submit(takes_option_names, delay=1, priority="x"), Job[bytes])
    assert_type(scheduler.submit(lambda: 1.5), Job[float])
    scheduler.submit(double, "one")  # type: ignore[call-overload]
    scheduler.submit(double)  # type: ignore[call-overload]
    scheduler.submit(double, 1, delay=5)  # type: ignore[arg-type, call-arg]
    scheduler.submit(name_of, 1, upper="yes")  # type: ignore[arg-type]
    scheduler.submit(1)  # type: ignore[call-overload]


def submission_with_options(scheduler: Scheduler) -> None:
    assert_type(scheduler.options(priority=1), Submitter)
    assert_type(scheduler.options(priority=1).submit(double, 1), Job[int])
    assert_type(scheduler.options(id="a", name="b", delay=5, retries=2).submit(name_of, 1), Job[str])
    assert_type(scheduler.options(delay=5).submit(takes_option_names, delay=1, priority="x"), Job[bytes])
    scheduler.options(delay=timedelta(minutes=1), priority=0.5, backoff=timedelta(seconds=1))
    scheduler.options(priority=1).submit(double, "one")  # type: ignore[call-overload]
    scheduler.options(priority=1).submit(double)  # type: ignore[call-overload]
    scheduler.options(priority="high")  # type: ignore[arg-type]
    scheduler.options(retries=1.5)  # type: ignore[arg-type]
    scheduler.options(prio=1)  # type: ignore[call-arg]


def mapping(scheduler: Scheduler) -> None:
    assert_type(scheduler.map(double, [1, 2]), Iterator[int])
    assert_type(scheduler.map(name_of, [1, 2], timeout=5), Iterator[str])
    assert_type(scheduler.options(priority=1).map(double, [1, 2]), Iterator[int])
    assert_type(scheduler.map(double, [1, 2], buffersize=3), Iterator[int])


def as_the_standard_library_has_it(scheduler: Scheduler) -> None:
    executor: concurrent.futures.Executor = scheduler
    submitter: concurrent.futures.Executor = scheduler.options(priority=1)
    future: concurrent.futures.Future[int] = scheduler.submit(double, 1)
    wrong: concurrent.futures.Future[str] = scheduler.submit(double, 1)  # type: ignore[call-overload]
    concurrent.futures.wait([future, scheduler.submit(double, 2)])
    for job in concurrent.futures.as_completed([scheduler.submit(double, 1)]):
        assert_type(job.result(), int)
    with Scheduler() as entered:
        assert_type(entered, Scheduler)
    del executor, submitter, wrong


async def fetch(number: int) -> str:
    return str(number)


def coroutines(scheduler: Scheduler, stepped: StepScheduler) -> None:
    assert_type(scheduler.submit(fetch, 1), Job[str])
    assert_type(scheduler.options(delay=1).submit(fetch, 1), Job[str])
    assert_type(stepped.submit(fetch, number=1), Job[str])
    assert_type(scheduler.submit(lambda: fetch(1)), Job[str])
    scheduler.submit(fetch, "one")  # type: ignore[call-overload]


async def in_asyncio(scheduler: Scheduler) -> None:
    assert_type(await asyncio.wrap_future(scheduler.submit(name_of, 1)), str)
    assert_type(await scheduler.submit(name_of, 1), str)
    assert_type(await scheduler.submit(fetch, 1), str)
    assert_type(await asyncio.wait_for(scheduler.submit(double, 1), 5), int)
    assert_type(await asyncio.gather(scheduler.submit(double, 1), scheduler.submit(fetch, 1)), tuple[int, str])
    async with Scheduler() as entered:
        assert_type(entered, Scheduler)


def jobs(job: Job[int]) -> None:
    assert_type(job.result(), int)
    assert_type(job.result(timeout=1.5), int)
    assert_type(job.exception(), BaseException | None)
    assert_type(job.id, str | int)
    assert_type(job.name, str)
    assert_type(job.status, JobStatus)
    assert_type(job.seq, int)
    assert_type(job.submitted_at, float)
    assert_type(job.run_at, float)
    assert_type(job.deadline, float | None)
    assert_type(job.set_priority(2), bool)
    assert_type(job.attempts, int)
    assert_type(job.cancel(), bool)
    assert_type(job.claim(), bool)
    assert_type(job.info(), JobInfo)
    job.status = JobStatus.DONE  # type: ignore[misc]
    job.attempts = 0  # type: ignore[misc]


def control(scheduler: Scheduler) -> None:
    assert_type(scheduler.cancel("a"), bool)
    assert_type(scheduler.cancel(1), bool)
    assert_type(scheduler.clear(), int)
    assert_type(scheduler.status_of("a"), JobStatus | None)
    assert_type(scheduler.get("a"), Job[Any] | None)
    assert_type(scheduler.closed, bool)
    assert_type(scheduler.wait_idle(), bool)
    assert_type(scheduler.wait_below(3, timeout=timedelta(seconds=1)), bool)
    scheduler.pause()
    scheduler.resume()
    scheduler.start()
    scheduler.check()
    scheduler.policy = FifoPolicy()
    scheduler.policy = PriorityPolicy()
    scheduler.policy = FifoPolicy  # type: ignore[assignment]
    scheduler.closed = True  # type: ignore[misc]


def shutting_down(scheduler: Scheduler) -> None:
    assert_type(scheduler.shutdown(), ShutdownReport)
    report = scheduler.shutdown(False, cancel_futures=True, timeout=5)
    assert_type(report.done, int)
    assert_type(report.running, tuple[JobInfo, ...])
    scheduler.shutdown(drain="due")
    scheduler.shutdown(drain="some")  # type: ignore[arg-type]


def looking_inside(scheduler: Scheduler) -> None:
    stats = scheduler.stats()
    assert_type(stats, Stats)
    assert_type(stats.pending, int)
    stats.pending = 1  # type: ignore[misc]
    assert_type(scheduler.snapshot(), list[JobInfo])


def stepping(clock: FakeClock) -> None:
    assert_type(clock.now(), float)
    clock.advance(10)
    clock.advance(10.0, wait=False, timeout=1)
    clock.jump(5)
    stepped = StepScheduler(2, policy=FifoPolicy(), clock=clock)
    assert_type(stepped.submit(double, 1), Job[int])
    assert_type(stepped.options(priority=1).submit(double, 1), Job[int])
    assert_type(stepped.tick(), list[Ran])
    assert_type(stepped.drain(step=1.0, limit=10), list[Ran])
    stepped.submit(double, "one")  # type: ignore[call-overload]


def recurring(scheduler: Scheduler, stepped: StepScheduler) -> None:
    assert_type(scheduler.every(10, double, 1), Schedule)
    assert_type(scheduler.every(timedelta(minutes=1), name_of, 1, upper=True), Schedule)
    assert_type(scheduler.cron("0 9 * * 1-5", double, 1), Schedule)
    assert_type(stepped.every(10, double, 1), Schedule)
    options = scheduler.options(mode="delay", missed="skip", start=-5, until=datetime.now(UTC), jitter=1, max_runs=3)
    assert_type(options.every(10, takes_option_names, delay=1, priority="x"), Schedule)
    schedule = scheduler.options(tz=UTC, max_failures=2, start=timedelta(0)).cron("* * * * *", double, 1)
    assert_type(schedule.next_run, float | None)
    assert_type(schedule.job, Job[Any] | None)
    assert_type(schedule.ended, str | None)
    assert_type(schedule.cancel(), bool)
    assert_type(scheduler.schedules(), list[Schedule])
    scheduler.every(10, double)  # type: ignore[call-arg]
    scheduler.every("10", double, 1)  # type: ignore[arg-type]
    scheduler.cron("* * * * *", double, "one")  # type: ignore[arg-type]
    scheduler.options(mode="fast")  # type: ignore[arg-type]
    scheduler.options(tz="UTC")  # type: ignore[arg-type]
    scheduler.options(at="noon")  # type: ignore[arg-type]

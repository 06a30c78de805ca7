"""What follows the wall clock: jobs with `at`, cron schedules, and a clock that somebody sets."""

import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.gates import PATIENCE, logged
from tests.producers import hasty_switches
from threadsched import JobStatus, OldestDuePolicy, Scheduler, current_job
from threadsched._wall import PERIOD
from threadsched.testing import FakeClock, StepScheduler

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Bench:
    """A scheduler on a fake clock that begins at noon, threaded or stepped."""

    def __init__(self, kind: Any, queue: str) -> None:
        self.clock = FakeClock(wall=NOON)
        self.s = kind(workers=1, clock=self.clock, queue=queue)
        self.stepped = kind is StepScheduler
        self.seen: list[str] = []

    def note(self) -> None:
        """Be a task that notes what the wall clock shows."""
        self.seen.append(datetime.fromtimestamp(self.clock.wall(), UTC).strftime("%d %H:%M:%S"))

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds, in steps of 30 without threads."""
        if not self.stepped:
            self.clock.advance(seconds)
            return
        end = self.clock.now() + seconds
        while True:
            while self.s.tick():
                continue
            if self.clock.now() >= end:
                return
            self.clock.jump(min(30.0, end - self.clock.now()))

    def step(self, seconds: float) -> None:
        """Set the wall clock, and let what is due run."""
        self.clock.step_wall(seconds)
        self.advance(0)


@pytest.fixture(
    params=[(kind, queue) for kind in (Scheduler, StepScheduler) for queue in ("lazy", "indexed")],
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Each kind of scheduler."""
    bench = Bench(*request.param)
    yield bench
    bench.s.check()
    bench.s.shutdown(cancel_futures=True)
    bench.s.check()


# -------------------------------------------------------------------- at


def test_at_runs_at_that_time(bench: Bench):
    """A job with `at` starts when the wall clock shows that, in whatever zone it is said; it is a delayed job."""
    job = bench.s.options(at=NOON + HOUR).submit(bench.note)
    bench.s.options(at=(NOON + 2 * HOUR).astimezone(timezone(timedelta(hours=5.5)))).submit(bench.note)
    assert job.run_at == 3600
    assert bench.s.stats().delayed == 2
    assert [reason.kind for reason in job.explain()] == ["delayed"]
    bench.advance(3599)
    assert bench.seen == []
    bench.advance(1)
    bench.advance(3600)
    assert bench.seen == ["01 13:00:00", "01 14:00:00"]


def test_at_in_the_past_means_now(bench: Bench):
    """A time that has gone by is no reason to drop a job."""
    job = bench.s.options(at=NOON - HOUR).submit(bench.note)
    bench.advance(0)
    assert job.status is JobStatus.DONE
    assert job.run_at == job.submitted_at


def test_f59_two_instants_of_the_repeated_hour():
    """fold=0 and fold=1 are an hour apart."""
    zone = ZoneInfo("America/Los_Angeles")
    clock = FakeClock(wall=datetime(2026, 11, 1, 0, 0, tzinfo=zone))
    with Scheduler(workers=1, clock=clock) as s:
        jobs = [s.options(at=datetime(2026, 11, 1, 1, 30, tzinfo=zone, fold=fold)).submit(pow, 2, 2) for fold in (0, 1)]
        assert [job.run_at for job in jobs] == [5400, 9000]
        clock.advance(9000)


def test_f59_intervals_ignore_civil_time():
    """Every second across both changes of the clocks is 3600 runs an hour."""
    zone = ZoneInfo("America/Los_Angeles")
    for day in ((2026, 3, 8), (2026, 11, 1)):
        clock = FakeClock(wall=datetime(*day, 1, 30, tzinfo=zone))
        s = StepScheduler(clock=clock)
        schedule = s.every(1, int)
        for _ in range(3600):
            clock.jump(1)
            s.tick()
        assert schedule.runs == 3600


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"at": datetime(2026, 6, 1)}, ValueError, "aware"),  # noqa: DTZ001 -- a naive one is the very case
        ({"at": 1_780_000_000}, TypeError, "at must be an aware datetime"),
        ({"at": "2026-06-01T12:00Z"}, TypeError, "at must be an aware datetime"),
        ({"at": NOON, "delay": 1}, TypeError, "delay"),
        ({"at": NOON, "delay": 0}, TypeError, "delay"),
    ],
)
def test_bad_times_are_refused(options: dict[str, Any], error: type[Exception], match: str):
    """A datetime without a zone is a ValueError, what is none a TypeError, and so is at beside delay."""
    with pytest.raises(error, match=match):
        StepScheduler().options(**options)


def test_f09_step_forward_brings_the_job(bench: Bench):
    """A job an hour ahead runs when the wall clock is set two hours forward, at once with the fake clock."""
    job = bench.s.options(at=NOON + HOUR).submit(bench.note)
    delayed = bench.s.options(delay=3600).submit(bench.note)
    bench.step(7200)
    assert job.status is JobStatus.DONE
    assert delayed.status is JobStatus.PENDING  # delays are on the clock that nobody sets
    bench.advance(3600)
    assert delayed.status is JobStatus.DONE


def test_f09_step_back_puts_it_off(bench: Bench):
    """Set back two hours, the job waits two hours longer; it is neither early nor lost."""
    job = bench.s.options(at=NOON + HOUR).submit(bench.note)
    bench.advance(1800)
    bench.step(-7200)
    assert job.run_at == 3600 + 7200
    bench.advance(3600)
    assert job.status is JobStatus.PENDING
    bench.advance(5400)
    assert bench.seen == ["01 13:00:00"]


def test_steps_there_and_back_cancel_out(bench: Bench):
    """Many jobs, many steps: each runs once, at its own time on the wall clock."""
    jobs = [bench.s.options(at=NOON + timedelta(minutes=5 * number)).submit(bench.note) for number in range(1, 40)]
    doomed = bench.s.options(at=NOON + HOUR).submit(bench.note)
    for step in (1000, -5000, 4000):
        bench.step(step)
        bench.s.check()
    assert doomed.cancel()
    bench.advance(3600 * 4)
    assert all(job.status is JobStatus.DONE for job in jobs)
    assert len(bench.seen) == 39
    assert not bench.s._runtime.wall.busy


def test_retry_of_a_timed_job_counts_on_the_clock(bench: Bench):
    """Once started, a job with `at` is like any other: its backoff does not follow the wall clock."""
    calls: list[float] = []

    def body() -> None:
        calls.append(bench.clock.now())
        if len(calls) == 1:
            raise ValueError

    job = bench.s.options(at=NOON + HOUR, retries=1, backoff=60).submit(body)
    bench.advance(3600)
    bench.step(-7200)
    bench.advance(60)
    assert calls == [3600, 3660]
    assert job.status is JobStatus.DONE


def test_re_timed_job_is_ranked_by_its_new_time():
    """A policy that ranks by run_at sees the time as it is after the step."""
    clock = FakeClock(wall=NOON)
    s = StepScheduler(clock=clock, policy=OldestDuePolicy())
    order: list[str] = []
    s.options(at=NOON + timedelta(seconds=10)).submit(order.append, "at")
    s.options(delay=20).submit(order.append, "delay")
    clock.step_wall(-20)
    s.tick()
    clock.jump(40)
    s.tick()
    s.tick()
    assert order == ["delay", "at"]


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shutdown_treats_it_as_delayed(drain: Any):
    """Under "all" a timed job still runs at its time; under the others it is cancelled."""
    clock = FakeClock(wall=NOON)
    s = Scheduler(workers=1, clock=clock)
    job = s.options(at=NOON + HOUR).submit(pow, 2, 3)
    s.shutdown(wait=False, drain=drain)
    clock.advance(3600)
    s.shutdown()
    assert job.status is (JobStatus.DONE if drain == "all" else JobStatus.CANCELLED)


# -------------------------------------------------------------------- cron


def test_cron_runs_on_the_wall_clock(bench: Bench):
    """Every ten minutes, in UTC by default; next_run is on the scheduler's clock, next_due on the wall."""
    schedule = bench.s.cron("*/10 * * * *", bench.note)
    assert schedule.next_run == 600
    assert schedule.next_due == NOON + timedelta(minutes=10)
    bench.advance(1800)
    assert bench.seen == ["01 12:10:00", "01 12:20:00", "01 12:30:00"]
    assert "cron '*/10 * * * *'" in repr(schedule)


def test_cron_start_until_and_max_runs(bench: Bench):
    """start may be a time itself, until counts, and both may be datetimes."""
    schedule = bench.s.options(start=NOON + HOUR, until=NOON + 3 * HOUR).cron("0 * * * *", bench.note)
    few = bench.s.options(max_runs=1, start=0).cron("0 * * * *", int)
    bench.advance(5 * 3600)
    assert bench.seen == ["01 13:00:00", "01 14:00:00", "01 15:00:00"]
    assert schedule.ended == "until"
    assert few.ended == "max_runs"
    with pytest.raises(ValueError, match="until"):
        bench.s.options(until=10).cron("0 * * * *", bench.note)


def test_f09_cron_step_forward_is_one_late_run(bench: Bench):
    """Set ten years ahead, a schedule of every minute has one late run and goes on from there."""
    schedule = bench.s.cron("* * * * *", bench.note)
    bench.advance(60)
    bench.step(315_360_000.0)
    assert len(bench.seen) == 2
    bench.advance(120)
    assert len(bench.seen) == 4
    assert schedule.next_run == 240


@pytest.mark.parametrize("missed", ["coalesce", "burst"])
def test_f09_cron_step_forward_is_no_flood(bench: Bench, missed: Any):
    """What a step jumps over is one run, also where lateness would be made up for run by run."""
    bench.s.options(missed=missed).cron("* * * * *", bench.note)
    bench.step(7 * 86400)
    assert len(bench.seen) == 1


def test_f09_cron_step_forward_skip(bench: Bench):
    """Under "skip" what a step jumps over is left out."""
    schedule = bench.s.options(missed="skip").cron("0 * * * *", bench.note)
    bench.step(3 * 3600 + 60)
    assert bench.seen == []
    assert schedule.skipped == 3
    bench.advance(3600)
    assert bench.seen == ["01 16:00:00"]


def test_f09_cron_step_back_does_not_freeze(bench: Bench):
    """Set back two hours, a schedule of every minute goes on at once; so it does after ten years back."""
    bench.s.cron("* * * * *", bench.note)
    bench.advance(60)
    for back in (-7230, -315_360_000):
        before = len(bench.seen)
        bench.step(back)
        bench.advance(180)
        assert len(bench.seen) == before + 3


def test_small_step_back_repeats_nothing(bench: Bench):
    """Set back by seconds, as NTP does, a schedule of every minute does not run the same minute again."""
    bench.s.cron("* * * * *", bench.note)
    bench.advance(60)
    bench.step(-1)
    bench.advance(60)
    assert bench.seen == ["01 12:01:00"]
    bench.advance(1)
    assert bench.seen == ["01 12:01:00", "01 12:02:00"]


def test_f09_fixed_hour_does_not_run_twice_after_a_step_back(bench: Bench):
    """A fixed hour that ran today waits for tomorrow when the clock is set back past it, and not for years."""
    bench.s.cron("0 13 * * *", bench.note)
    bench.advance(3660)
    assert bench.seen == ["01 13:00:00"]
    bench.step(-7200)
    bench.advance(86400)
    assert bench.seen == ["01 13:00:00"]
    bench.advance(7200)
    assert bench.seen == ["01 13:00:00", "02 13:00:00"]
    bench.step(-10 * 86400)
    bench.advance(86400)
    assert len(bench.seen) == 3


def test_cron_missed_times_are_one_late_run(bench: Bench):
    """A machine that slept through ten times runs once, or once for each, or not, as the rule says."""
    counts = {}
    for missed in ("coalesce", "skip", "burst"):
        calls: list[int] = []
        bench.s.options(missed=missed).cron("*/10 * * * *", calls.append, 1)
        counts[missed] = calls
    bench.clock.jump(6060)
    bench.advance(0)
    assert {missed: len(calls) for missed, calls in counts.items()} == {"coalesce": 1, "skip": 0, "burst": 10}


# -------------------------------------------------------------------- the watch


class Settable:
    """A clock of a user's: real time, and a wall clock that can be set, which nobody tells anybody of."""

    def __init__(self) -> None:
        self.moved = self.ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self.moved

    def wall(self) -> float:
        return 1e9 + self.now() + self.ahead


def test_step_is_noticed_within_the_period():
    """Where nobody tells of a step the leader looks every 30 s, while there is something to look for."""
    clock = Settable()
    with Scheduler(workers=1, clock=clock) as s:
        assert s._runtime.next_due() is None
        now = clock.now()
        job = s.options(at=datetime.fromtimestamp(clock.wall() + 3600, UTC)).submit(pow, 2, 3)
        due = s._runtime.next_due()
        assert due is not None
        assert now <= due - PERIOD <= clock.now()
        clock.ahead = 7200.0
        clock.moved = PERIOD
        s._runtime.look_again()
        assert job.result(PATIENCE) == 8
        s.check()
        clock.moved += PERIOD
        s._runtime.look_again()
        s.submit(pow, 2, 3).result(PATIENCE)
        assert s._runtime.next_due() is None  # nothing left to look for


def test_step_is_noticed_behind_a_closed_door():
    """A shutdown that runs delayed jobs at their time goes on to look, as long as there is such a job."""
    clock = Settable()
    s = Scheduler(workers=1, clock=clock)
    job = s.options(at=datetime.fromtimestamp(clock.wall() + 3600, UTC)).submit(pow, 2, 3)
    s.shutdown(wait=False)
    clock.ahead = 7200.0
    clock.moved = PERIOD
    s._runtime.look_again()
    assert job.result(PATIENCE) == 8
    assert s.shutdown(timeout=PATIENCE)
    s.check()


def test_late_reading_does_not_undo_a_step():
    """A thread that read the wall clock before a step, and comes to say so after it was seen, looks again."""

    class Meanwhile(Settable):
        then: Any = None

        def wall(self) -> float:
            before = super().wall()
            then, self.then = self.then, None
            if then is not None:
                then()
            return before

    clock = Meanwhile()
    with Scheduler(workers=1, clock=clock) as s:
        job = s.options(at=datetime.fromtimestamp(clock.wall() + 3600, UTC)).submit(pow, 2, 3)
        run_at = job.run_at

        def step() -> None:
            clock.ahead = 600.0
            s._runtime.look_at_wall()

        clock.then = step
        s._runtime.look_at_wall()
        assert job.run_at == pytest.approx(run_at - 600, abs=0.1)
        job.cancel()


def test_small_differences_are_no_step():
    """Two clocks that are read one after the other differ a little; nothing is re-timed for that."""
    clock = Settable()
    with Scheduler(workers=1, clock=clock) as s:
        job = s.options(at=datetime.fromtimestamp(clock.wall() + 3600, UTC)).submit(pow, 2, 3)
        run_at = job.run_at
        clock.ahead = 0.01
        s._runtime.look_at_wall()
        assert job.run_at == run_at
        clock.ahead = 0.2
        s._runtime.look_at_wall()
        assert job.run_at == pytest.approx(run_at - 0.2, abs=0.02)
        job.cancel()


def test_clock_without_wall_means_the_system_clock():
    """A user's clock that has now() only is joined by time.time; so is the default clock."""

    class Bare:
        def now(self) -> float:
            return 0.0

    s = StepScheduler(clock=Bare())
    job = s.options(at=datetime.now(UTC) + HOUR).submit(int)
    assert job.run_at == pytest.approx(3600, abs=1)
    with Scheduler(workers=1) as real:
        soon = real.options(at=datetime.now(UTC) + timedelta(milliseconds=20)).submit(time.time)
        began = time.time()
        assert soon.result(PATIENCE) >= began


def test_wall_clock_that_raises_is_survived():
    """A wall clock that raises is logged; what was timed stays timed."""

    class Broken(Settable):
        def wall(self) -> float:
            if self.ahead:
                raise OSError("no battery")
            return super().wall()

    clock = Broken()
    with logged() as records, Scheduler(workers=1, clock=clock) as s:
        job = s.options(at=datetime.fromtimestamp(clock.wall() + 3600, UTC)).submit(pow, 2, 3)
        run_at = job.run_at
        clock.ahead = 1.0
        s._runtime.look_at_wall()
        assert job.run_at == run_at
        assert any("no battery" in text for text in records.of("ERROR"))
        job.cancel()


def test_time_zone_that_raises_ends_the_schedule():
    """Without a next time there is no next run: the schedule ends, and says so."""

    class Failing(tzinfo):
        broken = False

        def utcoffset(self, moment: datetime | None) -> timedelta:
            if self.broken:
                raise LookupError("no such zone any more")
            return timedelta(0)

        def dst(self, moment: datetime | None) -> timedelta:
            return timedelta(0)

    zone = Failing()
    clock = FakeClock(wall=NOON)
    with logged() as records, Scheduler(workers=1, clock=clock) as s:
        schedule = s.options(tz=zone).cron("* * * * *", int)
        zone.broken = True
        clock.advance(300)
        assert schedule.ended == "error"
        assert any("no such zone" in text for text in records.of("ERROR"))
        s.check()


def test_steps_race_with_submissions_and_cancels():
    """While the wall clock jumps about, timed jobs come and go; each ends once and the audit holds."""
    clock = FakeClock(wall=NOON)
    with hasty_switches(), Scheduler(workers=2, clock=clock) as s:
        jobs: list[Any] = []
        stop = threading.Event()

        def submit() -> None:
            draw = random.Random(1)
            for _ in range(300):
                at = NOON + timedelta(seconds=draw.randrange(-100, 4000))
                jobs.append(s.options(at=at).submit(int))
                if draw.random() < 0.3:
                    jobs[draw.randrange(len(jobs))].cancel()
            stop.set()

        thread = threading.Thread(target=submit)
        thread.start()
        while not stop.is_set():
            clock.step_wall(random.choice([-50, 50]))
            s.check()
        thread.join(PATIENCE)
        clock.step_wall(10_000)
        clock.advance(0)
        assert all(job.done() for job in jobs)
        s.check()
        assert not s._runtime.wall.busy


def test_step_while_every_worker_is_inside_a_task():
    """A step is followed by whoever sees it: no worker has to come home for the fake clock to go on."""
    clock = FakeClock(wall=NOON)
    seen: list[float] = []
    with Scheduler(workers=1, clock=clock) as s:
        schedule = s.cron("* * * * *", lambda: seen.append(clock.now()))

        def sleeps() -> None:
            job = current_job()
            assert job is not None
            job.sleep(100)

        s.submit(sleeps)
        clock.advance(0)
        clock.step_wall(-10)
        assert schedule.next_run == 10  # noon comes again
        clock.advance(99)
        assert seen == []
        clock.advance(1)
        assert seen == [100]
        schedule.cancel()

"""Recurring jobs: when they run, that they never overlap, and how they end."""

import contextvars
import functools
import gc
import itertools
import os
import pickle
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, end_of, in_thread, logged, neighbours, occupied
from tests.producers import hasty_switches
from tests.support import run_script
from threadsched import FifoPolicy, JobStatus, Schedule, Scheduler, SchedulerClosedError, current_job
from threadsched.testing import FakeClock, StepScheduler


class Bench:
    """A scheduler on a fake clock, threaded or stepped, moved alike."""

    def __init__(self, kind: Any, queue: str, workers: int) -> None:
        self.clock = FakeClock()
        self.s = kind(workers=workers, clock=self.clock, queue=queue)
        self.stepped = kind is StepScheduler

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds; every due time on the way is met."""
        if not self.stepped:
            self.clock.advance(seconds)
            return
        end = self.clock.now() + seconds
        self.settle()
        while True:
            due = self.s._runtime.next_due()
            if due is None or due > end:
                break
            self.clock.jump(max(due - self.clock.now(), 0.0))
            self.settle()
        self.clock.jump(max(end - self.clock.now(), 0.0))  # a task may have taken longer
        self.settle()

    def jump(self, seconds: float) -> None:
        """Move on in one leap, then let what is due run."""
        self.clock.jump(seconds)
        self.settle()

    def settle(self) -> None:
        """Let what is due run."""
        if not self.stepped:
            self.clock.advance(0)
            return
        while self.s.tick():
            continue

    def halt(self, paused: bool) -> None:
        """Pause or resume the scheduler."""
        runtime = self.s._runtime
        with runtime.lock:
            runtime.core.pause(paused)
        runtime.look_again()


@pytest.fixture(
    params=[(kind, queue) for kind in (Scheduler, StepScheduler) for queue in ("lazy", "indexed")],
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Each kind of scheduler with two workers."""
    bench = Bench(*request.param, workers=2)
    yield bench
    bench.s.check()
    bench.s.shutdown(cancel_futures=True)
    bench.s.check()


class Log:
    """A task that notes when it starts, and takes some time of the clock."""

    def __init__(self, bench: Bench, *takes: float) -> None:
        self.bench = bench
        self.takes = iter(takes)
        self.starts: list[float] = []

    def __call__(self) -> None:
        self.starts.append(self.bench.clock.now())
        # The clock goes on while the task runs: nothing else happens on it meanwhile.
        self.bench.clock._now += next(self.takes, 0.0)


# -------------------------------------------------------------------- when


def test_first_run_comes_after_one_interval(bench: Bench):
    """every(10) runs at 10, 20, 30; each run is a job of its own."""
    log = Log(bench)
    schedule = bench.s.every(10, log)
    assert schedule.next_run == 10
    bench.advance(35)
    assert log.starts == [10, 20, 30]
    assert (schedule.runs, schedule.failures, schedule.skipped) == (3, 0, 0)
    assert (schedule.last_run, schedule.next_run, schedule.next_due) == (30, 40, 40)
    assert bench.s.stats().done == 3
    assert schedule.ended is None


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [0, 10, 20]),
        (5, [5, 15, 25]),
        (timedelta(seconds=3), [3, 13, 23]),
        (-25, [5, 15, 25]),
        (-20, [0, 10, 20]),
        (timedelta(seconds=-1), [9, 19, 29]),
    ],
)
def test_f45_start_is_where_the_grid_begins(bench: Bench, start: Any, expected: list[float]):
    """start=0 runs now; a start in the past anchors the grid there and runs at its next point."""
    log = Log(bench)
    schedule = bench.s.options(start=start).every(10, log)
    bench.advance(29)
    assert log.starts == expected
    assert schedule.skipped == 0


def test_f45_start_may_be_a_datetime(bench: Bench):
    """An aware datetime is turned into a reading of the clock once; the grid then ignores the wall clock."""
    log = Log(bench)
    start = datetime.fromtimestamp(bench.clock.wall() + 4, UTC)
    bench.s.options(start=start).every(10, log)
    bench.clock.step_wall(7200)
    bench.advance(15)
    assert log.starts == pytest.approx([4, 14])


def test_rec_01_f42_fixed_rate_does_not_drift(bench: Bench):
    """Every 60 s with runs of 12 s: the starts are on the grid exactly, for a hundred runs."""
    log = Log(bench, *itertools.repeat(12.0, 100))
    bench.s.options(start=0).every(60, log)
    bench.advance(99 * 60)
    assert log.starts == [60.0 * number for number in range(100)]


def test_rec_02_f42_fixed_delay_counts_from_the_end(bench: Bench):
    """mode="delay" starts an interval after the end of the run before, the first at start."""
    log = Log(bench, *itertools.repeat(12.0, 100))
    bench.s.options(start=0, mode="delay").every(60, log)
    bench.advance(8 * 72)
    assert log.starts == [72.0 * number for number in range(9)]


@pytest.mark.parametrize(
    ("missed", "expected", "skipped"),
    [
        ("coalesce", [10, 35, 40, 50], 1),  # 20 and 30 are one late run
        ("skip", [10, 40, 50], 2),
        ("burst", [10, 35, 35, 40, 50], 0),
    ],
)
def test_f43_what_a_long_run_overruns(bench: Bench, missed: Any, expected: list[float], skipped: int):
    """A run of 25 s at an interval of 10: one late run, none, or all, and then the grid again."""
    log = Log(bench, 25.0)
    schedule = bench.s.options(missed=missed).every(10, log)
    bench.advance(50)
    assert log.starts == expected
    assert schedule.skipped == skipped
    assert schedule.next_run == 60


@pytest.mark.parametrize(("missed", "expected"), [("coalesce", [185]), ("skip", []), ("burst", [185, 185, 185])])
def test_rec_05_f01_what_a_jump_passes_over(bench: Bench, missed: Any, expected: list[float]):
    """Due every minute and 3 min 5 s behind: one run, none, or all at once; the next is in 55 s."""
    log = Log(bench)
    schedule = bench.s.options(missed=missed).every(60, log)
    bench.jump(185)
    assert log.starts == expected
    assert schedule.next_run == 240
    assert schedule.runs + schedule.skipped == 3
    bench.advance(55)
    assert log.starts == [*expected, 240]


def test_f43_a_thousand_random_overruns(bench: Bench):
    """However long the runs take, the schedule goes on and each start is on the grid or at the end of a run."""
    draw = random.Random(7)
    takes = [draw.choice([0.0, 1.0, 9.0, 10.0, 11.0, 35.0]) for _ in range(1_000)]
    log = Log(bench, *takes)
    schedule = bench.s.every(10, log)
    while len(log.starts) < len(takes):
        bench.advance(100)
    ends = {start + took for start, took in zip(log.starts, takes, strict=False)}
    assert all(start % 10 == 0 or start in ends for start in log.starts)
    assert schedule.ended is None
    assert schedule.skipped > 0


def test_f09_ten_years_are_one_late_run(bench: Bench):
    """A leap of ten years costs one late run; so does the wall clock's, which intervals ignore."""
    log = Log(bench)
    schedule = bench.s.every(10, log)
    for step in (-7200.0, 315_360_000.0):
        before = len(log.starts)
        bench.clock.step_wall(step)
        bench.advance(30)
        assert len(log.starts) == before + 3
    bench.jump(315_360_001)
    assert len(log.starts) == 7
    assert schedule.next_run == 315_360_070


def test_dly_06_jitter_moves_the_run_and_not_the_plan(bench: Bench):
    """Runs lie within the jitter of the grid, the seed repeats them, and next_due shows where the grid is."""
    seen = []
    for _ in range(2):
        random.seed(11)
        log = Log(bench)
        schedule = bench.s.options(jitter=3, max_runs=20, start=10).every(10, log)
        base = schedule.next_due
        assert isinstance(base, float)
        assert abs((schedule.next_run or 0) - base) <= 3
        bench.advance(250)
        assert schedule.ended == "max_runs"
        moves = [start - base - 10 * number for number, start in enumerate(log.starts)]
        assert all(abs(move) <= 3 for move in moves)
        assert len({round(move, 6) for move in moves}) > 10
        seen.append([round(move, 6) for move in moves])
    assert seen[0] == seen[1]


def test_dly_06_jitter_larger_than_the_interval(bench: Bench):
    """A jitter that is too large still leaves each run short of the next slot."""
    random.seed(3)
    log = Log(bench)
    schedule = bench.s.options(jitter=1000, start=10).every(10, log)
    bench.advance(1000)
    assert schedule.skipped == 0
    assert all(abs(start - 10 * number) < 10 for number, start in enumerate(log.starts, 1))


# -------------------------------------------------------------------- ends


def test_rec_04_until_is_the_last_time(bench: Bench):
    """Runs at start, start + i, ... up to the end, which counts; then the schedule has ended."""
    log = Log(bench)
    schedule = bench.s.options(start=5, until=25).every(10, log)
    bench.advance(25)
    assert log.starts == [5, 15, 25]
    assert schedule.ended == "until"
    assert schedule.next_run is None
    assert bench.s.schedules() == []
    bench.advance(100)
    assert len(log.starts) == 3


def test_rec_04_end_before_the_first_run_is_refused(bench: Bench):
    """An interval that is not positive, or an end before the first run, is a ValueError."""
    for seconds in (0, -1, float("nan"), float("inf"), 1e-7):
        with pytest.raises(ValueError, match="seconds"):
            bench.s.every(seconds, print)
    with pytest.raises(ValueError, match=r"until must not .* until 9\.0 .*, only at 10\.0"):
        bench.s.options(until=9).every(10, print)
    with pytest.raises(ValueError, match="until"):
        bench.s.options(start=20, until=19).every(10, print)
    assert bench.s.schedules() == []


def test_max_runs_ends_the_schedule(bench: Bench):
    """After max_runs there is no further run."""
    log = Log(bench)
    schedule = bench.s.options(max_runs=2).every(10, log)
    bench.advance(100)
    assert log.starts == [10, 20]
    assert (schedule.runs, schedule.ended) == (2, "max_runs")
    assert "ended: max_runs" in repr(schedule)


class Failing:
    """Raises in the runs whose numbers are given, counted from 1."""

    def __init__(self, *numbers: int, error: Callable[[], BaseException] = lambda: ValueError("bad")) -> None:
        self.numbers = numbers
        self.error = error
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls in self.numbers:
            raise self.error()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError])
def test_rec_03_f05_f12_one_failure_is_reported_and_the_next_run_comes(bench: Bench, error: type[BaseException]):
    """A run that raises, whatever it raises, is logged once, and the schedule goes on."""
    task = Failing(2, error=error)
    with logged() as records:
        schedule = bench.s.every(1, task)
        bench.advance(5)
        gc.collect()
    assert task.calls == 5
    assert [error.__name__ in text for text in records.of("ERROR")] == [True]
    assert (schedule.runs, schedule.failures, schedule.ended) == (5, 1, None)


def test_f05_max_failures_in_a_row_end_it_visibly(bench: Bench):
    """Failures in a row count, a success begins anew; the end is logged and shows in the handle."""
    task = Failing(1, 3, 4, 5, 6)
    with logged() as records:
        schedule = bench.s.options(max_failures=3, name="poll").every(1, task)
        bench.advance(10)
        gc.collect()
    assert task.calls == 5
    assert (schedule.failures, schedule.ended) == (4, "max_failures")
    assert len([text for text in records.of("ERROR") if "'poll' ends" in text]) == 1
    assert len(records.of("ERROR")) == 5


def test_can_07_cancelled_schedule_runs_no_more(bench: Bench):
    """A schedule that ran several times and is cancelled is over; only the first cancel did it."""
    log = Log(bench)
    schedule = bench.s.every(10, log)
    bench.advance(30)
    assert schedule.cancel() is True
    assert schedule.cancel() is False
    assert schedule.ended == "cancelled"
    bench.advance(100)
    assert len(log.starts) == 3
    assert schedule.run_now() is False
    schedule.pause()
    schedule.resume()
    assert schedule.ended == "cancelled"


def test_can_07_cancel_takes_a_pending_run_along(bench: Bench):
    """A run that is due and waits for a worker is cancelled with its schedule."""
    bench.halt(True)
    log = Log(bench)
    schedule = bench.s.every(10, log)
    schedule.run_now()
    job = schedule.job
    assert job is not None
    assert job.status is JobStatus.PENDING
    assert schedule.cancel()
    assert job.cancelled()
    bench.halt(False)
    bench.advance(50)
    assert log.starts == []


def test_cancelling_one_run_leaves_the_schedule(bench: Bench):
    """A run that is cancelled before its start counts as skipped; the next comes."""
    log = Log(bench)
    going = bench.s.every(10, log)
    bench.halt(True)
    going.run_now()
    job = going.job
    assert job is not None
    assert job.cancel()
    bench.halt(False)
    bench.advance(20)
    assert log.starts == [10, 20]
    assert (going.runs, going.skipped) == (2, 0)


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shd_05_every_shutdown_drops_what_is_armed(bench: Bench, drain: str):
    """The waiting run is dropped under every mode, nothing was pending, and the handle says why."""
    log = Log(bench)
    schedule = bench.s.every(10, log)
    bench.advance(10)
    report = bench.s.shutdown(drain=drain)
    assert report
    assert (report.done, report.cancelled, report.pending) == (1, 0, 0)
    assert schedule.ended == "shutdown"
    assert schedule.next_run is None
    assert not schedule.run_now()
    with pytest.raises(SchedulerClosedError):
        bench.s.every(10, log)


@pytest.mark.parametrize("drain", ["all", "due", "none"])
def test_shd_05_run_under_way_ends_as_the_mode_says(drain: Any):
    """The run that runs while the door closes is finished, and no other follows."""
    clock, gate = FakeClock(), Gate()
    with Scheduler(workers=2, clock=clock) as s:
        schedule = s.every(10, gate)
        clock.advance(10, wait=False)
        gate.await_start()
        s.shutdown(wait=False, drain=drain)
        gate.open()
        s.shutdown()
        assert (schedule.runs, schedule.ended) == (1, "shutdown")


# -------------------------------------------------------------------- no overlap


class Narrow:
    """A task that notices company."""

    def __init__(self) -> None:
        self.inside = self.most = self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, body: Callable[[], object] = lambda: None) -> None:
        with self.lock:
            self.inside += 1
            self.calls += 1
            self.most = max(self.most, self.inside)
        try:
            body()
        finally:
            with self.lock:
                self.inside -= 1


def test_f11_f48_retries_belong_to_their_run(bench: Bench):
    """The next run is planned when the last retry has ended: attempts of one run are all before the next."""
    order: list[int] = []

    def body() -> None:
        job = current_job()
        assert job is not None
        order.append(job.seq)
        raise ValueError

    schedule = bench.s.options(retries=3, backoff=3).every(10, body)
    with logged():
        bench.advance(60)  # each run takes 3 + 6 + 12 = 21 s
        bench.s.shutdown(cancel_futures=True)
        gc.collect()
    assert order == sorted(order)
    assert [len(list(group)) for _, group in itertools.groupby(order)] == [4, 4, 2]
    assert schedule.failures >= 2


def test_f11_run_now_waits_for_the_run_under_way():
    """A run asked for while one runs comes right after it, once, however often it was asked for."""
    clock, gate, narrow = FakeClock(), Gate(), Narrow()
    with Scheduler(workers=8, clock=clock) as s:
        schedule = s.every(10, lambda: narrow(gate))
        clock.advance(10, wait=False)
        gate.await_start()
        for _ in range(5):
            assert schedule.run_now()
        assert s.stats().running == 1
        assert s.stats().pending == 0
        gate.open()
        clock.advance(5)
        assert (narrow.calls, narrow.most) == (2, 1)
        assert schedule.next_run == 20
        clock.advance(5)
        assert narrow.calls == 3
        s.check()


def test_run_now_leaves_the_plan(bench: Bench):
    """A run out of turn is at once and moves nothing; with mode="delay" the next interval counts from it."""
    log, other = Log(bench), Log(bench)
    rate = bench.s.every(10, log)
    delay = bench.s.options(mode="delay").every(10, other)
    bench.advance(4)
    assert rate.run_now()
    assert delay.run_now()
    bench.settle()
    bench.advance(26)
    assert log.starts == [4, 10, 20, 30]
    assert other.starts == [4, 14, 24]


def test_f11_race_of_everything_at_once(rng: random.Random):
    """Threads that ask, pause, resume and cancel runs at random never make two runs of a schedule meet."""
    narrow, failing = Narrow(), Failing(*range(1, 10_000, 3))
    with hasty_switches():
        with logged(), Scheduler(workers=4) as s:
            schedule = s.options(retries=1, backoff=0).every(0.0005, narrow, failing)
            start = threading.Barrier(4)

            def disturb(seed: float) -> None:
                draw = random.Random(seed)
                start.wait(PATIENCE)
                for _ in range(150):
                    what = draw.randrange(4)
                    if what == 0:
                        schedule.run_now()
                    elif what == 1:
                        schedule.pause()
                        schedule.resume()
                    elif what == 2:
                        job = schedule.job
                        if job is not None:
                            job.cancel()
                    else:
                        s.check()

            seeds = [rng.random() for _ in range(4)]
            for join in [in_thread(functools.partial(disturb, seed)) for seed in seeds]:
                join()
            calls = narrow.calls
            done = threading.Event()
            s.options(delay=0.05).submit(done.set)
            assert done.wait(PATIENCE)
            assert narrow.most == 1
            assert narrow.calls > calls  # it still goes on
            assert schedule.ended is None
        gc.collect()


# -------------------------------------------------------------------- pause


def test_pau_05_f44_paused_schedule_keeps_its_time(bench: Bench):
    """No run while paused; resumed, the due one runs, once; neither call moved the time."""
    log = Log(bench)
    schedule = bench.s.every(10, log)
    schedule.pause()
    schedule.pause()
    assert schedule.paused
    assert schedule.next_run == 10
    bench.advance(35)
    assert log.starts == []
    assert schedule.next_run == 10
    schedule.resume()
    bench.settle()
    assert log.starts == [35]
    assert schedule.next_run == 40
    bench.advance(5)
    assert log.starts == [35, 40]


def test_pau_05_run_that_pauses_its_own_schedule(bench: Bench):
    """Paused from inside a run, the schedule has no further one until it is resumed."""
    log: list[float] = []
    schedules: list[Schedule] = []

    def body() -> None:
        log.append(bench.clock.now())
        schedules[0].pause()

    schedules.append(bench.s.every(10, body))
    bench.advance(50)
    assert log == [10]
    assert schedules[0].next_run == 20
    schedules[0].resume()
    bench.settle()
    assert log == [10, 50]


def test_pau_05_pending_run_is_held_back():
    """A run that is due and has not started when its schedule is paused waits for resume, and then runs."""
    bench = Bench(StepScheduler, "lazy", 1)
    log = Log(bench)
    schedule = bench.s.options(priority=9).every(10, log)
    bench.s.options(delay=10, priority=0).submit(print)
    bench.clock.jump(10)
    bench.s.tick()
    job = schedule.job
    assert job is not None
    schedule.pause()
    bench.settle()
    assert [reason.kind for reason in job.explain()] == ["paused"]
    assert bench.s.stats().waiting == 1
    bench.s.check()
    schedule.resume()
    bench.settle()
    assert log.starts == [10]
    assert schedule.next_run == 20
    bench.s.check()


def test_pau_05_held_run_ends_with_a_shutdown():
    """A run that a pause holds back is an ordinary pending job when the door closes: it runs."""
    clock, log = FakeClock(), []
    s = Scheduler(workers=1, clock=clock)
    schedule = s.every(10, log.append, 1)
    with occupied(s):
        clock.advance(10, wait=False)
        schedule._series.kick(s._runtime)  # as a worker would that comes by
        job = schedule.job
        assert job is not None
        schedule.pause()
    clock.advance(0)
    assert log == []
    assert [reason.kind for reason in job.explain()] == ["paused"]
    assert s.stats().waiting == 1
    s.check()
    assert s.shutdown()
    assert log == [1]


def test_f44_scheduler_pause_leaves_one_catch_up(bench: Bench):
    """While the scheduler is paused due times go by; resumed, one late run and one one-shot."""
    log, once = Log(bench), Log(bench)
    schedule = bench.s.every(1, log)
    bench.s.options(delay=5).submit(once)
    bench.advance(2)
    bench.halt(True)
    bench.advance(58)
    assert log.starts == [1, 2]
    bench.halt(False)
    bench.settle()
    assert log.starts == [1, 2, 60]
    assert once.starts == [60]
    assert schedule.next_run == 61


# -------------------------------------------------------------------- what it is, and is not


def test_armed_run_is_no_job(bench: Bench):
    """A planned run counts for nothing: not pending, and an idle scheduler is idle."""
    schedule = bench.s.every(10, print)
    now = bench.s.stats()
    assert (now.pending, now.submitted) == (0, 0)
    assert schedule.job is None
    if not bench.stepped:
        assert bench.s.wait_idle(0)
        assert bench.s.snapshot() == []
    assert bench.s.schedules() == [schedule]


def test_options_reach_the_runs(bench: Bench):
    """Name, priority and context of the options are those of every run."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[Any] = []

    def body(*args: int, **kwargs: int) -> None:
        job = current_job()
        assert job is not None
        seen.append((job.name, job.priority, variable.get(), args, kwargs))
        variable.set("left behind by a run")

    variable.set("made here")
    bench.s.options(name="poll", priority=2).every(10, body, 1, mode=3)
    bench.s.options(context=False, priority=9).every(10, body)
    variable.set("later")
    bench.advance(20)
    first = ("poll", 2, "made here", (1,), {"mode": 3})
    assert [entry for entry in seen if entry[1] == 2] == [first, first]
    assert [entry[2] for entry in seen if entry[1] == 9] == ["none", "none"]


def test_submit_refuses_schedule_options(bench: Bench):
    """What only a schedule can mean is a TypeError for submit and map, and the other way round."""
    for options in ({"start": 0}, {"missed": "skip"}, {"max_runs": 1}, {"tz": UTC}, {"jitter": 0}, {"until": None}):
        with pytest.raises(TypeError, match=next(iter(options))):
            bench.s.options(**options).submit(print)
    soon = datetime.now(UTC)
    for options in ({"id": "a"}, {"delay": 0}, {"delay": 1.5}, {"delay": 1.5, "priority": 3}, {"at": soon}):
        for call in (lambda o: o.every(1, print), lambda o: o.cron("* * * * *", print)):
            with pytest.raises(TypeError, match=next(iter(options))):
                call(bench.s.options(**options))
    with pytest.raises(TypeError, match="tz"):
        bench.s.options(tz=UTC).every(1, print)
    with pytest.raises(TypeError, match="mode"):
        bench.s.options(mode="rate").cron("* * * * *", print)
    assert bench.s.schedules() == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "fast"}, ValueError),
        ({"missed": True}, ValueError),
        ({"start": "now"}, TypeError),
        ({"start": float("nan")}, ValueError),
        ({"start": float("inf")}, ValueError),
        ({"start": True}, TypeError),
        ({"until": datetime(2026, 1, 1)}, ValueError),  # noqa: DTZ001 -- a naive one is the very case
        ({"max_runs": 0}, ValueError),
        ({"max_runs": 1.0}, TypeError),
        ({"max_failures": 0}, ValueError),
        ({"jitter": -1}, ValueError),
        ({"jitter": "1"}, TypeError),
        ({"tz": "Europe/Berlin"}, TypeError),
        ({"jiter": 1}, TypeError),
    ],
)
def test_bad_schedule_options_are_refused(options: dict[str, Any], error: type[Exception]):
    """A bad value is refused when the options are given, and the message names the option."""
    s = StepScheduler()
    with pytest.raises(error, match=next(iter(options))):
        s.options(**options)


def test_bad_tasks_are_refused(bench: Bench):
    """What cannot be called, and what has no number of seconds, is refused at the door."""
    with pytest.raises(TypeError, match="callable"):
        bench.s.every(1, 5)
    with pytest.raises(TypeError, match="seconds"):
        bench.s.every("1", print)
    with pytest.raises(TypeError, match="seconds"):
        bench.s.every(True, print)
    assert bench.s.schedules() == []


def test_schedule_cannot_be_pickled_and_shows_itself(bench: Bench):
    """A handle has a name and a repr that tells its state, and refuses to be copied."""
    schedule = bench.s.options(name="poll").every(10, print)
    assert schedule.name == "poll"
    assert repr(schedule) == "<Schedule poll every 10 s, 0 runs, next at 10>"
    schedule.pause()
    assert "paused" in repr(schedule)
    with pytest.raises(TypeError, match="Schedule"):
        pickle.dumps(schedule)


def test_rec_06_names_need_not_be_unique(bench: Bench):
    """There are no ids for schedules: two with one name are two, each with its own handle."""
    first = bench.s.options(name="poll").every(10, print)
    second = bench.s.options(name="poll").every(10, print)
    assert bench.s.schedules() == [first, second]
    first.cancel()
    assert bench.s.schedules() == [second]


# -------------------------------------------------------------------- life


def test_schedule_keeps_the_scheduler_alive():
    """A scheduler that only a Schedule holds goes on; when both are dropped, the schedule and the threads end."""
    clock = FakeClock()
    calls: list[int] = []
    s = Scheduler(workers=1, clock=clock)
    schedule: Schedule | None = s.every(10, calls.append, 1)
    gone = end_of(s)
    del s
    gc.collect()
    assert not gone.is_set()
    clock.advance(10)
    assert calls == [1]
    series = schedule._series  # type: ignore[union-attr]
    schedule = None
    gc.collect()
    assert gone.wait(PATIENCE)
    assert series.over == "shutdown"


def test_dropped_handle_leaves_the_schedule_going():
    """The scheduler keeps a schedule going that nobody holds, and hands out a handle for it again."""
    clock = FakeClock()
    calls: list[int] = []
    with Scheduler(workers=1, clock=clock) as s:
        s.every(10, calls.append, 1)
        gc.collect()
        clock.advance(20)
        assert calls == [1, 1]
        (schedule,) = s.schedules()
        assert s.schedules() == [schedule]
        assert schedule.runs == 2
        schedule.cancel()


def test_submitter_of_a_dropped_scheduler_is_refused():
    """Options keep no scheduler alive: once it is gone, every() is refused."""
    submitter = Scheduler(workers=1).options(start=0)
    gc.collect()
    with pytest.raises(SchedulerClosedError):
        submitter.every(10, print)


def test_ended_schedule_lets_its_task_go():
    """A schedule that has ended keeps neither its task nor its arguments, although the handle is held."""

    class Task:
        def __call__(self, thing: object) -> None:
            pass

    clock = FakeClock()
    with Scheduler(workers=1, clock=clock) as s:
        for end in ("max_runs", "cancelled", "shutdown"):
            task, thing = Task(), Task()
            gone = [weakref.ref(task), weakref.ref(thing)]
            schedule = s.options(max_runs=1 if end == "max_runs" else None).every(10, task, thing)
            del task, thing
            clock.advance(10)
            if end == "cancelled":
                schedule.cancel()
            if end == "shutdown":
                s.shutdown()
            gc.collect()
            assert schedule.ended == end
            assert [reference() for reference in gone] == [None, None]
            assert s._runtime.core.series == {}


def test_failed_run_is_collected_without_the_collector():
    """A run leaves no reference cycle behind: its failure is reported as soon as it ended."""
    bench = Bench(StepScheduler, "lazy", 1)
    gc.collect()
    gc.disable()
    try:
        with logged() as records:
            bench.s.every(1, Failing(1))
            bench.advance(1)
            assert len(records.of("ERROR")) == 1
    finally:
        gc.enable()


def test_policy_that_raises_costs_one_run():
    """A key that raises fails that run, is logged, and the next run comes."""
    log: list[int] = []
    broken = [True]

    class Odd(FifoPolicy):
        def key(self, job: Any) -> int:
            if job.name == "poll" and broken.pop() if broken else False:
                raise ValueError("no key")
            return 0

    clock = FakeClock()
    with logged() as records, Scheduler(workers=1, clock=clock, policy=Odd()) as s:
        schedule = s.options(name="poll").every(10, log.append, 1)
        clock.advance(20)
        assert log == [1]
        assert (schedule.runs, schedule.failures) == (2, 1)
        assert any("could not be submitted" in text for text in records.of("ERROR"))


def test_policy_swap_keeps_what_is_armed():
    """Planned runs are in no ranked queue: another policy finds them as they are."""
    clock = FakeClock()
    log: list[float] = []
    with Scheduler(workers=1, clock=clock) as s:
        s.every(10, lambda: log.append(clock.now()))
        s.policy = FifoPolicy()
        clock.advance(20)
        assert log == [10, 20]
        s.check()


def test_claimed_run_goes_on_when_its_claimer_settles_it():
    """A run that somebody claims and settles outside of the pool counts, and the next is planned by that thread."""
    clock = FakeClock()
    with Scheduler(workers=1, clock=clock) as s:
        schedule = s.every(10, print)
        with occupied(s):
            clock.jump(10)
            schedule._series.kick(s._runtime)
            job = schedule.job
            assert job is not None
            assert job.claim()
        clock.advance(0)
        job.set_result(None)
        assert schedule.runs == 1
        assert schedule.next_run == 20


def test_run_cancels_its_own_schedule(bench: Bench):
    """A run may end its schedule from inside."""
    schedules: list[Schedule] = []
    schedules.append(bench.s.every(10, lambda: schedules[0].cancel()))
    bench.advance(50)
    assert (schedules[0].runs, schedules[0].ended) == (1, "cancelled")


def test_every_from_inside_a_run(bench: Bench):
    """A run may start schedules; they are on the same clock."""
    log = Log(bench)
    bench.s.options(max_runs=1).every(10, lambda: bench.s.options(max_runs=2).every(5, log))
    bench.advance(30)
    assert log.starts == [15, 20]


def test_finalizer_may_use_schedules():
    """A finalizer that runs while the lock is held may make, wake and cancel schedules; a worker does the rest."""
    clock = FakeClock()
    log: list[int] = []
    with Scheduler(workers=1, clock=clock) as s:
        kept = s.every(1000, log.append, 0)
        runtime = s._runtime
        with runtime.lock:  # as if we had interrupted a submission
            made = s.every(10, log.append, 1)
            kept.run_now()
            made.pause()
            made.resume()
            s.every(10, log.append, 2).cancel()
        clock.advance(10)
        assert sorted(log) == [0, 1]
        s.check()


def test_idle_schedules_cost_no_wake_ups():
    """Between runs nobody wakes: 50 schedules an hour apart leave the workers asleep."""
    with Scheduler(workers=4) as s:
        for _ in range(50):
            s.every(3600, print)
        s.submit(pow, 2, 3).result(PATIENCE)
        assert s._runtime.wait_quiescent(PATIENCE)
        last_turn = s._runtime.last_reading
        assert not threading.Event().wait(0.05)
        assert s._runtime.last_reading == last_turn
        with neighbours(s):
            pass


def test_many_armings_leave_no_dead_entries():
    """Re-arming over and over leaves a queue of bounded size."""
    bench = Bench(StepScheduler, "lazy", 1)
    schedule = bench.s.every(10, print)
    for _ in range(2_000):
        schedule.pause()
        schedule.resume()
    assert len(bench.s._runtime.core.alarms._queue) < 200
    bench.s.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.subprocess
def test_fork_leaves_the_schedules_to_the_parent():
    """In the child there are no schedules, the old handles say why, new ones work; the parent's go on."""
    run_script(
        """
        import os, threading
        from threadsched import Scheduler
        s = Scheduler(workers=2)
        ran = threading.Event()
        schedule = s.every(3600, ran.set)
        child = os.fork()
        if not child:
            try:
                assert s.schedules() == [], s.schedules()
                assert schedule.ended == "fork", schedule.ended
                again = threading.Event()
                other = s.options(start=0).every(3600, again.set)
                assert again.wait(5)
                assert s.schedules() == [other]
                s.check()
            except BaseException:
                import traceback; traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert schedule.ended is None
        assert schedule.run_now() and ran.wait(5)
        s.check()
        """
    )


@pytest.mark.subprocess
def test_exit_with_a_live_schedule():
    """A process whose schedule is armed, or in a short run, exits at once and in silence."""
    done = run_script(
        """
        import threading
        from threadsched import Scheduler
        s = Scheduler(workers=2)
        s.every(3600, print)
        ran = threading.Event()
        s.every(0.001, ran.set)
        assert ran.wait(5)
        """
    )
    assert done.stderr == ""


def test_real_clock_runs_too():
    """On the real clock a short interval runs again and again, each run at or after its time."""
    ran = threading.Semaphore(0)
    late: list[float] = []
    with Scheduler(workers=2) as s:

        def body() -> None:
            job = current_job()
            assert job is not None
            late.append(s._runtime.now() - job.run_at)
            ran.release()

        s.every(0.002, body)
        for _ in range(10):
            assert ran.acquire(timeout=PATIENCE)
    assert min(late) >= 0

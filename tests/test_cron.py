"""Cron expressions on the nights when the clocks are changed, against a walk over every minute."""

import builtins
import datetime
import itertools
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support import exhaustive, rng
from threadsched import Scheduler
from threadsched._cron import COUNTED, EPOCH, Cron
from threadsched._grid import Slot
from threadsched.testing import FakeClock, StepScheduler

cronsim = pytest.importorskip("cronsim")

NEW_YORK, BERLIN, LORD_HOWE = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"
NIGHTS = [
    (NEW_YORK, (2026, 3, 8)),
    (NEW_YORK, (2026, 11, 1)),
    (BERLIN, (2026, 3, 29)),
    (BERLIN, (2026, 10, 25)),
    (LORD_HOWE, (2026, 4, 5)),  # half an hour back
    (LORD_HOWE, (2026, 10, 4)),  # half an hour forward
    ("Pacific/Apia", (2011, 12, 30)),  # a whole day that never was
    ("America/Sao_Paulo", (2018, 11, 4)),  # at midnight
]
FIXED = [
    "30 1 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "15,45 1 * * *",
    "0,30 2 * * *",
    "*/15 2 * * *",
    "0 1,2,3 * * *",
    "0 0 * * *",
]
RUNNING = ["* * * * *", "*/5 * * * *", "0 * * * *", "30 * * * *", "0 */2 * * *", "0 0-23 * * *"]


def instant(text: str, zone: str, fold: int = 0) -> float:
    """Return what a clock in the zone shows as seconds since 1970."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def shown(at: float, zone: str) -> str:
    """Return how the clock shows an instant, with the offset."""
    return (EPOCH + datetime.timedelta(seconds=at)).astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z")


def answers(table: Cron, start: float, end: float) -> list[float]:
    """Return the times in (start, end], each asked for from the one before."""
    found = []
    while (at := table.next_after(start)) is not None and at <= end:
        found.append(at)
        start = at
    return found


class Walk:
    """Every minute of some days in a zone, as the clock on the wall shows it."""

    def __init__(self, zone: str, start: int, end: int) -> None:
        info = ZoneInfo(zone)
        self.minutes = [
            (at, (EPOCH + datetime.timedelta(seconds=at)).astimezone(info).replace(tzinfo=None, fold=0))
            for at in range(start, end, 60)
        ]

    def matches(self, expression: str, *, fixed: bool) -> list[float]:
        """Return when an expression is due: as the clock shows it, or each time of the calendar once."""
        parsed = cronsim.CronSim(expression, datetime.datetime(2000, 1, 1))  # noqa: DTZ001 -- a calendar has no zone

        def named(time: datetime.datetime) -> bool:
            return (
                time.minute in parsed.minutes
                and time.hour in parsed.hours
                and time.month in parsed.months
                and parsed.match_day(time.date())
            )

        if not fixed:
            return [float(at) for at, time in self.minutes if named(time)]
        found = []
        highest = self.minutes[0][1]
        for at, time in self.minutes[1:]:
            new = []  # the times of the calendar that come, or are jumped over, for the first time
            while highest < time:
                highest += datetime.timedelta(minutes=1)
                new.append(highest)
            if any(map(named, new)):
                found.append(float(at))
        return found


@pytest.mark.proof
@pytest.mark.parametrize(("zone", "day"), NIGHTS, ids=lambda value: str(value))
def test_f59_every_night_agrees_with_the_walk(zone: str, day: tuple[int, int, int]):
    """From any minute around a change of the clocks the next times are those that a walk over all minutes finds."""
    middle = int(datetime.datetime(*day, tzinfo=datetime.UTC).timestamp())
    walk = Walk(zone, middle - 2 * 86400, middle + 3 * 86400)
    draw = rng(f"{zone}{day}")
    for expression, fixed in [(text, True) for text in FIXED] + [(text, False) for text in RUNNING]:
        table = Cron(expression, ZoneInfo(zone))
        assert table.fixed is fixed
        expected = walk.matches(expression, fixed=fixed)
        for start in [
            middle - 86400,
            *(middle + draw.randrange(-86400, 86400) for _ in range(60 if exhaustive() else 4)),
        ]:
            end = min(start + 86400 * 2, middle + 2 * 86400) if fixed else start + 6 * 3600
            found = answers(table, start, end)
            assert found == [at for at in expected if start < at <= end], (expression, shown(start, zone))


TABLE = [
    # zone, expression, from, times shown on that day
    (NEW_YORK, "30 2 * * *", "2026-03-08 00:00", ["08 03:00-0400"]),
    (NEW_YORK, "0 2 * * *", "2026-03-08 00:00", ["08 03:00-0400"]),
    (NEW_YORK, "0,30 2 * * *", "2026-03-08 00:00", ["08 03:00-0400"]),
    (NEW_YORK, "0 30 2 * * *", "2026-03-08 00:00", ["08 03:00-0400"]),  # with seconds
    (NEW_YORK, "30 1 * * *", "2026-11-01 00:00", ["01 01:30-0400"]),
    (NEW_YORK, "0 30 1 * * *", "2026-11-01 00:00", ["01 01:30-0400"]),
    (NEW_YORK, "*/30 1 * * *", "2026-11-01 00:00", ["01 01:00-0400", "01 01:30-0400"]),
    (NEW_YORK, "0 9 * * 1-5", "2026-03-08 00:00", []),  # a Sunday
    (BERLIN, "30 2 * * *", "2026-03-29 00:00", ["29 03:00+0200"]),
    (BERLIN, "30 2 * * *", "2026-10-25 00:00", ["25 02:30+0200"]),
    (LORD_HOWE, "15 2 * * *", "2026-10-04 00:00", ["04 02:30+1100"]),
    (LORD_HOWE, "45 1 * * *", "2026-04-05 00:00", ["05 01:45+1100"]),
]


@pytest.mark.parametrize(("zone", "expression", "start", "times"), TABLE)
def test_f59_fixed_hour_runs_once_a_day(zone: str, expression: str, start: str, times: list[str]):
    """A fixed hour that is jumped over runs at the end of the gap; one that comes twice runs the first time."""
    at = instant(start, zone) - 1
    assert [shown(one, zone) for one in answers(Cron(expression, ZoneInfo(zone)), at, at + 23 * 3600)] == times


@pytest.mark.parametrize(
    ("zone", "inside", "fold", "following"),
    [
        (NEW_YORK, "2026-11-01 01:10", 1, "02 01:30-0500"),
        (NEW_YORK, "2026-11-01 01:40", 1, "02 01:30-0500"),
        (NEW_YORK, "2026-11-01 01:10", 0, "01 01:30-0400"),
        (BERLIN, "2026-10-25 02:10", 1, "26 02:30+0100"),
        (LORD_HOWE, "2026-04-05 01:35", 1, "06 01:45+1030"),
    ],
)
def test_f59_schedule_made_inside_the_repeated_hour_waits_for_tomorrow(
    zone: str, inside: str, fold: int, following: str
):
    """A next run never lies in the past, where the library by itself names the first of the two times."""
    hour, minute = following.split()[1][:5].split(":")
    at = instant(inside, zone, fold)
    assert shown(Cron(f"{minute} {hour} * * *", ZoneInfo(zone)).next_after(at) or 0, zone) == following


def test_f59_minutes_go_on_through_the_repeated_hour():
    """An expression for every minute has no stall of an hour and no burst, an hourly one neither."""
    start = instant("2026-10-25 00:00", BERLIN)
    minutes = answers(Cron("* * * * *", ZoneInfo(BERLIN)), start, start + 6 * 3600)
    assert {b - a for a, b in itertools.pairwise(minutes)} == {60.0}
    hours = answers(Cron("0 * * * *", ZoneInfo(BERLIN)), start, start + 6 * 3600)
    assert {b - a for a, b in itertools.pairwise(hours)} == {3600.0}


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "61 * * * *", "* 24 * * *", "a b c d e", "0 0 31 2 *", "0 0 30 2 *", "*/0 * * * *"]
)
def test_bad_expression_is_refused_by_name(expression: str):
    """An expression that says nothing, or never comes, is a ValueError at the door that shows it."""
    with Scheduler(workers=1, clock=FakeClock()) as s:
        with pytest.raises(ValueError, match="expression must be a cron expression") as caught:
            s.cron(expression, print)
        assert repr(expression) in str(caught.value)
        assert s.schedules() == []


def test_expression_must_be_text():
    """An expression that is no str is a TypeError."""
    with Scheduler(workers=1) as s, pytest.raises(TypeError, match="expression must be a str"):
        s.cron(5, print)  # type: ignore[arg-type]


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    """Without the extra, cron() says what to install, and everything else works."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "cronsim":
            raise ModuleNotFoundError("No module named 'cronsim'", name="cronsim")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with Scheduler(workers=1) as s:
        with pytest.raises(ModuleNotFoundError, match=r"threadsched\[cron\]"):
            s.cron("* * * * *", print)
        assert s.submit(pow, 2, 3).result(5) == 8


def test_many_missed_times_cost_a_bounded_walk():
    """Ten years of minutes are passed over after counting the first hundred."""
    table = Cron("* * * * *", datetime.UTC)
    late = table.latest(Slot(60.0, 0), 10 * 365 * 86400.0)
    assert late.number == COUNTED
    assert late.at == 10 * 365 * 86400.0
    assert table.upcoming(Slot(60.0, 0), 1000.0) == Slot(1020.0, 16)


def test_calendar_ends_with_the_year_9999():
    """After the last day there is no further time, and no error."""
    last = datetime.datetime(9999, 12, 31, 23, 30, tzinfo=datetime.UTC).timestamp()
    assert Cron("0 0 1 1 *", datetime.UTC).next_after(last) is None
    assert Cron("0 * * * *", datetime.UTC).next_after(last) is None


@pytest.mark.parametrize("kind", [Scheduler, StepScheduler])
@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("2026-03-07 12:00", ["08 03:00-0400", "09 02:30-0400", "10 02:30-0400"]),
        ("2026-10-31 12:00", ["01 02:30-0500", "02 02:30-0500", "03 02:30-0500"]),
    ],
)
def test_f59_night_of_the_clock_change_as_a_whole(kind: Any, day: str, expected: list[str]):
    """A schedule that lives through the night runs its fixed hour on each day, once."""
    zone = ZoneInfo(NEW_YORK)
    clock = FakeClock(wall=datetime.datetime.fromisoformat(day).replace(tzinfo=zone))
    seen: list[str] = []
    s = kind(workers=1, clock=clock)
    schedule = s.options(tz=zone).cron("30 2 * * *", lambda: seen.append(shown(clock.wall(), NEW_YORK)))
    for _ in range(3 * 48):
        clock.advance(1800)
        if kind is StepScheduler:
            s.tick()
    assert seen == expected
    assert schedule.next_due.tzinfo == zone
    assert schedule.skipped == 0
    s.check()
    s.shutdown()
    assert schedule.ended == "shutdown"

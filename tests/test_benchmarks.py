"""The benchmarks' logic on made-up figures: pairs, the guard, the tables. Nothing here is timed."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import check, counts, run_all
from benchmarks._command import Settings
from benchmarks._ladder import FUTURES, LAST, STEPS, build, source
from benchmarks._pairs import Sample, compare, tour
from benchmarks._rows import Row, Spread, record, write
from benchmarks._targets import NONE, TARGETS, figure
from benchmarks.check import Figures, judge
from benchmarks.report import MARKED, PAGES, TABLES, Report
from tests.support import ROOT

# ---------------------------------------------------------------- pairs


def test_pairs_take_turns_after_one_warm_up_each():
    """Each side goes first in every other pair, and the first run of each does not count."""
    order: list[str] = []
    times = {"ours": iter([9.0, 1.0, 2.0, 4.0]), "theirs": iter([9.0, 2.0, 8.0, 8.0])}

    def side(name: str) -> float:
        order.append(name)
        return next(times[name])

    row = compare(
        "k", "q", "p", lambda: side("ours"), lambda: side("theirs"), pairs=3, operations=2, scale=10.0, unit="x"
    )
    assert order == ["theirs", "ours", "theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert row.ratio == Spread(2.0, 2.0, 4.0)
    assert (row.ours, row.theirs, row.pairs) == (10.0, 40.0, 3)


def test_figures_of_samples_become_medians_and_ratios():
    """A figure that both sides report is compared pair by pair."""
    ours, theirs = iter([1.0, 1.0, 3.0, 2.0]), iter([1.0, 2.0, 2.0, 2.0])
    row = compare(
        "k",
        "q",
        "p",
        lambda: Sample(1.0, {"p99": next(ours), "own": 7.0}),
        lambda: Sample(1.0, {"p99": next(theirs)}),
        pairs=3,
        operations=1,
    )
    assert (row.figures["p99"], row.figures["p99_theirs"], row.figures["p99_ratio"]) == (2.0, 2.0, 1.0)
    assert row.figures["own"] == 7.0
    assert "own_theirs" not in row.figures


def test_tour_runs_each_as_often_as_asked():
    """Several candidates go round, every other round backwards, and some stop early."""
    order: list[str] = []

    def work(name: str) -> float:
        order.append(name)
        return 1.0

    found = tour({name: lambda name=name: work(name) for name in "abc"}, {"a": 3, "b": 1, "c": 2}, 1)
    assert order == ["a", "b", "c", "c", "a", "a"]
    assert {name: len(samples) for name, samples in found.items()} == {"a": 3, "b": 1, "c": 2}


def test_rows_survive_being_written(tmp_path: Path):
    """What is read from JSON is the row that was written."""
    rows = [Row("a", "A", "peer", Spread(2.0, 1.5, 2.5), 1.0, 2.0, "us", 3, {"x": 0.5}), Row("b", "B")]
    write(tmp_path / "sub" / "f.json", record("name", rows, pairs=3, quick=False))
    document = json.loads((tmp_path / "sub" / "f.json").read_text(encoding="utf-8"))
    assert [Row.read(row) for row in document["rows"]] == rows
    assert document["facts"]["minor"] in document["facts"]["python"]


# ---------------------------------------------------------------- the guard

BASE = Figures({"throughput one": 4.0, "map pool": 6.0}, {"throughput one": 0.01, "convoy one busy": 0.2})


def figures(one: float = 4.0, mapped: float = 6.0, switches: float = 0.01, seeded: float = 0.2) -> Figures:
    return Figures({"throughput one": one, "map pool": mapped}, {"throughput one": switches, "convoy one busy": seeded})


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (figures(), []),
        (figures(one=3.41), []),
        (figures(one=3.39), ["throughput one"]),
        (figures(one=9.0), []),
        (figures(mapped=5.0), ["map pool"]),
        (figures(switches=0.049), []),
        (figures(switches=0.051), ["throughput one"]),
        (figures(seeded=0.23), []),
        (figures(seeded=0.24), ["convoy one busy"]),
        (Figures({"map pool": 6.0}, {"throughput one": 0.0, "convoy one busy": 0.0}), ["throughput one"]),
        (Figures({"throughput one": 4.0, "map pool": 6.0}, {"throughput one": 0.0}), ["convoy one busy"]),
    ],
)
def test_guard_fails_below_85_percent(found: Figures, failing: list[str]):
    """Ratios may fall, and switches rise, by as much as that; 0.05 switches are always allowed; a missing one fails."""
    assert [verdict.name for verdict in judge(found, BASE) if not verdict.holds] == failing


def test_switches_that_were_never_recorded_keep_the_target():
    """A figure without a baseline is held to the target itself."""
    verdicts = judge(Figures({}, {"new": 0.06}), Figures())
    assert [(verdict.bound, verdict.holds) for verdict in verdicts] == [(0.05, False)]


class Measuring:
    """Stands for the measurements; remembers what was asked for."""

    def __init__(self, *answers: Figures) -> None:
        self.answers = iter(answers)
        self.asked: list[list[str]] = []

    def __call__(self, names: Iterable[str], settings: Settings) -> Figures:
        self.asked.append(list(names))
        return next(self.answers)


def test_guard_measures_what_failed_once_more():
    """A bad figure counts only if it is bad twice, and only its benchmark is run again."""
    measuring = Measuring(figures(mapped=1.0), Figures({"map pool": 6.0}))
    assert check.check(BASE, Settings(), measuring) == 0
    assert measuring.asked == [["throughput", "convoy", "round_trip", "map"], ["map"]]


def test_guard_fails_what_fails_twice(capsys: pytest.CaptureFixture[str]):
    """Twice too slow is too slow, and the output says which and by how much."""
    assert check.check(BASE, Settings(), Measuring(figures(one=2.0), figures(one=3.0))) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert re.search(r"throughput one .* 3 .* 3\.4", failed[0])


def test_guard_measures_once_when_all_is_well():
    """Nothing is run again without need."""
    measuring = Measuring(figures())
    assert check.check(BASE, Settings(), measuring) == 0
    assert len(measuring.asked) == 1


def test_baseline_is_kept_for_each_version(tmp_path: Path):
    """Recording for one version leaves the others alone, and an unknown one has none."""
    path = tmp_path / "baseline.json"
    assert check.read_baseline(path, "3.11") is None
    check.write_baseline(path, "3.13", figures(one=3.5), {}, 9)
    check.write_baseline(path, "3.11", figures(one=4.0), {}, 9)
    check.write_baseline(path, "3.11", figures(one=4.5), {}, 9)
    assert check.read_baseline(path, "3.13") == figures(one=3.5)
    assert check.read_baseline(path, "3.11") == figures(one=4.5)
    assert check.read_baseline(path, "3.12") is None
    assert list(json.loads(path.read_text(encoding="utf-8"))) == ["3.11", "3.13"]


def test_guard_without_baseline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing recorded is neither a pass nor a failure, and nothing is measured."""
    monkeypatch.setattr("sys.argv", ["check", "--baseline", str(tmp_path / "none.json")])
    monkeypatch.setattr(check, "measure", Measuring())
    assert check.main() == 2


def test_baseline_comes_from_results(tmp_path: Path):
    """The committed results of a version that has all four benchmarks become its baseline."""
    write_results(tmp_path / "results")
    (tmp_path / "results" / "3.13" / "map.json").unlink()
    assert check.record_from(tmp_path / "results", tmp_path / "baseline.json") == ["3.11"]
    baseline = check.read_baseline(tmp_path / "baseline.json", "3.11")
    assert baseline is not None
    assert baseline.ratios == dict.fromkeys(
        ["throughput one", "throughput sixteen", "round_trip pool", "map pool"], 5.0
    )
    assert set(baseline.switches) == {
        "throughput one", "throughput sixteen", "convoy one asleep", "convoy one busy", "convoy sixteen asleep",
        "convoy sixteen busy",
    }  # fmt: skip


# ---------------------------------------------------------------- all of them


def test_one_failure_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each benchmark runs on each interpreter by turns; what failed is named at the end."""
    ran: list[tuple[str, str, list[str]]] = []

    def measure(name: str, version: str, python: str, into: Path, more: list[str]) -> bool:
        ran.append((name, version, more))
        return (name, version) != ("map", "3.11")

    monkeypatch.setattr(run_all, "measure", measure)
    monkeypatch.setattr(run_all, "interpreters", lambda wanted: dict.fromkeys(wanted, "python"))
    monkeypatch.setattr("sys.argv", ["run_all", "--only", "map,floor", "--pairs", "3", "--into", str(tmp_path)])
    assert run_all.main() == 1
    assert [one[:2] for one in ran] == [("map", "3.11"), ("map", "3.13"), ("floor", "3.11"), ("floor", "3.13")]
    assert {tuple(one[2]) for one in ran} == {("--pairs", "3")}
    assert "FAILED: map on 3.11" in capsys.readouterr().err


def test_unknown_benchmarks_are_refused(monkeypatch: pytest.MonkeyPatch):
    """A misspelt name is an error, before anything is measured."""
    monkeypatch.setattr("sys.argv", ["run_all", "--only", "map,flour"])
    monkeypatch.setattr(run_all, "interpreters", pytest.fail)
    with pytest.raises(SystemExit):
        run_all.main()


def test_counts_repeat_exactly():
    """What the hot path executes is the same number each time, and every phase was counted."""
    first, second = counts.counted(counts.Ours(), counts.EXTRAS), counts.counted(counts.Ours(), counts.EXTRAS)
    assert first == second
    assert set(first) == {*counts.PHASES, *counts.EXTRAS}
    assert all(found["bytecodes"] > 10 and found["calls"] > 0 for found in first.values())


# ---------------------------------------------------------------- the tables

# Each key that the tables ask for by name; one more of each kind that they take as it comes.
KEYS = {
    "throughput": ("one", "sixteen", "one pebble.ThreadPool"),
    "convoy": ("one asleep", "one busy", "sixteen asleep", "sixteen busy"),
    "round_trip": ("pool", "pebble.ThreadPool"),
    "map": ("pool", "ThreadPool.imap"),
    "gil_releasing": ("sha256 64 KB 1", "sha256 64 KB 8", "sleep 2 ms 1"),
    "options_cost": ("kept", "made", "priority"),
    "delayed": ("asyncio", "asyncio alike", "sched", "APScheduler", "Timer", "ours", "context", "indexed"),
    "lateness": ("bare", "asyncio", "Timer", "APScheduler"),
    "wakeups": ("alone", "among", "idle"),
    "floor": tuple(f"{crowd} {step.number}" for crowd in ("one", "sixteen") for step in STEPS),
    "growth": ("pending lazy delayed 100", "workers 1"),
    "counts": ("submit", "turn", "task", "result", "job"),
}

FIGURES = {
    "switches": 0.01, "p99_ms_ratio": 1.05, "started_ms_ratio": 0.9, "cancel_us": 1.2, "bytes": 432.0, "p99_us": 99.0,
    "p99_us_theirs": 101.0,
    "p99_us_ratio": 0.98, "bytecodes": 100.0, "bytecodes_theirs": 200.0,
}  # fmt: skip


def document(benchmark: str, *, quick: bool = False, ratio: float = 5.0) -> dict[str, Any]:
    """Return results of one benchmark as they would be written."""
    rows = []
    for key in KEYS[benchmark]:
        spread = None if benchmark in ("wakeups", "counts") else Spread(ratio, ratio - 0.5, ratio + 0.5)
        ours = float({"alone": 1, "among": 2, "idle": 0}.get(key, 2))
        rows.append(Row(key, f"{benchmark} {key} with retries=2", "peer", spread, ours, 10.0, "us", 9, dict(FIGURES)))
    made: dict[str, Any] = record(benchmark, rows, pairs=9, quick=quick)
    return made


def documents(ratio: float = 5.0) -> dict[str, dict[str, Any]]:
    known = {name: document(name, ratio=ratio) for name in KEYS}
    return {"3.11": known, "3.13": known}


def write_results(into: Path) -> None:
    for version, known in documents().items():
        for name, one in known.items():
            write(into / version / f"{name}.json", one)


def test_every_benchmark_has_made_up_results():
    """The lists of this file, of the runner and of the directory agree: no benchmark escapes the tables' tests."""
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_")}
    assert set(KEYS) == set(run_all.QUESTIONS) == files - {"check", "plots", "report", "run_all"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_what_the_results_say(page: Path):
    """The tables of the documentation are those that the committed results give: `python -m benchmarks.report`."""
    text = page.read_text(encoding="utf-8")
    assert Report.read().fill(text) == text


def test_every_table_stands_on_a_page():
    """Each marker names a table, and each table has its place, once."""
    names = [match["name"] for page in PAGES for match in MARKED.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(TABLES)


def test_full_results_fill_every_table():
    """With all results there no cell of the targets is empty, and filling twice changes nothing."""
    report = Report(documents(), plots=["floor.svg"])
    for name, table in TABLES.items():
        text = table(report)
        assert text.strip(), name
        assert "Not " not in text, name
    assert NONE not in [cell.strip() for cell in report.targets().split("|")]
    page = "a\n<!-- figures: targets -->\nstale\n<!-- end -->\nb\n"
    assert report.fill(page) == report.fill(report.fill(page))
    assert "stale" not in report.fill(page)


def test_tables_without_results_say_so():
    """Nothing measured gives dashes and a hint, and no error."""
    report = Report({})
    for name, table in TABLES.items():
        assert "Not " in table(report) or name == "targets"
    assert report.targets().count(NONE) >= 2 * len(TARGETS)


def test_targets_are_judged():
    """The same figures keep a target or miss it, by its bound on that version."""
    report = Report(documents(ratio=3.7))
    line = next(line for line in report.targets().splitlines() if "from one thread" in line)
    assert [cell.strip()[-1] for cell in line.split("|")[-3:-1]] == ["✗", "✓"]
    trip = next(line for line in report.targets().splitlines() if "round trip" in line)
    assert re.search(r"0\.270 . \(0\.238.0\.312\) ✓", trip)  # the reciprocals: a share of their time


def test_quick_results_are_refused(tmp_path: Path):
    """What was measured to see whether it runs cannot get into the documentation."""
    write(tmp_path / "3.11" / "map.json", document("map", quick=True))
    with pytest.raises(ValueError, match="--quick"):
        Report.read(tmp_path)


def test_plots_are_shown_where_they_exist():
    """The page links to pictures that are there, so that no link is dead."""
    assert "floor.svg" in Report({}, ["floor.svg"]).pictures()
    assert "crowds.svg" not in Report({}, ["floor.svg"]).pictures()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00421, "0.0042"), (0.1234, "0.123"), (4.567, "4.57"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_figures_have_three_digits(value: float, text: str):
    """Figures read alike in all tables."""
    assert figure(value) == text


# ---------------------------------------------------------------- the floor


@pytest.mark.parametrize("step", range(1, LAST + 1))
def test_each_step_from_the_floor_runs_all_it_is_given(step: int):
    """Every step compiles, runs each task once, and ends; those with futures return the results."""
    pool = build(step)(3)
    ran: list[int] = []
    jobs = [pool.submit(lambda number=number: ran.append(number) or number) for number in range(50)]
    if step >= FUTURES:
        assert [job.result() for job in jobs] == list(range(50))
    pool.close()
    assert sorted(ran) == list(range(50))


def test_steps_differ_and_tags_are_gone():
    """Each step has other lines than the one before, and no tag is left in its source."""
    sources = [source(step.number) for step in STEPS]
    assert len(set(sources)) == LAST
    assert not any(re.search(r"# \d*\.\.\d*$", text, re.MULTILINE) for text in sources)
    with pytest.raises(ValueError, match="steps 1 to"):
        build(0)

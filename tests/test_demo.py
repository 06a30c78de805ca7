"""The demonstration: its server, its plan, its checks, its report, and the whole of it as a program."""

import contextlib
import dataclasses
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys

import pytest

from threadsched import JobInfo, JobStatus, ShutdownReport, Stats, _demo
from threadsched.__main__ import main
from threadsched._demo_checks import CHECKS, Evidence, HandRun, ScheduledRun, run_checks
from threadsched._demo_client import (
    Attempt,
    Body,
    Fetcher,
    MissingFileError,
    ServerBusyError,
    Source,
    find_sources,
    sources_root,
)
from threadsched._demo_plan import MISSING, Plan, make_plan
from threadsched._demo_progress import Figures, Progress, progress_line
from threadsched._demo_report import Summary, as_json, distribution, percentile, shade, timeline
from threadsched._demo_server import MAX_REFUSALS, Behaviour, SourceServer, Tally
from threadsched._terminal import Terminal

BACKOFF = 0.05

# A seed with which the server refuses the first attempt of pkg/mod.py and nothing else.
SEED = next(
    seed
    for seed in range(10_000)
    if [Behaviour(seed, 0.3, 0.0).refusals(f"{name}.py") for name in ("pkg/__init__", "pkg/mod", "late/mod")]
    == [0, 1, 0]
)


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


class AsciiFile(io.StringIO):
    """A file that cannot hold block characters."""

    encoding = "ascii"


def made_info(path, status, attempts, start, *, due=1.0, priority=5):
    """Return the record of a job that was due at `due` and ran for 10 ms from `start`, its last start."""
    return JobInfo(
        id=path,
        name=path,
        status=status,
        priority=priority,
        attempts=attempts,
        submitted_at=0.5,
        run_at=due,
        started_at=start,
        finished_at=None if start is None else start + 0.01,
        worker=None if start is None else "fetch_0",
        error="MissingFileError: 404 Not Found" if status is JobStatus.FAILED else None,
    )


def made_evidence():
    """Return the evidence of a small run in which all is as it must be; each call returns a fresh copy."""
    opens, module, late, gone = (
        Source(path, 10, f"digest of {path}")
        for path in ("pkg/__init__.py", "pkg/mod.py", "late/mod.py", "gone/mod.py")
    )
    plan = Plan(
        root=sources_root(),
        workers=2,
        first=(opens, module),
        second=(late, gone),
        doomed="gone",
        second_delay=1.0,
        backoff=BACKOFF,
        behaviour=Behaviour(SEED, 0.3, 0.0),
    )
    bodies = {source.path: Body(source.path, 10, source.digest) for source in (opens, module, late)}
    errors = {MISSING: MissingFileError("404 Not Found")}
    attempts = [
        Attempt(opens.path, "fetch_0", 1.0, 1.01, 200),
        Attempt(module.path, "fetch_1", 1.1, 1.11, 503),
        Attempt(MISSING, "fetch_0", 1.02, 1.03, 404),
        Attempt(module.path, "fetch_1", 1.11 + BACKOFF, 1.2, 200),
        Attempt(late.path, "fetch_0", 2.0, 2.01, 200),
    ]
    asked = {opens.path: 1, module.path: 2, late.path: 1, MISSING: 1}
    tally = Tally(requests=5, served=3, busy=1, missing=1, broken=0, peak=2, in_flight=0, connections=2, attempts=asked)
    infos = {
        opens.path: made_info(opens.path, JobStatus.DONE, 1, 1.0, priority=0),
        module.path: made_info(module.path, JobStatus.DONE, 2, 1.11 + BACKOFF, due=1.11 + BACKOFF),
        MISSING: made_info(MISSING, JobStatus.FAILED, 1, 1.02),
        late.path: made_info(late.path, JobStatus.DONE, 1, 2.0, due=2.0),
        gone.path: made_info(gone.path, JobStatus.CANCELLED, 0, None, due=2.0),
    }
    stats = Stats(
        workers=2,
        idle=2,
        running=0,
        pending=0,
        delayed=0,
        ready=0,
        waiting=0,
        submitted=5,
        done=3,
        failed=1,
        cancelled=1,
        retries=1,
        lost_workers=0,
        replaced_workers=0,
    )
    scheduled = ScheduledRun(
        infos=infos,
        bodies=bodies,
        errors=errors,
        second_opens=2.0,
        revoked=frozenset({gone.path}),
        revoked_again=0,
        audit="",
        stats=stats,
        leftover=ShutdownReport(done=3, failed=1, cancelled=1, pending=0, running=()),
        attempts=attempts,
        tally=tally,
    )
    by_hand = HandRun(dict(bodies), dict(errors), list(attempts), dataclasses.replace(tally), slept=BACKOFF)
    return Evidence(plan, scheduled, by_hand)


def altered(**changes):
    """Return evidence in which these fields of the scheduled run are different."""
    evidence = made_evidence()
    return dataclasses.replace(evidence, scheduled=dataclasses.replace(evidence.scheduled, **changes))


def altered_part(part, **changes):
    """Return evidence in which these fields of one part of the scheduled run are different."""
    return altered(**{part: dataclasses.replace(getattr(made_evidence().scheduled, part), **changes)})


def altered_info(path, **changes):
    """Return evidence in which one job describes itself differently."""
    infos = made_evidence().scheduled.infos
    return altered(infos={**infos, path: dataclasses.replace(infos[path], **changes)})


def altered_attempt(index, **changes):
    """Return evidence in which one request went differently."""
    attempts = made_evidence().scheduled.attempts
    attempts[index] = dataclasses.replace(attempts[index], **changes)
    return altered(attempts=attempts)


def altered_body(path, digest):
    """Return evidence in which a body with another digest arrived, in both runs."""
    evidence = altered(bodies={**made_evidence().scheduled.bodies, path: Body(path, 10, digest)})
    by_hand = dataclasses.replace(evidence.by_hand, bodies=evidence.scheduled.bodies)
    return dataclasses.replace(evidence, by_hand=by_hand)


def failed_checks(evidence):
    """Return the names of the check functions that do not pass."""
    return {check.__name__ for (_, check), found in zip(CHECKS, run_checks(evidence), strict=True) if not found.ok}


def test_refusals_depend_on_seed_path_and_attempt_alone():
    """The same seed refuses the same attempts, and another one refuses others."""
    paths = [f"pkg/mod{i}.py" for i in range(300)]
    draws = [[Behaviour(seed, 0.2, 0.0).busy(path, 1) for path in paths] for seed in (7, 7, 8)]
    assert draws[0] == draws[1] != draws[2]
    assert 30 <= sum(draws[0]) <= 90
    assert [Behaviour(7, 0.2, 0.0).busy(path, 2) for path in paths] != draws[0]


def test_no_file_is_refused_more_often_than_it_is_retried():
    """Even a server that is always busy serves a file in the end."""
    behaviour = Behaviour(1, 1.0, 0.0)
    assert behaviour.refusals("a.py") == MAX_REFUSALS
    assert not behaviour.busy("a.py", MAX_REFUSALS + 1)
    assert Behaviour(1, 0.0, 0.0).refusals("a.py") == 0


def test_answers_take_as_long_as_their_mean_says():
    """The time of an answer is drawn around the latency, and is never negative."""
    pauses = [Behaviour(3, 0.1, 0.01).pause(f"{i}.py", 1) for i in range(2000)]
    assert 0.005 <= min(pauses) < 0.01 < max(pauses) <= 0.09
    assert sum(pauses) / len(pauses) == pytest.approx(0.011, rel=0.1)
    assert Behaviour(3, 0.1, 0.0).pause("a.py", 1) == 0.0


def test_server_counts_what_its_client_sees(tmp_path, monkeypatch):
    """A body, a refusal and a missing file arrive as such, are counted as such, and ask no resolver."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked for a name"))
    monkeypatch.setattr(socket, "gethostbyaddr", lambda *_: pytest.fail("asked for a name"))
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_bytes(b"x = 1\n")
    (tmp_path / "secret.py").write_bytes(b"not served\n")
    (source,) = find_sources(tmp_path / "pkg")
    server = SourceServer(tmp_path, frozenset({"pkg/mod.py"}), Behaviour(SEED, 0.3, 0.0))
    with server, Fetcher(server.port) as fetcher:
        with pytest.raises(ServerBusyError):
            fetcher.fetch("pkg/mod.py")
        body = fetcher.fetch("pkg/mod.py")
        for path in (MISSING, "secret.py", "pkg/../secret.py", "/etc/passwd"):
            with pytest.raises(MissingFileError):
                fetcher.fetch(path)
        tally = server.tally()
    assert (body.size, body.digest) == (source.size, source.digest)
    assert body.size == 6
    assert (tally.requests, tally.served, tally.busy, tally.missing, tally.broken) == (6, 1, 1, 4, 0)
    assert (tally.peak, tally.in_flight, tally.connections) == (1, 0, 1)
    assert tally.attempts["pkg/mod.py"] == 2
    assert [attempt.status for attempt in fetcher.attempts()] == [503, 200, 404, 404, 404, 404]


def test_server_error_is_counted_and_reaches_the_client(tmp_path):
    """A file that vanishes under the server breaks that request alone."""
    (tmp_path / "kept.py").write_bytes(b"")
    paths = frozenset({"kept.py", "vanished.py"})
    server = SourceServer(tmp_path, paths, Behaviour(1, 0.0, 0.0))
    with server, Fetcher(server.port) as fetcher:
        with pytest.raises(OSError, match="without response"):
            fetcher.fetch("vanished.py")
        assert fetcher.fetch("kept.py").size == 0
        tally = server.tally()
    assert (tally.served, tally.broken, tally.in_flight) == (1, 1, 0)


def test_sources_are_found_without_packages_and_unreadable_files(tmp_path):
    """Installed packages, caches and files that cannot be read are left out; a limit thins evenly."""
    for path in ("b.py", "a/__init__.py", "a/data.txt", "site-packages/c.py", "a/__pycache__/d.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    found = find_sources(tmp_path)
    assert [source.path for source in found] == ["a/__init__.py", "b.py"]
    assert [(source.package, source.opens_package) for source in found] == [("a", True), ("", False)]
    assert [source.path for source in find_sources(tmp_path, 1)] == ["a/__init__.py"]


def test_plan_divides_files_into_waves():
    """The package to be cancelled comes last in the second wave, and no file is lost."""
    sizes = {"big": 60, "middle": 20, "small": 10, "tiny": 5}
    sources = [Source(f"{name}/{i}.py", 1, "") for name, count in sizes.items() for i in range(count)]
    sources += [Source(f"{i}.py", 1, "") for i in range(5)]
    plan = make_plan(sources_root(), sources, workers=4, seed=1)
    assert plan.doomed == "small"
    assert len(plan.doomed_paths) == 10
    assert [source.package for source in plan.second] == ["middle"] * 20 + ["small"] * 10
    assert sorted(plan.paths) == sorted(source.path for source in sources)
    assert 0 < plan.second_delay < len(sources) * plan.behaviour.latency / 4


@pytest.mark.parametrize("count", [0, 1, 5])
def test_plan_refuses_too_few_files(count):
    """Files that cannot be divided are an error that names their number."""
    sources = [Source(f"pkg/{i}.py", 1, "") for i in range(count)]
    with pytest.raises(ValueError, match=f"^{count} Python files are too few"):
        make_plan(sources_root(), sources, workers=8, seed=1)


def test_every_check_passes_on_sound_evidence():
    """A run in which all is as it must be passes every check, and each says what it compared."""
    checks = run_checks(made_evidence())
    assert [check for check in checks if not check.ok] == []
    assert all(check.detail for check in checks)


BROKEN = [
    ("counts_add_up", lambda: altered_part("stats", submitted=6)),
    ("counts_add_up", lambda: altered_part("stats", pending=1)),
    ("jobs_agree", lambda: altered_part("stats", done=4, failed=0)),
    ("jobs_agree", lambda: altered_info("late/mod.py", status=JobStatus.RUNNING)),
    ("bodies_match", lambda: altered_body("pkg/mod.py", "wrong")),
    ("bodies_match", lambda: altered(bodies={})),
    ("missing_file_failed", lambda: altered_info(MISSING, attempts=2)),
    ("missing_file_failed", lambda: altered_info(MISSING, status=JobStatus.DONE)),
    ("missing_file_failed", lambda: altered(errors={MISSING: ServerBusyError("503")})),
    ("in_flight_bounded", lambda: altered_part("tally", peak=3)),
    ("in_flight_bounded", lambda: altered_part("tally", in_flight=1)),
    ("server_agrees", lambda: altered_part("tally", served=4)),
    ("server_agrees", lambda: altered_part("tally", broken=1)),
    ("attempts_agree", lambda: altered_info("late/mod.py", attempts=2)),
    ("refusals_foretold", lambda: altered_part("stats", retries=0)),
    ("refusals_foretold", lambda: altered_part("tally", busy=2)),
    ("backoff_kept", lambda: altered_attempt(3, started=1.11 + BACKOFF / 2)),
    ("packages_first", lambda: altered_info("pkg/__init__.py", started_at=2.1)),
    ("second_wave_waited", lambda: altered_attempt(4, started=1.9)),
    ("cancelled_stay_cancelled", lambda: altered_attempt(0, path="gone/mod.py")),
    ("cancelled_stay_cancelled", lambda: altered(revoked=frozenset())),
    ("cancelled_stay_cancelled", lambda: altered(revoked_again=1)),
    ("nothing_left", lambda: altered(audit="AssertionError: heap out of order")),
    ("nothing_left", lambda: altered_part("leftover", pending=1)),
    ("comparison_is_fair", lambda: altered(bodies={"pkg/mod.py": Body("pkg/mod.py", 1, "")})),
]


@pytest.mark.parametrize(("name", "make"), BROKEN)
def test_check_notices_what_it_is_for(name, make):
    """Each check fails on evidence that breaks the rule it stands for."""
    assert name in failed_checks(make())


def test_job_cancelled_in_backoff_is_in_order():
    """A job may be cancelled after it was refused: that refusal counts, and its retry never comes."""
    evidence = altered_info("gone/mod.py", attempts=1)
    run = evidence.scheduled
    refused = Attempt("gone/mod.py", "fetch_0", 2.1, 2.11, 503)
    tally = dataclasses.replace(run.tally, requests=6, busy=2, attempts={**run.tally.attempts, "gone/mod.py": 1})
    run = dataclasses.replace(
        run,
        attempts=[*run.attempts, refused],
        tally=tally,
        stats=dataclasses.replace(run.stats, retries=2),
    )
    assert failed_checks(dataclasses.replace(evidence, scheduled=run)) == set()


def test_every_check_has_been_seen_to_fail():
    """No check is without a case that breaks it."""
    assert {name for name, _ in BROKEN} == {check.__name__ for _, check in CHECKS}


def test_check_that_cannot_judge_has_failed():
    """Evidence that makes a check raise is a failed check that shows the error."""
    failed = [check for check in run_checks(altered(infos={})) if not check.ok]
    assert any(check.detail.startswith("KeyError: ") for check in failed)


def test_percentiles_are_values_that_occurred():
    """A percentile is the smallest value that so many do not exceed."""
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0, 0.2, 0.21, 0.5, 0.9, 1)] == [1, 1, 2, 3, 5, 5]
    assert distribution(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert math.isnan(percentile([], 0.5))


def test_timeline_shows_how_busy_each_worker_was_when():
    """A cell is the share of its time that the worker was busy, however the attempts lie across cells."""
    attempts = [
        Attempt("a", "w_10", 100.0, 101.0, 200),
        Attempt("b", "w_2", 100.5, 102.0, 200),
        Attempt("c", "w_10", 103.75, 104.0, 200),
    ]
    rows = timeline(attempts, 4.0, 4)
    assert [row[0] for row in rows] == ["w_2", "w_10"]
    assert [row[2] for row in rows] == [
        pytest.approx([0.5, 1.0, 0.0, 0.0]),
        pytest.approx([1.0, 0.0, 0.0, 0.25]),
    ]
    assert [row[1] for row in rows] == [pytest.approx(1.5 / 4), pytest.approx(1.25 / 4)]


def test_shades_are_blank_for_idle_alone():
    """The darkest shade is for a full cell, the blank for an empty one."""
    assert "".join(map(shade, (0.0, 0.01, 0.3, 0.6, 0.76, 1.0))) == " ░▒▓██"


FIGURES = Figures(elapsed=2.0, done=50, running=8, waiting=142, retries=6)


def test_progress_line_says_all_that_is_asked_of_it():
    """A plain line has time, done, running, waiting, retries, rate and ETA."""
    line = " ".join(progress_line(FIGURES).split())
    assert line == "2.0 s 50/200 done 8 running 142 waiting 6 retries 25/s ETA 6.0 s"


def test_progress_line_before_the_first_job_is_done():
    """Without a rate there is no ETA, and nothing is divided by zero."""
    line = progress_line(Figures(elapsed=0.0, done=0, running=0, waiting=10, retries=0))
    assert line.split()[-2:] == ["ETA", "-"]


@pytest.mark.parametrize("width", [20, 60, 79, 85, 120, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_progress_line_fits_the_terminal(width, unicode):
    """The line never wraps, and has a bar where there is room for one."""
    line = progress_line(FIGURES, width=width, unicode=unicode)
    assert len(line) <= width
    full, empty = ("█", "░") if unicode else ("#", ".")
    assert (full in line and empty in line) == (width >= 85)
    if width >= 120:
        assert f" {full * 6}{empty * 18} " in line


def test_progress_is_one_rewritten_line_on_a_terminal(monkeypatch):
    """On a terminal each look rewrites the line; what is said in between stands above it."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    progress = Progress(Terminal(screen))
    progress.show(FIGURES)
    progress.say("something happened")
    progress.show(FIGURES)
    progress.finish(FIGURES)
    lines = screen.getvalue().split("\n")
    assert len(lines) == 3
    assert lines[2] == ""
    assert lines[0].endswith("\r\x1b[Ksomething happened")
    assert lines[1].count("\r\x1b[K") == 2


def test_progress_is_a_line_a_second_elsewhere():
    """In a file no control character appears, and lines do not follow each other at every look."""
    file = AsciiFile()
    progress = Progress(Terminal(file))
    for _ in range(5):
        progress.show(FIGURES)
    progress.say("something happened → …", "red")
    progress.finish(FIGURES)
    lines = file.getvalue().splitlines()
    assert lines == [progress_line(FIGURES), "something happened -> ...", progress_line(FIGURES)]


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_turned_off(monkeypatch, variable, value):
    """NO_COLOR and a dumb terminal get plain text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal(Screen()).style("red", "x") != "x"
    monkeypatch.setenv(variable, value)
    assert Terminal(Screen()).style("red", "x") == "x"


def test_summary_names_every_part_and_every_check():
    """The summary shows the failure, the slowest jobs, both timelines and the outcome of each check."""
    evidence = made_evidence()
    checks = run_checks(evidence)
    text = str(Summary(evidence, checks, 3.0, Terminal(io.StringIO())))
    assert "5 submitted = 3 done + 1 failed + 1 cancelled" in text
    assert f"FAILED {MISSING}: MissingFileError: 404 Not Found (as it must)" in text
    assert all(f"ok     {check.name}" in text for check in checks)
    assert f"{len(checks)} of {len(checks)} checks ok, 3.0 s in all" in text
    assert text.count("fetch_0 |") == 2


def test_summary_shows_a_failed_check():
    """A check that did not pass stands there as FAILED, with what is wrong."""
    evidence = altered_body("pkg/mod.py", "wrong")
    text = str(Summary(evidence, run_checks(evidence), 3.0, Terminal(io.StringIO())))
    assert any("FAILED bodies are" in line and "1 wrong: pkg/mod.py" in line for line in text.splitlines())
    assert f"{len(CHECKS) - 1} of {len(CHECKS)} checks ok" in text


def test_summary_can_be_written_in_ascii():
    """A stream without block characters gets other shades, and no error."""
    file = AsciiFile()
    terminal = Terminal(file)
    evidence = made_evidence()
    terminal.write(str(Summary(evidence, run_checks(evidence), 3.0, terminal)))
    assert file.getvalue().isascii()
    assert "#" in file.getvalue()


def test_json_has_what_the_summary_has():
    """The JSON is serialisable as it is, and says whether all is well."""
    for evidence, ok in ((made_evidence(), True), (altered_body("pkg/mod.py", "wrong"), False)):
        figures = json.loads(json.dumps(as_json(evidence, run_checks(evidence), 3.0), allow_nan=False))
        assert figures["ok"] is ok
        assert figures["failures"]["ServerBusyError"] == {"attempts": 1, "jobs": 0}
        assert figures["comparison"]["ThreadPoolExecutor"]["slept"] == BACKOFF


@pytest.mark.parametrize(("make", "status"), [(made_evidence, 0), (lambda: altered_body("pkg/mod.py", "?"), 1)])
def test_exit_status_is_that_of_the_checks(monkeypatch, capsys, make, status):
    """A wrong digest makes the program exit with 1, and nothing but the checks does."""
    monkeypatch.setattr(_demo, "gather", lambda plan, progress: make())
    assert main(["demo", "--json", "--files", "100"]) == status
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is (status == 0)
    assert main(["demo", "--files", "100"]) == status
    assert ("FAILED bodies are" in capsys.readouterr().out) is (status == 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--workers", "0"], "argument --workers: must be from 1 to 256, not '0'"),
        (["demo", "--workers", "-1"], "argument --workers: must be from 1 to 256, not '-1'"),
        (["demo", "--workers", "1.5"], "argument --workers: must be a whole number, not '1.5'"),
        (["demo", "--seed", "x"], "argument --seed: must be a whole number, not 'x'"),
        (["demo", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["nonsense"], "invalid choice: 'nonsense'"),
    ],
)
def test_bad_arguments_are_named_in_one_line(capsys, arguments, words):
    """A bad value exits with 2 and one line that names it."""
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    printed = capsys.readouterr()
    assert exit_info.value.code == 2
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_no_command_prints_help(capsys):
    """Without arguments the program says what it can do."""
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_too_few_files_is_an_error_in_one_line(capsys):
    """A library that cannot be divided is no traceback."""
    assert main(["demo", "--files", "3"]) == 1
    assert "3 Python files are too few" in capsys.readouterr().err


def test_interrupt_is_said_in_one_line(monkeypatch, capsys):
    """KeyboardInterrupt becomes status 130 and a line on standard error."""

    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_demo, "run_demo", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "python -m threadsched demo: interrupted\n"


@contextlib.contextmanager
def started_demo(*arguments):
    """Start the demonstration in a process of its own, which does not outlive the context."""
    with subprocess.Popen(
        [sys.executable, "-m", "threadsched", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.subprocess
def test_demo_succeeds_and_prints_json_alone():
    """The whole demonstration, on fewer files: every check ok, the counts add up, the bound is kept."""
    with started_demo("--json", "--seed", "7", "--workers", "4", "--files", "100") as process:
        out, err = process.communicate(timeout=25)
    assert process.returncode == 0, out + err
    figures = json.loads(out)
    jobs, server = figures["jobs"], figures["server"]
    assert figures["ok"]
    assert all(check["ok"] for check in figures["checks"])
    assert (figures["workers"], figures["seed"], figures["files"]) == (4, 7, 100)
    assert jobs["submitted"] == 101 == jobs["done"] + jobs["failed"] + jobs["cancelled"]
    assert jobs["failed"] == 1
    assert jobs["cancelled"] > 0
    assert jobs["retries"] == server["busy"] > 0
    assert server["requests"] == server["served"] + server["busy"] + server["missing"]
    assert 1 <= server["peak"] <= 4
    assert [job["path"] for job in figures["failed_jobs"]] == [MISSING]
    assert f"FAILED {MISSING}" in err
    assert "Traceback" not in err


@pytest.mark.subprocess
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process")
def test_interrupted_demo_stops_cleanly():
    """Ctrl-C in the middle ends the program soon, with status 130 and one line."""
    with started_demo() as process:
        assert any("FAILED" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "python -m threadsched demo: interrupted\n"


@pytest.mark.subprocess
@pytest.mark.skipif(os.name != "posix", reason="closes a pipe under a process")
def test_demo_without_a_reader_ends_quietly():
    """When whoever reads the output has gone, the program ends with 1 and no traceback."""
    with started_demo("--files", "60") as process:
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=20) == 1
    assert err == ""

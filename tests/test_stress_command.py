"""`python -m threadsched stress`: that it is content with the scheduler as it is, and not with one that is broken."""

import dataclasses
import itertools
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stress_bugs import (
    BUGS,
    LET_GO,
    drop_futures,
    leave_a_thread,
    lose_jobs,
    reverse_priorities,
    run_twice,
    sleep_on,
)
from tests.support import ROOT, SEED, exhaustive, rng, run_script, sample
from tests.test_demo import AsciiFile, Screen
from threadsched import JobStatus, Scheduler, Stats, _stress, _stress_watch
from threadsched.__main__ import main
from threadsched._stress_checks import Start, find_overtaking
from threadsched._stress_load import Batch, Tasks
from threadsched._stress_plan import ORDERS, POLICIES, SHORT_LIMIT, Kind, Settings, draw_kind, promised
from threadsched._stress_report import Account, Histogram, Live, seconds, size, table
from threadsched._stress_watch import ALLOWANCE, SLOPE_BOUND, WARM_UP, Auditor, LogTrap, Memory, impossible, slope
from threadsched._terminal import Terminal

JOBS = 8_000 if exhaustive() else 2_000

SMALL = ["stress", "--jobs", "1500", "--round", "750", "--submitters", "6", "--workers", "3", "--patience", "1"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a small load and return the exit status and standard output."""
    status = main([*SMALL, *arguments])
    return status, capsys.readouterr().out


# ---------------------------------------------------------------- the scheduler as it is


@pytest.mark.proof
@pytest.mark.stress
@pytest.mark.parametrize(
    ("policy", "queue", "interval"),
    [
        ("priority", "lazy", "0.005"),
        ("priority", "indexed", "0.00001"),
        ("fifo", "lazy", "0.00001"),
        ("oldest-due", "lazy", "0.005"),
        ("deadline", "indexed", "0.005"),
        ("aging", "lazy", "0.005"),
    ],
)
def test_every_promise_is_kept(policy: str, queue: str, interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under load, with every policy and both structures, each job is accounted for and the exit status is 0."""
    status, out = run(
        capsys,
        *("--jobs", str(JOBS), "--policy", policy, "--queue", queue, "--switch-interval", interval),
        *("--retry", "0.1", "--delay", "0.2", "--seed", str(rng(f"stress:{policy}:{queue}").randrange(2**32))),
        *("--patience", "20"),
    )
    assert status == 0, f"seed {SEED}\n{out}"
    all_of_them = next(line.split() for line in out.splitlines() if line.startswith("  all "))
    submitted, done, failed, cancelled = (int(word.replace(",", "")) for word in all_of_them[1:5])
    assert submitted == JOBS == done + failed + cancelled
    assert min(done, failed, cancelled) > 0
    for row in ("plain", "failing", "retried", "to be cancelled", "of these delayed"):
        assert any(line.startswith(f"  {row} ") for line in out.splitlines()), row
    assert "started twice" in out
    assert "every promise was kept" in out


def test_one_worker_and_one_submitter(capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest pool is judged like the others; with one worker the order is exact."""
    status, out = run(capsys, "--workers", "1", "--submitters", "1", "--seed", "1")
    assert status == 0, out


def test_submission_ends_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """`--seconds` ends submission, also in the middle of a round, and what was accepted is accounted for."""
    status, out = run(capsys, "--jobs", "100000000", "--round", "5000", "--seconds", "0.1", "--patience", "20")
    assert status == 0, out
    assert "every promise was kept" in out


def test_a_kind_may_have_no_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Shares of 0 leave kinds out, and all jobs may be of one kind."""
    status, out = run(capsys, "--cancel", "0", "--fail", "0", "--retry", "0", "--timeout", "0", "--delay", "0")
    assert status == 0, out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")][1:3] == ["plain", "all"]
    status, out = run(capsys, "--cancel", "1", "--fail", "0", "--retry", "0", "--timeout", "0", "--delay", "1")
    assert status == 0, out


def test_the_check_waits_for_the_callbacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback comes after the end of its job: a round is judged only once all were called that were added."""
    asked, held = threading.Event(), []
    hear, wait = Batch.hear, Batch.await_callbacks

    def late(batch: Batch, offset: int) -> None:
        if not threading.current_thread().name.startswith("submitter"):  # who adds one to a job that has ended calls it
            held.append(offset)
            asked.wait(5)
        hear(batch, offset)

    def ask(batch: Batch, patience: float) -> None:
        asked.set()
        wait(batch, patience)

    monkeypatch.setattr(Batch, "hear", late)
    monkeypatch.setattr(Batch, "await_callbacks", ask)
    plain = ("--cancel", "0", "--fail", "0", "--retry", "0", "--timeout", "0", "--delay", "0")
    status, out = run(capsys, *plain, "--jobs", "12", "--workers", "12", "--submitters", "1", "--seed", "6")
    assert status == 0, out
    assert held, "no job was watched: another seed"


def test_seed_decides_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed submits as many of each kind, another one does not."""
    rows = []
    for seed in ("5", "5", "6"):
        status, out = run(capsys, "--seed", seed)
        assert status == 0, out
        lines = [line.split() for line in out.splitlines()]
        rows.append([words[-5] for words in lines if len(words) >= 6 and words[-1].replace(",", "").isdigit()])
    assert rows[0] == rows[1] != rows[2]


# ---------------------------------------------------------------- a scheduler that is broken


# Those that the ordinary run always has; of the others it has a sample.
HANGING = (lose_jobs, drop_futures, sleep_on, leave_a_thread)
FOREMOST = (run_twice, lose_jobs, drop_futures, reverse_priorities)


@pytest.mark.proof
@pytest.mark.leaves_threads("a broken scheduler may leave its own, as daemons")
@pytest.mark.parametrize(
    "bug", [*FOREMOST, *sample([bug for bug in BUGS if bug not in FOREMOST], 7, "bugs")], ids=lambda bug: bug.__name__
)
def test_a_broken_scheduler_is_found(
    bug: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of these bugs ends the run with exit status 1, says what broke, and how to repeat it."""
    LET_GO.clear()
    try:
        with monkeypatch.context() as patch:
            bug(patch)
            patch.setattr(_stress, "_EXIT_TIMEOUT", 0.2)  # for threads that hang: they are daemons
            patience = "0.5" if bug in HANGING else "2"
            status, out = run(capsys, "--seed", "4711", "--retry", "0.1", "--patience", patience)
    finally:
        LET_GO.set()
    assert status == 1, out
    assert "BROKEN: " in out
    assert BUGS[bug] in out
    assert "Repeat with: python -m threadsched stress " in out
    assert "--seed 4711" in out
    assert "every promise was kept" not in out


def test_memory_that_grows_breaks_a_soak(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --soak the run fails if the memory rises from round to round, and says by how much."""
    growing = itertools.count(50 * 2**20, 2**20)
    monkeypatch.setattr(_stress_watch, "resident", lambda: float(next(growing)))
    status, out = run(capsys, "--soak", "--round", "100")
    assert status == 1
    assert "BROKEN: memory does not stay flat: +" in out
    monkeypatch.setattr(_stress_watch, "resident", lambda: 50.0 * 2**20)
    status, out = run(capsys, "--soak", "--round", "100")
    assert status == 0, out
    assert "memory over time" in out


@pytest.mark.subprocess
def test_a_lock_that_is_never_free_ends_the_process() -> None:
    """When the run itself is held up it cannot report: the process ends with 1, the stacks, and how to repeat it."""
    done = run_script(
        """
        import threading
        from threadsched import Scheduler, _stress_watch
        from threadsched.__main__ import main
        _stress_watch.HELD_UP = 1.0
        genuine = Scheduler.check
        def check(self):
            genuine(self)
            with self._runtime.lock:
                threading.Event().wait()
        Scheduler.check = check
        main(["stress", "--jobs", "100000", "--seed", "4711"])
        """,
        expect=1,
    )
    assert "BROKEN: the run has been held up for 1 s" in done.stderr
    assert "--seed 4711" in done.stderr
    assert "in check" in done.stderr


# ---------------------------------------------------------------- how it judges


def overtaking_by_hand(starts: list[Start]) -> bool:
    return any(
        (a.key, a.seq) < (b.key, b.seq) and a.ready < b.after and b.started < a.after for a in starts for b in starts
    )


def test_overtaking_is_found_wherever_it_is(rng: Any) -> None:
    """The quick search agrees with a comparison of all pairs."""
    found = 0
    for _ in range(400):
        starts = []
        for number in range(rng.randrange(1, 12)):
            ready = rng.randrange(12)
            after = rng.randrange(12)
            starts.append(Start(rng.randrange(3), number, ready, after, after + rng.randrange(1, 4), number))
        pair = find_overtaking(starts)
        assert (pair is not None) == overtaking_by_hand(starts), starts
        if pair is not None:
            found += 1
            assert overtaking_by_hand(list(pair))
    assert 0 < found < 400


def test_what_may_have_been_at_the_same_time_is_no_overtaking() -> None:
    """A job accuses another one only if it was ready before, and waited until after, that one's claim."""
    late = Start(5, 1, ready=0.0, after=1.0, started=1.1, number=1)
    urgent = Start(0, 2, ready=0.5, after=2.0, started=2.1, number=2)
    assert find_overtaking([late, urgent]) == (urgent, late)
    assert find_overtaking([late, urgent._replace(ready=1.0)]) is None
    assert find_overtaking([late, urgent._replace(after=1.1)]) is None
    assert find_overtaking([late, urgent._replace(key=5)]) is None
    assert find_overtaking([late._replace(seq=3), urgent._replace(key=5)]) is not None
    assert find_overtaking([]) is None


STATS = Stats(
    workers=4,
    idle=0,
    running=3,
    pending=6,
    delayed=1,
    ready=3,
    waiting=2,
    submitted=20,
    done=5,
    failed=4,
    cancelled=2,
    retries=1,
    lost_workers=0,
    replaced_workers=0,
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"submitted": 19}, "submitted is not"),
        ({"delayed": 2}, "pending is not"),
        ({"submitted": 17, "done": 2}, "at least 18 and at most 21"),
        ({"submitted": 22, "done": 7}, "at least 18 and at most 21"),
        ({"submitted": 21, "running": 4, "done": 5}, "more run than there are workers"),
        ({"submitted": 21, "running": 4, "done": 5, "lost_workers": 1}, ""),
        ({"waiting": -1, "ready": 6}, "a count is negative"),
        ({"done": 3, "failed": 6}, "done has become less"),
        ({"retries": 0}, "retries has become less"),
    ],
)
def test_counts_that_cannot_be_are_noticed(changed: dict[str, int], words: str) -> None:
    """Each rule about the counts notices what it is for."""
    before = dataclasses.replace(STATS, submitted=18, done=4, failed=3)
    found = impossible(dataclasses.replace(STATS, **changed), before, 18, 21, 3)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_kinds_are_drawn_by_their_shares() -> None:
    """Each kind has its share of the jobs, and what is left is plain."""
    settings = Settings(cancel=0.2, fail=0.1, retry=0.3, timeout=0.15)
    drawn = [draw_kind(settings, draw) for draw in [rng("kinds")] for _ in range(20_000)]
    shares = {kind: drawn.count(kind) / len(drawn) for kind in Kind}
    assert shares == pytest.approx(
        {Kind.PLAIN: 0.25, Kind.FAIL: 0.1, Kind.RETRY: 0.3, Kind.TIMEOUT: 0.15, Kind.CANCEL: 0.2}, abs=0.03
    )


def test_what_is_promised_of_each_kind() -> None:
    """A kind, a number and the answer of a cancel decide how a job ends, and after how many starts."""

    def comes_to(kind: Kind, number: int, cancelled: bool = False) -> tuple[JobStatus, int]:
        promise = promised(kind, number, cancelled)
        return promise.status, promise.starts

    assert comes_to(Kind.PLAIN, 0) == comes_to(Kind.CANCEL, 0) == comes_to(Kind.TIMEOUT, 0) == (JobStatus.DONE, 1)
    assert comes_to(Kind.FAIL, 0) == comes_to(Kind.TIMEOUT, 1) == (JobStatus.FAILED, 1)
    assert [comes_to(Kind.RETRY, number) for number in range(3)] == [
        (JobStatus.DONE, 2),
        (JobStatus.DONE, 3),
        (JobStatus.FAILED, 3),
    ]
    assert comes_to(Kind.CANCEL, 0, True) == (JobStatus.CANCELLED, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_orders_are_those_of_the_policies(policy: str) -> None:
    """The keys that the run goes by rank jobs as the policy's own do, apart from ties."""
    with Scheduler(1) as scheduler:
        scheduler.pause()
        jobs = [
            scheduler.options(priority=one, delay=(7 * one) % 5 / 1000, deadline=(3 * one) % 4 + 1.0).submit(int)
            for one in range(8)
        ]
        made: Any = POLICIES[policy]()
        own = sorted(jobs, key=lambda job: (made.key(job), job.seq))
        assert sorted(jobs, key=lambda job: (ORDERS[policy](job), job.seq)) == own


def test_log_of_a_thread_has_the_bounds_of_each_claim() -> None:
    """A thread writes down, for each start, when the one before it had ended."""
    tasks = Tasks()
    ran = threading.Thread(target=lambda: [tasks.run(number, Kind.PLAIN) for number in (3, 4)])
    ran.start()
    ran.join(5)
    [(numbers, after, started)] = tasks.take()
    assert list(numbers) == [3, 4]
    assert after[0] == 0.0
    assert started[0] <= after[1] <= started[1]
    assert tasks.take() == []  # the thread has ended, and its log with it


def test_auditor_compares_with_what_was_submitted() -> None:
    """A look finds counts that the submitters' own records contradict."""
    broken: list[str] = []
    with Scheduler(1) as scheduler:
        fake: Any = SimpleNamespace(
            scheduler=scheduler,
            settings=Settings(workers=1),
            accepted=lambda: 1,
            begun=lambda: 1,
            broke=lambda what, cause=None: broken.append(what),
        )
        auditor = Auditor(fake)
        before = scheduler.stats()
        auditor.look(before)
        assert len(broken) == 1
        scheduler.submit(int).result(5)
        auditor.look(before)
        assert len(broken) == 1
        assert auditor.looks == 2


# ---------------------------------------------------------------- what it prints


def test_histogram_knows_percentiles() -> None:
    """A percentile is exact to 3 %, and the maximum exact."""
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    assert histogram.percentile(0.5) == pytest.approx(0.5, rel=0.03)
    assert histogram.percentile(0.99) == pytest.approx(0.99, rel=0.03)
    assert histogram.percentile(1.0) == histogram.most == 1.0
    assert math.isnan(Histogram().percentile(0.5))


def test_durations_and_sizes_have_fitting_units() -> None:
    """A duration is told in s, ms or µs, a size in MiB."""
    assert [seconds(value) for value in (2.5, 0.0123, 0.000004, math.nan)] == ["2.5 s", "12.3 ms", "4 µs", "-"]
    assert [size(value) for value in (1.5 * 2**20, None)] == ["1.5 MiB", "unknown here"]


def test_slope_is_the_least_squares_one() -> None:
    """A straight line has its slope; noise round it does not count; too few samples have none."""
    assert slope([(x, 3.0 * x + 7) for x in range(10)]) == pytest.approx(3.0)
    assert slope([(0, 1), (1, -1), (2, -1), (3, 1)]) == 0.0
    assert slope([(1.0, 5.0)]) == slope([]) == 0.0


def test_page_says_what_a_soak_allows() -> None:
    """The slope, the allowance and the warm-up on the page are those that a soak is judged by."""
    page = " ".join((ROOT / "docs" / "guide" / "stress.md").read_text(encoding="utf-8").split())
    assert WARM_UP == 1 / 5
    assert "The first fifth of the run is left out" in page
    allowed = f"more than {SLOPE_BOUND / 1024:g} KiB a second and {ALLOWANCE / 2**20:g} MiB beside that"
    assert f"lays a line by least squares. The run fails if that line rises by {allowed}" in page


def test_memory_is_judged_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rises at first and then stays is flat; what goes on rising is not."""

    def judge(size_at: Any) -> tuple[bool, str]:
        clock = iter(range(0, 10_000, 2))
        latest = [0]

        def now() -> float:
            latest[0] = next(clock)
            return latest[0]

        monkeypatch.setattr(_stress_watch, "time", SimpleNamespace(monotonic=now))
        monkeypatch.setattr(_stress_watch, "resident", lambda: float(size_at(latest[0] + 2)))
        memory = Memory()
        for _ in range(300):
            memory.sample()
        assert len(memory.samples) == 300
        return memory.verdict()

    assert judge(lambda second: 1e8 + min(second, 100) * 1e6)[0]
    flat, text = judge(lambda second: 1e8 + second * 2 * (SLOPE_BOUND + ALLOWANCE / 600))
    assert not flat
    assert text.startswith("+")
    assert Memory().verdict() == (False, "unknown: fewer than three samples")


def test_table_adds_up() -> None:
    """The row of all jobs is the sum of the kinds; the delayed ones are told apart."""
    account = Account()
    account.enter(Kind.PLAIN, JobStatus.DONE, 1, delayed=False)
    account.enter(Kind.RETRY, JobStatus.FAILED, 3, delayed=True)
    account.enter(Kind.CANCEL, JobStatus.CANCELLED, 0, delayed=True)
    assert list(account.rows())[-2:] == [("all", 3, 1, 1, 1, 4), ("of these delayed", 2, 0, 1, 1, 3)]
    assert account.retries == 2
    assert ["all", "3", "1", "1", "1", "4"] in [line.split() for line in table(account).splitlines()]


def test_live_line_is_rewritten_on_a_terminal_and_plain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal each look rewrites the line; in a file lines do not follow each other at every look."""
    monkeypatch.setenv("TERM", "xterm")
    screen, file = Screen(), AsciiFile()
    for stream in (screen, file):
        live = Live(Terminal(stream))
        live.show(STATS, 2**20)
        live.show(STATS, 2**20)
        live.close()
    assert screen.getvalue().count("\r\x1b[K") == 3
    assert "\n" not in screen.getvalue()
    assert file.getvalue().count("\n") == 1
    assert " 20 submitted " in file.getvalue()


def test_log_trap_keeps_records_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """While it is set, what the scheduler logs reaches nobody else; afterwards it does again."""
    logger = logging.getLogger("threadsched")
    with LogTrap().set() as trap:
        logger.warning("of no interest")
        logger.error("of interest")
    logger.error("as ever")
    assert (trap.warnings, trap.errors) == (1, ["of interest"])
    assert [record.getMessage() for record in caplog.records] == ["as ever"]


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "argument --jobs: must be at least 1, not '0'"),
        (["--jobs", "many"], "argument --jobs: must be a whole number, not 'many'"),
        (["--workers", "0"], "argument --workers: must be from 1 to 256, not '0'"),
        (["--seconds", "0"], "argument --seconds: must be seconds above 0, not '0'"),
        (["--seconds", "nan"], "argument --seconds: must be a number, not 'nan'"),
        (["--cancel", "1.5"], "argument --cancel: must be from 0 to 1, not '1.5'"),
        (["--fail", "-0.1"], "argument --fail: must be from 0 to 1, not '-0.1'"),
        (["--cancel", "0.5", "--fail", "0.5"], "shares of all jobs, and together 1.06, above 1"),
        (["--policy", "random"], "invalid choice: 'random'"),
        (["--queue", "none"], "invalid choice: 'none'"),
    ],
)
def test_bad_arguments_are_usage_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """A bad value exits with 2 and one line that names it."""
    with pytest.raises(SystemExit) as exit_info:
        main(["stress", *arguments])
    printed = capsys.readouterr()
    assert exit_info.value.code == 2
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_policies_of_the_command_line_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Every policy can be named, and no other."""
    with pytest.raises(SystemExit):
        main(["stress", "--policy", "x"])
    said = capsys.readouterr().err
    assert all(name in said for name in POLICIES)
    assert set(POLICIES) == set(ORDERS)


def test_command_repeats_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed to repeat a run gives the same settings."""
    asked: list[Settings] = []
    monkeypatch.setattr(_stress, "run_stress", lambda settings: asked.append(settings) or 0)
    main(["stress", "--seed", "7", "--soak", "--switch-interval", "1e-6", "--queue", "indexed"])
    main(asked[0].command().split()[3:])
    main(["stress"])
    assert asked[0] == asked[1]
    assert (asked[0].jobs, asked[0].seconds) == (None, 600.0)
    assert (asked[2].jobs, asked[2].seconds) == (1_000_000, 60.0)


@pytest.mark.subprocess
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process")
def test_interrupted_run_stops_cleanly() -> None:
    """Ctrl-C in the middle ends the program soon, with status 130 and one line beside the progress."""
    command = [sys.executable, "-m", "threadsched", "stress", "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stderr is not None
            assert "submitted" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "python -m threadsched stress: interrupted"
    assert "Traceback" not in err


def test_a_task_that_begins_after_its_limit_has_passed_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that the system kept from its task until the job had failed: the round waits for it, and no longer."""
    run_task = Tasks.run

    def late(tasks: Tasks, number: int, kind: Kind) -> int:
        if kind is Kind.TIMEOUT:
            threading.Event().wait(60 * SHORT_LIMIT)
        return run_task(tasks, number, kind)

    monkeypatch.setattr(Tasks, "run", late)
    kinds = ("--timeout", "0.9", "--cancel", "0", "--fail", "0", "--delay", "0")
    status, out = run(capsys, "--jobs", "30", "--submitters", "2", "--workers", "4", *kinds)
    assert status == 0, out

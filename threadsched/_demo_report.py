"""The demonstration's summary: text for a reader and the same figures for a program.

In here: what is computed from the evidence (percentiles, the workers' timeline, failures by kind) and how
it is laid out. Deliberately not in here: any judgement. Whether the figures are as they must be is for
`_demo_checks` to say; here it is only printed. Live progress is in `_demo_progress`.
"""

import math
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from threadsched import JobInfo, JobStatus
from threadsched._demo_checks import Check, Evidence, ScheduledRun
from threadsched._demo_client import Attempt
from threadsched._demo_plan import MISSING, RETRIES, Plan
from threadsched._terminal import Terminal

# Columns. A timeline is not drawn wider than this, nor with more rows: beyond it nobody compares two cells.
_MAX_CELLS = 60
_MAX_ROWS = 16

_SLOWEST = 5

_SHADES = " ░▒▓█"
_ASCII_SHADES = " .-+#"

Row = tuple[str, float, list[float]]


def introduction(plan: Plan, terminal: Terminal) -> str:
    """Return a few lines that say what is about to happen."""
    packages = sum(source.opens_package for source in plan.sources)
    later = f"{plan.second_delay:.1f} s later; {plan.doomed}/ ({len(plan.doomed_paths)} files) to be cancelled"
    latency, pause = plan.behaviour.latency * 1000, plan.backoff * 1000
    refused = f"{plan.behaviour.busy_share:.0%} of them 503, busy"
    lines = (
        terminal.style("bold", "threadsched demo: the standard library, fetched over HTTP"),
        f"  files        {len(plan.sources):>5,}, {packages} of them the __init__.py of a package",
        f"  workers      {plan.workers:>5,}",
        f"  first wave   {len(plan.first):>5,} files and one that does not exist; __init__.py first",
        f"  second wave  {len(plan.second):>5,} files, {later}",
        f"  answers      {latency:>5.0f} ms or so; {refused}; seed {plan.behaviour.seed}",
        f"  retries      {RETRIES:>5} at most, after {pause:.0f} ms, then twice as long each time",
    )
    return "\n".join(lines) + "\n\n"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; NaN if there are none.

    Args:
        values: In any order.
        share: From 0 (the smallest value) to 1 (the largest).
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the maximum."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: percentile(values, share) for name, share in shares.items()}


def waits(run: ScheduledRun) -> list[float]:
    """Return how long each job that ran had to wait, once it was due, for its last start; seconds."""
    return [info.started_at - info.run_at for info in run.infos.values() if info.started_at is not None]


def runs(run: ScheduledRun) -> list[float]:
    """Return how long the last attempt of each job that ran took; seconds."""
    return [_run_time(info) for info in run.infos.values() if info.started_at is not None]


def slowest(run: ScheduledRun) -> list[JobInfo]:
    """Return the jobs whose last attempt took longest, the longest first."""
    ran = [info for info in run.infos.values() if info.started_at is not None]
    return sorted(ran, key=_run_time, reverse=True)[:_SLOWEST]


def span(attempts: Sequence[Attempt]) -> float:
    """Return the seconds from the first request to the last answer."""
    return max(a.ended for a in attempts) - min(a.started for a in attempts) if attempts else 0.0


def timeline(attempts: Sequence[Attempt], duration: float, cells: int) -> list[Row]:
    """Return, for each worker, its name, the share of the time that it was busy, and that share by cell.

    Args:
        attempts: What the workers did; the first of them begins the time axis.
        duration: Seconds that the axis covers.
        cells: How many equal parts it is divided into.
    """
    begin = min(attempt.started for attempt in attempts)
    step = duration / cells
    busy: dict[str, list[float]] = {}
    for attempt in attempts:
        row = busy.setdefault(attempt.worker, [0.0] * cells)
        start, end = attempt.started - begin, attempt.ended - begin
        for cell in range(int(start / step), min(cells, int(end / step) + 1)):
            row[cell] += max(0.0, min(end, (cell + 1) * step) - max(start, cell * step))
    return [
        (worker, sum(row) / duration, [min(1.0, part / step) for part in row])
        for worker, row in sorted(busy.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def shade(share: float, shades: str = _SHADES) -> str:
    """Return a character for a share from 0 to 1: the darker, the busier; only 0 is blank."""
    return shades[math.ceil(share * (len(shades) - 1))]


def failures_by_kind(run: ScheduledRun) -> dict[str, dict[str, int]]:
    """Return, for each kind of failure, how many attempts met it and how many jobs ended with it."""
    attempts = Counter({"ServerBusyError": 0, "MissingFileError": 0})
    names = {503: "ServerBusyError", 404: "MissingFileError", 0: "no answer"}
    attempts.update(names.get(a.status, f"status {a.status}") for a in run.attempts if a.status != 200)
    jobs = Counter(type(error).__name__ for error in run.errors.values())
    return {kind: {"attempts": attempts[kind], "jobs": jobs[kind]} for kind in attempts | jobs}


def as_json(evidence: Evidence, checks: Sequence[Check], elapsed: float) -> dict[str, Any]:
    """Return all figures as what `json.dumps` takes.

    Args:
        evidence: What came of the run.
        checks: What was found true of it and what was not.
        elapsed: Seconds that the whole demonstration took.
    """
    plan, run = evidence.plan, evidence.scheduled
    server = {name: value for name, value in asdict(run.tally).items() if name != "attempts"}
    return {
        "ok": all(check.ok for check in checks),
        "python": platform.python_version(),
        "workers": plan.workers,
        "seed": plan.behaviour.seed,
        "elapsed": elapsed,
        "files": len(plan.sources),
        "bytes": sum(body.size for body in run.bodies.values()),
        "waves": {"first": len(plan.first), "second": len(plan.second), "second_delay": plan.second_delay},
        "jobs": {name: getattr(run.stats, name) for name in ("submitted", "done", "failed", "cancelled", "retries")},
        "cancelled_package": plan.doomed,
        "failed_jobs": [_job_figures(info) for info in run.with_status(JobStatus.FAILED)],
        "server": server,
        "wait": distribution(waits(run)),
        "run": distribution(runs(run)),
        "slowest": [_job_figures(info) for info in slowest(run)],
        "failures": failures_by_kind(run),
        "workers_busy": {name: share for name, share, _ in timeline(run.attempts, span(run.attempts), 1)},
        "comparison": _comparison(evidence),
        "checks": [asdict(check) for check in checks],
    }


def _comparison(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Return time, rate and sleep of both runs."""
    run, other = evidence.scheduled, evidence.by_hand
    times = {"threadsched": (run.attempts, len(run.bodies), 0.0)}
    times["ThreadPoolExecutor"] = (other.attempts, len(other.bodies), other.slept)
    return {
        name: {
            "files": files,
            "requests": len(attempts),
            "time": span(attempts),
            "rate": files / span(attempts) if attempts else 0.0,
            "slept": slept,
        }
        for name, (attempts, files, slept) in times.items()
    }


def _job_figures(info: JobInfo) -> dict[str, Any]:
    """Return one job for JSON."""
    return {
        "path": info.id,
        "error": info.error,
        "attempts": info.attempts,
        "worker": info.worker,
        "wait": (info.started_at or info.run_at) - info.run_at,
        "run": _run_time(info),
    }


def _run_time(info: JobInfo) -> float:
    """Return the seconds between the last start and the end; 0 for a job that has not both."""
    return 0.0 if info.started_at is None or info.finished_at is None else info.finished_at - info.started_at


class Summary:
    """Lays the evidence out for a reader, part by part, as lines."""

    def __init__(self, evidence: Evidence, checks: Sequence[Check], elapsed: float, terminal: Terminal) -> None:
        """Take what `as_json` takes, and where it will be shown."""
        self._evidence = evidence
        self._checks = checks
        self._elapsed = elapsed
        self._terminal = terminal
        self._ellipsis = "…" if terminal.unicode else "..."

    def __str__(self) -> str:
        """Return the whole summary."""
        parts = (
            self.counts,
            self.times,
            self.slowest,
            self.failures,
            self.workers,
            self.comparison,
            self.checks,
        )
        return "".join(line + "\n" for part in parts for line in ("", *part()))

    def counts(self) -> Iterator[str]:
        """Yield what was submitted and what became of it, on both sides of the wire."""
        run, plan = self._evidence.scheduled, self._evidence.plan
        stats, tally = run.stats, run.tally
        size = sum(body.size for body in run.bodies.values()) / 1e6
        ended = f"{stats.done:,} done + {stats.failed} failed + {stats.cancelled} cancelled"
        answered = f"{tally.served:,} answered + {tally.busy} busy (503) + {tally.missing} missing (404)"
        bound = f"at most, by the server's own count; {plan.workers} allowed; {tally.connections} connections"
        yield self._title("Counts")
        yield f"  jobs       {stats.submitted:>6,} submitted = {ended}"
        yield f"  requests   {tally.requests:>6,} received  = {answered}"
        yield f"  in flight  {tally.peak:>6,} {bound}"
        yield f"  megabytes  {size:>6,.1f} fetched, each body compared by SHA-256 with the file on disk"

    def times(self) -> Iterator[str]:
        """Yield the distribution of waits and runs."""
        run = self._evidence.scheduled
        labelled = {
            "wait, from being due to the start": distribution(waits(run)),
            "run, from the start to the end": distribution(runs(run)),
        }
        yield self._title(f"{'Times in ms':<36}" + "".join(f"{name:>9}" for name in distribution([])))
        for label, values in labelled.items():
            yield f"  {label:<34}" + "".join(f"{value * 1000:9.1f}" for value in values.values())

    def slowest(self) -> Iterator[str]:
        """Yield the slowest jobs."""
        yield self._title(f"{'Slowest jobs':<38}{'run':>9}{'wait':>9}  attempts  worker")
        for info in slowest(self._evidence.scheduled):
            figures = _job_figures(info)
            yield (
                f"  {_shortened(str(info.id), 34, self._ellipsis):<34}  {figures['run'] * 1000:6.0f} ms"
                f"{figures['wait'] * 1000:6.0f} ms{info.attempts:10}  {info.worker}"
            )

    def failures(self) -> Iterator[str]:
        """Yield failures by kind, and each job that FAILED by name."""
        run = self._evidence.scheduled
        yield self._title(f"{'Failures by kind':<36}{'attempts':>9}{'jobs':>9}")
        for kind, counts in failures_by_kind(run).items():
            yield f"  {kind:<34}{counts['attempts']:>9,}{counts['jobs']:>9,}"
        for info in run.with_status(JobStatus.FAILED):
            expected = " (as it must)" if info.id == MISSING else ""
            yield "  " + self._terminal.style("red", f"FAILED {info.id}: {info.error}") + expected

    def workers(self) -> Iterator[str]:
        """Yield the timelines of both runs, on one scale."""
        run, other = self._evidence.scheduled, self._evidence.by_hand
        longest = max(span(run.attempts), span(other.attempts))
        yield (self._title("Workers over time") + f"  (0 to {longest:.1f} s; the darker, the busier; % of its own run)")
        for title, attempts in (("threadsched", run.attempts), ("ThreadPoolExecutor", other.attempts)):
            yield f"  {title}"
            yield from self._rows(attempts, longest)

    def _rows(self, attempts: Sequence[Attempt], duration: float) -> Iterator[str]:
        """Yield one timeline."""
        cells = max(10, min(_MAX_CELLS, self._terminal.width - 24))
        shades = _SHADES if self._terminal.unicode else _ASCII_SHADES
        rows = timeline(attempts, duration, cells)
        scale = duration / span(attempts)
        for worker, share, parts in rows[:_MAX_ROWS]:
            drawn = "".join(shade(part, shades) for part in parts)
            yield f"  {worker:>9} |{drawn}| {share * scale:4.0%}"
        if len(rows) > _MAX_ROWS:
            yield f"  and {len(rows) - _MAX_ROWS} more workers"

    def comparison(self) -> Iterator[str]:
        """Yield both runs side by side."""
        yield self._title(f"{'Side by side':<21}    files requests     time     rate  workers asleep")
        for name, figures in _comparison(self._evidence).items():
            yield (
                f"  {name:<19}{figures['files']:>9,}{figures['requests']:>9,}{figures['time']:>7.2f} s"
                f"{figures['rate']:>7.0f}/s{figures['slept']:>14.1f} s"
            )

    def checks(self) -> Iterator[str]:
        """Yield every check with its outcome, and the outcome of all."""
        yield self._title("Checks")
        for check in self._checks:
            outcome = self._terminal.style("green", "ok    ") if check.ok else self._terminal.style("red", "FAILED")
            yield f"  {outcome} {check.name:<27} {check.detail}"
        failed = sum(not check.ok for check in self._checks)
        passed = f"{len(self._checks) - failed} of {len(self._checks)} checks ok"
        yield ""
        yield self._terminal.style("red" if failed else "green", passed) + f", {self._elapsed:.1f} s in all"

    def _title(self, text: str) -> str:
        """Return a heading."""
        return self._terminal.style("bold", text)


def _shortened(text: str, width: int, ellipsis: str) -> str:
    """Return the text, without its beginning if it is too long: the end of a path tells more."""
    return text if len(text) <= width else ellipsis + text[len(text) - width + len(ellipsis) :]

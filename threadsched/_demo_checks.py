"""What a run of the demonstration leaves behind, and what must be true of it.

In here: the evidence (`ScheduledRun`, `HandRun`, `Evidence`) and one small function a check. Each looks at
the evidence alone, says what it compared, and passes or does not; the demonstration succeeds if all do.
Deliberately not in here: how the evidence was gathered, and how the outcome is printed.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from threadsched import JobInfo, JobStatus, ShutdownReport, Stats
from threadsched._demo_client import Attempt, Body, MissingFileError, Source
from threadsched._demo_plan import MISSING, Plan
from threadsched._demo_server import Tally

# Seconds. Two readings of a clock, added and subtracted, differ in the last digits.
_ROUNDING = 1e-6

# Seconds. A job that comes due while a worker is choosing may have to wait for the next choice, and a
# thread may be kept from running between reading the clock and choosing.
_CHOICE = 0.05


@dataclass(frozen=True)
class ScheduledRun:
    """What the fetch through the scheduler left behind; dictionaries are by path.

    Attributes:
        infos: Every job, as it described itself at the end.
        bodies: What arrived.
        errors: What the failed jobs raised.
        second_opens: When the second wave became eligible, on the monotonic clock.
        revoked: Jobs for which `cancel` answered True.
        revoked_again: How many of them a second `cancel` claimed to have cancelled once more.
        audit: What `Scheduler.check` found broken, or an empty string.
        stats: The scheduler's counts at the end.
        leftover: What its shutdown reported.
        attempts: Every request sent, as the client saw it.
        tally: What the server counted.
    """

    infos: dict[str, JobInfo]
    bodies: dict[str, Body]
    errors: dict[str, BaseException]
    second_opens: float
    revoked: frozenset[str]
    revoked_again: int
    audit: str
    stats: Stats
    leftover: ShutdownReport
    attempts: list[Attempt]
    tally: Tally

    def with_status(self, status: JobStatus) -> list[JobInfo]:
        """Return the jobs that ended so."""
        return [info for info in self.infos.values() if info.status is status]


@dataclass(frozen=True)
class HandRun:
    """What the same fetch through a `ThreadPoolExecutor` left behind.

    Attributes:
        bodies: What arrived, by path.
        errors: What the failed fetches raised, by path.
        attempts: Every request sent, as the client saw it.
        tally: What the server counted.
        slept: Seconds that workers slept between two tries, added up.
    """

    bodies: dict[str, Body]
    errors: dict[str, BaseException]
    attempts: list[Attempt]
    tally: Tally
    slept: float


@dataclass(frozen=True)
class Evidence:
    """A plan and what came of it."""

    plan: Plan
    scheduled: ScheduledRun
    by_hand: HandRun


@dataclass(frozen=True)
class Check:
    """One thing that must be true: what, whether it is, and the figures that were compared."""

    name: str
    ok: bool
    detail: str


Verdict = tuple[bool, str]


def counts_add_up(evidence: Evidence) -> Verdict:
    """Nothing is lost: what was submitted has ended, in one of three ways."""
    stats = evidence.scheduled.stats
    submitted = len(evidence.plan.sources) + 1
    ok = stats.submitted == submitted == stats.done + stats.failed + stats.cancelled
    ok = ok and stats.pending == stats.running == 0
    return ok, f"{stats.submitted} = {stats.done} done + {stats.failed} failed + {stats.cancelled} cancelled"


def jobs_agree(evidence: Evidence) -> Verdict:
    """The counts of `stats` are those found by asking every job."""
    run = evidence.scheduled
    counted = Counter(info.status for info in run.infos.values())
    asked = tuple(counted[status] for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED))
    results = (len(run.bodies), len(run.errors), len(run.revoked))
    ok = asked == results == (run.stats.done, run.stats.failed, run.stats.cancelled)
    return ok, f"{asked[0]} + {asked[1]} + {asked[2]} jobs; {results[0]} bodies, {results[1]} error"


def bodies_match(evidence: Evidence) -> Verdict:
    """Every file that was not cancelled arrived as it is on disk."""
    run = evidence.scheduled
    wanted = [source for source in evidence.plan.sources if source.path not in run.revoked]
    wrong = _mismatches(wanted, run.bodies)
    return not wrong, _wrong_or(wrong, f"{len(wanted)} bodies, SHA-256 compared")


def missing_file_failed(evidence: Evidence) -> Verdict:
    """The file that does not exist is the only failure, and was not tried twice."""
    run = evidence.scheduled
    failed = run.with_status(JobStatus.FAILED)
    ok = [info.id for info in failed] == [MISSING] and failed[0].attempts == 1
    ok = ok and isinstance(run.errors.get(MISSING), MissingFileError)
    return ok, "; ".join(f"{info.error}, {info.attempts} attempt" for info in failed) or "nothing failed"


def in_flight_bounded(evidence: Evidence) -> Verdict:
    """The server never saw more requests at once than there are workers."""
    tally = evidence.scheduled.tally
    ok = 1 <= tally.peak <= evidence.plan.workers and tally.in_flight == 0
    return ok, f"at most {tally.peak} seen by the server, {evidence.plan.workers} allowed"


def server_agrees(evidence: Evidence) -> Verdict:
    """The server counted what its clients saw."""
    run, tally = evidence.scheduled, evidence.scheduled.tally
    seen = Counter(attempt.status for attempt in run.attempts)
    ok = (tally.served, tally.busy, tally.missing) == (seen[200], seen[503], seen[404])
    ok = ok and tally.requests == len(run.attempts) == seen[200] + seen[503] + seen[404] and tally.broken == 0
    statuses = f"{seen[200]} + {seen[503]} busy + {seen[404]} missing"
    return ok, f"{tally.requests} requests = {statuses}"


def attempts_agree(evidence: Evidence) -> Verdict:
    """Every job's number of attempts is the number of requests that the server got for its path."""
    run = evidence.scheduled
    wrong = [path for path, info in run.infos.items() if info.attempts != run.tally.attempts.get(path, 0)]
    return not wrong, _wrong_or(wrong, f"{sum(info.attempts for info in run.infos.values())} attempts, path by path")


def refusals_foretold(evidence: Evidence) -> Verdict:
    """The refusals are those that the seed foretells, and each was followed by one retry."""
    run, behaviour = evidence.scheduled, evidence.plan.behaviour
    foretold = sum(behaviour.refusals(path) for path in evidence.plan.paths - run.revoked)
    # What was cancelled while it waited for a retry had been refused at every attempt.
    foretold += sum(run.infos[path].attempts for path in run.revoked)
    ok = foretold == run.tally.busy == run.stats.retries
    return ok, f"{foretold} by the seed, {run.tally.busy} met, {run.stats.retries} retries"


def backoff_kept(evidence: Evidence) -> Verdict:
    """No retry came before its backoff was over."""
    early, retries = [], 0
    latest: dict[str, list[Attempt]] = {}
    for attempt in evidence.scheduled.attempts:
        earlier = latest.setdefault(attempt.path, [])
        if earlier:
            retries += 1
            pause = attempt.started - earlier[-1].ended
            if pause < evidence.plan.backoff * 2 ** (len(earlier) - 1) - _ROUNDING:
                early.append(attempt.path)
        earlier.append(attempt)
    return not early, _wrong_or(early, f"{retries} retries, none came early")


def packages_first(evidence: Evidence) -> Verdict:
    """No module was started while a package's `__init__.py` was ready to start."""
    infos = evidence.scheduled.infos
    packages = [infos[source.path] for source in evidence.plan.sources if source.opens_package]
    modules = [infos[source.path] for source in evidence.plan.sources if not source.opens_package]
    # A retried job tells only its last start; what it did before cannot be judged from here.
    starts = sorted(info.started_at for info in modules if info.attempts == 1 and info.started_at is not None)
    overtaken = [str(info.id) for info in packages if info.attempts == 1 and _overtaken(info, starts)]
    first = sum(info.attempts > 0 for info in packages)
    return not overtaken, _wrong_or(overtaken, f"{first} __init__.py, none overtaken by a module")


def second_wave_waited(evidence: Evidence) -> Verdict:
    """No file of the second wave was asked for before the wave opened."""
    second = {source.path for source in evidence.plan.second}
    asked = [attempt for attempt in evidence.scheduled.attempts if attempt.path in second]
    opens = evidence.scheduled.second_opens - _ROUNDING
    early = [attempt.path for attempt in asked if attempt.started < opens]
    return not early, _wrong_or(early, f"{len(asked)} requests, none before it opened")


def cancelled_stay_cancelled(evidence: Evidence) -> Verdict:
    """Each job of the doomed package was either cancelled, and brought nothing, or ran to its end."""
    run, doomed = evidence.scheduled, evidence.plan.doomed_paths
    cancelled = {str(info.id) for info in run.with_status(JobStatus.CANCELLED)}
    served = {attempt.path for attempt in run.attempts if attempt.status == 200}
    wrong = [path for path in doomed if (path in run.revoked) == (path in served)]
    ok = cancelled == run.revoked <= set(doomed) and bool(run.revoked) and run.revoked_again == 0
    started = sum(run.infos[path].attempts > 0 for path in run.revoked)
    detail = f"{len(run.revoked)} of {len(doomed)} of {evidence.plan.doomed}/, {started} after a refusal"
    return ok and not wrong, _wrong_or(wrong, detail)


def nothing_left(evidence: Evidence) -> Verdict:
    """The scheduler's audit finds every invariant whole, and its shutdown leaves nothing behind."""
    run = evidence.scheduled
    ok = not run.audit and bool(run.leftover)
    return (
        ok,
        run.audit or f"{run.leftover.pending} pending, {len(run.leftover.running)} running after it",
    )


def comparison_is_fair(evidence: Evidence) -> Verdict:
    """The comparison fetched the same files, met the same refusals, and got the same bodies."""
    run, other = evidence.scheduled, evidence.by_hand
    asked = {path: count for path, count in run.tally.attempts.items() if path not in run.revoked}
    same = run.bodies == other.bodies and set(other.errors) == {MISSING}
    same = same and other.tally.attempts == asked and other.tally.peak <= evidence.plan.workers
    return same, f"{len(other.bodies)} bodies, {other.tally.requests} requests, {other.tally.busy} refusals"


CHECKS: tuple[tuple[str, Callable[[Evidence], Verdict]], ...] = (
    ("every job has ended", counts_add_up),
    ("stats() and jobs agree", jobs_agree),
    ("bodies are as on disk", bodies_match),
    ("missing file FAILED, alone", missing_file_failed),
    ("bound in flight kept", in_flight_bounded),
    ("server and client agree", server_agrees),
    ("attempts are requests", attempts_agree),
    ("refusals as foretold", refusals_foretold),
    ("retries waited", backoff_kept),
    ("packages came first", packages_first),
    ("second wave waited", second_wave_waited),
    ("cancelled stay cancelled", cancelled_stay_cancelled),
    ("audit and shutdown clean", nothing_left),
    ("comparison is fair", comparison_is_fair),
)


def run_checks(evidence: Evidence) -> list[Check]:
    """Apply every check; one that raises has failed, and says with what."""
    return [_run_check(name, check, evidence) for name, check in CHECKS]


def _run_check(name: str, check: Callable[[Evidence], Verdict], evidence: Evidence) -> Check:
    """Apply one check."""
    try:
        ok, detail = check(evidence)
    except Exception as error:
        # Evidence so incomplete that it cannot be judged is itself the finding.
        return Check(name, False, f"{type(error).__name__}: {error}")
    return Check(name, ok, detail)


def _overtaken(info: JobInfo, starts: Sequence[float]) -> bool:
    """Say whether one of the sorted `starts` lies between this job's coming due and its own start."""
    nearest = bisect.bisect_right(starts, info.run_at + _CHOICE)
    return info.started_at is not None and nearest < len(starts) and starts[nearest] < info.started_at


def _mismatches(wanted: Iterable[Source], bodies: dict[str, Body]) -> list[str]:
    """Return the paths whose body is absent or differs from the file."""
    return [
        source.path
        for source in wanted
        if (body := bodies.get(source.path)) is None or (body.size, body.digest) != (source.size, source.digest)
    ]


def _wrong_or(wrong: list[str], detail: str) -> str:
    """Name the first few that are wrong, or give the detail if none is."""
    if not wrong:
        return detail
    return f"{len(wrong)} wrong: " + ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")

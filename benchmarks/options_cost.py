"""What each feature costs: no-op jobs with an option, a policy or a setting, against the same jobs without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import threadsched
from benchmarks._command import Settings, run
from benchmarks._pairs import compare
from benchmarks._pools import WORKERS, noop
from benchmarks._rows import Row
from threadsched import Limit, Scheduler

Submit = Callable[[Callable[[], object]], Future[Any]]

DONE: Future[None] = Future()
DONE.set_result(None)


@dataclass(frozen=True)
class Feature:
    """A way to submit: ``settings`` for the scheduler, and what makes the submitting call from it."""

    key: str
    words: str
    make: Callable[[Scheduler], Submit]
    settings: Callable[[], dict[str, Any]] = dict
    task: Callable[[], object] = noop


class LowestNumber:
    """A policy of the user's own that compares."""

    def before(self, a: Any, b: Any) -> bool:
        return bool(a.priority < b.priority)


class OwnKey:
    """A policy of the user's own with a key."""

    def key(self, job: Any) -> float:
        return float(job.priority)


async def coroutine() -> None:
    """Do nothing, as a coroutine."""


def plain(scheduler: Scheduler) -> Submit:
    return scheduler.submit


def kept(**options: Any) -> Callable[[Scheduler], Submit]:
    """Submit with one ``options(...)`` for all jobs."""
    return lambda scheduler: scheduler.options(**options).submit


def made(**options: Any) -> Callable[[Scheduler], Submit]:
    """Submit with an ``options(...)`` made for each job."""

    def make(scheduler: Scheduler) -> Submit:
        remade = scheduler.options
        return lambda fn: remade(**options).submit(fn)

    return make


def with_ids(scheduler: Scheduler) -> Submit:
    """Give each job an id of its own."""
    remade, numbers = scheduler.options, iter(range(10**9))
    return lambda fn: remade(id=f"job-{next(numbers)}").submit(fn)


def with_parent(scheduler: Scheduler) -> Submit:
    """Make each job wait for a job of the same scheduler that has ended."""
    parent = scheduler.submit(noop)
    parent.result()
    return scheduler.options(after=[parent]).submit


def with_callback(scheduler: Scheduler) -> Submit:
    """Add a done-callback to each job."""
    submit = scheduler.submit

    def submit_watched(fn: Callable[[], object]) -> Future[Any]:
        job = submit(fn)
        job.add_done_callback(seen)
        return job

    return submit_watched


def seen(job: object) -> None:
    """Take note of nothing."""


TARGETS = (
    Feature("kept", "`priority` and `retries`, one `options(...)` re-used", kept(priority=3, retries=2)),
    Feature("made", "`priority` and `retries`, an `options(...)` for each job", made(priority=3, retries=2)),
)

FEATURES = (
    Feature("empty", "an `options()` without any, re-used", kept()),
    Feature("priority", "`priority`", kept(priority=3)),
    Feature("retries", "`retries`, none needed", kept(retries=2)),
    Feature("delay", "`delay` of a microsecond", kept(delay=1e-6)),
    Feature("name", "`name`", kept(name="a name")),
    Feature("id", "`id`, an `options(...)` for each job", with_ids),
    Feature("context", "`context=False`", kept(context=False)),
    Feature("deadline", "`deadline` under `DeadlinePolicy`", kept(deadline=60), lambda: {"policy": policy("Deadline")}),
    Feature("timeout", "`timeout`, never reached", kept(timeout=60)),
    Feature("expires", "`expires`, never reached", kept(expires=60)),
    Feature("after", "`after` a job that has ended", with_parent),
    Feature("after foreign", "`after` a foreign future that has ended", kept(after=[DONE])),
    Feature("callback", "a done-callback", with_callback),
    Feature("concurrency", "a limit by number, never reached", kept(limits="wide"), lambda: limited(concurrency=99)),
    Feature("rate", "a limit by rate, never reached", kept(limits="wide"), lambda: limited(rate=10**6, per=0.01)),
    Feature("max_pending", "`max_pending`, never reached", plain, lambda: {"max_pending": 10**6}),
    Feature("history", "`history=0`", plain, lambda: {"history": 0}),
    Feature("on_error", "`on_error`, never called", plain, lambda: {"on_error": seen}),
    Feature("fifo", "`FifoPolicy`", plain, lambda: {"policy": policy("Fifo")}),
    Feature("oldest", "`OldestDuePolicy`", plain, lambda: {"policy": policy("OldestDue")}),
    Feature("aging", "`AgingPolicy`", plain, lambda: {"policy": policy("Aging", 0.1)}),
    Feature("key", "a `key` of your own", plain, lambda: {"policy": OwnKey()}),
    Feature("before", "a `before` of your own", plain, lambda: {"policy": LowestNumber()}),
    Feature("indexed", '`queue="indexed"`', plain, lambda: {"queue": "indexed"}),
    Feature("coroutine", "an `async def` task", plain, task=coroutine),
)


def policy(name: str, *given: float) -> Any:
    """Return one of the package's policies."""
    return getattr(threadsched, f"{name}Policy")(*given)


def limited(**given: Any) -> dict[str, Any]:
    """Return the setting for one limit."""
    return {"limits": {"wide": Limit(**given)}}


@contextmanager
def pool(feature: Feature) -> Iterator[tuple[Submit, Callable[[], object]]]:
    """Yield the submitting call on a scheduler that runs, and the task."""
    with Scheduler(WORKERS, **feature.settings()) as scheduler:
        submit = feature.make(scheduler)
        submit(feature.task).result()
        yield submit, feature.task


def load(feature: Feature, jobs: int) -> float:
    """Submit all from one thread, then take all results; return the seconds."""
    with pool(feature) as (submit, task):
        start = perf_counter()
        futures = [submit(task) for _ in range(jobs)]
        for future in futures:
            future.result()
        return perf_counter() - start


def offered(feature: Feature) -> bool:
    """Say whether this version of the package has the feature."""
    try:
        with pool(feature):
            return True
    except TypeError:
        return False


def answer(settings: Settings) -> list[Row]:
    """Measure all; the ratio is the rate with the feature, of the rate without."""
    without = Feature("plain", "plain", plain)
    rows = []
    for features, full, pairs in ((TARGETS, 100_000, settings.pairs), (FEATURES, 20_000, min(settings.pairs, 5))):
        jobs = settings.size(full)
        rows += [
            compare(
                feature.key,
                feature.words,
                "a plain submit",
                partial(load, feature, jobs),
                partial(load, without, jobs),
                pairs=pairs,
                operations=jobs,
            )
            for feature in features
            if offered(feature)
        ]
    return rows


if __name__ == "__main__":
    run("options_cost", __doc__, answer)

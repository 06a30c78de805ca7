"""The operations that are set against each other, one entry each."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass

from tests.explorer.forks import fork
from tests.explorer.stage import LATER, SOONER, Stage, StruckError
from threadsched import FifoPolicy, SchedulerClosedError


@dataclass(frozen=True)
class Operation:
    """Something a thread does to the stage."""

    name: str
    act: Callable[[Stage], None]
    needs: tuple[str, ...] = ()
    explore_time: bool = False
    """What it does depends on when time passes, so that is explored too."""
    gives_up: bool = False
    """Jobs may end CANCELLED because of it."""
    loops: bool = False
    """There are coroutines, and so event loops, which need real threads."""
    forks: bool = False
    """The process is forked, for which fibers have to be greenlets."""
    closes: bool = False
    """Submissions may be refused because of it."""


def submit(stage: Stage) -> None:
    stage.submit("submitted")


def submit_delayed(stage: Stage) -> None:
    stage.submit("delayed", delay=SOONER)


def between(stage: Stage) -> None:
    stage.submit("between", delay=(SOONER + LATER) / 2)


def long(stage: Stage) -> None:
    stage.submit("long", stage.take_long, delay=SOONER)


def claim(stage: Stage) -> None:
    stage.may_claim = True
    if stage.first.job.claim():
        stage.first.claims += 1
        stage.first.job.set_result("first")


def cancel(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        stage.cancelled(stage.first, scheduler.cancel(stage.first.job.id))


def cancel_delayed(stage: Stage) -> None:
    stage.cancelled(stage.later, stage.later.job.cancel())


def clear(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        scheduler.clear()


def settle(stage: Stage) -> None:
    stage.open_gate()


def promote(stage: Stage) -> None:
    stage.kernel.sleep(LATER)


def shutdown(stage: Stage) -> None:
    stage.shut_down()


def shutdown_due(stage: Stage) -> None:
    stage.shut_down(drain="due")


def shutdown_none(stage: Stage) -> None:
    stage.shut_down(drain="none")


def close(stage: Stage) -> None:
    stage.shut_down(wait=False)


def pause(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        scheduler.pause()


def resume(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        scheduler.resume()


def policy(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        scheduler.policy = FifoPolicy()


def callback(stage: Stage) -> None:
    stage.add_callback(stage.first)


def result(stage: Stage) -> None:
    stage.told(stage.first, stage.first.job.result)


def result_timeout(stage: Stage) -> None:
    stage.told(stage.first, lambda: stage.first.job.result(SOONER))


def wait(stage: Stage) -> None:
    jobs = [stage.first.job, stage.later.job]
    done = concurrent.futures.wait(jobs).done
    if done != set(jobs):
        stage.kernel.fail("wait", f"wait() returned {done} of {jobs}")


def as_completed(stage: Stage) -> None:
    jobs = [stage.first.job, stage.later.job]
    given = list(concurrent.futures.as_completed(jobs))
    if len(given) != 2 or set(given) != set(jobs) or not all(job.done() for job in given):
        stage.kernel.fail("wait", f"as_completed() gave {given} for {jobs}")


def drop(stage: Stage) -> None:
    stage.scheduler = None


def set_priority(stage: Stage) -> None:
    stage.first.job.set_priority(1)


def request_cancel(stage: Stage) -> None:
    stage.first.stopped = "coroutine" in stage.needs  # a coroutine is cancelled on its loop
    stage.first.job.request_cancel()
    stage.first.last_attempt = stage.first.job.attempts


def block(stage: Stage) -> None:
    stage.submit("blocked")


def limited(stage: Stage) -> None:
    stage.submit("limited", limits="one")


def after(stage: Stage) -> None:
    stage.submit("child", after=stage.first.job)


def wait_idle(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None and not scheduler.wait_idle():
        stage.kernel.fail("wait", "wait_idle() without a timeout returned False")


def wait_below(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None and not scheduler.wait_below(1):
        stage.kernel.fail("wait", "wait_below() without a timeout returned False")


def every(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is None:
        return
    try:
        stage.schedules.append(scheduler.options(max_runs=1).every(SOONER, stage.run_of_schedule))
    except SchedulerClosedError:
        stage.refused += 1
    except RuntimeError:
        if not stage.refusals:
            raise
    else:
        stage.schedules_made = True


def nested(stage: Stage) -> None:
    stage.submit("nested", lambda: stage.told(stage.first, stage.first.job.result))


def timeout(stage: Stage) -> None:
    stage.may_overrun = True
    stage.submit("overrun", stage.take_long, timeout=SOONER)


def timeout_on_loop(stage: Stage) -> None:
    async def work() -> None:
        with stage.busy():
            await asyncio.sleep(2 * LATER)

    stage.may_overrun = True
    stage.submit("overrun", work, timeout=SOONER)


def expires(stage: Stage) -> None:
    stage.submit("expiring", expires=SOONER)


def look(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        scheduler.check()
        now = scheduler.stats()
        if now.submitted != now.pending + now.running + now.done + now.failed + now.cancelled:
            stage.kernel.fail("count", f"{now} does not add up")
        scheduler.snapshot()
        if stage.first.job is not None:
            stage.first.job.explain()


def start(stage: Stage) -> None:
    scheduler = stage.scheduler
    if scheduler is not None:
        try:
            scheduler.start()
        except SchedulerClosedError:
            stage.refused += 1
        except RuntimeError:
            if not stage.refusals:
                raise


def die(stage: Stage) -> None:
    stage.kernel.point("strikes")
    for fiber in stage.kernel.fibers:
        if fiber.name == "threadsched_0" and not fiber.free:
            stage.struck = True
            fiber.doom = StruckError()


def fork_inside(stage: Stage) -> None:
    stage.submit("forking", lambda: fork(stage))


def await_first(stage: Stage) -> None:
    async def work() -> None:
        await stage.told_on_loop(stage.first)

    stage.submit("awaiting", work)


def await_later(stage: Stage) -> None:
    async def work() -> None:
        await stage.told_on_loop(stage.later)

    stage.submit("awaiting", work)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("submit", submit),
        Operation("submit_delayed", submit_delayed),
        Operation("long", long),
        Operation("claim", claim),
        Operation("cancel", cancel, gives_up=True),
        Operation("cancel_delayed", cancel_delayed, gives_up=True),
        Operation("clear", clear, gives_up=True),
        Operation("settle", settle, needs=("gated",)),
        Operation("retry", settle, needs=("gated", "failing")),
        Operation("promote", promote, explore_time=True),
        Operation("shutdown", shutdown, closes=True),
        Operation("shutdown_due", shutdown_due, gives_up=True, closes=True),
        Operation("shutdown_none", shutdown_none, gives_up=True, closes=True),
        Operation("close", close, closes=True),
        Operation("pause", pause),
        Operation("resume", resume, needs=("paused",)),
        Operation("policy", policy),
        Operation("callback", callback),
        Operation("result", result),
        Operation("result_timeout", result_timeout, needs=("gated",), explore_time=True),
        Operation("wait", wait),
        Operation("as_completed", as_completed),
        Operation("drop", drop, closes=True),
        Operation("set_priority", set_priority),
        Operation("request_cancel", request_cancel, gives_up=True),
        Operation("block", block, needs=("full",)),
        Operation("limited", limited, needs=("limit",)),
        Operation("after", after),
        Operation("wait_idle", wait_idle),
        Operation("wait_below", wait_below),
        Operation("every", every),
        Operation("nested", nested),
        Operation("look", look),
        Operation("expires", expires, needs=("gated",), explore_time=True, gives_up=True),
        Operation("timeout", timeout, explore_time=True),
        Operation("between", between),
        Operation("fork", fork, forks=True),
        Operation("fork_inside", fork_inside, forks=True),
        Operation("start", start),
        Operation("start_refused_1", submit, needs=("cold", "refused_1")),
        Operation("start_refused_2", submit, needs=("cold", "refused_2")),
        Operation("start_refused_3", submit, needs=("cold", "refused_3")),
        *(
            Operation(f"timeout_refused_{number}", timeout, needs=(f"refused_{number}",), explore_time=True)
            for number in range(1, 6)
        ),
        Operation("die", die),
        Operation("die_refused", die, needs=("refused_1",)),
        Operation("await_first", await_first, needs=("gated",), loops=True),
        Operation("await_later", await_later, loops=True),
        Operation("timeout_on_loop", timeout_on_loop, explore_time=True, loops=True),
        Operation("resolve", settle, needs=("coroutine", "gated"), loops=True),
    )
}

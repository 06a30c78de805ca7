"""Limits when something breaks: lost threads, dead workers, code that breaks in; and what they cost."""

import math
import threading
from typing import Any

import pytest

from tests.limits_support import PATIENCE, BeforePriority, Starts, both, scheduler
from threadsched import (
    InvariantError,
    Job,
    JobStatus,
    Limit,
)
from threadsched.testing import StepScheduler

# ---------------------------------------------------------------- seams and faults


def test_written_off_thread_keeps_its_room_until_it_comes_home():
    """A job that moves on while its thread still runs leaves the room to the thread, even over a retry."""
    stepped = StepScheduler(2, limits={"api": Limit(1), "wide": Limit(2)})
    limits, core = stepped._runtime.limits, stepped._runtime.core
    job = stepped.options(limits=["api", "wide"], retries=1, backoff=1).submit(int)
    plain = stepped.submit(int)
    assert limits.keep_room(plain) is None
    limits.give_back(None, 0.0)
    core.promote(0.0)
    assert core.claim(0.0, stepped._slots[0]) is job
    kept = limits.keep_room(job)
    assert core.retry(job, 1.0, job._key, 0.0)
    stepped.check()
    assert stepped.limits["api"].in_use == 1
    stepped.clock.advance(5)
    stepped.tick()
    assert job.status is JobStatus.PENDING
    assert stepped.stats().waiting == 1
    other = stepped.options(limits="wide").submit(int)
    stepped.tick()
    assert other.done()
    core.repair()
    stepped.check()
    assert stepped.limits["api"].in_use == 1
    limits.give_back(kept, 5.0)
    limits.give_back(kept, 5.0)
    stepped.check()
    assert [ran.id for ran in stepped.tick()] == [job.id]
    assert stepped.limits["api"].in_use == 0


def test_dead_worker_gives_its_room_back():
    """A worker that dies outside of any task takes no room with it."""
    with scheduler(2, limits={"api": Limit(1)}) as (pool, clock, _):
        runtime = pool._runtime
        struck = threading.Event()
        started = type(runtime.limits.group(("api",))).started

        def strike(group: Any, job: Job[Any], now: float) -> None:
            if not struck.is_set():
                struck.set()
                raise SystemError("out of the blue")
            started(group, job, now)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime.limits.group(("api",))), "started", strike)
            doomed = pool.options(limits="api").submit(int)
            assert "SystemError" in str(doomed.exception(PATIENCE))
            assert pool.options(limits="api").submit(int).result(PATIENCE) == 0
        clock.advance(0)
        assert pool.limits["api"].in_use == 0


@pytest.mark.parametrize("where", ["may_start", "held", "_line_up", "_park", "_look", "_send"])
@both
def test_exception_inside_a_move_loses_nothing(queue: str, where: str):
    """Whatever is broken off inside the limits, every job still runs and no room leaks."""
    stepped = StepScheduler(3, limits={"a": Limit(1), "b": Limit(rate=2)}, queue=queue)
    limits = stepped._runtime.limits
    owner: Any = type(limits.group(("a",))) if where == "may_start" else type(limits)
    whole = getattr(owner, where)
    for strike in range(12):
        left = [strike]

        def broken(*args: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            answer = whole(*args)
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return answer

        jobs = [stepped.options(limits=names).submit(int) for names in ("a", "b", ["a", "b"], ["a", "b"], "b", "b")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, where, broken)
            for _ in range(4):
                try:
                    stepped.drain(step=0.5, limit=2)
                except KeyboardInterrupt:
                    continue
        for _ in range(3):
            stepped.drain(step=0.5, limit=10)
        lost = [job for job in jobs if not job.done() and not job.running()]
        assert lost == []


@both
def test_cancel_that_breaks_in_while_room_is_asked_for(queue: str):
    """A finalizer that cancels the very job that is asking for room, or is being held, leaves nothing behind."""
    for where in ("may_start", "_hold", "held", "_line_up"):
        stepped = StepScheduler(2, limits={"a": Limit(1), "b": Limit(1)}, queue=queue)
        limits, core = stepped._runtime.limits, stepped._runtime.core
        blocker = stepped.options(limits="a").submit(int)
        assert blocker.claim()
        for names, after in (("b", True), ("a", True), ("a", False), (["a", "b"], True)):
            job = stepped.options(limits=names).submit(int)
            owner: Any = {"may_start": type(limits.group(("a",))), "_hold": type(core)}.get(where, type(limits))
            whole = getattr(owner, where)

            def broken_into(*args: Any, job: Job[Any] = job, whole: Any = whole, after: bool = after) -> Any:
                if after:
                    answer = whole(*args)
                    job.cancel()
                    return answer
                job.cancel()
                return whole(*args)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, where, broken_into)
                stepped.tick()
            assert job.done()
            stepped.check()
        blocker.set_result(None)
        stepped.check()
        assert stepped.limits["a"].in_use == stepped.limits["b"].in_use == 0
        assert stepped.stats().waiting == 0


def test_room_that_comes_while_a_job_is_being_held_is_not_missed():
    """A finalizer that settles the job inside just as another one is refused lets that one go."""
    for where in ("_hold", "held", "_line_up"):
        stepped = StepScheduler(2, limits={"a": Limit(1)})
        limits, core = stepped._runtime.limits, stepped._runtime.core
        blocker = stepped.options(limits="a").submit(int)
        assert blocker.claim()
        job = stepped.options(limits="a").submit(int)
        owner: Any = type(core) if where == "_hold" else type(limits)
        whole = getattr(owner, where)

        def broken_into(*args: Any, whole: Any = whole, blocker: Job[Any] = blocker) -> Any:
            if not blocker.done():
                blocker.set_result(None)
            return whole(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, where, broken_into)
            assert [ran.id for ran in stepped.tick()] == [job.id]
        stepped.check()


def test_claim_that_breaks_in_does_not_exceed_the_limit():
    """A finalizer that claims another job between the look and the start of one finds the place taken."""
    stepped = StepScheduler(2, limits={"a": Limit(1)})
    core = stepped._runtime.core
    first, second = (stepped.options(limits="a").submit(int) for _ in range(2))
    claimed = []
    fits = type(stepped._runtime.limits.gates["a"]).fits

    def broken_into(gate: Any, now: float) -> bool:
        answer = fits(gate, now)
        if not claimed:
            claimed.append(None)
            claimed[0] = second.claim()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(stepped._runtime.limits.gates["a"]), "fits", broken_into)
        core.promote(0.0)
        assert core.claim(0.0, stepped._slots[0]) is first
    assert claimed == [False]
    stepped.check()
    core.finish(first, None, "x", 0.0)
    assert len(stepped.tick()) == 1


def test_policy_swapped_in_the_middle_of_a_move():
    """A finalizer that assigns a policy whose keys do not compare with the old ones: the lines are rebuilt."""

    class Pairs:
        def key(self, job: Job[Any]) -> tuple[float, str]:
            return (-job.priority, "x")

    stepped = StepScheduler(9, limits={"a": Limit(1)})
    limits = stepped._runtime.limits
    blocker = stepped.options(limits="a").submit(int)
    assert blocker.claim()
    starts = Starts(stepped.clock)
    for n in range(4):
        stepped.options(limits="a", priority=n).submit(starts.task, n)
    whole = type(limits)._find_place
    swapped: list[bool] = []

    def broken_into(keeper: Any, group: Any) -> None:
        if not swapped and len(group.held) == 3:
            swapped.append(True)
            stepped.policy = Pairs()
        whole(keeper, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(limits), "_find_place", broken_into)
        stepped.tick()
    stepped.check()
    blocker.set_result(None)
    stepped.drain()
    assert sorted(starts.names) == [0, 1, 2, 3]
    stepped.check()


def test_before_that_raises_in_a_line_is_reported_and_harmless(caplog: pytest.LogCaptureFixture):
    """A ``before`` that fails while held jobs are lined up is logged and replaced by submission order."""

    class Moody:
        moody = False

        def before(self, a: Job[Any], b: Job[Any]) -> bool:
            if self.moody:
                raise ValueError("not today")
            return False

    policy = Moody()
    stepped = StepScheduler(9, policy=policy, limits={"a": Limit(rate=1)})
    starts = Starts(stepped.clock)
    for n in range(4):
        stepped.options(limits="a").submit(starts.task, n)
    policy.moody = True
    stepped.drain()
    assert starts.names == [0, 1, 2, 3]
    assert "not today" in caplog.text
    stepped.check()


def test_audit_notices_a_leak():
    """The audit is no formality: room that nobody uses, and a line that nobody lets go, are found."""
    stepped = StepScheduler(2, limits={"a": Limit(1)})
    gate = stepped._runtime.limits.gates["a"]
    gate.inside[99] = None
    with pytest.raises(InvariantError, match="limit 'a' counts 1 inside, and 0 run"):
        stepped.check()
    del gate.inside[99]
    stepped.check()
    blocker, _held = (stepped.options(limits="a").submit(int) for _ in range(2))
    assert blocker.claim()
    stepped.tick()
    stepped.check()
    gate.parked.clear()
    with pytest.raises(InvariantError, match="parked at 0 gates"):
        stepped.check()


# ---------------------------------------------------------------- cost


@both
def test_cost_of_a_freed_place_does_not_grow_with_the_held(queue: str):
    """With ten thousand held jobs a place that comes free asks one of them, and takes some log n comparisons."""
    policy = BeforePriority()
    stepped = StepScheduler(20_000, policy=policy, limits={"a": Limit(1), "b": Limit(3)}, queue=queue)
    limits = stepped._runtime.limits
    count = 10_000
    blockers = [stepped.options(limits="a").submit(int)]
    assert blockers[0].claim()
    for n in range(count):
        names = ("a", ["a", "b"])[n % 2]
        stepped.options(limits=names, priority=(n * 7919) % count).submit(int)
    stepped.tick()
    assert stepped.stats().waiting == count
    asked: list[int] = []
    may_start = type(limits.group(("a",))).may_start
    core = stepped._runtime.core

    def counted(group: Any, job: Job[Any], now: float) -> bool:
        asked.append(job.seq)
        return may_start(group, job, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(limits.group(("a",))), "may_start", counted)
        policy.calls = 0
        blockers[0].set_result(None)
        rounds = 200
        for _ in range(rounds):
            job = core.claim(0.0, None)
            assert job is not None
            assert core.claim(0.0, None) is None
            core.finish(job, None, "x", 0.0)
    assert len(asked) <= rounds + 1
    assert policy.calls / rounds <= 8 * math.log2(count)
    stepped.check()


def test_cost_with_many_sets_of_limits():
    """Two thousand customers with a limit each beside a common one: a freed common place looks at a few of them."""
    customers = 2000
    limits = {"all": Limit(1), **{f"c{n}": Limit(1) for n in range(customers)}}
    policy = BeforePriority()
    stepped = StepScheduler(2 * customers, policy=policy, limits=limits)
    core, keeper = stepped._runtime.core, stepped._runtime.limits
    blocker = stepped.options(limits="all").submit(int)
    assert blocker.claim()
    for n in range(customers):
        stepped.options(limits=["all", f"c{n}"], priority=(n * 7919) % customers).submit(int)
    stepped.tick()
    moves: list[str] = []
    park = type(keeper)._park

    def counted(limits: Any, group: Any, gate: Any) -> None:
        moves.append(gate.name)
        park(limits, group, gate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(keeper), "_park", counted)
        policy.calls = 0
        blocker.set_result(None)
        for _ in range(100):
            job = core.claim(0.0, None)
            assert job is not None
            core.finish(job, None, "x", 0.0)
    assert len(moves) <= 300
    assert policy.calls / 100 <= 8 * math.log2(customers)
    stepped.check()

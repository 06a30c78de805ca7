"""Jobs that wait for jobs of their own pool: helped, started on time, or refused where nothing could end the wait."""

import concurrent.futures
import contextvars
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate, in_thread, logged, occupied
from tests.producers import hasty_switches
from tests.support import run_script
from tests.waits import SHUTDOWNS, CustomError, shut_down_under, whole
from threadsched import (
    DeadlockError,
    FifoPolicy,
    Job,
    JobStatus,
    NestingError,
    PriorityPolicy,
    Scheduler,
    current_job,
)
from threadsched.testing import FakeClock, StepScheduler

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def tree(s: Any, depth: int, fan: int) -> int:
    """Count the nodes of a tree, each a job that waits for its children."""
    if depth == 0:
        return 1
    children = [s.submit(tree, s, depth - 1, fan) for _ in range(fan)]
    return 1 + sum(child.result() for child in children)


def nested(s: Any, depth: int) -> int:
    """Count down, each level a job that waits for the next."""
    return 0 if depth == 0 else 1 + int(s.submit(nested, s, depth - 1).result())


# ---------------------------------------------------------------------- it helps


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("armed", ["schedule", "delayed", "both"])
def test_waiting_in_a_paused_scheduler_is_sleeping(workers: int, armed: str):
    """A job that waits for one which a pause holds back sleeps until the pause is over, whatever else is armed."""
    clock = FakeClock()
    with Scheduler(workers, clock=clock) as s:
        gate = Gate()

        def waits() -> int:
            gate()
            return s.submit(abs, -1).result()

        schedule = None if armed == "delayed" else s.every(3600, int)
        delayed = None if armed == "schedule" else s.options(delay=3600).submit(int)
        job = s.submit(waits)
        gate.await_start()
        s.pause()
        gate.open()
        clock.advance(1)  # which would not end if a worker did not sleep
        assert job.running()
        s.resume()
        assert job.result(PATIENCE) == 1
        if schedule is not None:
            schedule.cancel()
        if delayed is not None:
            delayed.cancel()
        whole(s)


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_f08_nested_trees(workers: int, queue: Any):
    """Trees of depth 3 and fan-out 3 come to their end on any pool, also four of them at once."""
    with Scheduler(workers, queue=queue) as s:
        assert s.submit(tree, s, 3, 3).result(PATIENCE) == 40
        assert [job.result(PATIENCE) for job in [s.submit(tree, s, 3, 3) for _ in range(4)]] == [40] * 4
        whole(s)


def test_f08_as_many_parents_as_workers():
    """Four parents that stand in their tasks together, each waiting for a child, all end."""
    meeting = threading.Barrier(4)

    def parent(number: int) -> int:
        child = s.submit(pow, number, 2)
        meeting.wait(PATIENCE)
        return child.result()

    with Scheduler(4) as s:
        assert [job.result(PATIENCE) for job in [s.submit(parent, number) for number in range(4)]] == [0, 1, 4, 9]
        whole(s)


def test_sub_11_a_job_submits_and_waits_on_one_worker():
    """The child runs on the parent's thread, in its own context, as a job of its own."""
    seen: list[Any] = []

    def child() -> str:
        job = current_job()
        assert job is not None
        seen.append((threading.get_ident(), colour.get(), job.name, job.attempts))
        colour.set("the child's")
        return "child"

    def parent() -> str:
        me = current_job()
        colour.set("the parent's")
        job = s.options(name="mine").submit(child)
        colour.set("changed")
        assert job.result() == "child"
        assert current_job() is me
        assert colour.get() == "changed"
        seen.append(threading.get_ident())
        return "parent"

    with Scheduler(1) as s:
        assert s.submit(parent).result(PATIENCE) == "parent"
        whole(s)
    assert seen == [(seen[1], "the parent's", "mine", 1), seen[1]]


def test_exception_helps_too():
    """`exception()` without a timeout runs the job as `result()` does."""

    def fails() -> None:
        raise CustomError

    with Scheduler(1) as s:
        error = s.submit(lambda: s.submit(fails).exception()).result(PATIENCE)
        assert isinstance(error, CustomError)
        whole(s)


def test_a_helped_job_runs_before_what_it_does_not_need():
    """Nothing but the awaited job is run inside the waiting task, whatever the order says."""
    order: list[str] = []

    def parent() -> None:
        s.options(priority=-1).submit(order.append, "urgent, but not needed")
        s.options(priority=99).submit(order.append, "needed").result()
        order.append("parent")

    with Scheduler(1) as s:
        s.submit(parent).result(PATIENCE)
        whole(s)
    assert order == ["needed", "parent", "urgent, but not needed"]


def test_a_failure_reaches_the_parent_with_its_own_traceback():
    """The child's error is the child's: the traceback has no frames of ours beyond `result`, and is not doubled."""

    def child() -> None:
        raise CustomError("in the child")

    def parent() -> None:
        s.submit(child).result()

    with Scheduler(1) as s:
        error = s.submit(parent).exception(PATIENCE)
        assert error is not None
        assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-3:] == ["parent", "result", "child"]
        whole(s)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
def test_what_a_helped_job_raises_is_its_own(kind: type[BaseException]):
    """Anything that comes out of a child settles the child; the parent gets it from `result()` alone."""

    def child() -> None:
        raise kind("child")

    def parent() -> str:
        job = s.submit(child)
        with pytest.raises(kind):
            job.result()
        assert job.status is JobStatus.FAILED
        return "goes on"

    with Scheduler(1) as s:
        assert s.submit(parent).result(PATIENCE) == "goes on"
        whole(s)


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_a_helped_job_is_retried_after_its_backoff(queue: Any):
    """A child that fails while it is helped goes to its backoff, and starts again when that is over, not before."""
    clock, starts = FakeClock(), []

    def child() -> str:
        starts.append(clock.now())
        if len(starts) < 3:
            raise CustomError
        return "third time"

    def parent() -> Any:
        s.options(delay=100, id="far").submit(int)  # so that neither queue is empty
        return s.options(retries=2, backoff=4).submit(child).result()

    with Scheduler(1, clock=clock, queue=queue) as s:
        job = s.submit(parent)
        clock.advance(3)
        assert starts == [0.0]
        s.check()
        clock.advance(20)
        assert (job.result(PATIENCE), starts) == ("third time", [0.0, 4.0, 12.0])
        assert s.cancel("far")
        whole(s)


@pytest.mark.parametrize("delay", [0, 0.0001])
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_a_parent_that_waits_for_ever_new_children_leaves_no_entries(queue: Any, delay: float):
    """What a helped job leaves in the queue is swept: a thousand children one after the other leave few entries."""

    def parent() -> int:
        most = 0
        for _ in range(1000):
            s.options(delay=delay).submit(int).result()
            core = s._runtime.core
            most = max(most, len(core.ready) + len(core.delayed))
        return most

    with Scheduler(1, queue=queue) as s:
        assert s.submit(parent).result(2 * PATIENCE) < 200
        whole(s)


def test_callbacks_of_a_helped_job():
    """They run once, outside of the parent's job."""
    called: list[Any] = []

    def parent() -> None:
        job = s.submit(int)
        job.add_done_callback(lambda job: called.append(current_job()))
        job.result()

    with Scheduler(1) as s:
        s.submit(parent).result(PATIENCE)
        whole(s)
    assert called == [None]


def test_helped_jobs_are_counted_like_others():
    """`stats`, `explain` and `info` tell of a child that runs on the thread of its parent."""
    gate = Gate()

    def parent() -> Any:
        return s.options(id="child").submit(gate).result()

    with Scheduler(1) as s:
        job = s.options(id="parent").submit(parent)
        gate.await_start()
        stats = s.stats()
        assert (stats.running, stats.pending, stats.workers) == (2, 0, 1)
        child = s.get("child")
        assert child is not None
        assert child.info().worker == job.info().worker == "threadsched_0"
        assert [reason.kind for reason in job.explain()] == ["running"]
        assert "waits for job 'child'" in job.explain()[0].detail
        s.check()
        gate.open()
        job.result(PATIENCE)
        whole(s)


def test_with_a_timeout_it_waits_and_does_not_help():
    """A bounded wait never runs a job inside itself, for it could not be left in time."""

    def parent() -> str:
        job = s.submit(int)
        with pytest.raises(TimeoutError):
            job.result(timeout=0.001)
        assert job.status is JobStatus.PENDING
        assert not concurrent.futures.wait([job], timeout=0.001).done  # nor do these
        return "waited"

    with Scheduler(1) as s:
        assert s.submit(parent).result(PATIENCE) == "waited"
        whole(s)


def test_a_worker_of_another_scheduler_just_waits():
    """Helping is for jobs of the worker's own scheduler."""
    threads: list[int] = []

    def child() -> None:
        threads.append(threading.get_ident())

    def parent() -> None:
        threads.append(threading.get_ident())
        other.submit(child).result()

    with Scheduler(1) as s, Scheduler(1) as other:
        s.submit(parent).result(PATIENCE)
    assert len(set(threads)) == 2


# ---------------------------------------------------------------------- depth


def test_a_hundred_levels_on_one_worker():
    """Depth 100 works on the default recursion limit; one more is refused with an error that says so."""
    with Scheduler(1) as s:
        assert s.submit(nested, s, 100).result(PATIENCE) == 100
        with pytest.raises(NestingError, match="100 jobs wait one for another") as caught:
            s.submit(nested, s, 101).result(PATIENCE)
        assert isinstance(caught.value, RuntimeError)
        assert not isinstance(caught.value, RecursionError)
        whole(s)


def test_two_frames_of_ours_between_two_tasks():
    """Between the frame of a task and that of the job it helps there are two frames at most."""

    def child() -> list[str]:
        frame, names = sys._getframe(), []
        while frame.f_code.co_name != "parent":
            names.append(frame.f_code.co_name)
            assert frame.f_back is not None
            frame = frame.f_back
        return names

    def parent() -> list[str]:
        return s.submit(child).result()

    with Scheduler(1) as s:
        assert s.submit(parent).result(PATIENCE) == ["child", "help", "result"]


# ---------------------------------------------------------------------- not claimable: it parks


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_delayed_child_starts_on_time_though_all_workers_wait(workers: int, queue: Any):
    """Each worker waits for a child that is due later; every child starts at its very time."""
    clock = FakeClock()

    def parent(delay: float) -> float:
        return s.options(delay=delay).submit(clock.now).result()

    with Scheduler(workers, clock=clock, queue=queue) as s:
        delays = [5.0, 7.0, 3.0][:workers]
        jobs = [s.submit(parent, delay) for delay in delays]
        clock.advance(2)
        assert s.stats().running == workers
        s.check()
        clock.advance(20)
        assert [job.result(PATIENCE) for job in jobs] == delays
        whole(s)


def test_a_delayed_child_in_real_time():
    """The helper that stands in for the watch wakes by itself on a real clock."""

    def parent() -> tuple[float, float]:
        job = s.options(delay=0.03).submit(time.monotonic)
        return job.result(), job.run_at

    with Scheduler(1) as s:
        started, run_at = s.submit(parent).result(PATIENCE)
        assert started >= run_at
        whole(s)


def test_an_earlier_head_moves_the_alarm_of_a_waiting_pool():
    """A job submitted from outside, due before what the helper watches for, wakes the helper to watch for it."""
    clock = FakeClock()

    def parent(delay: float) -> float:
        return s.options(delay=delay, id=f"{delay:g}").submit(clock.now).result()

    with Scheduler(2, clock=clock) as s:
        late = s.submit(parent, 9.0)
        clock.advance(0)
        early = s.submit(parent, 4.0)
        clock.advance(0)
        assert s.stats().delayed == 2
        clock.advance(4)
        assert early.result(PATIENCE) == 4.0
        clock.advance(5)
        assert late.result(PATIENCE) == 9.0
        whole(s)


def test_a_job_that_is_ready_and_not_needed_waits_for_a_worker():
    """While the only worker waits for a later job, another one that is ready does not start, and time can pass."""
    clock, order = FakeClock(), []

    def parent() -> None:
        s.submit(order.append, "other")
        s.options(delay=5).submit(order.append, "child").result()
        order.append("parent")

    with Scheduler(1, clock=clock) as s:
        s.submit(parent)
        clock.advance(4)
        assert order == []
        clock.advance(1)
        assert order == ["child", "parent", "other"]
        whole(s)


def test_waiting_for_what_runs_elsewhere():
    """A worker that waits for a running job is woken by its end, though it was claimed by nobody's worker."""
    gate = Gate()
    with Scheduler(2) as s:
        running = s.submit(gate, "value")
        gate.await_start()
        waiting = s.submit(running.result)
        claimed = s.options(delay=60).submit(int)
        assert claimed.claim()
        gate.open()
        assert waiting.result(PATIENCE) == "value"
        waiting = s.submit(claimed.result)
        claimed.set_result(5)
        assert waiting.result(PATIENCE) == 5
        whole(s)


def test_cancel_wakes_who_waits():
    """Cancelling the awaited job ends the wait of a parked worker."""
    parked = threading.Event()

    def parent() -> str:
        job = s.options(id="child", delay=60).submit(int)
        parked.set()
        try:
            return str(job.result())
        except concurrent.futures.CancelledError:
            return "told"

    with Scheduler(1) as s:
        job = s.submit(parent)
        assert parked.wait(PATIENCE)
        assert s.cancel("child")
        assert job.result(PATIENCE) == "told"
        whole(s)


@SHUTDOWNS
def test_shutdown_of_a_pool_that_waits(drain: Any, outcome: Any):
    """Under "all" the awaited job still runs at its time; under the others it is cancelled, and the parent is told."""
    clock, parked = FakeClock(), threading.Event()

    def parent() -> Any:
        job = s.options(delay=5).submit(int)
        parked.set()
        try:
            return job.result()
        except concurrent.futures.CancelledError:
            return "cancelled"

    s = Scheduler(1, clock=clock)
    assert shut_down_under(s, clock, parent, parked, drain) == outcome


def test_a_swap_of_the_policy_under_waiting_workers():
    """Re-ordering the queues does not lose what a helper took or waits for."""
    with Scheduler(2) as s:
        jobs = [s.submit(tree, s, 3, 3) for _ in range(6)]
        for policy in itertools.islice(itertools.cycle([FifoPolicy(), PriorityPolicy()]), 20):
            s.policy = policy
        assert [job.result(PATIENCE) for job in jobs] == [40] * 6
        whole(s)


# ---------------------------------------------------------------------- what could never end


def ring(s: Scheduler, size: int, ask: Callable[[Job[Any]], Any]) -> list[Job[Any]]:
    """Return jobs on as many workers, each of which waits for the next."""
    meeting = threading.Barrier(size + 1)
    jobs: list[Job[Any]] = []

    def member(number: int) -> Any:
        meeting.wait(PATIENCE)
        return ask(jobs[(number + 1) % size])

    jobs += [s.options(id=f"member {number}").submit(member, number) for number in range(size)]
    meeting.wait(PATIENCE)
    return jobs


@pytest.mark.parametrize("size", [1, 2, 3])
def test_f08_a_ring_is_named_within_a_second(size: int):
    """Jobs on as many workers that wait in a ring get DeadlockError, which names them; the pool is usable after."""
    began = time.monotonic()
    with Scheduler(size) as s:
        jobs = ring(s, size, lambda job: job.result())
        for job in jobs:
            with pytest.raises(DeadlockError) as caught:
                job.result(PATIENCE)
            assert isinstance(caught.value, RuntimeError)
            assert all(f"job 'member {number}'" in str(caught.value) for number in range(size))
        whole(s)
    assert time.monotonic() - began < 1


def test_a_ring_may_be_caught():
    """The one that is refused may go on, and then the others get its value."""
    refused: list[str] = []

    def ask(job: Job[Any]) -> Any:
        try:
            return job.result()
        except DeadlockError as error:
            refused.append(str(error))
            return "gave way"

    with Scheduler(3) as s:
        assert {job.result(PATIENCE) for job in ring(s, 3, ask)} == {"gave way"}
        whole(s)
    assert len(refused) == 1


def test_a_child_that_waits_for_its_parent():
    """A helped job that waits for the job below it on the same thread is refused."""
    boxes: list[Job[Any]] = []

    def child() -> Any:
        return boxes[0].result()

    def parent() -> Any:
        return s.submit(child).result()

    with Scheduler(1) as s:
        with occupied(s):
            boxes.append(s.submit(parent))
        with pytest.raises(DeadlockError, match="would wait for ever: it waits for job 2"):
            boxes[0].result(PATIENCE)
        whole(s)


def test_a_wait_beyond_a_delayed_job_is_no_ring():
    """A retrying, delayed or claimed job is no reason to refuse: somebody will end it."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        far = s.options(delay=1000).submit(int)
        job = s.submit(far.result)
        clock.advance(999)
        assert job.status is JobStatus.RUNNING
        clock.advance(1)
        assert job.result(PATIENCE) == 0
        whole(s)


class Gives:
    """A rule with a dict `own` of open parents, as dependencies have one."""

    def __init__(self, parents: list[Job[Any]]) -> None:
        self.own = {job._seq: job for job in parents}

    def admits(self, job: Job[Any]) -> bool:
        return not self.own

    def may_start(self, job: Job[Any], now: float) -> bool:
        return True

    def started(self, job: Job[Any], now: float) -> None: ...

    def ended(self, job: Job[Any], now: float) -> None: ...


class Opens(Gives):
    """The other side: the end of this job lets another one go."""

    def __init__(self, s: Scheduler) -> None:
        self.s = s
        self.own = {}
        self.child: Job[Any] | None = None

    def ended(self, job: Job[Any], now: float) -> None:
        if self.child is not None and job.done():
            self.child._attached.rules[0].own.clear()  # type: ignore[union-attr]
            self.s._runtime.core.release(self.child)


def test_an_open_parent_of_the_awaited_job_is_run_first():
    """What the awaited job waits for is needed, so it is run here too; a ring through parents is refused."""
    order: list[str] = []

    def waits() -> Any:
        runtime = s._runtime
        parent, child = s.options(priority=9).submit(order.append, "parent"), s.submit(order.append, "child")
        with runtime.lock:  # by hand what `after=` will do
            opens = Opens(s)
            child._attach().rules, parent._attach().rules = (Gives([parent]),), (opens,)
            opens.child = child
            runtime.core._left_queue(child)
            runtime.core.ready.untidy = True
            runtime.core._hold(child)
        child.result()
        order.append("done")
        me = current_job()
        assert me is not None
        stuck = s.submit(int)
        with runtime.lock:
            stuck._attach().rules = (Gives([me]),)
            runtime.core._left_queue(stuck)
            runtime.core.ready.untidy = True
            runtime.core._hold(stuck)
        with pytest.raises(DeadlockError, match="waits for job"):
            stuck.result()
        assert stuck.cancel()

    with Scheduler(1) as s:
        s.submit(waits).result(PATIENCE)
        whole(s)
    assert order == ["parent", "child", "done"]


class Room(Gives):
    """A rule whose room is used up by the jobs that are in it, as limits have one."""

    def __init__(self) -> None:
        self.own = {}
        self.inside: dict[int, Job[Any]] = {}

    def may_start(self, job: Job[Any], now: float) -> bool:
        return not self.inside

    def started(self, job: Job[Any], now: float) -> None:
        self.inside[job._seq] = job

    def ended(self, job: Job[Any], now: float) -> None:
        self.inside.pop(job._seq, None)

    def holders(self, job: Job[Any]) -> Iterator[tuple[str, list[Job[Any]]]]:
        yield "limit 'api'", list(self.inside.values())


def test_a_wait_for_room_that_this_thread_has_is_refused():
    """A job that is held back only by jobs on the waiting thread gets DeadlockError, which says what it lacks."""
    room = Room()

    def parent() -> None:
        me, child = current_job(), s.submit(int)
        assert me is not None
        with s._runtime.lock:
            me._attach().rules = child._attach().rules = (room,)
            room.started(me, 0.0)
        with pytest.raises(DeadlockError, match="which waits for limit 'api', held by this thread"):
            child.result()
        s.check()
        assert child.cancel()

    with Scheduler(1) as s:
        s.submit(parent).result(PATIENCE)
        whole(s)


# ---------------------------------------------------------------------- races, deaths, forks


@pytest.mark.stress
@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_trees_under_a_storm(queue: Any, rng: Any):
    """With threads switching every microsecond, cancels and retries between, every tree ends and the books balance."""

    def node(depth: int, seed: int) -> int:
        if depth == 0:
            if seed % 11 == 0 and (current_job() or fail()).attempts == 1:
                raise CustomError
            return 1
        children = [
            s.options(delay=0.0005 * (seed % 3 == i), retries=1, backoff=0).submit(node, depth - 1, seed * 3 + i)
            for i in range(3)
        ]
        if seed % 7 == 0:
            children[1].cancel()
        total = 1
        for child in children:
            try:
                total += child.result()
            except concurrent.futures.CancelledError:
                total += 1000
        return total

    def fail() -> Any:
        raise AssertionError("no job here")

    with hasty_switches(), Scheduler(3, queue=queue) as s:
        for _ in range(5):
            jobs = [s.submit(node, 3, rng.randrange(1000)) for _ in range(4)]
            assert all(job.result(4 * PATIENCE) > 0 for job in jobs)
        whole(s)


def test_two_workers_that_want_the_same_child():
    """One runs it, both get its value, whoever is first; over and over."""
    with hasty_switches(), Scheduler(2) as s:
        for _ in range(100):
            runs: list[int] = []
            meeting = threading.Barrier(2)
            with occupied(s, 2):
                child = s.options(priority=9).submit(runs.append, 1)

                def parent(child: Job[Any] = child, meeting: threading.Barrier = meeting) -> Any:
                    meeting.wait(PATIENCE)
                    return child.result()

                parents = [s.submit(parent), s.submit(parent)]
            assert [job.result(PATIENCE) for job in parents] == [None, None]
            assert runs == [1]
        whole(s)


def test_outside_cancels_race_with_helping():
    """A child that others cancel while its parent waits for it either ran or was cancelled, never both or neither."""
    ran: list[int] = []

    def parent(number: int) -> str:
        job = s.options(id=f"child {number}").submit(ran.append, number)
        try:
            job.result()
            return "ran"
        except concurrent.futures.CancelledError:
            return "cancelled"

    with hasty_switches(), Scheduler(2) as s:
        stop = threading.Event()

        def cancels() -> int:
            won = 0
            while not stop.is_set():
                won += s.clear()
            return won

        join = in_thread(cancels)
        outcomes = []
        for number in range(200):
            try:
                outcomes.append(s.submit(parent, number).result(PATIENCE))
            except concurrent.futures.CancelledError:
                continue
        stop.set()
        join()
        assert outcomes.count("ran") == len(ran)
        whole(s)


@pytest.mark.subprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_inside_a_helped_job():
    """In the child of the fork the wait ends with an error instead of a hang; the parent goes on."""
    done = run_script(
        """
        import os, sys, warnings
        from threadsched import Scheduler
        warnings.simplefilter("ignore", DeprecationWarning)
        s = Scheduler(1)
        def child():
            return os.fork()
        def parent():
            try:
                return s.submit(child).result()
            except RuntimeError as error:
                print("child of a fork" in str(error), flush=True)
                os._exit(7)
        pid = s.submit(parent).result(10)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), s.submit(pow, 2, 2).result(10), bool(s.shutdown()))
        """
    )
    assert (done.stdout, done.stderr) == ("True\n7 4 True\n", "")


@pytest.mark.subprocess
def test_exit_while_workers_wait_for_each_other():
    """At exit a pool whose workers wait for delayed jobs ends: those are cancelled, the waits end with them."""
    done = run_script(
        """
        import threading
        from threadsched import Scheduler
        s, parked = Scheduler(1, exit_timeout=5), threading.Event()
        def parent():
            job = s.options(delay=3600).submit(int)
            parked.set()
            try:
                job.result()
            except Exception as error:
                print(type(error).__name__, flush=True)
        s.submit(parent)
        parked.wait(10)
        """
    )
    assert (done.stdout, done.stderr) == ("CancelledError\n", "")


# ---------------------------------------------------------------------- stepped


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_the_stepped_scheduler_helps_inside_a_tick(queue: str):
    """`result()` on a job that is due runs it inside the tick; one that could not start then is refused."""
    clock = FakeClock()
    s = StepScheduler(clock=clock, queue=queue)
    job = s.submit(tree, s, 2, 2)
    assert [ran.id for ran in s.tick()] == [job.id]
    assert job.result() == 7
    s.check()

    def waits() -> str:
        with pytest.raises(DeadlockError, match="cannot start during this tick"):
            s.options(id="later", delay=1).submit(int).result()
        return "refused"

    job2 = s.submit(waits)
    s.tick()
    assert job2.result() == "refused"
    clock.advance(1)
    s.tick()
    assert s.status_of("later") is JobStatus.DONE
    s.check()


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_the_stepped_scheduler_retries_what_it_helped(queue: str):
    """A child that fails inside its parent's tick comes again after its backoff, once."""
    clock, starts = FakeClock(), []

    def child() -> None:
        starts.append(clock.now())
        if len(starts) == 1:
            raise CustomError

    def parent() -> None:
        with pytest.raises(DeadlockError):
            s.options(retries=1, backoff=5).submit(child).result()

    s = StepScheduler(clock=clock, queue=queue)
    s.submit(parent)
    s.drain()
    assert starts == [0.0, 5.0]
    s.check()


def test_the_stepped_scheduler_refuses_a_wait_between_ticks():
    """`result()` without a timeout on the thread that ticks raises instead of hanging; elsewhere it waits."""
    s = StepScheduler()
    job = s.submit(pow, 2, 2)
    with pytest.raises(DeadlockError, match=r"call tick\(\) first"):
        job.result()
    with pytest.raises(DeadlockError, match=r"call tick\(\) first"):
        job.exception()
    with pytest.raises(TimeoutError):
        job.result(0)
    join = in_thread(job.result)
    s.tick()
    assert job.result() == join() == 4


def test_nothing_is_logged_of_helped_failures_that_were_asked():
    """A parent that takes its child's error has looked at it."""

    def fails() -> None:
        raise CustomError

    def parent() -> None:
        with pytest.raises(CustomError):
            s.submit(fails).result()

    with logged() as log, Scheduler(1) as s:
        s.submit(parent).result(PATIENCE)
        whole(s)
    assert log.lines == []


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_schedule_that_falls_due_while_every_worker_waits(awaits: bool, parked: bool):
    """A worker that waits inside a task, and watches the clock for all, lets a schedule proceed and sleeps on."""
    clock = FakeClock()
    ran: list[float] = []
    with Scheduler(1, clock=clock) as s:
        later = s.options(delay=10).submit(int)

        async def wait_for_it() -> int:
            return await later

        waiting = s.submit(wait_for_it if awaits else later.result)
        if parked:
            clock.advance(0)  # the wait watches the clock until 10 by now, and has to be told of the earlier time
        schedule = s.every(5, lambda: ran.append(clock.now()))
        clock.advance(5)  # returns once the worker sleeps
        assert (ran, later.status, waiting.status) == ([], JobStatus.PENDING, JobStatus.RUNNING)
        assert schedule.job is not None
        clock.advance(5)
        assert waiting.result(PATIENCE) == 0
        assert ran[0] == 10

"""The catalogue's core scenarios, first half: submission, bound, order, delays, cancel.

A test's name carries the scenario's id. Where the peers' rule differs from ours the docstring says so; above all,
with us the lower priority number runs first.
"""

import functools
import random
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests import test_scenarios_ending
from tests.gates import PATIENCE, Gate, in_thread, occupied
from threadsched import Job, JobStatus, OldestDuePolicy, Scheduler
from threadsched.testing import FakeClock

CORE = {
    "sub": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "con": [1, 2, 3, 4, 5, 6, 7, 13],
    "ord": [1, 2, 3, 4, 5, 8, 9],
    "dly": [1, 2, 3, 4],
    "can": [1, 2, 3, 4, 5, 6],
    "shd": [1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13],
    "tim": [5, 6],
    "err": [1],
    "int": [1, 3, 4, 5],
    "rty": [1, 2, 3, 5, 6, 7, 8, 9],
}


def test_every_core_scenario_has_a_test():
    """The 62 core scenarios, and no unknown one, are each named by a test."""
    ids = {f"{group}_{number:02}" for group, numbers in CORE.items() for number in numbers}
    assert len(ids) == 62
    names = [*globals(), *vars(test_scenarios_ending)]
    covered = {match[1] for name in names if (match := re.match(r"test_([a-z]{3}_\d\d)_", name))}
    assert covered == ids


def nothing() -> None:
    pass


# ---------------------------------------------------------------------- submission


def test_sub_01_result_is_the_very_object():
    """The future's result is the object that the task returned, not a copy."""
    thing = object()
    with Scheduler(1) as s:
        assert s.submit(lambda: thing).result(PATIENCE) is thing


def test_sub_02_no_return_value_gives_none():
    """A task that returns nothing ends DONE with None and no exception."""
    with Scheduler(1) as s:
        job = s.submit(nothing)
        assert job.result(PATIENCE) is None
        assert job.exception() is None
        assert job.status is JobStatus.DONE


def test_sub_03_starts_without_a_push():
    """One submission is enough for the job to start: nothing else has to happen."""
    gate = Gate()
    with Scheduler(1) as s:
        job = s.submit(gate)
        gate.await_start()
        assert job.running()
        stats = s.stats()
        assert (stats.pending, stats.running) == (0, 1)
        gate.open()


def test_sub_04_runs_on_another_thread():
    """A task runs on a worker, never on the caller's thread."""
    with Scheduler(1, name="elsewhere") as s:
        assert s.submit(threading.get_ident).result(PATIENCE) != threading.get_ident()
        assert s.submit(lambda: threading.current_thread().name).result(PATIENCE) == "elsewhere_0"


class Kinds:
    @staticmethod
    def static(number: int) -> int:
        return number + 1

    @classmethod
    def of_class(cls, number: int) -> tuple[type, int]:
        return cls, number

    def bound(self, number: int) -> tuple["Kinds", int]:
        return self, number

    def __call__(self, number: int) -> int:
        return -number


@pytest.mark.parametrize("delay", [0, 3])
def test_sub_05_every_kind_of_callable(delay: int):
    """Functions, methods, types, built-ins, partials and callable objects run alike, at once and delayed."""
    kinds = Kinds()
    pairs: list[tuple[Callable[..., Any], Any]] = [
        (lambda number: number * 2, 14),
        (Kinds.static, 8),
        (Kinds.of_class, (Kinds, 7)),
        (kinds.bound, (kinds, 7)),
        (kinds, -7),
        (str, "7"),
        ([7, 8].count, 1),
        (functools.partial(pow, 2), 128),
        (len, None),
    ]
    clock = FakeClock()
    with Scheduler(2, clock=clock) as s:
        at_time = s.options(delay=delay)
        jobs = [at_time.submit(fn, "abc" if fn is len else 7) for fn, _ in pairs]
        clock.advance(delay)
        for job, (fn, expected) in zip(jobs, pairs, strict=True):
            assert job.result(PATIENCE) == (3 if fn is len else expected)


def test_sub_06_arguments_arrive():
    """The task gets exactly the positional and keyword arguments, those named like ours included."""

    def echo(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    with Scheduler(1) as s:
        marker = object()
        job = s.submit(echo, 1, marker, self=2, fn=3, delay=4, context=None)
        assert job.result(PATIENCE) == ((1, marker), {"self": 2, "fn": 3, "delay": 4, "context": None})
        assert s.submit(echo).result(PATIENCE) == ((), {})


def test_sub_07_what_is_not_callable_is_refused_by_the_call():
    """Each way to submit refuses None with a TypeError at once, and queues nothing."""
    with Scheduler(1) as s:
        for submit in (s.submit, s.options(delay=9).submit, s.options(retries=3, id="a").submit):
            with pytest.raises(TypeError, match="callable, not None"):
                submit(None)
        with pytest.raises(TypeError, match="callable, not None"):
            s.map(None, [1])
        assert s.stats().submitted == 0
        assert s.options(id="a").submit(int).result(PATIENCE) == 0  # the id was not taken by the refused one


def test_sub_08_one_callable_a_thousand_times():
    """The same function object may be queued any number of times and runs as often."""
    count = []
    with Scheduler(2) as s:
        task = functools.partial(count.append, None)
        jobs = [s.submit(task) for _ in range(1000)]
        assert s.wait_idle(PATIENCE)
        assert len(count) == 1000
        assert len({job.id for job in jobs}) == 1000


@pytest.mark.parametrize("workers", [1, 20])
def test_sub_09_bulk_keeps_the_order(workers: int):
    """`map` gives results in input order; options shared by a bulk are unchanged and give each job its own id."""
    with Scheduler(workers) as s:
        urgent = s.options(priority=1, name="bulk")
        assert list(urgent.map(pow, range(20), [2] * 20)) == [number**2 for number in range(20)]
        jobs = [urgent.submit(abs, -number) for number in range(20)]
        assert [job.result(PATIENCE) for job in jobs] == list(range(20))
        assert len({job.id for job in jobs}) == 20
        assert {(job.priority, job.name) for job in jobs} == {(1, "bulk")}
        assert list(s.map(abs, [])) == []


def test_sub_10_each_of_a_bulk_has_its_own_outcome():
    """A failure is raised from its own future alone."""
    with Scheduler(2) as s:
        bad, good = s.submit(int, "x"), s.submit(int, "7")
        assert good.result(PATIENCE) == 7
        with pytest.raises(ValueError, match="invalid literal"):
            bad.result(PATIENCE)
        assert good.exception() is None


@pytest.mark.parametrize("workers", [1, 2])
def test_sub_11_a_task_submits_the_next(workers: int):
    """A running task may submit; the new job waits for a free slot, and the bound holds."""
    lock = threading.Lock()
    inside = peak = 0
    last: threading.Event = threading.Event()

    with Scheduler(workers) as s:

        def link(left: int) -> None:
            nonlocal inside, peak
            with lock:
                inside += 1
                peak = max(peak, inside)
            if left:
                s.submit(link, left - 1)
                s.submit(nothing)
            else:
                last.set()
            with lock:
                inside -= 1

        s.submit(link, 50)
        assert last.wait(PATIENCE)
        assert s.wait_idle(PATIENCE)
        assert peak <= workers
        assert s.stats().done == 101


# ---------------------------------------------------------------------- bound


def test_con_01_the_third_of_three_waits():
    """With two workers the third job waits for the first that ends, the slow one or not."""
    with Scheduler(2) as s:
        slow, quick = Gate(), Gate()
        jobs = [s.submit(quick, 1), s.submit(slow, 2), s.submit(abs, -3)]
        quick.await_start()
        slow.await_start()
        assert (s.stats().running, s.stats().pending) == (2, 1)
        assert jobs[2].status is JobStatus.PENDING
        quick.open()
        assert jobs[2].result(PATIENCE) == 3
        assert jobs[1].running()
        slow.open()
        assert [job.result(PATIENCE) for job in jobs] == [1, 2, 3]


def test_con_02_one_worker_is_serial():
    """With one worker no two tasks overlap, and they run in submission order."""
    held = threading.Lock()
    order = []

    def alone(number: int) -> None:
        assert held.acquire(blocking=False)
        order.append(number)
        held.release()

    with Scheduler(1) as s:
        jobs = [s.submit(alone, number) for number in range(200)]
        for job in jobs:
            job.result(PATIENCE)
    assert order == list(range(200))


def test_con_03_never_above_the_bound(rng: random.Random):
    """With five workers never more than five tasks run, by the tasks' count and by the scheduler's."""
    lock = threading.Lock()
    inside = 0
    seen = []

    with Scheduler(5) as s:

        def count(length: int) -> None:
            nonlocal inside
            with lock:
                inside += 1
                seen.append((inside, s.stats().running))
            sum(range(length))
            with lock:
                inside -= 1

        for _ in range(100):
            s.submit(count, rng.randrange(20_000))
        assert s.wait_idle(PATIENCE)
    assert len(seen) == 100
    assert max(max(pair) for pair in seen) <= 5


def test_con_04_slots_are_counted_before_they_start():
    """Both slots freed in one step take two waiting jobs, and the third of them does not start beside them."""
    with Scheduler(2) as s:
        gates = [Gate() for _ in range(3)]
        with occupied(s, 2):
            jobs = [s.submit(gate, number) for number, gate in enumerate(gates)]
        gates[0].await_start()
        gates[1].await_start()
        assert not gates[2].started.is_set()
        assert (s.stats().running, s.stats().pending) == (2, 1)
        for gate in gates:
            gate.open()
        assert [job.result(PATIENCE) for job in jobs] == [0, 1, 2]


def test_con_05_a_failure_gives_its_slot_back():
    """Good, raising, good on one worker: each has its outcome, the scheduler is idle after, and so a thousand times."""
    with Scheduler(1) as s:
        jobs = [s.submit(abs, -1), s.submit(int, "x"), s.submit(abs, -3)]
        assert jobs[0].result(PATIENCE) == 1
        assert isinstance(jobs[1].exception(PATIENCE), ValueError)
        assert jobs[2].result(PATIENCE) == 3
        assert s.wait_idle(PATIENCE)
        failing = [s.submit(int, "x") for _ in range(1000)]
        assert all(isinstance(job.exception(PATIENCE), ValueError) for job in failing)
        assert s.submit(abs, -4).result(PATIENCE) == 4
        assert s.stats().workers == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_con_06_a_cancelled_job_holds_no_slot(workers: int):
    """What was cancelled before its start takes no slot from the job behind it."""
    with Scheduler(workers) as s:
        with occupied(s, workers):
            ran: list[int] = []
            given_up = [s.submit(ran.append, 0) for _ in range(10)]
            other = s.submit(abs, -5)
            assert all(job.cancel() for job in given_up)
        assert other.result(PATIENCE) == 5
        assert ran == []


@pytest.mark.parametrize(
    ("workers", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (1.5, TypeError),
        ("2", TypeError),
        (True, TypeError),
        ([], TypeError),
    ],
)
def test_con_07_a_bad_bound_is_refused(workers: Any, error: type[Exception]):
    """A bad number of workers is refused by name; None, given or not, means the default."""
    with pytest.raises(error, match="workers must be"):
        Scheduler(workers)
    for good in (1, 10, None):
        with Scheduler(good) as s:
            assert s.submit(abs, -1).result(PATIENCE) == 1


def test_con_13_a_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    """If only the first of 100 threads can be started, all jobs run on that one, and the statistics say so."""
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    s = Scheduler(100)
    monkeypatch.setattr(threading.Thread, "start", start)
    jobs = [s.submit(threading.get_ident) for _ in range(100)]
    assert {job.result(PATIENCE) for job in jobs} == {started[0].ident}
    assert (s.stats().workers, s.stats().lost_workers) == (1, 99)
    assert s.shutdown()


# ---------------------------------------------------------------------- order


def ran_in_order(s: Scheduler, submit: Callable[[Callable[[Any], None]], Any]) -> list[Any]:
    """Fill the queue while the only worker is taken; return the order in which the rest ran."""
    order: list[Any] = []
    with occupied(s):
        submit(order.append)
    assert s.wait_idle(PATIENCE)
    return order


def test_ord_01_lower_number_first():
    """By priority, ties in submission order. Where the peer runs the larger number first, we run the lower."""
    with Scheduler(1) as s:

        def submit(note: Callable[[Any], None]) -> None:
            for label, priority in [("0", 0), ("1a", 1), ("1b", 1), ("2", 2), ("-1", -1), ("1.5", 1.5)]:
                s.options(priority=priority).submit(note, label)

        assert ran_in_order(s, submit) == ["-1", "0", "1a", "1b", "1.5", "2"]


def test_ord_02_default_priority_is_five():
    """Jobs without a priority count as 5, not 0 as with the peer: 4 goes before them, 6 behind, 5 among them."""
    with Scheduler(1) as s:

        def submit(note: Callable[[Any], None]) -> None:
            s.submit(note, "plain 1")
            s.options(priority=6).submit(note, "6")
            s.options(priority=5).submit(note, "5")
            s.options(priority=4).submit(note, "4")
            s.options(name="no priority said").submit(note, "plain 2")

        assert ran_in_order(s, submit) == ["4", "plain 1", "5", "plain 2", "6"]


def refilled_order(before: int, taken: int, later: list[tuple[Any, float]]) -> list[Any]:
    """Queue `before` equal jobs, let `taken` of them run, then add the `later` ones and let all run."""
    order: list[Any] = []
    with Scheduler(1) as s:
        middle = Gate()
        with occupied(s):
            for number in range(before):
                if number == taken:
                    s.submit(middle)
                s.submit(order.append, number)
        middle.await_start()
        assert order == list(range(taken))
        for label, priority in later:
            s.options(priority=priority).submit(order.append, label)
        assert s.stats().pending == before - taken + len(later)
        middle.open()
        assert s.wait_idle(PATIENCE)
        assert s.stats().pending == 0
    return order[taken:]


def test_ord_03_urgent_after_some_were_taken():
    """An urgent newcomer passes what still waits, whose order stays."""
    assert refilled_order(3, 1, [("urgent", 0)]) == ["urgent", 1, 2]


def test_ord_04_equal_and_lower_after_some_were_taken():
    """A newcomer of equal rank goes behind its elders, one of less importance behind all."""
    assert refilled_order(2, 1, [("less", 9), ("equal", 5)]) == [1, "equal", "less"]


def test_ord_05_a_long_queue_keeps_its_order():
    """With 150 queued and 120 taken, the urgent one goes first and the rest in order, down to an empty queue."""
    assert refilled_order(150, 120, [("urgent", 0)]) == ["urgent", *range(120, 150)]


def test_ord_08_earliest_due_first():
    """Delayed jobs start at their times, in due order, whatever the order of submission; nothing before."""
    clock = FakeClock(100.0)
    started: list[tuple[str, float]] = []
    with Scheduler(1, clock=clock) as s:
        for name, delay in [("c", 30), ("a", 10), ("b", 20)]:
            s.options(delay=delay).submit(lambda name=name: started.append((name, clock.now())))
        assert min(info.run_at for info in s.snapshot()) == 110.0
        clock.advance(9.999)
        assert started == []
        clock.advance(0.001)
        assert started == [("a", 110.0)]
        assert min(info.run_at for info in s.snapshot() if not info.status.ended) == 120.0
        clock.advance(1000)
        assert started == [("a", 110.0), ("b", 120.0), ("c", 130.0)]


def test_ord_09_equal_due_times():
    """Two jobs due at one instant both run; while the first runs the other is there with its time."""
    clock = FakeClock()
    with Scheduler(1, clock=clock, policy=OldestDuePolicy()) as s:
        gate = Gate()
        first = s.options(delay=5).submit(gate, "first")
        second = s.options(delay=5).submit(abs, -2)
        clock.advance(5, wait=False)
        gate.await_start()
        assert (first.status, second.status) == (JobStatus.RUNNING, JobStatus.PENDING)
        assert second.run_at == first.run_at == 5.0
        gate.open()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == ("first", 2)


# ---------------------------------------------------------------------- delays


def test_dly_01_not_before_the_delay():
    """A delayed job starts no earlier than its delay after submission, on the real clock too."""
    clock = FakeClock(7.0)
    with Scheduler(1, clock=clock) as s:
        job: Job[float] = s.options(delay=2.5).submit(clock.now)
        clock.advance(2.4)
        assert job.status is JobStatus.PENDING
        clock.advance(10)
        assert job.result(PATIENCE) == 9.5
    with Scheduler(1) as s:
        job = s.options(delay=timedelta(milliseconds=30)).submit(s._runtime.clock.now)
        assert job.result(PATIENCE) - job.submitted_at >= 0.03


@pytest.mark.parametrize("delay", [0, 0.0, timedelta(0), 1e-300])
def test_dly_02_due_now(delay: Any):
    """A job that is due when it comes runs at once, exactly once; a past moment is refused as a negative delay."""
    ran = []
    with Scheduler(1, clock=FakeClock(1.0)) as s:
        s.options(delay=delay).submit(ran.append, 1).result(PATIENCE)
        with pytest.raises(ValueError, match="delay must be at least 0, not -1"):
            s.options(delay=-1)
    assert ran == [1]


def test_dly_03_waiting_time_holds_no_slot():
    """Of five jobs with tiny delays and one worker, one runs and the four others wait."""
    clock = FakeClock()
    with Scheduler(1, clock=clock) as s:
        gates = [Gate() for _ in range(5)]
        jobs = [s.options(delay=0.001).submit(gate) for gate in gates]
        clock.advance(1, wait=False)
        gates[0].await_start()
        stats = s.stats()
        assert (stats.running, stats.pending) == (1, 4)
        assert [job.id for job in jobs if job.status is JobStatus.PENDING] == [job.id for job in jobs[1:]]
        for gate in gates:
            gate.open()
        assert [job.result(PATIENCE) for job in jobs] == [None] * 5


def test_dly_04_absurdly_long_delays():
    """Delays of centuries are accepted and hold up nothing: what is due now runs now."""
    s = Scheduler(1)
    far = [s.options(delay=delay).submit(nothing) for delay in (1e18, timedelta.max, 10**9, 1e300)]
    assert s.submit(lambda: s.submit(abs, -1)).result(PATIENCE).result(PATIENCE) == 1
    assert {job.status for job in far} == {JobStatus.PENDING}
    assert s.shutdown(drain="due")
    assert {job.status for job in far} == {JobStatus.CANCELLED}


# ---------------------------------------------------------------------- cancel


def test_can_01_a_waiting_job():
    """What is cancelled before its start never runs, and its result says so with and without a timeout."""
    ran: list[int] = []
    with Scheduler(1) as s:
        with occupied(s):
            job = s.submit(ran.append, 1)
            assert job.cancel()
        for arguments in [(), (PATIENCE,), (0,)]:
            with pytest.raises(test_scenarios_ending.CancelledError):
                job.result(*arguments)
        assert job.cancelled()
        assert job.done()
    assert ran == []


def test_can_02_leaves_the_queue_at_once():
    """The waiting count drops by the cancel itself, and the other one stays."""
    with Scheduler(1) as s, occupied(s):
        given_up, other = s.submit(nothing), s.submit(nothing)
        assert s.stats().pending == 2
        given_up.cancel()
        assert s.stats().pending == 1
        assert [info.id for info in s.snapshot() if info.status is JobStatus.PENDING] == [other.id]


def test_can_03_only_the_one_meant():
    """Cancelling the middle one leaves its neighbours and their order; two jobs cannot share an id with us."""
    ran: list[str] = []
    with Scheduler(1) as s:
        with occupied(s):
            jobs = {name: s.options(id=name).submit(ran.append, name) for name in "abc"}
            with pytest.raises(ValueError, match="'b'"):
                s.options(id="b").submit(ran.append, "another b")
            assert s.cancel("b")
        assert s.wait_idle(PATIENCE)
        assert ran == ["a", "c"]
        assert [job.status.name for job in jobs.values()] == ["DONE", "CANCELLED", "DONE"]


def test_can_04_remove_says_whether_this_call_did_it():
    """`Scheduler.cancel` is True for the call that cancelled, False for the second and for the running job."""
    with Scheduler(1) as s, occupied(s) as (running,):
        others = [s.submit(nothing) for _ in range(3)]
        assert s.cancel(others[1].id) is True
        assert s.cancel(others[1].id) is False
        assert s.cancel(running.id) is False
        assert running.running()
        assert [job.status.name for job in others] == ["PENDING", "CANCELLED", "PENDING"]


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_can_05_cancelled_delayed_jobs_do_not_pile_up(queue: Any):
    """Of five far-off jobs two are cancelled: three are counted at once, whatever is asked again."""
    s = Scheduler(1, queue=queue)
    jobs = [s.options(delay=3600).submit(nothing) for _ in range(5)]
    jobs[1].cancel()
    jobs[3].cancel()
    for _ in range(2):
        stats = s.stats()
        assert (stats.pending, stats.delayed, stats.cancelled) == (3, 3, 2)
        s.check()
    assert s.clear() == 3
    assert s.clear() == 0
    assert s.shutdown()


def test_can_06_neither_success_nor_failure():
    """A cancel counts as cancelled alone, calls no error hook, and releases who waits for idleness."""
    errors: list[Any] = []
    with Scheduler(1, on_error=lambda job, error: errors.append(job)) as s:
        job = s.options(delay=3600).submit(nothing)
        join = in_thread(lambda: s.wait_idle(PATIENCE))
        job.cancel()
        assert join() is True
        stats = s.stats()
        assert (stats.done, stats.failed, stats.cancelled) == (0, 0, 1)
    assert errors == []

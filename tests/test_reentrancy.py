"""The scheduler called from where nobody expects it: signal handlers, finalizers, hostile objects, callbacks, hooks.

The sweeps (`sweep.py`) strike one operation at every point of its way in turn; what they say is deterministic. The
storms beside them do the same with real signals and a real collector.
"""

import concurrent.futures
import gc
import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.crowds import PATIENCE, Gate, in_thread
from tests.support import ROOT, exhaustive, rng, run_script, sample, size
from threadsched import JobStatus, Retry, Scheduler, SchedulerClosedError

VARIANTS = ("lazy", "indexed", "before")
OPERATIONS = (
    "submit",
    "submit_delayed",
    "replace",
    "cancel",
    "cancel_delayed",
    "result",
    "wait_idle",
    "add_callback",
    "shutdown",
    "shutdown_due",
    "shutdown_none",
    "policy",
    "claim",
)
STRIKES = ("submit", "cancel", "stats", "shutdown", "shutdown_none")

# ---------------------------------------------------------------- sweeps

SWEEP = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("tests.sweep", run_name="__main__", alter_sys=True)
"""


def sweep(operation: str, strike: str, variant: str, mode: str) -> None:
    step = 1 if exhaustive() else 5
    offset = rng(f"sweep {operation} {strike} {variant}").randrange(step)
    args = [str(ROOT), operation, strike, variant, mode, str(step), str(offset)]
    done = run_script(SWEEP, args=args, timeout=28)
    # Each point is a fresh scheduler; a sweep that found no points would prove nothing.
    assert int(done.stdout.split()[-1]) >= (2 if exhaustive() else 1)


NESTED = list(itertools.product(OPERATIONS, STRIKES, VARIANTS))
INTERRUPTED = list(itertools.product([one for one in OPERATIONS if one != "policy"], VARIANTS))


@pytest.mark.proof
@pytest.mark.subprocess
@pytest.mark.parametrize(("operation", "strike", "variant"), sample(NESTED, 5, "nested"))
def test_a_handler_at_every_line(operation: str, strike: str, variant: str) -> None:
    """A handler that calls back into the scheduler at any line of an operation loses nothing and never hangs."""
    sweep(operation, strike, variant, "lines")


@pytest.mark.proof
@pytest.mark.subprocess
@pytest.mark.parametrize(("operation", "variant"), sample(INTERRUPTED, 4, "interrupted"))
def test_ctrl_c_at_every_point(operation: str, variant: str) -> None:
    """A KeyboardInterrupt wherever it can strike leaves the lock free, the books right and no waiter asleep."""
    sweep(operation, "interrupt", variant, "exact")


# ---------------------------------------------------------------- real signals, real collector

STORM = size(2_000, 300)  # milliseconds, at 1 kHz
SIGNALLED = list(itertools.product(VARIANTS, ["submit", "cancel", "look", "shutdown"]))
ROUNDS = size(4_000, 300)
FINALIZED = list(itertools.product(VARIANTS, ["refcount", "collector", "weakref"]))

SIGNALS = """
import signal, sys, threading, time
from threadsched import Scheduler, SchedulerClosedError
queue, action, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

class ByPriority:
    def before(self, a, b):
        return a.priority < b.priority

kind = {"policy": ByPriority()} if queue == "before" else {"queue": queue}
scheduler = Scheduler(2, **kind)
accepted, refused, handled = [], 0, 0
busy = False

def handler(*_):
    global handled, refused, busy
    if busy:
        return  # an alarm during the handler itself
    busy = True
    handled += 1
    try:
        if action == "submit":
            accepted.append(scheduler.submit(int))
        elif action == "cancel" and accepted:
            accepted[-1].cancel()
            accepted.append(scheduler.options(delay=3600).submit(int))
            accepted[-1].cancel()
        elif action == "look":
            stats = scheduler.stats()
            assert stats.submitted == stats.pending + stats.running + stats.done + stats.failed + stats.cancelled
            scheduler.status_of(1)
            scheduler.get("none")
        elif action == "shutdown" and handled == 60:
            scheduler.shutdown(wait=False, cancel_futures=handled % 2 == 0)
    except SchedulerClosedError:
        pass
    except RuntimeError as error:
        if "before()" not in str(error):
            raise
        refused += 1
    finally:
        busy = False

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + seconds
try:
    while time.monotonic() < end:
        jobs = [scheduler.submit(int, number) for number in range(20)]
        accepted += jobs
        jobs[3].cancel()
        for job in jobs:
            if not job.cancelled():
                try:
                    assert job.result(10) == jobs.index(job)
                except BaseException:
                    if not job.cancelled():
                        raise
except SchedulerClosedError:
    assert action == "shutdown"
signal.setitimer(signal.ITIMER_REAL, 0)
assert handled > 20, handled
report = scheduler.shutdown(timeout=10)
assert report, report
assert all(job.done() for job in accepted)
stats = scheduler.stats()
assert stats.submitted == stats.done + stats.failed + stats.cancelled
scheduler.check()
print(handled, refused)
"""


@pytest.mark.proof
@pytest.mark.subprocess
@pytest.mark.parametrize(("queue", "action"), sample(SIGNALLED, 3, "signals"))
def test_a_storm_of_signals(queue: str, action: str) -> None:
    """A handler at 1 kHz that submits, cancels, looks or shuts down neither hangs anybody nor loses a job."""
    done = run_script(SIGNALS, args=[queue, action, f"{STORM / 1000}"])
    assert done.stderr == ""


COLLECTOR = """
import gc, sys, threading, weakref
from threadsched import Scheduler
queue, way, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])

class ByPriority:
    def before(self, a, b):
        return a.priority < b.priority

kind = {"policy": ByPriority()} if queue == "before" else {"queue": queue}
scheduler = Scheduler(2, **kind)
accepted, cancelled = [], []

def call_back(*_):
    try:
        accepted.append(scheduler.submit(int))
        job = scheduler.options(delay=3600).submit(int)
    except RuntimeError as error:
        if "before()" not in str(error):
            raise
        return
    accepted.append(job)
    cancelled.append(job.cancel())

class Finalized:
    def __del__(self):
        call_back()

class Plain:
    pass

kept = []
def litter():
    if way == "refcount":
        Finalized()
    elif way == "collector":
        thing = Finalized()
        thing.cycle = thing
    else:
        thing = Plain()
        thing.cycle = thing
        kept.append(weakref.ref(thing, call_back))

noise = []
sys.unraisablehook = lambda info: noise.append(repr(info.exc_value))
gc.set_threshold(5, 2, 2)
for number in range(rounds):
    litter()
    jobs = [scheduler.options(priority=number % 7).submit(int, number) for number in range(10)]
    jobs[number % 10].cancel()
    accepted += jobs
    for job in jobs[:3]:
        job.cancelled() or job.exception(10)
gc.collect()
assert noise == [], noise[:3]
assert len(cancelled) > rounds / 2 and all(cancelled)
assert scheduler.shutdown(timeout=10)
assert all(job.done() for job in accepted)
scheduler.check()
assert scheduler.stats().submitted == len(accepted)
"""


@pytest.mark.proof
@pytest.mark.subprocess
@pytest.mark.parametrize(("queue", "way"), sample(FINALIZED, 3, "finalizers"))
def test_a_storm_of_finalizers(queue: str, way: str) -> None:
    """Finalizers and weakref callbacks that submit and cancel, whenever the collector likes, lose nothing."""
    done = run_script(COLLECTOR, args=[queue, way, f"{ROUNDS}"])
    assert done.stderr == ""


@pytest.mark.parametrize("what", ["task", "argument", "result", "exception"])
def test_a_last_reference_that_calls_back(what: str) -> None:
    """The last reference to what is the user's goes outside of every lock, so its ``__del__`` may block on us."""
    told: list[Any] = []

    class Blocking:
        def __del__(self) -> None:
            # From another thread: held up for ever if this one held the scheduler's lock.
            told.append(in_thread(lambda: scheduler.stats().submitted))

        def __call__(self, *_: object) -> Any:
            if what == "exception":
                raise ValueError(Blocking())
            return Blocking() if what == "result" else None

    scheduler = Scheduler(1)
    gate = Gate()
    scheduler.submit(gate)
    gate.await_start()
    ran = scheduler.submit(Blocking())
    dropped = [scheduler.submit(Blocking(), Blocking()), scheduler.options(delay=60).submit(Blocking(), Blocking())]
    assert dropped[0].cancel()
    assert len(told) == 2
    gate.open()
    ran.exception(PATIENCE)
    del ran
    assert scheduler.shutdown(cancel_futures=True, timeout=PATIENCE)
    gc.collect()
    assert len(told) == 5 + (what in ("result", "exception"))


# ---------------------------------------------------------------- hostile objects


class Hostile:
    """Refuses everything that anybody might do with it beyond calling it."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("hands off")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __lt__ = __len__ = __iter__ = __format__ = _refuse  # type: ignore[assignment]


class HostileError(Exception):
    """Cannot be printed, compared, hashed, pickled or annotated."""

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("hands off")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __reduce__ = add_note = _refuse  # type: ignore[assignment]


@pytest.mark.parametrize("queue", ["lazy", "indexed"])
def test_hostile_tasks_and_arguments(queue: Any) -> None:
    """Tasks, arguments and results that refuse to be printed, compared or hashed run like any others."""
    with Scheduler(2, queue=queue) as scheduler:
        answer = Hostile()
        jobs = [scheduler.submit(Hostile(answer), Hostile(), key=Hostile()) for _ in range(10)]
        later = scheduler.options(delay=3600).submit(Hostile(), Hostile())
        assert all(job.result(PATIENCE) is answer for job in jobs)
        assert later.cancel()
        assert {job.status for job in jobs} == {JobStatus.DONE}
        for thing in (*jobs, later, scheduler, *scheduler.snapshot()):
            assert repr(thing)
        assert jobs[0].explain()
        scheduler.check()


def test_hostile_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    """An exception that refuses everything is still the job's outcome, retried and reported like any other."""
    errors: list[BaseException] = []
    with Scheduler(1, on_error=lambda job, error: errors.append(error)) as scheduler:
        error = HostileError()
        job = scheduler.options(retries=2, backoff=0).submit(Hostile(error))
        assert job.exception(PATIENCE) is error
        assert job.attempts == 3
        assert job.info().error is not None
        with pytest.raises(HostileError):
            job.result(0)
        unseen = scheduler.submit(Hostile(HostileError()))
        scheduler.wait_idle(PATIENCE)
        del unseen
        gc.collect()
        scheduler.check()
    assert len(errors) == 2
    assert sum("nobody asked" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        MemoryError(),
        RecursionError(),
        HostileError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("where", ["callback", "on_error", "give_up", "task"])
def test_foreign_code_that_raises_anything(where: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a callback, a hook, a retry rule or a task raises, the worker lives and the jobs beside it run."""

    def explode(*_: object) -> Any:
        raise error

    with Scheduler(1, on_error=explode if where == "on_error" else None) as scheduler:
        ident = scheduler.submit(threading.get_ident).result(PATIENCE)
        told: list[Any] = []
        retry = Retry(2, backoff=0, give_up=explode if where == "give_up" else None)
        task: Any = explode if where == "task" else Hostile(ValueError("the task's own"))
        job = scheduler.options(retry=retry).submit(task)
        if where == "callback":
            job.add_done_callback(explode)
        job.add_done_callback(told.append)
        outcome = job.exception(PATIENCE)
        assert outcome is error if where == "task" else isinstance(outcome, ValueError)
        assert scheduler.submit(threading.get_ident).result(PATIENCE) == ident
        assert told == [job]
        assert scheduler.stats().replaced_workers == 0
    assert ("raised" in caplog.text) == (where != "task")


# ---------------------------------------------------------------- callbacks and hooks that call back


def test_callbacks_that_use_the_scheduler() -> None:
    """A done-callback may submit, cancel, look, add callbacks, and wait for another thread that submits."""
    with Scheduler(1) as scheduler:
        later = scheduler.options(delay=3600).submit(int)
        made: list[Any] = []
        gate = Gate()
        job = scheduler.submit(gate)

        def use(job: Any) -> None:
            made.append(scheduler.submit(int, 1))
            made.append(in_thread(lambda: scheduler.submit(int, 2)))
            assert later.cancel()
            scheduler.stats()
            scheduler.check()
            job.add_done_callback(lambda job: made.append(scheduler.submit(int, 3)))

        told = threading.Event()
        job.add_done_callback(use)
        job.add_done_callback(lambda job: told.set())
        gate.open()
        assert told.wait(PATIENCE)
        assert [one.result(PATIENCE) for one in made] == [1, 2, 3] or [one.result(0) for one in made] == [1, 3, 2]


def test_a_cancelling_callback_chain_needs_no_recursion() -> None:
    """Callbacks that each cancel the next of a thousand pending jobs come to an end."""
    with Scheduler(1) as scheduler:
        jobs = [scheduler.options(delay=3600).submit(int) for _ in range(100)]
        for first, second in itertools.pairwise(jobs):
            first.add_done_callback(lambda _, second=second: second.cancel())  # type: ignore[misc]
        assert jobs[0].cancel()
        concurrent.futures.wait(jobs, PATIENCE)  # a worker that has just arrived may have taken over
        assert all(job.cancelled() for job in jobs)


def test_a_job_that_submits_and_a_hook_that_submits() -> None:
    """``on_error`` may submit, also the failing job's successor, and is not called for that one's success."""
    made: list[Any] = []

    def on_error(job: Any, error: BaseException) -> None:
        made.append(scheduler.submit(int, 7))
        scheduler.stats()

    with Scheduler(1, on_error=on_error) as scheduler:
        scheduler.submit(int, "x").exception(PATIENCE)
        scheduler.wait_idle(PATIENCE)
        assert [job.result(PATIENCE) for job in made] == [7]


class Handler(logging.Handler):
    """Does something to the scheduler with each record."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.action = action
        self.handled = 0

    def handle(self, record: logging.LogRecord) -> bool:
        # Not emit(), which logging guards by a lock and an except of its own.
        self.handled += 1
        self.action()
        return True


@pytest.fixture
def attach() -> Iterator[Any]:
    attached: list[logging.Handler] = []
    logger = logging.getLogger("threadsched")

    def add(handler: logging.Handler) -> Any:
        logger.addHandler(handler)
        attached.append(handler)
        return handler

    yield add
    for handler in attached:
        logger.removeHandler(handler)


def blow_up(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("error", [ValueError(), SystemExit(), KeyboardInterrupt(), RecursionError()], ids=repr)
def test_a_log_handler_that_raises(error: BaseException, attach: Any) -> None:
    """A handler that raises costs no worker its life and no job its end."""
    handler = attach(Handler(lambda: blow_up(error)))
    with Scheduler(1) as scheduler:
        ident = scheduler.submit(threading.get_ident).result(PATIENCE)
        gate = Gate()
        job = scheduler.submit(gate)
        told: list[Any] = []
        job.add_done_callback(lambda job: blow_up(ValueError()))
        job.add_done_callback(told.append)
        gate.open()
        job.result(PATIENCE)
        assert scheduler.submit(threading.get_ident).result(PATIENCE) == ident
        assert told == [job]
    assert handler.handled > 0


def test_a_log_handler_that_submits(attach: Any) -> None:
    """A handler may submit, from a worker and from the collector's finalizer of a failure that nobody looked at."""
    made: list[Any] = []
    with Scheduler(1) as scheduler:
        attach(Handler(lambda: made.append(scheduler.submit(int))))
        job = scheduler.submit(int)
        job.result(PATIENCE)
        failed = scheduler.submit(int, "x")
        scheduler.wait_idle(PATIENCE)
        del failed
        gc.collect()
        scheduler.wait_idle(PATIENCE)
        assert [one.result(PATIENCE) for one in made] == [0]
        scheduler.check()


def test_a_policy_that_calls_the_scheduler() -> None:
    """``before`` is refused when it calls the scheduler; ``key``, which runs outside of the lock, is not."""

    class Nosy:
        def key(self, job: Any) -> float:
            scheduler.stats()
            nested.append(in_thread(scheduler.stats))
            return job.priority  # type: ignore[no-any-return]

    nested: list[Any] = []
    with Scheduler(1, policy=Nosy()) as scheduler:
        assert scheduler.submit(int).result(PATIENCE) == 0
        assert len(nested) == 1

    class Caller:
        def before(self, a: Any, b: Any) -> bool:
            scheduler.submit(int)
            return False

    with Scheduler(1, policy=Caller()) as scheduler:
        gate = Gate()
        scheduler.submit(gate)
        gate.await_start()
        first = scheduler.submit(int)
        with pytest.raises(RuntimeError, match="before"):
            scheduler.submit(int)
        gate.open()
        assert first.result(PATIENCE) == 0
        scheduler.check()


def test_a_task_that_shuts_down_from_its_finalizer() -> None:
    """A finalizer that shuts the scheduler down while the main thread submits closes the door and hangs nobody."""
    scheduler = Scheduler(2)

    class Last:
        def __del__(self) -> None:
            scheduler.shutdown(wait=False)

    def submit_until_closed() -> int:
        count = 0
        with pytest.raises(SchedulerClosedError):
            while True:
                scheduler.submit(int, Last() if count == 50 else 0) if count != 50 else scheduler.submit(len, [Last()])
                count += 1
        return count

    assert submit_until_closed() >= 51
    assert scheduler.shutdown(timeout=PATIENCE)

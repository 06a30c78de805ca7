"""Small concurrent programs, each with one classic fault and with that fault mended: what the explorer must tell apart.

Each program takes ``broken`` and returns the body of a scenario. The mended one holds under every schedule.
"""

import heapq
from collections.abc import Callable
from typing import Any

from tests.explorer.kernel import Kernel
from tests.explorer.primitives import SIM_THREADING as threading
from tests.explorer.search import Scenario

Body = Callable[[Kernel], None]


def together(*parts: Callable[[], Any]) -> None:
    """Run each part on a thread of its own and wait for all."""
    threads = [threading.Thread(target=part, name=f"{part.__name__} {at}") for at, part in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check_then_act(broken: bool) -> Body:
    """A bounded queue that looks for room, lets go of the lock, and puts."""

    def body(kernel: Kernel) -> None:
        lock, queue = threading.Lock(), ["one"]

        def put() -> None:
            with lock:
                room = len(queue) < 2
                if room and not broken:
                    queue.append("more")
            if room and broken:
                with lock:
                    queue.append("more")

        together(put, put)
        if len(queue) > 2:
            kernel.fail("bound", f"{len(queue)} in a queue for 2")

    return body


def lost_wake_up(broken: bool) -> Body:
    """A consumer that looks, and then waits without having looked under the lock that it waits with."""

    def body(kernel: Kernel) -> None:
        condition, queue = threading.Condition(), []

        def consume() -> None:
            if broken:
                with condition:
                    empty = not queue
                with condition:
                    if empty:
                        condition.wait()
            else:
                with condition:
                    while not queue:
                        condition.wait()
            queue.pop()

        def produce() -> None:
            with condition:
                queue.append("item")
                condition.notify()

        together(consume, produce)

    return body


def absorbed_notify(broken: bool) -> Body:
    """A waiter whose time runs out as it is notified leaves with the notification, and another sleeps on."""

    def body(kernel: Kernel) -> None:
        condition, queue = threading.Condition(), []

        def consume() -> None:
            with condition:
                while not queue:
                    condition.wait()
                queue.pop()

        def look() -> None:
            with condition:
                if queue or condition.wait(1.0) or not broken:
                    condition.notify()  # the notification was perhaps meant for me: it goes on to the next

        def produce() -> None:
            with condition:
                queue.append("item")
                condition.notify()

        together(look, consume, produce)

    return body


def double_run(broken: bool) -> Body:
    """Two workers that see a job pending before either has said that it takes it."""

    def body(kernel: Kernel) -> None:
        lock = threading.Lock()
        job = {"state": "pending", "runs": 0}

        def work() -> None:
            if broken:
                with lock:
                    state = job["state"]
                if state == "pending":
                    with lock:
                        job["state"] = "running"
                    job["runs"] += 1  # type: ignore[operator]
            else:
                with lock:
                    state, job["state"] = job["state"], "running"
                if state == "pending":
                    job["runs"] += 1  # type: ignore[operator]

        together(work, work)
        if job["runs"] != 1:
            kernel.fail("runs", f"the job ran {job['runs']} times")

    return body


class Timers:
    """A pool in which one sleeper, the leader, waits for the next job's time and the others for a call."""

    def __init__(self, kernel: Kernel, *, succession: bool, looks_again: bool) -> None:
        self.kernel = kernel
        self.succession = succession
        self.looks_again = looks_again
        self.lock = threading.RLock()
        self.heap: list[tuple[float, Any]] = []
        self.idle: list[Any] = []
        self.leader: list[Any] = []
        self.closed = False

    def put(self, due: float, task: Callable[[], None]) -> None:
        with self.lock:
            heapq.heappush(self.heap, (due, task))
            if self.heap[0][0] == due:
                self.wake()

    def wake(self) -> None:
        for sleepers in (self.leader, self.idle):
            if sleepers:
                sleepers.pop().release()
                return

    def close(self) -> None:
        with self.lock:
            self.closed = True
            while self.leader or self.idle:
                self.wake()

    def work(self) -> None:
        token = threading.Lock()
        token.acquire()
        while True:
            with self.lock:
                task = None
                if self.heap and self.heap[0][0] <= self.kernel.now:
                    _, task = heapq.heappop(self.heap)
                    if self.succession and self.heap and not self.leader:
                        self.wake()
                elif self.closed and not self.heap:
                    self.close()
                    return
                else:
                    due = self.heap[0][0] if self.heap else None
                    leads = due is not None and not self.leader
                    if self.looks_again:
                        (self.leader if leads else self.idle).append(token)
            if task is not None:
                task()
                continue
            if not self.looks_again:
                with self.lock:  # a new head that came in between has found nobody to wake
                    (self.leader if leads else self.idle).append(token)
            if leads and due is not None and not token.acquire(timeout=max(due - self.kernel.now, 0.0)):
                with self.lock:
                    if token in self.leader:
                        self.leader.remove(token)
                        continue
                token.acquire()
            elif not leads:
                token.acquire()


def no_successor(broken: bool) -> Body:
    """A leader that leaves to run a job and makes nobody else the leader."""

    def body(kernel: Kernel) -> None:
        timers = Timers(kernel, succession=not broken, looks_again=True)
        late: list[float] = []

        def long() -> None:
            kernel.sleep(5.0)

        def short() -> None:
            if kernel.now != 2.0:
                late.append(kernel.now)

        def submit() -> None:
            timers.put(1.0, long)
            timers.put(2.0, short)
            timers.close()

        together(timers.work, timers.work, submit)
        if late:
            kernel.fail("late", f"due at 2, started at {late[0]:g}")

    return body


def late_timer(broken: bool) -> Body:
    """A leader that has read for how long to sleep, and does not hear of an earlier job before it sleeps."""

    def body(kernel: Kernel) -> None:
        timers = Timers(kernel, succession=True, looks_again=not broken)
        starts: list[float] = []

        def note() -> None:
            starts.append(kernel.now)

        def submit_late() -> None:
            timers.put(3.0, note)

        def submit_soon() -> None:
            timers.put(1.0, lambda: note())

        def submit() -> None:
            together(submit_late, submit_soon)
            timers.close()

        together(timers.work, submit)
        if starts != [1.0, 3.0]:
            kernel.fail("late", f"due at 1 and 3, started at {starts}")

    return body


def lock_order(broken: bool) -> Body:
    """Two locks, taken in two orders."""

    def body(kernel: Kernel) -> None:
        one, other = threading.Lock(), threading.RLock()

        def forward() -> None:
            with one, other:
                pass

        def backward() -> None:
            with other if broken else one, one if broken else other:
                pass

        together(forward, backward)

    return body


# name -> (program, the kinds of failure that it has, whether the clock is a choice)
PROGRAMS: dict[str, tuple[Callable[[bool], Body], str, bool]] = {
    "check-then-act": (check_then_act, "bound", False),
    "lost-wake-up": (lost_wake_up, "deadlock", False),
    "absorbed-notify": (absorbed_notify, "deadlock", True),
    "double-run": (double_run, "runs", False),
    "no-successor": (no_successor, "late", False),
    "late-timer": (late_timer, "late deadlock", False),
    "lock-order": (lock_order, "deadlock", False),
}


def scenario(name: str, *, broken: bool) -> Scenario:
    """Return a program as a scenario."""
    program, _, explore_time = PROGRAMS[name]
    return Scenario(f"seeded/{name}" if broken else f"mended/{name}", program(broken), explore_time=explore_time)

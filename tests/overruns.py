"""What the tests of overrunning tasks share: tasks that wait to be let go, and the threads of a scheduler by name."""

import threading
from collections.abc import Callable
from typing import Any

from tests.gates import PATIENCE, Gate
from threadsched import Job, JobTimeoutError, Scheduler
from threadsched.testing import FakeClock


class Late(Gate):
    """A gate that also says when its task has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.leave: Callable[[], object] = lambda: None  # the last that it does

    def __call__(self, value: Any = "late") -> Any:
        self.thread = threading.current_thread()
        answer = super().__call__(value)
        self.leave()
        return answer


def overrun(s: Scheduler, clock: FakeClock, **options: Any) -> tuple[Late, Job[Any]]:
    """Have a task run for its timeout of 1 second; it stays in the task until its gate is opened."""
    gate = Late()
    job = s.options(timeout=1, **options).submit(gate)
    gate.await_start()
    clock.jump(1)
    assert isinstance(job.exception(PATIENCE), JobTimeoutError)
    return gate, job


def home(s: Scheduler, gate: Late) -> None:
    """Let the task go, and wait until its thread has ended or serves again."""
    gate.open()
    assert gate.thread is not None
    come = threading.Event()
    thread = gate.thread
    while thread.is_alive() and "(lost" in thread.name:
        come.wait(0.001)
    s._runtime.wait_told(PATIENCE)


def threads_of(s: Scheduler) -> list[str]:
    """Return the names of the scheduler's threads."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(s._runtime.name))


def watcher_of(s: Scheduler) -> threading.Thread | None:
    """Return the watcher's thread, alive or not, if there ever was one."""
    thread: threading.Thread | None = s._runtime.watcher
    return thread

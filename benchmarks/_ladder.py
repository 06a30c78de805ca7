"""From the barest pool to the scheduler, a step at a time: what each thing costs that a user gets.

``TEMPLATE`` is the source of a pool. A line that ends in ``# N..`` belongs to the steps from N on, one that ends in
``# ..N`` to those up to N, any other to all. So step 1 is a deque, one lock and a token for each worker, and each
further step is the one before with a few lines more; :func:`build` compiles one.

None of these is a scheduler: they have no cancel, no shutdown to speak of, and nothing that a signal handler, an
exception or a fork could not break. What they have is written the way the scheduler has it.
"""

from __future__ import annotations

import contextvars
import itertools
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from threadsched._heap import LazyQueue
from threadsched._locks import step_aside
from threadsched._policy import PriorityPolicy, Ranking

TEMPLATE = """
class Job:                                                                                # 4..
    __slots__ = ("fn", "value", "state", "token")                                         # 4..5
    __slots__ = ("fn", "value", "state", "token", "seq")                                  # 6..6
    __slots__ = ("fn", "value", "state", "token", "seq", "key")                           # 7..7
    __slots__ = ("fn", "value", "state", "token", "seq", "key", "at", "started")          # 8..8
    __slots__ = ("fn", "value", "state", "token", "seq", "key", "at", "started", "context")  # 9..9
    __slots__ = ("fn", "value", "state", "token", "seq", "key", "at", "started", "context",  # 10..
                 "pool", "args", "kwargs", "options", "priority", "run_at", "place", "attempts")  # 10..

    def __init__(self, fn):                                                               # 4..9
    def __init__(self, pool, fn, args, kwargs, options, now):                             # 10..
        self.fn = fn                                                                      # 4..
        self.value = None                                                                 # 4..
        self.state = "PENDING"                                                            # 4..
        self.token = None                                                                 # 4..
        self.started = None                                                               # 8..
        self.at = now                                                                     # 10..
        self.pool = pool                                                                  # 10..
        self.args = args                                                                  # 10..
        self.kwargs = kwargs                                                              # 10..
        self.options = options                                                            # 10..
        self.priority = 5                                                                 # 10..
        self.run_at = now                                                                 # 10..
        self.place = "ready"                                                              # 10..
        self.attempts = 0                                                                 # 10..

    def result(self):                                                                     # 4..
        if self.state != "FINISHED":                                                      # 4..
            token = new_lock()                                                            # 4..
            token.acquire()                                                               # 4..
            self.token = token                                                            # 4..
            if self.state != "FINISHED":                                                  # 4..
                token.acquire()                                                           # 4..
        return self.value                                                                 # 4..


class Pool:
    def __init__(self, width):
        self.lock = new_lock()                                                            # ..1
        self.lock = new_rlock()                                                           # 2..
        self.mark = None                                                                  # 3..
        self.queue = deque()                                                              # ..6
        self.queue = LazyQueue(RANKING)                                                   # 7..
        self.pending, self.running, self.numbers = {}, {}, count(1)                       # 6..
        self.history = deque(maxlen=1000)                                                 # 11..
        self.idle = []
        self.closed = False
        self.done = 0                                                                     # 5..
        self.threads = [Thread(target=self.serve) for _ in range(width)]
        for thread in self.threads:
            thread.start()

    def submit(self, fn):                                                                 # ..9
    def submit(self, fn, /, *args, **kwargs):                                             # 10..
        now = monotonic()                                                                 # 8..
        job = fn                                                                          # ..3
        job = Job(fn)                                                                     # 4..9
        job = Job(self, fn, args, kwargs or None, None, now)                              # 10..
        job.at = now                                                                      # 8..9
        job.context = copy_context()                                                      # 9..
        job.key = 5                                                                       # 7..
        if self.mark is not None:                                                         # 3..
            step_aside(self)                                                              # 3..
        self.mark = job                                                                   # 3..
        with self.lock:
            try:
                seq = job.seq = next(self.numbers)                                        # 6..
                self.queue.append(job)                                                    # ..6
                self.queue.push((job.key, seq))                                           # 7..
                if self.idle:
                    self.idle.pop().release()
                self.pending[seq] = job                                                   # 6..
            finally:
                pass                                                                      # ..2
                if self.mark is job:                                                      # 3..
                    self.mark = None                                                      # 3..
        return job                                                                        # 4..

    def serve(self):
        token = new_lock()
        token.acquire()
        job = settled = result = None
        while True:
            now = monotonic()                                                             # 8..
            if self.mark is not None:                                                     # 3..
                step_aside(self)                                                          # 3..
            self.mark = token                                                             # 3..
            with self.lock:
                try:
                    if settled is not None:                                               # 5..
                        self.running.pop(settled.seq, None)                               # 6..
                        settled.value = result                                            # 5..
                        settled.state = "FINISHED"                                        # 5..
                        self.done += 1                                                    # 5..
                        if settled.token is not None:                                     # 5..
                            settled.token.release()                                       # 5..
                        settled.fn = settled.args = settled.context = None                # 10..
                        self.history.append((settled.seq, settled.state, settled.at, settled.started, now))  # 11..
                    job = None
                    if self.queue:                                                        # ..6
                        job = self.queue.popleft()                                        # ..6
                        self.running[job.seq] = self.pending.pop(job.seq)                 # 6..6
                        job.state = "RUNNING"                                             # 6..6
                    entry = self.queue.pop()                                              # 7..
                    if entry is not None:                                                 # 7..
                        job = self.pending.pop(entry[1], None)                            # 7..
                        self.running[entry[1]] = job                                      # 7..
                        job.state = "RUNNING"                                             # 7..
                        job.started = now                                                 # 8..
                        job.attempts += 1                                                 # 10..
                        job.place = token                                                 # 10..
                        if self.idle and len(self.queue):                                 # 7..
                            self.idle.pop().release()                                     # 7..
                    elif self.closed:
                        return
                    else:
                        self.idle.append(token)
                finally:
                    pass                                                                  # ..2
                    if self.mark is token:                                                # 3..
                        self.mark = None                                                  # 3..
            settled = None
            if job is None:
                token.acquire()
                continue
            job()                                                                         # ..3
            job.value = job.fn()                                                          # 4..4
            job.state = "FINISHED"                                                        # 4..4
            if job.token is not None:                                                     # 4..4
                job.token.release()                                                       # 4..4
            fn, args, kwargs, context = job.fn, job.args, job.kwargs, job.context         # 10..
            try:                                                                          # 5..
                result = job.fn()                                                         # 5..8
                result = job.context.run(job.fn)                                          # 9..9
                result = context.run(fn, *args, **kwargs) if kwargs else context.run(fn, *args)  # 10..
            except BaseException as error:                                                # 5..
                result = error                                                            # 5..
            settled = job                                                                 # 5..

    def close(self):
        with self.lock:
            self.closed = True
            while self.idle:
                self.idle.pop().release()
        for thread in self.threads:
            thread.join()
"""


@dataclass(frozen=True)
class Step:
    """What one step adds to the one before."""

    number: int
    adds: str
    why: str


STEPS = (
    Step(1, "a deque, one lock, a token for each worker", "the floor: nothing less hands work to a sleeping thread"),
    Step(2, "the lock is re-entrant", "a signal handler or finalizer may call on the thread that holds it"),
    Step(3, "the mark", "no lock convoy"),
    Step(4, "a future for each job", "a result, an error, somebody to wait for it"),
    Step(5, "errors caught, outcome stored under the lock with the next claim", "one winner; no task ends a worker"),
    Step(
        6,
        "a number, and a map of pending and of running jobs",
        "cancel, status, snapshot; nothing lost or run twice",
    ),
    Step(7, "a key and a queue that orders by it", "priorities, policies"),
    Step(8, "the clock: submitted, started, ended", "delays, records, histories"),
    Step(9, "the submitter's context", "context variables, as asyncio has them"),
    Step(10, "arguments, and all the fields of a job", "retries, delays, dependencies, limits"),
    Step(11, "a record in the history", "what became of it, after it is gone"),
)

LAST = len(STEPS)

# The first step that returns something with result().
FUTURES = 4

_TAG = re.compile(r"^(?P<code>.*?)\s*# (?P<first>\d*)\.\.(?P<last>\d*)$")


def source(step: int) -> str:
    """Return the source of one step."""
    lines = []
    for line in TEMPLATE.splitlines():
        tagged = _TAG.match(line)
        if tagged is None:
            lines.append(line)
        elif int(tagged["first"] or 1) <= step <= int(tagged["last"] or LAST):
            lines.append(tagged["code"])
    return "\n".join(lines)


def build(step: int) -> Any:
    """Return the class ``Pool`` of one step."""
    if not 1 <= step <= LAST:
        raise ValueError(f"there are steps 1 to {LAST}, not {step}")
    namespace: dict[str, Any] = {
        "__name__": f"step_{step}",
        "LazyQueue": LazyQueue,
        "RANKING": Ranking(PriorityPolicy()),
        "Thread": threading.Thread,
        "copy_context": contextvars.copy_context,
        "count": itertools.count,
        "deque": deque,
        "monotonic": time.monotonic,
        "new_lock": threading.Lock,
        "new_rlock": threading.RLock,
        "step_aside": step_aside,
    }
    exec(compile(source(step), f"<step {step}>", "exec"), namespace)
    return namespace["Pool"]

"""A program: lets the process have address space for a few thread stacks only. Run by test_starts.py.

python -m tests.faults.starts TIMES
"""

import logging
import resource
import sys
import threading
from pathlib import Path

from tests.faults.apart import Heard, apart
from threadsched import Scheduler

STACK = 512 * 2**20
WIDTH = 4


def trial(room: int) -> int:
    """Give the process room for `room` stacks and a half."""
    heard = Heard()
    logging.getLogger("threadsched").addHandler(heard)
    logging.getLogger("threadsched").propagate = False
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    threading.stack_size(STACK)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + int((room + 0.5) * STACK), hard))
    scheduler = Scheduler(WIDTH)
    if room == 0:
        for _ in range(2):
            try:
                scheduler.submit(int)
            except (RuntimeError, MemoryError):
                continue
            raise AssertionError("a job was accepted without a worker")
        assert scheduler.stats().submitted == 0
    else:
        jobs = [scheduler.submit(int, number) for number in range(20)]
        assert [job.result(5) for job in jobs] == list(range(20))
        stats = scheduler.stats()
        assert 1 <= stats.workers <= min(room, WIDTH), stats
        assert stats.workers + stats.lost_workers == WIDTH, stats
        assert any("runs with" in text for text in heard.texts) == (stats.workers < WIDTH), heard.texts
    scheduler.check()
    # Room again: the next submission fills the pool up.
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    assert scheduler.submit(int, 7).result(5) == 7
    barrier = threading.Barrier(WIDTH)
    meet = [scheduler.submit(barrier.wait, 5) for _ in range(WIDTH)]
    assert sorted(job.result(5) for job in meet) == list(range(WIDTH))
    assert scheduler.stats().lost_workers == 0
    assert scheduler.shutdown(timeout=5)
    return 0


def main(times: int) -> None:
    for number in range(times):
        status, said = apart(lambda: trial(number % (WIDTH + 2)))  # noqa: B023 -- called at once
        if status:
            sys.exit(f"with room for {number % (WIDTH + 2)} stacks: status {status}\n{said}")
    print(times)


if __name__ == "__main__":
    main(int(sys.argv[1]))

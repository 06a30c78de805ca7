"""What a pending delayed job costs: time to submit and to cancel, resident bytes; for both queue structures, against
an event loop's ``call_later``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import platform
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from threadsched import Scheduler

PAGE = 4096


def noop() -> None:
    """Do nothing."""


def resident() -> int:
    """Return the bytes of memory in use by this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def measure(name: str, jobs: int) -> dict[str, Any]:
    """Submit and cancel in this process; return microseconds and bytes for each job."""
    delays = [3600 + random.random() * 3600 for _ in range(jobs)]
    gc.collect()
    if name == "asyncio":
        loop = asyncio.new_event_loop()
        call_later = loop.call_later
        before, start = resident(), perf_counter()
        handles: list[Any] = [call_later(delay, noop) for delay in delays]
        submitted, after = perf_counter(), resident()
        for handle in handles:
            handle.cancel()
        cancelled = perf_counter()
        loop.close()
    else:
        queue, context = name.split()
        scheduler = Scheduler(1, queue=queue, history=0)  # type: ignore[arg-type]  # one of the two
        scheduler.submit(noop).result()
        options = scheduler.options
        before, start = resident(), perf_counter()
        handles = [options(delay=delay, context=context == "context").submit(noop) for delay in delays]
        submitted, after = perf_counter(), resident()
        for handle in handles:
            handle.cancel()
        cancelled = perf_counter()
        scheduler.shutdown(drain="none")
    return {
        "what": name,
        "jobs": jobs,
        "submit_us": (submitted - start) / jobs * 1e6,
        "cancel_us": (cancelled - submitted) / jobs * 1e6,
        "bytes": (after - before) / jobs,
    }


def child(send: Callable[[Any], None], name: str, jobs: int) -> None:
    """Measure in a process of its own, so that memory is its own."""
    send(measure(name, jobs))


def main() -> None:
    """Run alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    spawn = multiprocessing.get_context("spawn")
    for name in ("asyncio", "lazy context", "indexed context"):
        receiver, sender = spawn.Pipe(duplex=False)
        process = spawn.Process(target=child, args=(sender.send, name, given.jobs))
        process.start()
        rows.append(receiver.recv())
        process.join()
    if given.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1))
        return
    print(f"CPython {platform.python_version()}; {given.jobs:,} delayed jobs with random delays, an options() each")
    for row in rows:
        print(
            f"{row['what']:18} submit {row['submit_us']:5.2f} us  cancel {row['cancel_us']:5.2f} us"
            f"  {row['bytes']:4.0f} bytes"
        )


if __name__ == "__main__":
    main()

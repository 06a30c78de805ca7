"""Forks the process for real, between two steps of simulated threads, and examines the child.

Where fibers are greenlets, all of them live on one thread of the system, so a fork copies every one of them as it
stands. In the child those that did not call it are then forgotten, as the threads of a real process are, and what the
package makes of that is what it makes of any fork: its own handlers are called by the interpreter.
"""

import os
import traceback
import warnings
from typing import Any, NoReturn

from tests.explorer.kernel import Unwind
from tests.explorer.stage import SOONER, Stage
from threadsched import JobStatus, SchedulerClosedError, _inspect


def fork(stage: Stage) -> None:
    """Fork, and fail the schedule if the child finds anything amiss."""
    kernel = stage.kernel
    if kernel.unwinding:
        raise Unwind
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: of the explorer's, which rest
        child = os.fork()
    if not child:
        _be_child(stage, send)
    os.close(send)
    said = b""
    while piece := os.read(receive, 65536):
        said += piece
    os.close(receive)
    os.waitpid(child, 0)
    stage.forks += 1
    if kernel.unwinding:  # it was struck in the handlers, where the interpreter only reports it
        raise Unwind
    if said != b"fine":
        kernel.fail("fork", f"in the child: {said.decode() or 'it ended without a word'}")


def _be_child(stage: Stage, send: int) -> NoReturn:
    kernel = stage.kernel

    def tell(said: str) -> NoReturn:
        os.write(send, said.encode())
        os._exit(0)

    if kernel.unwinding:
        tell("fine")
    kernel.leave_to = lambda: tell(str(kernel.failure))
    try:
        kernel.fibers[:] = [kernel.current]
        kernel.quiet = True
        _examine(stage)
    except Unwind:
        tell(str(kernel.failure))
    except BaseException:
        tell(traceback.format_exc())
    tell("fine")


def _examine(stage: Stage) -> None:
    """The scheduler is empty, free and whole; unless it was closed it works; inherited jobs are over."""
    runtime, kernel = stage.runtime, stage.kernel
    here = kernel.current.name.startswith("threadsched")  # forked from inside a task, which goes on
    assert runtime.lock.free, "its lock is held"
    _inspect.check(runtime)
    now = _inspect.stats(runtime)
    assert not any((now.submitted, now.workers, now.idle, now.running, now.pending, now.done, now.cancelled)), now
    ended = (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)
    for track in stage.tracks:
        own = here and track.name == "forking"
        assert own or track.job.status in ended, f"{track.name} is {track.job.status.name}"
        if not own and track.job.status is JobStatus.CANCELLED:
            assert track.job.cancelled()
    if stage.scheduler is None:
        return
    ran: list[str] = []
    if runtime.core.closed:
        try:
            stage.scheduler.submit(ran.append, "refused")
        except SchedulerClosedError:
            pass
        else:
            raise AssertionError("it was closed and takes jobs")
    else:
        _use(stage, ran)
    stage.scheduler.shutdown()
    kernel.settle()
    assert kernel.fibers == [kernel.current], kernel.fibers
    _inspect.check(runtime)


def _use(stage: Stage, ran: list[str]) -> None:
    runtime, kernel = stage.runtime, stage.kernel
    runtime.resume()
    limited: Any = {"limits": "one"} if "limit" in stage.needs else {}
    later = stage.scheduler.options(delay=SOONER).submit(ran.append, "later")
    now = stage.scheduler.options(**limited).submit(ran.append, "now")
    now.result()
    assert ran == ["now"]
    kernel.wait_out()
    assert ran == ["now", "later"]
    assert later.done()
    assert _inspect.stats(runtime).done == 2, _inspect.stats(runtime)

"""Faults seeded into the real scheduler, one at a time: a function of the package with some of its text replaced."""

import __future__

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A fault, and the case that is to show it."""

    name: str
    function: str  # module:Class.function
    old: str
    new: str
    case: str  # see cases.Case.name
    also: tuple[str, str] = ("", "")  # another replacement in the same function


MUTANTS = (
    Mutant(
        "a submission wakes nobody",
        "_runtime:Runtime.submit",
        "self._wake_locked()",
        "pass",
        "submit+promote/1/fine",
    ),
    Mutant(
        "a submission that woke a worker ahead wakes nobody, though that has found nothing meanwhile",
        "_runtime:Runtime.submit",
        "ahead is not self.coming",
        "False",
        "submit+submit/2/fine",
    ),
    Mutant(
        "a new head of the delayed queue wakes nobody",
        "_runtime:Runtime.submit",
        "self._new_head_locked()",
        "pass",
        "submit_delayed+look/1/fine",
    ),
    Mutant(
        "a submission does not look whether the policy was swapped",
        "_runtime:Runtime.submit",
        "if core.door is ranking and self.manned:",
        "if core.door is not None and self.manned:",
        "policy+submit+submit/1/fine",
    ),
    Mutant(
        "a submission does not look whether the door has closed",
        "_runtime:Runtime.submit",
        "if core.door is ranking and self.manned:",
        "if core.door is ranking or core.closed:",
        "submit+close/1/fine",
    ),
    Mutant(
        "result() does not look after it has registered",
        "_waiting:Waiting.wait_for_end",
        "if job.done():\n                        return True\n                finally",
        "if False:\n                        return True\n                finally",
        "settle+result/1/fine",
    ),
    Mutant(
        "result() takes it for the end that somebody woke it",
        "_waiting:Waiting.wait_for_end",
        "if job.done():\n                return True\n",
        "if True:\n                return True\n",
        "settle+result/1/fine",
    ),
    Mutant(
        "result() looks, lets go of the lock, and registers",
        "_waiting:Waiting.wait_for_end",
        "with self.lock:",
        "with self.lock:\n                if job.done():\n                    return True\n            if True:",
        "settle+result/1/lines",
        ("if job.done():\n                        return True", "pass"),
    ),
    Mutant(
        "wait_idle() does not look after it has registered",
        "_waiting:Waiting.wait_idle",
        "if not self.core.pending and not self.core.running:",
        "if False:",
        "cancel_delayed+wait_idle/1/fine",
    ),
    Mutant(
        "wait_below() does not look before it sleeps",
        "_waiting:Waiting.wait_below",
        "if len(core.pending) < pending:",
        "if False:",
        "cancel_delayed+wait_below/1/fine",
    ),
    Mutant(
        "a leader whose time ran out as it was woken leaves the wake-up behind",
        "_waiting:Waiting.sleep_as_watch",
        "worker.token.acquire()",
        "pass",
        "promote+submit_delayed/1/fine",
    ),
    Mutant(
        "a deputy that wakes too late for the new head takes over",
        "_shared:Shared._deputy_takes_over_locked",
        "due is None or deputy.due > due",
        "due is None",
        "submit+submit_delayed+between/2/fine",
    ),
    Mutant(
        "nobody is handed the watch",
        "_shared:Shared._pass_on_locked",
        "if core.released or unwatched:",
        "if False:",
        "long+cancel/2/fine",
    ),
    Mutant(
        "the settling worker does not look whether wait() watches the job",
        "_runtime:Runtime.turn",
        "if late or attached.condition is not None:",
        "if late:",
        "settle+wait/1/fine",
    ),
    Mutant(
        "who settles a watched job does not look again whether it is watched",
        "_ending:Ending._settle",
        "if attached is not None and attached.condition is not None:",
        "if False:",
        "claim+wait/1/fine",
    ),
    Mutant(
        "the watchers of a cancelled job are not told",
        "_ending:Ending._ended_locked",
        "self.core.outbox.append(job)",
        "pass",
        "cancel+as_completed/1/fine",
    ),
    Mutant(
        "who waits in result() is not told of a cancel",
        "_ending:Ending._ended_locked",
        "_locks.release_all(attached.tokens)",
        "pass",
        "cancel+result/1/fine",
    ),
    Mutant(
        "a cancel looks, lets go of the lock, and takes",
        "_ending:Ending.cancel",
        "with self.lock:",
        "with self.lock:\n                seen = job._seq in self.core.pending\n"
        "            if seen:\n                with self.lock:\n                    self.core.cancel(job, name, now)\n"
        "                return True\n            with self.lock:",
        "submit+cancel/1/fine",
    ),
    Mutant(
        "a cancel of a running job forbids no retry",
        "_ending:Ending.cancel",
        "job._attach().no_retry = True",
        "pass",
        "retry+cancel/1/fine",
    ),
    Mutant(
        "a done-callback is looked at, called, and taken off then",
        "_ending:Ending.run_callbacks",
        "call_hook(what, callback, job)",
        "attached.callbacks.insert(0, callback)\n"
        '            call_hook("a done-callback", callback, job)\n            attached.callbacks.pop(0)',
        "callback+callback/1/fine",
    ),
    Mutant(
        "add_done_callback() does not look whether the job has ended",
        "_ending:Ending.add_callback",
        "ended = job.done()",
        "ended = False",
        "settle+callback/1/fine",
    ),
    Mutant(
        "a callback is called under the lock",
        "_ending:Ending.add_callback",
        "ended = job.done()",
        "ended = job.done()\n            if ended:\n                self.run_callbacks(job)",
        "settle+callback/1/fine",
    ),
    Mutant(
        "closing the door wakes nobody",
        "_runtime:Runtime.close",
        "self._wake_all_locked()",
        "pass",
        "shutdown+cancel_delayed/1/fine",
    ),
    Mutant(
        "dead entries of the delayed queue count as work that is left",
        "_shared:Shared._unclear_locked",
        "len(core.delayed) > core.dead_delayed",
        "bool(len(core.delayed))",
        "settle+limited+shutdown_due/2/coarse",
    ),
    Mutant(
        "a worker that waits inside a task gives up the rest whenever it looks",
        "_helping:Helping._next_for",
        "self._unclear_locked()",
        'core.closed and core.drain != "all" and not self.clearing',
        "settle+nested+shutdown_due/2/coarse",
    ),
    Mutant(
        "a worker that waits inside a task leaves schedules where they are",
        "_helping:Helping._next_for",
        "if self._fell_due_locked(now):",
        "if False:",
        "result_timeout+nested+every/2/coarse",
    ),
    Mutant(
        "a worker that leaves wakes nobody",
        "_runtime:Runtime._rest_locked",
        "self._wake_all_locked()",
        "pass",
        "close+submit/2/fine",
    ),
    Mutant(
        "the last worker to leave tells nobody",
        "_pool:Pool.leave",
        "self._tell_left_locked()",
        "pass",
        "shutdown+submit/1/fine",
    ),
    Mutant(
        "resume() wakes nobody",
        "_runtime:Runtime.resume",
        "self._wake_locked()",
        "pass",
        "resume+submit/1/fine",
    ),
    Mutant(
        "a place that becomes free is granted, and its producer not woken",
        "_gate:Gate.freed",
        "_wake(token)",
        "pass",
        "block+cancel/1/fine",
    ),
    Mutant(
        "a cancel frees no place",
        "_core:Core.cancel",
        "self.gate.freed(pending)",
        "pass",
        "pause+block+cancel_delayed/1/fine",
    ),
    Mutant(
        "a limit that has room wakes nobody",
        "_shared:Shared._mind_keepers_locked",
        "self._wake_locked()",
        "pass",
        "claim+limited/1/fine",
    ),
    Mutant(
        "a parent's end lets go, and wakes nobody",
        "_shared:Shared._tell_idle_locked",
        "self._new_head_locked()",
        "pass",
        "claim+after/2/fine",
    ),
    Mutant(
        "what is due at this very instant is not promoted",
        "_core:Core._promote",
        "first[0] <= now",
        "first[0] < now",
        "submit+look/1/fine",
    ),
    Mutant(
        "two conditions are made for one job",
        "_ending:Ending.condition_of",
        "with self.lock:",
        "if True:",
        "wait+as_completed/1/lines",
    ),
    Mutant(
        "a job is called finished before it has its result",
        "_job:Job._finish",
        "self._result = result\n",
        "self._state = _FINISHED\n        self._result = result\n",
        "settle+result/1/lines",
    ),
    Mutant(
        "a cancelled job is put into the map of the pending",
        "_core:Core.cancel",
        "self._left_queue(job)",
        "self._left_queue(job)\n            pending[job._seq] = job",
        "cancel+submit/1/fine",
    ),
    Mutant(
        "a claim does not take the job out of the map",
        "_core:Core.claim",
        "if pending.pop(seq, None) is not None:",
        "if pending.get(seq) is not None:",
        "submit+cancel/1/fine",
    ),
    Mutant(
        "shutdown does not wait for the threads that have left already",
        "_exit:join",
        "for thread in gone:",
        "for thread in ():",
        "shutdown_due+shutdown_due/1/fine",
    ),
    Mutant(
        "the child of a fork counts the workers that stayed with the parent",
        "_pool:Pool.start_afresh",
        "self.launched.clear()",
        "pass",
        "fork+submit/1/coarse",
    ),
    Mutant(
        "the child of a fork wakes sleepers that are not there",
        "_pool:Pool.start_afresh",
        "self.idle,\n",
        "[],\n",
        "fork+cancel_delayed/1/coarse",
    ),
    Mutant(
        "a thread that could not be started counts as started",
        "_pool:Pool.man",
        "self.launched.discard(number)",
        "pass",
        "start_refused_1+submit/1/coarse",
    ),
    Mutant(
        "a worker that died had been woken for a job, and nobody else is",
        "_outcome:worker_died",
        "runtime.replace(f",
        "str(f",
        "die+submit/1/coarse",
    ),
    Mutant(
        "who awaits a job on a loop is not told of its end",
        "_awaiting:LoopWait.release",
        "self.worker.loop.call_soon_threadsafe(self._rung)",
        "pass",
        "await_first+settle/2/coarse",
    ),
)


@contextlib.contextmanager
def seeded(mutant: Mutant) -> Iterator[None]:
    """Put a fault into the package for the time of a ``with`` block."""
    name, _, path = mutant.function.partition(":")
    module: Any = importlib.import_module(f"threadsched.{name}")
    owner: Any = module
    *classes, last = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = vars(owner)[last]
    lines, first = inspect.getsourcelines(original)
    source = "".join(lines)
    for old, new in (mutant.also, (mutant.old, mutant.new)):
        if old not in source:
            raise LookupError(f"{mutant.function} has no {old!r} any more: seed {mutant.name!r} in another way")
        source = source.replace(old, new) if old else source
    # A method keeps its indentation, and every line its number.
    text = "\n" * (first - 2) + ("if True:\n" if source[0] == " " else "\n") + source
    made: dict[str, Any] = {}
    # Under the module's own file name: what is traced by line there is traced here.
    code = compile(text, module.__file__, "exec", flags=__future__.annotations.compiler_flag)
    exec(code, vars(module), made)
    setattr(owner, last, made[last])
    try:
        yield
    finally:
        setattr(owner, last, original)

"""The figures of docs/reliability.md: how often and on how many cases a promise is tried, said by the tests themselves.

They are those of `make proof`, also in a session that samples.
"""

import importlib
import math
from collections.abc import Callable
from types import ModuleType

from tests.faults.table import TIMES


def _of(name: str) -> ModuleType:
    """Return a module of tests; many are not needed for one figure."""
    return importlib.import_module(f"tests.{name}")


def _cases(module: str, test: str) -> int:
    """Return how many cases the marks of a test make, where no mark samples."""
    marks = getattr(_of(module), test).pytestmark
    return math.prod(len(mark.args[1]) for mark in marks if mark.name == "parametrize")


def _storms() -> str:
    stress = _of("test_stress")
    jobs = stress.SUBMITTERS * stress.JOBS.whole
    return f"{_cases('test_stress', 'test_a_mixed_storm')} storms of {stress.SUBMITTERS} threads with {jobs:,} jobs"


def _core_strikes() -> str:
    strikes = _of("test_core_strikes")
    return f"each point of {len(strikes.OPERATIONS)} operations on 2 queues, {len(strikes.STRIKES)} strikes at each"


def _sweeps() -> str:
    reentrancy = _of("test_reentrancy")
    return (
        f"{len(reentrancy.NESTED)} sweeps: {len(reentrancy.OPERATIONS)} operations, {len(reentrancy.STRIKES)} strikes, "
        f"{len(reentrancy.VARIANTS)} kinds of order"
    )


def _memory() -> str:
    widths = ", ".join(map(str, _of("faults.test_memory_exhausted").ALL_WIDTHS))
    calls = len(_of("faults.memory_sweep").CALLS)
    return f"each allocation of {calls} calls, {widths} of them in a row"


def _exits() -> str:
    return f"{len(_of('test_exit').COMBINATIONS)} mixtures of jobs, 3 ends of the program"


# By test; what is said of it stands on the page, word for word.
FIGURES: dict[str, Callable[[], str]] = {
    "test_a_mixed_storm": _storms,
    "test_cancel_against_claim": lambda: f"{_of('test_races').ROUNDS.whole:,} meetings on each queue",
    "test_f20_cancel_against_start_has_one_winner": lambda: f"{_of('test_field_reports').CANCELS:,} cancels",
    "test_core_survives_a_strike": _core_strikes,
    "test_call_without_memory": _memory,
    "test_a_key_that_cannot_be": lambda: f"{_cases('test_bad_code', 'test_a_key_that_cannot_be')} bad keys",
    "test_a_handler_at_every_line": _sweeps,
    "test_code_that_calls_back_at_any_line_of_a_worker": lambda: (
        f"{len(_of('faults.test_struck_workers').CALLED_BACK)} sweeps of a worker's way"
    ),
    "test_an_idle_pool_is_never_scheduled": lambda: "8 workers, 0 context switches in a second",
    "test_f40_equal_priorities_run_in_submission_order": lambda: "1,000 jobs on each queue, 3 swaps of the policy",
    "test_random_changes_keep_the_order": lambda: (
        f"300 changes, {_cases('test_order', 'test_random_changes_keep_the_order')} times"
    ),
    "test_a_clock_that_goes_back_starts_nothing_early": lambda: "4 steps back",
    "test_an_exception_thrown_into_a_worker_at_every_point": lambda: (
        f"each point of {len(_of('faults.test_struck_workers').SCENES)} scenes on 2 queues"
    ),
    "test_f34_nothing_a_task_raises_shrinks_the_pool": lambda: "10 exceptions of 5 kinds",
    "test_exceptions_at_random_moments": lambda: f"{_of('test_threads').RAIN.whole:,} exceptions under load",
    "test_whoever_waits_is_told_though_the_teller_was_struck": lambda: "each point of 2 endings",
    "test_each_way_in_at_every_line": lambda: (
        f"{len(_of('faults.test_struck_calls').CASES)} sweeps, {len(_of('faults.test_struck_calls').WAYS)} ways in"
    ),
    "test_a_storm_of_signals": lambda: (
        f"{len(_of('test_reentrancy').SIGNALLED)} storms of {_of('test_reentrancy').STORM.whole / 1000:g} s at 1 kHz"
    ),
    "test_a_storm_of_finalizers": lambda: (
        f"{len(_of('test_reentrancy').FINALIZED)} storms of {_of('test_reentrancy').ROUNDS.whole:,} finalizers"
    ),
    "test_ctrl_c_at_every_point": lambda: f"{len(_of('test_reentrancy').INTERRUPTED)} sweeps",
    "test_a_last_reference_that_calls_back": lambda: (
        f"{_cases('test_reentrancy', 'test_a_last_reference_that_calls_back')} kinds of last reference"
    ),
    "test_f08_nested_trees": lambda: (
        f"5 trees of 40 jobs on each of {_cases('test_nested_waits', 'test_f08_nested_trees')} pools"
    ),
    "test_f08_a_ring_is_named_within_a_second": lambda: (
        f"rings of up to {_cases('test_nested_waits', 'test_f08_a_ring_is_named_within_a_second')}, in a second"
    ),
    "test_f28_each_way_to_stop_has_its_exact_outcome": lambda: f"{len(_of('test_field_reports_more').MODES)} modes",
    "test_signals_during_shutdown": lambda: (
        f"{_cases('faults.test_endings', 'test_signals_during_shutdown')} pairs of signals, {TIMES} times each"
    ),
    "test_exit_with_every_kind_of_job": lambda: f"2 ways out, {TIMES} times each",
    "test_exit_beside_a_stuck_job": lambda: f"{TIMES} times",
    "test_exit_with_jobs": _exits,
    "test_fork_at_any_moment_under_load": lambda: f"{TIMES} times 4 forks",
    "test_many_forks_under_load": lambda: f"{_of('test_fork').FORKS.whole} forks",
    "test_resident_bytes_of_a_pending_job": lambda: (
        f"{_of('test_memory').PENDING:,} jobs, at most {_of('test_memory').LIMIT} bytes each, "
        f"{_of('test_memory').LIMIT_WITHOUT_CONTEXT} without a context"
    ),
    "test_settled_job_that_nobody_holds_is_gone": lambda: "4 ends",
    "test_f04_a_failure_nobody_consumes_is_told_once": lambda: "1 line for 1 failure, 0 for 3 others",
    "test_a_thread_that_returns_while_its_stack_is_read": lambda: (
        f"collections at {_of('test_stacks').MOMENTS.whole} moments, "
        f"{_cases('test_stacks', 'test_a_thread_that_returns_while_its_stack_is_read')} kinds of finalizer and stack"
    ),
}

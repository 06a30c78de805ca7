"""The table: each fault, what must come of it, and the tests that show it. `test_table.py` holds it complete.

A test is named as FILE::NAME below tests/. In the long run (`make proof`) the outcome is shown 200 times wherever
chance has a part in it: by the programs of this package, which try many times in one process or in forked children,
and for the tests in `REPEATED` by running each 200 times.
"""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest

from tests.support import ROOT, exhaustive, run_script

TIMES = 200


class Row(NamedTuple):
    """One fault."""

    fault: str
    outcome: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "a task raises any BaseException",
        "the job is FAILED with that very error and its traceback, in no reference cycle; the worker lives",
        (
            "test_bad_code.py::test_a_task_that_raises",
            "test_bad_code.py::test_a_task_that_raises_and_nobody_looks",
            "test_reentrancy.py::test_foreign_code_that_raises_anything",
            "test_field_reports.py::test_f14_a_failure_makes_no_cycle",
            "test_memory.py::test_job_whose_error_was_raised_to_the_caller_makes_no_cycle",
        ),
    ),
    Row(
        "a done-callback or a hook raises, SystemExit and KeyboardInterrupt too",
        "logged once; the other callbacks run; the worker lives",
        (
            "test_bad_code.py::test_a_callback_that_raises",
            "test_bad_code.py::test_an_error_hook_that_raises",
            "test_reentrancy.py::test_foreign_code_that_raises_anything",
        ),
    ),
    Row(
        "__repr__ or __str__ of a task, an argument or an error raises while we log",
        "the log line does without it",
        (
            "test_reentrancy.py::test_hostile_tasks_and_arguments",
            "test_reentrancy.py::test_hostile_exceptions",
            "test_reentrancy.py::test_a_log_handler_that_raises",
        ),
    ),
    Row(
        "a policy's key raises, is NaN, or cannot be compared; its before raises or contradicts itself",
        "that submission raises, or the order falls back to submission order; nothing is queued; the heap is whole",
        (
            "test_bad_code.py::test_a_key_that_cannot_be",
            "test_bad_code.py::test_a_key_that_fails_before_a_retry",
            "test_bad_code.py::test_before_that_raises",
            "test_bad_code.py::test_before_that_answers_neither",
        ),
    ),
    Row(
        "a delay, timeout or backoff is NaN, infinite or negative; or huge",
        "ValueError; huge but finite is accepted and the sleeps are capped",
        (
            "test_field_reports_more.py::test_f26_back_off_saturates_and_far_waits_are_clamped",
            "test_field_reports_more.py::test_f73_human_errors_are_refused",
            "test_shutdown.py::test_a_timeout_may_be_as_long_as_one_likes",
        ),
    ),
    Row(
        "the wall clock is set",
        "delays, backoff and intervals do not notice; what follows the wall clock is re-timed",
        ("test_field_reports.py::test_f09_wall_clock_steps_do_not_move_delays",),
    ),
    Row(
        "an injected clock goes back, leaps, or stands still",
        "nothing starts early, all that is due starts, nobody spins",
        (
            "faults/test_clocks.py::test_a_clock_that_goes_back_starts_nothing_early",
            "faults/test_clocks.py::test_a_clock_that_leaps_starts_all_that_is_due",
            "faults/test_clocks.py::test_a_clock_that_stands_still_keeps_nobody_busy",
        ),
    ),
    Row(
        "an injected clock raises",
        "a submission raises, a worker goes by the last reading and logs it; the pool lives",
        (
            "test_bad_input.py::test_a_clock_that_raises",
            "test_field_reports.py::test_f19_a_faulty_key_or_hook_stops_nothing",
            "faults/test_clocks.py::test_a_clock_that_raises_now_and_then",
        ),
    ),
    Row(
        "the first worker cannot start",
        "submit raises and nothing is queued; the next submission tries again",
        (
            "test_threads.py::test_no_thread_can_start",
            "test_threads.py::test_no_thread_can_start_then_shutdown",
            "test_threads.py::test_a_failing_start_beside_another",
            "faults/test_starts.py::test_address_space_for_a_few_threads_only",
        ),
    ),
    Row(
        "a later worker cannot start",
        "fewer workers, told by the log and stats(); tried again at the next submission",
        (
            "test_threads.py::test_a_later_thread_cannot_start",
            "test_threads.py::test_a_dead_worker_without_successor",
            "faults/test_starts.py::test_address_space_for_a_few_threads_only",
        ),
    ),
    Row(
        "memory runs out at the k-th allocation of an operation",
        "raised means not queued; the lock is free, the pool lives, no Future stays open",
        (
            "faults/test_memory_exhausted.py::test_core_without_memory",
            "faults/test_memory_exhausted.py::test_swap_of_the_policy_needs_no_memory_once_it_has_begun",
            "faults/test_memory_exhausted.py::test_call_without_memory",
            "faults/test_memory_exhausted.py::test_worker_without_memory",
        ),
    ),
    Row(
        "an asynchronous exception strikes a worker that sleeps",
        "it is replaced; the job that it was woken for runs",
        (
            "test_threads.py::test_an_exception_into_a_sleeping_worker",
            "test_threads.py::test_the_successor_takes_the_name_of_the_dead",
        ),
    ),
    Row(
        "an asynchronous exception strikes inside a task",
        "that job is FAILED with it; the worker stays",
        ("test_threads.py::test_an_exception_inside_a_task_fails_that_job_alone",),
    ),
    Row(
        "an asynchronous exception strikes in a worker's own loop",
        "the job in hand is FAILED with WorkerDiedError or retried; whoever waits is told; the worker is replaced",
        (
            "test_threads.py::test_exceptions_at_random_moments",
            "faults/test_struck_workers.py::test_an_exception_thrown_into_a_worker_at_every_point",
            "faults/test_struck_calls.py::test_whoever_waits_is_told_though_the_teller_was_struck",
            "faults/test_struck_calls.py::test_a_failure_told_to_a_callback_is_not_unseen_though_the_call_was_struck",
            "faults/test_struck_calls.py::test_job_claimed_by_a_struck_helper_ends",
        ),
    ),
    Row(
        "a job waits for a job of its own full pool",
        "that one is run right there, or the wait gets DeadlockError",
        (
            "test_nested_waits.py::test_f08_nested_trees",
            "test_nested_waits.py::test_f08_a_ring_is_named_within_a_second",
        ),
    ),
    Row(
        "a job calls shutdown(wait=True) or leaves the scheduler's with",
        "the door is closed, nobody joins himself, the report names what still runs",
        (
            "test_shutdown.py::test_from_inside_a_job_it_does_not_join_itself",
            "test_shutdown.py::test_two_jobs_shut_down_at_once",
            "test_shutdown.py::test_leaving_with_inside_a_job",
        ),
    ),
    Row(
        "fork with a live scheduler, from a task too, under load, at any moment",
        "the parent goes on untouched; the child's scheduler is empty and usable, its locks are free",
        (
            "test_fork.py::test_the_child_starts_empty_and_the_parent_goes_on",
            "test_fork.py::test_fork_from_inside_a_task",
            "test_fork.py::test_many_forks_under_load",
            "test_fork.py::test_fork_while_another_thread_holds_the_lock",
            "faults/test_endings.py::test_fork_at_any_moment_under_load",
        ),
    ),
    Row(
        "Ctrl-C in result, wait_idle or shutdown, and a second one",
        "KeyboardInterrupt at once, and the state is consistent: one can wait again",
        (
            "test_exit.py::test_ctrl_c_while_waiting",
            "test_exit.py::test_a_second_ctrl_c",
            "test_reentrancy.py::test_ctrl_c_at_every_point",
            "faults/test_endings.py::test_signals_during_shutdown",
            "faults/test_struck_calls.py::test_ctrl_c_at_every_point_of_a_waiting_shutdown",
        ),
    ),
    Row(
        "a SIGTERM handler calls shutdown(wait=False) at any instruction",
        "it works",
        (
            "test_reentrancy.py::test_a_handler_at_every_line",
            "test_reentrancy.py::test_a_storm_of_signals",
            "test_exit.py::test_sigterm_that_exits",
            "faults/test_endings.py::test_sigterm_handler_that_shuts_down",
            "faults/test_endings.py::test_signals_during_shutdown",
        ),
    ),
    Row(
        "a finalizer or a weakref's callback calls the scheduler at any instruction, on a worker too",
        "it works",
        (
            "test_reentrancy.py::test_a_storm_of_finalizers",
            "faults/test_struck_workers.py::test_code_that_calls_back_at_any_line_of_a_worker",
            "faults/test_struck_calls.py::test_each_way_in_at_every_line",
            "faults/test_struck_calls.py::test_cancel_that_breaks_in_while_a_rule_lets_a_job_go",
        ),
    ),
    Row(
        "the interpreter exits with jobs of every kind",
        "what is due runs, the rest is given up, the stuck ones are named; bounded time, no other word",
        (
            "test_exit.py::test_exit_with_jobs",
            "test_exit.py::test_exit_with_more_ready_jobs_than_time",
            "test_exit.py::test_several_schedulers_share_one_deadline",
            "faults/test_endings.py::test_exit_with_every_kind_of_job",
            "faults/test_endings.py::test_exit_beside_a_stuck_job",
        ),
    ),
    Row(
        "os._exit",
        "the process ends there, with its status, without a word",
        ("faults/test_endings.py::test_os_exit_at_any_moment",),
    ),
    Row(
        "submit from an atexit hook, and from a finalizer at exit",
        "served or refused by RuntimeError; no noise",
        (
            "test_exit.py::test_submit_from_an_atexit_hook",
            "test_exit.py::test_submit_from_del_at_exit",
            "faults/test_endings.py::test_submissions_at_the_very_end",
        ),
    ),
    Row(
        "the scheduler is dropped",
        "its jobs finish, then its threads end",
        (
            "test_drop.py::test_jobs_finish_and_threads_end",
            "test_drop.py::test_dropped_in_a_cycle_by_the_collector",
            "test_drop.py::test_dropped_while_a_real_delay_is_pending",
            "faults/test_endings.py::test_exit_with_every_kind_of_job",
        ),
    ),
    Row(
        "64 threads submit against shutdown",
        "each raises, or its job ends",
        ("test_shutdown.py::test_64_threads_submit_against_shutdown",),
    ),
    Row(
        "a great many cancels, and pending jobs",
        "O(1) amortised and the memory comes back; at most 500 bytes each",
        (
            "test_field_reports_more.py::test_f23_cancelled_timers_leave_the_heap",
            "test_memory.py::test_resident_bytes_of_a_pending_job",
            "test_memory.py::test_cancelled_job_that_nobody_holds_is_gone",
        ),
    ),
    Row(
        "results, arguments and tracebacks are big",
        "dropped before a worker sleeps",
        (
            "test_memory.py::test_idle_worker_holds_nothing",
            "test_memory.py::test_arguments_are_dropped_when_the_job_settles",
            "test_field_reports.py::test_f14_an_idle_worker_keeps_nothing",
        ),
    ),
)

# Tests of the table in which threads meet by chance, and that are not repeated by a program of their own.
REPEATED = {
    "test_threads.py::test_a_failing_start_beside_another",
    "test_threads.py::test_an_exception_inside_a_task_fails_that_job_alone",
    "test_threads.py::test_an_exception_into_a_sleeping_worker",
    "test_threads.py::test_a_dead_worker_without_successor",
    "test_bad_input.py::test_a_clock_that_raises",
    "test_shutdown.py::test_from_inside_a_job_it_does_not_join_itself",
    "test_shutdown.py::test_two_jobs_shut_down_at_once",
    "test_shutdown.py::test_leaving_with_inside_a_job",
    "test_shutdown.py::test_64_threads_submit_against_shutdown",
    "test_drop.py::test_jobs_finish_and_threads_end",
    "test_memory.py::test_idle_worker_holds_nothing",
}


def times(sample: int) -> int:
    """Return how often a fault with chance in it is tried: 200 times, or `sample` in an ordinary session."""
    return TIMES if exhaustive() else sample


def repeat(metafunc: pytest.Metafunc) -> None:
    """Run a test of the table 200 times in the long run; called for every test that is collected."""
    path = metafunc.definition.path.relative_to(ROOT / "tests").as_posix()
    if exhaustive() and f"{path}::{metafunc.function.__name__}" in REPEATED:
        metafunc.fixturenames.append("trial")
        metafunc.parametrize("trial", [pytest.param(n, marks=pytest.mark.proof) for n in range(TIMES)], indirect=True)


RUNNER = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def program(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this package in a child interpreter; it must end with 0."""
    return run_script(RUNNER, args=[str(ROOT), module, *args], timeout=580 if exhaustive() else 28)

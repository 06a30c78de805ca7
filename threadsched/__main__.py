"""The command line: `python -m threadsched demo`, `python -m threadsched stress`.

In here: the arguments and the exit status. What a command does is in a module of its own, imported when it
is asked for.
"""

import argparse
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from threadsched._stress_plan import Settings

# Threads. Beyond this a demonstration on one machine shows the machine, not the scheduler.
_MAX_WORKERS = 256

_POLICIES = ("priority", "fifo", "oldest-due", "deadline", "aging")


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage text, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _workers(text: str) -> int:
    """Return a number of workers."""
    number = _whole(text)
    if not 1 <= number <= _MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_MAX_WORKERS}, not {text!r}")
    return number


def _whole(text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _positive(text: str) -> int:
    """Return a number of things, at least one."""
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text!r}")
    return number


def _real(text: str) -> float:
    """Return a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return number


def _share(text: str) -> float:
    """Return a share of a whole."""
    number = _real(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {text!r}")
    return number


def _seconds(text: str) -> float:
    """Return a duration above 0."""
    number = _real(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, not {text!r}")
    return number


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="python -m threadsched", description="A job scheduler for threads, shown at work and put to the test."
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="fetch the standard library from a local server through the scheduler",
        description="Fetch the interpreter's own sources from a local, moody HTTP server through the"
        " scheduler, check everything that can be checked, and compare with a ThreadPoolExecutor. Offline;"
        " about ten seconds. The exit status is 0 if every check is ok, 1 if one is not.",
    )
    demo.add_argument("--workers", type=_workers, default=8, metavar="N", help="worker threads (default: 8)")
    demo.add_argument(
        "--seed", type=_whole, default=1, metavar="N", help="chooses which requests are refused (default: 1)"
    )
    demo.add_argument("--json", action="store_true", help="print JSON alone to standard output")
    demo.add_argument("--files", type=_whole, default=None, help=argparse.SUPPRESS)
    _add_stress(commands)
    return parser


def _add_stress(commands: "argparse._SubParsersAction[_Parser]") -> None:
    """Add the command `stress`."""
    stress = commands.add_parser(
        "stress",
        help="put the scheduler under load on this machine and account for each job",
        description="Submit, delay, cancel, fail, retry and time out jobs from many threads at once, and check each of"
        " them: that it ended once, as it must, in order and not before its time. Submission ends with the last job or"
        " the last second, whichever comes first. The exit status is 0 if every promise was kept, 1 at the first that"
        " was broken, with what repeats the run.",
    )

    def add(name: str, kind: Callable[[str], object], default: object, metavar: str, text: str) -> None:
        told = (
            "" if default is None else f" (default: {default:,})" if type(default) is int else f" (default: {default})"
        )
        stress.add_argument(name, type=kind, default=default, metavar=metavar, help=text + told)

    add("--submitters", _workers, 32, "N", "threads that submit")
    add("--workers", _workers, 8, "N", "worker threads")
    add("--jobs", _positive, None, "N", "submit so many jobs at most (default: 1,000,000; with --soak any number)")
    add("--seconds", _seconds, None, "S", "submit for so long at most (default: 60; with --soak 600)")
    add("--cancel", _share, 0.2, "SHARE", "share of the jobs that are cancelled by their submitter")
    add("--fail", _share, 0.1, "SHARE", "share that fails")
    add("--retry", _share, 0.05, "SHARE", "share that fails and is tried again")
    add("--timeout", _share, 0.01, "SHARE", "share that has a time limit; every other one runs into it")
    add("--delay", _share, 0.1, "SHARE", "share of all of these that is delayed")
    stress.add_argument(
        "--policy", choices=_POLICIES, default="priority", help="what orders the jobs (default: priority)"
    )
    stress.add_argument("--queue", choices=("lazy", "indexed"), default="lazy", help="queue structure (default: lazy)")
    add("--switch-interval", _seconds, None, "S", "let Python switch threads so often (default: as it is)")
    add("--seed", _whole, None, "N", "decides which jobs there are (default: another one each time)")
    add("--round", _positive, None, "N", "jobs that are in memory at a time (default: 20,000; with --soak 2,000)")
    add("--patience", _seconds, 30.0, "S", "how long nothing may move before that counts as a hang")
    stress.add_argument("--soak", action="store_true", help="fail, too, if the memory does not stay flat")


def _stress_settings(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> "Settings":
    """Return the settings of a stress run; shares that exceed the whole are a usage error."""
    from threadsched._stress_plan import Settings

    given = {name: value for name, value in vars(chosen).items() if name != "command" and value is not None}
    if chosen.soak:
        given = {"jobs": None, "seconds": 600.0, "round": 2_000, **given}
    settings = Settings(**{"seed": random.SystemRandom().randrange(2**32), **given})
    total = sum(settings.shares.values())
    if total > 1 + 1e-9:
        parser.error(f"--cancel, --fail, --retry and --timeout are shares of all jobs, and together {total:g}, above 1")
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        arguments: Those after the program's name; None takes them from the command line.
    """
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        if chosen.command == "stress":
            settings = _stress_settings(parser, chosen)

            from threadsched import _stress

            return _stress.run_stress(settings)

        from threadsched import _demo

        return _demo.run_demo(workers=chosen.workers, seed=chosen.seed, json_only=chosen.json, limit=chosen.files)
    except KeyboardInterrupt:
        print(f"{parser.prog} {chosen.command}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # A reader that has gone wants no message. What is left in the buffer of standard output would fail
        # once more when Python flushes it at exit, so it goes nowhere.
        if not isinstance(error, BrokenPipeError):
            print(f"{parser.prog} {chosen.command}: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())

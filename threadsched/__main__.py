"""The command line: `python -m threadsched demo`.

In here: the arguments and the exit status. What a command does is in a module of its own, imported when it
is asked for.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

# Threads. Beyond this a demonstration on one machine shows the machine, not the scheduler.
_MAX_WORKERS = 256


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


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(prog="python -m threadsched", description="A job scheduler for threads, shown at work.")
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
    return parser


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

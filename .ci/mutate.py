"""Drop each statement of a module in turn and say which drops no test notices: what mutmut does not try.

    python .ci/mutate.py threadsched/_core.py tests/test_core.py tests/test_core_rules.py

Works on a copy in a temporary directory. pytest is imported once and forked for each mutant, so it needs os.fork and
the `dev` requirements. A mutant counts as killed when a test fails, hangs for 20 seconds or the module cannot be
imported. The exit status is the number of survivors, at most 99. See "Mutants of the core" in docs/design.md.
"""

import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 120.0  # seconds for one mutant


def droppable(tree: ast.Module) -> list[ast.stmt]:
    """The statements inside functions that do something and can be left out."""
    found: list[ast.stmt] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in ast.walk(function):
                docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)) and not docstring:
                    found.append(statement)
    return sorted(set(found), key=lambda statement: statement.lineno)


def without(source: str, statement: ast.stmt) -> str:
    """The source with `pass` in the place of a statement; the other lines keep their numbers."""
    lines = source.splitlines(keepends=True)
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    lines[first] = lines[first][: statement.col_offset] + "pass\n"
    for number in range(first + 1, last + 1):
        lines[number] = "\n"
    return "".join(lines)


def survives(place: Path, tests: list[str]) -> bool:
    """Whether the tests pass on the copy in `place`, in a process of their own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            os.chdir(place)
            sys.path.insert(0, str(place))
            sys.dont_write_bytecode = True
            status = int(pytest.main(["-x", "-q", "--timeout=20", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(status)
    deadline = time.monotonic() + LIMIT
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.02)


def main(module: str, tests: list[str]) -> int:
    source = (ROOT / module).read_text(encoding="utf-8")
    statements = droppable(ast.parse(source))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="threadsched-mutants-") as directory:
        place = Path(directory)
        for name in ("threadsched", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        if not survives(place, tests):
            print("the tests fail on the unchanged module", file=sys.stderr)
            return 99
        for statement in statements:
            (place / module).write_text(without(source, statement), encoding="utf-8")
            if survives(place, tests):
                survivors += 1
                print(f"{module}:{statement.lineno}: {ast.unparse(statement)}", flush=True)
    print(f"{len(statements)} statements dropped, {survivors} not noticed")
    return min(survivors, 99)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))

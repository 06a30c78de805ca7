"""Find the Python interpreters on this machine that threadsched should be tested with.

    python .ci/pythons.py others         for each supported version but the running one, an interpreter
    python .ci/pythons.py conformance    a CPython 3.13 that has `test.test_concurrent_futures`, or nothing

Only paths go to standard output; what was not found is said on standard error.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

OLDEST = (3, 11)
NEWEST = (3, 14)  # newer ones are used where they are found, but not reported as missing

PROBE = """
import json, platform, sys, sysconfig
import ensurepip, venv
print(json.dumps({
    "path": sys.executable,
    "release": sys.version_info[:3],
    "implementation": platform.python_implementation(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""

# The submodule is imported because some distributions ship an empty or partial `test` package.
HAS_TESTS = "import test.support, test.test_concurrent_futures.test_thread_pool"


@dataclass(frozen=True)
class Interpreter:
    path: str
    release: tuple[int, ...]
    implementation: str
    free_threaded: bool

    @property
    def version(self) -> str:
        """What it counts as for the suite: one interpreter is enough for each."""
        return f"{self.release[0]}.{self.release[1]}" + ("t" if self.free_threaded else "")


def run(path: str, code: str) -> str | None:
    """The output of `code` under the interpreter at `path`, or None if it fails."""
    try:
        done = subprocess.run([path, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def probe(path: str) -> Interpreter | None:
    """What is at `path`, or None if it is no interpreter that can make a virtual environment."""
    output = run(path, PROBE)
    if output is None:
        return None
    found = json.loads(output)
    return Interpreter(found["path"], tuple(found["release"]), found["implementation"], found["free_threaded"])


def pyenv_paths() -> list[str] | None:
    """The interpreters that pyenv has, or None where there is no pyenv."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return None
    done = subprocess.run([pyenv, "root"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    return glob.glob(os.path.join(glob.escape(done.stdout.strip()), "versions", "3.*", "bin", "python"))


def on_path() -> list[str]:
    """The interpreters on PATH that carry their version in their name."""
    names = [f"python3.{minor}{flag}" for minor in range(OLDEST[1], NEWEST[1] + 3) for flag in ("", "t")]
    return [path for name in names if (path := shutil.which(name))]


def supported(paths: list[str]) -> list[Interpreter]:
    """The CPythons among `paths` that are new enough, each once, the newest release first."""
    found = {probe(path) for path in paths}
    return sorted(
        (one for one in found if one and one.implementation == "CPython" and one.release >= OLDEST),
        key=lambda one: (one.release, one.path),
        reverse=True,
    )


def others() -> int:
    from_pyenv = pyenv_paths()
    running = probe(sys.executable)
    assert running is not None
    seen = {running.version}
    chosen = []
    for one in supported(on_path() if from_pyenv is None else from_pyenv):
        if one.version not in seen:
            seen.add(one.version)
            chosen.append(one)
    for one in sorted(chosen, key=lambda one: one.release):
        print(one.path)
    wanted = [f"{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    missing = [version for version in wanted if version not in seen]
    if missing:
        print(f"NOT FOUND: Python {', '.join(missing)}: the suite is not run on it", file=sys.stderr)
    return 0


def conformance() -> int:
    for one in supported([sys.executable, *on_path(), *(pyenv_paths() or [])]):
        if one.release[:2] == (3, 13) and run(one.path, HAS_TESTS) is not None:
            print(one.path)
            return 0
    print(
        "NOT RUN: the conformance suite needs a CPython 3.13 with its own `test` package "
        "(test.test_concurrent_futures), and none was found: not the running interpreter, "
        "not python3.13 on PATH, not in pyenv's versions",
        file=sys.stderr,
    )
    required = os.environ.get("REQUIRE_CONFORMANCE") == "1" and bool(os.environ.get("CI"))
    return 1 if required else 0


if __name__ == "__main__":
    commands = {"others": others, "conformance": conformance}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(commands[sys.argv[1]]())

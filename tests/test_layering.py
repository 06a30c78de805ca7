"""Imports inside the package point one way, and locks, threads and sleeping stay in the one module for them.

The package is read, not imported: what counts is what its source says.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

PACKAGE = "threadsched"

# Lowest first: a module imports only from those above it in this list. A new file gets its line here. Modules
# that one pattern stands for may import each other.
LAYERS = (
    "_numbers",
    "_errors",
    "_clock",
    "_locks",
    "_stacks",
    "_log",
    "_records",
    "_limit",
    "_retry",
    "_options",
    "_asyncio",
    "_grid",
    "_cron",
    "_plan",
    "_job",
    "_policy",
    "_heap",
    "_gate",
    "_arming",
    "_time_limits",
    "_rules",
    "_audit",
    "_core",
    "_turnstile",
    "_limits",
    "_dependencies",
    "_coroutines",
    "_worker",
    "_outcome",
    "_wall",
    "_series",
    "_schedule",
    "_shared",
    "_inspect",
    "_exit",
    "_waiting",
    "_ending",
    "_helping",
    "_awaiting",
    "_pool",
    "_watcher",
    "_full",
    "_reorder",
    "_taken",
    "_runtime",
    "_bulk",
    "_map",
    "_submitter",
    "_face",
    "_scheduler",
    "_fake_clock",
    "_stepped",
    "__init__",
    "testing",
    "_terminal",
    "_demo*",
    "_stress*",
    "__main__",
)

# The state machine that is driven with a lock by the scheduler and without one by the tests.
CORE = "_core"
CORE_AVOIDS = ("threading", "_thread", "time", "logging", f"{PACKAGE}._locks", f"{PACKAGE}._clock")

# The one module that makes locks and threads, and the one that steps aside from a contended lock.
LOCKS = "_locks"
MADE_IN_LOCKS = {
    f"{module}.{name}"
    for module, names in {
        "threading": "Lock RLock Condition Event Semaphore BoundedSemaphore Barrier Thread Timer",
        "_thread": "RLock allocate_lock allocate start_new_thread start_new start_joinable_thread",
    }.items()
    for name in names.split()
}
ASKS_ONLY = ("isinstance", "issubclass")  # calls that are handed a class and make nothing of it
FREE = ("_demo*", "_stress*")  # programs that use the scheduler, not part of it

# Modules of the standard library whose private names are out of bounds, for they change without notice.
NO_PRIVATE_NAMES_OF = (
    "concurrent.futures",
    "concurrent.futures.thread",
    "concurrent.futures.process",
    "threading",
)


def sources() -> dict[str, str]:
    """Return the source of every module of the package, by its name inside the package."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def is_free(module: str) -> bool:
    """Say whether a module may make threads and locks of its own, and sleep."""
    return any(fnmatchcase(module, pattern) for pattern in FREE)


def layer_of(module: str) -> int | None:
    """Return the index of the layer that `module` belongs to, or None if the list does not have it."""
    module = module.removesuffix(".__init__")  # a package inside the package stands where its name stands
    return next((i for i, pattern in enumerate(LAYERS) if fnmatchcase(module, pattern)), None)


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what stands under `if TYPE_CHECKING:`."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source, the same one each time."""
    return ast.parse(source)


def imports_of(module: str, source: str) -> Iterator[tuple[str, str | None, str, int]]:
    """Yield (absolute module, name or None, local name, line) for each import that runs."""
    for node in running_nodes(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a, `import a.b as c` binds a.b.
                yield alias.name, None, alias.asname or alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                # "__init__" and every plain module live in the package; a module a.b lives in package a.
                here = [PACKAGE, *module.split(".")[:-1]]
                here = here[: len(here) - node.level + 1]
                base = ".".join([*here, base] if base else here)
            for alias in node.names:
                yield base, alias.name, alias.asname or alias.name, node.lineno


def inside_imports(module: str, source: str, known: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield (module of the package, line) for each import of one module of the package by another."""
    for base, name, _, line in imports_of(module, source):
        if base != PACKAGE and not base.startswith(f"{PACKAGE}."):
            continue
        target = base.removeprefix(PACKAGE).removeprefix(".")
        if name is not None:
            submodule = f"{target}.{name}" if target else name
            if submodule in known or (not target and layer_of(submodule) is not None):
                target = submodule
        yield target or "__init__", line


def layer_violations(modules: Mapping[str, str]) -> list[str]:
    """Return each module without a layer, and each import that does not point to a lower layer."""
    found = []
    for module, source in modules.items():
        here = layer_of(module)
        if here is None:
            found.append(f"{module}: has no layer; give it a line in LAYERS")
            continue
        for target, line in inside_imports(module, source, modules):
            there = layer_of(target)
            if there is None:
                found.append(f"{module}:{line}: imports {target}, which has no layer")
            elif there > here or (there == here and "*" not in LAYERS[here]):
                found.append(f"{module}:{line}: imports {target}, which is not below it")
    return found


def core_violations(modules: Mapping[str, str]) -> list[str]:
    """Return each import of the core that brings in threads, locks, clocks or logging."""
    if CORE not in modules:
        return []
    found = []
    for base, name, _, line in imports_of(CORE, modules[CORE]):
        full = base if name is None else f"{base}.{name}"
        found += [
            f"{CORE}:{line}: imports {full}"
            for avoided in CORE_AVOIDS
            if full == avoided or full.startswith(f"{avoided}.") or base.startswith(f"{avoided}.")
        ]
    return found


@functools.cache
def references(module: str, source: str) -> tuple[tuple[str, ast.AST, ast.AST | None], ...]:
    """Return (dotted name, node, the node it stands in) for all that a module uses of what it imports."""
    return tuple(references_in(parsed(source), module, source))


def references_in(tree: ast.Module, module: str, source: str) -> Iterator[tuple[str, ast.AST, ast.AST | None]]:
    bound = {}
    for base, name, local, line in imports_of(module, source):
        if name is not None:
            bound[local] = f"{base}.{name}"
        else:
            bound[local] = base if local != base.partition(".")[0] else local
        whole = base if name is None else f"{base}.{name}"
        yield whole, ast.Pass(lineno=line), None
    for parent in running_nodes(tree):
        for node in ast.iter_child_nodes(parent):
            parts: list[str] = []
            inner = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in bound:
                yield ".".join([bound[inner.id], *reversed(parts)]), node, parent


def making_violations(modules: Mapping[str, str]) -> list[str]:
    """Return each place outside the one module for it that makes a lock or thread, or a class of them."""
    found = []
    for module, source in modules.items():
        if module == LOCKS or is_free(module):
            continue
        for name, node, parent in references(module, source):
            if name in MADE_IN_LOCKS and (
                isinstance(parent, (ast.ClassDef, ast.keyword))
                or (isinstance(parent, ast.Call) and ast.unparse(parent.func) not in ASKS_ONLY)
            ):
                found.append(f"{module}:{node.lineno}: makes {name}; {LOCKS} does that")
    return found


def sleeping_violations(modules: Mapping[str, str]) -> list[str]:
    """Return each use of time.sleep outside the module that steps aside from a contended lock."""
    return sorted(
        {
            f"{module}:{node.lineno}: uses time.sleep"
            for module, source in modules.items()
            if module != LOCKS and not is_free(module)
            for name, node, _ in references(module, source)
            if name == "time.sleep"
        }
    )


def private_violations(modules: Mapping[str, str]) -> list[str]:
    """Return each use of a private name of a standard module that is watched."""
    found = set()
    for module, source in modules.items():
        for name, node, _ in references(module, source):
            for watched in NO_PRIVATE_NAMES_OF:
                own = name.removeprefix(f"{watched}.").partition(".")[0]
                if own != name.partition(".")[0] and own.startswith("_") and not own.endswith("__"):
                    found.add(f"{module}:{node.lineno}: uses {watched}.{own}")
    return sorted(found)


CHECKS = [layer_violations, core_violations, making_violations, sleeping_violations, private_violations]


@pytest.mark.parametrize("check", CHECKS)
def test_package_keeps_the_rule(check):
    """The package as it is breaks none of the rules."""
    modules = sources()
    assert "__init__" in modules
    assert check(modules) == []


def test_every_layer_is_listed_once():
    """A module has one place in the order."""
    assert len(set(LAYERS)) == len(LAYERS)
    for module in sources():
        assert sum(fnmatchcase(module, pattern) for pattern in LAYERS) <= 1, module


@pytest.mark.parametrize(
    ("check", "module", "source", "broken"),
    [
        (layer_violations, "_job", "from threadsched._core import Core", True),
        (layer_violations, "_job", "from ._core import Core", True),
        (layer_violations, "_job", "from . import _core", True),
        (layer_violations, "_job", "from threadsched import _core", True),
        (layer_violations, "_job", "import threadsched._core", True),
        (layer_violations, "_job", "import threadsched", True),
        (layer_violations, "_job", "def f():\n    from . import Scheduler", True),
        (layer_violations, "_job", "from ._job import Job", True),
        (layer_violations, "_surprise", "", True),
        (layer_violations, "_job", "from ._surprise import x", True),
        (layer_violations, "_core", "from ._job import Job\nfrom . import _heap\nimport heapq", False),
        (layer_violations, "testing", "from . import Scheduler\nfrom ._core import Core", False),
        (layer_violations, "_demo_two", "from ._demo_one import x", False),
        (layer_violations, "_demo.two", "from . import one\nfrom .one import x\nfrom .. import Job", False),
        (layer_violations, "_demo.__init__", "from .one import x\nfrom .. import Job", False),
        (layer_violations, "_demo.two", "from ..__main__ import main", True),
        (
            layer_violations,
            "_job",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._core import Core",
            False,
        ),
        (
            layer_violations,
            "_job",
            "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    from ._core import Core",
            True,
        ),
        (core_violations, "_core", "import threading", True),
        (core_violations, "_core", "from time import monotonic", True),
        (core_violations, "_core", "import logging.handlers", True),
        (core_violations, "_core", "from . import _locks", True),
        (core_violations, "_core", "from ._clock import Clock", True),
        (core_violations, "_core", "from ._heap import LazyHeap\nimport heapq, timeit", False),
        (core_violations, "_heap", "import threading", False),
        (making_violations, "_worker", "import threading\nlock = threading.Lock()", True),
        (making_violations, "_worker", "import threading as t\nlock = t.RLock()", True),
        (making_violations, "_worker", "from threading import Condition as C\nc = C()", True),
        (making_violations, "_worker", "import _thread\nlock = _thread.allocate_lock()", True),
        (making_violations, "_worker", "import threading\nthreading.Thread(target=print).start()", True),
        (making_violations, "_worker", "import threading\nclass C(threading.Condition): pass", True),
        (making_violations, "_worker", "import threading\nf = field(default_factory=threading.Lock)", True),
        (making_violations, "_worker", "from ._locks import Condition\nc = Condition()", False),
        (making_violations, "_worker", "import threading\ndef f(t: threading.Thread): return t.name", False),
        (making_violations, "_worker", "import threading\nisinstance(t, threading.Thread)", False),
        (making_violations, "_worker", "import threading\nd = defaultdict(threading.Lock)", True),
        (making_violations, "_locks", "import threading\nlock = threading.Lock()", False),
        (making_violations, "_demo", "import threading\nlock = threading.Lock()", False),
        (sleeping_violations, "_worker", "import time\ntime.sleep(1)", True),
        (sleeping_violations, "_worker", "from time import sleep as nap", True),
        (sleeping_violations, "_worker", "import time\npause = time.sleep", True),
        (sleeping_violations, "_worker", "import time\ntime.monotonic()", False),
        (sleeping_violations, "_locks", "import time\ntime.sleep(0)", False),
        (private_violations, "_job", "from concurrent.futures import _base", True),
        (private_violations, "_job", "from concurrent.futures._base import PENDING", True),
        (private_violations, "_job", "import concurrent.futures._base", True),
        (
            private_violations,
            "_job",
            "import concurrent.futures\nx = concurrent.futures._base.FINISHED",
            True,
        ),
        (private_violations, "_job", "from concurrent import futures as f\nx = f._base", True),
        (private_violations, "_exit", "from concurrent.futures.thread import _threads_queues", True),
        (private_violations, "_exit", "import threading\nthreading._register_atexit(print)", True),
        (private_violations, "_job", "from concurrent.futures import Future\nFuture.__init__", False),
        (private_violations, "_job", "import threading\nthreading.get_ident()", False),
    ],
)
def test_rule_notices_what_it_is_for(check, module, source, broken):
    """Each rule reports what breaks it, and nothing else."""
    modules = {"_demo.one": "", **dict.fromkeys(["_core", "_heap"], ""), module: source}
    assert bool(check(modules)) is broken


def inside_functions(path: Path, *left_out: str) -> list[Any]:
    """Return the nodes of all that stands in the functions of a file; audits are left out, and those named."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    served = [one for one in functions if "audit" not in one.name and one.name not in left_out]
    return [node for function in served for node in ast.walk(function) if node is not function]


def test_no_part_of_a_scheduler_iterates_over_the_items_of_a_dictionary():
    """CPython 3.11 crashes where it has no memory for the iterator of ``dict.items()``; audits and commands may."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / PACKAGE).glob("*.py"))
        if not path.name.startswith(("_demo", "_stress", "__main__", "_audit"))
        for node in inside_functions(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items"
    ]
    assert found == []


def test_no_function_is_made_where_a_job_moves():
    """Without memory for a function object CPython 3.12 and 3.13 crash later on; audits and the start may make some."""
    found = [
        f"_{room}.py:{node.lineno}"
        for room in ("core", "heap", "job", "arming", "gate", "runtime", "ending", "outcome", "worker")
        for node in inside_functions(ROOT / PACKAGE / f"_{room}.py", "in_order")
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.GeneratorExp)
    ]
    assert found == []

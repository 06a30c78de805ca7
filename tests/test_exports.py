"""What users can import is listed, exists, is documented, and is all there is."""

import importlib
import inspect
import types
from typing import Any

import pytest

from tests.support import ROOT

# The package and every module of it that users import by name.
PUBLIC = ["threadsched"] + [
    f"threadsched.{path.stem}" for path in sorted((ROOT / "threadsched").glob("*.py")) if not path.stem.startswith("_")
]

# What stands in a module's namespace without being an export of it.
IGNORED = {"annotations"}  # from __future__ import annotations


def exports() -> list[Any]:
    """Return (module name, exported name) for all exports."""
    return [
        pytest.param(module, name, id=f"{module}.{name}")
        for module in PUBLIC
        for name in getattr(importlib.import_module(module), "__all__", ())
    ]


def own_docstring(thing: Any) -> str:
    """Return the docstring that was written for `thing` itself: not inherited, not generated."""
    if inspect.isclass(thing):
        text = vars(thing).get("__doc__") or ""
        # A dataclass or a named tuple without one gets its own signature.
        return "" if text.startswith(f"{thing.__name__}(") else text
    return getattr(thing, "__doc__", None) or ""


def undocumented_members(cls: type) -> list[str]:
    """Return the public methods and properties of `cls` that have no docstring of their own."""
    found = []
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        is_ours = isinstance(member, (types.FunctionType, property))
        if is_ours and not (member.__doc__ or "").strip():
            found.append(name)
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_all_is_sorted_and_unique(module: str):
    """`__all__` can be read and merged: in order, nothing twice, nothing private."""
    names = importlib.import_module(module).__all__
    assert list(names) == sorted(set(names))
    assert [name for name in names if name.startswith("_") and not name.endswith("__")] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_module_is_documented(module: str):
    """A public module says what is in it."""
    assert own_docstring(importlib.import_module(module)).strip()


@pytest.mark.parametrize(("module", "name"), exports())
def test_export_exists_and_is_documented(module: str, name: str):
    """Every exported name exists; a class or function says what it is for, and so does each method."""
    thing = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return
    assert own_docstring(thing).strip(), f"{name} has no docstring"
    if inspect.isclass(thing):
        assert undocumented_members(thing) == []


@pytest.mark.parametrize("module", PUBLIC)
def test_nothing_leaks(module: str):
    """A public name in a public module is an export, or a public module of the package."""
    namespace = vars(importlib.import_module(module))
    public = {name for name in namespace if not name.startswith("_")} - IGNORED
    modules = {name for name in public if f"{module}.{name}" in PUBLIC}
    assert sorted(public - modules - set(namespace["__all__"])) == []


@pytest.mark.parametrize(("module", "name"), exports())
def test_export_is_defined_in_the_package(module: str, name: str):
    """What is exported is the project's own: nothing of another package is handed on under our name."""
    thing = getattr(importlib.import_module(module), name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert thing.__module__.partition(".")[0] == "threadsched"


class Bare:
    def told(self):
        """Told."""

    def untold(self):
        pass

    @property
    def shown(self):
        return 1

    @classmethod
    def made(cls):
        pass

    def _private(self):
        pass


def test_missing_docstrings_are_noticed():
    """A method, property or class method without a docstring is found, and a class without one too."""
    assert undocumented_members(Bare) == ["untold", "shown", "made"]
    assert own_docstring(Bare) == ""
    assert own_docstring(types.SimpleNamespace) != ""

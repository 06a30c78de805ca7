"""The table of faults is complete: every row has tests, every test of a row exists, every test here has a row."""

import ast
from pathlib import Path

import pytest

from tests.faults.table import REPEATED, ROWS, Row
from tests.support import ROOT

TESTS = ROOT / "tests"


def functions_of(path: Path) -> set[str]:
    """Return the names of the test functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault[:50])
def test_tests_of_a_row_exist(row: Row):
    """Each fault has an outcome and at least one test, and the tests that it names are there."""
    assert row.fault
    assert row.outcome
    assert row.tests
    named = [name.split("::") for name in row.tests]
    assert [(file, name) for file, name in named if name not in functions_of(TESTS / file)] == []


def test_every_test_of_the_package_has_a_row():
    """No test of this package stands beside the table."""
    here = {
        f"faults/{path.name}::{name}"
        for path in (TESTS / "faults").glob("test_*.py")
        if path.name != Path(__file__).name
        for name in functions_of(path)
    }
    assert here - {name for row in ROWS for name in row.tests} == set()


def test_repeated_tests_belong_to_the_table():
    """What the long run repeats is part of the table, and each fault stands there once."""
    assert {name for row in ROWS for name in row.tests} >= REPEATED
    assert len({row.fault for row in ROWS}) == len(ROWS)

"""docs/reliability.md names tests that exist, with their figures; its faults are those of tests/faults/table.py."""

import re

import pytest

from tests.explorer.mutants import MUTANTS
from tests.faults.table import ROWS
from tests.figures import FIGURES
from tests.support import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(test_\w+)` \(([\w/]+\.py)\)", PAGE)


def section(title: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    text = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_named_tests_exist() -> None:
    """Each test on the page is defined in the file that stands beside it."""
    missing = [
        (name, file)
        for name, file in NAMED
        if not re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.M)
    ]
    assert missing == []


def test_each_promise_has_a_test() -> None:
    """No promise stands there without a test that holds it."""
    promises = section("What is promised")
    assert len(promises) > 10
    cells = [held for _, held, _ in promises]
    assert all(re.fullmatch(r"`test_\w+` \([\w/]+\.py\)(?:, `test_\w+` \([\w/]+\.py\))*", held) for held in cells)


def test_each_promise_has_its_figures():
    """Beside a promise stands on how much its tests try it, as they say it themselves."""
    pytest.importorskip("_testcapi", reason="the sweep without memory cannot be asked")
    for promise, held, figures in section("What is promised"):
        names = re.findall(r"`(test_\w+)`", held)
        assert figures == "; ".join(FIGURES[name]() for name in names if name in FIGURES), promise
    assert set(FIGURES) <= {name for name, _ in NAMED}


def test_what_is_said_of_the_mutants_is_true():
    """The explorer's are counted; those of the core are what the design page says of a run that takes half an hour."""
    found = re.search(r"`test_a_fault_of_the_scheduler_is_found` \(explorer/test_mutants\.py\): (\d+)", PAGE)
    assert found is not None
    assert int(found[1]) == len(MUTANTS)
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    core = re.search(r"in ([\d,]+) ways .* then drops each of its (\d+) statements", design, re.DOTALL)
    assert core is not None
    assert f"of {core[1]} changes and {core[2]} dropped statements, 15 are not noticed" in PAGE
    assert "Of the changes fifteen are not" in design


def test_faults_are_those_of_the_table() -> None:
    """The page tells the faults and outcomes that the tests go by, in the same order."""
    assert section("Faults") == [[row.fault, row.outcome] for row in ROWS]

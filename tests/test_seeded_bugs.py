"""docs/reference/seeded-bugs.md names tests that exist, and its numbers are those of its tables."""

import re

from tests.support import ROOT

PAGE = (ROOT / "docs" / "reference" / "seeded-bugs.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [
    line.strip("| ").split(" | ")
    for line in PAGE.splitlines()
    if line.startswith("| ") and line != "| seeded | noticed by |"
]


def test_tests_that_notice_a_bug_exist() -> None:
    """Each row says which test notices the bug, and that test is defined there; or why none can."""
    missing = []
    for seeded, noticed in ROWS:
        named = re.fullmatch(r"`([\w/]+\.py)`: `(test_\w+)`(?: \(hangs\))?", noticed)
        if named is None:
            assert noticed.startswith("not noticed: "), seeded
            continue
        text = (ROOT / "tests" / named[1]).read_text(encoding="utf-8")
        if not re.search(rf"^(?:async )?def {named[2]}\(", text, re.M):
            missing.append((seeded, noticed))
    assert missing == []


def test_numbers_are_those_of_the_tables() -> None:
    """How many were seeded, how many are noticed, and what the page on reliability says of it."""
    unnoticed = sum(noticed.startswith("not noticed: ") for _, noticed in ROWS)
    assert f"\n{len(ROWS)} mistakes " in PAGE
    assert f" {len(ROWS) - unnoticed} are noticed" in PAGE
    assert f"(reference/seeded-bugs.md): {len(ROWS)}, of which {unnoticed} make no difference" in RELIABILITY


def test_every_room_of_the_runtime_has_a_table() -> None:
    """A file under `threadsched/` that a section is about exists."""
    rooms = re.findall(r"^## .*\(`(\w+\.py)`\)$", PAGE, re.M)
    assert len(rooms) == len(set(rooms)) >= 30
    assert all((ROOT / "threadsched" / room).exists() for room in rooms)

"""The table of scenarios names tests that exist, and leaves none out."""

import re

from tests.support import ROOT

NAMES = re.compile(
    r"^(?:async )?def (test_(?:sub|con|ord|dly|can|shd|idl|pau|rat|tim|rec|err|int|rty)_\d\d\w*)\(", re.M
)


def test_table_and_tests_agree() -> None:
    """Each test named after a scenario stands in the table under its file, and nothing else does."""
    written = {
        (name, path.name) for path in (ROOT / "tests").glob("test_*.py") for name in NAMES.findall(path.read_text())
    }
    table = (ROOT / "docs" / "reference" / "scenarios.md").read_text()
    assert set(re.findall(r"`(test_\w+)` \((\w+\.py)\)", table)) == written

"""The table of scenarios names tests that exist, and leaves none out."""

import re

from tests.support import ROOT

NAMES = re.compile(
    r"^(?:async )?def (test_(?:sub|con|ord|dly|can|shd|idl|pau|rat|tim|rec|err|int|rty)_\d\d\w*)\(", re.M
)

# How many scenarios each topic has.
COUNTS = {
    "SUB": 12,
    "CON": 14,
    "ORD": 9,
    "DLY": 6,
    "CAN": 12,
    "SHD": 13,
    "IDL": 10,
    "PAU": 5,
    "RAT": 11,
    "TIM": 6,
    "REC": 6,
    "ERR": 4,
    "INT": 5,
    "RTY": 9,
}

TABLE = (ROOT / "docs" / "reference" / "scenarios.md").read_text()


def test_table_has_every_scenario() -> None:
    """Each of the 122 scenarios has one row, with its tests, named after it, or with why it is not offered."""
    ids = [f"{topic}-{number:02}" for topic, count in COUNTS.items() for number in range(1, count + 1)]
    assert len(ids) == 122
    rows = re.findall(r"^\| ([A-Z]{3}-\d\d) \| (.+) \|$", TABLE, re.M)
    assert [id for id, _ in rows] == ids
    for id, cell in rows:
        prefix = f"`test_{id.lower().replace('-', '_')}_"
        assert cell.startswith("not offered: ") or all(part.startswith(prefix) for part in cell.split(", ")), id


def test_table_and_tests_agree() -> None:
    """Each test named after a scenario stands in the table under its file, and nothing else does."""
    written = {
        (name, path.name) for path in (ROOT / "tests").glob("test_*.py") for name in NAMES.findall(path.read_text())
    }
    assert set(re.findall(r"`(test_\w+)` \((\w+\.py)\)", TABLE)) == written

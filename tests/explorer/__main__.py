"""Replays a schedule, or counts them.

EXPLORE='name:choices' python -m tests.explorer     replays one schedule and shows every step of it
python -m tests.explorer table [SECTION ...]        explores whole sections and writes their tables into docs/
"""

import os
import sys

from tests.explorer import seeded, table
from tests.explorer.cases import SECTIONS, case_of
from tests.explorer.install import laboratory
from tests.explorer.search import Scenario, read, replay


def scenario_of(name: str) -> Scenario:
    """Make a scenario from its name."""
    kind, _, rest = name.partition("/")
    if kind in ("seeded", "mended"):
        return seeded.scenario(rest, broken=kind == "seeded")
    return case_of(name).scenario()


def write_table(names: list[str]) -> None:
    for name in names or SECTIONS:
        with laboratory() as place:
            counts = table.count(place, SECTIONS[name])
        known = table.read_page(table.PAGE.read_text(encoding="utf-8")) if table.PAGE.exists() else {}
        table.write({**known, name: counts})
        print(f"{name}: {sum(counts.values()):,} schedules", flush=True)


def main() -> int:
    if sys.argv[1:2] == ["table"]:
        write_table(sys.argv[2:])
        return 0
    text = os.environ.get("EXPLORE", "")
    if not text:
        print(__doc__, file=sys.stderr)
        return 2
    name, choices = read(text)
    told: list[str] = []
    with laboratory() as place:
        failure, _ = replay(place, scenario_of(name), choices, told)
    print("\n".join(told))
    print(failure or "nothing failed")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())

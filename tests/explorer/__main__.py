"""Replays one schedule and shows every step of it: ``EXPLORE='name:choices' python -m tests.explorer``."""

import os
import sys

from tests.explorer import seeded
from tests.explorer.cases import case_of
from tests.explorer.install import laboratory
from tests.explorer.search import Scenario, read, replay


def scenario_of(name: str) -> Scenario:
    """Make a scenario from its name."""
    kind, _, rest = name.partition("/")
    if kind in ("seeded", "mended"):
        return seeded.scenario(rest, broken=kind == "seeded")
    return case_of(name).scenario()


def main() -> int:
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

"""Print the state diagram of a job, in mermaid, from the table of legal moves.

docs/design.md has what this prints; tests/test_state_diagram.py compares. After a change of the table:
python docs/generate_states.py
"""

import sys

from threadsched import JobStatus
from threadsched._job import MOVES


def diagram() -> str:
    """Return the diagram: one line for each way in, each move, each way out."""
    lines = ["stateDiagram-v2", "    [*] --> PENDING: submit"]
    lines += [f"    {before.name} --> {after.name}: {move}" for (before, after), move in MOVES.items()]
    lines += [f"    {status.name} --> [*]" for status in JobStatus if status.ended]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(diagram())

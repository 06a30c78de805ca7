"""The state diagram in the documentation is the table of moves."""

import importlib.util
from types import ModuleType

from tests.support import ROOT, run_script
from tests.test_docs import split
from threadsched import JobStatus
from threadsched._job import MOVES

GENERATOR = ROOT / "docs" / "generate_states.py"
PAGE = ROOT / "docs" / "design.md"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_states", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_the_generator_prints():
    """The one mermaid block of the design page is the generated diagram, so no move is missing or invented."""
    blocks = [block.code for block in split(PAGE.read_text(encoding="utf-8"))[1] if block.info == "mermaid"]
    assert blocks == [generator().diagram()]


def test_every_move_is_drawn():
    """The diagram has one arrow for each move, one in, and one out of each ended status."""
    lines = generator().diagram().splitlines()
    for (before, after), move in MOVES.items():
        assert f"    {before.name} --> {after.name}: {move}" in lines
    ended = [status for status in JobStatus if status.ended]
    assert len(lines) == 2 + len(MOVES) + len(ended)


def test_the_generator_runs_as_a_program():
    """What the command prints is what the page has."""
    assert run_script(GENERATOR.read_text(encoding="utf-8")).stdout == generator().diagram()

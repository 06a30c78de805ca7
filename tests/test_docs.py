"""The documentation is true: its examples run, its links lead somewhere, the names in it exist.

A fenced block says in its info string what it is. `python` runs, in a fresh namespace; words after it change
that:

- `python continued` runs after the blocks before it, back to the last that starts afresh, in one namespace;
- `python subprocess` runs as a program of its own (for what ends, forks or takes signals);
- `python no-run: REASON` does not run, and says why.
"""

import dataclasses
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import threadsched
from tests.support import ROOT, run_script

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = [page for page in PAGES if page.relative_to(ROOT).as_posix().startswith("docs/reference")]

# Info strings of blocks that are there to be read. Python under another name would escape being run.
READ_ONLY = {"console", "text", "toml", "ini", "yaml", "json", "bash", "sh", "make", "mermaid", "diff"}

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block: the line where its code begins, its info string, its code without indentation."""

    line: int
    info: str
    code: str


def split(text: str) -> tuple[str, list[Block]]:
    """Return a page's prose, with blank lines for its fenced blocks, and those blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if opened is None:
            opened = FENCE.match(line)
            code = []
            prose.append("" if opened else line)
            continue
        prose.append("")
        closing = line.strip()
        if closing.startswith(opened["fence"]) and not closing.strip(opened["fence"][0]):
            blocks.append(Block(number - len(code), opened["info"].strip(), "\n".join(code) + "\n"))
            opened = None
        else:
            code.append(line.removeprefix(opened["indent"]))
    if opened is not None:
        raise ValueError(f"a fence is never closed: {opened[0].strip()}")
    return "\n".join(prose), blocks


def faults(block: Block) -> str | None:
    """Return what is wrong with the block's info string, or None."""
    language, _, rest = block.info.partition(" ")
    rest = rest.strip()
    if language in READ_ONLY:
        return None
    if language != "python":
        return f"unknown kind of block {block.info!r}: say python, or one of {', '.join(sorted(READ_ONLY))}"
    if rest.startswith("no-run"):
        return None if re.fullmatch(r"no-run: *\S.+", rest) else "no-run needs a reason: python no-run: REASON"
    return None if rest in ("", "continued", "subprocess") else f"unknown words after python: {rest!r}"


def programs(blocks: list[Block]) -> list[tuple[Block, str]]:
    """Return (block, source) for each block that runs; the line numbers of a source are those of its page."""
    found: list[tuple[Block, str]] = []
    before: list[Block] = []
    for block in blocks:
        language, _, rest = block.info.partition(" ")
        if language != "python" or rest.strip().startswith("no-run"):
            continue
        before = [*before, block] if rest.strip() == "continued" else [block]
        source = ""
        for part in before:
            source += "\n" * (part.line - 1 - source.count("\n")) + part.code
        found.append((block, source))
    return found


def all_programs() -> list[Any]:
    return [
        pytest.param(page, block, source, id=f"{page.relative_to(ROOT).as_posix()}:{block.line}")
        for page in PAGES
        for block, source in programs(split(page.read_text(encoding="utf-8"))[1])
    ]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_say_what_they_are(page: Path):
    """Every fenced block has a known kind, and one that does not run has a reason."""
    blocks = split(page.read_text(encoding="utf-8"))[1]
    assert [f"line {block.line}: {fault}" for block in blocks if (fault := faults(block))] == []


@pytest.mark.parametrize(("page", "block", "source"), all_programs())
def test_example_runs(page: Path, block: Block, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A Python example runs from top to bottom and leaves no thread behind."""
    if block.info.endswith("subprocess"):
        run_script(source)
        return
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(source, str(page), "exec"), namespace)
    finally:
        namespace.clear()  # what the example dropped is collected before its threads are counted


INLINE_CODE = re.compile(r"(`+)(?P<code>.+?)\1", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
LINK_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(?P<target>[^\s>]+)>?", re.MULTILINE)
HTML_LINK = re.compile(r"<(?:a|img|source)\s[^>]*?(?:href|src|srcset)=\"(?P<target>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.*?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s[^>]*?(?:id|name)=\"(?P<id>[^\"]+)\"")


def links(text: str) -> list[str]:
    """Return the targets of all links of a page, outside code."""
    prose = INLINE_CODE.sub("`code`", split(text)[0])
    return [match["target"] for pattern in (LINK, LINK_DEFINITION, HTML_LINK) for match in pattern.finditer(prose)]


def anchors(text: str) -> set[str]:
    """Return the fragments that a link to this page may have: of its headings, as code hosts make them."""
    prose = split(text)[0]
    found: set[str] = {match["id"] for match in ANCHOR.finditer(prose)}
    counts: dict[str, int] = {}
    for match in HEADING.finditer(prose):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["title"])
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
    return found


def broken_links(page: Path, text: str, root: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere, or out of the project."""
    found = []
    for target in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):  # another scheme: not ours to check, and no network here
            continue
        path, _, fragment = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or not goal.is_relative_to(root):
            found.append(target)
        elif fragment and goal.suffix == ".md":
            there = text if goal == page else goal.read_text(encoding="utf-8")
            if fragment not in anchors(there):
                found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_resolve(page: Path):
    """Every relative link leads to a file of the project, and to a heading that is there."""
    assert broken_links(page, page.read_text(encoding="utf-8"), ROOT) == []


DOTTED = re.compile(r"(?<![\w./-])threadsched(?:\.[A-Za-z_]\w*)+(?![\w/-])")
MEMBER = re.compile(r"(?P<name>[A-Z]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?", re.DOTALL)


def names_in(text: str) -> set[str]:
    """Return the names of the package that a page mentions, each beginning with `threadsched.`.

    That is every dotted name that begins so, in prose and in code, and inline code that begins with an
    exported class (`Scheduler.submit`, `Job.cancel()`).
    """
    found = {match[0] for match in DOTTED.finditer(text)}
    for code in INLINE_CODE.finditer(split(text)[0]):
        match = MEMBER.fullmatch(code["code"].strip())
        if match and match["name"].partition(".")[0] in threadsched.__all__:
            found.add(f"threadsched.{match['name']}")
    return found


def exists(name: str) -> bool:
    """Return whether a dotted name leads somewhere: modules, their attributes, and fields of instances."""
    head, *rest = name.split(".")
    thing: Any = importlib.import_module(head)
    for position, part in enumerate(rest):
        if inspect.ismodule(thing) and not hasattr(thing, part):
            try:
                thing = importlib.import_module(f"{thing.__name__}.{part}")
            except ModuleNotFoundError:
                return False
        elif hasattr(thing, part):
            thing = getattr(thing, part)
        else:
            # A field without a default is no attribute of its class; nothing can be looked up behind it.
            return inspect.isclass(thing) and part in fields_of(thing) and position == len(rest) - 1
    return True


def fields_of(cls: type) -> set[str]:
    if dataclasses.is_dataclass(cls):
        return {field.name for field in dataclasses.fields(cls)}
    return {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}


@pytest.mark.parametrize("page", REFERENCE or [ROOT / "README.md"], ids=named)
def test_names_exist(page: Path):
    """Every name of the package that the reference mentions is there."""
    text = page.read_text(encoding="utf-8")
    assert sorted(name for name in names_in(text) if not exists(name)) == []


SAMPLE_PAGE = """\
# A page

Text with `[no](link.md)`, [a link](other.md#part-two) and [one](https://example.org/x "away").

```python
first = 1
```

- in a list:

  ```python continued
  assert first == 1
  ```

````text
```python
not code
```
````

```python no-run: needs a database
raise SystemExit
```

[ref]: missing.md

## Part two

## Part two
"""


def test_blocks_are_found():
    """Fences may be indented or nested, and each block knows its line."""
    prose, blocks = split(SAMPLE_PAGE)
    assert [(block.line, block.info) for block in blocks] == [
        (6, "python"),
        (12, "python continued"),
        (16, "text"),
        (22, "python no-run: needs a database"),
    ]
    assert len(prose.splitlines()) == len(SAMPLE_PAGE.splitlines())
    assert "not code" not in prose
    with pytest.raises(ValueError, match="never closed"):
        split("```python\nx\n")


def test_programs_keep_the_lines_of_their_page():
    """A continued block has the code before it, and its traceback points into the page."""
    found = programs(split(SAMPLE_PAGE)[1])
    assert [block.line for block, _ in found] == [6, 12]
    assert found[1][1].splitlines()[5] == "first = 1"
    assert found[1][1].splitlines()[11] == "assert first == 1"


@pytest.mark.parametrize(
    ("info", "accepted"),
    [
        ("python", True),
        ("python continued", True),
        ("python subprocess", True),
        ("python no-run: needs a database", True),
        ("python no-run", False),
        ("python no-run:", False),
        ("python norun", False),
        ("console", True),
        ("py", False),
        ("pycon", False),
        ("", False),
    ],
)
def test_info_strings(info: str, accepted: bool):
    """No block escapes being run by the way it is labelled."""
    assert (faults(Block(1, info, "")) is None) is accepted


def test_broken_links_are_noticed(tmp_path: Path):
    """A link to a missing file or heading, or out of the project, is broken; other sites are not asked."""
    page = tmp_path / "page.md"
    page.touch()
    (tmp_path / "other.md").write_text("# Other\n\n## Part `two`!\n", encoding="utf-8")
    assert broken_links(page, SAMPLE_PAGE, tmp_path) == ["missing.md"]
    assert anchors(SAMPLE_PAGE) == {"a-page", "part-two", "part-two-1"}
    assert broken_links(page, "[a](#a) [b](#b) [c](other.md#c) [d](../) [e](other.md)\n# A", tmp_path) == [
        "#b",
        "other.md#c",
        "../",
    ]


def test_missing_names_are_noticed():
    """Dotted names are looked up down to the last part; paths and commands that look alike are not names."""
    text = "threadsched.Scheduler.submit and `threadsched.nothing.here`, threadsched/_core.py, www.threadsched.org"
    assert names_in(text) == {"threadsched.Scheduler.submit", "threadsched.nothing.here"}
    assert exists("threadsched.Scheduler.submit")
    assert exists("threadsched.Scheduler.submit.__name__")
    assert not exists("threadsched.nothing.here")


@dataclass
class Record:
    field: int


def test_fields_of_records_exist():
    """A field that only instances have counts as a name of its class."""
    assert fields_of(Record) == {"field"}

"""Where threads stand: alike by every way of reading, and no danger to the process."""

import errno
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gates import PATIENCE, Gate
from tests.support import run_script, size
from threadsched import Scheduler, _inspect, _stacks


def walk(wanted: set[int]) -> dict[int, list[_stacks.Place]]:
    """Walk on any Python: nothing collects meanwhile."""
    gc.disable()
    try:
        return _stacks._walk(wanted)
    finally:
        gc.enable()


WAYS: dict[str, Callable[[set[int]], dict[int, list[_stacks.Place]]]] = {
    "walk": walk,
    "collection": _stacks._walk_in_collection,
    "dump": _stacks._dump,
}
MOMENTS = size(200, 60)
ONE = "def entré(parked, release):\n\n    parked.release(), release.acquire()\n"
DEEP = "def sink(depth, then, *args):\n    return sink(depth - 1, then, *args) if depth else then(*args)\n"


class Parked:
    """A thread that stands still in a function, which says so and sleeps in one and the same line."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.parked, self.release = threading.Lock(), threading.Lock()
        for lock in (self.parked, self.release):
            lock.acquire()
        self.thread = threading.Thread(target=function, args=(*args, self.parked, self.release), daemon=True)
        self.thread.start()
        assert self.parked.acquire(timeout=PATIENCE)
        assert self.thread.ident is not None
        self.ident = self.thread.ident


@pytest.fixture
def park() -> Iterator[Callable[..., Parked]]:
    made: list[Parked] = []

    def park(function: Callable[..., Any], *args: Any) -> Parked:
        made.append(Parked(function, *args))
        return made[-1]

    yield park
    for one in made:
        one.release.release()
    for one in made:
        one.thread.join(PATIENCE)


def compiled(source: str, file: str, name: str) -> Any:
    """Return a function out of a source that stands in no file."""
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    return names[name]


entry = compiled(ONE, "/tmp/schöner Ordner/猫 🐈/a\tb\udcff.py", "entré")


def stand(parked: Any, release: Any) -> None:
    parked.release(), release.acquire()


@pytest.mark.parametrize("way", WAYS)
def test_a_parked_thread_is_seen_from_the_outermost_frame_inwards(park: Any, way: str):
    """Files, lines and functions are those of the code, whatever characters are in the names."""
    one = park(entry)
    places = WAYS[way]({one.ident})[one.ident]
    assert [name for _, _, name in places][:3] == ["_bootstrap", "_bootstrap_inner", "run"]
    assert places[3:] == [("/tmp/schöner Ordner/猫 🐈/a\tb\udcff.py", 3, "entré")]


@pytest.mark.parametrize("way", ["collection", "dump"])
def test_all_ways_see_the_same(park: Any, way: str):
    """Several threads at once, plain, deep and inside generators: each way sees what a walk sees."""

    def through(*args: Any) -> Any:
        def inner() -> Iterator[None]:
            stand(*args)
            yield

        def outer() -> Iterator[None]:
            yield from inner()

        return list(outer())

    sink = compiled(DEEP, "<a \\ deep one>", "sink")
    idents = {park(stand).ident, park(sink, 40, stand).ident, park(through).ident, park(entry).ident}
    found = WAYS[way](idents)
    assert found == walk(idents)
    assert found.keys() == idents


@pytest.mark.parametrize("way", WAYS)
def test_only_living_threads_that_were_asked_for_are_seen(park: Any, way: str):
    """A thread that is not there, or was not asked for, has no stack."""
    one, _ = park(stand), park(stand)
    assert WAYS[way]({one.ident, 0, 1}).keys() == {one.ident}


@pytest.mark.parametrize("way", WAYS)
def test_the_own_stack_is_no_cycle(way: str):
    """A thread may ask for itself, and nothing is left for the collector."""
    gc.collect()
    stacks = WAYS[way]({threading.get_ident()})
    del stacks
    frames = [
        one for one in gc.get_objects() if type(one).__name__ == "frame" and one.f_code.co_name.startswith("_walk")
    ]
    assert frames == []


@pytest.mark.parametrize("way", ["walk", "collection"])
def test_more_than_a_hundred_threads(park: Any, way: str):
    """However many threads there are, the first of them is seen."""
    first = park(stand)
    others = [park(stand) for _ in range(110)]
    idents = {one.ident for one in [first, *others]}
    assert WAYS[way](idents).keys() == idents


def test_a_dump_of_more_than_a_hundred_threads_has_the_newest(park: Any):
    """A dump ends after a hundred threads and a hundred frames; what is in it is whole."""
    first = park(stand)
    sink = compiled(DEEP, "<deep>", "sink")
    others = [park(stand) for _ in range(99)]
    last = park(sink, 150, stand)
    found = _stacks._dump({first.ident, others[-1].ident, last.ident})
    assert found.keys() == {others[-1].ident, last.ident}
    assert [name for _, _, name in found[last.ident]][-2:] == ["sink", "stand"]
    assert found[last.ident] == walk({last.ident})[last.ident][-100:]


def test_no_file_no_stack(park: Any, monkeypatch: pytest.MonkeyPatch):
    """Without a descriptor left a dump has no stacks, and harms nothing."""
    monkeypatch.setattr(_stacks, "_read", _stacks._dump)
    one = park(stand)
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        found = _stacks.read([one.ident])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
    assert found == {}
    assert _stacks.read([one.ident]).keys() == {one.ident}


def test_a_dump_without_memory_files_takes_a_temporary_one(park: Any, monkeypatch: pytest.MonkeyPatch):
    """Where files in memory are forbidden or unknown, one of the disk does."""
    one = park(stand)

    def forbidden(*args: Any) -> int:
        raise OSError(errno.EPERM, "forbidden")

    expected = _stacks._dump({one.ident})
    monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    assert _stacks._dump({one.ident}) == expected
    monkeypatch.delattr(os, "memfd_create")
    assert _stacks._dump({one.ident}) == expected


def test_a_dump_leaves_no_descriptor(park: Any, monkeypatch: pytest.MonkeyPatch):
    """The file is closed, also if the dump fails."""
    one = park(stand)
    descriptors = len(list(Path("/dev/fd").iterdir()))
    _stacks._dump({one.ident})
    monkeypatch.setattr(_stacks.faulthandler, "dump_traceback", lambda *args, **options: 1 / 0)
    monkeypatch.setattr(_stacks, "_read", _stacks._dump)
    assert _stacks.read([one.ident]) == {}
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('  File "a", line 3 in f', ("a", 3, "f")),
        ('  File "a", line ??? in f', ("a", 0, "f")),
        ("  File ???, line 3 in ???", ("???", 3, "???")),
        ('  File "C:\\new\\x41\\u0041", line 3 in f', ("C:\\new\\x41\\u0041", 3, "f")),
        ('  File "\\xe9\\u732b\\U0001f408\\x0a\\Uffffffff", line 3 in \\xe9', ("é猫🐈\n\\Uffffffff", 3, "é")),
        ('  File "a", line 3 i', None),
        ("  ...", None),
        ("  Garbage-collecting", None),
        ("  <no Python frame>", None),
        ("", None),
    ],
)
def test_a_line_of_a_dump(line: str, place: Any):
    """What is no frame is passed over, and a backslash that escapes nothing stays."""
    call = "(most recent call first)"
    text = f"Thread 0x0a {call}:\n{line}\n\nCurrent thread 0x0b [name] {call}:\n{line}\n"
    assert _stacks._parse(text, {10}) == ({10: [place]} if place else {})
    assert _stacks._parse(text, {11}) == ({11: [place]} if place else {})


def test_a_collector_that_is_off_is_left_alone(park: Any):
    """No stack is worth a collection that the process does not want."""
    one = park(stand)
    seen: list[str] = []

    def heard(phase: str, _: object) -> None:
        seen.append(phase)

    gc.collect()
    gc.callbacks.append(heard)
    gc.disable()
    try:
        assert _stacks._walk_in_collection({one.ident}) == {}
        assert not gc.isenabled()
        assert seen == []
    finally:
        gc.enable()
        gc.callbacks.remove(heard)


def test_nothing_is_read_while_another_collection_goes_on(park: Any):
    """Inside a finalizer, and so while somebody else collects, there is no stack; afterwards there is one."""
    one = park(stand)
    found: list[Any] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            found.append(_stacks._walk_in_collection({one.ident}))

    Cycle()
    callbacks = list(gc.callbacks)
    gc.collect()
    assert found == [{}]
    assert _stacks._walk_in_collection({one.ident}).keys() == {one.ident}
    assert gc.callbacks == callbacks


def test_a_collection_of_another_thread_reads_nothing(park: Any, monkeypatch: pytest.MonkeyPatch):
    """Only the beginning of a collection on the reader's own thread is used: it lasts until the reader goes on."""
    one = park(stand)

    def collect(_: int) -> None:
        begun = gc.callbacks[-1]
        begun("stop", {})
        other = threading.Thread(target=begun, args=("start", {}))
        other.start()
        other.join(PATIENCE)

    monkeypatch.setattr(gc, "collect", collect)
    assert _stacks._walk_in_collection({one.ident}) == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_strikes_inside_the_collection_comes_out_of_it(error: Any, monkeypatch: pytest.MonkeyPatch):
    """The collector would print an error of its callback and go on; a Ctrl-C has to get through."""

    def struck(_: object) -> Any:
        raise error

    monkeypatch.setattr(_stacks, "_walk", struck)
    callbacks = list(gc.callbacks)
    with pytest.raises(error):
        _stacks._walk_in_collection({threading.get_ident()})
    assert gc.callbacks == callbacks


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError])
def test_a_failure_is_no_stack(error: Any, monkeypatch: pytest.MonkeyPatch):
    """Whatever goes wrong, who asks for a stack gets none, and no error."""

    def fail(_: object) -> Any:
        raise error

    monkeypatch.setattr(_stacks, "_read", fail)
    assert _stacks.read([1]) == {}


def test_a_snapshot_reads_all_stacks_at_once(monkeypatch: pytest.MonkeyPatch):
    """However many jobs run, the threads are looked at once."""
    asked: list[set[int]] = []
    genuine = _stacks._read

    def read(wanted: set[int]) -> Any:
        asked.append(wanted)
        return genuine(wanted)

    monkeypatch.setattr(_stacks, "_read", read)
    inside, release = threading.Barrier(4), threading.Event()

    def task() -> None:
        inside.wait(PATIENCE)
        release.wait(PATIENCE)

    with Scheduler(3) as s:
        jobs = [s.submit(task) for _ in range(3)]
        inside.wait(PATIENCE)
        infos = {info.id: info for info in s.snapshot()}
        report = s.shutdown(timeout=0)
        release.set()
    assert all("in task" in (infos[job.id].stack or "") for job in jobs)
    assert all("in task" in (info.stack or "") for info in report.running)
    assert s.wait_idle(PATIENCE)
    assert s.snapshot()
    assert [len(wanted) for wanted in asked] == [3, 3]  # and never for nothing


@pytest.mark.parametrize("home", [False, True])
def test_an_overrun_is_read_on_a_teller(home: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Not on the watcher, which may run no finalizer; and what its thread does afterwards is not taken for the task."""
    readers: list[str] = []
    gate = Gate()

    def read(worker: Any) -> list[_stacks.Place]:
        readers.append(threading.current_thread().name)
        if home:
            gate.open()
            while worker.overrun:  # until the thread is out of the task
                time.sleep(0)
        return [("task.py", 1, "task")]

    monkeypatch.setattr(_inspect, "frames_of", read)
    with Scheduler(1, name="pool") as s:
        job = s.options(timeout=0.01).submit(gate)
        with pytest.raises(TimeoutError):
            job.result(PATIENCE)
        gate.open()
        assert s._runtime.wait_told(PATIENCE)
    assert readers == ["pool (telling)"]
    told = [record.getMessage() for record in caplog.records if "stands at" in record.getMessage()]
    assert len(told) == 1
    assert ("(no stack)" in told[0], "task.py" in told[0]) == (home, not home)


# The collector is made to start at the k-th object that is made after the reading began. The finalizer of what it finds
# lets the watched thread return out of all its frames, whose memory is given back, before the reading goes on.
RETURNS = """
import gc, sys, threading
from threadsched import _stacks

kind, most = sys.argv[1], int(sys.argv[2])
if "old" in sys.argv:
    _stacks._read = _stacks._walk
parked, go, back, again = [threading.Semaphore(0) for _ in range(4)]

def sink(depth):
    if depth:
        return sink(depth - 1)
    parked.release()
    go.acquire()

def trickle(depth):
    if depth:
        yield from trickle(depth - 1)
    else:
        yield sink(500)

def watched():
    while True:
        list(trickle(20)) if kind == "generators" else sink(500)
        back.release()
        again.acquire()

class Slow:
    ran = 0

    def __init__(self):
        self.me = self

    def __del__(self):
        Slow.ran += 1
        go.release()
        back.acquire()
        if kind == "threads":
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

thread = threading.Thread(target=watched, daemon=True)
thread.start()
gc.disable()
read = ran = 0
for k in range(most):
    parked.acquire()
    gc.collect()
    Slow()
    before = Slow.ran
    gc.set_threshold(gc.get_count()[0] + k)
    gc.enable()
    found = _stacks.read([thread.ident])
    gc.disable()
    ran += Slow.ran != before
    read += bool(found)
    gc.collect()
    again.release()
print(most, read, ran)
"""


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["calls", "generators", "threads"])
def test_a_thread_that_returns_while_its_stack_is_read(kind: str):
    """A finalizer that lets the watched thread go on, or another start, at whichever point of the reading: no harm."""
    done = run_script(RETURNS, args=[kind, str(MOMENTS)], timeout=25)
    rounds, read, ran = map(int, done.stdout.split())
    assert rounds == MOMENTS
    assert ran > MOMENTS // 2  # the collections did come during the reading
    assert read > MOMENTS // 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a collection no longer starts inside of a call")
def test_the_plain_walk_is_what_kills_3_11():
    """The same with the plain walk ends the process, so the test above is able to fail."""
    done = run_script(RETURNS, args=["calls", "60", "old"], timeout=25, expect=None)
    assert done.returncode < 0

"""Fixtures of all tests: seeded randomness, and the check that no test leaves a thread behind."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

from tests import support
from tests.faults import table
from tests.gates import Records
from threadsched import _stacks
from threadsched.testing import FakeClock

# How long the threads of a finished test may take to end; only a failure reaches it.
LEAK_TIMEOUT = 5.0

try:
    import hypothesis
except ModuleNotFoundError:  # the tests that need it skip themselves
    pass
else:
    # No deadline: what a thread switch costs is no property of the code under test.
    hypothesis.settings.register_profile("threadsched", deadline=None, print_blob=True)
    hypothesis.settings.register_profile("threadsched-proof", deadline=None, print_blob=True, max_examples=2_000)
    hypothesis.settings.load_profile("threadsched-proof" if support.exhaustive() else "threadsched")


def pytest_configure(config: pytest.Config) -> None:
    interval = os.environ.get("THREADSCHED_SWITCH_INTERVAL")
    if interval:
        sys.setswitchinterval(float(interval))
    # A shell that starts us in the background has us ignore Ctrl-C, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"threadsched: seed {support.SEED}, switch interval {sys.getswitchinterval():g} s, "
        f"{'exhaustive' if support.exhaustive() else 'sampled'}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    table.repeat(metafunc)


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> object:
    """The number of this run of a test that the long run repeats (see tests/faults/table.py)."""
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections.append(("threadsched seed", f"repeat with THREADSCHED_SEED={support.SEED}"))
    return report


@pytest.fixture(scope="session")
def seed() -> int:
    """The number that all random choices of this session come from."""
    return support.SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A random generator of the test's own, the same whether the test runs alone or among others."""
    return support.rng(request.node.nodeid)


@pytest.fixture(scope="session")
def proof() -> bool:
    """Whether to test every case where a sample would do otherwise."""
    return support.exhaustive()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that the test moves."""
    return FakeClock()


@pytest.fixture
def log() -> Iterator[Records]:
    """What the package logs, beside all that hear it anyway."""
    records = Records()
    logger = logging.getLogger("threadsched")
    logger.addHandler(records)
    yield records
    logger.removeHandler(records)


@pytest.fixture
def no_log() -> Iterator[None]:
    """Have the package log nothing."""
    logger = logging.getLogger("threadsched")
    logger.disabled = True
    yield
    logger.disabled = False


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """Keep what lives by now, such as all collected tests and the reports of those that ran, from the collector.

    Many tests call it, and each time it would look through a hundred thousand objects of no interest.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread alive which was not there before."""
    before = set(threading.enumerate())
    yield
    marker = request.node.get_closest_marker("leaves_threads")
    if marker is not None:
        assert marker.args or marker.kwargs.get("reason"), "leaves_threads needs a reason"
        return
    deadline = time.monotonic() + LEAK_TIMEOUT
    # Look again after each join: a thread may have started another before it ended.
    while left := new_threads(before):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            pytest.fail(describe_threads(left), pytrace=False)
        left[0].join(remaining)


def new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the living threads that are not in `before`."""
    # A thread that Python did not start can be neither joined nor told from a dead one.
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not isinstance(thread, threading._DummyThread)
    ]


def describe_threads(threads: list[threading.Thread]) -> str:
    stacks = _stacks.read(thread.ident or 0 for thread in threads)
    parts = [f"the test left {len(threads)} thread(s) alive for {LEAK_TIMEOUT:g} s after its end:"]
    for thread in threads:
        parts.append(f"\n{thread!r}")
        places = [(*place, None) for place in stacks.get(thread.ident or 0, [])]
        parts.append("".join(traceback.StackSummary.from_list(places).format()).rstrip() or "  (no stack)")
    return "\n".join(parts)

"""What an exploration replaces is put back."""

from tests.explorer import primitives
from tests.explorer.install import REPLACED, laboratory
from threadsched import Scheduler


def test_everything_is_put_back() -> None:
    """After an exploration the package, and concurrent.futures, work on real locks, threads and time again."""
    missing = object()
    before = [vars(owner).get(name, missing) for owner, name, _ in REPLACED]
    with laboratory():
        assert [vars(owner)[name] for owner, name, _ in REPLACED] == [value for _, _, value in REPLACED]
    assert [vars(owner).get(name, missing) for owner, name, _ in REPLACED] == before
    assert primitives.active is primitives.IDLE
    with Scheduler(1) as scheduler:
        assert scheduler.submit(int, "7").result(5) == 7

"""The frozen records: plain, comparable, and honest about truth."""

import dataclasses
import pickle
from typing import Any

import pytest

from threadsched import JobInfo, JobStatus, Reason, ShutdownReport, Stats

STATS = Stats(
    workers=2, idle=1, running=1, pending=3, delayed=1, ready=2, waiting=0, submitted=9, done=3, failed=1, cancelled=1,
    retries=4, lost_workers=0, replaced_workers=0,
)  # fmt: skip
INFO = JobInfo("a", "work", JobStatus.RUNNING, 5, 1, 0.0, 0.0, 1.0, None, "w_0", None)
REASON = Reason("delayed", "due in 3 s", 3.0)
REPORT = ShutdownReport(1, 0, 0, 0, ())


def test_statuses():
    """There are five statuses, and three of them are ends."""
    assert [status.name for status in JobStatus] == ["PENDING", "RUNNING", "DONE", "FAILED", "CANCELLED"]
    assert {status for status in JobStatus if status.ended} == {JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED}


@pytest.mark.parametrize("record", [STATS, INFO, REASON, REPORT], ids=lambda record: type(record).__name__)
def test_records_are_frozen_values(record: Any):
    """A record cannot be changed, has no room for more, equals its copy and survives a pickle."""
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, 0)
    assert not hasattr(record, "__dict__")
    again = pickle.loads(pickle.dumps(record))
    assert again == record
    assert hash(again) == hash(record)
    assert dataclasses.replace(record, **{field: -1}) != record


@pytest.mark.parametrize(
    ("pending", "running", "truth"), [(0, (), True), (1, (), False), (0, (INFO,), False), (2, (INFO,), False)]
)
def test_report_is_true_when_nothing_is_left(pending: int, running: tuple[JobInfo, ...], truth: bool):
    """A shutdown report is true when nothing is pending and nothing runs, whatever failed."""
    assert bool(ShutdownReport(5, 3, 2, pending, running)) is truth


def test_defaults_of_optional_fields():
    """A record of a job has no stack, and a reason no end, unless given."""
    assert INFO.stack is None
    assert Reason("queued", "due").until is None

"""Tools for testing code that schedules: a clock moved by hand, and a scheduler without threads.

Both are deterministic. :class:`FakeClock` drives a real, threaded ``Scheduler`` without real waiting;
:class:`StepScheduler` is the same core stepped by the test itself, so that even the order of events is the test's.
"""

from threadsched._fake_clock import FakeClock
from threadsched._stepped import Ran, StepScheduler

__all__ = ["FakeClock", "Ran", "StepScheduler"]

for _name in __all__:
    globals()[_name].__module__ = "threadsched.testing"
del _name

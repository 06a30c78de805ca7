"""Which pictures there are, by file name: what ``plots`` draws and ``report`` shows. No matplotlib here."""

from __future__ import annotations

PICTURES = {
    "pending-3.11.svg": "Cost of an operation by the number of pending jobs, CPython 3.11",
    "pending-3.13.svg": "Cost of an operation by the number of pending jobs, CPython 3.13",
    "crowds.svg": "Cost of a job by the number of workers and of submitting threads",
    "floor.svg": "The steps from the floor to the scheduler",
}

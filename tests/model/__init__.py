"""The scheduler once more, as plainly as a specification says it, for random programs to be compared with.

- ``words``: the vocabulary of those programs: what is submitted, what its task does, which rules there are.
- ``naive``: the jobs: lists, and a search through all of them wherever the product has a structure.
- ``doors``: the ways in and out of ``naive``: submission, a full queue, shutdown.
- ``recurring``: the schedules, which step from one grid point to the next.
- ``subject``: the same words spoken to the product.
- ``programs``: what writes programs, and cuts a failing one down.
- ``agreement`` and ``verdict``: the comparison, and what is said when it fails.

Nothing but ``subject`` uses more of ``threadsched`` than its public names.
"""

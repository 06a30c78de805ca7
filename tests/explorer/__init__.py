"""Explores interleavings: the real scheduler on simulated locks, threads and time, one schedule after another.

``kernel`` runs simulated threads one at a time and asks a strategy who is next; ``primitives`` are the locks, threads
and queues that run on it, ``loops`` is asyncio's event loop there, and ``install`` puts all that into the package for
the time of an exploration. ``strategies`` are the ways to choose, ``search`` runs schedule after schedule, shortens a
failing one and writes the line that replays it. ``seeded`` holds small programs with known faults, for the explorer's
own tests; ``stage``, ``operations``, ``forks`` and ``cases`` say what is explored of the scheduler.
"""

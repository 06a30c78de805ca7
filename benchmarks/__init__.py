"""Benchmarks: one file a question, each runs alone (``python -m benchmarks.throughput``), or all of them
(``make bench``).

``_pairs`` measures two things in alternation, ``_rows`` says what came out and writes it down, ``_command`` is the
command line that all share, ``_pools`` the peers. ``run_all`` measures everything on several interpreters,
``report`` makes the tables of the documentation from what that wrote, ``plots`` the pictures, and ``check`` compares
with the recorded baseline.

Every claim of speed is a ratio against a peer measured in the same run and in alternation with it, given as the median
of the pairs and their spread. Run them unpinned on an idle machine: on one core, or beside other work, the price of a
contended lock does not show.
"""

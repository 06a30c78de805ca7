"""Benchmarks: one file a question, each runnable by itself (``python -m benchmarks.throughput``) or all in turn
(``python -m benchmarks``).

Every figure is a ratio against a peer measured in the same process and in alternation with it, given as the median of
the pairs and their spread. Run them unpinned on an idle machine: on one core, or beside other work, the price of a
contended lock does not show.
"""

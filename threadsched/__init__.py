"""A scheduler that runs jobs on a fixed pool of threads."""

__all__ = ["__version__"]

__version__ = "0.1.0"

"""One logger, and no handler or exception class that could harm who logs."""

import logging
from collections.abc import Iterator

import pytest

from threadsched import _log


class Handler(logging.Handler):
    """Keeps what it is given, and raises the first `failures` times."""

    def __init__(self, failures: int = 0, kind: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.calls = 0
        self._failures, self._kind = failures, kind

    def emit(self, record: logging.LogRecord) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._kind("the disk is full")
        self.records.append(record)


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    """Our logger, with nothing but the test's handlers on it."""
    logger = _log.logger
    before = (logger.handlers[:], logger.propagate, logger.level)
    logger.handlers, logger.propagate = [], False
    yield logger
    logger.handlers, logger.propagate = before[0], before[1]
    logger.setLevel(before[2])


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def test_logger_is_our_own():
    """Everything goes to the logger "threadsched", never to the root."""
    assert _log.logger is logging.getLogger("threadsched")


def test_report_has_level_text_and_traceback(quiet: logging.Logger):
    """A report is one record with its level, its formatted text, and the error's traceback if there is one."""
    handler = Handler()
    quiet.addHandler(handler)
    error = ValueError("boom")
    _log.report(logging.ERROR, "job %r failed: %s", 7, "boom", error=error)
    _log.report(logging.WARNING, "careful")
    first, second = handler.records
    assert (first.levelno, first.getMessage()) == (logging.ERROR, "job 7 failed: boom")
    assert first.exc_info is not None
    assert first.exc_info[1] is error
    assert (second.levelno, second.getMessage()) == (logging.WARNING, "careful")
    assert not second.exc_info


def test_report_is_tried_again_without_the_traceback(quiet: logging.Logger):
    """If the first try fails, for the traceback may be what cannot be printed, the text alone is logged."""
    handler = Handler(failures=1)
    quiet.addHandler(handler)
    _log.report(logging.ERROR, "job %r failed", 7, error=ValueError())
    assert [record.getMessage() for record in handler.records] == ["job 7 failed"]
    assert not handler.records[0].exc_info


def test_handler_that_always_raises_is_survived(quiet: logging.Logger):
    """A handler that raises every time costs the record and nothing else."""
    handler = Handler(failures=100)
    quiet.addHandler(handler)
    _log.report(logging.ERROR, "job %r failed", 7, error=ValueError())
    assert handler.calls == 2


def test_interrupt_inside_a_handler_goes_on(quiet: logging.Logger):
    """Ctrl-C that strikes inside a handler is not swallowed."""
    quiet.addHandler(Handler(failures=1, kind=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        _log.report(logging.ERROR, "job %r failed", 7)


def test_unprintable_error_is_reported(quiet: logging.Logger):
    """The record of an error without words comes through a handler that formats its traceback."""
    lines: list[str] = []

    class Formatting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    quiet.addHandler(Formatting())
    error = Mute()
    _log.report(logging.ERROR, "it was %s", _log.describe_error(error), error=error)
    assert "it was Mute (its text cannot be had)" in lines[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (Mute(), "Mute (its text cannot be had)"),
        (Deadly(), "Deadly (its text cannot be had)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
    ids=["text", "empty", "repr", "mute", "deadly", "interrupt"],
)
def test_description_of_an_error(error: BaseException, text: str):
    """An error is described by its class and its words, whatever its __str__ does."""
    assert _log.describe_error(error) == text


def test_words_of_another_str_class_are_survived():
    """A __str__ that returns a str of a hostile subclass still gives a line."""

    class Hostile(str):
        def __bool__(self) -> bool:
            raise ValueError("neither")

        def __len__(self) -> int:
            raise ValueError("neither")

        def __format__(self, spec: str) -> str:
            raise ValueError("no format")

    class Odd(Exception):
        def __str__(self) -> str:
            return Hostile("words")

    assert "Odd" in _log.describe_error(Odd())

"""Threads of a test that act at one moment, or beside it; and a gate whose task ends as it is told to.

All waiting is bounded by PATIENCE, which only a failing test reaches.
"""

import threading
from collections.abc import Callable
from typing import Any

from tests import gates
from tests.gates import PATIENCE

__all__ = ["PATIENCE", "Background", "Gate", "in_thread", "together"]


class Gate(gates.Gate):
    """A gate behind which lies a value or an error, and which counts how often it was passed."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        super().__init__()
        self.value = value
        self.error = error
        self.runs = 0

    def __call__(self, value: Any = None) -> Any:
        self.runs += 1
        super().__call__()
        if self.error is not None:
            raise self.error
        return self.value


def together(*actions: Callable[[], object]) -> list[Any]:
    """Call each action on a thread of its own, all at one moment; return what they returned, in order.

    What one of them raises is raised here, once all have ended.
    """
    barrier = threading.Barrier(len(actions))
    answers: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def act(index: int) -> None:
        try:
            barrier.wait(PATIENCE)
            answers[index] = actions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(index,), daemon=True) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
        assert not thread.is_alive(), "a thread did not come back"
    if errors:
        raise errors[0]
    return answers


def in_thread(action: Callable[[], object]) -> Any:
    """Call the action on another thread and return what it returned; fail if it does not come back."""
    return together(action)[0]


class Background:
    """An action on a thread of its own, to be joined later."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._action = action
        self._thread = threading.Thread(target=self._act, daemon=True)
        self._thread.start()

    def _act(self) -> None:
        try:
            self.answer = self._action()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the action did not come back"
        if self.error is not None:
            raise self.error
        return self.answer

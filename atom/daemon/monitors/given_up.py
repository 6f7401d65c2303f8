"""Monitors that fail are given up: they tell of the training, and never end it."""

import threading
from collections.abc import Callable
from typing import Any

from atom.base.events import EventSink


class GivenUp:
    """An event sink that tells `sink`, until that fails. Thread-safe if `sink` is."""

    def __init__(self, sink: EventSink, name: str, note: Callable[[str], None]) -> None:
        """`note` hears, once, that nothing more comes for `name`."""
        self._sink, self._name, self._note = sink, name, note
        self._lock = threading.Lock()
        self._has_failed = False

    def emit(self, kind: str, **fields: Any) -> None:
        self.attempt(lambda: self._sink.emit(kind, **fields))

    def attempt(self, act: Callable[[], object]) -> None:
        """Something else that is done with the sink, such as its end."""
        if self._has_failed:
            return
        try:
            act()
        except Exception as problem:  # noqa: BLE001 - a library's faults are not the training's
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            what = getattr(problem, "strerror", None) or problem
            self._note(f"nothing more for {self._name} until the next start: {what}")

"""Events that a test reads."""

from typing import Any


class EventList:
    """The in-memory twin of `atom.base.events.EventLog`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.append({"event": kind, **fields})

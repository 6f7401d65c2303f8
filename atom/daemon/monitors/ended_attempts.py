"""The last attempts at a round that this peer coordinated in vain, for others to see why."""

from collections import deque
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.records.lease_body import MAX_ENDED_ATTEMPTS


class EndedAttempts:
    """An event sink. Written by the loop's thread, read by others."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, Reason]] = deque(maxlen=MAX_ENDED_ATTEMPTS)

    def emit(self, kind: str, **fields: Any) -> None:
        """An attempt that another peer's overtook is nobody's trouble."""
        if kind == "attempt-ended" and fields["reason"] != Reason.SUPERSEDED:
            self._last.append((fields["round"], Reason(fields["reason"])))

    @property
    def last(self) -> tuple[tuple[int, Reason], ...]:
        """The oldest first."""
        return tuple(self._last)

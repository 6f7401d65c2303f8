"""The last attempts at a round that this peer coordinated in vain, for others to see why."""

from collections import deque
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.records.lease import MAX_ENDED_ATTEMPTS, EndedAttempt


class EndedAttempts:
    """An event sink. Written by the loop's thread, read by others."""

    def __init__(self) -> None:
        self._last: deque[EndedAttempt] = deque(maxlen=MAX_ENDED_ATTEMPTS)

    def emit(self, kind: str, **fields: Any) -> None:
        """An attempt that another peer's overtook is nobody's trouble."""
        if kind == "attempt-ended" and fields["reason"] != Reason.SUPERSEDED:
            self._last.append(EndedAttempt(fields["round"], Reason(fields["reason"])))

    @property
    def last(self) -> tuple[EndedAttempt, ...]:
        """The oldest first."""
        return tuple(self._last)

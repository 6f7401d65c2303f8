"""Events with which a peer's parts report to its main loop, through one queue.

Each part posts on its own thread and never waits for the main loop, which handles one event after
the other.
"""

import queue
from dataclasses import dataclass


@dataclass(frozen=True)
class Changed:
    """Change of head, phase or counted sequences, after which our lease should be renewed soon."""


@dataclass(frozen=True)
class Failed:
    """Failure of a part, which cannot go on. The state on disk stays valid."""

    failure: BaseException


@dataclass(frozen=True)
class Settled:
    """End of a leaving peer's work: it has no uncommitted work left, and begins no pass."""


@dataclass(frozen=True)
class Said:
    """Line of a part for the owner."""

    line: str


@dataclass(frozen=True)
class LeasesRead:
    """The other peers' leases were read."""


Event = Changed | Failed | Settled | Said | LeasesRead


class PeerEvents(queue.SimpleQueue[Event]):
    """Queue of events for the main loop. Its methods are thread-safe."""

    def change(self) -> None:
        """Post that our lease should be renewed."""
        self.put(Changed())

    def say(self, line: str) -> None:
        """Post a line for the owner."""
        self.put(Said(line))

    def fail(self, failure: BaseException) -> None:
        """Post a failure, which ends the peer. The state on disk stays valid."""
        self.put(Failed(failure))

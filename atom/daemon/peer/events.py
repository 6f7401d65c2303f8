"""Events with which a peer's parts report to its main loop, through one queue.

Each part posts on its own thread and never waits for the main loop, which handles one event after
the other.
"""

import queue
from collections.abc import Mapping
from dataclasses import dataclass

from atom.swarm.records.lease import Lease


@dataclass(frozen=True)
class Changed:
    """Head, phase or counted sequences have changed, so our lease should be renewed soon."""


@dataclass(frozen=True)
class Failed:
    """A part cannot go on. The state on disk stays valid."""

    failure: BaseException


@dataclass(frozen=True)
class Settled:
    """A leaving peer has no uncommitted work left, and begins no pass."""


@dataclass(frozen=True)
class Said:
    """A part has a line for the owner."""

    line: str


@dataclass(frozen=True)
class LeasesRead:
    """The directory was read."""

    leases: Mapping[str, Lease]
    """Leases of all peers that run our protocol version, by peer id."""


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

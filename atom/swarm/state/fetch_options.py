"""How a fetch behaves, and what it brings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.state.manifest import Manifest

Progress = Callable[[int, int], None]
"""Bytes in place, bytes in all; called from several threads."""


@dataclass(frozen=True)
class FetchOptions:
    """How a fetch behaves."""

    max_bytes: int
    """A manifest that promises more is refused."""
    expected_digest: bytes | None = None
    """State digest that the manifest must have; None: what most donors agree on."""
    max_donors: int = 8
    """Asked at the same time; further ones replace those that fail."""
    silence_s: float = 5.0
    """A frozen donor holds up a peer that wants nothing else for this long; `tries` times so long
    if it gave a piece before."""
    manifest_s: float = 120.0
    """A donor may first have to hash its snapshot; it says so once a second."""
    piece_s: float = 300.0
    """A donor that needs longer for one piece is of no use, however steadily it trickles."""
    pace: Pace | None = None
    """The least that must come, from all donors together; None: each by itself is enough."""
    tries: int = 3
    """Failures of one donor in a row, without a piece in between, before it is given up."""
    pause_s: float = 0.5
    """Before a donor that failed is tried again; doubles each time."""


@dataclass(frozen=True)
class Fetched:
    """A complete, checked blob."""

    manifest: Manifest
    arenas: dict[str, Tensor]
    agreeing: int
    """Donors whose manifest had the same digest, of those asked before fetching began."""
    reused_bytes: int
    """Found in place and not fetched."""
    given_bytes: Mapping[str, int]
    """Donor → what came from it, copies of a piece included."""


@dataclass(frozen=True)
class Watch:
    """Who hears of a fetch while it runs. Called from several threads."""

    on_progress: Progress = lambda done, total: None
    events: EventSink | None = None
    on_lie: Callable[[str, Reason], None] = lambda donor, reason: None
    """A donor said what does not hold."""

    def dropped(self, donor: str, blob: str, reason: Reason, detail: str) -> None:
        if self.events is not None:
            self.events.emit(
                "donor-dropped", peer_id=donor, blob=blob, reason=reason.value, detail=detail[:200]
            )

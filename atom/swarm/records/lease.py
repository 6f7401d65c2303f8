"""What a peer publishes on the DHT of itself: its lease. Signed, bounded, expiring."""

from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3

from atom.base.reasons import Reason
from atom.swarm.chain.branches import Branch
from atom.swarm.records.link import Link
from atom.swarm.records.reachability import Reached


class PeerState(StrEnum):
    """A daemon's lifecycle as others see it."""

    STARTING = "starting"
    SYNCING = "syncing"
    ACCUMULATING = "accumulating"
    REDUCING = "reducing"
    STEPPING = "stepping"
    PAUSED = "paused"
    LEAVING = "leaving"
    LEFT = "left"


LEASE_SECONDS = 8.0
RENEW_SECONDS = 2.0
CLOCKS_APART_SECONDS = 3.0
"""Between two clocks on the wall: hivemind refuses more (MAX_DHT_TIME_DISCREPANCY_SECONDS)."""


def short_name(peer_id: str) -> bytes:
    """Eight bytes that name a peer well enough for a hint."""
    return blake3(peer_id.encode()).digest(length=8)


@dataclass(frozen=True)
class Lease:
    """A peer's heartbeat. A hint: it may trigger a round, it never votes in one."""

    peer_id: str
    incarnation: bytes
    serial: int
    """Counts renewals of this incarnation; an older one is a replay."""
    issued_at: float
    """Publisher's Unix time (only for display: no safety rule reads a wall clock)."""
    state: PeerState
    head: bytes
    round: int
    work: int
    """Committed sequences on the chain of `head`."""
    sequences: int
    """Sequences accumulated for the next round (the mini-batch count of the paper)."""
    rounds_joined: int
    """Committed rounds this process had a part in."""
    sequences_committed: int
    """Sequences of this process in committed rounds."""
    sequences_per_s: float
    tokens_per_s: float
    pass_seconds: float
    """Duration of one accumulation pass: how long a freeze may take."""
    loss: float | None
    """Mean loss of the last committed round; of text, nats per token."""
    state_digest: bytes
    addresses: tuple[str, ...]
    """Where the direct transport listens: "host:port", at most 8."""
    reached: Reached = Reached.UNKNOWN
    """Whether others can dial it, as far as it knows."""
    relays: bool = False
    """Whether it joins two peers that cannot be dialled."""
    lines: tuple[str, ...] = ()
    """Relaying peers that can call it because it keeps a line to them: at most 4."""
    links: tuple[tuple[bytes, Link], ...] = ()
    """What it measured of its ways to others, by their short names: at most 16."""
    ended_attempts: tuple[tuple[int, Reason], ...] = ()
    """The last attempts at a round that it coordinated in vain, and why: at most 4."""
    branches: tuple[Branch, ...] = ()
    """The newest rounds on its chain that no quorum decided (fork choice): at most 8."""
    branches_before: int = 0
    """So many older ones are left out."""
    void_passes: int = 0
    """Its last passes in a row that counted for nothing."""
    void_cause: str = ""
    """Of the last of them."""

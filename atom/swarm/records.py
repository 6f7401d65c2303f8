"""What peers publish on the DHT: leases and the run manifest. Signed, bounded, expiring."""

from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3

from atom.base.reasons import Reason
from atom.swarm.branches import Branch
from atom.swarm.reachability import Reached
from atom.swarm.ring_order import Link


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
    """Mean loss of the last committed round, nats per token."""
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


@dataclass(frozen=True)
class Manifest:
    """What a run is: its file, the program it computes, the versions that decide both.

    Signed by the owner (the peer that founded the run); its digest is part of genesis.
    """

    run: str
    owner: str
    """Peer id of the founder; verifies the manifest and the genesis voter."""
    run_file: str
    """The run file's normalised TOML or JSON text: everything the swarm agrees on."""
    graph_hash: str
    program_hash: str
    """sha256 hex of the source generated at the canonical cut (one sub-model per layer)."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) pairs that change the graph."""
    data_digest: str
    """Digest of the tokenized training set, or "" if peers may hold different data."""
    initial_state_digest: bytes
    founder_incarnation: bytes
    created_at: float

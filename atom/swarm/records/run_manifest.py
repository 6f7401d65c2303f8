"""What an owner publishes on the DHT of a run: its manifest. Signed, bounded, for good."""

from dataclasses import dataclass, field


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
    data_amount: tuple[int, int, int] | None = field(default=None, metadata={"absent": None})
    """Tokens and samples to train on, and what is held back, for people: the digest decides. None:
    its founder's version did not say."""

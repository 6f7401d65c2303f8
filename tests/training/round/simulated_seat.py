"""Seat of a simulated process, with its key and the chain on its disk: both outlive the process."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulated_ring import Result, Work

from atom.swarm.chain.commit import Commit, Head, canonical_digest
from atom.swarm.identity import Identity

if TYPE_CHECKING:
    from simulated_peer import Process


@lru_cache(maxsize=256)
def identity(number: int) -> Identity:
    """Return the key of a number: equal numbers have equal keys."""
    seed = blake3(f"identity {number}".encode()).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


@dataclass(frozen=True)
class Chain:
    """A replica's history: heads and state digests since genesis, and the work they contain."""

    heads: tuple[Head, ...]
    states: tuple[bytes, ...]
    commits: tuple[Commit, ...] = ()
    works: frozenset[Work] = frozenset()

    @property
    def head(self) -> Head:
        return self.heads[-1]

    @property
    def state(self) -> bytes:
        return self.states[-1]

    def forks(self, other: "Chain") -> tuple[Head, ...]:
        """Return the heads of another chain from which branches depart that this chain lacks."""
        ours = {head.digest for head in self.heads}
        steps = zip(other.commits, other.heads, other.heads[1:], strict=False)
        return tuple(
            head for commit, head, after in steps if commit.survivors and after.digest not in ours
        )

    def rivals(self, other: "Chain") -> bool:
        """Return True if the other chain replaces a round that a quorum decided here."""
        pairs = zip(self.commits, other.commits, strict=False)
        ours = next((a for a, b in pairs if a.value != b.value), None)
        return ours is not None and not ours.survivors

    def after(self, commit: Commit, head: Head, result: Result) -> "Chain":
        state = canonical_digest("state", [self.state, result.digest, result.norm])
        assert not self.works & result.works, "work counted twice"
        return Chain(
            (*self.heads, head),
            (*self.states, state),
            (*self.commits, commit),
            self.works | result.works,
        )


@dataclass
class Seat:
    """Name, key, habits and disk of a peer: they outlive its processes."""

    name: str
    identity: Identity
    disk: Chain
    clock_offset_s: float = 0.0
    """Time of this machine's clock when the world's is at 0."""
    pass_sequences: int = 4
    pass_seconds: float = 1.0
    step_seconds: float = 0.2
    hidden: bool = False
    """True if its lease says that no peer can dial it."""
    process: "Process | None" = None
    retired: bool = False
    """True once the peer left with a goodbye."""
    backups: list[Chain] = field(default_factory=list)
    """Earlier contents of the disk, oldest first."""

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    def write(self, chain: Chain) -> None:
        """The disk holds `chain` from now on, unless a preferred one is there."""
        if not self.disk.head.prefers(chain.head):
            self.backups = [*self.backups[-9:], self.disk]
            self.disk = chain

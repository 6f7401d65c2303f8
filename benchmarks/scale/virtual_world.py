"""Many peers in one process: the daemon's decision code over a virtual clock.

Machine, book of leases, view, pacing and record encoding are the daemon's. Time, network,
directory and exchange are simulated: a message takes 5 to 50 ms, a lease 20 to 80 ms until other
peers can read it, a reading as long. The DHT's traffic is counted from the sizes of real records
and the rules of `atom/swarm/dht/node.py`: a writer sends a record to five nodes; a reader asks
eight nodes, and the five that hold the key answer with all records under it.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from atom.swarm.chain import commit
from atom.swarm.chain.commit import MAX_VOTERS, ChainRules, Voter, genesis
from atom.swarm.chain.messages import Message, encode
from atom.swarm.identity import Identity, verify
from atom.swarm.records.lease import Lease
from atom.training.round.round_state import RoundTerms
from benchmarks.scale.virtual_peer import Peer, Trigger

_verified = lru_cache(maxsize=65536)(verify)
commit.verify = _verified  # a peer checks nine votes a round; cached for all peers


@dataclass
class World:
    """All peers, and the network between them."""

    peers: int
    sequences_each: int
    seed: int
    now: float = 0.0
    cpu_s: float = 0.0
    dht_bytes: int = 0
    stepping: set[str] = field(default_factory=set)
    """Peers whose head changed at this moment."""
    told_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes sent to peers, by sender."""
    rounds: dict[bytes, Trigger] = field(default_factory=dict)
    leases: dict[str, tuple[Lease, int]] = field(default_factory=dict)
    """Latest lease of each peer, and the bytes of its record."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._sizes: dict[int, tuple[Message, int]] = {}
        self.rings: dict[object, list[Peer]] = {}
        identities = [Identity.create() for _ in range(self.peers)]
        voters = [Voter(i.peer_id, self.dice.randbytes(16)) for i in identities]
        terms = RoundTerms(self.peers * self.sequences_each)
        trusted = frozenset(voter.peer_id for voter in voters)
        rules = ChainRules(global_batch=terms.global_batch, trusted=trusted)
        first = replace(
            genesis(b"m" * 32, b"s" * 32, voters[0], rules),
            voters=tuple(sorted(voters[:MAX_VOTERS])),
        )
        self.owner = identities[0].peer_id
        self.all = {
            voter.peer_id: Peer(self, identity, voter, first, terms)
            for identity, voter in zip(identities, voters, strict=True)
        }

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act))

    def run_rounds(self, rounds: int) -> None:
        """Run until each peer has committed so many rounds."""
        behind = {p for p, peer in self.all.items() if peer.machine.head.round < rounds}
        while behind:
            self.now, _, act = heapq.heappop(self._due)
            act()
            behind -= {p for p in self.stepping if self.all[p].machine.head.round >= rounds}
            self.stepping.clear()

    def round_of(self, head: bytes) -> Trigger:
        return self.rounds.setdefault(head, Trigger())

    def has_counted(self, head: bytes, sequences: int) -> None:
        """Note that a pass has ended, and whether the batch is complete."""
        this = self.round_of(head)
        this.sequences += sequences
        if this.reached is None and this.sequences >= self.peers * self.sequences_each:
            this.reached = self.now

    def size(self, message: Message) -> int:
        known = self._sizes.get(id(message))
        if known is None:
            known = self._sizes[id(message)] = message, len(encode(message))
        return known[1]

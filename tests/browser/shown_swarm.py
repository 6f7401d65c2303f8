"""A swarm of three that goes on when it is told to."""

from dataclasses import replace

from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import Ledger, Round, Share
from atom.swarm.records.lease import PeerState
from atom.swarm.records.view import SwarmView
from tests.swarm.swarm_samples import a_lease

_PEERS = ("12D3KooWann", "12D3KooWbob", "12D3KooWeve")
_NOW = a_lease().issued_at + 0.4


class ShownSwarm:
    """Swarm that a `SwarmFeed` shows."""

    def __init__(self) -> None:
        self.note = ""
        states = (PeerState.ACCUMULATING, PeerState.SYNCING, PeerState.LEFT)
        peers = tuple(
            a_lease(peer, state=state, round=7, sequences_per_s=1234.5, tokens_per_s=98765.4)
            for peer, state in zip(_PEERS, states, strict=True)
        )
        self.seen = SwarmView(
            "shakespeare", 7, 4096, 1234, 2.5, "cd" * 32, 98765.4, peers, _NOW, _PEERS[0]
        )
        self.ledger = Ledger(Head(b"h" * 32, 0, 0, 0, (), ()))
        for _ in range(7):
            self._append()

    async def view(self) -> SwarmView:
        return self.seen

    async def read(self) -> None: ...

    def commit(self) -> None:
        """One round."""
        self.seen = replace(self.seen, round=self.seen.round + 1)
        self._append()

    def _append(self, rounds_later: int = 1) -> None:
        number = self.ledger.head.round + rounds_later
        head = Head(b"h" * 32, number, 4096 * number, 0, (), ())
        new = Round(number, 5.0 / number, 4096, 3, int(number == 5), 2 if number == 4 else 0)
        shares = {
            peer: Share(4096 * number // 2**place, number, 1, number)
            for place, peer in enumerate(_PEERS, 1)
        }
        self.ledger = Ledger(head, (*self.ledger.rounds, new), shares)

"""A swarm of three that goes on when it is told to."""

from dataclasses import replace

from atom.swarm.chain import Head
from atom.swarm.ledger import Ledger, Round, Share
from atom.swarm.view import PeerView, SwarmView, VoidAttempt

HOSTILE = "<img src=x onerror=harmed=1><script>harmed=1</script>"
_PEERS = ("12D3KooWann", "12D3KooWbob", "12D3KooWeve")


class ShownSwarm:
    """What a `SwarmFeed` looks at, and the chain that it reads."""

    def __init__(self, run: str = "shakespeare") -> None:
        self.note = ""
        states = ("accumulating", "syncing", "left")
        peers = tuple(
            PeerView(peer, state, 7, 5, 1234.5, 98765.4, "ab" * 32, 0.4)
            for peer, state in zip(_PEERS, states, strict=True)
        )
        void = (VoidAttempt(8, _PEERS[1], "ring-broken"), VoidAttempt(6, _PEERS[0], "no-quorum"))
        self.view = SwarmView(run, 7, 4096, 1234, 2.5, "cd" * 32, 98765.4, peers, _PEERS[0], void)
        self.ledger = Ledger(Head(b"h" * 32, 0, 0, 0, (), ()))
        for _ in range(7):
            self._append()

    async def look(self) -> SwarmView:
        return self.view

    async def read(self) -> None: ...

    def commit(self) -> None:
        """One round."""
        self.view = replace(self.view, round=self.view.round + 1)
        self._append()

    def _append(self) -> None:
        number = self.ledger.head.round + 1
        head = Head(b"h" * 32, number, 4096 * number, 0, (), ())
        new = Round(number, 5.0 / number, 4096, 3, int(number == 5), 2 if number == 4 else 0)
        shares = {
            peer: Share(4096 * number // 2**place, number, 1, number)
            for place, peer in enumerate(_PEERS, 1)
        }
        self.ledger = Ledger(head, (*self.ledger.rounds, new), shares)

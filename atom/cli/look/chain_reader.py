"""Updates of an onlooker's ledger from the chains that peers serve, verified as peers verify them.

A lease costs nothing and can claim any round. Many leases with false claims must not keep the
onlooker from the peers that have the chain. So up to half of the peers that are asked are known
ones: contributors to the verified part of the chain, and the first voters. Peers that did
not prove their last claim are asked later than others.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from atom.base.errors import PeerRefused, Reason
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import Ask, Ledger, pages_beyond
from atom.swarm.records.lease import Lease, claims_better, preferred
from atom.swarm.state.fetch import refusal_of

DONORS = 4
"""Most peers that are asked, one after the other, each time the chain is read."""

_WORDS = {
    Reason.NOT_ON_THE_LIST: "this peer answers only peers on the owner's list",
    Reason.UNREACHABLE: "this peer is unreachable from this machine",
}

FetchChain = Callable[[Lease], AbstractContextManager[Ask]]
"""Function that opens a connection to the peer of a lease. Raises: PeerRefused, OSError."""
Progress = Callable[[int, int], None]
"""Function that gets the last round verified so far, and the round that the peer claims."""


class LedgerReader:
    """Ledger of a run, read from its peers. One thread at a time may call `read`."""

    def __init__(self, genesis: Head, fetch: FetchChain) -> None:
        self.ledger = Ledger(genesis)
        """Rounds and contributions verified so far."""
        self.problem = ""
        """Reason why the ledger is not newer; empty if no peer claims a better chain."""
        self.shut_out = False
        """True if the peer that was asked last answers only listed peers."""
        self.on_progress: Progress = lambda done, total: None
        self._genesis = genesis
        self._fetch = fetch
        self._in_vain = Counter[str]()
        """Failed requests in a row, by peer id."""

    def read(self, leases: Iterable[Lease]) -> Ledger:
        """Ask the peers that claim a better chain until one proves its claim.

        This may take seconds, or minutes for a long chain. It sets `problem` and `shut_out`.

        Args:
            leases: Current leases of the run.

        Returns:
            The ledger, updated as far as chains were verified.
        """
        self.problem, self.shut_out = "", False
        by_peer = {lease.peer_id: lease for lease in leases}
        for gone in self._in_vain.keys() - by_peer.keys():
            del self._in_vain[gone]
        for lease in self._donors(by_peer.values())[:DONORS]:
            self._in_vain[lease.peer_id] += 1
            try:
                found = self._found(lease)
            except (PeerRefused, OSError) as problem:
                reason = refusal_of(problem).reason
                words = _WORDS.get(reason, f"refused with {reason.value}")
                self.problem = f"…{lease.peer_id[-6:]}: {words}"
                self.shut_out = reason is Reason.NOT_ON_THE_LIST
            else:
                del self._in_vain[lease.peer_id]
                if found.head.prefers(self.ledger.head):
                    self.ledger = found
                self.problem, self.shut_out = "", False
                break
        return self.ledger

    def _donors(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases that claim a better head than ours, in the order in which to ask.

        Up to `DONORS // 2` known peers come first, even if they have failed. The others follow:
        fewest failures first, then known peers first, then the best claim first.
        """
        ours = self.ledger.head
        claiming = preferred([lease for lease in leases if claims_better(lease, ours)], ours)
        known = {*self.ledger.shares, *(voter.peer_id for voter in self._genesis.voters)}
        ranked = sorted(
            claiming, key=lambda each: (self._in_vain[each.peer_id], each.peer_id not in known)
        )
        first = [each for each in ranked if each.peer_id in known][: DONORS // 2]
        names = {each.peer_id for each in first}
        return first + [each for each in ranked if each.peer_id not in names]

    def _found(self, lease: Lease) -> Ledger:
        """Return the ledger of the chain that a peer proves.

        Pages that continue our own ledger stay in it if a later page fails.

        Raises:
            PeerRefused: The peer refused, its chain is invalid, or it does not prove its claim.
            OSError: The connection failed.
        """
        ledger = Ledger(self._genesis)
        branches = len(self.ledger.head.branches)
        heads = [self._genesis, self.ledger.head] if self.ledger.rounds else [self._genesis]
        with self._fetch(lease) as ask:
            for along, page in pages_beyond(heads, ask, claimed_round=lease.round):
                is_ours = along[0] == self.ledger.head
                ledger = (self.ledger if is_ours else ledger).after(along, page)
                # A single former member can make an endless branch: keep a branch only as a whole.
                if is_ours and len(ledger.head.branches) <= branches:
                    self.ledger = ledger
                self.on_progress(ledger.head.round, max(lease.round, ledger.head.round))
        if claims_better(lease, ledger.head):
            raise PeerRefused(Reason.WRONG_HEAD, "the chain does not lead to the claimed head")
        return ledger

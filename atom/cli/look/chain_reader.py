"""Keeps a ledger up to date from what peers serve: an onlooker's chain, checked like a peer's.

A lease is free, and claims what it likes: a crowd of them, with claims beyond all others, must not
keep the onlooker from those who have the chain. So half of the questions go to those who gave
something to it, as far as it was checked; and who was asked in vain is asked later than others.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.events import EventFan
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import Ask, Ledger, pages_beyond
from atom.swarm.dial_rules import dialled_classes
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, Reached, claims_better, preferred
from atom.swarm.records.manifest import Manifest, manifest_digest, seen_from_outside
from atom.swarm.state.fetch import UNCHECKED_PACE, asking, refusal_of
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

DONORS = 4
"""Asked at most, one after the other, each time the chain is read."""

FetchChain = Callable[[Lease], AbstractContextManager[Ask]]
"""Asks the lease's owner. Raises: PeerRefused, OSError."""
Progress = Callable[[int, int], None]
"""The round that the chain is checked up to, and the one that is claimed."""


class LedgerReader:
    """`read` belongs to one thread at a time, and may take seconds."""

    def __init__(self, genesis: Head, fetch: FetchChain) -> None:
        self.ledger = Ledger(genesis)
        """What was checked until now."""
        self.problem = ""
        """Why the ledger is not newer; empty: nobody claims to know better."""
        self.shut_out = False
        """Whether who was asked last said that only listed peers are answered."""
        self.on_progress: Progress = lambda done, total: None
        self._genesis = genesis
        self._fetch = fetch
        self._in_vain = Counter[str]()
        """How often in a row each donor gave nothing."""

    def read(self, leases: Iterable[Lease]) -> Ledger:
        """Follows the best chain that the peers claim and prove. The newest ledger."""
        self.problem, self.shut_out = "", False
        there = {lease.peer_id: lease for lease in leases}
        for gone in self._in_vain.keys() - there.keys():
            del self._in_vain[gone]
        for lease in self._donors(there.values())[:DONORS]:
            self._in_vain[lease.peer_id] += 1
            try:
                found = self._found(lease)
            except (PeerRefused, OSError) as problem:
                reason = refusal_of(problem).reason
                self.problem = f"…{lease.peer_id[-6:]}: {_in_words(reason)}"
                self.shut_out = reason is Reason.NOT_ON_THE_LIST
            else:
                del self._in_vain[lease.peer_id]
                if found.head.prefers(self.ledger.head):
                    self.ledger = found
                self.problem, self.shut_out = "", False
                break
        return self.ledger

    def _donors(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those whose heads would be preferred to ours, of equals the best claim first; before all,
        some that gave to the chain, asked in vain or not."""
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
        """What this donor proves. Raises: PeerRefused; OSError; what was checked stays."""
        ledger = Ledger(self._genesis)
        branches = len(self.ledger.head.branches)
        heads = [self._genesis, self.ledger.head] if self.ledger.rounds else [self._genesis]
        with self._fetch(lease) as ask:
            for along, page in pages_beyond(heads, ask, claimed_round=lease.round):
                is_ours = along[0] == self.ledger.head
                ledger = (self.ledger if is_ours else ledger).after(along, page)
                # One former member can make a branch without end: only a whole one is kept.
                if is_ours and len(ledger.head.branches) <= branches:
                    self.ledger = ledger
                self.on_progress(ledger.head.round, max(lease.round, ledger.head.round))
        if claims_better(lease, ledger.head):
            raise PeerRefused(Reason.WRONG_HEAD, "the chain does not lead to the head claimed")
        return ledger


def _in_words(reason: Reason) -> str:
    if reason is Reason.NOT_ON_THE_LIST:
        return "it answers only the peers that the run's owner has listed"
    if reason is Reason.UNREACHABLE:
        return "it cannot be reached from here"
    return f"refused with {reason.value}"


class ChainFetcher:
    """A `FetchChain` over the transport, as a stranger who only looks: under a key made for the
    occasion. `close` it from another thread."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity | None = None,
        entrances: Sequence[str] = (),
    ) -> None:
        """Args:
        manifest: Manifest of the run.
        identity: A listed peer of the run, if the run answers listed peers only.
        entrances: Multiaddrs by which the run was entered.
        """
        self._transport = Transport(
            Local(
                identity or Identity.create(),
                manifest_digest(manifest),
                os.urandom(16),
                listed=seen_from_outside(manifest),
            ),
            None,
            EventFan(),
            dialled=partial(dialled_classes, (), entrances),
        )
        self._stop = threading.Event()

    def __call__(self, lease: Lease) -> AbstractContextManager[Ask]:
        return asking(self._transport, lease.peer_id, UNCHECKED_PACE, self._stop)

    def know(self, leases: Mapping[str, Lease]) -> None:
        """Where everybody is: who cannot be dialled is reached through another. Before a call."""
        for peer_id, lease in leases.items():
            self._transport.set_addresses(peer_id, lease.addresses, lease.reached is Reached.NO)

    def close(self) -> None:
        """Ends a fetch under way."""
        self._stop.set()
        self._transport.close()

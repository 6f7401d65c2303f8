"""Which paused peers nobody waits for any more. Pure.

Whoever counts on the share of a peer that stands still waits for it before every further pass. But
a swarm is resumed one peer after the other: the first would see nobody but paused ones, and make a
round alone. So who is paused counts on for as long as one that fell silent does: the time of a
lease, on our own clock, and only while we work ourselves and look on: nobody knows what happened
while our machine slept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from atom.swarm.records.lease import LEASE_SECONDS, Lease, PeerState

COUNTS_ON_S = LEASE_SECONDS

_IN_A_ROUND = frozenset({PeerState.REDUCING, PeerState.STEPPING, PeerState.SYNCING})
"""A lease that says one of these does not say whether its peer is paused."""


@dataclass(frozen=True)
class PausedPeers:
    """What readings of the leases have shown so far."""

    since: Mapping[str, float] = field(default_factory=dict)
    """Peer id → when it was first seen paused (seconds, our clock), while we worked."""

    def after(self, leases: Mapping[str, Lease], working: bool, now: float) -> "PausedPeers":
        """The same after one more reading, of fresh `leases`. `working`: are we ourselves,
        and have we looked on since the last one?"""
        if not working:
            return PausedPeers()
        paused = [peer for peer, lease in leases.items() if _is_paused(lease, peer in self.since)]
        return PausedPeers({peer: self.since.get(peer, now) for peer in paused})

    def away(self, now: float) -> frozenset[str]:
        """Peers that have been paused for so long that their share is for others to do."""
        long_ago = now - COUNTS_ON_S
        return frozenset([peer for peer, since in self.since.items() if since <= long_ago])


def _is_paused(lease: Lease, was_before: bool) -> bool:
    if lease.state in _IN_A_ROUND:
        return was_before
    return lease.state is PeerState.PAUSED

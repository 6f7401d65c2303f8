"""How far the swarm is toward the global batch: reported counts only, nothing extrapolated."""

from collections.abc import Iterable

from atom.swarm.records.lease import Lease


def accumulated(leases: Iterable[Lease], head: bytes) -> int:
    """Sequences reported by these (fresh) leases for the round that follows `head`.

    Work done on another head can never enter this round, so it does not count. One lease per
    peer is the caller's promise.
    """
    return sum(lease.sequences for lease in leases if lease.head == head)

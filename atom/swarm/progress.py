"""How far the swarm is toward the global batch: reported counts only, nothing extrapolated."""

from collections.abc import Iterable

from atom.swarm.records import Lease


def accumulated(leases: Iterable[Lease], head: bytes) -> int:
    """Sequences reported by these (fresh) leases for the round that follows `head`.

    Work done on another head can never enter this round, so it does not count. One lease per
    peer is the caller's promise.
    """
    return sum(lease.sequences for lease in leases if lease.head == head)


def is_due(leases: Iterable[Lease], head: bytes, global_batch_sequences: int) -> bool:
    """Whether a round should be attempted. A hint: the frozen counts decide in the round itself."""
    return accumulated(leases, head) >= global_batch_sequences > 0

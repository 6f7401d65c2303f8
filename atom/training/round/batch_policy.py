"""When a round is due, and how much of it is one peer's own. Pure.

Everything that asks goes through here: the election of a coordinator, the coordinator when the
promises are in, the worker before a pass, and the reader of leases. The first and the last go by
leases, which are hints; a round is decided by the promises.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class GlobalBatch:
    """A round is due when the sum of all counts reaches `sequences`."""

    sequences: int

    def is_due(self, sequences: int) -> bool:
        return sequences >= self.sequences

    def missing(self, sequences: int) -> int:
        """How many more are of use to a round that has so many."""
        return max(self.sequences - sequences, 0)

    def share(self, peers: int) -> int:
        """What one of so many peers trains before it looks at the others' counts."""
        return -(-self.sequences // max(peers, 1))

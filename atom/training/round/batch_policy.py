"""When a round is due, and how much of it is one peer's own. Pure.

Everything that asks goes through one policy: the election of a coordinator, the coordinator when
the promises are in, the worker before a pass, and the reader of leases. All peers of a run use the
same policy. It may be wrong about others (leases are hints); a round is decided by the promises.
"""

from dataclasses import dataclass
from typing import Protocol


class BatchPolicy(Protocol):
    """Frozen and without side effects. Counts are in sequences."""

    def is_due(self, sequences: int, elapsed_s: float) -> bool:
        """Whether a round may be made of this sum of all counts, `elapsed_s` after the last one by
        the clock of the peer that asks."""

    def missing(self, sequences: int) -> int:
        """How many more sequences are of use to a round that has so many; 0: none."""

    def share(self, peers: int) -> int:
        """What one of so many peers trains before it looks at the others' counts."""


@dataclass(frozen=True)
class GlobalBatch:
    """A round is due when the counts reach `sequences`."""

    sequences: int

    def is_due(self, sequences: int, elapsed_s: float) -> bool:
        return sequences >= self.sequences

    def missing(self, sequences: int) -> int:
        return max(self.sequences - sequences, 0)

    def share(self, peers: int) -> int:
        return -(-self.sequences // max(peers, 1))

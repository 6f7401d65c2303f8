"""What a leaf and the member that carries it send each other. Pure.

A leaf has no seat in the ring. It sends its sums to its carrier, chunk by chunk, in the order in
which the carrier needs them: of each bucket the segment that the carrier sends first, then those to
which it adds as they come round. Nothing of that waits for anybody. The carrier gives the means
back in the order in which they become final at it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from atom.swarm.exchange.geometry import RingPlan, Step


@dataclass(frozen=True)
class Leaf:
    """Who is carried, and by which rank of the ring."""

    peer_id: str
    carrier: int


@dataclass(frozen=True)
class LeafPlan:
    """Between one leaf, the `index`-th of the ring's, and its carrier. Seen from the leaf; there is
    one connection in each direction."""

    ring: RingPlan
    index: int

    @property
    def carrier(self) -> int:
        """Its rank."""
        return self.ring.carriers[self.index]

    @property
    def chunk_elements(self) -> int:
        return self.ring.chunk_elements

    def sends_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What the leaf sends, in order; numbered."""
        return enumerate(self.sends())

    def receives_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What the leaf receives, in order; numbered."""
        return enumerate(self.receives())

    def sends(self) -> Iterator[Step]:
        part = 1 << (self.ring.members + self.index)
        for start, stop in self._chunks(self.carrier):
            yield Step(False, 0, start, stop, part, needs=None)

    def receives(self) -> Iterator[Step]:
        """`needs`: which chunk the carrier must have, in the order in which it receives."""
        everybody = (1 << self.ring.members) - 1
        for number, step in enumerate(self.ring.receives(self.carrier)):
            if step.gather or step.last_sum:
                yield Step(True, 0, step.start, step.stop, everybody, needs=number)

    def chunks_sent(self, rank: int) -> int:
        return sum(1 for _ in self._chunks(self.carrier))

    def chunks_received(self, rank: int) -> int:
        return self.chunks_sent(rank)

    def header(self, tag: bytes, step: Step) -> bytes:
        """See `RingPlan.header`."""
        return self.ring.header(tag, step)

    def _chunks(self, first: int) -> Iterator[tuple[int, int]]:
        """All chunks, of each bucket from segment `first` on, leftwards."""
        ring = self.ring
        for bucket in range(0, ring.elements, ring.bucket_elements):
            for back in range(ring.members):
                yield from ring.chunks(bucket, (first - back) % ring.members)

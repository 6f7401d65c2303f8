"""Plans of both exchanges: the order in which members send chunks, and the sums. Pure.

Ring: an arena is cut into buckets, a bucket into N segments (one per member), a segment into
chunks. In step s (0 ≤ s < 2(N−1)) of a bucket, rank r sends segment r−s and receives segment r−s−1
(mod N). The first N−1 steps reduce (each member adds its own), after which rank r owns the whole
sum of segment r+1; the last N−1 steps gather. A member sends in step s+1 the segment that it
received in step s. (Patarasu & Yuan 2009, "Bandwidth optimal all-reduce algorithms".)

Parts with owners: a bucket is cut into one part per owner, in proportion to the owners' shares.
Every member sends its numbers of a part straight to the part's owner. The owner adds them to its
own in the order of ranks after its own, and sends the sum to all members. A member with a share of
0 owns nothing: it only exchanges bytes with owners. Two members are connected, by one connection in
each direction, if at least one is an owner. The owner holds a bucket's contributions until
all of them have arrived, for WINDOW buckets at a time. So a member sends an owner its contributions
to bucket b + WINDOW only when it has the owner's sums of bucket b. Contributions to the next bucket
are sent before the sums of the present bucket.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from atom.swarm.chain.commit import Ballot, canonical_digest

ALIGNMENT = 16
"""Elements of which every boundary is a multiple: only then do vector kernels round identically on
all processors."""

BUCKET_BYTES = 16 * 1024 * 1024
"""Bytes of a bucket on the wire, with every codec. While a chunk is decoded, added and encoded, the
other chunks of its segment have to keep the line busy."""
CHUNKS = 4
"""Number of chunks in a usual segment."""
WINDOW = 2
"""Number of buckets whose contributions an owner holds at a time."""
MOST_ELEMENTS = 512 * 1024
"""Bound of the elements of a chunk."""
_CHUNK_UNIT = 16 * 1024
_HEADER = struct.Struct(">8sBHQ")


@dataclass(frozen=True)
class Step:
    """One chunk on one hop: elements [start, stop) of the arena."""

    number: int
    """Number of the chunk in the arena. In a ring, its sum and its mean have different numbers."""
    gather: bool
    hop: int
    """Hop within the phase (reduce or gather): 0 to members - 2."""
    start: int
    stop: int
    needs: int | None = None
    """Number of the chunk that must have arrived here before this chunk can be sent."""
    last_sum: bool = False
    """True if the receiving member owns the chunk. The sum is complete when all such steps of the
    chunk were received and the receiver's own addend is in it."""


@dataclass(frozen=True)
class Plan(ABC):
    """Division of an arena into buckets, each bucket into parts, and each part into chunks.

    Each owner has one part of a bucket. Buckets bound the bytes under way; chunks are the unit of
    pipelining.
    """

    elements: int
    """Elements of the arena, a multiple of 16."""
    shares: tuple[int, ...]
    """Relative size of each member's part, by rank."""
    bucket_elements: int
    chunk_elements: int

    @classmethod
    def usual(cls, elements: int, shares: tuple[int, ...], element_bytes: float = 4) -> Self:
        """Return the default plan.

        The largest part of a bucket takes `BUCKET_BYTES` / members on the wire.

        Args:
            elements: Elements of the arena, a multiple of 16.
            shares: Relative size of each member's part, by rank.
            element_bytes: Bytes of an element on the wire.
        """
        owners, members = sum(share > 0 for share in shares), len(shares)
        held = int(BUCKET_BYTES / element_bytes) * sum(shares) // (max(shares) * members)
        bucket = max(held // ALIGNMENT, members) * ALIGNMENT
        return cls(elements, shares, bucket, chunk_elements(min(bucket, elements) // owners))

    def __post_init__(self) -> None:
        sizes = (self.elements, self.bucket_elements, self.chunk_elements)
        assert all(size % ALIGNMENT == 0 for size in sizes), sizes
        assert self.bucket_elements > 0
        assert self.chunk_elements > 0
        assert min(self.shares) >= 0 < max(self.shares)

    @abstractmethod
    def stream(self, sender: int, receiver: int) -> Iterator[Step]:
        """Yield the chunks that one rank sends to another, in order."""

    @property
    def members(self) -> int:
        """Number of members of the exchange."""
        return len(self.shares)

    @property
    def buckets(self) -> int:
        """Number of buckets of the arena."""
        return -(-self.elements // self.bucket_elements)

    @property
    def owned_chunks(self) -> int:
        """Largest number of chunks that one owner has in a bucket."""
        units = min(self.bucket_elements, self.elements) // ALIGNMENT
        largest = -(-units * max(self.shares) // sum(self.shares)) * ALIGNMENT
        return max(1, -(-largest // self.chunk_elements))

    def chunks(self, bucket: int, owner: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number, start, stop) of the chunks of one owner's part of a bucket.

        Yield nothing if the arena has no such bucket.
        """
        if not 0 <= bucket < self.buckets:
            return
        first, total = (bucket * self.members + owner) * self.owned_chunks, sum(self.shares)
        at, before = bucket * self.bucket_elements, sum(self.shares[:owner])
        units = min(self.bucket_elements, self.elements - at) // ALIGNMENT
        begin = at + ALIGNMENT * (units * before // total)
        end = at + ALIGNMENT * (units * (before + self.shares[owner]) // total)
        for index, start in enumerate(range(begin, end, self.chunk_elements)):
            yield first + index, start, min(start + self.chunk_elements, end)

    def means(self) -> Iterator[Step]:
        """Yield a step (without a hop) for each chunk of the mean, in the order of elements."""
        for bucket in range(self.buckets):
            for owner in range(self.members):
                for number, start, stop in self.chunks(bucket, owner):
                    yield Step(number, True, 0, start, stop)


class RingPlan(Plan):
    """Plan of a ring: all shares are equal, and the parts are the segments."""

    def stream(self, sender: int, receiver: int) -> Iterator[Step]:
        hops = self.members - 1
        for bucket in range(self.buckets):
            for step in range(2 * hops):
                gather, hop = divmod(step, hops)
                for number, start, stop in self.chunks(bucket, (sender - step) % self.members):
                    needs = 2 * number + (step > hops) if step else None
                    last_sum = step == hops - 1
                    yield Step(2 * number + gather, bool(gather), hop, start, stop, needs, last_sum)


class PartsPlan(Plan):
    """Plan of parts with owners: members send contributions to owners, and owners send the sums."""

    def peers(self, rank: int) -> list[int]:
        """Return the ranks that `rank` is connected to.

        An owner adds the contributions of these peers in this order.
        """
        return connected(self.shares, rank)

    def stream(self, sender: int, receiver: int) -> Iterator[Step]:
        yield from self._contributions(0, receiver)
        for bucket in range(self.buckets):
            yield from self._contributions(bucket + 1, receiver)
            for number, start, stop in self.chunks(bucket, sender):
                yield Step(number, True, 0, start, stop, needs=number)

    def slot(self, number: int) -> int:
        """Return the index of the memory slot in which an owner holds a chunk's contributions."""
        bucket, index = divmod(number, self.members * self.owned_chunks)
        return bucket % WINDOW * self.owned_chunks + index % self.owned_chunks

    def _contributions(self, bucket: int, receiver: int) -> Iterator[Step]:
        """Yield the chunks of the receiver's part of a bucket, to which the sender contributes."""
        freed = [number for number, _, _ in self.chunks(bucket - WINDOW, receiver)]
        needs = freed[-1] if freed else None
        for number, start, stop in self.chunks(bucket, receiver):
            yield Step(number, False, 0, start, stop, needs, last_sum=True)


def connected(shares: Sequence[int], rank: int) -> list[int]:
    """Return the ranks with which `rank` exchanges bytes, beginning with the next rank."""
    others = [(rank + offset) % len(shares) for offset in range(1, len(shares))]
    return [other for other in others if shares[rank] or shares[other]]


def chunk_elements(segment_elements: int) -> int:
    """Return the size of a chunk: a fraction of a segment (`CHUNKS`), within bounds.

    Larger chunks save the fixed cost of a chunk, which matters on fast links. But with fewer chunks
    per segment a member would have to wait for its neighbours.
    """
    part = segment_elements // CHUNKS // _CHUNK_UNIT * _CHUNK_UNIT
    return min(max(part, _CHUNK_UNIT), MOST_ELEMENTS)


def chunk_header(tag: bytes, step: Step) -> bytes:
    """Return the header of a chunk on the wire; sender and receiver compute the same header."""
    return _HEADER.pack(tag[:8], step.gather, step.hop, step.start)


def ring_tag(parent: bytes, ballot: Ballot) -> bytes:
    """Return the tag (32 bytes) of one attempt's exchange.

    The tag keeps out the connections and chunks of other attempts.
    """
    return canonical_digest("ring", [parent, ballot])

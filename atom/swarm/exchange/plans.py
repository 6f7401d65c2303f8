"""The plans of both exchanges, pure: which piece travels when, to whom, and who is in a sum.

Ring: an arena is cut into buckets, a bucket into N segments (one per member), a segment into
chunks. In step s (0 ≤ s < 2(N−1)) of a bucket, rank r sends segment r−s and receives segment r−s−1
(mod N). The first N−1 steps reduce (each member adds its own), after which rank r owns the whole
sum of segment r+1; the last N−1 steps gather. Every piece received in step s is what is sent in
step s+1. (Patarasu & Yuan 2009, "Bandwidth optimal all-reduce algorithms".)

Parts with owners: a bucket is cut into one part per owner, as large as the owner's share says.
Every member sends its numbers of a part straight to the part's owner. The owner adds them to its
own in the order of ranks after its own, and sends the sum to everybody. A member with a share of 0
owns nothing: it only exchanges bytes with owners. Two members are connected, by one connection in
each direction, if at least one of them is an owner. The owner holds a bucket's contributions until
all of them are there, for WINDOW buckets at a time. So a member sends an owner its contributions to
bucket b + WINDOW only when it has the owner's sums of bucket b; and contributions to the next
bucket go ahead of the sums of this one.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from atom.swarm.chain.commit import Ballot, canonical_digest

ALIGNMENT = 16
"""Elements. Vector kernels round alike on every processor only if pieces start and end here."""

BUCKET_BYTES = 16 * 1024 * 1024
"""On the wire, whatever the codec. A chunk has the time that a segment takes, less its own, to be
decoded, added and encoded before the line runs dry."""
WINDOW = 2
"""Buckets whose contributions an owner holds."""
MOST_ELEMENTS = 512 * 1024
"""Of a chunk."""
_CHUNK_UNIT = 16 * 1024
_HEADER = struct.Struct(">8sBHQ")


@dataclass(frozen=True)
class Step:
    """One chunk on one hop: elements [start, stop) of the arena."""

    number: int
    """Of the chunk among all of the arena's; in a ring its sum and its mean have one each."""
    gather: bool
    hop: int
    """0 to members - 2 within the phase."""
    start: int
    stop: int
    needs: int | None = None
    """Sending: the number of the chunk that must be there before this one can go."""
    last_sum: bool = False
    """Receiving: with the last of these and our own the sum is complete, and we own it."""


@dataclass(frozen=True)
class Plan(ABC):
    """How an arena of `elements` is cut: into buckets, a bucket into one part per owner, a part
    into chunks. Buckets bound how much is in motion; chunks are the unit of pipelining."""

    elements: int
    """A multiple of 16."""
    shares: tuple[int, ...]
    """Of each member, by rank: how large its part is, relative to the others'."""
    bucket_elements: int
    chunk_elements: int

    @classmethod
    def usual(cls, elements: int, shares: tuple[int, ...], element_bytes: float = 4) -> Self:
        """Buckets so small that all parts as large as the largest were a bucket of BUCKET_BYTES
        (`element_bytes` each)."""
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
        """What goes from one rank to the other, in order."""

    @property
    def members(self) -> int:
        return len(self.shares)

    @property
    def buckets(self) -> int:
        return -(-self.elements // self.bucket_elements)

    @property
    def owned_chunks(self) -> int:
        """At most so many chunks of a bucket belong to one owner."""
        units = min(self.bucket_elements, self.elements) // ALIGNMENT
        largest = -(-units * max(self.shares) // sum(self.shares)) * ALIGNMENT
        return max(1, -(-largest // self.chunk_elements))

    def chunks(self, bucket: int, owner: int) -> Iterator[tuple[int, int, int]]:
        """(number, start, stop) of all chunks of an owner's part; none outside of the arena."""
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
        """Every chunk of the mean, in the order of elements."""
        for bucket in range(self.buckets):
            for owner in range(self.members):
                for number, start, stop in self.chunks(bucket, owner):
                    yield Step(number, True, 0, start, stop)


class RingPlan(Plan):
    """All shares are alike: the parts are the segments."""

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
    """Every contribution goes to its owner, every sum from there."""

    def peers(self, rank: int) -> list[int]:
        """Whom it is connected to: in the order in which an owner adds their contributions."""
        return connected(self.shares, rank)

    def stream(self, sender: int, receiver: int) -> Iterator[Step]:
        yield from self._contributions(0, receiver)
        for bucket in range(self.buckets):
            yield from self._contributions(bucket + 1, receiver)
            for number, start, stop in self.chunks(bucket, sender):
                yield Step(number, True, 0, start, stop, needs=number)

    def slot(self, number: int) -> int:
        """Where a chunk of an own part is held, in chunks from the start of the window."""
        bucket, index = divmod(number, self.members * self.owned_chunks)
        return bucket % WINDOW * self.owned_chunks + index % self.owned_chunks

    def _contributions(self, bucket: int, receiver: int) -> Iterator[Step]:
        """The sender's numbers of the receiver's part."""
        freed = [number for number, _, _ in self.chunks(bucket - WINDOW, receiver)]
        needs = freed[-1] if freed else None
        for number, start, stop in self.chunks(bucket, receiver):
            yield Step(number, False, 0, start, stop, needs, last_sum=True)


def connected(shares: Sequence[int], rank: int) -> list[int]:
    """The ranks that `rank` exchanges bytes with, from the one after it on."""
    others = [(rank + offset) % len(shares) for offset in range(1, len(shares))]
    return [other for other in others if shares[rank] or shares[other]]


def chunk_elements(segment_elements: int) -> int:
    """As large as leaves four chunks to a segment: what a chunk costs beside its bytes counts on
    fast links, and a member stands still if a segment is too few of them."""
    quarter = segment_elements // 4 // _CHUNK_UNIT * _CHUNK_UNIT
    return min(max(quarter, _CHUNK_UNIT), MOST_ELEMENTS)


def chunk_header(tag: bytes, step: Step) -> bytes:
    """What precedes a chunk on the wire; sender and receiver compute the same."""
    return _HEADER.pack(tag[:8], step.gather, step.hop, step.start)


def ring_tag(parent: bytes, ballot: Ballot) -> bytes:
    """The name of one attempt's ring: channels and chunks of another attempt never mix in."""
    return canonical_digest("ring", [parent, ballot])

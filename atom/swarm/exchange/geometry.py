"""The ring's geometry, pure: who sits where, which piece travels when, and who is in a sum.

An arena is cut into buckets, a bucket into N segments (one per member), a segment into chunks.
In step s (0 ≤ s < 2(N−1)) of a bucket, rank r sends segment r−s and receives segment r−s−1
(mod N). The first N−1 steps reduce (each member adds its own), after which rank r owns the whole
sum of segment r+1; the last N−1 steps gather. Every piece received in step s is what is sent in
step s+1. (Patarasu & Yuan 2009, "Bandwidth optimal all-reduce algorithms".)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from atom.swarm.chain.commit import Ballot, canonical_digest
from atom.swarm.chain.ring_standing import Place

ALIGNMENT = 16
"""Elements. Vector kernels round alike on every processor only if pieces start and end here."""

BUCKET_BYTES = 16 * 1024 * 1024
"""On the wire, whatever the codec. A chunk has the time that a segment takes, less its own, to be
decoded, added and encoded before the line runs dry."""
_CHUNK_ELEMENTS = 512 * 1024
_CHUNK_UNIT = 16 * 1024
_HEADER = struct.Struct(">8sBHQ")


@dataclass(frozen=True)
class Step:
    """One chunk on one hop: elements [start, stop) of the arena."""

    gather: bool
    hop: int
    """0 to members - 2 within the phase."""
    start: int
    stop: int
    contributors: int
    """Bit k: rank k's part is in this sum. Leaves, beyond the ranks, are added in the header."""
    needs: int | None
    """Sending: which chunk, in the order of receiving, must be there before this one can go."""
    last_sum: bool = False
    """Receiving: adding our part completes the sum, and we own it."""


@dataclass(frozen=True)
class RingPlan:
    """How `elements` (a multiple of 16) travel among `members` peers.

    Buckets bound how much of the arena is in motion; chunks are the unit of pipelining.
    """

    elements: int
    members: int
    bucket_elements: int
    chunk_elements: int
    carriers: tuple[int, ...] = ()
    """For each leaf, the rank that adds the leaf's part to its own."""

    @classmethod
    def usual(
        cls, elements: int, members: int, carriers: tuple[int, ...] = (), element_bytes: int = 4
    ) -> "RingPlan":
        """Chunks as large as leave four to a segment: what a chunk costs beside its bytes counts on
        fast links, and a member stands still if a segment is too few of them. `element_bytes`: on
        the wire."""
        bucket = BUCKET_BYTES // element_bytes
        quarter = min(bucket, elements) // (4 * members) // _CHUNK_UNIT * _CHUNK_UNIT
        chunk = min(max(quarter, _CHUNK_UNIT), _CHUNK_ELEMENTS)
        return cls(elements, members, bucket, chunk, carriers)

    def __post_init__(self) -> None:
        sizes = (self.elements, self.bucket_elements, self.chunk_elements)
        assert self.members >= 1
        assert all(size % ALIGNMENT == 0 for size in sizes), sizes
        assert self.bucket_elements > 0
        assert self.chunk_elements > 0

    def sends(self, rank: int) -> Iterator[Step]:
        """What `rank` sends to its right neighbour, in order."""
        arrived = 0
        for bucket in range(0, self.elements, self.bucket_elements):
            before = 0  # chunks of this bucket received in the steps before the last one
            for step in range(2 * (self.members - 1)):
                chunks = self.chunks(bucket, (rank - step) % self.members)
                for index, (start, stop) in enumerate(chunks):
                    needs = arrived + before + index if step else None
                    yield self._step(step, rank - step, start, stop, needs)
                before += len(chunks) if step else 0
            arrived += self._received(bucket, rank)

    def receives(self, rank: int) -> Iterator[Step]:
        """What `rank` receives from its left neighbour, in order."""
        for bucket in range(0, self.elements, self.bucket_elements):
            for step in range(2 * (self.members - 1)):
                segment = (rank - step - 1) % self.members
                for start, stop in self.chunks(bucket, segment):
                    yield self._step(step, segment, start, stop, None)

    def sends_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What goes over one of several connections, which take the chunks in turn; numbered."""
        return islice(enumerate(self.sends(rank)), lane, None, lanes)

    def receives_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What comes over one of several connections; numbered in the order of receiving."""
        return islice(enumerate(self.receives(rank)), lane, None, lanes)

    def chunks_received(self, rank: int) -> int:
        """How many chunks `receives` yields."""
        buckets = range(0, self.elements, self.bucket_elements)
        return sum(self._received(bucket, rank) for bucket in buckets)

    def chunks_sent(self, rank: int) -> int:
        """How many chunks `sends` yields: what its right neighbour receives."""
        return self.chunks_received((rank + 1) % self.members)

    def segment(self, bucket: int, index: int) -> tuple[int, int]:
        """Bounds of one segment of the bucket that starts at `bucket`; may be empty."""
        units = (min(bucket + self.bucket_elements, self.elements) - bucket) // ALIGNMENT
        start = bucket + ALIGNMENT * (units * index // self.members)
        return start, bucket + ALIGNMENT * (units * (index + 1) // self.members)

    def place(self, step: Step) -> Place:
        """The chunk's name over the whole ring; the same at its sender and its receiver."""
        bucket, half = step.start // self.bucket_elements, self.members - 1
        return 2 * half * bucket + half * step.gather + step.hop, step.start

    @property
    def end(self) -> Place:
        """After the last chunk."""
        buckets = -(-self.elements // self.bucket_elements)
        return 2 * (self.members - 1) * buckets, 0

    def header(self, tag: bytes, step: Step) -> bytes:
        """What precedes the chunk on the wire; sender and receiver compute the same."""
        inside = step.contributors
        for leaf, carrier in enumerate(self.carriers):
            inside |= (step.contributors >> carrier & 1) << (self.members + leaf)
        bitmap = inside.to_bytes((self.members + len(self.carriers) + 7) // 8, "little")
        return _HEADER.pack(tag[:8], step.gather, step.hop, step.start) + bitmap

    def chunks(self, bucket: int, segment: int) -> list[tuple[int, int]]:
        """Bounds of the segment's chunks, in order."""
        start, stop = self.segment(bucket, segment)
        size = self.chunk_elements
        return [(at, min(at + size, stop)) for at in range(start, stop, size)]

    def _received(self, bucket: int, rank: int) -> int:
        steps = range(2 * (self.members - 1))
        return sum(len(self.chunks(bucket, (rank - s - 1) % self.members)) for s in steps)

    def _step(self, step: int, segment: int, start: int, stop: int, needs: int | None) -> Step:
        gather, hop = divmod(step, self.members - 1)
        summed = self.members if gather else step + 1
        return Step(
            gather=bool(gather),
            hop=hop,
            start=start,
            stop=stop,
            contributors=contributors(segment, summed, self.members),
            needs=needs,
            last_sum=step == self.members - 2,
        )


def contributors(segment: int, count: int, members: int) -> int:
    """Bitmap of the first `count` ranks that add to a segment: it starts at its own rank."""
    bitmap = 0
    for offset in range(count):
        bitmap |= 1 << ((segment + offset) % members)
    return bitmap


def ring_tag(parent: bytes, ballot: Ballot) -> bytes:
    """The name of one attempt's ring: channels and chunks of another attempt never mix in."""
    return canonical_digest("ring", [parent, ballot])

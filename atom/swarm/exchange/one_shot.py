"""The one-shot exchange: everyone reduces its own share directly, in two hops. Pure.

The arena is cut as for a ring. Rank r owns segment r of every bucket: it receives that segment's
parts from all others, adds them in the order r, r+1, … (the order in which a ring adds them, so in
float32 both give the same bytes), and sends the finished segment to all. Every member is connected
to every other, by one connection in each direction.

A bucket's parts are held until all of them are there, for two buckets at a time: so a member sends
bucket b + 2 only when it has the finished segment of bucket b, and the parts of the next bucket go
ahead of the finished segment of this one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from atom.swarm.exchange.geometry import ALIGNMENT, RingPlan, Step

WINDOW = 2
"""Buckets whose parts are held."""


@dataclass(frozen=True)
class OneShotPlan:
    """Who sends what to whom. A chunk's number names it among all chunks of the arena."""

    geometry: RingPlan
    """No segment is empty, but in the last bucket."""

    def __post_init__(self) -> None:
        whole = self._buckets > 1
        assert not whole or self.geometry.bucket_elements >= ALIGNMENT * self.members

    @property
    def members(self) -> int:
        return self.geometry.members

    @property
    def chunk_elements(self) -> int:
        return self.geometry.chunk_elements

    @property
    def segment_chunks(self) -> int:
        """At most so many chunks make up a segment."""
        whole = self.geometry.segment(0, self.members - 1)  # none is longer
        return -(-(whole[1] - whole[0]) // self.chunk_elements)

    def sends_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What goes to the `lane`-th of the others, in order: finished segments are our own."""
        assert lanes == self.members - 1
        return self._stream(sender=rank, receiver=self.peer(rank, lane))

    def receives_on(self, rank: int, lane: int, lanes: int) -> Iterator[tuple[int, Step]]:
        """What comes from the `lane`-th of the others, in order: finished segments are its own."""
        assert lanes == self.members - 1
        return self._stream(sender=self.peer(rank, lane), receiver=rank)

    def chunks_received(self, rank: int) -> int:
        """All chunks' numbers are below this."""
        return self._buckets * self.members * self.segment_chunks

    def chunks_sent(self, rank: int) -> int:
        return self.chunks_received(rank)

    def header(self, tag: bytes, step: Step) -> bytes:
        """See `RingPlan.header`."""
        return self.geometry.header(tag, step)

    def peer(self, rank: int, lane: int) -> int:
        """The rank of the `lane`-th of the others: in the order in which their parts are added."""
        return (rank + 1 + lane) % self.members

    def before(self, number: int) -> int | None:
        """The chunk whose parts are held where this one's will be, a window later."""
        bucket, place = divmod(number, self.members * self.segment_chunks)
        segment, index = divmod(place, self.segment_chunks)
        earlier = [name for name, _, _ in self._chunks(bucket - WINDOW, segment)]
        return earlier[min(index, len(earlier) - 1)] if earlier else None

    def slot(self, number: int) -> int:
        """Where a chunk of an own segment is held, in chunks from the start of the window."""
        bucket, index = divmod(number, self.members * self.segment_chunks)
        return bucket % WINDOW * self.segment_chunks + index % self.segment_chunks

    @property
    def _buckets(self) -> int:
        return -(-self.geometry.elements // self.geometry.bucket_elements)

    def _stream(self, sender: int, receiver: int) -> Iterator[tuple[int, Step]]:
        yield from self._parts(0, sender, receiver)
        for bucket in range(self._buckets):
            yield from self._parts(bucket + 1, sender, receiver)
            for number, start, stop in self._chunks(bucket, sender):
                everybody = (1 << self.members) - 1
                yield number, Step(True, 0, start, stop, everybody, needs=number)

    def _parts(self, bucket: int, sender: int, receiver: int) -> Iterator[tuple[int, Step]]:
        """The sender's parts of the receiver's segment."""
        freed = [number for number, _, _ in self._chunks(bucket - WINDOW, receiver)]
        needs = freed[-1] if freed else None
        for number, start, stop in self._chunks(bucket, receiver):
            yield number, Step(False, 0, start, stop, 1 << sender, needs)

    def _chunks(self, bucket: int, segment: int) -> Iterator[tuple[int, int, int]]:
        """(number, start, stop) of all chunks of a segment; none outside of the arena."""
        if not 0 <= bucket < self._buckets:
            return
        first = (bucket * self.members + segment) * self.segment_chunks
        chunks = self.geometry.chunks(bucket * self.geometry.bucket_elements, segment)
        for index, (start, stop) in enumerate(chunks):
            yield first + index, start, stop

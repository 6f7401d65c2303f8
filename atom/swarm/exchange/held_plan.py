"""The plan of an exchange after which most members get no mean of a part, but what its owner made
of it. Pure.

It begins as parts with owners do (`atom.swarm.exchange.plans`), but the mean of a part only goes to
those that hold it. Others get an empty chunk, since a sum is also what lets a sender go on. Then
comes on each way, and in this order

    SUMS   the sender has the means of all that it holds, and here are sums of those that it owns
    MADE   what it made of the parts that it owns, for those that cannot make the same; all of it
           for those that shall hold the part from then on
    ROW    after each of these parts, for everybody: what names its mean, and what was made

A member makes nothing before it has the SUMS of all its peers. Each owner is connected with all
others: so nothing is made before every holder has its means.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from atom.swarm.exchange.plans import BUCKET_BYTES, PartsPlan, Step, chunk_elements

SUMS, MADE, ROW = 1, 2, 3
"""Hops of the gathering phase; what is of hop 0 is a mean, or nothing."""
_NOBODY_WAITS = -1


@dataclass(frozen=True)
class Holding:
    """Who owns the parts of an arena in one exchange, who holds them, and who shall."""

    ranges: tuple[tuple[int, int], ...]
    """Of each part: its first element, and the one after its last. They follow each other."""
    owners: tuple[int, ...]
    """Of each part: the rank of who sums it."""
    holds: tuple[frozenset[int], ...]
    """By rank: the parts of which it makes the same as their owners, so that it needs not get it.
    Owners are among them."""
    gets: tuple[frozenset[int], ...]
    """By rank: the parts that it does not hold, but shall from then on."""

    def owned(self, rank: int) -> list[int]:
        return [part for part, owner in enumerate(self.owners) if owner == rank]

    @property
    def shares(self) -> tuple[int, ...]:
        """Of each member, how many elements it owns."""
        sizes = [stop - start for start, stop in self.ranges]
        return tuple(sum(sizes[p] for p in self.owned(rank)) for rank in range(len(self.holds)))

    def part_of(self, element: int) -> int:
        return bisect_right(self._starts, element) - 1

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self.ranges]


def owners_of(
    holds: Sequence[frozenset[int]], ranges: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """By part the rank of who sums it: of those that hold it, who owns least so far. `holds`: parts
    by rank. None: nobody holds some part."""
    owned, owners = [0] * len(holds), list[int]()
    for part, (start, stop) in enumerate(ranges):
        able = [rank for rank, held in enumerate(holds) if part in held]
        if not able:
            return None
        owner = min(able, key=lambda rank: (owned[rank], rank))
        owned[owner] += stop - start
        owners.append(owner)
    return tuple(owners)


@dataclass(frozen=True)
class HeldPlan(PartsPlan):
    """A bucket has as many chunks of each owner, as long as it has any."""

    holding: Holding

    @classmethod
    def of(cls, holding: Holding, element_bytes: float) -> "HeldPlan":
        """The usual one. Owners hold as many contributions as in an exchange by parts."""
        members, owners = len(holding.holds), len(set(holding.owners))
        bucket = int(BUCKET_BYTES / element_bytes) * owners // members
        largest = max(stop - start for start, stop in holding.ranges)
        chunk = chunk_elements(min(bucket // owners, largest))
        elements, chunks = holding.ranges[-1][1], max(1, bucket // owners // chunk)
        return cls(elements, holding.shares, chunks * chunk * owners, chunk, holding)

    @property
    def owned_chunks(self) -> int:
        owners = len(set(self.holding.owners))
        return max(1, self.bucket_elements // owners // self.chunk_elements)

    @property
    def buckets(self) -> int:
        return max(-(-len(chunks) // self.owned_chunks) for chunks in self._cut)

    @cached_property
    def _cut(self) -> list[list[tuple[int, int]]]:
        """The chunks of each owner's parts."""
        owned = map(self.holding.owned, range(self.members))
        return [[chunk for part in parts for chunk in self.cut(part)] for parts in owned]

    def cut(self, part: int) -> list[tuple[int, int]]:
        """A part's chunks."""
        start, stop = self.holding.ranges[part]
        size = self.chunk_elements
        return [(each, min(each + size, stop)) for each in range(start, stop, size)]

    def chunks(self, bucket: int, owner: int) -> Iterator[tuple[int, int, int]]:
        if not 0 <= bucket < self.buckets:
            return
        count = self.owned_chunks
        first = (bucket * self.members + owner) * count
        for index, chunk in enumerate(self._cut[owner][bucket * count : (bucket + 1) * count]):
            yield first + index, *chunk

    def stream(self, sender: int, receiver: int) -> Iterator[Step]:
        yield from super().stream(sender, receiver)
        through = self.through(sender)
        yield Step(through, True, SUMS, 0, 0, needs=through)
        for part in self.holding.owned(sender):
            made, start = self.made(part), self.holding.ranges[part][0]
            if part not in self.holding.holds[receiver]:
                for chunk in self.cut(part):
                    yield Step(_NOBODY_WAITS, True, MADE, *chunk, needs=made)
            yield Step(made, True, ROW, start, start, needs=made)

    def through(self, rank: int) -> int:
        """The number that is there once that member has the means of all that it holds."""
        return self.buckets * self.members * self.owned_chunks + rank

    def made(self, part: int) -> int:
        """The number that is there once something was made of that part."""
        return self.through(self.members) + part

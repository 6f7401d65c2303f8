"""State that a peer keeps of some elements only.

The elements of a replica's arenas are cut into parts. They are the same for the whole run and at
every peer: which of them a peer holds is all that changes. What is held of a part lies in memory of
its own, so that it can come and go.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.swap.host_memory import allocate_host_memory

MOST_PARTS = 60
"""A set of them is a number that a message can hold. Two to six peers, or eight with two holders of
each, have as many of them."""


@dataclass(frozen=True)
class StateParts:
    """Which elements are in which part: as many whole units in each, give or take one."""

    elements: int
    unit: int
    """Elements. The last one may be shorter."""

    @property
    def units(self) -> int:
        return -(-self.elements // self.unit)

    @property
    def count(self) -> int:
        return min(self.units, MOST_PARTS)

    def range(self, part: int) -> tuple[int, int]:
        """Its first element, and the one after its last."""
        assert 0 <= part < self.count
        start, stop = (self.unit * (self.units * n // self.count) for n in (part, part + 1))
        return start, min(stop, self.elements)

    def size(self, part: int) -> int:
        start, stop = self.range(part)
        return stop - start

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Elements [start, stop), cut where parts end: (part, start, stop) of each piece."""
        for part in range(self.count):
            first, end = self.range(part)
            if first < stop and start < end:
                yield part, max(first, start), min(end, stop)

    def most_held(self, members: int, holders: int) -> int:
        """How many parts a member holds at most, if each has so many holders and they are dealt
        evenly."""
        return -(-self.count * min(holders, members) // members)

    def most_elements(self, held: int) -> int:
        """Of any so many parts."""
        return sum(sorted(map(self.size, range(self.count)), reverse=True)[:held])


class HeldState:
    """Named tensors of the parts that are held, one number for each element. Not synchronised."""

    def __init__(self, parts: StateParts, dtypes: Mapping[str, torch.dtype]) -> None:
        """`dtypes`: of each tensor, by name. Nothing is held yet."""
        self.parts, self.dtypes = parts, dtypes
        self.room = parts.count
        """How many parts there is memory for. For who deals them: nothing here asks."""
        self._arenas = dict[int, dict[str, Tensor]]()

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._arenas)

    def hold(self, part: int) -> None:
        """Zeros, unless it is held. Raises: MemoryError; then it is not held."""
        if part not in self._arenas:
            self._arenas[part] = {
                name: allocate_host_memory(self.parts.size(part), dtype)
                for name, dtype in self.dtypes.items()
            }

    def take(self, part: int, arenas: Mapping[str, Tensor]) -> None:
        """Holds a part from now on, as these say. Raises: ValueError if they do not fit, and
        MemoryError: then it is not held."""
        size = self.parts.size(part)
        fit = {name: each.dtype for name, each in arenas.items() if each.shape == (size,)}
        if dict(self.dtypes) != fit:
            raise ValueError(f"the state of part {part} does not fit this model")
        self.hold(part)
        for name, arena in self._arenas[part].items():
            arena.copy_(arenas[name])

    def drop(self, part: int) -> None:
        """Its memory is free once nobody has a view of it."""
        del self._arenas[part]

    def of(self, part: int) -> Mapping[str, Tensor]:
        """Flat, live, from the part's first element on; empty if it is not held."""
        return self._arenas.get(part, {})

    def clear(self) -> None:
        """All zeros."""
        for arenas in self._arenas.values():
            for arena in arenas.values():
                arena.zero_()

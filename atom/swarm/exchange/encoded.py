"""A round's mean in the bytes in which its owners sent it: so it is kept, saved, and served.

Each chunk is as its owner encoded it, in the order of elements. Where chunks end depends on who
took part in the exchange, and so it is told along.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.codec import Codec, NotCanonical, NotFinite
from atom.swarm.exchange.plans import ALIGNMENT, MOST_ELEMENTS, Plan, Step

WIRES, CHUNKS = "wires", "chunks"
_Piece = tuple[slice, slice]
"""Elements, and the bytes that say them."""
_TYPES = {CHUNKS: torch.int64, WIRES: torch.uint8}


@dataclass(frozen=True)
class EncodedMean:
    """One mean. Nobody writes into it any more."""

    wires: Tensor
    """uint8 [bytes]."""
    chunks: Tensor
    """int64 [2 · chunks]: of each, how many elements and how many bytes it has."""

    @classmethod
    def of(cls, arenas: Mapping[str, Tensor]) -> "EncodedMean":
        """What a stranger, or a disk, gave. Raises: PeerRefused(MALFORMED)."""
        if {name: arena.dtype for name, arena in arenas.items()} != _TYPES:
            raise PeerRefused(Reason.MALFORMED, f"a mean of {sorted(arenas)[:4]}")
        return cls(arenas[WIRES], arenas[CHUNKS])

    @property
    def arenas(self) -> Mapping[str, Tensor]:
        """By name: as it is saved and served. Their digest is the mean's name in a commit."""
        return {CHUNKS: self.chunks, WIRES: self.wires}

    def numbers(self, codec: Codec, elements: int) -> "MeanNumbers":
        """What it says. Raises: PeerRefused(MALFORMED) for a table that does not fit; bytes that
        say nothing are found by `check`."""
        return MeanNumbers(codec, self.wires, self._pieces(codec, elements))

    def check(self, codec: Codec, elements: int) -> None:
        """Whether it can be decoded; takes hardly any memory, and as many threads as PyTorch may
        use. Raises: PeerRefused(MALFORMED, NOT_FINITE) for what no exchange leaves."""
        pieces, threads = self._pieces(codec, elements), torch.get_num_threads()

        def decode(some: Sequence[_Piece]) -> None:
            for here, there in some:
                codec.decode(self.wires[there], torch.empty(here.stop - here.start))

        try:
            with ThreadPoolExecutor(threads, "atom-decode") as pool:
                for _ in pool.map(decode, (pieces[first::threads] for first in range(threads))):
                    pass
        except NotFinite:
            raise PeerRefused(Reason.NOT_FINITE, "a mean") from None
        except NotCanonical:
            raise PeerRefused(Reason.MALFORMED, "a mean that nobody encoded") from None

    def _pieces(self, codec: Codec, elements: int) -> list[_Piece]:
        """Raises: PeerRefused(MALFORMED), for a large table before it takes more memory."""
        sizes, lengths = self.chunks[::2], self.chunks[1::2]
        fits = (
            self.chunks.numel() <= 2 * elements // ALIGNMENT
            and sizes.shape == lengths.shape
            and bool(((sizes > 0) & (sizes <= MOST_ELEMENTS) & (sizes % ALIGNMENT == 0)).all())
            and (int(sizes.sum()), int(lengths.sum())) == (elements, self.wires.numel())
        )
        told = list(zip(sizes.tolist(), lengths.tolist(), strict=True)) if fits else []
        if not fits or not all(codec.fits(length, size) for size, length in told):
            raise PeerRefused(Reason.MALFORMED, "the chunks of a mean do not fit")
        here, there = (_slices(each) for each in zip(*told, strict=True)) if told else ([], [])
        return list(zip(here, there, strict=True))


class MeanNumbers:
    """What an encoded mean says: decoded as it is asked for, the same on every machine."""

    dtype = torch.float32

    def __init__(self, codec: Codec, wires: Tensor, pieces: Sequence[_Piece]) -> None:
        """`pieces`: in the order of elements, none left out."""
        self._codec, self._wires, self._pieces = codec, wires, pieces
        self._stops = [here.stop for here, _ in pieces]

    def numel(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __getitem__(self, elements: slice) -> Tensor:
        """fp32, for reading: those from `start` up to `stop`; memory of its own, or the mean's."""
        start, stop, _ = elements.indices(self.numel())
        if self._codec.exact:
            return self._wires.view(torch.float32)[start:stop]
        numbers, at = torch.empty(stop - start), start
        index = bisect_right(self._stops, start)
        while at < stop:
            here, there = self._pieces[index]
            end, index = min(here.stop, stop), index + 1
            out = numbers[at - start : end - start]
            if (at, end) == (here.start, here.stop):
                self._codec.decode(self._wires[there], out)
            else:
                whole = torch.empty(here.stop - here.start)
                self._codec.decode(self._wires[there], whole)
                out.copy_(whole[at - here.start : end - here.start])
            at = end
        return numbers


class MeanWires:
    """The chunks of a mean, put together as they come. Any thread; a chunk is put there once, and
    in a ring once before that, as a sum that is on its way."""

    def __init__(self, plan: Plan, codec: Codec) -> None:
        """Raises: MemoryError."""
        self.plan, steps = plan, list(plan.means())
        self._codec, self._index = codec, {step.start: n for n, step in enumerate(steps)}
        places = _slices(codec.wire_bytes(step.stop - step.start) for step in steps)
        total_bytes = places[-1].stop if places else 0
        self._rooms, self._wires = places, torch.empty(total_bytes, dtype=torch.uint8)
        self._pieces = [
            (slice(step.start, step.stop), place) for step, place in zip(steps, places, strict=True)
        ]
        self.numbers = MeanNumbers(codec, self._wires, self._pieces)
        """Of chunks that were put there."""

    def room(self, step: Step) -> Tensor:
        """For the most that the chunk may take (uint8)."""
        return self._wires[self._rooms[self._index[step.start]]]

    def numbers_room(self, step: Step) -> Tensor:
        """Where the chunk's numbers (fp32) are put together: where they stay, if they travel as
        they are."""
        if self._codec.exact:
            return self.room(step).view(torch.float32)
        return torch.empty(step.stop - step.start)

    def put(self, step: Step, wire: Tensor) -> None:
        """The chunk is at the beginning of its room, and takes no more than this."""
        index = self._index[step.start]
        at = self._rooms[index].start
        self._pieces[index] = slice(step.start, step.stop), slice(at, at + wire.numel())

    def chunk(self, step: Step) -> Tensor:
        """One that was put there."""
        return self._wires[self._pieces[self._index[step.start]][1]]

    def encoded(self) -> EncodedMean:
        """When all chunks are there. Call once: shorter ones move together, and `numbers` are read
        no more."""
        wires, at = self._wires.numpy(), 0
        told = [(here.stop - here.start, there.stop - there.start) for here, there in self._pieces]
        for (_, there), (_, length) in zip(self._pieces, told, strict=True):
            if there.start != at:
                wires[at : at + length] = wires[there]
            at += length
        return EncodedMean(self._wires[:at], torch.tensor(told, dtype=torch.int64).view(-1))


def _slices(lengths: Iterable[int]) -> list[slice]:
    """Of one after the other."""
    ends = list(accumulate(lengths, initial=0))
    return [slice(start, stop) for start, stop in pairwise(ends)]

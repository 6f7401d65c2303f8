"""A round's mean in the bytes in which its owners sent it: so it is kept, saved, and served.

Each chunk is as its owner encoded it, in the order of elements. Where chunks end depends on who
took part in the exchange, and so it is told along.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.codec import Codec
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

    def decode(self, codec: Codec, elements: int) -> Tensor:
        """The numbers, fp32 [elements], the same on every machine; maybe the memory of `wires`.

        `codec`: of means. On as many threads as PyTorch may use. Raises: as `check`.
        """
        pieces = self._pieces(codec, elements)
        numbers = self.wires.view(torch.float32) if codec.exact else torch.empty(elements)
        self._decode(codec, pieces, numbers.__getitem__)
        return numbers

    def check(self, codec: Codec, elements: int) -> None:
        """Whether it can be decoded; takes hardly any memory. Raises: PeerRefused(MALFORMED,
        NOT_FINITE) for what no exchange leaves."""
        pieces = self._pieces(codec, elements)
        self._decode(codec, pieces, lambda here: torch.empty(here.stop - here.start))

    def _decode(
        self, codec: Codec, pieces: Sequence[_Piece], target: Callable[[slice], Tensor]
    ) -> None:
        threads = torch.get_num_threads()

        def decode(some: Sequence[_Piece]) -> None:
            for here, there in some:
                codec.decode(self.wires[there], target(here))

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


class MeanWires:
    """The chunks of a mean, put together as they come. Any thread; a chunk is put there once."""

    def __init__(self, plan: Plan, codec: Codec, numbers: Tensor) -> None:
        """`numbers`: where it is decoded to, fp32 [elements]. `codec`: of means."""
        sizes = {step.start: step.stop - step.start for step in plan.means()}
        most = [codec.wire_bytes(size) for size in sizes.values()]
        self._sizes, self._places = sizes, dict(zip(sizes, _slices(most), strict=True))
        self._lengths = dict.fromkeys(sizes, 0)
        self._wires = numbers.view(torch.uint8)
        if not codec.exact:
            self._wires = torch.empty(sum(most), dtype=torch.uint8)

    def room(self, step: Step) -> Tensor:
        """For the most that the chunk may take (uint8)."""
        return self._wires[self._places[step.start]]

    def put(self, step: Step, wire: Tensor) -> None:
        """The chunk is at the beginning of its room, and takes no more than this."""
        self._lengths[step.start] = wire.numel()

    def chunk(self, step: Step) -> Tensor:
        """One that was put there."""
        return self.room(step)[: self._lengths[step.start]]

    def encoded(self) -> EncodedMean:
        """When all chunks are there. Call once: shorter ones move together."""
        wires, at = self._wires.numpy(), 0
        for start, place in self._places.items():
            length = self._lengths[start]
            if place.start != at:
                wires[at : at + length] = wires[place.start : place.start + length]
            at += length
        told = [(size, self._lengths[start]) for start, size in self._sizes.items()]
        return EncodedMean(self._wires[:at], torch.tensor(told, dtype=torch.int64).view(-1))


def _slices(lengths: Iterable[int]) -> list[slice]:
    """Of one after the other."""
    ends = list(accumulate(lengths, initial=0))
    return [slice(start, stop) for start, stop in pairwise(ends)]

"""Encoded mean of an exchange: the output of every member.

The mean is the bytes that the owners sent, as they are kept, saved and served. The chunks are in
the order of elements, each as its owner encoded it. Their boundaries depend on the members of the
exchange, so a table of their sizes belongs to the mean.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.swarm.exchange.codec import Codec, NotCanonical, NotFinite
from atom.swarm.exchange.plans import ALIGNMENT, MOST_ELEMENTS, Plan, Step

WIRES, CHUNKS = "wires", "chunks"
_Piece = tuple[slice, slice]
"""Elements of a chunk, and the bytes that encode them."""
_TYPES = {CHUNKS: torch.int64, WIRES: torch.uint8}


@dataclass(frozen=True)
class EncodedMean:
    """Encoded mean with its table of chunks. Read-only."""

    wires: Tensor
    """Encoded chunks, uint8 [bytes]."""
    chunks: Tensor
    """Number of elements and number of bytes of each chunk in turn, int64 [2 · chunks]."""

    @classmethod
    def of(cls, arenas: Mapping[str, Tensor]) -> "EncodedMean":
        """Return the mean in arenas from another peer or from disk.

        Raises:
            PeerRefused: MALFORMED: the names or types of the arenas are not a mean's.
        """
        if {name: arena.dtype for name, arena in arenas.items()} != _TYPES:
            raise PeerRefused(Reason.MALFORMED, f"a mean of {sorted(arenas)[:4]}")
        return cls(arenas[WIRES], arenas[CHUNKS])

    @property
    def arenas(self) -> Mapping[str, Tensor]:
        """Arenas by name, in which the mean is saved and served.

        A commit names the mean by the state digest of these arenas.
        """
        return {CHUNKS: self.chunks, WIRES: self.wires}

    def numbers(self, codec: Codec, elements: int) -> "MeanNumbers":
        """Return the decoded mean, which decodes its chunks as they are read.

        Args:
            codec: Codec of the run.
            elements: Number of elements that the mean must have.

        Raises:
            PeerRefused: MALFORMED: the table of chunks does not fit. Bytes that cannot be decoded
                are not found here, but by `check`.
        """
        return MeanNumbers(codec, self.wires, self._pieces(codec, elements))

    def check(self, codec: Codec, elements: int) -> None:
        """Decode all chunks and discard the numbers, to find bytes that no exchange produces.

        Needs hardly any memory, and uses as many threads as PyTorch may use.

        Raises:
            PeerRefused: MALFORMED or NOT_FINITE.
        """
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
            raise PeerRefused(Reason.MALFORMED, "a mean that no member encoded") from None

    def _pieces(self, codec: Codec, elements: int) -> list[_Piece]:
        """Return the chunks of the table. A table that is too large is refused before it takes more
        memory. Raises: PeerRefused(MALFORMED)."""
        sizes, lengths = self.chunks[::2], self.chunks[1::2]
        fits = (
            self.chunks.numel() <= 2 * elements // ALIGNMENT
            and sizes.shape == lengths.shape
            and bool(((sizes > 0) & (sizes <= MOST_ELEMENTS) & (sizes % ALIGNMENT == 0)).all())
            and (int(sizes.sum()), int(lengths.sum())) == (elements, self.wires.numel())
        )
        pairs = list(zip(sizes.tolist(), lengths.tolist(), strict=True)) if fits else []
        if not fits or not all(codec.fits(length, size) for size, length in pairs):
            raise PeerRefused(Reason.MALFORMED, "the chunks of a mean do not fit")
        here, there = (_slices(each) for each in zip(*pairs, strict=True)) if pairs else ([], [])
        return list(zip(here, there, strict=True))


class MeanNumbers:
    """Numbers of an encoded mean, decoded when they are read; bit-identical on all machines."""

    dtype = torch.float32

    def __init__(self, codec: Codec, wires: Tensor, pieces: Sequence[_Piece]) -> None:
        """Create a view of encoded chunks.

        Args:
            codec: Codec of the chunks.
            wires: Encoded chunks, uint8 [bytes].
            pieces: Elements and bytes of each chunk, in the order of elements, without gaps.
        """
        self._codec, self._wires, self._pieces = codec, wires, pieces
        self._stops = [here.stop for here, _ in pieces]

    def numel(self) -> int:
        """Return the number of elements."""
        return self._stops[-1] if self._stops else 0

    def __getitem__(self, elements: slice) -> Tensor:
        """Return the elements of a slice with step 1 as fp32, in new memory or as a view of the
        mean; the caller only reads them."""
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
    """Memory in which the chunks of a mean are collected as they arrive. Thread-safe.

    Each chunk is put once. In a ring, it may be put once before that, as a partial sum.
    """

    def __init__(self, plan: Plan, codec: Codec) -> None:
        """Reserve the memory. Raises: MemoryError."""
        self.plan, steps = plan, list(plan.means())
        self._codec, self._index = codec, {step.start: n for n, step in enumerate(steps)}
        places = _slices(codec.wire_bytes(step.stop - step.start) for step in steps)
        total_bytes = places[-1].stop if places else 0
        self._rooms, self._wires = places, torch.empty(total_bytes, dtype=torch.uint8)
        self._pieces = [
            (slice(step.start, step.stop), place) for step, place in zip(steps, places, strict=True)
        ]
        self.numbers = MeanNumbers(codec, self._wires, self._pieces)
        """Numbers of the chunks that were put so far."""

    def room(self, step: Step) -> Tensor:
        """Return the memory (uint8) reserved for a chunk: the most that it may take."""
        return self._wires[self._rooms[self._index[step.start]]]

    def numbers_room(self, step: Step) -> Tensor:
        """Return memory (float32) in which to compute a chunk's numbers.

        An exact codec uses the chunk's own memory; other codecs get new memory.
        """
        if self._codec.exact:
            return self.room(step).view(torch.float32)
        return torch.empty(step.stop - step.start)

    def put(self, step: Step, wire: Tensor) -> None:
        """Record that `wire`, the encoded chunk, lies at the beginning of the chunk's memory."""
        index = self._index[step.start]
        at = self._rooms[index].start
        self._pieces[index] = slice(step.start, step.stop), slice(at, at + wire.numel())

    def chunk(self, step: Step) -> Tensor:
        """Return the encoded bytes of a chunk that was put."""
        return self._wires[self._pieces[self._index[step.start]][1]]

    def encoded(self) -> EncodedMean:
        """Return the encoded mean, once all chunks were put. Call it once only.

        Gaps between the chunks are closed, so `numbers` must not be read afterwards.
        """
        wires, at = self._wires.numpy(), 0
        pairs = [(here.stop - here.start, there.stop - there.start) for here, there in self._pieces]
        for (_, there), (_, length) in zip(self._pieces, pairs, strict=True):
            if there.start != at:
                wires[at : at + length] = wires[there]
            at += length
        return EncodedMean(self._wires[:at], torch.tensor(pairs, dtype=torch.int64).view(-1))


def _slices(lengths: Iterable[int]) -> list[slice]:
    """Return adjacent slices of these lengths."""
    ends = list(accumulate(lengths, initial=0))
    return [slice(start, stop) for start, stop in pairwise(ends)]

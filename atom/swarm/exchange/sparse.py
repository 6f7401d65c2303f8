"""The sparse codec: of every 4,096 numbers the largest few, each as a sign, a level and a place."""

import ctypes
import functools
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from torch import Tensor

from atom.base import kernel_library
from atom.swarm.exchange.codec import Codec, NotCanonical, NotFinite

SOURCE = Path(__file__).with_name("sparse_kernels.c")
CHUNK = 4096
"""Numbers that share two levels."""
_HEADER_BYTES = 6
_NOT_FINITE = 1


class SparseKernels:
    """The compiled loops of `sparse_kernels.c`. Any thread; calls release the interpreter's lock.
    Numbers are float32 [n], contiguous, on the host; the bits are the same on every machine, at
    every `level` of instructions."""

    def __init__(self, library: ctypes.CDLL, level: int | None = None) -> None:
        """`level`: from 0 to `highest_level`, which is taken if none is given."""
        self.highest_level: int = library.atom_highest_level()
        self._level = self.highest_level if level is None else level
        self._encode, self._decode, self._add = (
            library["atom_encode"], library["atom_decode"], library["atom_add"],
        )  # fmt: skip
        self._encode.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int32, c_int32)
        self._encode.restype = c_int64
        self._decode.argtypes = (c_void_p, c_int64, c_void_p, c_int64, c_int32, c_int32)
        self._add.argtypes = (
            c_void_p, c_int64, c_void_p, c_float, c_void_p, c_int64, c_int32, c_int32,
        )  # fmt: skip

    def encode(self, values: Tensor, wire: Tensor, lost: Tensor | None, kept: int) -> int:
        """Returns how many bytes of `wire` were written. Raises: NotFinite."""
        source, count, into = values.data_ptr(), values.numel(), wire.data_ptr()
        left = None if lost is None else lost.data_ptr()
        size: int = self._encode(source, into, left, count, kept, self._level)
        if size < 0:
            raise NotFinite
        return size

    def decode(self, wire: Tensor, out: Tensor, kept: int) -> None:
        """Raises: NotFinite, NotCanonical."""
        source, size, count = wire.data_ptr(), wire.numel(), out.numel()
        _raise_if(self._decode(source, size, out.data_ptr(), count, kept, self._level))

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor, kept: int) -> None:
        """Raises: NotFinite, NotCanonical."""
        source, size, count = wire.data_ptr(), wire.numel(), out.numel()
        addend, target = own.data_ptr(), out.data_ptr()
        _raise_if(self._add(source, size, addend, factor, target, count, kept, self._level))


@functools.cache
def sparse_kernels() -> SparseKernels:
    """With the widest instructions of this processor. Raises: MismatchError, if not compiled."""
    return SparseKernels(kernel_library.load(SOURCE))


def _raise_if(wrong: int) -> None:
    if wrong:
        raise NotFinite if wrong == _NOT_FINITE else NotCanonical


class Sparse(Codec):
    """Of each chunk of 4,096 numbers the `kept` of the largest magnitude, of equal ones the first;
    what is below 2^-100 counts as 0, and is never kept. A chunk is a record on the wire:

        count   uint16, at most `kept`; the record of 0 ends here
        levels  two bfloat16, low <= high, at least 2^-100 and finite
        signs   a bit per number, in the order of their places: 1 is negative
        highs   a bit per number: 1 has the high level; if both levels are one, all are 0, else
                both bits occur
        places  Golomb-Rice: b low bits of each gap, then per number its other bits as so many
                zeros and a one. A gap is a place less the one before, less 1. b is the smallest
                with kept · 2^b >= 2,048: 5 of 64, 3 of 256
        zeros   up to a whole byte

    Bits go from a byte's lowest up. The levels are the means of the magnitudes on both sides of a
    border that begins at the mean of all and is moved between the two means four times (Lloyd's
    algorithm; sums in fp32 over eight lanes). So nothing has two forms: decoding refuses all else.
    The last chunk of a part may be shorter, and keeps as many: up to `kept` numbers it is whole.

    The mean of what the members sent has more numbers than each of them sent: it is made sparse
    again.
    """

    name = "sparse"
    element_bytes = 1 / 16
    given_back = 0.9
    fixed_size = False

    def __init__(self, kept: int = 256) -> None:
        """Of a chunk: 16, 32, 64, 128 or 256. Raises: MismatchError, if not compiled."""
        assert kept in (16, 32, 64, 128, 256)
        self._kept, self._kernels = kept, sparse_kernels()

    def wire_bytes(self, elements: int) -> int:
        chunks, rest = divmod(elements, CHUNK)
        return chunks * self._record_bytes(CHUNK) + self._record_bytes(rest)

    def _record_bytes(self, elements: int) -> int:
        """The most that a chunk of so many takes."""
        low_bits = (CHUNK // 2 // self._kept).bit_length() - 1
        bits = min(self._kept, elements) * (3 + low_bits) + (max(elements - 1, 0) >> low_bits)
        return _HEADER_BYTES + -(-bits // 8) if elements else 0

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        wire = self.wire(values, scratch)
        assert wire.numel() == self.wire_bytes(values.numel())
        return wire[: self._kernels.encode(values, wire, lost, self._kept)]

    def decode(self, wire: Tensor, out: Tensor) -> None:
        self._kernels.decode(wire, out, self._kept)

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        self._kernels.add(wire, own, factor, out, self._kept)

"""Sparse codec: sends the largest few of every 4,096 numbers, each as a sign, a level and a place.

The loops are in `sparse_kernels.c`; calls release the interpreter's lock.
"""

import ctypes
import functools
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from torch import Tensor

from atom.base import build_kernels
from atom.swarm.exchange.codec import Codec, NotCanonical, NotFinite

SOURCE = Path(__file__).with_name("sparse_kernels.c")
CHUNK = 4096
"""Number of values that share two levels."""
KEPT, _LOW_BITS = 256, 3
"""Numbers kept of a chunk; and the low bits of a gap, which are sent as they are (not in unary)."""
_HEADER_BYTES = 6
_NOT_FINITE = 1


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the compiled loops.

    Raises:
        MismatchError: The loops are not compiled.
    """
    library = build_kernels.load(SOURCE)
    encode, decode, add = library.atom_encode, library.atom_decode, library.atom_add
    encode.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int32)
    encode.restype = c_int64
    decode.argtypes = (c_void_p, c_int64, c_void_p, c_int64, c_int32)
    add.argtypes = (c_void_p, c_int64, c_void_p, c_float, c_void_p, c_int64, c_int32)
    return library


def highest_level() -> int:
    """Return the highest level of vector instructions that this processor has; 0 is the lowest.

    Raises:
        MismatchError: The loops are not compiled.
    """
    return int(_library().atom_highest_level())


def _record_bytes(elements: int) -> int:
    """Return the most bytes that a chunk of this size takes on the wire."""
    bits = min(KEPT, elements) * (3 + _LOW_BITS) + (max(elements - 1, 0) >> _LOW_BITS)
    return _HEADER_BYTES + -(-bits // 8) if elements else 0


def _raise_if(wrong: int) -> None:
    if wrong:
        raise NotFinite if wrong == _NOT_FINITE else NotCanonical


class Sparse(Codec):
    """Codec that keeps the 256 numbers of the largest magnitude of each chunk of 4,096.

    Of equal magnitudes the first are kept. Magnitudes below 2^-100 count as 0 and are never kept. A
    chunk is one record on the wire:

        count   uint16, at most 256; if it is 0, the record ends here
        levels  two bfloat16, low <= high, at least 2^-100 and finite
        signs   one bit per number, in the order of their places: 1 is negative
        highs   one bit per number: 1 means the high level; if both levels are equal, all bits are
                0, else both 0 and 1 occur
        places  Golomb-Rice: the 3 low bits of each gap, then for each number its other bits in
                unary, as zeros that end with a one. A gap is the distance to the place before,
                less 1
        zeros   padding to a whole byte

    Bits are filled from the lowest of a byte upwards. The levels are the means of the magnitudes on
    both sides of a border. It begins at the mean of all magnitudes and is moved to the middle of
    the two means four times (Lloyd's algorithm; sums in fp32 over eight lanes). So each chunk has
    only one valid encoding, and decoding refuses all others. The last chunk of a part may be
    shorter and also keeps up to 256 numbers: with 256 or fewer it keeps them all.

    The mean of sparse contributions has more numbers than each contribution: it is made sparse
    again.
    """

    name = "sparse"
    element_bytes = 1 / 16
    given_back = 0.9
    fixed_size = False

    def __init__(self, level: int | None = None) -> None:
        """Create a codec.

        Args:
            level: Level of vector instructions, which does not change the result; None: the
                highest that this processor has.

        Raises:
            MismatchError: The loops are not compiled.
        """
        self._library = _library()
        self._level = highest_level() if level is None else level

    def wire_bytes(self, elements: int) -> int:
        chunks, remainder = divmod(elements, CHUNK)
        return chunks * _record_bytes(CHUNK) + _record_bytes(remainder)

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        wire, left = self.wire(values, scratch), None if lost is None else lost.data_ptr()
        assert wire.numel() == self.wire_bytes(values.numel())
        source, into, count = values.data_ptr(), wire.data_ptr(), values.numel()
        size = self._library.atom_encode(source, into, left, count, self._level)
        if size < 0:
            raise NotFinite
        return wire[:size]

    def decode(self, wire: Tensor, out: Tensor) -> None:
        source, size, target, count = wire.data_ptr(), wire.numel(), out.data_ptr(), out.numel()
        _raise_if(self._library.atom_decode(source, size, target, count, self._level))

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        source, size, target, count = wire.data_ptr(), wire.numel(), out.data_ptr(), out.numel()
        addend, level = own.data_ptr(), self._level
        _raise_if(self._library.atom_add(source, size, addend, factor, target, count, level))

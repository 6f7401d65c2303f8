"""The sparse codec: of every 4,096 numbers the largest few, each as a sign, a level and a place.

Its loops are those of `sparse_kernels.c`: calls release the interpreter's lock.
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
"""Numbers that share two levels."""
KEPT, _LOW_BITS = 256, 3
"""Of a chunk; and bits of a gap that are not unary."""
_HEADER_BYTES = 6
_NOT_FINITE = 1


@functools.cache
def _library() -> ctypes.CDLL:
    """The compiled loops. Raises: MismatchError, if they are not compiled."""
    library = build_kernels.load(SOURCE)
    encode, decode, add = library.atom_encode, library.atom_decode, library.atom_add
    encode.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int32)
    encode.restype = c_int64
    decode.argtypes = (c_void_p, c_int64, c_void_p, c_int64, c_int32)
    add.argtypes = (c_void_p, c_int64, c_void_p, c_float, c_void_p, c_int64, c_int32)
    return library


def highest_level() -> int:
    """Of this processor's instructions: 0 is the least. Raises: as `Sparse`."""
    return int(_library().atom_highest_level())


def _record_bytes(elements: int) -> int:
    """The most that a chunk of so many takes."""
    bits = min(KEPT, elements) * (3 + _LOW_BITS) + (max(elements - 1, 0) >> _LOW_BITS)
    return _HEADER_BYTES + -(-bits // 8) if elements else 0


def _raise_if(wrong: int) -> None:
    if wrong:
        raise NotFinite if wrong == _NOT_FINITE else NotCanonical


class Sparse(Codec):
    """Of each chunk of 4,096 numbers the 256 of the largest magnitude, of equal ones the first;
    what is below 2^-100 counts as 0, and is never kept. A chunk is a record on the wire:

        count   uint16, at most 256; the record of 0 ends here
        levels  two bfloat16, low <= high, at least 2^-100 and finite
        signs   a bit per number, in the order of their places: 1 is negative
        highs   a bit per number: 1 has the high level; if both levels are one, all are 0, else
                both bits occur
        places  Golomb-Rice: the 3 low bits of each gap, then per number its other bits as so many
                zeros and a one. A gap is a place less the one before, less 1
        zeros   up to a whole byte

    Bits go from a byte's lowest up. The levels are the means of the magnitudes on both sides of a
    border that begins at the mean of all and is moved between the two means four times (Lloyd's
    algorithm; sums in fp32 over eight lanes). So nothing has two forms: decoding refuses all else.
    The last chunk of a part may be shorter, and keeps as many: up to 256 numbers it is whole.

    The mean of what the members sent has more numbers than each of them sent: it is made sparse
    again.
    """

    name = "sparse"
    element_bytes = 1 / 16
    given_back = 0.9
    fixed_size = False

    def __init__(self, level: int | None = None) -> None:
        """`level` of instructions, which change no bit; None: the highest. Raises: MismatchError,
        if not compiled."""
        self._library = _library()
        self._level = highest_level() if level is None else level

    def wire_bytes(self, elements: int) -> int:
        chunks, rest = divmod(elements, CHUNK)
        return chunks * _record_bytes(CHUNK) + _record_bytes(rest)

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

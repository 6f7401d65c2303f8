"""How numbers look on the wire: encoded once by their sender, decoded as often as they are read.

A mean is encoded once, by its owner, and all decode the same bytes. A codec may take any number of
bytes. One whose bytes are of a fixed size may also be used in a ring, which encodes a partial sum
anew at every hop; any other only travels in parts with owners.

The loops over chunks are those of `chunk_kernels.c`: calls release the interpreter's lock and never
split over threads (with other work on the same cores the barriers of such a team collapse: measured
with torch's, a hundred times slower). Each gives the same bits on every machine, at every `level`
of instructions.
"""

import ctypes
import functools
from ctypes import c_float, c_int32, c_int64, c_void_p
from importlib import import_module
from pathlib import Path

import numpy
import torch
from torch import Tensor

from atom.base import build_kernels
from atom.config.run_file import CODECS

SOURCE = Path(__file__).with_name("chunk_kernels.c")
FORMATS = ("float32", "bfloat16", "int8", "int4")
"""How numbers look on the wire; float32 is neither encoded nor decoded."""

_ADD = (c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int32)
_ENCODE = (c_void_p, c_void_p, c_void_p, c_int64, c_int32)
_DECODE = (c_void_p, c_void_p, c_int64, c_int32)
_CHECK = (c_void_p, c_int64, c_float, c_int32)
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


class NotFinite(ArithmeticError):
    """A number that was computed, or came, is infinite, not a number, or larger than it may be."""


class NotCanonical(ArithmeticError):
    """Bytes that no encoder writes."""


class ChunkKernels:
    """The library's functions. Any thread. Numbers are float32 [n], contiguous, on the host."""

    def __init__(self, library: ctypes.CDLL, level: int | None = None) -> None:
        """`level` of instructions, from 0 to `highest_level`, which is taken if none is given."""
        self.highest_level: int = library.atom_highest_level()
        self._level = self.highest_level if level is None else level
        assert 0 <= self._level <= self.highest_level
        self._add = {name: _declared(library, f"add_{name}", _ADD) for name in FORMATS}
        coded = FORMATS[1:]
        self._encode = {name: _declared(library, f"encode_{name}", _ENCODE) for name in coded}
        self._decode = {name: _declared(library, f"decode_{name}", _DECODE) for name in coded}
        self._check = _declared(library, "too_large", _CHECK)

    def add(self, wire_format: str, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        """out = (decoded wire + own) · factor, which is not 0; `own` may be `out`.

        Raises: NotFinite.
        """
        count, addend = own.numel(), _address(own, own.numel())
        target, add = _address(out, count), self._add[wire_format]
        if add(wire.data_ptr(), addend, factor, target, count, self._level):
            raise NotFinite

    def encode(self, wire_format: str, values: Tensor, wire: Tensor, lost: Tensor | None) -> None:
        """Writes `wire`, and to `lost` the values minus what will be decoded.

        Raises: NotFinite if that would not be finite.
        """
        count = values.numel()
        kept = None if lost is None else _address(lost, count)
        source = _address(values, count)
        if self._encode[wire_format](source, wire.data_ptr(), kept, count, self._level):
            raise NotFinite

    def decode(self, wire_format: str, wire: Tensor, out: Tensor) -> None:
        """Writes the numbers in `wire`, others' memory, to `out`. Raises: NotFinite, afterwards."""
        count, decode = out.numel(), self._decode[wire_format]
        if decode(wire.data_ptr(), _address(out, count), count, self._level):
            raise NotFinite

    def require_finite(self, values: Tensor, largest: float = LARGEST_FLOAT32) -> None:
        """Raises: NotFinite, also for what is beyond ± `largest`."""
        if self._check(_address(values, values.numel()), values.numel(), largest, self._level):
            raise NotFinite


@functools.cache
def chunk_kernels() -> ChunkKernels:
    """With the widest instructions of this processor. Raises: MismatchError, if not compiled."""
    return ChunkKernels(build_kernels.load(SOURCE))


def _declared(
    library: ctypes.CDLL, name: str, arguments: tuple[type, ...]
) -> "ctypes._NamedFuncPointer":
    function = library[f"atom_{name}"]
    function.argtypes, function.restype = arguments, c_int32
    return function


def _address(numbers: Tensor, count: int) -> int:
    assert numbers.dtype is torch.float32
    assert numbers.is_contiguous()
    assert numbers.numel() == count
    return numbers.data_ptr()


INT8_BLOCK, INT4_BLOCK = 1024, 64
"""Numbers that share a scale."""


class Codec:
    """fp32 [n] to bytes (uint8 [at most wire_bytes(n)], little-endian) and back. One instance
    serves many threads: it keeps nothing of what it encodes.

    Here, by the compiled loops of its name; codecs of other kinds do it in their own way."""

    name: str
    element_bytes: float
    """Of a number on the wire, about: what buckets are cut by."""
    given_back: float
    """How much of what it takes away a later contribution is to have again: all of it is 1."""
    fixed_size: bool = True
    """Whether a ring may use it: `wire_bytes` is the exact size."""
    exact: bool = False
    """Whether numbers are on the wire as they are in memory."""

    def wire_bytes(self, elements: int) -> int:
        """The most that `elements`, a multiple of 16, take on the wire; at most four each."""
        return int(self.element_bytes * elements)

    def fits(self, length: int, elements: int) -> bool:
        """Whether `elements` may take so many bytes."""
        most = self.wire_bytes(elements)
        return length == most if self.fixed_size else 0 <= length <= most

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Memory for `values` on the wire, of `scratch`."""
        return scratch[: self.wire_bytes(values.numel())]

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        """The bytes of `values`, which are finite, at the start of `wire(values, scratch)`, or
        their own memory; what encoding takes away goes to `lost`. Raises: NotFinite if what will be
        decoded is not."""
        wire = self.wire(values, scratch)
        chunk_kernels().encode(self.name, values, wire, lost)
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the numbers in `wire` to all of `out`. Any bytes may have come.

        Raises: NotFinite; NotCanonical if no encoder wrote it. Then `out` means nothing.
        """
        chunk_kernels().decode(self.name, wire, out)

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        """out = (the numbers in wire + own) · factor; `own` may be `out`. Raises: as `decode`, and
        NotFinite if a sum is not."""
        chunk_kernels().add(self.name, wire, own, factor, out)


class Float32(Codec):
    """Exact, so nothing is copied."""

    name = "float32"
    element_bytes = 4
    given_back = 0.0
    exact = True

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        if lost is not None:
            lost.numpy().fill(0)
        return values.view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if wire.data_ptr() != out.data_ptr():
            numpy.copyto(out.numpy(), wire.view(torch.float32).numpy())
        chunk_kernels().require_finite(out)


class BFloat16(Codec):
    """Half the bytes; rounds to 8 significant bits at every hop of the reduction, once overall in
    the gather."""

    name = "bfloat16"
    element_bytes = 2
    given_back = 0.0


class Int8(Codec):
    """Eight bits per number: blocks of 1,024 share a scale.

        scale = bf16(largest magnitude of the block · fp32(1/127))
        q     = x · fp32(1/scale), rounded to the nearest integer, ties to even: -127 … 127
        x'    = q · scale

    Every operation is one IEEE rounding in fp32, so all machines encode alike, and q · scale is
    exact. Blocks whose scale would fall below 2^-100 become zeros. On the wire: the scales of all
    blocks, then all q. The last block of a chunk may be shorter.

    A quarter of fp32's bytes, at an error of up to 1/254 of the block's largest number per hop.
    """

    name = "int8"
    element_bytes = 1
    given_back = 1.0

    def wire_bytes(self, elements: int) -> int:
        return 2 * -(-elements // INT8_BLOCK) + super().wire_bytes(elements)


class Int4(Codec):
    """Four bits per number: as `Int8`, with blocks of 64 and steps from -7 to 7.

    On the wire: the scales of all blocks, then a byte for every two steps, each plus 8. The low
    bits are a number's of the first half of a block, the high ones its fellow's of the second half;
    of an odd block the last one has none.

    About an eighth of fp32's bytes (17 bits for four numbers), at an error of up to 1/14 of the
    block's largest number per hop.
    """

    name = "int4"
    element_bytes = 1
    given_back = 1.0

    def wire_bytes(self, elements: int) -> int:
        return 2 * -(-elements // INT4_BLOCK) + -(-elements // 2)


EXACT = Float32()


def codec_named(name: str) -> Codec:
    """As a run file calls it: one of the registry's."""
    module, _, kind = CODECS[name].partition(":")
    codec: Codec = getattr(import_module(module), kind)()
    return codec

"""The compiled loops over chunks of `chunk_kernels.c`, as Python calls them.

Calls release the interpreter's lock and never split over threads: with other work on the same
cores the barriers of such a team collapse (measured with torch's: a hundred times slower). Each
gives the same bits on every machine, at every `level` of instructions.
"""

import ctypes
import functools
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from atom.base import kernel_library

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
    return ChunkKernels(kernel_library.load(SOURCE))


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

"""Codecs: conversion of numbers to the bytes that are sent, and back.

A mean is encoded once, by its owner, and all members decode the same bytes. A codec may take any
number of bytes. If its encoded size is fixed, it may also be used in a ring, which encodes a
partial sum again at every hop. All other codecs need parts with owners.

The loops over chunks are in `chunk_kernels.c`. Calls release the interpreter's lock and never use
several threads: with other work on the same cores, such threads wait for each other at every
barrier (measured with torch's: a hundred times slower). Each function gives the same bits on every
machine, at every `level` of instructions.
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
"""Names of the codecs whose loops are in `chunk_kernels.c`; float32 only has the loop `add`."""

_ADD = (c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int32)
_ENCODE = (c_void_p, c_void_p, c_void_p, c_int64, c_int32)
_DECODE = (c_void_p, c_void_p, c_int64, c_int32)
_CHECK = (c_void_p, c_int64, c_float, c_int32)
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


class NotFinite(ArithmeticError):
    """Error of a computed or received number that is infinite, no number, or beyond its bound."""


class NotCanonical(ArithmeticError):
    """Error of received bytes that no encoder writes."""


class ChunkKernels:
    """Functions of the compiled library. Thread-safe.

    Numbers are float32 [n], contiguous, on the host.
    """

    def __init__(self, library: ctypes.CDLL, level: int | None = None) -> None:
        """Bind the functions of the library.

        Args:
            library: Compiled `chunk_kernels.c`.
            level: Level of vector instructions, from 0 to `highest_level`; None: the highest.
        """
        self.highest_level: int = library.atom_highest_level()
        self._level = self.highest_level if level is None else level
        assert 0 <= self._level <= self.highest_level
        self._add = {name: _declared(library, f"add_{name}", _ADD) for name in FORMATS}
        coded = FORMATS[1:]
        self._encode = {name: _declared(library, f"encode_{name}", _ENCODE) for name in coded}
        self._decode = {name: _declared(library, f"decode_{name}", _DECODE) for name in coded}
        self._check = _declared(library, "too_large", _CHECK)

    def add(self, wire_format: str, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        """Compute out = (decoded wire + own) · factor.

        Args:
            wire_format: Name of the codec, one of `FORMATS`.
            wire: Encoded numbers, uint8.
            own: Addend; may be `out`.
            factor: Factor other than 0.
            out: Result, written.

        Raises:
            NotFinite: A number of the wire or of the result is not finite.
        """
        count, addend = own.numel(), _address(own, own.numel())
        target, add = _address(out, count), self._add[wire_format]
        if add(wire.data_ptr(), addend, factor, target, count, self._level):
            raise NotFinite

    def encode(self, wire_format: str, values: Tensor, wire: Tensor, lost: Tensor | None) -> None:
        """Encode `values` into `wire`, and write to `lost` the values minus the decoded numbers.

        Args:
            wire_format: Name of the codec.
            values: Numbers to encode, float32 [n].
            wire: Memory for the bytes.
            lost: Memory for the differences, float32 [n]; None if they are not needed.

        Raises:
            NotFinite: The decoded numbers would not be finite.
        """
        count = values.numel()
        kept = None if lost is None else _address(lost, count)
        source = _address(values, count)
        if self._encode[wire_format](source, wire.data_ptr(), kept, count, self._level):
            raise NotFinite

    def decode(self, wire_format: str, wire: Tensor, out: Tensor) -> None:
        """Decode `wire`, which must not overlap `out`, into `out`.

        Raises:
            NotFinite: A decoded number is not finite; `out` is written all the same.
        """
        count, decode = out.numel(), self._decode[wire_format]
        if decode(wire.data_ptr(), _address(out, count), count, self._level):
            raise NotFinite

    def require_finite(self, values: Tensor, largest: float = LARGEST_FLOAT32) -> None:
        """Raise NotFinite if any value is not finite, or is beyond ± `largest`."""
        if self._check(_address(values, values.numel()), values.numel(), largest, self._level):
            raise NotFinite


@functools.cache
def chunk_kernels() -> ChunkKernels:
    """Return the kernels for the widest instructions of this processor.

    Raises:
        MismatchError: The kernels are not compiled.
    """
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
"""Number of values that share a scale."""


class Codec:
    """Conversion of fp32 [n] to bytes (uint8 [at most wire_bytes(n)], little-endian) and back.

    Thread-safe: an instance has no state that encoding changes. This class calls the compiled loops
    that bear the codec's name; subclasses may override that.
    """

    name: str
    element_bytes: float
    """Bytes of a number on the wire, roughly: a power of two, at most 3 % too low.

    It determines the size of buckets and, unless that is overridden, `wire_bytes`.
    """
    given_back: float
    """Fraction of the encoding error that is added to the next contribution (error feedback)."""
    fixed_size: bool = True
    """True if `wire_bytes` is the exact encoded size, so that a ring may use the codec."""
    exact: bool = False
    """True if numbers have the same bytes on the wire as in memory."""

    def wire_bytes(self, elements: int) -> int:
        """Return the most bytes that `elements` numbers take on the wire.

        They are at most four per number. `elements` is a multiple of 16.
        """
        return int(self.element_bytes * elements)

    def fits(self, length: int, elements: int) -> bool:
        """Return True if encoded `elements` may have this length in bytes."""
        most = self.wire_bytes(elements)
        return length == most if self.fixed_size else 0 <= length <= most

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Return the part of `scratch` into which `values` are encoded."""
        return scratch[: self.wire_bytes(values.numel())]

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        """Encode numbers.

        Args:
            values: Finite numbers, fp32 [n].
            scratch: Memory for the bytes, uint8 [at least wire_bytes(n)].
            lost: Tensor for the values minus the decoded numbers, fp32 [n]; None if not needed.

        Returns:
            Encoded bytes, uint8: the start of `wire(values, scratch)`, or the memory of `values`.

        Raises:
            NotFinite: The decoded numbers would not be finite.
        """
        wire = self.wire(values, scratch)
        chunk_kernels().encode(self.name, values, wire, lost)
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Decode `wire`, which may hold any bytes of a stranger, into the whole of `out`.

        Raises:
            NotFinite: A number is not finite.
            NotCanonical: No encoder wrote these bytes. After an error `out` is undefined.
        """
        chunk_kernels().decode(self.name, wire, out)

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        """Compute out = (decoded wire + own) · factor; `own` may be `out`.

        Raises:
            NotFinite: A number or a result is not finite.
            NotCanonical: As `decode`.
        """
        chunk_kernels().add(self.name, wire, own, factor, out)


class Float32(Codec):
    """Exact codec: encoding copies nothing."""

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
    """Codec with two bytes per number.

    Numbers are rounded to 8 significant bits at every hop of a ring's reduction, and once for the
    gather.
    """

    name = "bfloat16"
    element_bytes = 2
    given_back = 0.0


class Int8(Codec):
    """Eight bits per number; each block of 1,024 numbers shares a scale.

        scale = bf16(largest magnitude of the block · fp32(1/127))
        q     = x · fp32(1/scale), rounded to the nearest integer, ties to even: -127 … 127
        x'    = q · scale

    Every operation is rounded once in fp32 (IEEE), so all machines encode identically, and
    q · scale is exact. Blocks whose scale would be below 2^-100 become zeros. The wire has the
    scales of all blocks, then all q. The last block of a chunk may be shorter.

    Takes a quarter of fp32's bytes. The error is up to 1/254 of the block's largest number per hop.
    """

    name = "int8"
    element_bytes = 1
    given_back = 1.0

    def wire_bytes(self, elements: int) -> int:
        return 2 * -(-elements // INT8_BLOCK) + super().wire_bytes(elements)


class Int4(Codec):
    """Four bits per number; like `Int8`, with blocks of 64 and steps from -7 to 7.

    The wire has the scales of all blocks, then one byte for every two steps, each plus 8. The low
    four bits hold a step of the first half of the block, the high four bits the step at the same
    place of the second half. If a block has an odd size, the last step of its first half is alone.

    Takes about an eighth of fp32's bytes (17 bits for four numbers). The error is up to 1/14 of the
    block's largest number per hop.
    """

    name = "int4"
    element_bytes = 1
    given_back = 1.0

    def wire_bytes(self, elements: int) -> int:
        return 2 * -(-elements // INT4_BLOCK) + -(-elements // 2)


EXACT = Float32()


def codec_named(name: str) -> Codec:
    """Return the codec with this name in a run file: a key of `CODECS`."""
    module, _, kind = CODECS[name].partition(":")
    codec: Codec = getattr(import_module(module), kind)()
    return codec

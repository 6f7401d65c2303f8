"""How numbers look on the wire: encoded once by their sender, decoded as often as they are read.

A mean is encoded once, by its owner, and all decode the same bytes. A codec may take any number of
bytes. One whose bytes are of a fixed size may also be used in a ring, which encodes a partial sum
anew at every hop; any other only travels in parts with owners.
"""

from abc import ABC, abstractmethod
from importlib import import_module

import numpy
import torch
from torch import Tensor

from atom.config.run_file import CODECS
from atom.swarm.exchange.chunk_kernels import chunk_kernels

INT8_BLOCK, INT4_BLOCK = 1024, 64
"""Numbers that share a scale."""


class Codec(ABC):
    """fp32 [n] to bytes (uint8 [at most wire_bytes(n)], little-endian) and back. One instance
    serves many threads: it keeps nothing of what it encodes."""

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

    @abstractmethod
    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        """The bytes of `values`, which are finite, at the start of `wire(values, scratch)`, or
        their own memory; what encoding takes away goes to `lost`. Raises: NotFinite if what will be
        decoded is not."""

    @abstractmethod
    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the numbers in `wire` to all of `out`. Any bytes may have come.

        Raises: NotFinite; NotCanonical if no encoder wrote it. Then `out` means nothing.
        """

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        """out = (the numbers in wire + own) · factor; `own` may be `out`. Raises: as `decode`, and
        NotFinite if a sum is not."""
        numbers = torch.empty(own.numel())
        self.decode(wire, numbers)
        chunk_kernels().add("float32", numbers.view(torch.uint8), own, factor, out)


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

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        chunk_kernels().add(self.name, wire, own, factor, out)


class _Rounded(Codec):
    """What the codecs that round have in common."""

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        wire = self.wire(values, scratch)
        chunk_kernels().encode(self.name, values, wire, lost)
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        chunk_kernels().decode(self.name, wire, out)

    def add(self, wire: Tensor, own: Tensor, factor: float, out: Tensor) -> None:
        chunk_kernels().add(self.name, wire, own, factor, out)


class BFloat16(_Rounded):
    """Half the bytes; rounds to 8 significant bits at every hop of the reduction, once overall in
    the gather."""

    name = "bfloat16"
    element_bytes = 2
    given_back = 0.0


class Int8(_Rounded):
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


class Int4(_Rounded):
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

"""How numbers look on the wire. A codec must be idempotent: encoding what was decoded gives the
same bytes, so that a chunk may be decoded and encoded again at every hop of the gather.
"""

from typing import Protocol

import torch
from torch import Tensor

from atom.swarm import chunk_math
from atom.swarm.int8 import Int8


class Codec(Protocol):
    """fp32 [n] to bytes (uint8 [wire_bytes(n)], little-endian) and back."""

    name: str
    feeds_back: bool
    """Whether it rounds so coarsely that what it took away should be added to the next round's
    gradients."""

    def wire_bytes(self, elements: int) -> int:
        """What `elements` take on the wire; never more than four each."""

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Memory of the right size for `values` on the wire: `scratch`, or their own memory."""

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        """The bytes of `values`, which are finite, in `wire(values, scratch)`."""

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the numbers in `wire` to `out`; `wire` may be out's own memory."""


class Float32:
    """Exact: the bytes are the numbers' own, so nothing is copied."""

    name = "float32"
    feeds_back = False

    def wire_bytes(self, elements: int) -> int:
        return 4 * elements

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        return values.view(torch.uint8)

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        return values.view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if wire.data_ptr() != out.data_ptr():
            chunk_math.copy(wire.view(torch.float32), out)


class BFloat16:
    """Half the bytes; rounds to 8 significant bits at every hop of the reduction, once overall in
    the gather (rounding to nearest even is idempotent)."""

    name = "bfloat16"
    feeds_back = False

    def wire_bytes(self, elements: int) -> int:
        return 2 * elements

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        return scratch[: self.wire_bytes(values.numel())]

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        wire = self.wire(values, scratch)
        chunk_math.copy(values, wire.view(torch.bfloat16))
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        chunk_math.copy(wire.view(torch.bfloat16), out)


CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float32(), BFloat16(), Int8())}

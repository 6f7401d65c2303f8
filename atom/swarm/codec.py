"""How numbers look on the wire. A codec must be idempotent: encoding what was decoded gives the
same bytes, so that a chunk may be decoded and encoded again at every hop of the gather.
"""

from typing import Protocol

import torch
from torch import Tensor

from atom.swarm import chunk_math


class Codec(Protocol):
    """fp32 [n] to bytes (uint8 [n · bytes_per_element], little-endian) and back."""

    name: str
    bytes_per_element: int

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        """Memory of the right size for `values` on the wire: `scratch`, or their own memory."""

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        """The bytes of `values`, in `wire(values, scratch)`."""

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Writes the numbers in `wire` to `out`; `wire` may be out's own memory."""


class Float32:
    """Exact: the bytes are the numbers' own, so nothing is copied."""

    name = "float32"
    bytes_per_element = 4

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
    bytes_per_element = 2

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        return scratch[: 2 * values.numel()]

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        wire = self.wire(values, scratch)
        chunk_math.copy(values, wire.view(torch.bfloat16))
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        chunk_math.copy(wire.view(torch.bfloat16), out)


CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float32(), BFloat16())}

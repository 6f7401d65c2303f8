"""Eight bits per number: blocks of 1,024 share a scale.

    scale = bf16(largest magnitude of the block · fp32(1/127))
    q     = x · fp32(1/scale), rounded to the nearest integer, ties to even: -127 … 127
    x'    = q · scale

Every operation is one IEEE rounding in fp32, so all machines encode alike. The scale has eight
significant bits and the block's largest number becomes ±127; so q · scale is exact, and encoding x'
finds the same scale and the same q: that is what makes the codec idempotent. (With a scale in fp32
it is not.) Blocks whose scale would fall below 2^-100 become zeros. On the wire: the scales of all
blocks, then all q. The last block of a chunk may be shorter.

A quarter of fp32's bytes, at an error of up to 1/254 of the block's largest number per hop.
"""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1024
_SMALLEST_SCALE = numpy.float32(2.0**-100)
_PER_STEP = numpy.float32(1 / 127)

_Floats = NDArray[numpy.float32]


class Int8:
    """See `atom.swarm.codec.Codec`, and the module for the formula."""

    name = "int8"
    feeds_back = True

    def wire_bytes(self, elements: int) -> int:
        return 2 * _blocks(elements) + elements

    def wire(self, values: Tensor, scratch: Tensor) -> Tensor:
        return scratch[: self.wire_bytes(values.numel())]

    def encode(self, values: Tensor, scratch: Tensor) -> Tensor:
        wire, numbers = self.wire(values, scratch), values.numpy()
        scales, steps = _parts(wire.numpy(), numbers.size)
        whole = numbers.size // BLOCK * BLOCK
        if whole:
            blocks = whole // BLOCK
            rows = numbers[:whole].reshape(blocks, BLOCK)
            _encode(rows, scales[:blocks], steps[:whole].reshape(blocks, BLOCK))
        if whole < numbers.size:
            _encode(numbers[None, whole:], scales[-1:], steps[None, whole:])
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numbers = out.numpy()
        scales, steps = _parts(wire.numpy(), numbers.size)
        by_block = _widened(scales)[:, None]
        whole = numbers.size // BLOCK * BLOCK
        with numpy.errstate(over="ignore", invalid="ignore"):  # a stranger's scale: found later
            if whole:
                rows = steps[:whole].reshape(-1, BLOCK)
                numpy.multiply(rows, by_block[: len(rows)], out=numbers[:whole].reshape(-1, BLOCK))
            if whole < numbers.size:
                numpy.multiply(steps[whole:], by_block[-1], out=numbers[whole:])


def _encode(rows: _Floats, scales: NDArray[numpy.uint16], steps: NDArray[numpy.int8]) -> None:
    """rows fp32 [blocks, n] into scales [blocks] and steps [blocks, n]."""
    largest = numpy.maximum(rows.max(axis=1), -rows.min(axis=1))
    scale = torch.from_numpy(largest * _PER_STEP).bfloat16().float().numpy()
    scale[scale < _SMALLEST_SCALE] = 0
    scales[:] = scale.view(numpy.uint32) >> 16
    inverse = numpy.zeros_like(scale)
    numpy.divide(numpy.float32(1), scale, out=inverse, where=scale > 0)
    scaled = rows * inverse[:, None]
    numpy.rint(scaled, out=scaled)
    steps[:] = scaled


def _parts(
    wire: NDArray[numpy.uint8], elements: int
) -> tuple[NDArray[numpy.uint16], NDArray[numpy.int8]]:
    end = 2 * _blocks(elements)
    return wire[:end].view(numpy.uint16), wire[end : end + elements].view(numpy.int8)


def _widened(scales: NDArray[numpy.uint16]) -> _Floats:
    return (scales.astype(numpy.uint32) << 16).view(numpy.float32)


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)

"""The noise that moments in sixteen bits are rounded with: its keys, and itself on a device.

On a device it is the same function of an element's number as `noise_of` in `host_kernels.c`, in
numbers of 64 bits that are cut to 32: torch has no unsigned arithmetic on every device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LOW_32 = 0xFFFFFFFF
FIRST_FACTOR = 0x7FEB352D
SECOND_FACTOR = 0x846CA68B - 2**32
"""Less 2³², which changes nothing in the lower half and keeps products within 63 bits."""


def noise_key(seed: int, step: int) -> int:
    """64 bits that differ from step to step and from run to run."""
    return mixed(mixed(seed) ^ step)


def key_of(noise_key: int, element: int) -> int:
    """For all elements whose numbers have the upper 32 bits of this one's."""
    return mixed(noise_key ^ mixed(element >> 32))


def mixed(number: int) -> int:
    """The finaliser of SplitMix64, as the kernel has it: a permutation of 64-bit numbers."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def round_at_random(
    moments: Sequence[tuple[Tensor, Tensor]], noise: tuple[int, int], scratch: Sequence[Tensor]
) -> None:
    """Rounds each of two float32 [n] into the bfloat16 [n] beside it: up with the probability of
    what is cut off.

    `noise`: the number of the first element (below 2³², as all of them) and the key of its step and
    of its number's upper half. `scratch`: three of 8 bytes per element, overwritten; what they held
    does not matter.
    """
    elements = len(moments[0][0])
    noises, bits, spare = (buffer[:elements].view(torch.int64) for buffer in scratch)
    _noise_of(*noise, out=noises, spare=spare)
    for (wide, narrow), shift in zip(moments, (0, 16), strict=True):
        torch.bitwise_right_shift(noises, shift, out=spare)
        bits.copy_(wide.view(torch.int32)).add_(spare.bitwise_and_(0xFFFF))
        narrow.view(torch.int16).copy_(bits.bitwise_right_shift_(16))


def _noise_of(first: int, key: int, out: Tensor, spare: Tensor) -> None:
    """The elements' numbers are counted here, each time: what was counted when memory was taken
    would have been written on another stream."""
    torch.arange(first, first + len(out), out=out)
    out.bitwise_xor_(key & LOW_32)
    _fold(out, 16, spare)
    out.mul_(FIRST_FACTOR).bitwise_and_(LOW_32)
    _fold(out, 15, spare)
    out.add_(key >> 32).bitwise_and_(LOW_32)
    out.mul_(SECOND_FACTOR).bitwise_and_(LOW_32)
    _fold(out, 16, spare)


def _fold(x: Tensor, shift: int, spare: Tensor) -> None:
    torch.bitwise_right_shift(x, shift, out=spare)
    x.bitwise_xor_(spare)

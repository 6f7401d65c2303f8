"""AdamW on buckets in device memory: the host kernel's formula in torch operations, its very bits.

Replicas choose by themselves how much of a step the device takes, so it must not show. Each
operation below is one IEEE 754 operation on float32, as in `host_kernels.c`, or an operation on
integers; fused multiply-adds are put together (`atom.optim.fused_multiply_add`). What is
avoided, because its rounding is the compiler's or the library's choice: `addcmul`, `addcdiv` and
`lerp`, a divisor that is a number of Python's, and what `torch.compile` makes.

Results go into memory that was there before: nothing is allocated per step.

One thing is not the same: which bits a number that is none has. Processors differ there, too. So a
bucket whose weights come out as no number is told (`update`), and left to the host.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from atom.optim.bucket import GRADIENT, WORKING, Bucket
from atom.optim.fused_multiply_add import SCRATCH_BYTES as FUSED_SCRATCH_BYTES
from atom.optim.fused_multiply_add import FusedMultiplyAdd, Memory
from atom.optim.noise import round_at_random
from atom.swap.state_form import HIGH, LOW, MASTER, MOMENTS, StateForm

SCRATCH_TENSORS = 4
"""float32, for what a state's form does not hold as such."""


TRAFFIC_BYTES = {StateForm.EXACT: 750, StateForm.SPLIT: 800, StateForm.HALF: 1250}
"""Of the device's memory, per element, that all operations of an update read and write."""
KERNELS = {StateForm.EXACT: 49, StateForm.SPLIT: 55, StateForm.HALF: 83}
"""That an update launches, the copy of its verdict included."""


class DeviceAdamW:
    """Scratch for buckets of so many elements, used one after the other, in one order of
    operations. What it holds between two updates does not matter."""

    def __init__(self, elements: int, form: StateForm, memory: Memory) -> None:
        self._fused = FusedMultiplyAdd(elements, memory)
        self._spare = tuple(memory(elements, torch.float32) for _ in range(SCRATCH_TENSORS))
        self._form = form

    def update(
        self, bucket: Bucket, given: Tensor, moves_far: bool, noise: tuple[int, int], bad: Tensor
    ) -> None:
        """One step on the beginning of a bucket. `given`: its gradient (`Bucket.gradient`), as it
        came. `moves_far`: β₁ is a half or less. `noise`: the number of the first element and the
        step's key, for moments that are rounded at random. `bad` (bool, no dimensions, on the
        device) becomes whether a weight is no number: then the bucket is worth nothing."""
        elements = len(given)
        arena = {name: whole[:elements] for name, whole in bucket.arenas.items()}
        spare, weight, mean, square = (whole[:elements] for whole in self._spare)
        gradient, number = arena[GRADIENT], bucket.scalars
        if self._form.splits:
            _join(arena[HIGH], arena[LOW], weight)
        else:
            weight = arena[MASTER]
        if self._form is not StateForm.HALF:
            mean, square = (arena[name] for name in MOMENTS)
        else:
            mean.copy_(arena[MOMENTS[0]])
            square.copy_(arena[MOMENTS[1]])

        if given.dtype != gradient.dtype:  # it lies where the wide one is to be
            given = spare.copy_(given)
        torch.mul(given, number["coefficient"], out=gradient)
        torch.sub(gradient, mean, out=spare)
        self._fused(spare, number["mean_weight"], gradient if moves_far else mean, out=mean)
        torch.mul(gradient, number["one_minus_beta2"], out=spare)
        square.mul_(number["beta2"])
        self._fused(spare, gradient, square, out=square)
        self._square_root(square, out=spare)
        spare.div_(number["root_of_correction2"]).add_(number["epsilon"])
        torch.mul(mean, number["minus_step_size"], out=gradient)
        gradient.div_(spare)
        weight.mul_(number["decay"]).add_(gradient)

        flags = self._fused.flags[:elements]
        torch.ne(weight, weight, out=flags)
        torch.any(flags, dim=0, out=bad)
        self._keep(arena, weight, (mean, square), spare, noise)

    def _keep(
        self,
        arena: Mapping[str, Tensor],
        weight: Tensor,
        moments: tuple[Tensor, Tensor],
        spare: Tensor,
        noise: tuple[int, int],
    ) -> None:
        """What was computed, in the forms in which the arenas have it."""
        if self._form.splits:
            _split(weight, arena[HIGH], arena[LOW], spare)
        elif WORKING in arena:
            arena[WORKING].copy_(weight)
        if self._form is StateForm.HALF:
            kept = tuple((wide, arena[name]) for wide, name in zip(moments, MOMENTS, strict=True))
            round_at_random(kept, noise, self._fused.wide[:3])

    def _square_root(self, value: Tensor, out: Tensor) -> None:
        """By way of float64. torch's own in float32 is off by a last bit on CPUs, where it leaves
        it to a library; in float64 that much cannot reach a border of float32, since no square
        root of 24 bits lies closer to one than 2⁻⁵⁰ of itself."""
        wide = self._fused.wide[0][: len(value)]
        out.copy_(wide.copy_(value).sqrt_())


def scratch_bytes(elements: int) -> int:
    """What a `DeviceAdamW` takes."""
    return elements * (FUSED_SCRATCH_BYTES + SCRATCH_TENSORS * torch.float32.itemsize)


def _join(high: Tensor, low: Tensor, out: Tensor) -> None:
    bits = out.view(torch.int32)
    bits.copy_(high.view(torch.int16))
    bits.bitwise_left_shift_(16).add_(low)


def _split(value: Tensor, high: Tensor, low: Tensor, spare: Tensor) -> None:
    """As `atom.swap.state_form.split`."""
    bits, upper = value.view(torch.int32), spare.view(torch.int32)
    low.copy_(bits)
    torch.add(bits, 0x8000, out=upper)
    high.view(torch.int16).copy_(upper.bitwise_right_shift_(16))

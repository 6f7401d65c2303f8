"""Does this device compute the optimizer's step as the host does, bit for bit? Tried, not believed.

A fixed block of awkward numbers goes through some steps on both sides: numbers of all sizes,
subnormal ones, zeros of both signs, squares that overflow, neighbours of powers of two. Then come
sums that are half-way between two float32 and 2⁻³⁴ of their distance: who rounds twice, by way of
float64, gets those wrong, and hardly ever another. One bit that differs, anywhere, and the device
gets no share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW, AdamWSettings
from atom.optim.conveyor import Conveyor
from atom.optim.device_share import DeviceShare
from atom.swap.host_store import HostStore
from atom.swap.state_form import MOMENTS, StateForm

BLOCK_ELEMENTS = 2**16
STEPS = (1, 1.0), (2, 0.37), (1000, 1e-3)
"""(number, what the gradient is multiplied by)."""
RATE = 1e-2
TIE_WEIGHT, TIE_DISTANCE = 2049 * 2.0**-51, 2**22 - 2**11 + 1
_SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 2.0**-126, -(2.0**-126 - 2.0**-149), 1e38, -1e38,
    1.8446744e19, -2e19, 1e-19, -1e-23, 1 + 2.0**-23, -(1 - 2.0**-24), 0.1, 2.0**24, -(2.0**24 - 1),
)  # fmt: skip


def difference(
    conveyor: Conveyor, settings: AdamWSettings, precision: torch.dtype, form: StateForm
) -> str:
    """What is not the same, in words; empty: every bit is. Breaks nothing off by itself."""
    layout = _layout(conveyor.elements)
    count = layout.total_elements
    moments = _numbers(count, 3), _numbers(count, 4).abs()
    gradients = [_numbers(count, 10 + number) for number, _ in STEPS]
    trial = _Trial(conveyor, settings, precision, form, layout)
    if found := trial.run(moments, gradients):
        return found
    mean, gradient = _ties(count)
    near = replace(trial, settings=replace(settings, betas=(1 - TIE_WEIGHT, settings.betas[1])))
    return near.run((mean, moments[1]), [gradient])


@dataclass(frozen=True)
class _Trial:
    conveyor: Conveyor
    settings: AdamWSettings
    precision: torch.dtype
    form: StateForm
    layout: ParameterLayout

    def run(self, moments: tuple[Tensor, Tensor], gradients: Sequence[Tensor]) -> str:
        ours, theirs = self._store(moments), self._store(moments)
        host = AdamW(ours, self.settings, threads=1)
        share = DeviceShare(self.conveyor, 1.0, least_elements=1)
        beside = AdamW(theirs, self.settings, threads=0, share=share)
        for gradient, (number, coefficient) in zip(gradients, STEPS, strict=False):
            before = self.conveyor.updated_elements
            host.step(gradient, RATE, number, coefficient)
            beside.step(gradient, RATE, number, coefficient)
            if self.conveyor.updated_elements == before:
                return "it updates nothing"
            if found := _differing(ours, theirs):
                return found
        return ""

    def _store(self, moments: tuple[Tensor, Tensor]) -> HostStore:
        store = HostStore.allocate(self.layout, self.precision, form=self.form)
        for seed, spec in enumerate(self.layout.specs):
            store.write_weights(spec.name, _numbers(spec.numel, seed).view(spec.shape))
        for name, value in zip(MOMENTS, moments, strict=True):
            store.state[name].copy_(value)
        store.round_master()
        return store


def _layout(most_elements: int) -> ParameterLayout:
    """A parameter that decays, and one that does not, of an odd number of elements."""
    width = min(64, most_elements)
    rows = min(BLOCK_ELEMENTS // 2, most_elements) // width
    return ParameterLayout.of({"decays": (rows, width), "stays": (max(1, rows * width - 1),)})


def _numbers(count: int, seed: int) -> Tensor:
    """[count] float32; a quarter special, usual, of any size, subnormal."""
    generator = torch.Generator().manual_seed(seed)
    kinds, picked = (
        torch.randint(most, (count,), generator=generator) for most in (4, len(_SPECIAL))
    )
    usual = torch.randn(count, generator=generator)
    sized = usual * 2.0 ** torch.randint(-140, 30, (count,), generator=generator)
    subnormal = torch.randint(1, 2**23, (count,), generator=generator).to(torch.int32)
    choices = torch.tensor(_SPECIAL)[picked], usual, sized, subnormal.view(torch.float32)
    return torch.stack(choices).gather(0, kinds[None])[0]


def _ties(count: int) -> tuple[Tensor, Tensor]:
    """First moments m and gradients g, [count] each, for which TIE_WEIGHT · (g - m) + m is above
    the middle between m and the float32 after it by 2⁻³⁴ of their distance.

    TIE_WEIGHT is 2049 · 2⁻⁵¹, and g - m is 2²² - 2¹¹ + 1 times 2^y, without rounding. Their product
    is 2³³ + 1 times 2^(y-51); m is 64 to 127 times 2^y, so half of that distance is 2^(y-18).
    """
    number = torch.arange(count)
    size = 2.0 ** (number // 128 % 64 - 50) * (1 - 2 * (number // 64 % 2))
    mean = (64 + number % 64) * size
    return mean, (64 + number % 64 + TIE_DISTANCE) * size


def _differing(ours: HostStore, theirs: HostStore) -> str:
    for name in (*ours.state, "working"):
        one, other = (
            store.working if name == "working" else store.state[name] for store in (ours, theirs)
        )
        bits = torch.int32 if one.element_size() == 4 else torch.int16
        if count := int((one.view(bits) != other.view(bits)).sum()):
            return f"{count} of {len(one)} elements of {name} differ"
    return ""

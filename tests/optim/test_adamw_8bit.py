"""Moments in 8 bits: plain PyTorch's steps, bit by bit."""

import pytest
import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from atom.graph.ir import ParameterLayout, ParameterSpec, padded_elements
from atom.optim import optimizer as optimizer_module
from atom.optim import stepper as stepper_module
from atom.optim.adamw import EXPONENTS, MOMENTS, AdamW8Bit, noise_key
from atom.swap.host_kernels import MOMENT_BLOCK
from tests.one_step import allocate_store, take_step
from tests.swap.rounded_sums import noise_of

SHAPES = {"odd": (37, 53), "bias": (7,), "long": (2, 700)}
LAYOUT = ParameterLayout.of(SHAPES)
SETTINGS = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.2, "seed": 5}
RATE, STEPS, CLIP = 0.05, 5, 0.37


# ---- the same formula in plain PyTorch


def squares(exponent: int) -> Tensor:
    """The numbers of the 256 codes, float64."""
    code = torch.arange(256)
    size = (8 + code % 8).double() / 8
    value = torch.ldexp(size, code // 8 + exponent - 31 - 127)
    value[0] = 0
    return value


def sizes_of_means(exponent: int) -> Tensor:
    """The numbers of the 128 codes without a sign, float64."""
    code = torch.arange(128)
    even = torch.ldexp(code.double() / 8, torch.tensor(exponent - 14 - 127))
    size = torch.ldexp((8 + code % 8).double() / 8, code // 8 - 1 + exponent - 14 - 127)
    return torch.where(code < 8, even, size)


def exponent_over(values: Tensor) -> int:
    """Return the exponent of the block's largest number, rounded up to 3 bits of mantissa.

    It is biased as in a float32.
    """
    size, power = torch.frexp(values.abs().max().double())
    eighths = torch.ceil(size * 16)
    return max(int(power) - 1 + int(eighths == 16) + 127, 32) if size else 32


def code_of(value: Tensor, table: Tensor, noise: Tensor) -> Tensor:
    """The place in the table below the value, or the next with the probability of the rest."""
    code = torch.searchsorted(table, value, right=True) - 1
    below, above = table[code], table[(code + 1).clamp(max=len(table) - 1)]
    share = torch.where(above > below, (value - below) / (above - below), 0.0)
    return code + (share * 2**20 + noise * 16 >= 2**20)


def encoded(mean: Tensor, square: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """A block's numbers, float32, as codes and exponents. `noise`: 32 bits each."""
    exponents = exponent_over(mean), exponent_over(square)
    table = sizes_of_means(exponents[0])
    size, least = mean.abs(), table[8].float()
    near = (size + least).double() - least  # rounded as float32 does
    size = torch.where(size < least, near, size.double())
    code = code_of(size, table, noise & 0xFFFF) + 128 * mean.signbit()
    of_square = code_of(square.double(), squares(exponents[1]), noise >> 16).clamp(min=1)
    return code, torch.where(square == 0, 0, of_square), *exponents


class Plain:
    """One parameter: PyTorch's fused step on wide moments, which are then put into 8 bits."""

    def __init__(self, spec: ParameterSpec, weights: Tensor) -> None:
        self.spec, padding = spec, padded_elements(spec.numel) - spec.numel
        self.pad = lambda value: torch.nn.functional.pad(value.flatten(), (0, padding))
        self.weights = self.pad(weights)
        self.mean, self.square = (torch.zeros_like(self.weights) for _ in MOMENTS)
        self.state: list[Tensor] = []

    def step(self, gradient: Tensor, number: int) -> None:
        decay = SETTINGS["weight_decay"] if len(self.spec.shape) > 1 else 0.0
        torch_adamw(
            [self.weights], [self.pad(gradient) * CLIP], [self.mean], [self.square], [],
            [torch.tensor(float(number - 1))], fused=True, amsgrad=False, lr=RATE,
            beta1=0.9, beta2=0.95, weight_decay=decay, eps=1e-8, maximize=False,
        )  # fmt: skip
        numbers = range(self.spec.offset, self.spec.offset + self.spec.numel)
        noise = torch.tensor([noise_of(each, noise_key(5, number)) for each in numbers])
        moments = (each[: self.spec.numel].split(MOMENT_BLOCK) for each in (self.mean, self.square))
        blocks = list(map(encoded, *moments, noise.split(MOMENT_BLOCK)))
        self.state = [torch.cat([block[n] for block in blocks]) for n in range(2)]
        self.state += [torch.tensor([block[n] for block in blocks]) for n in (2, 3)]
        wide = [
            (torch.cat([sizes_of_means(e), -sizes_of_means(e)])[code], squares(f)[other])
            for code, other, e, f in blocks
        ]
        means, squared = zip(*wide, strict=True)
        self.mean, self.square = (self.pad(torch.cat(each)).float() for each in (means, squared))


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return numbers of very different sizes, and a few zeros."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator) ** 9
    return value * (torch.rand(shape, generator=generator) > 0.05)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_are_plain_pytorchs_on_any_threads_and_instructions(
    level: int, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepper_module, "step_threads", lambda *given: 3)
    monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", 2 * MOMENT_BLOCK)
    store = allocate_store(AdamW8Bit(**SETTINGS), LAYOUT, precision)
    plain = {spec.name: Plain(spec, normal(spec.shape, spec.numel)) for spec in LAYOUT.specs}
    for spec in LAYOUT.specs:
        store.write_weights(spec.name, normal(spec.shape, spec.numel))
    for number in range(1, STEPS + 1):
        gradient = torch.zeros(LAYOUT.total_elements)
        for spec in LAYOUT.specs:
            given = normal(spec.shape, 1000 * number + spec.numel)
            LAYOUT.view(gradient, spec.name).copy_(given)
            plain[spec.name].step(given, number)
        take_step(AdamW8Bit(**SETTINGS), store, gradient, RATE, number, CLIP)
        for name, each in plain.items():
            expected = each.weights[: each.spec.numel].view(each.spec.shape)
            assert torch.equal(store.weights(name), expected), (name, number)
            for kept, codes in zip((*MOMENTS, *EXPONENTS), each.state, strict=True):
                ours = store.arenas[kept].layout.view(store.state[kept], name)
                assert torch.equal(ours.flatten().long(), codes), (name, number, kept)
                assert ours.element_size() == 1


def test_a_square_never_becomes_zero_and_is_right_in_the_mean() -> None:
    """Zero under a mean that is none would be a step without bounds."""
    layout = ParameterLayout.of({"all": (MOMENT_BLOCK,)})
    gradient = torch.full((MOMENT_BLOCK,), 0.37)
    gradient[0], gradient[1], gradient[2] = 1e3, 1e-12, 0.0
    found = []
    for seed in range(200):
        store = allocate_store(AdamW8Bit(betas=(0.0, 0.5), seed=seed), layout)
        take_step(AdamW8Bit(betas=(0.0, 0.5), seed=seed), store, gradient, RATE, 1)
        exponents = [int(store.state[name][0]) for name in EXPONENTS]
        mean, square = (store.state[name].long() for name in MOMENTS)
        assert square[1] > 0
        assert (mean[2], square[2]) == (0, 0)
        found.append(
            torch.stack([sizes_of_means(exponents[0])[mean[3:]], squares(exponents[1])[square[3:]]])
        )
    mean, square = torch.stack(found).mean((0, 2))
    assert float(mean) == pytest.approx(0.37, rel=0.01)
    assert float(square) == pytest.approx(0.5 * 0.37**2, rel=0.005)

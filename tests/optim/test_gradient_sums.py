"""Sums that are partly on the device, and their norm and division for a step."""

import itertools

import pytest
import torch

from atom.graph.ir import ParameterLayout
from atom.optim import clipping
from atom.optim.adamw import AdamW
from atom.optim.clipping import GradientSums, gradient_norm
from atom.optim.gradients import GradientArena
from atom.swap.device import CpuDevice
from tests.one_step import allocate_store

SHAPES = {"a": (300,), "b": (17,), "c": (40, 40), "d": (7,), "e": (13, 19)}
ALL_OF_THEM = list(
    itertools.chain.from_iterable(itertools.combinations(SHAPES, n) for n in range(1, 6))
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "LANES", 16)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 64)


@pytest.mark.parametrize("names", ALL_OF_THEM)
def test_norm_and_division_do_not_depend_on_where_they_are(names: tuple[str, ...]) -> None:
    layout = ParameterLayout.of(SHAPES)
    store, device = allocate_store(AdamW(), layout), CpuDevice()
    plain = torch.zeros(layout.total_elements)
    for number, spec in enumerate(layout.specs):
        part = layout.view(plain, spec.name)
        part.copy_(torch.randn(spec.shape, generator=torch.Generator().manual_seed(number)))
    store.gradients.copy_(plain)
    on_device = store.live_on(device, frozenset(names))
    on_device.sums_to_device()
    for name in names:
        layout.view(store.gradients, name).fill_(float("nan"))
    sums = GradientSums(GradientArena(store.gradients, on_device=on_device))
    assert sums.norm() == gradient_norm(plain)
    sums.divide(3)
    for spec in layout.specs:
        found = sums[spec.offset : spec.offset + spec.numel]
        assert torch.equal(found, plain[spec.offset : spec.offset + spec.numel] / 3)
    on_device.leave()
    assert sums.norm() == gradient_norm(plain / 3)

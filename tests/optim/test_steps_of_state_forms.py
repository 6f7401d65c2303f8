"""The optimizer on split weights and on moments in sixteen bits, against the exact form."""

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim import adamw
from atom.optim import optimizer as optimizer_module
from atom.optim import stepper as stepper_module
from atom.optim.adamw import MOMENTS, AdamW, mixed, noise_key
from atom.swap.host_kernels import (
    LIBRARY,
    SPLIT_MASTER,
    AdamWArguments,
    HostKernels,
    host_kernels,
    load,
)
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from tests.one_step import allocate_store, take_step

LAYOUT = ParameterLayout.of({"matrix": (37, 53), "bias": (7,), "long": (4099,)})
SETTINGS = AdamW(betas=(0.9, 0.99), epsilon=1e-7, weight_decay=0.2, seed=5)


@pytest.fixture(params=range(host_kernels().highest_level + 1))
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of instructions: plain ones, and whatever this processor has beyond."""
    kernels = HostKernels(load(LIBRARY), request.param)
    monkeypatch.setattr(adamw, "host_kernels", lambda: kernels)
    return request.param


def filled_store(form: StateForm) -> HostStore:
    store = allocate_store(AdamW(), LAYOUT, torch.bfloat16, form=form)
    for number, spec in enumerate(LAYOUT.specs):
        generator = torch.Generator().manual_seed(number)
        store.write_weights(spec.name, torch.randn(spec.shape, generator=generator))
    store.round_master()
    return store


def gradient(step: int) -> Tensor:
    flat = torch.zeros(LAYOUT.total_elements)
    for number, spec in enumerate(LAYOUT.specs):
        generator = torch.Generator().manual_seed(100 * step + number)
        LAYOUT.view(flat, spec.name).copy_(torch.randn(spec.shape, generator=generator))
    return flat


def weights(store: HostStore) -> Tensor:
    return torch.cat([store.weights(spec.name).flatten() for spec in LAYOUT.specs])


def noise(elements: Tensor, step: int, seed: int = SETTINGS.seed) -> Tensor:
    """The kernel's `noise_of` in exact integers: elements and noise as int64."""
    low, high = elements & 0xFFFFFFFF, elements >> 32
    result = torch.empty_like(elements)
    for upper in high.unique().tolist():
        key = mixed(noise_key(seed, step) ^ mixed(upper))
        x = low[high == upper] ^ (key & 0xFFFFFFFF)
        x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        x = (((x ^ x >> 15) + (key >> 32) & 0xFFFFFFFF) * 0x846CA68B) & 0xFFFFFFFF
        result[high == upper] = x ^ x >> 16
    return result


def rounded_with(value: Tensor, sixteen_bits: Tensor) -> Tensor:
    bits = value.view(torch.int32).to(torch.int64) + sixteen_bits
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def test_split_weights_take_the_same_steps(level: int) -> None:
    exact, halves = filled_store(StateForm.EXACT), filled_store(StateForm.SPLIT)
    for step in range(1, 5):
        for store in (exact, halves):
            take_step(SETTINGS, store, gradient(step), 0.01, step, 0.7)
    assert torch.equal(weights(halves), weights(exact))
    for name in MOMENTS:
        assert torch.equal(halves.state[name], exact.state[name])
    assert torch.equal(halves.working, exact.working)  # no weight was a tie


def test_half_moments_are_the_exact_ones_rounded_with_the_documented_noise(level: int) -> None:
    exact, half = filled_store(StateForm.EXACT), filled_store(StateForm.HALF)
    elements = torch.arange(LAYOUT.total_elements)
    for step in range(1, 4):
        for name in MOMENTS:
            exact.state[name].copy_(half.state[name])
        for store in (exact, half):
            take_step(SETTINGS, store, gradient(step), 0.01, step)
        assert torch.equal(weights(half), weights(exact))
        bits = noise(elements, step)
        for name, share in zip(MOMENTS, (bits & 0xFFFF, bits >> 16), strict=True):
            assert torch.equal(half.state[name], rounded_with(exact.state[name], share)), name


@pytest.mark.parametrize("form", [StateForm.SPLIT, StateForm.HALF])
def test_pieces_threads_and_levels_do_not_show(
    form: StateForm, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled_store(form)
    with monkeypatch.context() as plain:
        plain.setattr(adamw, "host_kernels", lambda: HostKernels(load(LIBRARY), 0))
        take_step(SETTINGS, whole, gradient(1), 0.01, 1)
    monkeypatch.setattr(stepper_module, "step_threads", lambda *given: 3)
    for elements in (5, 64, 1024):
        monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", elements)
        store = filled_store(form)
        take_step(SETTINGS, store, gradient(1), 0.01, 1)
        for name, arena in whole.state.items():
            assert torch.equal(store.state[name], arena), name


def test_rounding_at_random_is_right_in_the_mean() -> None:
    """A mean of 1 + 1/1024 lies at an eighth of the way from one bfloat16 to the next."""
    elements = 2**18
    store = allocate_store(
        AdamW(), ParameterLayout.of({"w": (elements,)}), torch.bfloat16, form=StateForm.HALF
    )
    settings = AdamW(betas=(0.5, 0.5), weight_decay=0.0)
    take_step(settings, store, torch.full((elements,), 2 * (1 + 2**-10)), 0.0, 1)
    mean = store.state["exp_avg"].float()
    assert set(mean.unique().tolist()) == {1.0, 1 + 2**-7}
    share = float((mean > 1.0).float().mean())
    assert share == pytest.approx(1 / 8, abs=5 * (1 / 8 * 7 / 8 / elements) ** 0.5)


def test_noise_differs_from_step_to_step_and_from_run_to_run() -> None:
    elements = torch.arange(100_000)
    seen = [noise(elements, 1), noise(elements, 2), noise(elements, 1, seed=6)]
    for first in range(3):
        assert abs(float(torch.corrcoef(torch.stack([seen[first], seen[first - 1]]))[0, 1])) < 0.02
        assert (
            abs(float(torch.corrcoef(torch.stack([seen[first] & 0xFFFF, seen[first] >> 16]))[0, 1]))
            < 0.02
        )
        assert (
            abs(float(torch.corrcoef(torch.stack([seen[first][1:], seen[first][:-1]]))[0, 1]))
            < 0.02
        )


def test_elements_beyond_the_fourth_billion_have_noise_of_their_own(level: int) -> None:
    border, count = 2**32, 64
    first = border - count // 2
    high, low = torch.zeros(count, dtype=torch.bfloat16), torch.zeros(count, dtype=torch.int16)
    means = [torch.zeros(count, dtype=torch.bfloat16) for _ in MOMENTS]
    given = torch.full((count,), 1.001)

    arguments = AdamWArguments(
        master=low.data_ptr(), working=high.data_ptr(), gradient=given.data_ptr(),
        exp_avg=means[0].data_ptr(), exp_avg_sq=means[1].data_ptr(),
        noise_key=noise_key(5, 1), master_format=SPLIT_MASTER, moment_format=1, coefficient=1.0,
        beta2=0.5, one_minus_beta1=0.25, one_minus_beta2=0.5, root_of_correction2=1.0,
        epsilon=1e-8, minus_step_size=-0.1,
    )  # fmt: skip
    HostKernels(load(LIBRARY), level).adamw(arguments, count, first, 1.0)
    bits = noise(torch.arange(first, first + count), 1)
    assert torch.equal(means[0], rounded_with(0.25 * given, bits & 0xFFFF))

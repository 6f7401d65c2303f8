from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atom.graph.ir import ParameterLayout, padded_elements
from atom.optim import adamw
from atom.optim import optimizer as optimizer_module
from atom.optim import stepper as stepper_module
from atom.optim.adamw import AdamW, power
from atom.optim.optimizer import parts_of
from atom.optim.stepper import Stepper, step_threads
from atom.swap.host_kernels import LIBRARY, HostKernels, host_kernels, load
from atom.swap.host_store import HostStore
from atom.swap.readiness import StepFailed
from tests.manual_clock import ManualClock
from tests.one_step import allocate_store, take_step

SHAPES = {
    name: torch.Size(shape)
    for name, shape in {
        "odd": (37, 53), "bias": (7,), "scalar": (), "exact": (16, 4), "long": (4099,),
    }.items()
}  # fmt: skip
SETTINGS = AdamW(betas=(0.9, 0.99), epsilon=1e-7, weight_decay=0.2)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", 64)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Torch's share of a tensor per thread may end where its vectors do not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def filled_store(precision: torch.dtype = torch.float32) -> HostStore:
    store = allocate_store(AdamW(), ParameterLayout.of(SHAPES), precision)
    for spec in store.layout.specs:
        store.layout.view(store.master, spec.name).copy_(values(spec.name, spec.shape))
    store.round_master()
    return store


def values(name: str, shape: tuple[int, ...], step: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name) + 100 * step))


@pytest.fixture(params=range(host_kernels().highest_level + 1))
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of instructions: plain ones, and whatever this processor has beyond."""
    kernels = HostKernels(load(LIBRARY), request.param)
    monkeypatch.setattr(adamw, "host_kernels", lambda: kernels)
    return request.param


def mean_gradient(store: HostStore, step: int) -> Tensor:
    flat = torch.zeros(store.layout.total_elements)
    for spec in store.layout.specs:
        store.layout.view(flat, spec.name).copy_(values(spec.name, spec.shape, step))
    return flat


def padded(value: Tensor) -> Tensor:
    """Flat, and with zeros up to a length that torch's vectors divide: see `atom.optim.adamw`."""
    flat = torch.zeros(padded_elements(value.numel()))
    flat[: value.numel()] = value.flatten()
    return flat


def plain_steps(
    steps: int, rate: float, coefficient: float = 1.0, settings: AdamW = SETTINGS
) -> dict[str, Tensor]:
    parameters = {n: padded(values(n, shape)).requires_grad_() for n, shape in SHAPES.items()}
    groups = [
        {"params": [p for n, p in parameters.items() if len(SHAPES[n]) >= 2]},
        {"params": [p for n, p in parameters.items() if len(SHAPES[n]) < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=rate, betas=settings.betas, eps=settings.epsilon,
        weight_decay=settings.weight_decay, fused=True,
    )  # fmt: skip
    for step in range(1, steps + 1):
        for name, parameter in parameters.items():
            parameter.grad = padded(values(name, SHAPES[name], step)) * coefficient
        optimizer.step()
    shapes = SHAPES.items()
    return {n: parameters[n].detach()[: shape.numel()].view(shape) for n, shape in shapes}


@pytest.mark.usefixtures("small_pieces", "one_torch_thread")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("coefficient", [1.0, 0.37])
def test_bit_equal_to_torch_in_small_pieces(
    level: int, threads: int, coefficient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled_store()
    monkeypatch.setattr(stepper_module, "step_threads", lambda *given: threads)
    for step in range(1, 6):
        take_step(SETTINGS, store, mean_gradient(store, step), 0.01, step, coefficient)
    for name, plain in plain_steps(5, 0.01, coefficient).items():
        assert torch.equal(store.layout.view(store.master, name), plain), name


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("betas", [(0.5, 0.95), (0.3, 0.999), (0.0, 0.0)])
def test_a_mean_that_moves_far_is_torchs_too(level: int, betas: tuple[float, float]) -> None:
    settings = AdamW(betas, 1e-8, 0.0)
    store = filled_store()
    for step in range(1, 4):
        take_step(settings, store, mean_gradient(store, step), 0.1, step)
    for name, plain in plain_steps(3, 0.1, settings=settings).items():
        assert torch.equal(store.layout.view(store.master, name), plain), name


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    results = []
    for elements in (5, 16, 1024, 2**20):
        monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", elements)
        store = filled_store()
        take_step(SETTINGS, store, mean_gradient(store, 1), 0.01, 1)
        results.append(torch.cat([*store.state.values()]))
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_gradient_in_sixteen_bits_counts_as_what_it_says(level: int) -> None:
    store, wide = filled_store(), filled_store()
    gradient = mean_gradient(store, 1).bfloat16()
    take_step(SETTINGS, store, gradient, 0.01, 1, 0.7)
    take_step(SETTINGS, wide, gradient.float(), 0.01, 1, 0.7)
    assert torch.equal(store.master, wide.master)
    assert torch.equal(store.state["exp_avg_sq"], wide.state["exp_avg_sq"])


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 10**6))
def test_powers_are_rounded_once(beta: float, step: int) -> None:
    exact = Context(prec=80).power(Decimal(beta), step)
    assert power(beta, step) == float(exact)
    assert power(beta, step) == pytest.approx(beta**step, rel=1e-13, abs=1e-300)


def test_a_large_box_keeps_half_of_its_cores_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled_store()
    monkeypatch.setattr(stepper_module, "PIECE_ELEMENTS", 1)
    threads = []
    for most in (1, 4, 8, 12, 16, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda most=most: most)
        threads.append(step_threads(AdamW(), parts_of(AdamW(), store)))
    assert threads == [1, 4, 8, 8, 8, 32]


def test_only_matrices_decay() -> None:
    store = filled_store()
    before = store.master.clone()
    take_step(SETTINGS, store, torch.zeros_like(store.master), 0.1, 1)
    view = store.layout.view
    assert torch.equal(view(store.master, "bias"), view(before, "bias"))
    assert view(store.master, "odd").norm() < view(before, "odd").norm()


def test_frozen_parameters_keep_every_bit() -> None:
    store = filled_store()
    before = store.master.clone()
    take_step(SETTINGS, store, mean_gradient(store, 1), 0.1, 1, frozen=frozenset({"odd"}))
    view = store.layout.view
    assert torch.equal(view(store.master, "odd"), view(before, "odd"))
    assert not torch.equal(view(store.master, "exact"), view(before, "exact"))


def test_the_gradient_is_not_changed_and_gaps_stay_zero() -> None:
    store = filled_store()
    gradient = mean_gradient(store, 1)
    before = gradient.clone()
    take_step(SETTINGS, store, gradient, 0.1, 1, 0.5)
    assert torch.equal(gradient, before)
    inside = torch.zeros(store.layout.total_elements, dtype=torch.bool)
    for spec in store.layout.specs:
        inside[spec.offset : spec.offset + spec.numel] = True
    assert not store.master[~inside].any()
    assert not store.state["exp_avg"][~inside].any()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_the_working_copy_is_the_rounded_master(level: int, precision: torch.dtype) -> None:
    store = filled_store(precision)
    version = store.version
    take_step(SETTINGS, store, mean_gradient(store, 1), 0.1, 1)
    assert torch.equal(store.working, store.master.to(precision))
    assert store.version > version


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_every_kind_of_number_is_rounded_to_nearest_even(
    level: int, precision: torch.dtype
) -> None:
    """Ties, subnormal results, what overflows: a step of size zero only rounds."""
    patterns = torch.arange(0, 2**32, 30011, dtype=torch.int64)
    borders = torch.arange(0, 2**32, 2**12, dtype=torch.int64)
    numbers = torch.cat([patterns, borders]).to(torch.int32).view(torch.float32)
    layout = ParameterLayout.of({"numbers": (len(numbers),)})
    store = allocate_store(AdamW(), layout, precision)
    store.master.copy_(torch.cat([numbers, torch.zeros(layout.total_elements - len(numbers))]))
    take_step(SETTINGS, store, torch.zeros(layout.total_elements), 0.0, 1)
    rounded, expected = store.working.float(), store.master.to(precision).float()
    assert torch.equal(rounded.isnan(), expected.isnan())
    assert torch.equal(rounded[~rounded.isnan()], expected[~expected.isnan()])


@pytest.mark.usefixtures("small_pieces")
def test_a_step_that_breaks_off_leaves_the_store_torn_until_it_is_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = filled_store(torch.bfloat16)
    stepper = Stepper(store, SETTINGS, ManualClock())
    gradient, calls, original = mean_gradient(store, 1), [0], HostKernels.adamw

    def failing(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 9:
            raise MemoryError("no room")
        original(*arguments)

    monkeypatch.setattr(HostKernels, "adamw", failing)
    stepper.begin(gradient, 0.01, 1)
    for call in (stepper.wait, lambda: stepper.begin(gradient, 0.01, 1)):
        with pytest.raises(StepFailed, match="MemoryError: no room"):
            call()
    assert stepper.torn
    stepper.discard()
    assert not stepper.torn
    stepper.begin(gradient, 0.01, 2)
    stepper.wait()


@pytest.mark.parametrize("kind", ["short", "float64", "every second"])
def test_gradients_that_do_not_fit_are_refused(kind: str) -> None:
    store = filled_store()
    elements, version = store.layout.total_elements, store.version
    gradient = {
        "short": torch.zeros(3),
        "float64": torch.zeros(elements, dtype=torch.float64),
        "every second": torch.zeros(2 * elements)[::2],
    }[kind]
    with pytest.raises(ValueError, match="does not fit"):
        take_step(SETTINGS, store, gradient, 0.1, 1)
    assert store.version == version


@pytest.mark.usefixtures("small_pieces")
def test_parts_are_in_the_order_of_the_layout_and_cover_it() -> None:
    store = filled_store(torch.bfloat16)
    parts = parts_of(AdamW(), store)
    stretches = [(part.start, part.stop) for part in parts]
    assert stretches == sorted(stretches)
    assert max(stop - start for start, stop in stretches) == 64
    assert sum(stop - start for start, stop in stretches) == sum(
        spec.numel for spec in store.layout.specs
    )
    assert {part.parameter.name for part in parts_of(AdamW(), store, frozenset({"odd"}))} == {
        *SHAPES
    } - {"odd"}

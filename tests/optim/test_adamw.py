"""The optimizer's step: PyTorch's AdamW bit for bit, and its forms against the exact one."""

import itertools
from decimal import Context, Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim import optimizer as optimizer_module
from atom.optim import stepper as stepper_module
from atom.optim.adamw import MOMENTS, AdamW, noise_key, power
from atom.optim.optimizer import parts_of
from atom.optim.stepper import step_threads
from atom.swap.host_kernels import LIBRARY, SPLIT_MASTER, AdamWArguments, HostKernels, load
from atom.swap.host_store import HostStore, StateForm
from tests.one_step import allocate_store, take_step
from tests.swap.padded_adamw import PaddedAdamW
from tests.swap.rounded_sums import noise_of

SHAPES = {"odd": (37, 53), "bias": (7,), "scalar": (), "exact": (16, 4), "long": (4099,)}
SETTINGS = AdamW(betas=(0.9, 0.99), epsilon=1e-7, weight_decay=0.2, seed=5)


def filled_store(
    precision: torch.dtype = torch.float32, form: StateForm = StateForm.EXACT
) -> HostStore:
    store = allocate_store(AdamW(), ParameterLayout.of(SHAPES), precision, form=form)
    for spec in store.layout.specs:
        store.write_weights(spec.name, values(spec.name, spec.shape))
    store.round_master()
    return store


def values(name: str, shape: tuple[int, ...], step: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name) + 100 * step))


def mean_gradient(store: HostStore, step: int) -> Tensor:
    flat = torch.zeros(store.layout.total_elements)
    for spec in store.layout.specs:
        store.layout.view(flat, spec.name).copy_(values(spec.name, spec.shape, step))
    return flat


def plain_steps(steps: int, rate: float, coefficient: float, settings: AdamW) -> dict[str, Tensor]:
    plain = {name: values(name, shape) for name, shape in SHAPES.items()}
    optimizer = PaddedAdamW(plain, settings, rate)
    for step in range(1, steps + 1):
        for name, parameter in plain.items():
            parameter.grad = values(name, SHAPES[name], step) * coefficient
        optimizer.step()
    return plain


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("settings", "coefficient", "threads"),
    [
        (SETTINGS, 1.0, 1),
        (SETTINGS, 0.37, 3),
        (AdamW((0.5, 0.95), 1e-8, 0.0), 1.0, 3),  # a mean that moves far has another formula
        (AdamW((0.3, 0.999), 1e-8, 0.0), 0.37, 1),
        (AdamW((0.0, 0.0), 1e-8, 0.0), 1.0, 1),
    ],
)
def test_weights_are_torchs_and_nothing_else_is_changed(
    level: int,
    settings: AdamW,
    coefficient: float,
    threads: int,
    precision: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", 64)
    monkeypatch.setattr(stepper_module, "step_threads", lambda *given: threads)
    store, view = filled_store(precision), ParameterLayout.of(SHAPES).view
    for step in range(1, 6):
        gradient, version = mean_gradient(store, step), store.version
        take_step(settings, store, gradient, 0.05, step, coefficient)
        assert torch.equal(gradient, mean_gradient(store, step))
        assert store.version > version
    for name, plain in plain_steps(5, 0.05, coefficient, settings).items():
        assert torch.equal(view(store.master, name), plain), name
    assert torch.equal(store.working, store.master.to(precision))
    gaps = torch.ones(store.layout.total_elements, dtype=torch.bool)
    for spec in store.layout.specs:
        gaps[spec.offset : spec.offset + spec.numel] = False
    for arena in store.state.values():
        assert not arena[gaps].any()


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
        threads.append(step_threads(parts_of(AdamW(), store)))
    assert threads == [1, 4, 8, 8, 8, 32]


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


def test_gradients_that_do_not_fit_are_refused() -> None:
    store = filled_store()
    version, fitting = store.version, torch.zeros(store.layout.total_elements)
    for gradient in (fitting[1:], fitting.double(), fitting.repeat(2)[::2]):
        with pytest.raises(ValueError, match="does not fit"):
            take_step(SETTINGS, store, gradient, 0.1, 1)
    assert store.version == version


# --- weights in halves, moments in sixteen bits


def weights(store: HostStore) -> Tensor:
    return torch.cat([store.weights(spec.name).flatten() for spec in store.layout.specs])


def noise(elements: Tensor, step: int, seed: int = SETTINGS.seed) -> Tensor:
    key = noise_key(seed, step)
    return torch.tensor([noise_of(element, key) for element in elements.tolist()])


def rounded_with(value: Tensor, sixteen_bits: Tensor) -> Tensor:
    bits = value.view(torch.int32).to(torch.int64) + sixteen_bits
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("piece", [5, 64, 2**20])
@pytest.mark.parametrize("form", [StateForm.SPLIT, StateForm.HALF])
def test_steps_are_exact_and_half_moments_rounded_with_the_documented_noise(
    form: StateForm, piece: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", piece)
    monkeypatch.setattr(stepper_module, "step_threads", lambda *given: 3)
    exact, other = filled_store(torch.bfloat16), filled_store(torch.bfloat16, form)
    for step in range(1, 4):
        for name in MOMENTS:
            exact.state[name].copy_(other.state[name])
        for store in (exact, other):
            take_step(SETTINGS, store, mean_gradient(store, step), 0.01, step, 0.7)
        assert torch.equal(weights(other), weights(exact))
        assert torch.equal(other.working, exact.working)  # no weight was a tie
        bits = noise(torch.arange(exact.layout.total_elements), step)
        for name, share in zip(MOMENTS, (bits & 0xFFFF, bits >> 16), strict=True):
            moment = exact.state[name]
            expected = rounded_with(moment, share) if form is StateForm.HALF else moment
            assert torch.equal(other.state[name], expected), name


def test_noise_is_even_and_differs_from_step_to_step_and_from_run_to_run() -> None:
    """The mean of numbers that are rounded with even noise is exact."""
    elements = torch.arange(100_000)
    seen = [noise(elements, 1), noise(elements, 2), noise(elements, 1, seed=6)]
    for first, other in itertools.pairwise([*seen, seen[0]]):
        for half in (first & 0xFFFF, first >> 16):
            mean, spread = float(half.double().mean()) / 2**16, float(half.double().std()) / 2**16
            assert mean == pytest.approx(1 / 2, abs=0.005)
            assert spread == pytest.approx(12**-0.5, rel=0.01)
        pairs = [(first, other), (first & 0xFFFF, first >> 16), (first[1:], first[:-1])]
        for pair in pairs:
            assert abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 0.02


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

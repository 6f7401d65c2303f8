from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim import adamw
from atom.optim.adamw import AdamW, AdamWSettings
from atom.swap.host_store import HostStore

SHAPES = {"odd": (37, 53), "bias": (7,), "scalar": (), "exact": (16, 4), "long": (4099,)}
SETTINGS = AdamWSettings(betas=(0.9, 0.99), epsilon=1e-7, weight_decay=0.2)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "PIECE_ELEMENTS", 64)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def filled_store(precision: torch.dtype = torch.float32) -> HostStore:
    store = HostStore.allocate(ParameterLayout.of(SHAPES), precision)
    for spec in store.layout.specs:
        store.layout.view(store.master, spec.name).copy_(values(spec.name, spec.shape))
    store.round_master()
    return store


def values(name: str, shape: tuple[int, ...], step: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name) + 100 * step))


def mean_gradient(store: HostStore, step: int) -> Tensor:
    flat = torch.zeros(store.layout.total_elements)
    for spec in store.layout.specs:
        store.layout.view(flat, spec.name).copy_(values(spec.name, spec.shape, step))
    return flat


def plain_steps(steps: int, rate: float, coefficient: float = 1.0) -> dict[str, Tensor]:
    parameters = {n: values(n, shape).requires_grad_() for n, shape in SHAPES.items()}
    groups = [
        {"params": [p for p in parameters.values() if p.dim() >= 2]},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=rate, betas=SETTINGS.betas, eps=SETTINGS.epsilon,
        weight_decay=SETTINGS.weight_decay, fused=True,
    )  # fmt: skip
    for step in range(1, steps + 1):
        for name, parameter in parameters.items():
            parameter.grad = values(name, SHAPES[name], step) * coefficient
        optimizer.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("coefficient", [1.0, 0.37])
def test_bit_equal_to_torch_in_small_pieces(threads: int, coefficient: float) -> None:
    store = filled_store()
    optimizer = AdamW(store, SETTINGS)
    for step in range(1, 6):
        optimizer.step(mean_gradient(store, step), 0.01, step, coefficient)
    for name, plain in plain_steps(5, 0.01, coefficient).items():
        assert torch.equal(store.layout.view(store.master, name), plain), name


def test_pieces_and_threads_do_not_show(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    results = []
    for elements in (16, 1024, 2**20):
        monkeypatch.setattr(adamw, "PIECE_ELEMENTS", elements)
        store = filled_store()
        AdamW(store, SETTINGS).step(mean_gradient(store, 1), 0.01, 1)
        results.append(torch.cat([store.master, store.exp_avg, store.exp_avg_sq]))
    assert all(torch.equal(result, results[0]) for result in results)


def test_only_matrices_decay() -> None:
    store = filled_store()
    before = store.master.clone()
    AdamW(store, SETTINGS).step(torch.zeros_like(store.master), 0.1, 1)
    view = store.layout.view
    assert torch.equal(view(store.master, "bias"), view(before, "bias"))
    assert view(store.master, "odd").norm() < view(before, "odd").norm()


def test_frozen_parameters_keep_every_bit() -> None:
    store = filled_store()
    before = store.master.clone()
    AdamW(store, SETTINGS, frozenset({"odd"})).step(mean_gradient(store, 1), 0.1, 1)
    view = store.layout.view
    assert torch.equal(view(store.master, "odd"), view(before, "odd"))
    assert not torch.equal(view(store.master, "exact"), view(before, "exact"))


def test_the_gradient_is_not_changed_and_gaps_stay_zero() -> None:
    store = filled_store()
    gradient = mean_gradient(store, 1)
    before = gradient.clone()
    AdamW(store, SETTINGS).step(gradient, 0.1, 1, 0.5)
    assert torch.equal(gradient, before)
    inside = torch.zeros(store.layout.total_elements, dtype=torch.bool)
    for spec in store.layout.specs:
        inside[spec.offset : spec.offset + spec.numel] = True
    assert not store.master[~inside].any()
    assert not store.exp_avg[~inside].any()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_the_working_copy_is_the_rounded_master(precision: torch.dtype) -> None:
    store = filled_store(precision)
    version = store.version
    AdamW(store, SETTINGS).step(mean_gradient(store, 1), 0.1, 1)
    assert torch.equal(store.working, store.master.to(precision))
    assert store.version > version


@pytest.mark.usefixtures("small_pieces")
def test_an_interrupted_step_is_finished_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled_store(torch.bfloat16)
    optimizer = AdamW(store, SETTINGS)
    gradient, calls, original = mean_gradient(store, 1), [0], adamw.adamw

    def failing(*arguments: object, **named: object) -> None:
        calls[0] += 1
        if calls[0] == 9:
            raise MemoryError
        original(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(adamw, "adamw", failing)
    with pytest.raises(MemoryError):
        optimizer.step(gradient, 0.01, 1)
    assert optimizer.torn
    with pytest.raises(ValueError, match="interrupted"):
        optimizer.step(gradient, 0.01, 2)
    optimizer.step(gradient, 0.01, 1)
    assert not optimizer.torn

    whole = filled_store(torch.bfloat16)
    AdamW(whole, SETTINGS).step(gradient, 0.01, 1)
    assert torch.equal(store.master, whole.master)
    assert torch.equal(store.working, whole.working)


@pytest.mark.parametrize("gradient", [torch.zeros(3), torch.zeros(1, dtype=torch.float64)])
def test_gradients_that_do_not_fit_are_refused(gradient: Tensor) -> None:
    store = filled_store()
    optimizer = AdamW(store, SETTINGS)
    with pytest.raises(ValueError, match="does not fit"):
        optimizer.step(gradient, 0.1, 1)
    assert not optimizer.torn


@pytest.mark.usefixtures("small_pieces")
def test_pieces_may_be_updated_in_any_order_from_any_thread() -> None:
    store, whole = filled_store(torch.bfloat16), filled_store(torch.bfloat16)
    gradient = mean_gradient(store, 1)
    AdamW(whole, SETTINGS).step(gradient, 0.01, 1)
    optimizer = AdamW(store, SETTINGS)
    step = optimizer.begin(gradient, 0.01, 1)
    starts = [piece.start for piece in step.pieces]
    assert starts == sorted(starts)
    backwards = range(len(starts) - 1, 0, -1)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(step.update, backwards))
        list(pool.map(step.update, backwards))  # done already
    assert optimizer.torn
    assert not step.finished
    assert [step.is_done(0), step.is_done(1)] == [False, True]
    step.update(0)
    assert step.finished
    optimizer.finish()
    assert not optimizer.torn
    assert torch.equal(store.master, whole.master)
    assert torch.equal(store.working, whole.working)


def test_a_step_begun_again_is_the_unfinished_one() -> None:
    store = filled_store()
    optimizer, gradient = AdamW(store, SETTINGS), mean_gradient(store, 1)
    step = optimizer.begin(gradient, 0.01, 1)
    version = store.version
    step.update(0)
    assert optimizer.begin(gradient, 0.01, 1) is step
    assert store.version == version
    optimizer.discard_unfinished()
    assert not optimizer.torn
    assert optimizer.begin(gradient, 0.01, 1) is not step

"""LAMB and LARS: the papers' steps in plain PyTorch; the same bits whoever computes them."""

from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor

from atom.config.load import parse_run_text
from atom.daemon.model.run_optimizer import optimizer, update_rule
from atom.graph.ir import ParameterLayout
from atom.optim import adamw, clipping, layerwise
from atom.optim.adamw import MOMENTS, AdamW
from atom.optim.clipping import gradient_norm, norm_of_pieces
from atom.optim.layerwise import LAMB, LARS, MOMENTUM, TRUST_COEFFICIENT
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swap.host_kernels import LIBRARY, HostKernels, host_kernels, load
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from tests.one_step import allocate_store, take_step
from tests.training.small_replica import batches, filled, program, same, step_once

SHAPES = {"odd": (37, 53), "bias": (7,), "scalar": (), "cube": (4, 9, 5), "untouched": (3, 3),
          "zeros": (8, 4), "empty": (0, 4)}  # fmt: skip
LAYOUT = ParameterLayout.of(SHAPES)
BETAS, EPSILON, DECAY, RATE, STEPS, CLIP = (0.9, 0.99), 1e-7, 0.2, 0.05, 5, 0.37
GIVEN = {"betas": BETAS, "epsilon": EPSILON, "weight_decay": DECAY, "seed": 5}
RUN = """
run = {{ name = "large" }}
data = {{ source = "python-stdlib" }}
batch = {{ global_sequences = 8, micro_batch_sequences = 1 }}
model = {{ family = "gpt3", size = "small", vocabulary_size = 512 }}
optimizer = {{ name = "{name}", learning_rate = 1e-2, betas = [0.8, 0.9] }}
"""
OPTIMIZERS = pytest.mark.parametrize("new", [LAMB, LARS])


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "PIECE_ELEMENTS", 64)


def first_value(name: str) -> Tensor:
    if name == "zeros":
        return torch.zeros(SHAPES[name])
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))


def gradient_of(name: str, step: int) -> Tensor:
    if name == "untouched":
        return torch.zeros(SHAPES[name])
    generator = torch.Generator().manual_seed(len(name) + 100 * step)
    return torch.randn(SHAPES[name], generator=generator) / 8


def trained(
    optimizer: Optimizer,
    form: StateForm = StateForm.EXACT,
    precision: torch.dtype = torch.float32,
    gradients: torch.dtype = torch.float32,
) -> HostStore:
    """After some steps, each by an optimizer of its own: it keeps nothing."""
    store = allocate_store(optimizer, LAYOUT, precision, form=form)
    for name in SHAPES:
        store.write_weights(name, first_value(name))
    for step in range(1, STEPS + 1):
        flat = torch.zeros(LAYOUT.total_elements)
        for name in SHAPES:
            LAYOUT.view(flat, name).copy_(gradient_of(name, step))
        given = flat.to(gradients)
        take_step(optimizer, store, given, RATE, step, CLIP)
        assert torch.equal(given, flat.to(gradients)), "a gradient is not changed"
    return store


def bits(store: HostStore) -> list[Tensor]:
    return [store.weights(name) for name in SHAPES] + [
        store.state[name] for name in (*MOMENTS, MOMENTUM) if name in store.state
    ]


def equal(one: HostStore, other: HostStore) -> bool:
    return all(torch.equal(*pair) for pair in zip(bits(one), bits(other), strict=True))


# ---- the papers, in float64


def plain_lamb(name: str) -> Tensor:
    w, layerwise = first_value(name).double(), len(SHAPES[name]) >= 2
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, STEPS + 1):
        g = gradient_of(name, t).double() * CLIP
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g**2
        r = m / (1 - BETAS[0] ** t) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPSILON)
        u = r + DECAY * w if layerwise else r
        usable = layerwise and w.norm() > 0 and u.norm() > 0
        w = w - RATE * (w.norm() / u.norm() if usable else 1) * u
    return w


def plain_lars(name: str) -> Tensor:
    w, layerwise = first_value(name).double(), len(SHAPES[name]) >= 2
    m = torch.zeros_like(w)
    for t in range(1, STEPS + 1):
        g = gradient_of(name, t).double() * CLIP
        local, decay = 1.0, DECAY if layerwise else 0.0
        if layerwise and w.norm() > 0 and g.norm() > 0:
            local = float(TRUST_COEFFICIENT * w.norm() / (g.norm() + DECAY * w.norm()))
        m = BETAS[0] * m + RATE * local * (g + decay * w)
        w = w - m
    return w


PAPERS: dict[type[Optimizer], Callable[[str], Tensor]] = {LAMB: plain_lamb, LARS: plain_lars}


@pytest.mark.usefixtures("small_pieces")
@OPTIMIZERS
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "empty"])
def test_steps_are_those_of_the_paper(new: type[Optimizer], name: str) -> None:
    found, paper = trained(new(**GIVEN)).weights(name).double(), PAPERS[new](name)
    moved = (paper - first_value(name)).abs().max()
    assert moved > 1e-5, "steps that say something"
    assert (found - paper).abs().max() < 1e-5 * moved + 6e-7


@OPTIMIZERS
def test_a_matrix_moves_by_a_share_of_its_norm_however_large_the_gradient(
    new: type[Optimizer],
) -> None:
    """Ten times the gradient, the same way."""
    ways = []
    for size in (1.0, 10.0):
        store = allocate_store(new(betas=(0.0, 0.0), weight_decay=0.0), LAYOUT)
        store.write_weights("odd", first_value("odd"))
        gradient = torch.zeros(LAYOUT.total_elements)
        LAYOUT.view(gradient, "odd").copy_(gradient_of("odd", 1) * size)
        take_step(new(betas=(0.0, 0.0), weight_decay=0.0), store, gradient, RATE, 1)
        ways.append((store.weights("odd") - first_value("odd")).norm())
    share = RATE * (1 if new is LAMB else TRUST_COEFFICIENT) * first_value("odd").norm()
    torch.testing.assert_close(torch.stack(ways), share.repeat(2), rtol=1e-4, atol=0.0)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", StateForm)
def test_moments_are_adamws_and_biases_take_its_steps(form: StateForm) -> None:
    """Moments in bfloat16 with its noise, too."""
    ours, theirs = (trained(new(**GIVEN), form, torch.bfloat16) for new in (LAMB, AdamW))
    for name in ("bias", "scalar"):
        assert torch.equal(ours.weights(name), theirs.weights(name))
    for name in MOMENTS:
        assert torch.equal(ours.state[name], theirs.state[name]), "of all parameters"


# ---- the same bits


@OPTIMIZERS
@pytest.mark.usefixtures("small_pieces")
def test_bits_are_the_same_on_any_threads_and_instructions(
    new: type[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, before = [], torch.get_num_threads()
    for level in range(host_kernels().highest_level + 1):
        kernels = HostKernels(load(LIBRARY), level)
        for module in (adamw, clipping, layerwise):
            monkeypatch.setattr(module, "host_kernels", lambda kernels=kernels: kernels)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(trained(new(**GIVEN)))
    torch.set_num_threads(before)
    assert all(equal(found[0], other) for other in found[1:])


@OPTIMIZERS
def test_large_parameters_have_the_same_bits_on_any_threads(new: type[Optimizer]) -> None:
    """PyTorch divides among threads what has more than 32,768 elements."""
    layout, found, before = ParameterLayout.of({"large": (700, 500)}), [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        store = allocate_store(new(**GIVEN), layout)
        generator = torch.Generator().manual_seed(3)
        store.write_weights("large", torch.randn((700, 500), generator=generator))
        for step in (1, 2):
            gradient = torch.randn(layout.total_elements, generator=generator)
            take_step(new(**GIVEN), store, gradient, RATE, step)
        found.append(store.weights("large"))
    torch.set_num_threads(before)
    assert torch.equal(*found)


@OPTIMIZERS
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16])
def test_split_weights_are_as_exact_and_a_half_state_is_near(
    new: type[Optimizer], gradients: torch.dtype
) -> None:
    exact, split, half = (
        trained(new(**GIVEN), form, torch.bfloat16, gradients) for form in StateForm
    )
    assert equal(exact, split)
    assert torch.equal(exact.working, exact.master.bfloat16()), "the copy for the device"
    way = (exact.weights("odd") - first_value("odd")).norm()
    apart = (exact.weights("odd") - half.weights("odd")).norm()
    assert 0 < apart < 0.02 * way


@OPTIMIZERS
def test_the_seed_is_of_lambs_noise_alone(new: type[Optimizer]) -> None:
    one, other = (
        trained(new(**{**GIVEN, "seed": seed}), StateForm.HALF, torch.bfloat16) for seed in (5, 6)
    )
    assert equal(one, other) == (new is LARS)


@OPTIMIZERS
def test_a_gradient_in_sixteen_bits_counts_as_what_it_says(
    new: type[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, exact = trained(new(**GIVEN), gradients=torch.bfloat16), trained(new(**GIVEN))
    given = gradient_of
    monkeypatch.setitem(globals(), "gradient_of", lambda *which: given(*which).bfloat16().float())
    assert equal(narrow, trained(new(**GIVEN)))
    assert not equal(narrow, exact)


@OPTIMIZERS
@pytest.mark.parametrize("weight", [0.0, 1e-44, 1.0])
@pytest.mark.parametrize("gradient", [0.0, 1e-44])
def test_norms_near_zero_move_nothing_far(
    new: type[Optimizer], weight: float, gradient: float
) -> None:
    """A ratio that float32 cannot hold would leave no number behind."""
    optimizer = new(weight_decay=0.0, epsilon=1.0)
    store = allocate_store(optimizer, LAYOUT)
    store.write_weights("odd", torch.full(SHAPES["odd"], weight))
    take_step(optimizer, store, torch.full((LAYOUT.total_elements,), gradient), RATE, 1)
    assert (store.weights("odd") - weight).abs().max() < 1e-30


def test_pieces_have_the_norm_of_the_whole_if_they_are_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 1024)
    for dtype in (torch.float32, torch.bfloat16):
        value = torch.randn(5001, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert norm_of_pieces(value.split(1024)) == gradient_norm(value)
    assert norm_of_pieces([]) == 0.0


# ---- in training


@OPTIMIZERS
def test_a_run_file_names_it_and_every_peer_may_take_its_steps(new: type[Optimizer]) -> None:
    run = parse_run_text(RUN.format(name=new.__name__.lower()))
    assert update_rule(run).same_steps
    made = optimizer(run)
    assert isinstance(made, new)
    with closing(CpuDevice()) as device:
        rate = RateSettings(0.1 if new is LAMB else 30.0)
        replicas = [
            filled(device, program(), rate=rate, optimizer=made, clip_norm=1.0) for _ in range(2)
        ]
        losses = []
        for number in range(1, 13):
            for replica in replicas:
                step_once(replica, batches(2, number % 2), number)
            losses.append(replicas[0].loss_sum / replicas[0].sequences)
        assert same(*replicas)
    assert losses[-1] < losses[0] - 0.1


@OPTIMIZERS
@pytest.mark.parametrize("form", StateForm)
def test_the_plan_counts_its_state(new: type[Optimizer], form: StateForm) -> None:
    numbers = 2 if new is LAMB else 1
    arenas = optimizer_state(new(), LAYOUT, form)
    assert sorted(arenas) == sorted(MOMENTS if new is LAMB else [MOMENTUM])
    each = 2 if form is StateForm.HALF else 4
    assert (
        sum(arena.size_bytes for arena in arenas.values()) == numbers * each * LAYOUT.total_elements
    )

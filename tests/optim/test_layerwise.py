"""LAMB and LARS: the papers' steps in plain PyTorch; the same bits whoever computes them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atom.config.run_file import RunFile
from atom.daemon.model.run_optimizer import optimizer, update_rule
from atom.graph.ir import ParameterLayout
from atom.optim import adamw, clipping, layerwise
from atom.optim.adamw import MOMENTS, AdamW
from atom.optim.clipping import gradient_norm, norm_of_pieces
from atom.optim.layerwise import LAMB, LARS, TRUST_COEFFICIENT
from atom.optim.optimizer import Optimizer
from atom.swap.host_kernels import LIBRARY, HostKernels, host_kernels, load
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from tests.one_step import allocate_store, take_step

SHAPES = {"odd": (37, 53), "bias": (7,), "scalar": (), "cube": (4, 9, 5), "untouched": (3, 3),
          "zeros": (8, 4), "empty": (0, 4), "large": (200, 170)}  # fmt: skip
LAYOUT = ParameterLayout.of(SHAPES)
BETAS, EPSILON, DECAY, RATE, STEPS, CLIP = (0.9, 0.99), 1e-7, 0.2, 0.05, 5, 0.37
GIVEN = {"betas": BETAS, "epsilon": EPSILON, "weight_decay": DECAY, "seed": 5}
BOTH = pytest.mark.parametrize("new", [LAMB, LARS])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "PIECE_ELEMENTS", 1024)


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
) -> HostStore:
    """After some steps."""
    store = allocate_store(optimizer, LAYOUT, precision, form=form)
    for name in SHAPES:
        store.write_weights(name, first_value(name))
    for step in range(1, STEPS + 1):
        flat = torch.zeros(LAYOUT.total_elements)
        for name in SHAPES:
            LAYOUT.view(flat, name).copy_(gradient_of(name, step))
        given = flat.clone()
        take_step(optimizer, store, given, RATE, step, CLIP)
        assert torch.equal(given, flat), "a gradient is not changed"
    return store


def equal(one: HostStore, other: HostStore) -> bool:
    return all(torch.equal(one.state[name], other.state[name]) for name in one.state)


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


@pytest.mark.parametrize(("new", "plain"), [(LAMB, plain_lamb), (LARS, plain_lars)])
def test_steps_are_those_of_the_paper(new: type[Optimizer], plain: Callable[[str], Tensor]) -> None:
    store = trained(new(**GIVEN))
    for name in SHAPES.keys() - {"empty"}:
        found, paper = store.weights(name).double(), plain(name)
        moved = (paper - first_value(name)).abs().max()
        assert moved > 1e-5, "steps that say something"
        assert (found - paper).abs().max() < 1e-5 * moved + 6e-7, name


@pytest.mark.parametrize("form", StateForm)
def test_moments_are_adamws_and_biases_take_its_steps(form: StateForm) -> None:
    """Moments in bfloat16 with its noise, too."""
    ours, theirs = (trained(new(**GIVEN), form, torch.bfloat16) for new in (LAMB, AdamW))
    for name in ("bias", "scalar"):
        assert torch.equal(ours.weights(name), theirs.weights(name))
    for name in MOMENTS:
        assert torch.equal(ours.state[name], theirs.state[name]), "of all parameters"


@BOTH
@pytest.mark.parametrize("piece", [1024, 2**18])
def test_bits_are_the_same_on_any_threads_and_instructions(
    new: type[Optimizer], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch divides among threads what has more than 32,768 elements."""
    monkeypatch.setattr(layerwise, "PIECE_ELEMENTS", piece)
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


@BOTH
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


@BOTH
def test_a_run_file_names_it_and_every_peer_may_take_its_steps(
    new: type[Optimizer], run_with: Callable[..., RunFile]
) -> None:
    run = run_with(new.__name__.lower())
    assert update_rule(run).same_steps
    assert isinstance(optimizer(run), new)

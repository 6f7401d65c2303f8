"""Muon: PyTorch's, bit by bit; for hidden matrices alone; not where bits must agree."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atom.base.errors import ConfigError
from atom.config.run_file import RunFile
from atom.graph.ir import ParameterLayout
from atom.optim import muon
from atom.optim import optimizer as optimizer_module
from atom.optim.adamw import AdamW
from atom.optim.muon import MOMENTUM_DECAY, Muon, orthogonal
from atom.swap.host_store import StateForm
from atom.training.run_optimizer import optimizer, update_rule
from tests.one_step import allocate_store, take_step

RATE, DECAY, STEPS, CLIP = 1e-2, 0.1, 5, 0.5
SHAPES = {"tokens": (50, 32), "wide": (32, 80), "high": (96, 32), "bias": (32,)}
LAYOUT = ParameterLayout.of(SHAPES, {"wide", "high"})
LOCAL = 'update = { rule = "local-steps", inner_sequences = 2 }\n'


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def first_values() -> dict[str, Tensor]:
    return {name: normal(shape, len(name)) for name, shape in SHAPES.items()}


def gradient(step: int) -> Tensor:
    arena = torch.zeros(LAYOUT.total_elements)
    for number, spec in enumerate(LAYOUT.specs):
        LAYOUT.view(arena, spec.name).copy_(normal(spec.shape, 100 * step + number))
    return arena


def trained(form: StateForm = StateForm.EXACT, **named: torch.dtype) -> dict[str, Tensor]:
    """Weights after some steps."""
    store = allocate_store(Muon(weight_decay=DECAY), LAYOUT, form=form, **named)
    for name, value in first_values().items():
        store.write_weights(name, value)
    for step in range(1, STEPS + 1):
        take_step(Muon(weight_decay=DECAY), store, gradient(step), RATE, step, CLIP)
    return {name: store.weights(name) for name in SHAPES}


def test_matrices_take_the_steps_of_pytorchs_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, however small the pieces are that others' steps are divided into."""
    monkeypatch.setattr(optimizer_module, "PIECE_ELEMENTS", 16)
    monkeypatch.setattr(muon, "product_format", lambda: torch.bfloat16)  # as PyTorch does
    plain = {name: first_values()[name].requires_grad_() for name in ("wide", "high")}
    theirs = torch.optim.Muon(
        list(plain.values()), lr=RATE, weight_decay=DECAY, momentum=MOMENTUM_DECAY,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    for step in range(1, STEPS + 1):
        for name, weight in plain.items():
            weight.grad = LAYOUT.view(gradient(step), name) * CLIP
        theirs.step()
    ours = trained()
    for name, weight in plain.items():
        assert torch.equal(ours[name], weight.detach()), name


def test_embeddings_and_biases_take_the_steps_of_adamw() -> None:
    store = allocate_store(AdamW(weight_decay=DECAY), LAYOUT)
    for name, value in first_values().items():
        store.write_weights(name, value)
    for step in range(1, STEPS + 1):
        take_step(AdamW(weight_decay=DECAY), store, gradient(step), RATE, step, CLIP)
    ours = trained()
    for name in ("tokens", "bias"):
        assert torch.equal(ours[name], store.weights(name)), name


@pytest.mark.parametrize("number_format", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 120), (120, 40), (64, 64)])
def test_all_singular_values_become_about_one(
    shape: tuple[int, int], number_format: torch.dtype
) -> None:
    left, values, right = torch.linalg.svd(normal(shape, 1), full_matrices=False)
    steep = left @ torch.diag(torch.logspace(0, -1.5, len(values))) @ right
    direction = orthogonal(steep, number_format).float()
    after = torch.linalg.svdvals(direction)
    assert after.min() > 0.6
    assert after.max() < 1.3
    along = torch.diagonal(left.T @ direction @ right.T)
    assert along.min() > 0.6, "the same directions, in and out"


def test_a_matrix_of_zeros_stays_where_it_is() -> None:
    assert not orthogonal(torch.zeros(8, 4)).any()


def test_it_is_refused_where_all_peers_must_take_the_same_steps(
    run_with: Callable[..., RunFile],
) -> None:
    run = run_with("muon")
    assert update_rule(run).same_steps
    with pytest.raises(ConfigError, match=r"optimizer\.name: muon .* all peers") as refused:
        optimizer(run)
    assert 'rule = "local-steps"' in (refused.value.hint or "")
    assert isinstance(optimizer(run_with("muon", LOCAL)), Muon)

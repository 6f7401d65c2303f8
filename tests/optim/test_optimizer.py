"""What optimizers declare, and what they are given to update."""

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout, ParameterSpec
from atom.optim.optimizer import (
    Optimizer,
    Part,
    StateTensor,
    StepTerms,
    optimizer_state,
    parts_of,
    store_bytes,
)
from atom.swap.state_form import StateForm
from tests.one_step import allocate_store, take_step

LAYOUT = ParameterLayout.of({"matrix": (3, 50), "bias": (7,)})
BLOCK = 64


class Blockwise(Optimizer):
    """Eight-bit numbers with a scale per block, and a momentum for matrices alone."""

    def __init__(self) -> None:
        self.seen = dict[str, Part]()

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        blocks = -(-parameter.numel // BLOCK)
        kept = {
            "square": StateTensor(parameter.shape, torch.uint8),
            "square_scale": StateTensor((blocks,)),
        }
        if len(parameter.shape) < 2:
            return kept
        return kept | {"momentum": StateTensor(parameter.shape[::-1], torch.bfloat16)}

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        self.seen[part.parameter.name] = part
        assert gradient.shape == part.parameter.shape
        for tensor in part.state.values():
            tensor.fill_(step.number)


class Contradicting(Blockwise):
    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        wide = len(parameter.shape) == 2
        return {"moment": StateTensor((1,), torch.float32 if wide else torch.bfloat16)}


def test_state_may_differ_from_parameter_to_parameter_in_shape_and_presence() -> None:
    arenas = optimizer_state(Blockwise(), LAYOUT, StateForm.EXACT)
    shapes = {
        name: {spec.name: spec.shape for spec in arena.layout.specs}
        for name, arena in arenas.items()
    }
    assert shapes == {
        "square": {"matrix": (3, 50), "bias": (7,)},
        "square_scale": {"matrix": (3,), "bias": (1,)},
        "momentum": {"matrix": (50, 3)},
    }
    assert {name: arena.dtype for name, arena in arenas.items()} == {
        "square": torch.uint8, "square_scale": torch.float32, "momentum": torch.bfloat16
    }  # fmt: skip
    assert arenas["square_scale"].size_bytes == 4 * (16 + 16)


def test_one_name_has_one_type() -> None:
    with pytest.raises(ValueError, match="moment is"):
        optimizer_state(Contradicting(), LAYOUT, StateForm.EXACT)


def test_whole_parameters_are_given_with_the_state_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atom.optim.optimizer.PIECE_ELEMENTS", 16)
    blockwise = Blockwise()
    store = allocate_store(blockwise, LAYOUT)
    assert len(parts_of(blockwise, store)) == 2
    take_step(blockwise, store, torch.zeros(LAYOUT.total_elements), 0.1, 3)
    for name, part in blockwise.seen.items():
        declared = blockwise.state(LAYOUT.by_name[name], StateForm.EXACT)
        assert {k: (tuple(t.shape), t.dtype) for k, t in part.state.items()} == {
            k: (t.shape, t.dtype) for k, t in declared.items()
        }
    views = store.arenas["square_scale"].layout
    assert views.view(store.state["square_scale"], "matrix").tolist() == [3.0] * 3


@pytest.mark.parametrize("form", StateForm)
def test_a_store_takes_what_is_reckoned(form: StateForm) -> None:
    narrow = torch.bfloat16
    store = allocate_store(Blockwise(), LAYOUT, narrow, form=form, gradients=narrow)
    arenas = {*store.state.values(), store.gradients, store.working}
    reckoned = store_bytes(Blockwise(), LAYOUT, narrow, form, narrow)
    assert sum(arena.nbytes for arena in arenas) == reckoned

"""Custom modules give the same bits whether they are trained swapped or whole."""

import copy

import pytest
import torch
from swapped import CUTS, assert_equal, eager, frozen_in, plain, swapped
from traced_modules import OWN, Plain, SeveralInputs, TwiceTied, hidden_states

from atom.base.errors import ModelError
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        *((name, "finest") for name in OWN),
        *((name, "planned") for name in ("twice tied", "several inputs", "gpt3")),
    ],
)
def test_swapped_is_whole(name: str, cut: str) -> None:
    torch.manual_seed(0)
    make, batch = OWN[name]
    model = make()
    graph = trace(model, batch(0))
    program = CUTS[cut](graph)
    expected = eager(model, [batch(1)], [3])
    assert_equal(swapped(model, program, [batch(1)], [3]), expected, frozen_in(graph))


def test_modules_that_share_their_parameters_by_a_shallow_copy() -> None:
    class Copied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.middle = torch.nn.Linear(16, 16)
            self.first = torch.nn.LayerNorm(16)
            self.last = copy.copy(self.first)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.last(self.middle(self.first(hidden))).square().mean()

    model = Copied()
    graph = trace(model, hidden_states())
    assert {spec.name for spec in graph.layout.specs} == dict(model.named_parameters()).keys()
    verify_against_eager(model, build_program(graph), hidden_states(1))


def test_a_tied_weight_is_stored_once_and_summed_layer_by_layer() -> None:
    """Gradients of a tied weight are summed use by use, from the last use to the first.

    The gradients of one use are summed over all micro-batches before the previous use follows. An
    untied model has a separate sum for each use.
    """
    torch.manual_seed(0)
    model, untied = TwiceTied(), TwiceTied(tied=False)
    untied.load_state_dict(model.state_dict())
    batches, seeds = [TwiceTied.batch(1), TwiceTied.batch(2)], [5, 6]
    apart = [eager(untied, [b], [s])[1] for b, s in zip(batches, seeds, strict=True)]
    apart = [{name: g.clone() for name, g in each.items()} for each in apart]
    graph = trace(model, TwiceTied.batch(0))
    first, *others = TwiceTied.USES
    assert first in graph.layout.by_name
    assert not set(others) & graph.layout.by_name.keys()

    sums = None
    for use in reversed(TwiceTied.USES):
        for each in apart:
            sums = each[use] if sums is None else sums + each[use]
    program = CUTS["finest"](graph)
    for run in (plain, swapped):
        _, gradients = run(model, program, batches, seeds)
        assert torch.equal(gradients[first], sums)
    _, accumulated = eager(model, batches, seeds)
    torch.testing.assert_close(sums, accumulated[first])
    assert not torch.equal(sums, accumulated[first]), "the order shows, or the test shows nothing"


def test_an_input_left_out_is_none_and_stays_out() -> None:
    torch.manual_seed(0)
    model = SeveralInputs()
    given, left_out = SeveralInputs.batch(1), SeveralInputs.batch_without_bias(1)
    with_bias = build_program(trace(model, SeveralInputs.batch(0)))
    without_bias = build_program(trace(model, SeveralInputs.batch_without_bias(0)))
    verify_against_eager(model, with_bias, given)
    verify_against_eager(model, without_bias, left_out)
    with pytest.raises(ModelError, match=r"bias is .* was missing"):
        verify_against_eager(model, without_bias, given)
    with pytest.raises(ModelError, match="bias is missing"):
        verify_against_eager(model, with_bias, left_out)


def test_a_batch_of_another_make_is_refused() -> None:
    model = Plain()
    program = build_program(trace(model, hidden_states()))
    hidden = hidden_states(1)["hidden"]
    for wrong in (hidden[:1], hidden.double(), hidden[:, :5]):
        with pytest.raises(ModelError, match=r"hidden is .* was float32 \[2, 16"):
            swapped(model, program, [{"hidden": wrong}], [0])

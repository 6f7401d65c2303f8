"""Unmodified models of `transformers` train swapped as they train whole, bit by bit."""

import sys

import pytest
import torch
from swapped import CUTS, assert_equal, eager, plain, swapped
from torch import nn
from traced_modules import Batch

from atom.base.errors import ModelError
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager

transformers = pytest.importorskip("transformers")
from transformers_zoo import MODELS, TOKENS, batch, make, tokens  # noqa: E402


@pytest.mark.parametrize(("cut", "dropout"), [("finest", 0.0), ("planned", 0.1)])
@pytest.mark.parametrize("name", MODELS)
def test_swapped_is_whole(name: str, dropout: float, cut: str) -> None:
    """Attention has other kernels with dropout than without."""
    model = make(name, dropout)
    program = CUTS[cut](trace(model, batch(name, 0)))
    assert len(program.sub_models) > (40 if cut == "finest" else 1)
    batches, seeds = [batch(name, 1)], [7]
    expected = eager(model, batches, seeds)
    assert all(gradient.any() for gradient in expected[1].values())
    assert_equal(swapped(model, program, batches, seeds), expected)


def packed_tokens(seed: int) -> Batch:
    """Two sequences per row: position ids start again, and attention must not look across."""
    positions = torch.cat([torch.arange(48), torch.arange(TOKENS - 48)])
    return {**tokens(seed), "position_ids": positions.expand(2, TOKENS).clone()}


def padding(seed: int, padded: int) -> Batch:
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[0, TOKENS - padded :] = 0
    return {**tokens(seed), "attention_mask": mask}


def test_position_ids_of_ones_own_may_pack_sequences() -> None:
    model = make("llama", 0.0)
    program = build_program(trace(model, {**tokens(0), "position_ids": tokens(0)["labels"]}))
    expected = eager(model, [packed_tokens(1)], [0])
    assert_equal(swapped(model, program, [packed_tokens(1)], [0]), expected)
    unpacked = eager(model, [tokens(1)], [0])
    assert not torch.equal(
        *(gradients["model.lm_head.weight"] for _, gradients in (unpacked, expected))
    )


@pytest.mark.parametrize(("name", "padded"), [("llama", 0), ("llama", 9), ("bert", 9)])
def test_a_padding_mask_is_part_of_the_batch(name: str, padded: int) -> None:
    model = make(name, 0.0)
    program = build_program(trace(model, padding(0, 0)))
    verify_against_eager(model, program, padding(1, padded))
    if padded:
        expected = eager(model, [padding(1, padded)], [0])
        assert_equal(swapped(model, program, [padding(1, padded)], [0]), expected)


def test_gradient_checkpointing_is_seen_through() -> None:
    model = make("llama", 0.1)
    model.model.activation_checkpointing_enable({"use_reentrant": False})
    program = build_program(trace(model, tokens(0)))
    assert_equal(swapped(model, program, [tokens(1)], [3]), eager(model, [tokens(1)], [3]))


def test_micro_batches_add_up_layer_by_layer() -> None:
    model = make("gpt2", 0.1)
    graph = trace(model, tokens(0))
    batches, seeds = [tokens(1), tokens(2)], [5, 6]
    losses, gradients = eager(model, batches, seeds)
    tied = "model.transformer.wte.weight"
    for cut in CUTS.values():
        program = cut(graph)
        reference = plain(model, program, batches, seeds)
        assert_equal(swapped(model, program, batches, seeds), reference)
        assert reference[0] == losses
        for name, gradient in reference[1].items():
            assert name == tied or torch.equal(gradient, gradients[name]), name
        torch.testing.assert_close(reference[1][tied], gradients[tied])


class WholeOutput(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> object:
        return self.model(input_ids=input_ids, labels=labels)


def _looping_experts() -> nn.Module:
    model = make("mixtral", 0.0)
    model.model.config._experts_implementation = "eager"
    return model


REFUSED = {
    "whole output": (
        lambda: WholeOutput(make("gpt2", 0.0).model),
        r"traced: Found .*DynamicCache.* in output",
    ),
    "looping experts": (_looping_experts, r"transformers/\S+\.py:\d+ .*data-dependent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as refusal:
        trace(build(), tokens(0))
    assert refusal.value.hint
    assert "".join(capfd.readouterr()) == ""


def test_the_library_is_as_it_was_afterwards() -> None:
    masks = sys.modules["transformers.masking_utils"]
    before = dict(vars(masks))
    with pytest.raises(ModelError):
        trace(_looping_experts(), tokens(0))
    model = make("llama", 0.0)
    verify_against_eager(model, build_program(trace(model, tokens(0))), tokens(1))
    assert dict(vars(masks)) == before

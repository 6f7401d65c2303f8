"""A split model computes the same bits as the whole one."""

import pytest
import torch
from traced_modules import TiedGPT, tokens_and_targets

from atom.base.errors import ModelError
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program, compile_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager
from atom.models.gpt3 import GPT3, GPT3Config


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gpt3(dtype: torch.dtype, dropout: float) -> None:
    torch.manual_seed(0)
    config = GPT3Config(3, 2, 16, sequence_tokens=16, vocabulary_size=32, dropout=dropout)
    model = GPT3(config, dtype=dtype)
    graph = trace(model, tokens_and_targets(0))
    finest = layer_ends(layers_of(graph))
    for ends in (finest, (*finest[1:4:2], finest[-1]), finest[-1:]):
        verify_against_eager(model, build_program(graph, ends), tokens_and_targets(1))


def test_the_model_and_the_random_state_are_left_alone() -> None:
    model, batch = TiedGPT(dropout=0.1), tokens_and_targets()
    model.eval()
    parameters = {name: id(p) for name, p in model.named_parameters()}
    before = torch.get_rng_state()
    program = compile_program(model, batch)
    verify_against_eager(model, program, batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_tensor_under_two_names_stays_two_inputs() -> None:
    torch.manual_seed(0)
    model, ids = TiedGPT(), tokens_and_targets()["tokens"]
    program = compile_program(model, {"tokens": ids, "targets": ids})
    verify_against_eager(model, program, tokens_and_targets(1))
    verify_against_eager(model, program, {"tokens": ids, "targets": ids})


def test_a_program_of_another_model_is_caught_by_parameter() -> None:
    class Detached(TiedGPT):
        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.blocks[1].up.weight.requires_grad_(False)
            return super().forward(tokens, targets)

    torch.manual_seed(0)
    model, other = TiedGPT(), Detached()
    program = compile_program(model, tokens_and_targets())
    with pytest.raises(ModelError, match=r"blocks\.1\.up\.weight"):
        verify_against_eager(other, program, tokens_and_targets())

"""Generated source is readable, shared between identical layers, and equal on all machines."""

import hashlib
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from traced_modules import (
    BATCH,
    LENGTH,
    WIDTH,
    ZOO,
    TiedGPT,
    hidden_states,
    legal_ends,
    tokens_and_targets,
)

from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program, compile_program, load
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.graph.verify import verify_against_eager

PRINT_HASHES = "import test_generated_source as here; print(here.some_hashes())"


def some_hashes() -> list[str]:
    hashes = []
    for name in ("gpt", "buffers"):
        make, batch = ZOO[name]
        torch.manual_seed(0)
        graph = trace(make(), batch(0))
        hashes.append(graph.graph_hash)
        sources = sources_at_several_cuts(graph)
        hashes += [hashlib.sha256(source.encode()).hexdigest() for source in sources]
    return hashes


def test_real_names_clean_calls_and_shapes() -> None:
    source = compile_program(TiedGPT(dropout=0.1), tokens_and_targets()).source
    for line in (
        "        self.attention_qkv_weight = weight(48, 16)",
        '        tokens_1: "f32[2, 16, 16]" = aten.embedding.default(self.tokens_weight, tokens);  '
        "tokens = None",
        '        drop: "f32[2, 16, 16]" = aten.dropout.default(down, 0.1, True);  down = None',
        '    def forward(self, x: "f32[2, 16, 16]", targets: "i64[2, 16]"):',
    ):
        assert line in source.splitlines(), line


def cut_after(graph: Graph, layers: Sequence[int]) -> Program:
    """Return the program whose sub-models end after these layers."""
    finest = layer_ends(layers_of(graph))
    return build_program(graph, ends=[finest[layer] for layer in layers])


def sources_at_several_cuts(graph: Graph) -> list[str]:
    """Return sources of two cuts: per layer, and inside some layers."""
    cuts = (None, [*legal_ends(graph)[2::7], len(graph.calls)])
    return [build_program(graph, ends=ends).source for ends in cuts]


def test_same_bytes_under_any_hash_seed() -> None:
    command = [sys.executable, "-c", PRINT_HASHES]
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        expected = some_hashes()  # under whichever seed the tests were started with
        assert len(set(expected)) == len(expected) == 6
        assert process.communicate(timeout=100)[0].strip() == str(expected)


@pytest.mark.parametrize("last_layers", [[1, 4], [4]])
def test_loaded_modules_have_the_parameters_on_meta(last_layers: list[int]) -> None:
    program = cut_after(trace(TiedGPT(), tokens_and_targets()), last_layers)
    for sub_model, make in zip(program.sub_models, load(program, "cpu"), strict=True):
        module = make()
        assert module is not make()
        for path, name in sub_model.parameters:
            parameter = module.get_parameter(path)
            assert parameter.is_meta
            assert tuple(parameter.shape) == program.layout.by_name[name].shape
        assert [p for p, _ in sub_model.parameters] == [n for n, _ in module.named_parameters()]


def test_tracebacks_show_the_generated_line() -> None:
    program = compile_program(TiedGPT(), tokens_and_targets())
    block = load(program, "cpu")[1]()
    with pytest.raises(RuntimeError) as caught:
        block(torch.zeros(BATCH, LENGTH, WIDTH + 1))
    text = "".join(traceback.format_exception(caught.value))
    assert 'norm1: "f32[2, 16, 16]" = aten.layer_norm.default(' in text


def test_names_that_are_no_identifiers_or_taken() -> None:
    none = type("none", (torch.nn.Linear,), {})

    class Awkward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("1st class", torch.nn.Linear(WIDTH, WIDTH))
            self.add_module("lambda", none(WIDTH, WIDTH))
            self.register_parameter("None_", torch.nn.Parameter(torch.ones(WIDTH)))

        def forward(self, float: torch.Tensor) -> torch.Tensor:
            first, second = self.children()
            hidden = second(first(float.clamp(max=math.inf))) * self.None_
            return hidden.square().mean() * float.sum()

    def batch(seed: int) -> dict[str, torch.Tensor]:
        return {"float": hidden_states(seed)["hidden"]}

    model = Awkward()
    program = compile_program(model, batch(0))
    verify_against_eager(model, program, batch(1))

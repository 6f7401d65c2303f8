"""Cuts between any two operators give few classes, names for the pieces, and shared values."""

import functools
import itertools

import pytest
import torch
from torch import Tensor, nn
from traced_modules import (
    BATCH,
    LENGTH,
    OWN,
    WIDTH,
    TiedGPT,
    hidden_states,
    legal_ends,
    tokens_and_targets,
)

from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program, load
from atom.graph.segment import bind
from atom.graph.trace import trace
from atom.graph.traced import Graph


@functools.cache
def traced(name: str) -> tuple[nn.Module, Graph]:
    make, batch = OWN[name]
    torch.manual_seed(0)
    model = make()
    return model, trace(model, batch(0))


def test_pieces_of_identical_layers_share_classes_and_whole_layers_stay_whole() -> None:
    graph = trace(TiedGPT(layers=9), tokens_and_targets())
    layers = layers_of(graph)
    starts = [0, *layer_ends(layers)]
    # Inside layers 2, 4, 6 at the same operator, at the end of the first and of the last.
    ends = [starts[1], *(starts[layer] + 8 for layer in (2, 4, 6)), starts[9], starts[-1]]
    program = build_program(graph, ends=ends)
    names = [sub_model.name for sub_model in program.sub_models]
    assert names == [
        "embedding",
        "blocks.0 … blocks.1 (1/2)",
        "blocks.1 (2/2) … blocks.3 (1/2)",
        "blocks.3 (2/2) … blocks.5 (1/2)",
        "blocks.5 (2/2) … blocks.7",
        "blocks.8 … head",
    ]
    classes = [sub_model.layers for sub_model in program.sub_models]
    assert classes[2] == classes[3]
    assert len(set(classes)) == 5
    lines = program.source.splitlines()
    assert [line for line in lines if line.startswith("class Block")] == [
        "class Block(nn.Module):",
        "class BlockStart(nn.Module):",
        "class BlockEnd(nn.Module):",
    ]
    assert "    2  blocks.1 (2/2) … blocks.3 (1/2): BlockEnd, Block, BlockStart" in lines
    assert "    3  blocks.3 (2/2) … blocks.5 (1/2): BlockEnd, Block, BlockStart" in lines
    assert "    4  blocks.5 (2/2) … blocks.7: BlockEnd, 2 x Block" in lines
    paths = dict(program.sub_models[2].parameters)
    assert paths["1.norm1_weight"] == "blocks.2.norm1.weight"


@pytest.mark.parametrize("ends", [(), (0, 80), (5,), (5, 5, 80), (9, 5, 80), (81,), (-1, 80)])
def test_ends_that_do_not_grow_to_the_last_call_are_refused(ends: tuple[int, ...]) -> None:
    _, graph = traced("gpt")
    assert len(graph.calls) == 80
    with pytest.raises(ValueError, match="no legal cut"):
        build_program(graph, ends=ends)


def test_forbidden_ends_are_refused() -> None:
    _, graph = traced("in place")
    for end in sorted(graph.forbidden_cuts - {len(graph.calls)}):
        with pytest.raises(ValueError, match="no legal cut"):
            build_program(graph, ends=[end, len(graph.calls)])


def crossing_values(name: str, batch: int = 1) -> tuple[Program, dict[str, Tensor]]:
    """Return all values between sub-models at the finest cut, as computed by forward."""
    model, graph = traced(name)
    program = build_program(graph, ends=[*legal_ends(graph), len(graph.calls)])
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    values: dict[str, Tensor] = OWN[name][1](batch)
    for make, sub_model in zip(load(program, "cpu"), program.sub_models, strict=True):
        module = make()
        bind(module, sub_model, parameters)
        outputs = module(*(values[n] for n in sub_model.inputs))
        for output_name, output in zip(sub_model.outputs, outputs, strict=True):
            assert output_name not in values
            values[output_name] = output.detach()
    return program, values


@pytest.mark.parametrize("name", OWN)
def test_every_value_is_given_once_however_many_cuts_it_crosses(name: str) -> None:
    program, values = crossing_values(name)
    given = list(itertools.chain.from_iterable(s.outputs for s in program.sub_models))
    assert len(given) == len(set(given))
    for value_name, value in values.items():
        spec = program.values[value_name]
        assert (tuple(value.shape), value.dtype) == (spec.shape, spec.dtype)


def made_of_sizes_alone(name: str) -> tuple[set[str], set[str]]:
    """Return the values declared as shared, and the values that were equal for two batches."""
    program, first = crossing_values(name, batch=1)
    _, second = crossing_values(name, batch=2)
    made = [n for n in first if n not in program.batch_inputs]
    return set(program.shared), {n for n in made if torch.equal(first[n], second[n])}


@pytest.mark.parametrize("name", OWN)
def test_values_called_shared_are_the_same_in_every_micro_batch(name: str) -> None:
    shared, same = made_of_sizes_alone(name)
    assert shared <= same


def test_masks_and_rotary_tables_are_shared() -> None:
    shared, _ = made_of_sizes_alone("side values")
    assert {"cos", "sin", "expand"} <= shared
    assert not any(name.startswith(("linear", "mul", "getitem")) for name in shared)


@pytest.mark.parametrize("indirectly", [False, True])
def test_nothing_is_shared_that_the_batch_is_written_into(indirectly: bool) -> None:
    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, hidden: Tensor) -> Tensor:
            seen = torch.zeros(BATCH, LENGTH, WIDTH)
            into = seen.expand_as(hidden) if indirectly else seen
            into[:, 0] = hidden[:, 0]
            for layer in self.layers:
                hidden = layer(hidden) + seen
            return hidden.square().mean()

    assert build_program(trace(Collects(), hidden_states())).shared == frozenset()

"""Layers end at legal cuts; the values that cross a cut, and the gradients among them."""

from torch import fx
from traced_modules import (
    Buffers,
    InPlace,
    LearnedBias,
    Plain,
    Rotary,
    Skips,
    TiedGPT,
    hidden_states,
    tokens_and_targets,
)

from atom.graph.layers import flow_of, layers_of
from atom.graph.program import compile_program
from atom.graph.trace import trace
from atom.graph.traced import Graph, is_getitem


def layer_names(graph: Graph) -> list[str]:
    return [layer.name for layer in layers_of(graph)]


def test_layers_of_a_gpt() -> None:
    graph = trace(TiedGPT(), tokens_and_targets())
    assert layer_names(graph) == ["embedding", "blocks.0", "blocks.1", "blocks.2", "head"]
    layers = layers_of(graph)
    assert [len(flow_of(graph, layer.calls).outputs) for layer in layers] == [1] * 5
    assert tuple(call for layer in layers for call in layer.calls) == graph.calls


def test_without_numbered_modules_top_level_ones_are_layers() -> None:
    assert layer_names(trace(Plain(), hidden_states())) == ["encoder", "decoder"]


def test_a_repeated_layer_is_a_layer_each_time_with_one_set_of_parameters() -> None:
    graph = trace(Buffers(), hidden_states())
    program = compile_program(Buffers(), hidden_states())
    names = [{name for _, name in s.parameters} for s in program.sub_models]
    assert {"layers.0.weight", "layers.0.bias"} in names
    assert sum("layers.0.weight" in used for used in names) == 2
    assert len(graph.layout.specs) == 6
    frozen = {spec.name for spec in graph.layout.specs if spec.frozen}
    assert frozen == {"layers.1.weight", "layers.1.bias"}


def test_cuts_never_split_in_place_chains_nor_results_from_their_call() -> None:
    graph = trace(InPlace(), hidden_states())
    layers = layers_of(graph)
    owner = {call: layer.name for layer in layers for call in layer.calls}
    written = [c for c in graph.calls if str(c.target).partition(".")[2].startswith("copy_")]
    made = next(c for c in graph.calls if "zeros_like" in str(c.target))
    assert len(written) == 2
    assert {owner[call] for call in written} == {owner[made]}
    for call in graph.calls:
        if is_getitem(call):
            maker = call.args[0]
            assert isinstance(maker, fx.Node)
            assert owner[call] == owner[maker]
    assert len(layers) > 1


def test_what_crosses_and_which_way_gradients_flow() -> None:
    rotary = compile_program(Rotary(), hidden_states())
    needs = dict(
        zip(rotary.sub_models[1].inputs, rotary.sub_models[1].inputs_need_grad, strict=True)
    )
    assert sorted(needs.values()) == [False, False, True, True]
    learned = compile_program(LearnedBias(), tokens_and_targets())
    assert learned.sub_models[2].inputs_need_grad == (True, True)
    skips = compile_program(Skips(), Skips.batch())
    assert skips.batch_inputs == ("hidden", "weight", "keep")
    assert "keep" in skips.sub_models[-1].inputs
    assert not any("keep" in sub_model.inputs for sub_model in skips.sub_models[:-1])
    assert all(name in skips.values for s in skips.sub_models for name in s.inputs + s.outputs)


def test_layout_is_in_order_of_first_use_with_tied_weights_once() -> None:
    model = TiedGPT(layers=1)
    layout = compile_program(model, tokens_and_targets()).layout
    names = [spec.name for spec in layout.specs]
    assert names[:4] == [
        "tokens.weight", "positions.weight", "blocks.0.norm1.weight", "blocks.0.norm1.bias",
    ]  # fmt: skip
    assert names[-2:] == ["norm.weight", "norm.bias"]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {s.name: s.shape for s in layout.specs} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }

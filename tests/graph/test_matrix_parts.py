"""Split matrices give the same bits as a module that computes the same parts by hand."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers_zoo
from swapped import finest
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from atom.graph import ir, matrix_parts, verify
from atom.graph.chain import Machine, Seconds
from atom.graph.costs.seconds import measured_graph
from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.matrix_parts import in_parts, most_parts
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models import gpt3
from atom.models.gpt3 import GPT3, GPT3Config

PRECISIONS = [torch.float32, torch.bfloat16]
LINEAR, EMBEDDING = functional.linear, functional.embedding
PADDING = 200
ENDS = [0, 128, 256, 500]
"""Borders of the parts of a matrix with 500 rows."""


class Tied(nn.Module):
    """Model whose table of 500 rows is both embedding and head, next to a matrix with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 32, padding_idx=PADDING)
        self.blocks = nn.ModuleList([nn.Linear(32, 500), nn.Linear(500, 32)])

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.table(tokens)
        hidden = hidden + self.blocks[1](torch.relu_(self.blocks[0](hidden)))
        logits = functional.linear(hidden, self.table.weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def texts(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {n: torch.randint(500, (2, 40), generator=generator) for n in ("tokens", "targets")}
    made["tokens"][0, :4] = torch.tensor([PADDING, 127, 128, 499])
    return made


def made(precision: torch.dtype = torch.float32) -> tuple[Tied, Graph]:
    torch.manual_seed(1)
    model = Tied().to(precision)
    return model, trace(model, texts(0))


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules compute products with large matrices in the parts of `ENDS`."""

    def linear(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        if len(matrix) != ENDS[-1]:
            return LINEAR(x, matrix, bias)
        parts = [
            LINEAR(x, matrix[a:b], None if bias is None else bias[a:b]) for a, b in pairwise(ENDS)
        ]
        return torch.cat(parts, -1)

    monkeypatch.setattr(functional, "linear", linear)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cut", [build_program, finest])
def test_every_cut_gives_the_bits_of_the_parts(
    cut: Callable[[Graph], Program], precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = made(precision)
    program = cut(in_parts(graph, {"table.weight": 3, "blocks.0.weight": 3}))
    names = {name for part in program.sub_models for _, name in part.parameters}
    assert {f"blocks.0.weight[{a}:{b}]" for a, b in pairwise(ENDS)} < names
    assert {f"blocks.0.bias[{a}:{b}]" for a, b in pairwise(ENDS)} < names
    assert {f"table.weight[{a}:{b}]" for a, b in pairwise(ENDS)} < names
    by_hand(monkeypatch)
    verify.verify_against_eager(model, program, texts(7))


def test_layers_hash_and_layout_stay_and_the_source_says_which_rows() -> None:
    _, graph = made()
    cut = in_parts(graph, {"table.weight": 2, "blocks.0.weight": 2})
    assert [each.name for each in layers_of(cut)] == [each.name for each in layers_of(graph)]
    assert (cut.graph_hash, cut.layout) == (graph.graph_hash, graph.layout)
    assert len(layer_ends(layers_of(cut))) == len(layer_ends(layers_of(graph)))
    source = build_program(cut).source
    assert (
        source == build_program(in_parts(graph, {"table.weight": 2, "blocks.0.weight": 2})).source
    )
    assert "aten.linear.default(x, self.weight_256_500, self.bias_256_500)" in source
    assert in_parts(graph, {}) is graph


def test_seconds_of_a_layer_are_shared_by_its_parts() -> None:
    """The measured seconds of a layer stay the same: its parts get shares of them."""
    _, graph = made()
    measured = [Seconds(n, 2.0 * n) for n in (1.0, 2.0, 3.0, 4.0)]
    profile = measured_graph(graph, torch.device("cpu"), measured, Machine(1e9, 1e9))
    cut = in_parts(graph, {"table.weight": 2, "blocks.0.weight": 3})
    chain = profile.chain_of(cut)
    assert len(chain.operations) == len(cut.calls)
    for seconds, (begin, end) in zip(
        measured, pairwise([0, *layer_ends(layers_of(cut))]), strict=True
    ):
        operations = chain.operations[begin:end]
        assert sum(each.forward_s for each in operations) == pytest.approx(seconds.forward_s)
    held = [name for each in chain.operations for name in each.parameters if "0.w" in name]
    assert held == [f"blocks.0.weight[{a}:{b}]" for a, b in pairwise(ENDS)]


def test_chunks_of_a_loss_are_multiplied_by_a_part_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chunks' regions do not read the table; one sub-model computes a part for all chunks."""
    monkeypatch.setattr(gpt3, "LEAST_CHUNK_TOKENS", 20)
    model = GPT3(GPT3Config(1, 2, 32, sequence_tokens=40, vocabulary_size=500))
    graph = trace(model, texts(0))
    assert len(graph.recomputed) == 4
    cut = in_parts(graph, {"embedding.tokens.weight": 3})
    spans = [cut.calls[begin:end] for begin, end in cut.recomputed]
    kinds = [[str(call.target) for call in calls] for calls in spans]
    assert kinds == 4 * [["aten.cat.default", "aten.to.dtype", "aten.cross_entropy_loss.default"]]
    products = [
        call.args[1]
        for call in cut.calls[: cut.recomputed[0][0]]
        if call.args[1:2]
        and cut.parameters.get(call.args[1], "").startswith("embedding.tokens.weight")
    ]
    assert len(products) == 12
    assert len({each for each, after in pairwise(products) if each is not after}) == 2
    by_hand(monkeypatch)
    for program in (build_program(cut), finest(cut)):
        verify.verify_against_eager(model, program, texts(7))


class Changed(nn.Module):
    """Model that multiplies a matrix twice and changes the second factor in between, by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(500, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.sin(x), torch.cos(x)
        view = second.view(-1)
        before = functional.linear(first, self.matrix)
        view.mul_(2)
        return (before * functional.linear(second, self.matrix)).square().mean()


def test_a_product_is_not_made_before_what_it_takes_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    model, batch = Changed(), {"x": torch.randn(5, 16)}
    program = build_program(in_parts(trace(model, batch), {"matrix": 3}))
    by_hand(monkeypatch)
    verify.verify_against_eager(model, program, {"x": torch.randn(5, 16)})


class Twins(nn.Module):
    """Model with two numbered modules that apply one shared matrix to the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.ModuleList(nn.Linear(16, 500, bias=False) for _ in range(2))
        self.pair[1].weight = self.pair[0].weight
        self.own = nn.ModuleList([nn.Linear(500, 4), nn.Linear(500, 4)])

    def forward(self, x: Tensor) -> Tensor:
        return sum(own(each(x)) for own, each in zip(self.own, self.pair, strict=True)).mean()


def test_no_product_leaves_its_layer() -> None:
    graph = trace(Twins(), {"x": torch.randn(5, 16)})
    cut = in_parts(graph, {"pair.0.weight": 3})
    assert [each.name for each in layers_of(cut)] == [each.name for each in layers_of(graph)]
    assert len(cut.calls) == len(graph.calls) + 6


def test_an_index_beyond_the_table_fails_as_it_does_there() -> None:
    model, graph = made()
    program = build_program(in_parts(graph, {"table.weight": 3}))
    for wrong in (-1, 500):
        batch = texts(7)
        batch["tokens"][1, 2] = wrong
        with pytest.raises(IndexError):
            verify._split(model, program, batch, torch.device("cpu"))


@pytest.mark.parametrize("name", ["t5", "mixtral"])
def test_models_of_the_library_in_parts_of_eight_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cuts give the same bits; the gradients are close to the module's."""
    for module in (ir, matrix_parts):
        monkeypatch.setattr(module, "ALIGNMENT_ELEMENTS", 8)
    model = transformers_zoo.make(name, 0.0)
    graph = trace(model, transformers_zoo.batch(name, 1))
    cut = in_parts(graph, {each: min(3, most) for each, most in most_parts(graph).items()})
    assert [each.name for each in layers_of(cut)] == [each.name for each in layers_of(graph)]
    batch = transformers_zoo.batch(name, 2)
    layers, operations = (
        verify._split(model, program, batch, torch.device("cpu"))
        for program in (build_program(cut), finest(cut))
    )
    for of, whole in verify._eager(model, batch).items():
        assert torch.equal(layers[of], operations[of])
        tolerance = 1e-5 * whole.abs().max().item() + 1e-7
        torch.testing.assert_close(layers[of], whole, rtol=0, atol=tolerance)


class Uses(nn.Module):
    """Model that applies a given function to a matrix."""

    def __init__(self, use: Callable[..., Tensor], rows: int = 300) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(rows, 16))
        self.bias = nn.Parameter(torch.randn(rows))
        self.use = use

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.use(x, index, self.matrix, self.bias).square().mean()


def _in_region(x: Tensor, index: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    def twice(x: Tensor) -> Tensor:
        return torch.sin(x) + LINEAR(torch.sin(x), matrix).sum()

    return checkpoint(twice, x, use_reentrant=False) + 1


def _looked_up_in_region(x: Tensor, index: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    return checkpoint(lambda i: torch.sin(EMBEDDING(i, matrix)), index, use_reentrant=False) + 1


USES: dict[str, tuple[int, Callable[..., Any]]] = {
    "multiplied": (3, lambda x, i, w, b: LINEAR(x, w, b)),
    "looked up": (3, lambda x, i, w, b: EMBEDDING(i, w)),
    "looked up, then multiplied": (3, lambda x, i, w, b: EMBEDDING(i, w) * LINEAR(x, w)[:, :16]),
    "twice": (3, lambda x, i, w, b: LINEAR(LINEAR(x, w)[:, :16], w)),
    "by its rows": (1, lambda x, i, w, b: LINEAR(x, w[:200])),
    "transposed": (1, lambda x, i, w, b: x @ w.T),
    "summed": (1, lambda x, i, w, b: LINEAR(x, w) + w.sum()),
    "with another's bias": (1, lambda x, i, w, b: LINEAR(x, w, b) * b),
    "with a bias made": (1, lambda x, i, w, b: LINEAR(x, w, 2 * b)),
    "scaled": (1, lambda x, i, w, b: EMBEDDING(i, w, scale_grad_by_freq=True)),
    "deep in a region": (1, _in_region),
    "looked up in a region": (1, _looked_up_in_region),
    "with a vector": (3, lambda x, i, w, b: LINEAR(LINEAR(x, w), b)),
    "by itself": (1, lambda x, i, w, b: LINEAR(w, w)),
}


@pytest.mark.parametrize("name", USES)
def test_only_what_is_multiplied_by_or_looked_up_in_is_cut(name: str) -> None:
    most, use = USES[name]
    model = Uses(use)
    batch = {"x": torch.randn(5, 16), "index": torch.randint(300, (5,))}
    graph = trace(model, batch)
    assert most_parts(graph).get("matrix", 1) == most
    assert "bias" not in most_parts(graph)
    cut = in_parts(graph, {"matrix": 3})
    assert (cut is graph) == (most == 1)
    found = verify._split(model, finest(cut), batch, torch.device("cpu"))
    for of, whole in verify._eager(model, batch).items():
        torch.testing.assert_close(found[of], whole, rtol=1e-4, atol=1e-5)


def test_a_bias_that_is_one_number_for_all_rows_is_in_no_parts() -> None:
    model = Uses(lambda x, i, w, b: LINEAR(x, w, b))
    model.bias = nn.Parameter(torch.randn(1))
    graph = trace(model, {"x": torch.randn(5, 16), "index": torch.randint(300, (5,))})
    assert not most_parts(graph)

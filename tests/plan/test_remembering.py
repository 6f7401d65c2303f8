"""Recomputation that a model itself requests is left out if there is enough memory."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from atom.graph.chain import Chain
from atom.graph.costs.seconds import assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.graph.verify import verify_against_eager
from atom.models.gpt3 import GPT3, GPT3Config
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose, enough_bytes
from atom.plan.memory import Cut, Limits
from atom.swap.schedule import Arrangement

CONFIG = GPT3Config(2, 2, 16, sequence_tokens=1024, vocabulary_size=512)
PLENTY = 1 << 40


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (1, CONFIG.sequence_tokens)
    return {n: torch.randint(512, shape, generator=generator) for n in ("tokens", "targets")}


@cache
def graph() -> Graph:
    return trace(GPT3(CONFIG, device="meta"), batch())


@cache
def asked() -> Question:
    return Question.of(graph(), assume_graph(graph(), "rtx3060-12g"), PLENTY, 2)


def least_bytes(chain: Chain) -> int:
    """Return the device memory with which a chain runs layer by layer."""
    cut = Cut.of(chain, asked().machine, Limits(0, 4, 1), asked().layer_ends)
    return cut.memory(Arrangement()).total_bytes


@cache
def answer(device_bytes: int) -> Choice:
    return choose(asked().allowing(device_bytes=device_bytes))


def test_with_memory_to_spare_nothing_is_computed_twice() -> None:
    choice = answer(PLENTY)
    assert choice.cut.remembers
    assert choice.to_json(choice.program(graph()))["remembers"]
    assert "checkpoint(" not in choice.program(graph()).source
    assert "without the model's own checkpoints" in choice.summary
    alone = choose(replace(asked(), chain=replace(asked().chain, remembering=None)))
    assert not alone.cut.remembers
    assert choice.timeline.seconds < alone.timeline.seconds
    assert choice.memory.activation_bytes > alone.memory.activation_bytes


def test_with_little_memory_the_checkpoints_are_what_makes_it_fit() -> None:
    assert asked().chain.remembering is not None
    least = least_bytes(asked().chain)
    choice = answer(least)
    assert not choice.cut.remembers
    assert "checkpoint.checkpoint(" in choice.program(graph()).source
    assert choice.cut.ends == asked().layer_ends
    logits = 4 * CONFIG.sequence_tokens * CONFIG.vocabulary_size
    # Else the logarithms of all four chunks wait for the backward, not of one.
    assert least_bytes(asked().chain.remembering) > least + logits / 2


def test_both_are_the_model() -> None:
    torch.manual_seed(0)
    model = GPT3(CONFIG)
    for device_bytes in (least_bytes(asked().chain), PLENTY):
        program = answer(device_bytes).program(graph())
        assert program.graph_hash == graph().graph_hash
        verify_against_eager(model, program, batch(1))


def test_what_checkpoints_nothing_has_one_chain() -> None:
    plain = trace(GPT3(replace(CONFIG, vocabulary_size=64), device="meta"), batch())
    profile = assume_graph(plain, "rtx3060-12g")
    assert Question.of(plain, profile, PLENTY, 2).chain.remembering is None


class LateProduct(nn.Module):
    """Model whose recomputed region begins with other calls before it uses the largest matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 700)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return checkpoint(self.loss, self.first(x), targets, use_reentrant=False)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        decay = hidden.square().mean()
        return functional.cross_entropy(self.head(hidden), targets) + decay


def test_what_is_chosen_is_what_is_cut_in_parts_as_well() -> None:
    batch = {"x": torch.randn(4, 64), "targets": torch.randint(700, (4,))}
    graph = trace(LateProduct(), batch)
    asked = Question.of(graph, assume_graph(graph, "rtx3060-12g"), PLENTY, 2)
    short = asked.allowing(device_bytes=enough_bytes(replace(asked, graph=None)) * 2 // 3)
    choice = choose(short)
    assert choice.cut.remembers
    assert choice.cut.matrix_parts == {"head.weight": 2}
    program = choice.program(graph)
    for piece, sub_model in zip(choice.cut.pieces, program.sub_models, strict=True):
        assert piece.parameters.keys() == {*sub_model.parameter_names}
    assert "checkpoint(" not in program.source

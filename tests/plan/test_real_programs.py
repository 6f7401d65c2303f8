"""Plans of small GPTs against what the engine allocates and runs."""

import json
import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from atom.graph.costs.seconds import assume_graph
from atom.graph.layers import ends_alike, layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, GPT3Config
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose, enough_bytes
from tests.slot_bytes import slot_bytes

PRECISIONS = [torch.float32, torch.bfloat16]
BATCH = {name: torch.zeros(2, 16, dtype=torch.int64) for name in ("tokens", "targets")}


@cache
def graph_of(precision: torch.dtype) -> Graph:
    config = GPT3Config(4, 2, 48, sequence_tokens=16, vocabulary_size=128)
    model = GPT3(config, device="meta", dtype=precision)
    return trace(model, {k: v.clone() for k, v in BATCH.items()})


@cache
def asked(precision: torch.dtype) -> Question:
    graph = graph_of(precision)
    return Question.of(graph, assume_graph(graph, "rtx3060-12g"), 1 << 40, 4)


@cache
def least_bytes(precision: torch.dtype) -> int:
    return enough_bytes(asked(precision))


@cache
def answer(precision: torch.dtype, budget: int) -> Choice:
    return choose(asked(precision).allowing(device_bytes=budget))


@cache
def budgets(precision: torch.dtype) -> tuple[int, ...]:
    least = least_bytes(precision)
    return (least, 3 * least // 2, 4 * least, 1 << 40)


def test_a_choice_cuts_no_other_graph_than_its_own() -> None:
    shallow = GPT3(GPT3Config(1, 2, 48, sequence_tokens=16, vocabulary_size=128), device="meta")
    choice = answer(torch.float32, 1 << 40)
    with pytest.raises(ValueError, match="no legal cut of a graph of"):
        choice.program(trace(shallow, {k: v.clone() for k, v in BATCH.items()}))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_slots_are_what_the_engine_allocates(precision: torch.dtype) -> None:
    graph = graph_of(precision)
    for budget in budgets(precision):
        choice = answer(precision, budget)
        memory = choice.memory
        program = choice.program(graph)
        held = memory.slot_bytes + memory.resident_bytes + memory.gradient_bytes
        assert held == slot_bytes(program, precision, choice.arrangement)
        assert memory.total_bytes <= budget


def test_what_is_frozen_takes_no_memory_for_gradients() -> None:
    precision = torch.bfloat16
    config = GPT3Config(4, 2, 48, sequence_tokens=16, vocabulary_size=128)
    model = GPT3(config, device="meta", dtype=precision)
    model.requires_grad_(False)
    for block in model.blocks:
        block.feed_forward.contract.requires_grad_(True)
    graph = trace(model, BATCH)
    of = Question.of(graph, assume_graph(graph, "rtx3060-12g"), 1 << 40, 4)
    choice = choose(replace(of, limits=replace(of.limits, device_bytes=enough_bytes(of))))
    program, memory = choice.program(graph), choice.memory
    held = memory.slot_bytes + memory.resident_bytes + memory.gradient_bytes
    assert held == slot_bytes(program, precision, choice.arrangement)
    whole = answer(precision, least_bytes(precision)).memory
    assert memory.gradient_bytes < whole.gradient_bytes
    leaving = sum(choice.cut.durations.gradient_out_s) * of.machine.gradient_bytes_per_s
    assert leaving == pytest.approx(4 * graph.layout.trained_elements)


def test_gradients_in_sixteen_bits_are_rounded_in_memory_that_is_counted() -> None:
    of, narrow = asked(torch.bfloat16), torch.bfloat16
    budget = 2 * least_bytes(narrow)
    limits = replace(of.limits, device_bytes=budget, gradient_element_bytes=narrow.itemsize)
    choice, wide = choose(replace(of, limits=limits)), answer(narrow, budget)
    program = build_program(graph_of(narrow), ends=choice.cut.ends)
    held = sum(
        getattr(choice.memory, name) for name in ("slot_bytes", "resident_bytes", "gradient_bytes")
    )
    assert held == slot_bytes(program, narrow, choice.arrangement, gradients=narrow)
    assert choice.memory.total_bytes <= budget
    rate = of.machine.gradient_bytes_per_s
    assert choice.cut.durations.gradient_out_s == tuple(
        2 * p.elements / rate for p in choice.cut.pieces
    )
    assert wide.cut.durations.gradient_out_s == tuple(
        4 * p.elements / rate for p in wide.cut.pieces
    )


class Noisy(nn.Module):
    """Model with more calls in training than in evaluation, and with illegal cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
            if self.training:
                x = nn.functional.dropout(x * 2, 0.5) / 2
            low, high = x.chunk(2, dim=-1)
            x = torch.cat([high, low], dim=-1)
        return x.square().mean()


def test_cuts_carry_over_to_the_model_without_dropout() -> None:
    batch = {"x": torch.randn(2, 12)}
    graph, plain = trace(Noisy(), batch), trace(Noisy(), batch, training=False)
    assert len(plain.calls) < len(graph.calls)
    layers = layer_ends(layers_of(graph))
    assert len(ends_alike(graph, plain, layers)) == len(layers)
    legal = [p for p in range(1, len(graph.calls)) if p not in graph.forbidden_cuts]
    for seed in range(20):
        pick = random.Random(seed)
        middle = pick.sample(legal, pick.randint(1, 4))
        cut = tuple(sorted({*middle, *(layers if seed % 2 else [len(graph.calls)])}))
        assert ends_alike(graph, graph, cut) == cut
        ends = ends_alike(graph, plain, cut)
        program = build_program(plain, ends=ends)  # refuses what is not legal
        assert len(program.sub_models) == len(ends) <= len(cut)


def test_the_document_says_it_all_and_is_json() -> None:
    graph = graph_of(torch.float32)
    for budget in budgets(torch.float32)[1:3]:
        choice = answer(torch.float32, budget)
        document = choice.to_json(choice.program(graph))
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert [tuple(s["operations"])[1] for s in document["sub_models"]] == list(choice.cut.ends)
        assert sum(s["forward_s"] for s in document["sub_models"]) == pytest.approx(
            sum(piece.forward_s for piece in choice.cut.pieces)
        )
        stay = [s for s, each in enumerate(document["sub_models"]) if each["resident"]]
        assert set(stay) == choice.arrangement.resident
        total = document["device_memory"].pop("total_bytes")
        assert total == sum(document["device_memory"].values())

"""A model whose matrices do not fit the device trains there in parts of them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from atom.base.errors import DeviceError
from atom.graph.costs.seconds import assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose, enough_bytes
from atom.swap.device import CpuDevice
from atom.swap.schedule import Arrangement
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from tests.slot_bytes import slot_bytes
from tests.training.small_replica import RATE, ReplicaSettings, step_once

TABLE = "embedding.tokens.weight"
PLAIN = Arrangement()


def config(dropout: float = 0.0) -> GPT3Config:
    return GPT3Config(2, 2, 32, sequence_tokens=8, vocabulary_size=700, dropout=dropout)


def texts(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randint(700, (1, 8), generator=generator) for n in ("tokens", "targets")}


@cache
def graph_of(precision: torch.dtype, training: bool = True) -> Graph:
    model = GPT3(config(0.1 if not training else 0.0), device="meta", dtype=precision)
    return trace(model, texts(0), training)


def asked(precision: torch.dtype) -> Question:
    graph = graph_of(precision)
    profile = assume_graph(graph, "rtx3060-12g")
    return Question.of(graph, profile, 1 << 40, 2, trained_element_bytes=12)


def least_uncut_bytes(precision: torch.dtype) -> int:
    return enough_bytes(replace(asked(precision), graph=None))


def cut_for(precision: torch.dtype, share: float = 0.7) -> Choice:
    """Return the choice for a device with this share of the memory that the model needs with no
    matrix cut."""
    return choose(asked(precision).allowing(device_bytes=int(share * least_uncut_bytes(precision))))


def trained(
    choice: Choice, precision: torch.dtype, **settings: object
) -> tuple[Replica, list[str]]:
    """Three steps of two micro-batches, and the digest of its state after each."""
    graph, digests = graph_of(precision), list[str]()
    settings = {"arrangement": choice.arrangement, **settings}
    made = ReplicaSettings(rate=RATE, precision=precision, micro_batches=2, **settings)
    evaluating = choice.program_alike(graph_of(precision, training=False), graph)
    device, *beside = (CpuDevice() for _ in range(made.arrangement.devices))
    replica = Replica(choice.program(graph), evaluating, made, device, extra_devices=beside)
    replica.initialise(partial(initial_value, config(), seed=3))
    for step in range(1, 4):
        step_once(replica, [texts(2 * step), texts(2 * step + 1)], step)
        digests.append(state_digest(replica.state_arenas()))
    return replica, digests


@cache
def in_parts(precision: torch.dtype) -> tuple[Choice, Replica, list[str]]:
    """Return the choice for a device that is too small, and the training with that choice."""
    choice = cut_for(precision)
    return choice, *trained(choice, precision)


def all_of(parameters: Mapping[str, Tensor]) -> Tensor:
    """But for biases of keys: the same for all keys changes nothing, so rounding moves them."""
    kept = (name for name in sorted(parameters) if not name.endswith("qkv.bias"))
    return torch.cat([parameters[name].flatten() for name in kept])


def test_only_what_does_not_fit_is_cut_and_in_few_parts() -> None:
    precision = torch.float32
    least = least_uncut_bytes(precision)
    whole = choose(asked(precision).allowing(device_bytes=least))
    assert not whole.cut.matrix_parts
    choice, _, _ = in_parts(precision)
    assert choice.cut.matrix_parts == {TABLE: 2}
    assert choice.memory.total_bytes <= choice.cut.limits.device_bytes < least
    assert not choice.trained_elements
    assert "matrices in parts: 1" in choice.summary
    assert choice.to_json(choice.program(graph_of(precision)))["matrix_parts"] == {TABLE: 2}
    program, arrangement = choice.program(graph_of(precision)), choice.arrangement
    slots = choice.memory.slot_bytes + choice.memory.resident_bytes + choice.memory.gradient_bytes
    assert slot_bytes(program, precision, arrangement, 2) >= slots > 0


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_training_goes_as_that_of_the_whole(precision: torch.dtype) -> None:
    _, parts, _ = in_parts(precision)
    whole, _ = trained(choose(replace(asked(precision), graph=None)), precision, arrangement=PLAIN)
    found, expected = (all_of(each.export_parameters()) for each in (parts, whole))
    begun = {
        n: initial_value(config(), n, v.shape, 3) for n, v in whole.export_parameters().items()
    }
    apart = (found - expected).norm() / (expected - all_of(begun)).norm()
    assert apart < {torch.float32: 1e-5, torch.bfloat16: 0.05}[precision]
    assert parts.evaluate([texts(9)]) == pytest.approx(whole.evaluate([texts(9)]), rel=1e-3)


def test_arrangements_and_cuts_of_the_same_parts_give_the_same_bits() -> None:
    precision = torch.bfloat16
    choice, _, digests = in_parts(precision)
    every = range(len(choice.cut.pieces))
    for arrangement in (
        PLAIN,
        Arrangement(slots=3),
        Arrangement(offloaded=frozenset(every), least_offloaded_bytes=0),
        Arrangement(resident=frozenset(every), kept=frozenset([*every][:-1])),
        Arrangement(devices=2),
    ):
        assert trained(choice, precision, arrangement=arrangement)[1] == digests


def test_what_is_refused_names_memory_that_would_do() -> None:
    least = least_uncut_bytes(torch.float32)
    with pytest.raises(DeviceError) as refused:
        choose(asked(torch.float32).allowing(device_bytes=least // 50))
    named = int(str(refused.value).partition("(")[2].partition(" bytes")[0])
    assert named < 0.7 * least
    found = choose(asked(torch.float32).allowing(device_bytes=named))
    assert found.cut.matrix_parts

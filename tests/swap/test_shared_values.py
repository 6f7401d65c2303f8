"""What is the same in every micro-batch is held once per pass, and the bits do not notice."""

import dataclasses
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from atom.graph.ir import Program, SubModel
from atom.graph.program import compile_program, load
from atom.graph.segment import Computed
from atom.swap import computation
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore

VOCABULARY, WIDTH, TOKENS, SEQUENCES, MICRO_BATCHES = 17, 8, 6, 2, 3
EVERY = frozenset(range(5))
ARRANGEMENTS = {
    "swapped": Arrangement(),
    "resident": Arrangement(2, EVERY),
    "kept": Arrangement(2, EVERY, EVERY),
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, turn: Tensor, seen: Tensor) -> Tensor:
        scores = (hidden @ self.inner(hidden * turn).transpose(1, 2)).masked_fill(~seen, -1e9)
        return hidden + F.dropout(scores.softmax(-1) @ hidden, 0.2)


class Rotating(nn.Module):
    """Tables and a mask made from sizes alone, before the first layer, for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        turn = torch.cos(torch.outer(torch.arange(TOKENS), 1.0 + torch.arange(WIDTH)))
        seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().expand(SEQUENCES, -1, -1)
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden, turn, seen)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


@torch.library.custom_op("atom_tests::noise", mutates_args=())
def noise(extent: int) -> Tensor:
    """Draws random numbers, and does not say so."""
    return torch.rand(extent)


@noise.register_fake
def _(extent: int) -> Tensor:
    return torch.empty(extent)


class Noisy(Rotating):
    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        turn, seen = noise(WIDTH) * torch.ones(TOKENS, WIDTH), torch.ones(1, TOKENS, TOKENS) > 0
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden, turn, seen)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (SEQUENCES, TOKENS)
    return {
        name: torch.randint(VOCABULARY, shape, generator=generator)
        for name in ("tokens", "targets")
    }


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_program(Rotating(), batch(0))


class Rig:
    def __init__(self, program: Program, arrangement: Arrangement) -> None:
        self.program, self.device = program, CpuDevice()
        self.store = HostStore.allocate(program.layout)
        torch.manual_seed(0)
        self.store.master.copy_(torch.randn(len(self.store.master)).mul_(0.3))
        self.store.round_master()
        slots = DeviceSlots.allocate([program], self.device, torch.float32, arrangement)
        self.engine = Engine(program, load(program, "cpu"), self.store, slots, self.device)

    def story(self) -> list[object]:
        batches = [batch(seed) for seed in range(MICRO_BATCHES)]
        losses = self.engine.run_pass(batches, range(MICRO_BATCHES))
        return [losses, self.store.gradients.clone(), self.engine.evaluate(batches)]


@pytest.mark.parametrize("how", ARRANGEMENTS)
def test_held_once_with_the_bits_of_one_each(program: Program, how: str) -> None:
    once = Rig(program, ARRANGEMENTS[how])
    each = Rig(dataclasses.replace(program, shared=frozenset()), ARRANGEMENTS[how])
    with_one, with_many = once.story(), each.story()
    assert with_one[0] == with_many[0]
    assert with_one[2] == with_many[2]
    assert torch.equal(with_one[1], with_many[1])
    assert len(set(with_one[0])) == MICRO_BATCHES
    for rig in (once, each):
        rig.device.close()


@pytest.mark.parametrize("how", ARRANGEMENTS)
def test_every_micro_batch_is_given_the_same_memory(
    program: Program, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: defaultdict[str, list[Tensor]] = defaultdict(list)
    compute = computation.compute

    def watched(
        module: nn.Module, sub_model: SubModel, values: dict[str, Tensor], record: bool = True
    ) -> Computed:
        for name in sub_model.inputs:
            given[name].append(values[name])  # alive, so that no address is used twice
        return compute(module, sub_model, values, record)

    monkeypatch.setattr(computation, "compute", watched)
    rig = Rig(program, ARRANGEMENTS[how])
    rig.engine.run_pass([batch(seed) for seed in range(MICRO_BATCHES)], range(MICRO_BATCHES))
    rig.device.close()
    assert {len(program.values[name].shape) for name in program.shared} == {2, 3}
    for name in given.keys() - program.batch_inputs:
        addresses = {value.data_ptr() for value in given[name]}
        assert len(addresses) == (1 if name in program.shared else MICRO_BATCHES)


def test_what_an_unknown_operator_makes_is_each_micro_batch_s_own() -> None:
    torch.manual_seed(0)
    model = Noisy()
    program = compile_program(model, batch(0))
    made = program.values.keys() - program.batch_inputs
    assert {"gt"} <= program.shared < made
    assert not any(name.startswith(("noise", "mul")) for name in program.shared)
    rig = Rig(program, Arrangement())
    parameters = dict(model.named_parameters())
    for name in program.layout.by_name:
        program.layout.view(rig.store.master, name).copy_(parameters[name].detach())
    rig.store.round_master()
    batches = [batch(seed) for seed in range(MICRO_BATCHES)]
    losses = rig.engine.run_pass(batches, range(MICRO_BATCHES))
    rig.device.close()
    for seed, found in enumerate(losses):
        torch.manual_seed(seed)
        assert found == model(**batches[seed]).item()

"""One training step computed by the whole module, by its sub-models, and by the swapping engine."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from layer_major import run_layer_major
from torch import Tensor, nn
from traced_modules import Batch, legal_ends

from atom.graph.chain import Machine
from atom.graph.costs.seconds import typical_graph
from atom.graph.ir import Program
from atom.graph.program import build_program, load
from atom.graph.traced import Graph
from atom.plan.choosing import Question, choose, enough_bytes
from atom.plan.memory import Limits
from atom.swap.device import CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.schedule import Arrangement

SPARE = 1.25

Result = tuple[list[float], dict[str, Tensor]]
"""Losses, and the gradients of their sum by parameter name, for parameters with a gradient."""


def eager(model: nn.Module, batches: Sequence[Batch], seeds: Sequence[int]) -> Result:
    """Return the results of the whole module with accumulated gradients."""
    model.zero_grad(set_to_none=True)
    losses = []
    for batch, seed in zip(batches, seeds, strict=True):
        torch.manual_seed(seed)
        loss = model(**{name: value.clone() for name, value in batch.items()})
        loss.backward()
        losses.append(loss.item())
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def plain(
    model: nn.Module, program: Program, batches: Sequence[Batch], seeds: Sequence[int]
) -> Result:
    """Return the results of the reference implementation, `layer_major`."""
    modules = [make() for make in load(program, "cpu")]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    steps = run_layer_major(program, modules, parameters, batches, seeds)
    return [loss.item() for loss in steps.losses], dict(steps.gradients)


def swapped(
    model: nn.Module,
    program: Program,
    batches: Sequence[Batch],
    seeds: Sequence[int],
    arrangement: Arrangement | None = None,
) -> Result:
    """Return the results of the engine with two slots, or of a second pass with an arrangement.

    The engine weights gradients by sequences, so their number must be a power of two.
    """
    device = CpuDevice()
    store = HostStore.allocate(program.layout)
    parameters = dict(model.named_parameters())
    for name in program.layout.by_name:
        store.write_weights(name, parameters[name])
    store.round_master()
    slots = DeviceSlots.allocate([program], device, torch.float32, arrangement or Arrangement())
    engine = Engine(program, load(program, "cpu"), store, slots, device)
    for _ in range(1 if arrangement is None else 2):
        store.gradients.zero_()
        losses = engine.run_pass(batches, seeds)
    sequences = batches[0][program.batch_inputs[0]].shape[0]
    gradients = {
        spec.name: program.layout.view(store.gradients, spec.name) / sequences
        for spec in program.layout.trained
    }
    return losses, gradients


def finest(graph: Graph) -> Program:
    """Cut a graph at every legal position."""
    return build_program(graph, ends=[*legal_ends(graph), len(graph.calls)])


def planned(graph: Graph) -> Program:
    """Cut a graph like a plan for a device with little more memory than necessary."""
    machine = Machine(1e10, 1e10)
    chain = typical_graph(graph, torch.device("cpu"), machine).chain
    limits = Limits(0, element_bytes=graph.parameter_dtype.itemsize, micro_batches=1)
    enough = enough_bytes(Question(chain, machine, limits))
    choice = choose(Question(chain, machine, replace(limits, device_bytes=int(SPARE * enough))))
    return build_program(graph, ends=choice.cut.ends)


def frozen_in(graph: Graph) -> frozenset[str]:
    return frozenset(spec.name for spec in graph.layout.specs if spec.frozen)


CUTS = {"finest": finest, "planned": planned}


def assert_equal(found: Result, expected: Result, frozen: frozenset[str] = frozenset()) -> None:
    """Compare bit by bit; parameters without a gradient in `expected` may have zeros."""
    assert found[0] == expected[0]
    assert not expected[1].keys() - found[1].keys()
    for name, gradient in found[1].items():
        if name in expected[1]:
            assert torch.equal(gradient, expected[1][name]), name
        else:
            assert not gradient.any(), name
    assert not frozen & expected[1].keys()

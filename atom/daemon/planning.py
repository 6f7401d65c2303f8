"""What this box would do for a run: memory, sub-models, schedule, traffic. Needs no weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from atom.base.errors import ConfigError
from atom.config.load import load_peer_file, load_run_file
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.daemon.load_hiding import HidingTokens, Rates, hiding_tokens
from atom.daemon.pass_steps import PassStep, pass_steps
from atom.daemon.recipe import (
    PRECISIONS,
    RESULT_ARENAS,
    free_device_bytes,
    model_on_meta,
    open_device,
)
from atom.graph.cost import layer_costs
from atom.graph.ir import Program
from atom.graph.layers import layers_of
from atom.graph.partition.balanced import LayerCost, need_bytes
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.data.tokenizer import load_tokenizer
from atom.models.gpt3 import GPT3Config
from atom.swap.arrangement import MINIMUM_SLOTS
from atom.swap.device_slots import SlotLayout, device_bytes
from atom.swap.host_store import host_bytes
from atom.swap.schedule import Shape, loaded_elements, training_pass
from atom.swap.schedule_check import check
from atom.training.pacing import MAX_MICRO_BATCHES_PER_PASS

FLOAT32_BYTES = torch.float32.itemsize


@dataclass(frozen=True)
class PlannedSubModel:
    """One sub-model of the cut; layers are counted from 0, both ends included."""

    index: int
    first_layer: int
    last_layer: int
    first_name: str
    last_name: str
    load_bytes: int
    """What one load copies to the device."""
    need_bytes: int
    """What the cut reckons it takes on the device, with its neighbour's parameters."""
    flops: float
    """Of one micro-batch's forward."""


@dataclass(frozen=True)
class HostPlan:
    """Host memory: flat arenas of one element per parameter (and padding)."""

    arenas: tuple[tuple[str, int], ...]
    """(what, bytes)."""
    have_bytes: int
    """The peer file's word, or what is free now."""

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.arenas)


@dataclass(frozen=True)
class DevicePlan:
    """Device memory. `None` for the budget: no limit is set (sub-models run in host memory)."""

    kind: str
    budget_bytes: int | None
    slots: int
    slot_bytes: int
    """Weight and gradient slots together."""
    working_bytes: int
    """Activations of the largest sub-model at work."""
    boundary_bytes: int
    """Values between sub-models, kept for every micro-batch of a pass."""

    @property
    def total_bytes(self) -> int:
        return self.slot_bytes + self.working_bytes + self.boundary_bytes


@dataclass(frozen=True)
class PassPlan:
    """One pass: the micro-batches that go through all sub-models before the peer looks up."""

    micro_batches: int
    tokens: int
    first_bytes_in: int
    """Into the device, by the first pass after an optimizer step."""
    next_bytes_in: int
    """By every further pass of the round: some sub-models are still there."""
    bytes_out: int
    """Gradients, float32."""
    steps: tuple[PassStep, ...]


@dataclass(frozen=True)
class Plan:
    """What a box would do for a run."""

    run: str
    model: GPT3Config
    precision: str
    parameters: int
    micro_batch_sequences: int
    host: HostPlan
    device: DevicePlan
    sub_models: tuple[PlannedSubModel, ...]
    training_pass: PassPlan

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch_sequences * self.model.sequence_tokens


def plan_run(run_file: Path, peer_file: Path | None) -> Plan:
    """Plans from the two files alone: opens no text, allocates nothing, asks no swarm.

    Raises: ConfigError; ModelError; DeviceError naming the layer that does not fit the device.
    """
    run, peer = load_run_file(run_file), load_peer_file(peer_file)
    vocabulary = run.model.vocabulary_size or _vocabulary(run, peer, run_file.absolute().parent)
    config = GPT3Config.build(vocabulary_size=vocabulary, **run.model.shape())
    precision = PRECISIONS[run.model.precision]
    budget_bytes = _budget(peer, precision)
    graph = trace(*model_on_meta(config, run))
    costs = layer_costs(graph, layers_of(graph))
    program = build_program(graph, None, budget_bytes)
    micro_batches = _micro_batches(run)
    return Plan(
        run=run.run.name,
        model=config,
        precision=run.model.precision,
        parameters=sum(spec.numel for spec in program.layout.specs),
        micro_batch_sequences=run.batch.micro_batch_sequences,
        host=_host(program, precision, peer),
        device=_device(program, costs, precision, peer.device.kind, budget_bytes, micro_batches),
        sub_models=_sub_models(program, costs, precision),
        training_pass=_pass(program, precision, run, config, micro_batches),
    )


def _vocabulary(run: RunFile, peer: PeerFile, folder: Path) -> int:
    """What the founder's tokenizer would decide. Raises: ConfigError."""
    try:
        return load_tokenizer(text_sources(run, peer, folder).tokenizer).vocabulary_size
    except ValueError as problem:
        raise ConfigError(
            f"the run's vocabulary is not known: {problem}",
            "put the tokenizer in its place, or set [model] vocabulary_size",
        ) from problem


def _budget(peer: PeerFile, precision: torch.dtype) -> int | None:
    """The peer file's word, else what the device has free. Raises: DeviceError."""
    if peer.device.memory_bytes is not None:
        return peer.device.memory_bytes
    device = open_device(peer.device.kind, precision)
    try:
        return free_device_bytes(device)
    finally:
        device.close()


def _micro_batches(run: RunFile) -> int:
    """Of a pass when this peer trains alone: with others it may be fewer."""
    whole_round = -(-run.batch.global_sequences // run.batch.micro_batch_sequences)
    return min(whole_round, MAX_MICRO_BATCHES_PER_PASS)


def _host(program: Program, precision: torch.dtype, peer: PeerFile) -> HostPlan:
    elements = program.layout.total_elements
    kept = ["master weights", "first moments", "second moments", "gradients"]
    kept += [f"averaged gradients {number + 1}" for number in range(RESULT_ARENAS)]
    arenas = [(name, elements * FLOAT32_BYTES) for name in kept]
    if precision != torch.float32:
        arenas.insert(1, ("working copy", elements * precision.itemsize))
    results = RESULT_ARENAS * elements * FLOAT32_BYTES
    assert sum(size for _, size in arenas) == host_bytes(program.layout, precision) + results
    have = peer.host.memory_bytes or psutil.virtual_memory().available
    return HostPlan(tuple(arenas), have)


def _device(
    program: Program,
    costs: Sequence[LayerCost],
    precision: torch.dtype,
    kind: str,
    budget_bytes: int | None,
    micro_batches: int,
) -> DevicePlan:
    working = (
        sum(cost.working_bytes for cost in costs[part.first_layer : part.last_layer + 1])
        for part in program.sub_models
    )
    between = sum(value.size_bytes for value in program.values.values())
    return DevicePlan(
        kind=kind,
        budget_bytes=budget_bytes,
        slots=MINIMUM_SLOTS,
        slot_bytes=device_bytes(program, precision),
        working_bytes=max(working),
        boundary_bytes=micro_batches * between,
    )


def _sub_models(
    program: Program, costs: Sequence[LayerCost], precision: torch.dtype
) -> tuple[PlannedSubModel, ...]:
    planned = []
    for part in program.sub_models:
        layers = costs[part.first_layer : part.last_layer + 1]
        planned.append(
            PlannedSubModel(
                index=part.index,
                first_layer=part.first_layer,
                last_layer=part.last_layer,
                first_name=layers[0].name,
                last_name=layers[-1].name,
                load_bytes=SlotLayout.of(part, program.layout).elements * precision.itemsize,
                need_bytes=need_bytes(layers, precision.itemsize),
                flops=sum(layer.flops for layer in layers),
            )
        )
    return tuple(planned)


def _pass(
    program: Program, precision: torch.dtype, run: RunFile, config: GPT3Config, micro_batches: int
) -> PassPlan:
    shape = Shape(len(program.sub_models), micro_batches)
    elements = [SlotLayout.of(part, program.layout).elements for part in program.sub_models]
    first = training_pass(shape)
    following = training_pass(shape, check(first, shape))
    sequences = micro_batches * run.batch.micro_batch_sequences
    return PassPlan(
        micro_batches=micro_batches,
        tokens=sequences * config.sequence_tokens,
        first_bytes_in=loaded_elements(first, elements) * precision.itemsize,
        next_bytes_in=loaded_elements(following, elements) * precision.itemsize,
        bytes_out=sum(elements) * FLOAT32_BYTES,
        steps=tuple(pass_steps(first, shape)),
    )


def tokens_that_hide_loads(plan: Plan, rates: Rates) -> HidingTokens:
    """For the plan's schedule on a box with these rates."""
    return hiding_tokens(
        plan.training_pass.steps,
        [part.load_bytes for part in plan.sub_models],
        [part.flops / plan.micro_batch_tokens for part in plan.sub_models],
        rates,
    )

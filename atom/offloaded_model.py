"""The front door: train a PyTorch module that is larger than the GPU, in one process, no swarm.

The module is traced and cut into sub-models; weights, gradients and optimizer state lie in host
memory, and the sub-models stream through the device. It is made of the parts that a peer is made of
(`graph`, `placement`, `swap`, `optim`, `training.replica`, `daemon.fitting`), so what holds for a
peer holds here: a step gives the same bits as plain PyTorch where the device rounds alike
(docs/swap.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from atom.base.units import parse_bytes
from atom.daemon.fitting.device_choice import (
    allowed_bytes,
    free_host_bytes,
    has_kernels,
    question,
    trained_element_bytes,
    usable_device_bytes,
)
from atom.daemon.fitting.profiling import profile_or_guess
from atom.daemon.model.devices import open_devices
from atom.graph.ir import Program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer, store_bytes
from atom.optim.rate import RateSettings
from atom.placement.choice import Choice
from atom.placement.choosing import choose
from atom.swap.device import Device
from atom.swap.state_form import StateForm
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.replica.settings import MAX_MICRO_BATCHES_PER_PASS

MicroBatch = tuple[Tensor, Tensor]
"""Inputs and targets; the first dimension of both counts sequences (samples)."""
Loss = Callable[[Any, Tensor], Tensor]
"""(the module's output, targets) → mean loss, a scalar."""


class OffloadedModel:
    """A module whose weights and optimizer state lie in host memory and stream through a device.

    Made by `offload`. One thread at a time. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        replica: Replica,
        device: Device,
        names: Mapping[str, str],
        constants: Mapping[str, Tensor],
    ) -> None:
        """`names`: of every trained entry of the module's `state_dict`, the name under which the
        replica has it (tied parameters have one). `constants`: its other entries."""
        self._replica = replica
        self._device = device
        self._names = names
        self._constants = constants

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return self._replica.round

    @property
    def micro_batches(self) -> int:
        """The most micro-batches that go through the device together. A step may have more."""
        return self._replica.micro_batches

    def step(self, batches: Sequence[MicroBatch]) -> float:
        """One optimizer step on the mean gradient of all sequences in `batches`.

        The step itself runs on the host under the next call's passes.

        Args:
            batches: one or more micro-batches, each shaped as the example given to `offload`.

        Returns: the mean loss per sequence, before the step.

        Raises: PassVoided for a loss or a gradient that is not finite, or if memory ran out: the
        weights are as before the call; ValueError for no micro-batch, or one of another shape.
        """
        if not batches:
            raise ValueError("no micro-batch")
        replica = self._replica
        replica.reset_gradients()
        groups = _groups(batches, replica.micro_batches)
        for number, some in enumerate(groups, start=1):
            replica.run_pass([_entries(batch) for batch in some], last=number == len(groups))
        replica.begin_own_step()
        return replica.loss_sum / replica.sequences

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """Mean loss per sequence in evaluation mode; nothing is changed. Raises: as `step`."""
        if not batches:
            raise ValueError("no micro-batch")
        return self._replica.evaluate([_entries(batch) for batch in batches])

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that `load_state_dict` needs to go on with the same bits.

        `"model"`: what the module's own `state_dict` has, parameters in float32;
        `"state"`: weights and optimizer state as flat arenas [elements], and parameters without
        gradient; `"steps"`. The random numbers of dropout are not part of it.
        """
        weights = self._replica.export_parameters()
        state = {**self._replica.state_arenas(), **self._replica.frozen}
        return {
            "model": {name: value.clone() for name, value in self._constants.items()}
            | {name: weights[ours].clone() for name, ours in self._names.items()},
            "state": {name: arena.clone() for name, arena in state.items()},
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave. Raises: KeyError; ValueError if it is another
        model's; then nothing is changed."""
        if int(state["steps"]) < 0:
            raise ValueError(f"steps: {state['steps']} is below 0")
        self._replica.load_state(state["state"], int(state["steps"]))

    def close(self) -> None:
        """Waits for the step under way and gives the device's memory back, cuBLAS' workspaces of
        the whole process with it: nothing else computes there meanwhile."""
        self._replica.finish_step()
        self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self.close()


def offload(
    model: nn.Module,
    loss: Loss,
    example: MicroBatch,
    *,
    gpu_memory: str | None = None,
    optimizer: Optimizer | None = None,
    learning_rate: float | RateSettings = 1e-3,
    clip_norm: float | None = None,
    device: str = "auto",
    seed: int = 0,
) -> OffloadedModel:
    """Takes a module over to train it through a device that may be smaller than it.

    Args:
        model: any module that `torch.export` can trace (docs/compiler.md). It is put into training
            mode. Its values are copied to host memory; the module itself is not used afterwards and
            may be deleted.
        loss: of the module's output and the targets, the mean over the sequences: a scalar.
        example: inputs and targets of one micro-batch. All micro-batches must be shaped like it.
        gpu_memory: the most that may be taken of the device, as "8 GiB"; None: nine tenths of what
            is free there. Several models that are open have theirs together. On a CPU it bounds
            what is computed at a time.
        optimizer: `atom.AdamW(...)`, or another `atom.optim.optimizer.Optimizer`; None: AdamW.
        learning_rate: constant, or a schedule over steps.
        clip_norm: the global norm to which gradients are clipped; None: they are not.
        device: "auto", "cpu", "cuda" or "cuda:N".
        seed: of dropout.

    Raises: ModelError naming what cannot be traced; DeviceError for a device that is missing or too
    small, naming what does not fit; ValueError for a `gpu_memory` that is no quantity of bytes, a
    rate or a norm that is out of range.
    """
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm: {clip_norm} is not above 0; None: no clipping")
    capped = None if gpu_memory is None else parse_bytes(gpu_memory)
    whole = _WithLoss(model, loss).train()
    batch = _entries(example)
    graph = trace(whole, batch)
    (opened,) = open_devices([device], graph.parameter_dtype, allowed_bytes(capped))
    with ExitStack() as unless_done:
        unless_done.callback(opened.close)
        choice = _choice(graph, optimizer or AdamW(), opened, capped)
        settings = ReplicaSettings(
            rate=_schedule(learning_rate),
            optimizer=optimizer or AdamW(),
            clip_norm=clip_norm,
            precision=graph.parameter_dtype,
            arrangement=choice.arrangement,
            micro_batches=choice.micro_batches,
            dropout_seed=seed,
        )
        evaluation = _evaluation(whole, batch, graph, choice)
        replica = Replica(choice.program(graph), evaluation, settings, opened)
        values = dict(whole.named_parameters())
        for fill in (replica.fill_frozen, replica.initialise):
            fill(lambda name, _: values[name].detach().to("cpu", torch.float32))
        unless_done.pop_all()
    names = _names(model, whole, graph)
    constants = {
        name: value.detach().cpu().clone()
        for name, value in model.state_dict().items()
        if name not in names
    }
    return OffloadedModel(replica, opened, names, constants)


class _WithLoss(nn.Module):
    """What is traced: the module and its loss as one."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.model(inputs), targets)


def _schedule(learning_rate: float | RateSettings) -> RateSettings:
    if isinstance(learning_rate, RateSettings):
        return learning_rate
    if not 0 <= learning_rate < math.inf:
        raise ValueError(f"learning_rate: {learning_rate} is not a finite number from 0 on")
    return RateSettings(learning_rate)


def _entries(batch: MicroBatch) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"inputs": inputs, "targets": targets}


def _groups(batches: Sequence[MicroBatch], most: int) -> list[Sequence[MicroBatch]]:
    return [batches[start : start + most] for start in range(0, len(batches), most)]


def _choice(graph: Graph, optimizer: Optimizer, device: Device, capped_bytes: int | None) -> Choice:
    """How the model is cut for this device. Raises: DeviceError."""
    kind = device.torch_device
    profile = profile_or_guess(graph, kind, lambda note: None, lambda done, total: None)
    left = free_host_bytes(None) - store_bytes(optimizer, graph.layout, graph.parameter_dtype)
    device_bytes = capped_bytes or usable_device_bytes([kind], left)
    most = MAX_MICRO_BATCHES_PER_PASS
    kernels = has_kernels(kind, lambda note: None)
    trained = trained_element_bytes(optimizer, graph, StateForm.EXACT) if kernels else 0
    return choose(question(graph, profile, device_bytes, most, left, trained_element_bytes=trained))


def _evaluation(
    whole: nn.Module, batch: Mapping[str, Tensor], graph: Graph, choice: Choice
) -> Program | None:
    """The model in evaluation mode, cut alike; None: it is the same as in training."""
    evaluated = trace(whole, batch, training=False)
    if evaluated.graph_hash == graph.graph_hash:
        return None
    return choice.program_alike(evaluated, graph)


def _names(model: nn.Module, whole: nn.Module, graph: Graph) -> dict[str, str]:
    """Of the model's parameters that its forward uses."""
    first = {id(parameter): name for name, parameter in whole.named_parameters()}
    named = model.named_parameters(remove_duplicate=False)
    ours = {name: first[id(parameter)] for name, parameter in named}
    return {name: one for name, one in ours.items() if one in graph.layout.by_name}

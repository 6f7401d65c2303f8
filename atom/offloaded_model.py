"""Training of a PyTorch module that is larger than the GPU, in one process, without a swarm.

The module is traced and cut into sub-models. Weights, gradients and optimizer state stay in host
memory, and the sub-models stream through the device. The code is shared with the swarm's peers
(`graph`, `plan`, `swap`, `optim`, `training.replica`), so its guarantees
hold here too: a step gives the same bits as plain PyTorch where the device rounds alike
(docs/devices.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from atom.base.units import parse_bytes
from atom.graph.ir import Program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.devices import free_host_bytes, has_kernels, open_devices, usable_device_bytes
from atom.plan.footprint import Footprint, trained_element_bytes
from atom.plan.profiling import profile_or_guess
from atom.swap.device import Device
from atom.training.replica.device_engines import MAX_MICRO_BATCHES_PER_PASS
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.run_optimizer import ReplicaTerms

MicroBatch = tuple[Tensor, Tensor]
"""Inputs and targets of a micro-batch; the first dimension of both counts sequences (samples)."""
Loss = Callable[[Any, Tensor], Tensor]
"""Loss function: (the module's output, targets) → mean loss over the sequences, a scalar."""


class OffloadedModel:
    """Module whose weights and optimizer state stay in host memory and stream through a device.

    Create it with `offload`. Use it from one thread at a time, as a context manager, or call
    `close`.
    """

    def __init__(
        self,
        replica: Replica,
        device: Device,
        names: Mapping[str, str],
        constants: Mapping[str, Tensor],
    ) -> None:
        """Wrap a replica that already holds the module's values.

        Args:
            replica: the replica that trains the module.
            device: the device of the replica, which `close` releases.
            names: name of each trained entry of the module's `state_dict` → the replica's name for
                it. Tied parameters share one name in the replica.
            constants: the other entries of the `state_dict`, by name.
        """
        self._replica = replica
        self._device = device
        self._names = names
        self._constants = constants

    @property
    def steps(self) -> int:
        """Number of optimizer steps taken."""
        return self._replica.step_count

    @property
    def micro_batches(self) -> int:
        """Maximum number of micro-batches per pass through the device; a step may take more."""
        return self._replica.micro_batches

    def step(self, batches: Sequence[MicroBatch]) -> float:
        """Take one optimizer step on the mean gradient of all sequences in `batches`.

        The optimizer step runs on the host and overlaps with the passes of the next call.

        Args:
            batches: one or more micro-batches, each shaped as the example given to `offload`.

        Returns: the mean loss per sequence, before the step.

        Raises: PassVoided if a loss or gradient is not finite, or memory ran out; the weights are
            then as before the call. ValueError if `batches` is empty or has another shape.
        """
        if not batches:
            raise ValueError("no micro-batch: give at least one")
        replica = self._replica
        replica.reset_gradients()
        groups = _groups(batches, replica.micro_batches)
        for number, group in enumerate(groups, start=1):
            replica.run_pass([_entries(batch) for batch in group], last=number == len(groups))
        replica.begin_own_step()
        return replica.loss_sum / replica.sequences

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """Return the mean loss per sequence in evaluation mode, without changing the weights.

        Args:
            batches: one or more micro-batches, each shaped as the example given to `offload`.

        Raises: the exceptions of `step`.
        """
        if not batches:
            raise ValueError("no micro-batch: give at least one")
        return self._replica.evaluate([_entries(batch) for batch in batches])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that `load_state_dict` needs to continue with the same bits.

        The random state of dropout is not included.

        Returns: a dict of three entries. "model" has the entries of the module's own `state_dict`,
            with parameters in float32. "state" has weights and optimizer state as flat arenas
            [elements], and the parameters without gradient. "steps" is the number of steps taken.
        """
        weights = self._replica.export_parameters()
        state = {**self._replica.state_arenas(), **self._replica.frozen}
        return {
            "model": {name: value.clone() for name, value in self._constants.items()}
            | {name: weights[trained].clone() for name, trained in self._names.items()},
            "state": {name: arena.clone() for name, arena in state.items()},
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Raises: KeyError if an entry is missing; ValueError if the state is of another model.
            Nothing has changed in either case.
        """
        if int(state["steps"]) < 0:
            raise ValueError(f"steps: {state['steps']} is below 0")
        self._replica.load_state(state["state"], int(state["steps"]))

    def close(self) -> None:
        """Wait for the current step, then release the device's memory.

        The cuBLAS workspaces of the whole process are released too, so no other computation may run
        on the device during this call.
        """
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
    """Prepare a module for training on a device that may be smaller than the module.

    Args:
        model: any module that `torch.export` can trace (docs/compiler.md). It is put into training
            mode. Its values are copied to host memory; the module itself is not used afterwards and
            may be deleted.
        loss: function of the module's output and the targets; returns the mean over the sequences,
            a scalar.
        example: inputs and targets of one micro-batch. All micro-batches must have this shape.
        gpu_memory: most device memory to take, such as "8 GiB"; None: nine tenths of the free
            memory. Several open models share one limit, the sum of theirs. On a CPU it bounds the
            memory of the computation.
        optimizer: `atom.AdamW(...)`, or another `atom.optim.optimizer.Optimizer`; None: AdamW.
        learning_rate: a constant, or a schedule over steps.
        clip_norm: largest global norm of the gradient, above which it is clipped; None: no
            clipping.
        device: "auto", "cpu", "cuda" or "cuda:N".
        seed: seed of dropout.

    Returns: the offloaded model, ready for `step`; close it after use.

    Raises: ModelError naming the operation that cannot be traced; DeviceError if the device is
        missing or too small; ValueError if `gpu_memory` is not a size, or the learning rate or
        `clip_norm` is out of range.
    """
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm: {clip_norm} is not above 0; use None for no clipping")
    limit_bytes = None if gpu_memory is None else parse_bytes(gpu_memory)
    whole = _WithLoss(model, loss).train()
    batch = _entries(example)
    graph = trace(whole, batch)
    (opened,) = open_devices([device], graph.parameter_dtype, limit_bytes)
    with ExitStack() as on_failure:
        on_failure.callback(opened.close)
        choice = _choice(graph, optimizer or AdamW(), opened, limit_bytes)
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
        on_failure.pop_all()
    names = _names(model, whole, graph)
    constants = {
        name: value.detach().cpu().clone()
        for name, value in model.state_dict().items()
        if name not in names
    }
    return OffloadedModel(replica, opened, names, constants)


class _WithLoss(nn.Module):
    """Module and loss function as one module, which is traced."""

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
        raise ValueError(f"learning_rate: {learning_rate} is not a finite number of 0 or more")
    return RateSettings(learning_rate)


def _entries(batch: MicroBatch) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"inputs": inputs, "targets": targets}


def _groups(batches: Sequence[MicroBatch], most: int) -> list[Sequence[MicroBatch]]:
    return [batches[start : start + most] for start in range(0, len(batches), most)]


def _choice(graph: Graph, optimizer: Optimizer, device: Device, limit_bytes: int | None) -> Choice:
    """Choose how to cut the model for this device. Raises: DeviceError if it does not fit."""
    kind = device.torch_device
    profile = profile_or_guess(graph, kind, lambda note: None, lambda done, total: None)
    terms = ReplicaTerms(graph.layout, graph.parameter_dtype, optimizer)
    left_bytes = Footprint.of(terms, free_host_bytes(None)).host.left_bytes
    device_bytes = limit_bytes or usable_device_bytes([kind], left_bytes)
    sizes = device_bytes, MAX_MICRO_BATCHES_PER_PASS, left_bytes
    kernels = has_kernels(kind, lambda note: None)
    trained = trained_element_bytes(terms) if kernels else 0
    return choose(Question.of(graph, profile, *sizes, trained_element_bytes=trained))


def _evaluation(
    whole: nn.Module, batch: Mapping[str, Tensor], graph: Graph, choice: Choice
) -> Program | None:
    """Return the program of evaluation mode, cut as in training; None if both modes are equal."""
    evaluated = trace(whole, batch, training=False)
    if evaluated.graph_hash == graph.graph_hash:
        return None
    return choice.program_alike(evaluated, graph)


def _names(model: nn.Module, whole: nn.Module, graph: Graph) -> dict[str, str]:
    """Return the model's name → the replica's name of each parameter that the forward uses."""
    first = {id(parameter): name for name, parameter in whole.named_parameters()}
    named = model.named_parameters(remove_duplicate=False)
    traced = {name: first[id(parameter)] for name, parameter in named}
    return {name: own for name, own in traced.items() if own in graph.layout.by_name}

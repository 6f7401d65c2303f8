"""Forward and backward of a sub-model on one micro-batch, and the storage of the results."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.segment import Computed, compute, push_back
from atom.swap.boundary_traffic import BoundaryTraffic, MicroBatch
from atom.swap.device import Device
from atom.swap.device_slots import BoundSubModel, DeviceSlots
from atom.swap.parameter_gradients import ParameterGradients
from atom.swap.running_pass import RunningPass
from atom.swap.schedule import users_of


class Computation:
    """Forwards and backwards of one program.

    Only the engine's thread may call it, inside `Device.computing`, after the sub-model's weights
    and values have arrived.
    """

    def __init__(
        self, program: Program, slots: DeviceSlots, device: Device, traffic: BoundaryTraffic
    ) -> None:
        self._program, self._slots, self._device = program, slots, device
        self._traffic = traffic
        single = slots.weights[0].dtype == torch.float32
        self._exact = single and not program.own_backwards
        shape = slots.shape_of(program)
        users = users_of([program.sub_models[s] for s in shape.local])
        self._first_used, self._last_used = _names_by_user(users, 0), _names_by_user(users, -1)

    def forward(self, part: BoundSubModel, current: RunningPass, micro_batch: int) -> None:
        """Compute a sub-model, and store its outputs (also the loss) in the micro-batch.

        The autograd graph is stored as well if it is kept for the backward.
        """
        index, batch = part.sub_model.index, current.batches[micro_batch]
        keep = current.training and current.shape.keeps_graph(index)
        if current.training and not keep:
            batch.random_before[index] = batch.random
        with self._device.drawing(batch.random):
            computed = compute(part.module, part.sub_model, batch.values, current.training)
            batch.random = self._device.random_state()
        reused_memory, first = self._reused_memory(part, batch), current.batches[0].values
        for name, value in computed.outputs.items():
            if name in self._program.shared and name in first:
                batch.values[name] = first[name]
            else:
                batch.values[name] = _in_own_memory(value.detach(), reused_memory)
        if self._program.loss in computed.outputs:
            batch.loss = batch.values[self._program.loss]
            if current.gate is not None:
                current.gate.add_loss(batch.loss)
        if keep:
            batch.computed[index] = _for_backward(computed)
        if not current.training:
            _release(batch, self._last_used[index])

    def _reused_memory(self, part: BoundSubModel, batch: MicroBatch) -> frozenset[int]:
        """Return addresses of storages that are overwritten before the outputs' last use."""
        weights = self._slots.weights[part.slot].untyped_storage().data_ptr()
        return self._traffic.reused_memory(part.sub_model.inputs, batch) | {weights}

    def backward(
        self,
        part: BoundSubModel,
        current: RunningPass,
        micro_batch: int,
        gradients: ParameterGradients,
    ) -> None:
        """Run a sub-model's backward on one micro-batch.

        The gradients of its inputs go to the micro-batch, the parameters' gradients are added to
        `gradients`. For the first micro-batch the gradient slot must be free.
        """
        index, batch = part.sub_model.index, current.batches[micro_batch]
        if not (part.layout.trained_elements or any(part.sub_model.inputs_need_grad)):
            batch.random_before.pop(index, None)  # this and all earlier sub-models are frozen
            batch.computed.pop(index, None)
            _release(batch, self._first_used[index])
            return
        if micro_batch == 0:
            gradients.begin(index)
        computed = batch.computed.pop(index, None)
        if computed is None:
            with self._device.drawing(batch.random_before.pop(index)):
                computed = compute(part.module, part.sub_model, batch.values)
        # A 16-bit number cannot hold the count of sequences exactly, and a custom backward need not
        # be linear. Then the gradients are multiplied by the count afterwards, in float32.
        seed, weight = float(batch.sequences), 1.0
        if not self._exact:
            seed, weight = current.loss_scale, batch.sequences / current.loss_scale
        if self._program.loss in computed.outputs:
            loss = computed.outputs[self._program.loss]
            batch.gradients[self._program.loss] = torch.full_like(loss, seed)
        roots = gradients.roots(index, micro_batch, weight)
        with self._device.drawing():
            push_back(computed, batch.gradients, roots)
        gradients.take(index, micro_batch, weight)
        _release(batch, self._first_used[index])


def _names_by_user(
    users: Mapping[str, Sequence[int]], position: int
) -> defaultdict[int, list[str]]:
    """Return, by sub-model, the values of which it is the first (position 0) or last (-1) user."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, indices in users.items():
        names[indices[position]].append(name)
    return names


def _release(batch: MicroBatch, names: Sequence[str]) -> None:
    for name in names:
        batch.values.pop(name, None)


def _for_backward(computed: Computed) -> Computed:
    """Return the graph without outputs that need no gradient, which would only occupy memory."""
    outputs = {name: value for name, value in computed.outputs.items() if value.requires_grad}
    return replace(computed, outputs=outputs)


def _in_own_memory(value: Tensor, reused_memory: Set[int]) -> Tensor:
    """Return the value, copied if its storage starts at one of the addresses in `reused_memory`.

    Such a storage will soon hold other data. The copy has the same strides, because they decide the
    choice of kernels, and the same expanded dimensions.
    """
    if value.untyped_storage().data_ptr() not in reused_memory:
        return value
    base = value[tuple(slice(1 if stride == 0 else None) for stride in value.stride())]
    copy = torch.empty_strided(base.shape, base.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(base).expand(value.shape)

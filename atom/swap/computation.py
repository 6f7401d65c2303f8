"""What a sub-model computes on one micro-batch, and where the results go."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.segment import Computed, compute, push_back
from atom.swap.boundary_memory import users_of
from atom.swap.boundary_traffic import BoundaryTraffic, MicroBatch
from atom.swap.device import Device
from atom.swap.device_slots import BoundSubModel, DeviceSlots
from atom.swap.handoff import Handoff
from atom.swap.host_sums import Gate
from atom.swap.parameter_gradients import ParameterGradients
from atom.swap.schedule import Shape


@dataclass(frozen=True)
class RunningPass:
    """What a pass was begun with, and its micro-batches."""

    batches: list[MicroBatch]
    shape: Shape
    loss_scale: float = 1.0
    """The loss is multiplied by it before the backward, gradients are divided by it in float32."""
    gate: Gate | None = None
    """None: no gradients are wanted."""
    first: bool = False
    """Of its round: it replaces what the gradient arena held."""
    seed: int = 0
    """Where the noise comes from that sums in bfloat16 are rounded with."""
    handoff: Handoff = field(default_factory=Handoff)
    """To the other devices of its group."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """What came from them and is the same in every micro-batch."""

    @property
    def training(self) -> bool:
        return self.gate is not None

    def results(self) -> list[Tensor]:
        """What the program gives, most often the loss, of each micro-batch that has it by now; on
        the host. Waits for the device."""
        return [batch.loss.cpu() for batch in self.batches if batch.loss is not None]

    def losses(self) -> list[float]:
        return [float(loss) for loss in self.results()]


class Computation:
    """One program's forwards and backwards. Within `Device.computing`, by the engine's thread, when
    the sub-model's weights and values are there."""

    def __init__(
        self, program: Program, slots: DeviceSlots, device: Device, traffic: BoundaryTraffic
    ) -> None:
        self._program, self._slots, self._device = program, slots, device
        self._traffic = traffic
        single = slots.weights[0].dtype == torch.float32
        self._exact = single and not program.own_backwards
        shape = slots.shape_of(program)
        users = users_of([program.sub_models[s] for s in shape.mine])
        self._first_used, self._last_used = _names_by_user(users, 0), _names_by_user(users, -1)

    def forward(self, part: BoundSubModel, current: RunningPass, micro_batch: int) -> None:
        """Leaves the sub-model's outputs, the loss among them, with the micro-batch; its graph as
        well if that is kept for the backward."""
        index, batch = part.sub_model.index, current.batches[micro_batch]
        keep = current.training and current.shape.keeps_graph(index)
        if current.training and not keep:
            batch.random_before[index] = batch.random
        with self._device.drawing(batch.random):
            computed = compute(part.module, part.sub_model, batch.values, current.training)
            batch.random = self._device.random_state()
        borrowed, first = self._borrowed(part, batch), current.batches[0].values
        for name, value in computed.outputs.items():
            if name in self._program.shared and name in first:
                batch.values[name] = first[name]
            else:
                batch.values[name] = _outliving(value.detach(), borrowed)
        if self._program.loss in computed.outputs:
            batch.loss = batch.values[self._program.loss]
            if current.gate is not None:
                current.gate.show(batch.loss)
        if keep:
            batch.computed[index] = _for_backward(computed)
        if not current.training:
            _release(batch, self._last_used[index])

    def _borrowed(self, part: BoundSubModel, batch: MicroBatch) -> frozenset[int]:
        """Addresses of memory that no value may be a view of: it will be used again before the
        value is."""
        weights = self._slots.weights[part.slot].untyped_storage().data_ptr()
        return self._traffic.borrowed(part.sub_model.inputs, batch) | {weights}

    def backward(
        self,
        part: BoundSubModel,
        current: RunningPass,
        micro_batch: int,
        gradients: ParameterGradients,
    ) -> None:
        """Leaves its inputs' gradients with the micro-batch, adds its parameters' to `gradients`.
        Their slot must be free if this is the first micro-batch."""
        index, batch = part.sub_model.index, current.batches[micro_batch]
        if not (part.layout.trained_elements or any(part.sub_model.inputs_need_grad)):
            batch.random_before.pop(index, None)  # all up to here is frozen
            batch.computed.pop(index, None)
            _release(batch, self._first_used[index])
            return
        if micro_batch == 0:
            gradients.begin(index)
        computed = batch.computed.pop(index, None) or self._recompute(part, batch)
        if self._program.loss in computed.outputs:
            loss = computed.outputs[self._program.loss]
            seed = torch.full_like(loss, self._seed(current, batch))
            batch.gradients[self._program.loss] = seed
        weight = self._weight(current, batch)
        roots = gradients.roots(index, micro_batch, weight)
        with self._device.drawing():
            push_back(computed, batch.gradients, roots)
        gradients.take(index, micro_batch, weight)
        _release(batch, self._first_used[index])

    def _recompute(self, part: BoundSubModel, batch: MicroBatch) -> Computed:
        with self._device.drawing(batch.random_before.pop(part.sub_model.index)):
            return compute(part.module, part.sub_model, batch.values)

    def _seed(self, current: RunningPass, batch: MicroBatch) -> float:
        """What the backward starts with. Sixteen bits cannot count sequences exactly, and backwards
        of others than PyTorch need not be linear: there the count is multiplied in afterwards, in
        float32."""
        return float(batch.sequences) if self._exact else current.loss_scale

    def _weight(self, current: RunningPass, batch: MicroBatch) -> float:
        return 1.0 if self._exact else batch.sequences / current.loss_scale


def _names_by_user(
    users: Mapping[str, Sequence[int]], position: int
) -> defaultdict[int, list[str]]:
    """Per sub-model the values of which it is the first (position 0) or last (-1) user."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, indices in users.items():
        names[indices[position]].append(name)
    return names


def _release(batch: MicroBatch, names: Sequence[str]) -> None:
    for name in names:
        batch.values.pop(name, None)


def _for_backward(computed: Computed) -> Computed:
    """What a graph that waits for its backward needs: outputs without gradient only take memory."""
    outputs = {name: value for name, value in computed.outputs.items() if value.requires_grad}
    return replace(computed, outputs=outputs)


def _outliving(value: Tensor, borrowed: Set[int]) -> Tensor:
    """The value, in memory of its own if it is a view of memory that starts at one of the
    addresses `borrowed`: that will soon hold something else. Strides stay (kernels are chosen by
    them), expanded dimensions too.
    """
    if value.untyped_storage().data_ptr() not in borrowed:
        return value
    once = value[tuple(slice(1 if stride == 0 else None) for stride in value.stride())]
    copy = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(once).expand(value.shape)

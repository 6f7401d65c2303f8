"""A pass in progress, and the values and gradients that the devices of a group exchange in it."""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from atom.base.errors import AtomError
from atom.graph.ir import Program
from atom.swap.boundary_traffic import MicroBatch, TensorLayout, pack
from atom.swap.crossing import Crossing, Hops, hops
from atom.swap.device import Arrival, Device, RandomState
from atom.swap.host_sums import Gate
from atom.swap.schedule import Shape, device_of, users_of


class HandoffStopped(AtomError):
    """Error of a device that waited for data from another device of its group, which has failed."""


Route = tuple[int, int, int]
"""Sending and receiving sub-model of a parcel, and its micro-batch."""


@dataclass(frozen=True)
class Parcel:
    """Values or gradients by name, with their layouts in memory that is being copied."""

    layouts: Mapping[str, TensorLayout]
    arrival: Arrival | None
    """Function that returns the copied bytes; None: the parcel has no tensors."""
    random: RandomState | None = None
    """Random state of the micro-batch, if this parcel passes it on."""

    def open(self) -> dict[str, Tensor]:
        """Return the tensors on the receiving device. Call it inside that device's `computing`."""
        if self.arrival is None:
            return {}
        memory = self.arrival()
        return {name: layout.restore(memory) for name, layout in self.layouts.items()}


class Handoff:
    """Parcels of one pass, exchanged by the threads of a group. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parcels: dict[Route, Parcel] = {}
        self._is_stopped = False
        self.losses = list[float]()
        """Losses that engines had computed when the pass was stopped."""

    def put(self, route: Route, parcel: Parcel) -> None:
        """Store a parcel for the device that takes it."""
        with self._changed:
            self._parcels[route] = parcel
            self._changed.notify_all()

    def take(self, route: Route) -> Parcel:
        """Wait for a parcel and return it; raise HandoffStopped if the pass is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or route in self._parcels)
            if self._is_stopped:
                raise HandoffStopped("another device of the group failed")
            return self._parcels.pop(route)

    def stop(self) -> None:
        """Stop the pass: every present and future `take` raises HandoffStopped."""
        with self._changed:
            self._is_stopped = True
            self._parcels.clear()
            self._changed.notify_all()


@dataclass(frozen=True)
class RunningPass:
    """Inputs of a pass and the state of its micro-batches."""

    batches: list[MicroBatch]
    shape: Shape
    loss_scale: float = 1.0
    """Factor of the loss in the backward; gradients are divided by it in float32."""
    gate: Gate | None = None
    """Gate of the pass's gradients; None: an evaluation, without gradients."""
    first: bool = False
    """True for the first pass of a round, which overwrites the gradient arena."""
    seed: int = 0
    """Seed of the noise for stochastic rounding of bfloat16 sums."""
    handoff: Handoff = field(default_factory=Handoff)
    """Exchange with the other devices of the group."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """Values from other devices that are the same in every micro-batch."""

    @property
    def training(self) -> bool:
        """True for a training pass, False for an evaluation."""
        return self.gate is not None

    def results(self) -> list[Tensor]:
        """Return the program's output (usually the loss) of each finished micro-batch, on the host.

        Waits for the device.
        """
        return [batch.loss.cpu() for batch in self.batches if batch.loss is not None]

    def losses(self) -> list[float]:
        """Return the results as numbers; waits for the device."""
        return [float(loss) for loss in self.results()]


_Names = defaultdict[int, dict[int, list[str]]]
"""Names of values or gradients by sub-model, then by the sub-model at the other end."""


class Neighbours:
    """Transfers of one program between one device of a group and the others.

    The engine's thread uses it inside `Device.computing`.
    """

    def __init__(self, program: Program, place: int, devices: Sequence[Device]) -> None:
        """Find the transfers of one device.

        Args:
            program: Program that the group runs.
            place: Index of this device among `devices`.
            devices: Devices of the group.
        """
        self.place = place
        parts = program.sub_models
        self._owners = device_of([program.layout.elements(p) for p in parts], len(devices))
        values, gradients = hops(_crossings(program) if len(devices) > 1 else (), self._owners)
        self._values_from, self._values_to = _names_by_sub_model(values)
        self._gradients_from, self._gradients_to = _names_by_sub_model(gradients)
        self._program, self._device, self._devices = program, devices[place], devices
        local = (part for part in parts if self._owners[part.index] == place)
        self._used_here = {name for part in local for name in part.inputs}

    def receive_values(self, s: int, c: int, current: RunningPass) -> None:
        """Receive the values from other devices that a forward needs.

        Values that are the same in every micro-batch arrive with the first one.

        Args:
            s: Sub-model.
            c: Micro-batch.
            current: The pass.

        Raises:
            HandoffStopped: Another device of the group failed.
        """
        batch = current.batches[c]
        for start, names in self._values_from[s].items():
            parcel = current.handoff.take((start, s, c))
            arrived = parcel.open()
            if parcel.random is not None:
                batch.random = parcel.random
            current.shared.update((n, v) for n, v in arrived.items() if n in self._program.shared)
            batch.values |= arrived | {n: current.shared[n] for n in names if n in current.shared}

    def send_values(self, s: int, c: int, current: RunningPass) -> None:
        """Send outputs of a sub-model to the other devices that use them.

        Outputs that no sub-model of this device uses are then dropped.

        Args:
            s: Sub-model that has run its forward.
            c: Micro-batch. Values that are the same in every micro-batch are sent with the first.
            current: The pass.
        """
        batch, shared = current.batches[c], self._program.shared
        for end, names in self._values_to[s].items():
            sent = {n: batch.values[n] for n in names if c == 0 or n not in shared}
            random = batch.random if end == s + 1 else None
            current.handoff.put((s, end, c), self._parcel(sent, end, random))
        for name in self._program.sub_models[s].outputs:
            if name not in self._used_here:
                batch.values.pop(name, None)

    def receive_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """Receive the gradients from other devices that a backward needs.

        Its arguments are the same as in `receive_values`.

        Raises:
            HandoffStopped: Another device of the group failed.
        """
        for start in self._gradients_from[s]:
            arrived = current.handoff.take((start, s, c)).open()
            current.batches[c].gradients |= arrived

    def send_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """Send the gradients that a sub-model has summed to the sub-models that continue the sums.

        Its arguments are the same as in `send_values`.
        """
        gradients = current.batches[c].gradients
        for end, names in self._gradients_to[s].items():
            sent = {name: gradients.pop(name) for name in names if name in gradients}
            current.handoff.put((s, end, c), self._parcel(sent, end))

    def _parcel(
        self, sent: Mapping[str, Tensor], end: int, random: RandomState | None = None
    ) -> Parcel:
        if not sent:
            return Parcel({}, None, random)
        layouts, pieces, size_bytes = pack(sent)
        to = self._devices[self._owners[end]].torch_device
        return Parcel(layouts, self._device.hand_over(size_bytes, pieces, to), random)


def _crossings(program: Program) -> list[Crossing]:
    """Return one crossing per value.

    Sizes do not matter here. Values that are the same in every micro-batch are included.
    """
    users, known = users_of(program.sub_models), program.values
    return [
        Crossing(part.index, tuple(users[name]), 1, int(known[name].needs_grad), (name,))
        for part in program.sub_models
        for name in part.outputs
        if name in users
    ]


def _names_by_sub_model(found: Hops) -> tuple[_Names, _Names]:
    """Return the names that each sub-model receives, and the names that it sends."""
    received, sent = _Names(dict), _Names(dict)
    for (start, end), moved in found.items():
        received[end][start] = sent[start][end] = [name for each in moved for name in each.names]
    return received, sent

"""Transfers between the devices of a group while it runs a pass (`crossing.hops`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from atom.graph.ir import Program
from atom.swap.arrangement import device_of
from atom.swap.boundary_memory import users_of
from atom.swap.boundary_traffic import pack
from atom.swap.crossing import Crossing, Hops, aligned, hops
from atom.swap.device import Device, RandomState
from atom.swap.running_pass import Parcel, RunningPass

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
        """Send outputs of sub-model `s` to the other devices that use them."""
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
        """Send the gradients that `s` has summed to the sub-models that continue the sums."""
        gradients = current.batches[c].gradients
        for end, names in self._gradients_to[s].items():
            sent = {name: gradients.pop(name) for name in names if name in gradients}
            current.handoff.put((s, end, c), self._parcel(sent, end))

    def _parcel(
        self, sent: Mapping[str, Tensor], end: int, random: RandomState | None = None
    ) -> Parcel:
        if not sent:
            return Parcel({}, None, random)
        known = [self._program.values[name] for name in sent]
        planned_bytes = sum(aligned(max(k.size_bytes, k.memory_bytes)) for k in known)
        layouts, pieces, size_bytes = pack(sent, planned_bytes)
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

"""What goes from device to device while a group runs a pass (`crossing.hops`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from atom.graph.ir import Program
from atom.swap.arrangement import device_of
from atom.swap.boundary_memory import users_of
from atom.swap.boundary_traffic import pack
from atom.swap.computation import RunningPass
from atom.swap.crossing import Crossing, Hops, aligned, hops
from atom.swap.device import Device, RandomState
from atom.swap.handoff import Parcel, Way

_Names = defaultdict[int, dict[int, list[str]]]
"""Per sub-model, by the one that they come from, or go to."""


class Neighbours:
    """The other devices of a group, for one program on one of them. Used by its thread, where it
    computes."""

    def __init__(self, program: Program, place: int, devices: Sequence[Device]) -> None:
        """`place`: of this device among the `devices` of the group."""
        parts = program.sub_models
        self._owners = device_of([program.layout.elements(p) for p in parts], len(devices))
        values, gradients = hops(_crossings(program) if len(devices) > 1 else (), self._owners)
        self._values_from, self._values_to = _names(values)
        self._gradients_from, self._gradients_to = _names(gradients)
        self._program, self._device, self._devices = program, devices[place], devices
        mine = (part for part in parts if self._owners[part.index] == place)
        self._used_here = {name for part in mine for name in part.inputs}

    def receive_values(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` takes from other devices for its forward on micro-batch `c`. What is
        the same in every micro-batch comes with the first. Raises: HandoffStopped."""
        batch = current.batches[c]
        for start, names in self._values_from[s].items():
            parcel = current.handoff.take(Way(start, s, c))
            arrived = parcel.open()
            if parcel.random is not None:
                batch.random = parcel.random
            current.shared.update((n, v) for n, v in arrived.items() if n in self._program.shared)
            batch.values |= arrived | {n: current.shared[n] for n in names if n in current.shared}

    def send_values(self, s: int, c: int, current: RunningPass) -> None:
        """What others take of what sub-model `s` has made."""
        batch, shared = current.batches[c], self._program.shared
        for end, names in self._values_to[s].items():
            going = {n: batch.values[n] for n in names if c == 0 or n not in shared}
            random = batch.random if end == s + 1 else None
            current.handoff.put(Way(s, end, c), self._parcel(going, end, random))
        for name in self._program.sub_models[s].outputs:
            if name not in self._used_here:
                batch.values.pop(name, None)

    def receive_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` takes for its backward. Raises: HandoffStopped."""
        for start in self._gradients_from[s]:
            arrived = current.handoff.take(Way(start, s, c)).open()
            current.batches[c].gradients |= arrived

    def send_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` has summed so far, to where it goes on."""
        gradients = current.batches[c].gradients
        for end, names in self._gradients_to[s].items():
            going = {name: gradients.pop(name) for name in names if name in gradients}
            current.handoff.put(Way(s, end, c), self._parcel(going, end))

    def _parcel(
        self, going: Mapping[str, Tensor], end: int, random: RandomState | None = None
    ) -> Parcel:
        if not going:
            return Parcel({}, None, random)
        known = [self._program.values[name] for name in going]
        package = pack(going, sum(aligned(max(k.size_bytes, k.memory_bytes)) for k in known))
        to = self._devices[self._owners[end]].torch_device
        handed = self._device.hand_over(package.size_bytes, package.pieces, to)
        return Parcel(package.looks, handed, random)


def _crossings(program: Program) -> list[Crossing]:
    """All values, each by itself, as no sizes matter; what is the same in all micro-batches too."""
    users, known = users_of(program.sub_models), program.values
    return [
        Crossing(part.index, tuple(users[name]), 1, int(known[name].needs_grad), (name,))
        for part in program.sub_models
        for name in part.outputs
        if name in users
    ]


def _names(found: Hops) -> tuple[_Names, _Names]:
    """What comes, and what goes."""
    coming, going = _Names(dict), _Names(dict)
    for (start, end), what in found.items():
        coming[end][start] = going[start][end] = [name for each in what for name in each.names]
    return coming, going

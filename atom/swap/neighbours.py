"""What goes from device to device while a group runs a pass (`Arrangement.devices`).

A value goes from its maker to the first user on each other device. Its gradient goes the way in
which one device sums it: from the last user to the one before, and on to the maker. So a sub-model
finds what it would find on one device, and the bits are the same. The state of random numbers goes
along from sub-model to sub-model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from atom.graph.ir import Program, SubModel
from atom.swap.arrangement import device_of
from atom.swap.boundary_traffic import pack
from atom.swap.computation import RunningPass
from atom.swap.crossing import aligned
from atom.swap.device import Device, RandomState
from atom.swap.handoff import Parcel, Way

Names = dict[int, list[str]]
"""By the sub-model that they come from, or go to."""


@dataclass(frozen=True)
class Routes:
    """By sub-model: what comes to it from others on other devices, and what goes to them."""

    values_from: list[Names]
    values_to: list[Names]
    gradients_from: list[Names]
    gradients_to: list[Names]

    @classmethod
    def of(cls, parts: Sequence[SubModel], owners: Sequence[int]) -> "Routes":
        """`owners`: by sub-model, which device has it."""
        made = cls(*([Names() for _ in parts] for _ in range(4)))
        for earlier, later in pairwise(range(len(parts))):
            if owners[earlier] != owners[later]:  # for the random numbers, if for nothing else
                made.values_to[earlier][later] = made.values_from[later][earlier] = []
        for maker in parts:
            for name in maker.outputs:
                users = [part for part in parts if name in part.inputs]
                made._add(name, maker.index, users, owners)
        return made

    def _add(self, name: str, maker: int, users: Sequence[SubModel], owners: Sequence[int]) -> None:
        first = {owners[user.index]: user.index for user in reversed(users)}
        for owner, user in first.items():
            if owner != owners[maker]:
                names = self.values_to[maker].setdefault(user, [])
                names.append(name)
                self.values_from[user][maker] = names
        takers = [u.index for u in users if u.inputs_need_grad[u.inputs.index(name)]]
        for earlier, later in pairwise([maker, *takers]):
            if owners[earlier] != owners[later]:
                names = self.gradients_to[later].setdefault(earlier, [])
                names.append(name)
                self.gradients_from[earlier][later] = names


class Neighbours:
    """The other devices of a group, for one program on one of them. Used by its thread, where it
    computes."""

    def __init__(self, program: Program, place: int, devices: Sequence[Device]) -> None:
        """`place`: of this device among the `devices` of the group."""
        parts = program.sub_models
        self._owners = device_of([program.layout.elements(p) for p in parts], len(devices))
        self._routes = Routes.of(parts, self._owners)
        self._program, self._device, self._devices = program, devices[place], devices
        mine = (part for part in parts if self._owners[part.index] == place)
        self._used_here = {name for part in mine for name in part.inputs}

    def receive_values(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` takes from other devices for its forward on micro-batch `c`. What is
        the same in every micro-batch comes with the first. Raises: HandoffStopped."""
        batch = current.batches[c]
        for start, names in self._routes.values_from[s].items():
            parcel = current.handoff.take(Way(start, s, c))
            arrived = parcel.open()
            if parcel.random is not None:
                batch.random = parcel.random
            current.shared.update((n, v) for n, v in arrived.items() if n in self._program.shared)
            batch.values |= arrived | {n: current.shared[n] for n in names if n in current.shared}

    def send_values(self, s: int, c: int, current: RunningPass) -> None:
        """What others take of what sub-model `s` has made."""
        batch, shared = current.batches[c], self._program.shared
        for end, names in self._routes.values_to[s].items():
            going = {n: batch.values[n] for n in names if c == 0 or n not in shared}
            random = batch.random if end == s + 1 else None
            current.handoff.put(Way(s, end, c), self._parcel(going, end, random))
        for name in self._program.sub_models[s].outputs:
            if name not in self._used_here:
                batch.values.pop(name, None)

    def receive_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` takes for its backward. Raises: HandoffStopped."""
        for start in self._routes.gradients_from[s]:
            arrived = current.handoff.take(Way(start, s, c)).open()
            current.batches[c].gradients |= arrived

    def send_gradients(self, s: int, c: int, current: RunningPass) -> None:
        """What sub-model `s` has summed so far, to where it goes on."""
        gradients = current.batches[c].gradients
        for end, names in self._routes.gradients_to[s].items():
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

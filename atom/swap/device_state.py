"""What lives on the device, and is stepped there: weights, optimizer's state and gradient sums of
some parameters.

The host's arenas have room for all of it, and hold it while the device's memory is given back. Else
what they say of these parameters is as old as the last `to_host`, and of their gradients as old as
the last `sums_to_host`. Loads of them come from here, and a pass adds their gradients here.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.swap.device import Device
from atom.swap.device_slots import Run, SlotLayout


class Mirror:
    """Some parameters' parts of a host arena, on the device, one behind the other."""

    def __init__(
        self, host: Tensor, layout: ParameterLayout, names: Iterable[str], device: Device
    ) -> None:
        self.host = host
        self._layout = layout
        self._places = SlotLayout.of((n for n in names if n in layout.by_name), layout)
        self.memory = device.slot_memory(self._places.elements, host.dtype)

    def view(self, name: str) -> Tensor:
        """A parameter's part, in its shape."""
        spec, start = self._layout.by_name[name], self._places.offsets[name]
        return self.memory[start : start + spec.numel].view(spec.shape)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """The arena's elements [start, stop), in order, each piece where it lives; and the number
        that the piece begins with."""
        at = start
        for run in self._places.runs:
            begin, end = max(run.arena_offset, at), min(run.arena_offset + run.elements, stop)
            if begin < end:
                if at < begin:
                    yield at, self.host[at:begin]
                yield begin, self._of(run)[begin - run.arena_offset : end - run.arena_offset]
                at = end
        if at < stop:
            yield at, self.host[at:stop]

    def stretches(self) -> list[tuple[int, Tensor]]:
        """All of them that are one behind the other in the arena too, and where each begins."""
        return [(run.arena_offset, self._of(run)) for run in self._places.runs]

    def to_host(self) -> None:
        for start, ours in self.stretches():
            self.host[start : start + ours.numel()].copy_(ours)

    def to_device(self) -> None:
        for start, ours in self.stretches():
            ours.copy_(self.host[start : start + ours.numel()])

    def _of(self, run: Run) -> Tensor:
        return self.memory[run.slot_offset : run.slot_offset + run.elements]


class DeviceState:
    """Of one replica. Methods are called while no pass is under way. Those that copy wait for it.

    A step takes `lock` for each of these parameters, and updates it where it is: on the device, or,
    unless that is `allocated`, in the host's arenas.
    """

    def __init__(
        self,
        names: frozenset[str],
        state: Mapping[str, tuple[Tensor, ParameterLayout]],
        gradients: tuple[Tensor, ParameterLayout],
        device: Device,
    ) -> None:
        """Of these parameters: arenas of the host by name, and its gradients, float32; all zero."""
        assert gradients[0].dtype == torch.float32
        self.names = names
        self.state = {name: Mirror(*arena, names, device) for name, arena in state.items()}
        self.sums = Mirror(*gradients, names, device)
        self.lock = threading.RLock()
        self.allocated = True
        """The memory is not given back."""
        self.ahead = False
        """Of what the host's arenas hold."""
        self._device = device

    @property
    def memory(self) -> list[Tensor]:
        return [self.sums.memory, *(each.memory for each in self.state.values())]

    def stepping(self) -> AbstractContextManager[object]:
        """Operations within come before all loads that are issued after them."""
        return self._device.stepping()

    def to_host(self) -> None:
        """Makes the host's arenas say what is true."""
        with self.lock, self.stepping():
            if self.allocated and self.ahead:
                for each in self.state.values():
                    each.to_host()
            self.ahead = False

    def to_device(self) -> None:
        """What the host's arenas say is true: they were filled from elsewhere."""
        with self.lock, self.stepping():
            if self.allocated:
                for each in self.state.values():
                    each.to_device()
            self.ahead = False

    def sums_to_host(self) -> None:
        with self.lock, self.stepping():
            if self.allocated:
                self.sums.to_host()

    def sums_to_device(self) -> None:
        with self.lock, self.stepping():
            if self.allocated:
                self.sums.to_device()

    def leave(self) -> None:
        """The memory will be given back: the host takes over."""
        with self.lock:
            self.to_host()
            self.sums_to_host()
            self.allocated = False

    def arrive(self) -> None:
        """The memory is here again; no step is under way."""
        with self.lock:
            self.allocated = True
            self.to_device()
            self.sums_to_device()

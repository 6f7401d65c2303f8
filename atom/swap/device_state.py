"""Parameters that live and are stepped on the device: weights, optimizer state and gradient sums.

The host's arenas have room for all of it, and hold it while the device's memory is given back. At
other times they are only as current as the last `to_host`, and their gradients as the last
`sums_to_host`. These parameters are loaded from the device's copy, and a pass adds their gradients
to it.
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
    """Copy on the device of some parameters' parts of a host arena, without gaps between runs."""

    def __init__(
        self, host: Tensor, layout: ParameterLayout, names: Iterable[str], device: Device
    ) -> None:
        self.host = host
        self._layout = layout
        self._places = SlotLayout.of((n for n in names if n in layout.by_name), layout)
        self.memory = device.slot_memory(self._places.elements, host.dtype)

    def view(self, name: str) -> Tensor:
        """Return a parameter's part on the device, in the parameter's shape."""
        spec, start = self._layout.by_name[name], self._places.offsets[name]
        return self.memory[start : start + spec.numel].view(spec.shape)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the arena's elements [start, stop) in order, as pieces with the current values.

        Each piece is a view of host or device memory, and comes with the number of its first
        element.
        """
        at = start
        for run in self._places.runs:
            begin, end = max(run.arena_offset, at), min(run.arena_offset + run.elements, stop)
            if begin < end:
                if at < begin:
                    yield at, self.host[at:begin]
                yield begin, self._piece(run)[begin - run.arena_offset : end - run.arena_offset]
                at = end
        if at < stop:
            yield at, self.host[at:stop]

    def stretches(self) -> list[tuple[int, Tensor]]:
        """Return the runs on the device, each with its first element's number in the arena."""
        return [(run.arena_offset, self._piece(run)) for run in self._places.runs]

    def to_host(self) -> None:
        """Copy the parameters from the device into the host's arena."""
        for start, on_device in self.stretches():
            self.host[start : start + on_device.numel()].copy_(on_device)

    def to_device(self) -> None:
        """Copy the parameters from the host's arena to the device."""
        for start, on_device in self.stretches():
            on_device.copy_(self.host[start : start + on_device.numel()])

    def _piece(self, run: Run) -> Tensor:
        return self.memory[run.slot_offset : run.slot_offset + run.elements]


class DeviceState:
    """Parameters of one replica on the device, with their state and gradient sums.

    Call the methods while no pass is under way; methods that copy wait until the copy is done. An
    optimizer step holds `lock` for each of these parameters. The step updates the parameter on the
    device, or, while the device memory is given back (`allocated` is False), in the host's arenas.
    """

    def __init__(
        self,
        names: frozenset[str],
        state: Mapping[str, tuple[Tensor, ParameterLayout]],
        gradients: tuple[Tensor, ParameterLayout],
        device: Device,
    ) -> None:
        """Allocate device memory for some parameters; all of it starts as zeros.

        Args:
            names: Names of the parameters.
            state: Host arenas of weights and optimizer state with their layouts, by name.
            gradients: Host arena of the gradients, float32, with its layout.
            device: Device to live on.
        """
        assert gradients[0].dtype == torch.float32
        self.names = names
        self.state = {name: Mirror(*arena, names, device) for name, arena in state.items()}
        self.sums = Mirror(*gradients, names, device)
        self.lock = threading.RLock()
        self.allocated = True
        """False while the memory is given back."""
        self.host_is_stale = False
        """True if the device's copy is newer than the host's arenas."""
        self._device = device

    @property
    def memory(self) -> list[Tensor]:
        """Device memory of weights, optimizer state and gradient sums."""
        return [self.sums.memory, *(each.memory for each in self.state.values())]

    def stepping(self) -> AbstractContextManager[object]:
        """Return a context whose operations finish before any load that is issued later."""
        return self._device.stepping()

    def to_host(self) -> None:
        """Bring weights and optimizer state in the host's arenas up to date."""
        with self.lock, self.stepping():
            if self.allocated and self.host_is_stale:
                for each in self.state.values():
                    each.to_host()
            self.host_is_stale = False

    def to_device(self) -> None:
        """Copy weights and optimizer state from the host's arenas, after these were filled."""
        with self.lock, self.stepping():
            if self.allocated:
                for each in self.state.values():
                    each.to_device()
            self.host_is_stale = False

    def sums_to_host(self) -> None:
        """Bring the gradient sums in the host's arena up to date."""
        with self.lock, self.stepping():
            if self.allocated:
                self.sums.to_host()

    def sums_to_device(self) -> None:
        """Copy the gradient sums from the host's arena."""
        with self.lock, self.stepping():
            if self.allocated:
                self.sums.to_device()

    def leave(self) -> None:
        """Move everything to the host, before the memory is given back."""
        with self.lock:
            self.to_host()
            self.sums_to_host()
            self.allocated = False

    def arrive(self) -> None:
        """Move everything back to the device, once its memory is allocated again.

        No step may be under way.
        """
        with self.lock:
            self.allocated = True
            self.to_device()
            self.sums_to_device()

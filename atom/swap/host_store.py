"""The whole model in host memory: flat arenas of weights, gradients and the optimizer's state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.swap.device import Device
from atom.swap.device_state import DeviceState
from atom.swap.host_memory import allocate_host_memory
from atom.swap.readiness import Readiness
from atom.swap.state_form import HIGH, LOW, MASTER, StateArena, StateForm, joined, split

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
"""Number formats in which sub-models may compute. The master weights always have 32 bits."""
WORKING = "working"
"""Beside the names of the weights' arenas: the rounded copy that the device loads."""
FROZEN = "frozen"
"""The parameters that no step changes, as an arena of their own."""


@dataclass
class HostStore:
    """Arenas of one replica, gaps between parameters zero.

    `state` holds weights and the optimizer's state, as `arenas` declares them. `working` is what
    the device loads. Its first part is in 16-bit precisions a rounded copy of the master weights,
    or their high halves; else the master weights themselves. The rest is frozen parameters, which
    are nowhere else.
    `version` counts changes of `working`; whatever was loaded under another version is stale.
    `readiness` says what may be read of `working` while a step is under way; None: all of it.
    Nothing else is synchronised: the engine and the optimizer take turns.
    """

    layout: ParameterLayout
    precision: torch.dtype
    form: StateForm
    arenas: Mapping[str, StateArena]
    state: Mapping[str, Tensor]
    gradients: Tensor
    """[layout.trained_elements] float32 or bfloat16."""
    working: Tensor
    """[layout.total_elements]"""
    version: int = field(default=0)
    readiness: Readiness | None = field(default=None)
    on_device: DeviceState | None = field(default=None)
    """What lives there; the arenas' parts of it are behind."""

    @classmethod
    def allocate(
        cls,
        layout: ParameterLayout,
        precision: torch.dtype = torch.float32,
        host_memory: Callable[[int, torch.dtype], Tensor] = allocate_host_memory,
        form: StateForm = StateForm.EXACT,
        gradients: torch.dtype = torch.float32,
        optimizer_state: Mapping[str, StateArena] | None = None,
        moves_state: bool = False,
    ) -> "HostStore":
        """All zeros. `host_memory(elements, dtype)` comes from the device, for what it moves: the
        working copy and the gradients. `gradients`: in which numbers they leave the device and are
        summed. `optimizer_state`: what the optimizer declares. `moves_state`: some of it is to
        `live_on` the device.

        Raises: ValueError for a precision not in PRECISIONS, or that the form or the gradients do
        not go with; MemoryError.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"{precision} is not one of {PRECISIONS}")
        form.require(precision)
        if gradients != torch.float32 and (gradients, precision) != (torch.bfloat16,) * 2:
            raise ValueError(f"gradients in {gradients} with weights in {precision}")
        arenas = state_arenas(layout, form, optimizer_state or {})
        moved = HIGH if form.splits else MASTER if precision == torch.float32 else None
        working = host_memory(layout.total_elements, precision)
        allocate = host_memory if moves_state else allocate_host_memory
        state = {
            name: working[: arena.elements]
            if name == moved
            else allocate(arena.elements, arena.dtype)
            for name, arena in arenas.items()
        }
        sums = host_memory(layout.trained_elements, gradients)
        return cls(layout, precision, form, arenas, state, sums, working)

    @classmethod
    def of_weights(cls, layout: ParameterLayout, working: Tensor) -> "HostStore":
        """For passes without gradients: what the device loads, [layout.total_elements], and
        nothing else."""
        none = torch.empty(0)
        return cls(layout, working.dtype, StateForm.EXACT, {}, {}, none, working)

    @property
    def master(self) -> Tensor:
        """The master weights, float32, where they are not split."""
        return self.state[MASTER]

    @property
    def frozen(self) -> Tensor:
        """The frozen parameters, one after the other: the end of `working`."""
        return self.working[self.layout.trained_elements :]

    @property
    def _rounds(self) -> bool:
        """Whether `working` holds a copy of the weights."""
        return self._loaded == WORKING

    @property
    def _loaded(self) -> str:
        """The arena that `working` is, but for what is frozen."""
        if self.form.splits:
            return HIGH
        return MASTER if self.precision == torch.float32 else WORKING

    def live_on(self, device: Device, names: frozenset[str]) -> DeviceState:
        """The state and the gradients of these parameters are `on_device` from now on."""
        state = {name: (self.state[name], arena.layout) for name, arena in self.arenas.items()}
        state[self._loaded] = self.working, self.layout
        self.on_device = DeviceState(names, state, (self.gradients, self.layout), device)
        return self.on_device

    def working_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Elements [start, stop) of what is loaded, where they are (`Mirror.pieces`)."""
        if self.on_device is None:
            return [(start, self.working[start:stop])]
        return self.on_device.state[self._loaded].pieces(start, stop)

    def gradient_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Of the gradients."""
        if self.on_device is None:
            return [(start, self.gradients[start:stop])]
        return self.on_device.sums.pieces(start, stop)

    def clear_state(self) -> None:
        """Weights and the optimizer's state all zero."""
        for arena in self.state.values():
            arena.zero_()

    def stored_weights(self, name: str) -> dict[str, Tensor]:
        """One trained parameter's `MASTER`, or `HIGH` and `LOW`, and `WORKING` if it is a copy:
        views."""
        arenas = {part: self.state[part] for part in self.form.weight_dtypes}
        if self._rounds:
            arenas[WORKING] = self.working
        return {part: self.layout.view(arena, name) for part, arena in arenas.items()}

    def write_weights(self, name: str, value: Tensor) -> None:
        """Sets one parameter's master weights, and what the device loads of them. Call `changed`
        after the last.

        Raises: ValueError for another shape.
        """
        spec = self.layout.by_name[name]
        if value.shape != spec.shape:
            raise ValueError(f"{name}: {tuple(value.shape)} is not {spec.shape}")
        if spec.frozen:
            self.layout.view(self.working, name).copy_(value.detach())
        else:
            store_weights(self.stored_weights(name), value.detach().float())

    def weights(self, name: str) -> Tensor:
        """One parameter's master weights, float32: live, or a copy where they are split, or frozen
        in 16 bits."""
        if self.layout.by_name[name].frozen:
            return self.layout.view(self.working, name).float()
        return weights_of(self.stored_weights(name))

    def changed(self) -> None:
        """Declares everything loaded from `working` stale. Call after every change of it."""
        self.version += 1

    def wait_ready(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Returns when elements [start, stop) of `working` hold this version. From any thread.

        Raises: StepFailed when the step under way breaks off before.
        """
        if self.readiness is not None:
            for start, stop in stretches:
                self.readiness.wait(start, stop)

    def round_master(self) -> None:
        """Makes `working` what the master weights say, and declares loaded copies stale. What lives
        on the device becomes what the arenas say."""
        if self._rounds:
            self.working[: self.layout.trained_elements].copy_(self.master)
        if self.on_device is not None:
            self.on_device.to_device()
        self.changed()


def weights_of(stored: Mapping[str, Tensor]) -> Tensor:
    """Return the master weights in float32: live, or in new memory where they are split."""
    return stored[MASTER] if MASTER in stored else joined(stored[HIGH], stored[LOW])


def store_weights(stored: Mapping[str, Tensor], value: Tensor) -> None:
    """Writes float32 `value` [their shape], which may be `weights_of` them, and what the device
    loads of it."""
    if MASTER not in stored:
        split(value, stored[HIGH], stored[LOW])
        return
    stored[MASTER].copy_(value)
    if WORKING in stored:
        stored[WORKING].copy_(value)


def state_arenas(
    layout: ParameterLayout, form: StateForm, optimizer_state: Mapping[str, StateArena]
) -> dict[str, StateArena]:
    """All that a replica's state consists of: weights, then the optimizer's, by name."""
    weights = {name: StateArena(dtype, layout) for name, dtype in form.weight_dtypes.items()}
    assert not weights.keys() & optimizer_state.keys(), "these names are the weights'"
    return {**weights, **optimizer_state}


def beside_bytes(layout: ParameterLayout, precision: torch.dtype, form: StateForm) -> int:
    """What the device loads and is no state: rounded copies of weights, and frozen parameters."""
    within = form.splits or precision == torch.float32
    elements = layout.total_elements - (layout.trained_elements if within else 0)
    return elements * precision.itemsize

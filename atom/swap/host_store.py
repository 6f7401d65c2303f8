"""The whole model in host memory: flat arenas of weights, gradients and the optimizer's state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout, ParameterSpec
from atom.swap.device import Device
from atom.swap.device_state import DeviceState
from atom.swap.held_state import HeldState, StateParts
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

    With the state in parts, `state` has only the arena that is loaded, and `held` the others of
    some parts. Of the rest of the elements nothing but what is loaded is known.
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
    held: HeldState | None = field(default=None)
    """Where the state is in parts."""

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
        parts: StateParts | None = None,
    ) -> "HostStore":
        """All zeros. `host_memory(elements, dtype)` comes from the device, for what it moves: the
        working copy and the gradients. `gradients`: in which numbers they leave the device and are
        summed. `optimizer_state`: what the optimizer declares. `moves_state`: some of it is to
        `live_on` the device. `parts`: only some parts of the state will be held, none of them yet,
        but for what is loaded; the optimizer's has a number for each element.

        Raises: ValueError for a precision not in PRECISIONS, or that the form or the gradients do
        not go with; MemoryError.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"{precision} is not one of {PRECISIONS}")
        form.require(precision)
        if gradients != torch.float32 and (gradients, precision) != (torch.bfloat16,) * 2:
            raise ValueError(f"gradients in {gradients} with weights in {precision}")
        arenas = state_arenas(layout, form, optimizer_state or {})
        moved = loaded_arena(precision, form)
        working = host_memory(layout.total_elements, precision)
        allocate = host_memory if moves_state else allocate_host_memory
        others = {name: arena for name, arena in arenas.items() if name != moved}
        dtypes = {name: arena.dtype for name, arena in others.items()}
        held = None if parts is None else HeldState(parts, dtypes)
        is_state = moved in arenas or held is not None
        state = {moved: working[: layout.trained_elements]} if is_state else {}
        if held is None:
            state |= {n: allocate(arena.elements, arena.dtype) for n, arena in others.items()}
        sums = host_memory(layout.trained_elements, gradients)
        return cls(layout, precision, form, arenas, state, sums, working, held=held)

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
        return self.loaded == WORKING

    @property
    def loaded(self) -> str:
        """The arena that `working` is, but for what is frozen."""
        return loaded_arena(self.precision, self.form)

    def live_on(self, device: Device, names: frozenset[str]) -> DeviceState:
        """The state and the gradients of these parameters are `on_device` from now on."""
        state = {name: (self.state[name], arena.layout) for name, arena in self.arenas.items()}
        state[self.loaded] = self.working, self.layout
        self.on_device = DeviceState(names, state, (self.gradients, self.layout), device)
        return self.on_device

    def working_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Elements [start, stop) of what is loaded, where they are (`Mirror.pieces`)."""
        if self.on_device is None:
            return [(start, self.working[start:stop])]
        return self.on_device.state[self.loaded].pieces(start, stop)

    def gradient_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Of the gradients."""
        if self.on_device is None:
            return [(start, self.gradients[start:stop])]
        return self.on_device.sums.pieces(start, stop)

    def clear_state(self) -> None:
        """Weights and the optimizer's state all zero."""
        for arena in self.state.values():
            arena.zero_()
        if self.held is not None:
            self.held.clear()

    def stored_weights(self, name: str) -> dict[str, Tensor]:
        """One trained parameter's `MASTER`, or `HIGH` and `LOW`, and `WORKING` if it is a copy:
        views."""
        arenas = {part: self.state[part] for part in self.form.weight_dtypes}
        if self._rounds:
            arenas[WORKING] = self.working
        return {part: self.layout.view(arena, name) for part, arena in arenas.items()}

    def arenas_of(self, part: int) -> dict[str, Tensor]:
        """What is here of a part, by name: flat, live, from its first element on. What is loaded is
        the first; if the part is not held, it is all."""
        assert self.held is not None
        start, stop = self.held.parts.range(part)
        return {self.loaded: self.working[start:stop], **self.held.of(part)}

    def renewed(self, part: int) -> dict[str, Tensor]:
        """What is held of a part that begins anew, as in round 0: what follows from what is loaded,
        and zeros. New memory, by name."""
        assert self.held is not None
        start, stop = self.held.parts.range(part)
        arenas = {n: torch.zeros(stop - start, dtype=d) for n, d in self.held.dtypes.items()}
        if MASTER in arenas:
            arenas[MASTER].copy_(self.working[start:stop])
        return arenas

    def _stored_pieces(self, spec: ParameterSpec) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """As `stored_weights`, but flat, and cut where parts end: which of its elements, and their
        views. If their part is not held: of what is loaded alone."""
        assert self.held is not None
        parts, begin = self.held.parts, spec.offset
        names = {*self.form.weight_dtypes, WORKING}
        for part, start, stop in parts.within(begin, begin + spec.numel):
            first = parts.range(part)[0]
            arenas = self.arenas_of(part).items()
            views = {
                name: each[start - first : stop - first] for name, each in arenas if name in names
            }
            yield slice(start - begin, stop - begin), views

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
        elif self.held is None:
            store_weights(self.stored_weights(name), value.detach().float())
        else:
            flat = value.detach().float().reshape(-1)
            for here, stored in self._stored_pieces(spec):
                store_weights(stored, flat[here])

    def weights(self, name: str) -> Tensor:
        """One parameter's master weights, float32: live, or a copy where they are split, or frozen
        in 16 bits, or in parts. Of a part that is not held, they are what is loaded."""
        spec = self.layout.by_name[name]
        if spec.frozen:
            return self.layout.view(self.working, name).float()
        if self.held is not None:
            pieces = [weights_of(stored) for _, stored in self._stored_pieces(spec)]
            return torch.cat(pieces).view(spec.shape)
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
        if self._rounds and self.held is None:
            self.working[: self.layout.trained_elements].copy_(self.master)
        elif self._rounds:
            assert self.held is not None
            for part in self.held.held:
                arenas = self.arenas_of(part)
                arenas[WORKING].copy_(arenas[MASTER])
        if self.on_device is not None:
            self.on_device.to_device()
        self.changed()


def loaded_arena(precision: torch.dtype, form: StateForm) -> str:
    """The name of what devices load."""
    if form.splits:
        return HIGH
    return MASTER if precision == torch.float32 else WORKING


def weights_of(stored: Mapping[str, Tensor]) -> Tensor:
    """Master weights, float32: live, or new memory where they are split. Where there are none: what
    is loaded."""
    if MASTER in stored:
        return stored[MASTER]
    if LOW in stored:
        return joined(stored[HIGH], stored[LOW])
    return stored[HIGH if HIGH in stored else WORKING].float()


def store_weights(stored: Mapping[str, Tensor], value: Tensor) -> None:
    """Writes float32 `value` [their shape], which may be `weights_of` them, and what the device
    loads of it."""
    if HIGH in stored:
        low = stored[LOW] if LOW in stored else torch.empty_like(value, dtype=torch.int16)
        split(value, stored[HIGH], low)
        return
    if MASTER in stored:
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

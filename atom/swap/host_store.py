"""The whole model in host memory: flat arenas of weights, gradients and the optimizer's state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.swap.host_memory import allocate_host_memory
from atom.swap.readiness import Readiness
from atom.swap.state_form import HIGH, LOW, MASTER, StateArena, StateForm, joined, split

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
"""Number formats in which sub-models may compute. The master weights always have 32 bits."""
WORKING = "working"
"""Beside the names of the weights' arenas: the rounded copy that the device loads."""


@dataclass
class HostStore:
    """Arenas of one replica, gaps between parameters zero.

    `state` holds weights and the optimizer's state, as `arenas` declares them. `working` is what
    the device loads: in 16-bit precisions a rounded copy of the master weights, or their high
    halves; else the master weights themselves.
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
    """[layout.total_elements] float32 or bfloat16."""
    working: Tensor
    """[layout.total_elements]"""
    version: int = field(default=0)
    readiness: Readiness | None = field(default=None)

    @classmethod
    def allocate(
        cls,
        layout: ParameterLayout,
        precision: torch.dtype = torch.float32,
        host_memory: Callable[[int, torch.dtype], Tensor] = allocate_host_memory,
        form: StateForm = StateForm.EXACT,
        gradients: torch.dtype = torch.float32,
        optimizer_state: Mapping[str, StateArena] | None = None,
    ) -> "HostStore":
        """All zeros. `host_memory(elements, dtype)` comes from the device, for what it moves: the
        working copy and the gradients. `gradients`: in which numbers they leave the device and are
        summed. `optimizer_state`: what the optimizer declares.

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
        state = dict[str, Tensor]()
        for name, arena in arenas.items():
            allocate = host_memory if name == moved else allocate_host_memory
            state[name] = allocate(arena.elements, arena.dtype)
        sums = host_memory(layout.total_elements, gradients)
        working = state[moved] if moved else host_memory(layout.total_elements, precision)
        return cls(layout, precision, form, arenas, state, sums, working)

    @property
    def master(self) -> Tensor:
        """The master weights, float32, where they are not split."""
        return self.state[MASTER]

    def clear_state(self) -> None:
        """Weights and the optimizer's state all zero."""
        for arena in self.state.values():
            arena.zero_()

    def stored_weights(self, name: str) -> dict[str, Tensor]:
        """One parameter's `MASTER`, or `HIGH` and `LOW`, and `WORKING` if it is a copy: views."""
        arenas = {part: self.state[part] for part in self.form.weight_dtypes}
        if not self.form.splits and self.working is not self.master:
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
        store_weights(self.stored_weights(name), value.detach().float())

    def weights(self, name: str) -> Tensor:
        """One parameter's master weights, float32: live, or a copy where they are split."""
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
        """Makes `working` what the master weights say, and declares loaded copies stale."""
        if not self.form.splits and self.working is not self.master:
            self.working.copy_(self.master)
        self.changed()


def weights_of(stored: Mapping[str, Tensor]) -> Tensor:
    """Master weights, float32: live, or new memory where they are split."""
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


def working_copy_bytes(precision: torch.dtype, form: StateForm = StateForm.EXACT) -> int:
    """Per element, besides the state."""
    return 0 if form.splits or precision == torch.float32 else precision.itemsize

"""The whole model in host memory: flat arenas, one element of each per parameter element."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from atom.graph.ir import ParameterLayout
from atom.swap.host_memory import allocate_host_memory
from atom.swap.readiness import Readiness
from atom.swap.state_form import HIGH, LOW, MASTER, StateForm, joined, split

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
"""Number formats in which sub-models may compute. The master weights always have 32 bits."""


@dataclass
class HostStore:
    """Arenas of one replica, each [layout.total_elements], gaps between parameters zero.

    `state` holds weights and moments, as its form says (`atom.swap.state_form`). `working` is what
    the device loads: in 16-bit precisions a rounded copy of the master weights, or their high
    halves; else the master weights themselves.
    `version` counts changes of `working`; whatever was loaded under another version is stale.
    `readiness` says what may be read of `working` while a step is under way; None: all of it.
    Nothing else is synchronised: the engine and the optimizer take turns.
    """

    layout: ParameterLayout
    precision: torch.dtype
    form: StateForm
    state: Mapping[str, torch.Tensor]
    gradients: torch.Tensor
    """float32 or bfloat16."""
    working: torch.Tensor
    version: int = field(default=0)
    readiness: Readiness | None = field(default=None)

    @classmethod
    def allocate(
        cls,
        layout: ParameterLayout,
        precision: torch.dtype = torch.float32,
        host_memory: Callable[[int, torch.dtype], torch.Tensor] = allocate_host_memory,
        form: StateForm = StateForm.EXACT,
        gradients: torch.dtype = torch.float32,
    ) -> "HostStore":
        """All zeros. `host_memory(elements, dtype)` comes from the device that will read it.
        `gradients`: in which numbers they leave the device and are summed.

        Raises: ValueError for a precision not in PRECISIONS, or that the form or the gradients do
        not go with; MemoryError.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"{precision} is not one of {PRECISIONS}")
        form.require(precision)
        if gradients != torch.float32 and (gradients, precision) != (torch.bfloat16,) * 2:
            raise ValueError(f"gradients in {gradients} with weights in {precision}")
        elements = layout.total_elements
        state = {name: host_memory(elements, dtype) for name, dtype in form.arenas().items()}
        sums = host_memory(elements, gradients)
        if form.splits:
            working = state[HIGH]
        else:
            wide = precision == torch.float32
            working = state[MASTER] if wide else host_memory(elements, precision)
        return cls(layout, precision, form, state, sums, working)

    @property
    def master(self) -> torch.Tensor:
        """The master weights, float32, where they are not split."""
        return self.state[MASTER]

    def clear_state(self) -> None:
        """Weights and moments all zero. Call `round_master` when the weights have been written."""
        for arena in self.state.values():
            arena.zero_()

    def write_weights(self, name: str, value: torch.Tensor) -> None:
        """Sets one parameter's master weights. Call `round_master` after the last.

        Raises: ValueError for another shape.
        """
        spec = self.layout.by_name[name]
        if value.shape != spec.shape:
            raise ValueError(f"{name}: {tuple(value.shape)} is not {spec.shape}")
        if self.form.splits:
            high, low = (self.layout.view(self.state[half], name) for half in (HIGH, LOW))
            split(value.detach().float(), high, low)
        else:
            self.layout.view(self.master, name).copy_(value.detach())

    def weights(self, name: str) -> torch.Tensor:
        """One parameter's master weights, float32: live, or a copy where they are split."""
        if self.form.splits:
            return joined(*(self.layout.view(self.state[half], name) for half in (HIGH, LOW)))
        return self.layout.view(self.master, name)

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


def working_copy_bytes(precision: torch.dtype, form: StateForm = StateForm.EXACT) -> int:
    """Per element, besides the state."""
    return 0 if form.splits or precision == torch.float32 else precision.itemsize


def host_bytes(
    layout: ParameterLayout,
    precision: torch.dtype,
    form: StateForm = StateForm.EXACT,
    gradients: torch.dtype = torch.float32,
) -> int:
    """What `HostStore.allocate` takes."""
    element_bytes = form.element_bytes + working_copy_bytes(precision, form)
    return layout.total_elements * (element_bytes + gradients.itemsize)

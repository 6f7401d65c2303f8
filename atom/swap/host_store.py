"""The whole model in host memory: flat arenas, one element of each per parameter element."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from atom.graph.ir import ParameterLayout
from atom.swap.host_memory import allocate_host_memory
from atom.swap.readiness import Readiness

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
"""Number formats in which sub-models may compute. The master weights are always float32."""


@dataclass
class HostStore:
    """Arenas of one replica, each [layout.total_elements], gaps between parameters zero.

    `working` is what the device loads: the master itself in float32, else its rounded copy.
    `version` counts changes of `working`; whatever was loaded under another version is stale.
    `readiness` says what may be read of `working` while a step is under way; None: all of it.
    Nothing else is synchronised: the engine and the optimizer take turns.
    """

    layout: ParameterLayout
    precision: torch.dtype
    master: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    gradients: torch.Tensor
    working: torch.Tensor
    version: int = field(default=0)
    readiness: Readiness | None = field(default=None)

    @classmethod
    def allocate(
        cls,
        layout: ParameterLayout,
        precision: torch.dtype = torch.float32,
        host_memory: Callable[[int, torch.dtype], torch.Tensor] = allocate_host_memory,
    ) -> "HostStore":
        """All zeros. `host_memory(elements, dtype)` comes from the device that will read it.

        Raises: ValueError for a precision not in PRECISIONS; MemoryError.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"{precision} is not one of {PRECISIONS}")
        elements = layout.total_elements
        master, exp_avg, exp_avg_sq, gradients = (
            host_memory(elements, torch.float32) for _ in range(4)
        )
        exact = precision == torch.float32
        working = master if exact else host_memory(elements, precision)
        return cls(layout, precision, master, exp_avg, exp_avg_sq, gradients, working)

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
        """Rewrites `working` from `master` and declares loaded copies stale."""
        if self.working is not self.master:
            self.working.copy_(self.master)
        self.changed()


def host_bytes(layout: ParameterLayout, precision: torch.dtype) -> int:
    """What `HostStore.allocate` takes."""
    working_bytes = 0 if precision == torch.float32 else precision.itemsize
    return layout.total_elements * (4 * torch.float32.itemsize + working_bytes)

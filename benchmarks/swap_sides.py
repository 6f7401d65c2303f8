"""The sides of the comparison, by name, and what is asked of each.

A side lives in a process of its own (`swap_child.py`), so that a cap on GPU memory, an allocator's
leftovers or a library's settings never touch another.
"""

from typing import Any, Protocol, runtime_checkable

from swap_setup import MicroBatches, Setup

ATOM = "atom"
MEMORY = "memory"
WHOLE = "memory-whole"
BOUND = "bound"
RATES, EXACTNESS = "rates", "exactness"
ZERO_2, ZERO_3, FSDP = "deepspeed-2", "deepspeed-3", "fsdp"
SIDES = {
    ATOM: "Atom, sub-models swapped",
    MEMORY: "all in device memory, blocks recomputed",
    WHOLE: "all in device memory, nothing recomputed",
    BOUND: "computing alone, one block for all",
    ZERO_2: "DeepSpeed ZeRO-2, optimizer on the host",
    ZERO_3: "DeepSpeed ZeRO-3, all on the host",
    FSDP: "FSDP2, all on the host",
    RATES: "link, matrix products, AdamW",
    EXACTNESS: "Atom and plain PyTorch, the same steps",
}
HUNGRY = frozenset({ZERO_2, ZERO_3, FSDP})
"""These fill the host: they run alone, after Atom's own process has ended."""


class Witness(Protocol):
    """What can be asked, without taking steps. One thread."""

    def facts(self, trace: str | None) -> dict[str, Any]:
        """What else there is to know of the steps since the last call. `trace`: where a side that
        can writes a picture of its last step."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Side(Witness, Protocol):
    """One way of training one model."""

    def step(self, batches: MicroBatches) -> float:
        """One optimizer step; its mean loss. Returns once the next step may be asked for: what is
        still under way then is under way at the end of every step."""
        ...


def open_side(setup: Setup) -> Witness:
    """Imports only what the side needs. Raises: SideMissing; what building the side raises."""
    match setup.side:
        case "atom":
            from swap_atom import Atom

            return Atom(setup)
        case "memory" | "memory-whole":
            from swap_memory import InMemory

            return InMemory(setup, recompute=setup.side == MEMORY)
        case "bound":
            from swap_bound import ComputeBound

            return ComputeBound(setup)
        case "rates":
            from swap_rates import Rates

            return Rates(setup)
        case "exactness":
            from swap_exactness import Exactness

            return Exactness(setup)
        case "fsdp":
            from swap_fsdp import FullyShardedOffload

            return FullyShardedOffload(setup)
        case "deepspeed-2" | "deepspeed-3":
            from swap_deepspeed import DeepSpeedOffload

            return DeepSpeedOffload(setup, stage=int(setup.side[-1]))
    raise ValueError(f"no side is called {setup.side!r}")

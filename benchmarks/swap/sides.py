"""Sides of the comparison, by name, and the interface of each.

A side lives in a separate process (`processes.py`), so that a cap on GPU memory, an allocator's
leftovers or a library's settings never touch another.
"""

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from benchmarks.swap.setup import MicroBatches, Setup

ATOM = "atom"
MEMORY = "memory"
WHOLE = "memory-whole"
BOUND = "bound"
RATES, EXACTNESS = "rates", "exactness"
FSDP = "fsdp"
"""Side that fills the host: it runs alone, after Atom's process has ended."""


class Witness(Protocol):
    """Side that reports facts, perhaps without taking steps. One thread."""

    def facts(self) -> dict[str, Any]:
        """Return figures of the steps since the last call."""

    def close(self) -> None: ...


@runtime_checkable
class Side(Witness, Protocol):
    """One way of training one model."""

    def step(self, batches: MicroBatches) -> float:
        """Take one optimizer step and return its mean loss.

        Returns as soon as the next step may begin: work that is still under way then is under way
        at the end of every step.
        """


class Plain:
    """Part of sides without facts, whose memory ends with the process."""

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


BUILDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    ATOM: ("atom_side", "Atom", {}),
    MEMORY: ("in_memory", "InMemory", {"recompute": True}),
    WHOLE: ("in_memory", "InMemory", {"recompute": False}),
    BOUND: ("in_memory", "ComputeBound", {}),
    FSDP: ("fsdp", "FullyShardedOffload", {}),
    RATES: ("rates", "Rates", {}),
    EXACTNESS: ("exactness", "Exactness", {}),
}
"""Module, class and further arguments of each side; only the module in use is imported."""


def open_side(setup: Setup) -> Witness:
    """Build a side.

    Raises:
        SideMissing: the side cannot run here.
        ValueError: no side has this name.
    """
    if setup.side not in BUILDERS:
        raise ValueError(f"no side is called {setup.side!r}")
    module, name, more = BUILDERS[setup.side]
    side: Witness = getattr(import_module(f"benchmarks.swap.{module}"), name)(setup, **more)
    return side

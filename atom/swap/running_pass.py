"""A pass in progress, and the values and gradients that the devices of a group exchange in it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atom.base.errors import AtomError
from atom.swap.boundary_traffic import MicroBatch, TensorLayout
from atom.swap.device import Arrival, RandomState
from atom.swap.host_sums import Gate
from atom.swap.schedule import Shape


class HandoffStopped(AtomError):
    """Error of a device that waited for data from another device of its group, which has failed."""


Route = tuple[int, int, int]
"""Sending and receiving sub-model of a parcel, and its micro-batch."""


@dataclass(frozen=True)
class Parcel:
    """Values or gradients by name, with their layouts in memory that is being copied."""

    layouts: Mapping[str, TensorLayout]
    arrival: Arrival | None
    """Function that returns the copied bytes; None: the parcel has no tensors."""
    random: RandomState | None = None
    """Random state of the micro-batch, if this parcel passes it on."""

    def open(self) -> dict[str, Tensor]:
        """Return the tensors on the receiving device. Call it inside that device's `computing`."""
        if self.arrival is None:
            return {}
        memory = self.arrival()
        return {name: layout.restore(memory) for name, layout in self.layouts.items()}


class Handoff:
    """Parcels of one pass, exchanged by the threads of a group. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parcels: dict[Route, Parcel] = {}
        self._is_stopped = False
        self.losses = list[float]()
        """Losses that engines had computed when the pass was stopped."""

    def put(self, route: Route, parcel: Parcel) -> None:
        """Store a parcel for the device that takes it."""
        with self._changed:
            self._parcels[route] = parcel
            self._changed.notify_all()

    def take(self, route: Route) -> Parcel:
        """Wait for a parcel and return it; raise HandoffStopped if the pass is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or route in self._parcels)
            if self._is_stopped:
                raise HandoffStopped("another device of the group failed")
            return self._parcels.pop(route)

    def stop(self) -> None:
        """Stop the pass: every present and future `take` raises HandoffStopped."""
        with self._changed:
            self._is_stopped = True
            self._parcels.clear()
            self._changed.notify_all()


@dataclass(frozen=True)
class RunningPass:
    """Inputs of a pass and the state of its micro-batches."""

    batches: list[MicroBatch]
    shape: Shape
    loss_scale: float = 1.0
    """Factor of the loss in the backward; gradients are divided by it in float32."""
    gate: Gate | None = None
    """Gate of the pass's gradients; None: an evaluation, without gradients."""
    first: bool = False
    """True for the first pass of a round, which overwrites the gradient arena."""
    seed: int = 0
    """Seed of the noise for stochastic rounding of bfloat16 sums."""
    handoff: Handoff = field(default_factory=Handoff)
    """Exchange with the other devices of the group."""
    shared: dict[str, Tensor] = field(default_factory=dict)
    """Values from other devices that are the same in every micro-batch."""

    @property
    def training(self) -> bool:
        """True for a training pass, False for an evaluation."""
        return self.gate is not None

    def results(self) -> list[Tensor]:
        """Return the program's output (usually the loss) of each finished micro-batch, on the host.

        Waits for the device.
        """
        return [batch.loss.cpu() for batch in self.batches if batch.loss is not None]

    def losses(self) -> list[float]:
        """Return the results as numbers; waits for the device."""
        return [float(loss) for loss in self.results()]

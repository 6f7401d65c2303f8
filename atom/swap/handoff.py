"""Parcels between the devices of a group, during one pass: who needs one waits for it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from atom.base.errors import AtomError
from atom.swap.boundary_traffic import Look
from atom.swap.device import Handed, RandomState


class HandoffStopped(AtomError):
    """What a device waited for will not come: another one of its group has failed."""


class Way(NamedTuple):
    """From one sub-model to another, of a micro-batch."""

    start: int
    end: int
    micro_batch: int


@dataclass(frozen=True)
class Parcel:
    """Values, or gradients, by name: how they lie in memory that is on its way."""

    looks: Mapping[str, Look]
    handed: Handed | None
    """None: there are none."""
    random: RandomState | None = None
    """Where the micro-batch's random numbers stand, if they go this way."""

    def open(self) -> dict[str, Tensor]:
        """On the device that receives it, where that computes."""
        if self.handed is None:
            return {}
        memory = self.handed()
        return {name: look.of(memory) for name, look in self.looks.items()}


class Handoff:
    """Of one pass. From any of the group's threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parcels: dict[Way, Parcel] = {}
        self._is_stopped = False
        self.losses = list[float]()
        """That were known when the pass was stopped."""

    def put(self, way: Way, parcel: Parcel) -> None:
        with self._changed:
            self._parcels[way] = parcel
            self._changed.notify_all()

    def take(self, way: Way) -> Parcel:
        """Waits for it. Raises: HandoffStopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or way in self._parcels)
            if self._is_stopped:
                raise HandoffStopped("another device failed")
            return self._parcels.pop(way)

    def stop(self) -> None:
        """Whoever waits, or comes to wait, is told so."""
        with self._changed:
            self._is_stopped = True
            self._parcels.clear()
            self._changed.notify_all()

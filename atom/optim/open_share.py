"""Gives a device its share of the optimizer's step, if it computes as the host does."""

from dataclasses import dataclass

from atom.optim.adamw import AdamWSettings
from atom.optim.arithmetic_check import difference
from atom.optim.conveyor import Conveyor, Told
from atom.optim.device_share import LEAST_ELEMENTS, DeviceShare
from atom.optim.step import PIECE_ELEMENTS
from atom.swap.device import Device
from atom.swap.host_store import HostStore


@dataclass(frozen=True)
class WantedShare:
    """What the device shall do of each step, and who is told when it does nothing any more."""

    share: float
    """Of the parameters, from 0 to 1."""
    told: Told
    least_elements: int = LEAST_ELEMENTS
    """Of a piece that is worth its way."""


def open_share(
    device: Device, store: HostStore, settings: AdamWSettings, wanted: WantedShare
) -> DeviceShare | None:
    """Buckets on the device, tried out on awkward numbers. None: no share is wanted, or the device
    failed, or one bit differed: then `wanted.told` hears why.

    Raises: what the device raises when it has too little memory.
    """
    if wanted.share <= 0:
        return None
    form, precision = store.form, store.precision
    largest = max((spec.numel for spec in store.layout.specs), default=1)
    elements = min(PIECE_ELEMENTS, largest)
    conveyor = Conveyor(device, elements, precision, form, wanted.told)
    if differs := difference(conveyor, settings, precision, form):
        conveyor.break_off(f"the device does not compute as the host does: {differs}")
    if conveyor.broken:
        return None
    return DeviceShare(conveyor, wanted.share, wanted.least_elements)

"""Seconds of a graph's layers and operations, on a device: measured, or assumed."""

from atom.graph.profile.assumed import assume_graph
from atom.graph.profile.cache import ProfileCache, ProfileKey
from atom.graph.profile.devices import AssumedDevice, assumed_device
from atom.graph.profile.measured import device_name, measure_graph
from atom.graph.profile.seconds import (
    LayerProfile,
    OperationSeconds,
    Profile,
)
from atom.graph.profile.sub_models import Stopwatch, SubModelSeconds, measure_link, profile

__all__ = [
    "AssumedDevice",
    "LayerProfile",
    "OperationSeconds",
    "Profile",
    "ProfileCache",
    "ProfileKey",
    "Stopwatch",
    "SubModelSeconds",
    "assume_graph",
    "assumed_device",
    "device_name",
    "measure_graph",
    "measure_link",
    "profile",
]

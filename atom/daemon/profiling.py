"""Where a plan's seconds come from: a device's known rates, or a measurement on this box."""

from collections.abc import Callable

import torch

from atom.base.errors import ModelError, StorageError
from atom.config.places import cache_directory
from atom.graph.layers import layers_of
from atom.graph.profile.assumed import assume_graph, typical_graph
from atom.graph.profile.cache import ProfileCache, ProfileKey
from atom.graph.profile.measured import measure_graph
from atom.graph.profile.seconds import LinkRates, Profile, Spread
from atom.graph.traced import Graph

REPEATS = 5
PATIENCE_S = 30.0
"""A daemon does not measure for longer than about this before it begins to train."""


def profile_of(
    graph: Graph,
    device: torch.device,
    assume: str | None,
    note: Callable[[str], None],
) -> Profile:
    """With `assume`, of that device from a table; else measured here, layer by layer, and kept in
    the user's cache for the next time.

    Raises: DeviceError for an unknown device, or if a layer does not fit this one; ModelError if
    the layers do not run on made-up inputs.
    """
    if assume is not None:
        return assume_graph(graph, assume)
    cache = ProfileCache(cache_directory() / "profiles")
    key = ProfileKey.of(graph, device)

    def measure() -> Profile:
        about = _about(_measuring_s(graph, device))
        note(f"measuring the model's layers on this device{about} (kept for the next time)")
        return _measured(graph, device)

    try:
        profile, said = cache.get(key, len(layers_of(graph)), len(graph.calls), measure)
    except StorageError as problem:
        note(f"{problem}: {problem.hint}" if problem.hint else str(problem))
        return _measured(graph, device)
    if said:
        note(said)
    return profile


def _measured(graph: Graph, device: torch.device) -> Profile:
    try:
        return measure_graph(graph, device, repeats=REPEATS)
    except (RuntimeError, ValueError, IndexError) as problem:
        raise ModelError(
            f"{graph.model_name} does not run layer by layer on made-up inputs: {problem}",
            "plan with --assume DEVICE",
        ) from problem


def profile_or_guess(graph: Graph, device: torch.device, note: Callable[[str], None]) -> Profile:
    """For a daemon, which trains whatever the figures: where measuring fails or would take long,
    typical rates.

    Raises: DeviceError if a layer does not fit the device.
    """
    if _measuring_s(graph, device) > PATIENCE_S:
        note("planning with typical rates: measuring the model's layers would take long here")
        return typical_graph(graph, device)
    try:
        return profile_of(graph, device, None, note)
    except ModelError as problem:
        note(f"{problem}; planning with typical rates")
        return typical_graph(graph, device)


def _measuring_s(graph: Graph, device: torch.device) -> float:
    """About how long measuring takes: every distinct layer, several times, at typical rates."""
    any_rate = Spread.exactly(1e10)
    layers = typical_graph(graph, device, LinkRates(any_rate, any_rate)).layers
    distinct = {(layer.forward_s, layer.backward_s) for layer in layers}
    return (REPEATS + 1) * sum(forward.median + backward.median for forward, backward in distinct)


def _about(seconds: float) -> str:
    if seconds < PATIENCE_S:
        return ""
    return f", about {seconds / 60:.0f} min or more; --assume DEVICE needs none"

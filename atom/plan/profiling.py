"""Measure a model's layers and an optimizer's step on this machine, or use typical rates."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from atom.base.clock import BootClock
from atom.base.errors import DeviceError, ModelError
from atom.base.units import format_bytes
from atom.base.usable_memory import usable_memory
from atom.config.places import base_folder
from atom.graph.chain import Machine
from atom.graph.costs.measured import (
    Measurement,
    OnProgress,
    kept_profile,
    measure_layers,
    measure_link,
)
from atom.graph.costs.seconds import BUSY_SHARE, Profile, typical_graph
from atom.graph.ir import ParameterLayout
from atom.graph.layers import layer_ends, layers_of
from atom.graph.traced import Graph
from atom.optim.optimizer import optimizer_state
from atom.optim.stepper import Stepper
from atom.plan.devices import others_share
from atom.plan.memory import pieces_of
from atom.swap.host_store import HostStore
from atom.training.run_optimizer import ReplicaTerms

REPEATS = 5
"""Number of measurements of which the median counts."""
SAMPLE_ELEMENTS = 2**23
"""Parameters in a step that is timed: far more than fit any cache."""
SAMPLE_MATRIX = 768, 3072
"""Shape of the matrix on which matrix products of an optimizer are timed."""
PATIENCE_S = 30.0
"""Longest time, estimated in advance, that a daemon measures before it begins to train."""


def profile_of(
    graph: Graph,
    device: torch.device,
    note: Callable[[str], None],
    patience_s: float = math.inf,
    on_progress: OnProgress = lambda done, total: None,
    again: bool = False,
) -> Profile:
    """Return the measured profile of a model, from the user's cache if it is stored there.

    Args:
        graph: The traced model.
        device: Device to measure.
        note: Receives lines of text for people.
        patience_s: Most seconds that measuring may take, estimated in advance.
        on_progress: Receives the progress: (layers measured, layers in total).
        again: Measure even if a measurement is stored.

    Raises:
        DeviceError: A layer does not fit, or measuring would take longer than `patience_s`.
        ModelError: The layers do not run on made-up inputs.
    """

    on_cpu = device.type == "cpu"

    def measure() -> Measurement:
        usual = typical_graph(graph, device, Machine(1.0, 1.0))
        distinct = set(usual.layers)  # each is measured several times
        seconds = (REPEATS + 1) * sum(layer.forward_s + layer.backward_s for layer in distinct)
        if seconds > patience_s:
            raise DeviceError("measuring the model's layers would take long on this machine")
        if on_cpu:
            _require_memory(graph, usual)
        minutes = f", about {seconds / 60:.0f} min or more; --assume DEVICE needs none"
        about = minutes if seconds >= PATIENCE_S else ""
        note(f"measuring the model's layers on this device{about} (kept for the next time)")
        others = others_share(device)
        if others > BUSY_SHARE:
            said = f"other programs use {others:.0%} of this device: its times will be too long"
            note(f"{said}, and are measured again when it is idle: atom plan --measure-again")
        try:
            layers = measure_layers(graph, device, REPEATS, on_progress=on_progress)
            link = measure_link(device)
            return layers, link, max(others, others_share(device) if on_cpu else 0.0)
        except (RuntimeError, ValueError, IndexError) as problem:
            raise ModelError(
                f"{graph.model_name} does not run layer by layer on random inputs: {problem}",
                "plan with --assume DEVICE",
            ) from problem

    def is_calm() -> bool:
        return others_share(device) <= BUSY_SHARE

    return kept_profile(base_folder("cache") / "profiles", graph, device, measure, again, is_calm)


def profile_or_guess(
    graph: Graph,
    device: torch.device,
    note: Callable[[str], None],
    on_progress: OnProgress = lambda done, total: None,
    patience_s: float | None = None,
) -> Profile:
    """Return the measured profile, or one with typical rates if measuring fails or would take long.

    A daemon uses this, because it trains in any case.

    Args:
        graph: The traced model.
        device: Device to measure.
        note: Receives lines of text for people.
        on_progress: Receives the progress: (layers measured, layers in total).
        patience_s: Most seconds that measuring may take; None: `PATIENCE_S`.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    try:
        return profile_of(graph, device, note, patience_s, on_progress)
    except (ModelError, DeviceError) as problem:
        note(f"planning with typical rates: {problem}")
    return typical_graph(graph, device, measure_link(device))


def _require_memory(graph: Graph, usual: Profile) -> None:
    """Raise DeviceError if measuring a layer needs more memory than the host has free.

    On a CPU the system would otherwise kill the process.
    """
    need_bytes = largest_layer_bytes(graph, usual)
    free_bytes = usable_memory().available_bytes
    if need_bytes > free_bytes:
        raise DeviceError(
            f"measuring the largest layer takes {format_bytes(need_bytes)} of memory, "
            f"{format_bytes(free_bytes)} are free",
            "plan with --assume DEVICE",
        )


def largest_layer_bytes(graph: Graph, profile: Profile) -> int:
    """Return the most bytes that a layer takes while it is measured by itself.

    They are its parameters, their gradients, float32 sums of the gradients, and its activations.

    Args:
        graph: The traced model.
        profile: Sizes of its layers.
    """
    element_bytes = 2 * graph.parameter_dtype.itemsize + torch.float32.itemsize
    pieces = pieces_of(profile.chain, layer_ends(layers_of(graph)))
    return max(piece.elements * element_bytes + piece.activation_bytes for piece in pieces)


def step_elements_per_s(terms: ReplicaTerms, now: Callable[[], float] = time.perf_counter) -> float:
    """Return the parameters per second that an optimizer step updates on this host.

    A step on a small sample is timed and scaled to the size of the model. The optimizer's matrix
    products are timed on one matrix and scaled by their number of operations.

    Args:
        terms: The optimizer to time, the model's parameters, and the formats of numbers.
        now: Clock, in seconds.

    Raises:
        MemoryError: The sample does not fit the host's memory.
    """
    optimizer, layout = terms.optimizer, terms.layout
    sample = ParameterLayout.of({"sample": (SAMPLE_ELEMENTS // 64, 64)})
    seconds = _step_s(replace(terms, layout=sample), now)
    seconds *= layout.trained_elements / sample.total_elements
    if products := sum(map(optimizer.products, layout.trained)):
        matrix = ParameterLayout.of({"sample": SAMPLE_MATRIX}, {"sample"})
        share = products / optimizer.products(matrix.specs[0])
        seconds += share * _step_s(replace(terms, layout=matrix), now)
    return layout.trained_elements / seconds


def _step_s(terms: ReplicaTerms, now: Callable[[], float]) -> float:
    """Return the median seconds of a step, with a constant gradient."""
    layout, form = terms.layout, terms.form
    state = optimizer_state(terms.optimizer, layout, form)
    store = HostStore.allocate(layout, terms.precision, form=form, optimizer_state=state)
    stepper = Stepper(store, terms.optimizer, BootClock())
    gradient = torch.full((layout.total_elements,), 1e-3)
    seconds = []
    for step in range(1, REPEATS + 2):
        start = now()
        stepper.begin(gradient, 1e-4, step)
        stepper.wait()
        seconds.append(now() - start)
    return statistics.median(seconds[1:])  # the first step is slow: page faults

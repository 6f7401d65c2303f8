"""How a run's model goes through this box's device, measured here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.console import Progress
from atom.daemon.fitting.device_choice import (
    BOUNDARY_SHARE,
    most_micro_batches,
    peer_bytes,
    question,
    usable_device_bytes,
)
from atom.daemon.fitting.profiling import profile_or_guess
from atom.daemon.fitting.step_share import Arranged, State, arrange
from atom.daemon.model.number_forms import gradients, state_form
from atom.graph.profile.seconds import Profile
from atom.graph.traced import Graph
from atom.optim.device_speed import step_rates
from atom.swap.compiled import Told
from atom.swap.device import Device
from atom.swap.step_rates import StepRates


@dataclass(frozen=True)
class Hearers:
    """Who is told what."""

    note: Callable[[str], None]
    """One line of what is being done."""
    progress: Progress
    """How far a long step is."""
    uncompiled: Told
    """Later: which sub-models could not be compiled, if the peer wants them to be, and why."""
    unstreamed: Callable[[str], None]
    """Now or later: that the device takes no share of the optimizer's step any more, and why."""


@dataclass(frozen=True)
class Measured:
    """What a device can do, whatever it is allowed."""

    profile: Profile
    rates: StepRates | None
    """Of the optimizer's step; None: nothing depends on them."""


def measured(
    run: RunFile, graph: Graph, peer: PeerFile, device: Device, hearers: Hearers
) -> Measured:
    """Once, before the model has the device's memory."""
    profile = profile_or_guess(graph, device.torch_device, hearers.note, _measuring(hearers))
    on_gpu = device.torch_device.type == "cuda"
    if not on_gpu or peer.device.optimizer_share is not None:
        return Measured(profile, None)
    return Measured(profile, _step_rates(device, _state(run, graph), hearers))


def _measuring(hearers: Hearers) -> Callable[[int, int], None]:
    # A note has said what is done and why: a line of progress beside it must not say it again.
    return lambda done, total: hearers.progress("layers measured", done, total, "layers")


def arranged(
    run: RunFile, graph: Graph, peer: PeerFile, kind: torch.device, known: Measured, host_bytes: int
) -> Arranged:
    """How the model goes through a device of this kind. `host_bytes`: that may be used in all.
    Raises: DeviceError."""
    left = host_bytes - peer_bytes(run, graph)
    budget = peer.device.memory_bytes or usable_device_bytes(kind, left)
    most, on_gpu = most_micro_batches(run), kind.type == "cuda"
    waiting = int(left * BOUNDARY_SHARE)
    asked = question(graph, known.profile, budget, most, on_gpu, waiting, gradients(run))
    return arrange(asked, _state(run, graph), peer.device.optimizer_share, known.rates)


def _state(run: RunFile, graph: Graph) -> State:
    return State(graph.layout, graph.parameter_dtype, state_form(run))


def _step_rates(device: Device, state: State, hearers: Hearers) -> StepRates | None:
    """None where the device fails already when it is measured: it gets no share."""
    try:
        return step_rates(device, state.precision, state.form)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the host can take the whole step
        hearers.unstreamed(f"its rate could not be measured: {failure}")
        return None

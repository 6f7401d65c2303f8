"""How a run's model goes through this box's device, measured here."""

from collections.abc import Callable
from dataclasses import dataclass

from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.device_choice import (
    BOUNDARY_SHARE,
    choice_text,
    free_host_bytes,
    gradients,
    most_micro_batches,
    peer_bytes,
    question,
    state_form,
    usable_device_bytes,
)
from atom.daemon.profiling import profile_or_guess
from atom.daemon.step_share import Arranged, State, arrange
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
    uncompiled: Told
    """Later: which sub-models could not be compiled, if the peer wants them to be, and why."""
    unstreamed: Callable[[str], None]
    """Now or later: that the device takes no share of the optimizer's step any more, and why."""


def arranged(
    run: RunFile, graph: Graph, peer: PeerFile, device: Device, hearers: Hearers
) -> Arranged:
    """How the model goes through this device. Raises: DeviceError."""
    kind = device.torch_device
    host = free_host_bytes(peer.host.memory_bytes)
    left = host - peer_bytes(run, graph)
    budget = peer.device.memory_bytes or usable_device_bytes(kind, left)
    profile = profile_or_guess(graph, kind, hearers.note)
    most, on_gpu = most_micro_batches(run), kind.type == "cuda"
    waiting = int(left * BOUNDARY_SHARE)
    asked = question(graph, profile, budget, most, on_gpu, waiting, gradients(run))
    state = State(graph.layout, graph.parameter_dtype, state_form(run))
    wanted = peer.device.optimizer_share
    rates = _step_rates(device, state, hearers) if on_gpu and wanted is None else None
    found = arrange(asked, state, wanted, rates)
    hearers.note(choice_text(found.choice, budget))
    return found


def _step_rates(device: Device, state: State, hearers: Hearers) -> StepRates | None:
    """None where the device fails already when it is measured: it gets no share."""
    try:
        return step_rates(device, state.precision, state.form)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the host can take the whole step
        hearers.unstreamed(f"its rate could not be measured: {failure}")
        return None

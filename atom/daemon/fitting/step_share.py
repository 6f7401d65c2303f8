"""The device's share of the optimizer's step: asked for, or chosen by rates; its memory counted."""

from dataclasses import dataclass, replace

import torch

from atom.base.errors import DeviceError
from atom.daemon.fitting.device_choice import Question
from atom.graph.ir import ParameterLayout
from atom.graph.profile.devices import AssumedDevice
from atom.optim.bucket import bytes_in, bytes_out
from atom.optim.conveyor import conveyor_bytes
from atom.optim.device_adamw import KERNELS, TRAFFIC_BYTES
from atom.optim.step import PIECE_ELEMENTS
from atom.plan.choice import Choice
from atom.plan.step_share import StepShare, choose_share, share_of
from atom.swap.state_form import StateForm
from atom.swap.step_rates import StepRates


@dataclass(frozen=True)
class State:
    """What a step goes over."""

    layout: ParameterLayout
    precision: torch.dtype
    form: StateForm

    @property
    def device_bytes(self) -> int:
        """Of a share, on the device."""
        largest = max((spec.numel for spec in self.layout.specs), default=1)
        return conveyor_bytes(min(PIECE_ELEMENTS, largest), self.precision, self.form)


@dataclass(frozen=True)
class Arranged:
    """How the model goes through the device, and what the device does of the step."""

    question: Question
    """Whose answer the choice is: a share leaves it less memory."""
    choice: Choice
    share: StepShare | None
    """None: rates are not known, and no share is asked for."""


def arrange(
    question: Question, state: State, wanted: float | None, rates: StepRates | None
) -> Arranged:
    """`wanted`: a share that the peer file names; None: the best by `rates`. Without rates (the
    device is the host's own cores, nothing is to be gained) that is none.

    Raises: DeviceError naming what fits in no way.
    """
    parameters = float(state.layout.total_elements)
    if wanted is not None and wanted > 0:
        smaller, choice = _beside(question, state)
        share = share_of(choice, parameters, rates or StepRates(1.0, 1.0, 1.0, 1.0), wanted)
        return Arranged(smaller, choice, share)
    alone = question.answer()
    if rates is None:
        return Arranged(question, alone, None)
    by_host = share_of(alone, parameters, rates, 0.0)
    if wanted == 0 or choose_share(alone, parameters, rates).share == 0:
        return Arranged(question, alone, by_host)
    try:
        smaller, choice = _beside(question, state)
    except DeviceError:  # no room for it
        return Arranged(question, alone, by_host)
    share = choose_share(choice, parameters, rates)
    if share.share == 0 or share.pass_s >= by_host.pass_s:
        return Arranged(question, alone, by_host)
    return Arranged(smaller, choice, replace(share, pass_by_host_s=by_host.pass_s))


def _beside(question: Question, state: State) -> tuple[Question, Choice]:
    """With the memory for a share taken away. Raises: DeviceError."""
    taken = state.device_bytes
    if taken >= question.limits.device_bytes:
        raise DeviceError(
            "the device's share of the optimizer's step leaves no memory for the model",
            'raise [device] memory, or set [device] optimizer_share = "auto"',
        )
    limits = replace(question.limits, device_bytes=question.limits.device_bytes - taken)
    smaller = replace(question, limits=limits)
    choice = smaller.answer()
    return smaller, replace(choice, memory=replace(choice.memory, step_bytes=taken))


def assumed_rates(device: AssumedDevice, state: State, host_per_s: float) -> StepRates:
    """Of a device of the table, beside this box's host."""
    most = max(bytes_in(state.form), bytes_out(state.precision, state.form))
    by_memory = device.memory_bytes_per_s.value / TRAFFIC_BYTES[state.form]
    by_launching = PIECE_ELEMENTS / (KERNELS[state.form] * device.launch_s.value)
    link = device.link_bytes_per_s.value / most
    return StepRates(host_per_s, host_per_s, link, min(by_memory, by_launching))


def share_text(share: StepShare) -> str:
    """One line for the log of a daemon."""
    if share.share == 0:
        return "the host takes the whole optimizer step"
    return f"the device takes {share.share:.0%} of the optimizer step, the host the rest"

"""What the device does of the optimizer's step on Atom's own side: nothing, the best by measured
rates, or what was asked for. Torch alone."""

import sys
from dataclasses import replace

from planned import Planner
from swap_setup import Setup

from atom.graph.ir import ParameterLayout
from atom.graph.profile import Profile
from atom.optim.conveyor import conveyor_bytes
from atom.optim.device_speed import step_rates
from atom.optim.open_share import WantedShare
from atom.optim.step import PIECE_ELEMENTS
from atom.plan.choice import Choice
from atom.plan.step_share import StepShare, choose_share, share_of
from atom.swap.device import Device
from atom.swap.state_form import StateForm
from atom.swap.step_rates import StepRates

OFF, CHOSEN = "off", "chosen"


def step_share(text: str) -> str:
    """For argparse. Raises: ValueError."""
    if text not in (OFF, CHOSEN) and not 0 <= float(text) <= 1:
        raise ValueError(f"{text} is no share")
    return text


def with_share(
    setup: Setup, planner: Planner, profile: Profile, device_bytes: int, device: Device
) -> tuple[Choice, StepShare | None]:
    """The plan, which leaves memory for the share there is; as a daemon decides it.

    Raises: DeviceError.
    """
    alone = planner.choose(profile, device_bytes)
    if setup.step_share == OFF:
        return alone, None
    layout = planner.graph.layout
    parameters = float(layout.total_elements)
    rates = _rates(setup, device)
    if setup.step_share == CHOSEN and choose_share(alone, parameters, rates).share == 0:
        return alone, share_of(alone, parameters, rates, 0.0)
    taken = share_bytes(layout, setup)
    choice = planner.choose(profile, device_bytes - taken)
    choice = replace(choice, memory=replace(choice.memory, step_bytes=taken))
    if setup.step_share == CHOSEN:
        return choice, choose_share(choice, parameters, rates)
    return choice, share_of(choice, parameters, rates, float(setup.step_share))


def _rates(setup: Setup, device: Device) -> StepRates:
    """On the host's own cores nothing is chosen by them."""
    if setup.device == "cpu":
        return StepRates(1.0, 1.0, 1.0, 1.0)
    return step_rates(device, setup.dtype, StateForm(setup.layout), gradients_registered=True)


def share_bytes(layout: ParameterLayout, setup: Setup) -> int:
    largest = max(spec.numel for spec in layout.specs)
    return conveyor_bytes(min(PIECE_ELEMENTS, largest), setup.dtype, StateForm(setup.layout))


def wanted_share(setup: Setup, share: StepShare | None) -> WantedShare | None:
    """Without a plan there is nothing to choose by: then only a share that was asked for counts."""
    if share is not None:
        return WantedShare(share.share, _insist)
    if setup.step_share in (OFF, CHOSEN):
        return None
    return WantedShare(float(setup.step_share), _insist)


def _insist(why: str) -> None:
    """On stderr, which the table's reader sees; the figures say how much was streamed."""
    sys.stderr.write(f"the device takes no share of the step any more: {why}\n")

"""Rates of a share of the step are taken with what a step uses, and failures are heard of."""

import pytest
import torch
from streamed_rig import FORMS, BenchedDevice

from atom.optim.device_speed import step_rates
from atom.swap.state_form import StateForm
from atom.swap.workbench import CpuWorkbench


@pytest.mark.parametrize(("precision", "form"), FORMS)
@pytest.mark.parametrize("registered", [False, True])
def test_every_rate_is_taken(precision: torch.dtype, form: StateForm, registered: bool) -> None:
    rates = step_rates(BenchedDevice(), precision, form, registered, elements=6400)
    assert 0 < rates.host_beside <= rates.host
    assert 0 < rates.streamed == min(rates.link, rates.device)


def test_a_link_that_breaks_is_heard_of() -> None:
    class Broken(CpuWorkbench):
        def wait_back(self, place: int) -> None:
            raise RuntimeError("the link broke")

    with pytest.raises(RuntimeError, match="the link broke"):
        step_rates(BenchedDevice(Broken()), torch.float32, StateForm.EXACT, elements=6400)

"""A device that computes otherwise gets no share of the step, and it is said."""

import pytest
import torch
from streamed_rig import FORMS, SETTINGS, BenchedDevice, filled_store
from torch import Tensor

from atom.optim import arithmetic_check, device_adamw, noise
from atom.optim.arithmetic_check import difference
from atom.optim.conveyor import Conveyor
from atom.optim.device_share import DeviceShare
from atom.optim.fused_multiply_add import FusedMultiplyAdd
from atom.optim.open_share import WantedShare, open_share
from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm


def opened(
    form: StateForm = StateForm.EXACT, precision: torch.dtype = torch.bfloat16, share: float = 0.5
) -> tuple[DeviceShare | None, list[str]]:
    told = list[str]()
    wanted = WantedShare(share, told.append)
    return open_share(CpuDevice(), filled_store(precision, form), SETTINGS, wanted), told


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_the_cpu_computes_as_it_does_itself(precision: torch.dtype, form: StateForm) -> None:
    share, told = opened(form, precision)
    assert share is not None
    assert share.share == 0.5
    assert share.conveyor.updated_elements > 0, "it was tried"
    assert told == []


def test_who_wants_none_gets_none() -> None:
    assert opened(share=0.0) == (None, [])


def _torch_root(self: object, value: Tensor, out: Tensor) -> None:
    torch.sqrt(value, out=out)


def _two_roundings(self: object, a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> None:
    out.copy_(a * b + c)


def _in_float64(self: object, a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> None:
    out.copy_(a.double() * b + c)


def _flushed(high: Tensor, low: Tensor, out: Tensor) -> None:
    out.copy_(high)


@pytest.mark.parametrize(
    ("place", "name", "otherwise", "form"),
    [
        (device_adamw.DeviceAdamW, "_square_root", _torch_root, StateForm.EXACT),
        (FusedMultiplyAdd, "__call__", _two_roundings, StateForm.EXACT),
        (FusedMultiplyAdd, "__call__", _in_float64, StateForm.EXACT),
        (device_adamw, "_join", _flushed, StateForm.SPLIT),
        (noise, "FIRST_FACTOR", 0x7FEB352F, StateForm.HALF),
    ],
    ids=["roots", "two roundings", "rounded twice", "halves", "noise"],
)
def test_arithmetic_that_is_only_nearly_the_hosts_is_found_out(
    place: object, name: str, otherwise: object, form: StateForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, otherwise)
    share, told = opened(form)
    assert share is None
    assert len(told) == 1
    assert "does not compute as the host does" in told[0]
    assert "elements of" in told[0]


def test_a_device_that_fails_the_trial_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(device_adamw.DeviceAdamW, "update", failing)
    assert opened() == (None, ["CUDA out of memory."])


@pytest.mark.parametrize("elements", [1, 7, 64, 1000])
def test_a_small_bucket_is_tried_as_well(elements: int) -> None:
    told = list[str]()
    conveyor = Conveyor(BenchedDevice(), elements, torch.float32, StateForm.EXACT, told.append)
    assert difference(conveyor, SETTINGS, torch.float32, StateForm.EXACT) == ""
    assert conveyor.updated_elements > 0
    assert elements < arithmetic_check.BLOCK_ELEMENTS

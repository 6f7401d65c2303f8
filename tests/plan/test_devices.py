"""[device] use: the devices that it names on this machine, and refusals before any is opened."""

import pytest
import torch

from atom.base.errors import DeviceError
from atom.plan import devices
from atom.plan.devices import named_devices, open_devices, require_alike
from atom.swap.device import CpuDevice


@pytest.mark.parametrize(
    ("use", "gpus", "named"),
    [
        (("auto",), 0, ["cpu"]),
        (("auto",), 2, ["cuda:0"]),
        (("all",), 3, ["cuda:0", "cuda:1", "cuda:2"]),
        (("cuda",), 0, ["cuda:0"]),
        (("cuda:2", "cuda"), 3, ["cuda:2", "cuda:0"]),
        (("cpu", "cpu"), 2, ["cpu", "cpu"]),
    ],
)
def test_words_and_lists_name_devices(
    use: tuple[str, ...], gpus: int, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert [str(device) for device in named_devices(use)] == named


@pytest.mark.parametrize("use", [("all",), ("cuda",), ("cuda:0", "cuda:1")])
def test_without_a_gpu_none_is_opened(
    use: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="no usable CUDA GPU") as refused:
        open_devices(use, torch.float32)
    assert '[device] use = "cpu"' in refused.value.hint


def test_a_cpu_may_be_several_devices() -> None:
    one, other = open_devices(("cpu", "cpu"), torch.float32)
    assert isinstance(one, CpuDevice)
    assert one is not other
    for each in (one, other):
        each.close()


def test_the_first_is_closed_where_the_next_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class One(CpuDevice):
        made, closed = 0, 0

        def __init__(self) -> None:
            if One.made:
                raise DeviceError("no memory is left", "")
            One.made += 1
            super().__init__()

        def close(self) -> None:
            One.closed += 1
            super().close()

    monkeypatch.setattr(devices, "CpuDevice", One)
    with pytest.raises(DeviceError, match="no memory is left"):
        open_devices(("cpu", "cpu"), torch.float32)
    assert One.closed == 1


def test_gpus_of_one_architecture_only(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {0: (8, 6), 1: (8, 6), 2: (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: versions[device.index])
    require_alike(named_devices(("cuda:0", "cuda:1")))
    with pytest.raises(DeviceError, match=r"cuda:0 8\.6, cuda:2 8\.9") as refused:
        require_alike(named_devices(("cuda:0", "cuda:2")))
    assert "each is a peer of the swarm" in refused.value.hint
    require_alike(named_devices(("cpu", "cpu")))

"""[device] use: the devices that it names on this machine, and refusals before any is opened."""

import os
from collections.abc import Iterator

import pytest
import torch

from atom.base.errors import DeviceError
from atom.config.peer_file import Device
from atom.plan import devices
from atom.plan.devices import named_devices, open_devices, require_alike, set_arithmetic
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


# --- threads and determinism of this process ---

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CUBLAS, "")
    monkeypatch.delenv(CUBLAS)
    threads, filling = torch.get_num_threads(), torch.utils.deterministic
    filled = filling.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    filling.fill_uninitialized_memory = filled


def test_kernels_are_deterministic_where_that_is_wanted_alone() -> None:
    set_arithmetic(Device())
    assert CUBLAS not in os.environ
    assert not torch.are_deterministic_algorithms_enabled()
    set_arithmetic(Device(deterministic=True, cpu_threads=1))
    assert os.environ[CUBLAS] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled(), (
        "operations without such a kernel run too"
    )
    assert torch.get_num_threads() == 1

"""The devices that a peer file names ([device] use), and how they are opened."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch

from atom.base.errors import DeviceError
from atom.swap.device import CpuDevice, Device


def named_devices(use: Sequence[str]) -> list[torch.device]:
    """In that order, whether or not they are there."""
    if "all" in use:
        return [torch.device("cuda", n) for n in range(torch.cuda.device_count() or 1)]
    return [_named(name) for name in use]


def _named(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", int(name.partition(":")[2] or 0))


def require_alike(devices: Sequence[torch.device]) -> None:
    """GPUs that are there must be of one architecture. Raises: DeviceError."""
    versions = {
        device: "{}.{}".format(*torch.cuda.get_device_capability(device))
        for device in devices
        if device.type == "cuda"
    }
    if len(set(versions.values())) > 1:
        seen = ", ".join(f"{device} {version}" for device, version in versions.items())
        raise DeviceError(
            f"GPUs of several architectures round differently (compute capabilities: {seen})",
            "start a daemon for each kind, with a peer file and a --state of its own: "
            "each is a peer of the swarm",
        )


def require_devices(use: Sequence[str], precision: torch.dtype) -> list[torch.device]:
    """Those that are named. Raises: DeviceError for one that is not there or does not compute in
    this precision, and for GPUs that round differently."""
    named = named_devices(use)
    for each in named:
        if each.type == "cuda":
            from atom.swap.streams import require_gpu

            require_gpu(each.index, precision)
    require_alike(named)
    return named


def open_devices(
    use: Sequence[str], precision: torch.dtype, memory_bytes: int | None = None
) -> list[Device]:
    """`use`: as [device] use has it. `memory_bytes`: of each, as `CudaDevice` has it. Raises:
    DeviceError, and none is open."""
    with ExitStack() as opened:
        devices = [
            opened.enter_context(closing(_opened(each, precision, memory_bytes)))
            for each in require_devices(use, precision)
        ]
        opened.pop_all()
    return devices


def _opened(device: torch.device, precision: torch.dtype, memory_bytes: int | None) -> Device:
    if device.type == "cpu":
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    return CudaDevice(device.index, precision, memory_bytes)

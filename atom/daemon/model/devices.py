"""Devices named in a peer file ([device] use): checking and opening them."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch

from atom.base.errors import DeviceError
from atom.swap.device import CpuDevice, Device


def named_devices(use: Sequence[str]) -> list[torch.device]:
    """Return the devices in the order of their names, without a check that they exist.

    Args:
        use: value of [device] use: "all", "auto", "cpu", "cuda" or "cuda:N".
    """
    if "all" in use:
        return [torch.device("cuda", n) for n in range(torch.cuda.device_count() or 1)]
    return [_named(name) for name in use]


def _named(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", int(name.partition(":")[2] or 0))


def require_alike(devices: Sequence[torch.device]) -> None:
    """Raise unless all GPUs have one architecture: different architectures round differently.

    Args:
        devices: devices that exist.

    Raises:
        DeviceError: the compute capabilities differ.
    """
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
    """Return the named devices, after checking them.

    Args:
        use: value of [device] use.
        precision: dtype in which the run computes.

    Raises:
        DeviceError: a device does not exist or does not support the precision, or the GPUs have
            several architectures.
    """
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
    """Check and open the named devices.

    Args:
        use: value of [device] use.
        precision: dtype in which the run computes.
        memory_bytes: limit of each GPU's allocator; None: all memory.

    Raises:
        DeviceError: a device cannot be used; then no device is left open.
    """
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

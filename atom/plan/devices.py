"""Devices of this machine, their use by other programs, and the memory that a plan may use."""

import math
import os
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

import psutil
import torch

from atom.base.control_groups import usable_processors
from atom.base.errors import DeviceError
from atom.base.usable_memory import usable_memory
from atom.config.peer_file import Device as DeviceSection
from atom.plan.memory import PLANNED_SHARE
from atom.swap.device import CpuDevice, Device
from atom.swap.device_kernels import device_kernels

HOST_SHARE = 0.5
"""Fraction of the host memory not taken by the replica that all CPU devices may use together.

The remainder is for other programs.
"""
LEAST_HOST_BYTES = 256 << 20
"""Least memory that a CPU device may use, in bytes."""
_LOOK_S = 0.25
_QUERY = ("--query-gpu=power.limit,utilization.gpu", "--format=csv,noheader,nounits")


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
            "start one daemon for each kind, with its own peer file and --state: each is a peer "
            "of the swarm",
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
    use: Sequence[str], precision: torch.dtype, planned_bytes: int | None = None
) -> list[Device]:
    """Check and open the named devices.

    Args:
        use: value of [device] use.
        precision: dtype in which the run computes.
        planned_bytes: memory of each GPU that a plan fills, which is a fraction of what PyTorch may
            take; None: PyTorch may take all memory.

    Raises:
        DeviceError: a device cannot be used; then no device is left open.
    """
    most = None if planned_bytes is None else math.ceil(planned_bytes / PLANNED_SHARE)
    with ExitStack() as opened:
        devices = [
            opened.enter_context(closing(_opened(each, precision, most)))
            for each in require_devices(use, precision)
        ]
        opened.pop_all()
    return devices


def _opened(device: torch.device, precision: torch.dtype, memory_bytes: int | None) -> Device:
    if device.type == "cpu":
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    return CudaDevice(device.index, precision, memory_bytes)


def has_kernels(device: torch.device, note: Callable[[str], None]) -> bool:
    """Return True if the device can take optimizer steps; note the reason if a GPU cannot."""
    if device.type != "cuda":
        return False
    try:
        device_kernels(device)
    except DeviceError as problem:
        note(f"no weights are trained on the device: {problem.message}")
        return False
    return True


def usable_threads() -> int:
    """Return the threads that PyTorch may use if the peer file names no number.

    A limit of the container or service bounds the number that PyTorch or OMP_NUM_THREADS chose.
    """
    return min(torch.get_num_threads(), usable_processors())


def set_arithmetic(device: DeviceSection) -> None:
    """Set threads and determinism of PyTorch in this process, as the peer file says.

    Call it before anything is computed on a GPU.
    """
    torch.set_num_threads(device.cpu_threads or usable_threads())
    if device.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at first use
        filling = torch.utils.deterministic
        filling.fill_uninitialized_memory = False  # type: ignore[attr-defined] # nothing reads it
        torch.use_deterministic_algorithms(True, warn_only=True)


def usable_device_bytes(
    devices: Sequence[torch.device], host_left_bytes: int, alone: bool = False
) -> int:
    """Return the memory that a plan may use on each device if the peer file sets no limit.

    On GPUs it follows from the GPU with least memory that is free or unused in PyTorch's allocator.
    On a CPU it follows from the host memory that the replica leaves.

    Args:
        devices: All devices, of one kind.
        host_left_bytes: Host memory not taken by the replica.
        alone: Assume that no other program uses the GPUs. On a CPU it has no effect; the caller
            passes a larger `host_left_bytes` instead.
    """
    if devices[0].type == "cuda":
        return min(_usable_gpu_bytes(device, alone) for device in devices)
    return max(int(host_left_bytes * HOST_SHARE / len(devices)), LEAST_HOST_BYTES)


def _usable_gpu_bytes(device: torch.device, alone: bool) -> int:
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((total if alone else free + unused) * PLANNED_SHARE)


def free_host_bytes(cap: int | None) -> int:
    """Return the limit in the peer file (`cap`), or the free host memory if there is no limit."""
    return cap or usable_memory().available_bytes


def card_figures(device: torch.device) -> tuple[float, float] | None:
    """Return a GPU's power limit in watts, and the fraction of the last second that it worked.

    None for a CPU, or if the driver's program nvidia-smi does not report them.
    """
    if device.type == "cuda":
        command = ("nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}")
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            said = subprocess.run((*command, *_QUERY), capture_output=True, timeout=5, check=True)
            watts, percent = map(float, said.stdout.split(b","))
            return watts, percent / 100
    return None


def others_share(device: torch.device) -> float:
    """Return the fraction of a device that other programs use, while this process rests.

    Seconds that are measured while other programs work are too long. The load average would show
    that only a minute later, so this watches the cores for a moment. A GPU that reports nothing
    counts as unused.
    """
    if device.type == "cuda":
        return (card_figures(device) or (0.0, 0.0))[1]
    ours, used = os.sched_getaffinity(0), psutil.cpu_percent(_LOOK_S, percpu=True)
    return statistics.mean([share for core, share in enumerate(used) if core in ours]) / 100

"""What the driver says of a GPU: which programs use it, and how much power it may draw.

Through NVIDIA's management library (the extra `gpu`).
"""

import contextlib
import os
from importlib import import_module
from typing import Any, Protocol

import psutil
import torch

from atom.base.errors import DeviceError
from atom.extras.owner.machine import Neighbours
from atom.models.installing import install_extra

IN_USE_PERCENT = 10
"""Of its multiprocessors' time, in the driver's latest samples. A desktop that draws windows takes
less, a game or another training much more."""
_POWER_HINT = "remove [device] power, or set it by hand: `sudo nvidia-smi -pl WATTS`"


class Gpu(Protocol):
    """From one thread at a time."""

    @property
    def blind(self) -> str:
        """Why programs on it cannot be seen; empty: they can."""
        ...

    def other_user(self) -> str:
        """Name of a program that is not ours and used it since the last call; empty: none is
        seen."""
        ...

    def limit_power(self, watts: float | None) -> None:
        """None: ours ends. Raises: DeviceError, and nothing is changed."""
        ...


class UnseenGpu:
    """There is none, or no way to look at it."""

    def __init__(self, blind: str) -> None:
        self.blind = blind

    def other_user(self) -> str:
        return ""

    def limit_power(self, watts: float | None) -> None:
        if watts is not None:
            raise DeviceError(f"the GPU's power cannot be limited: {self.blind}", _POWER_HINT)


class NvidiaGpu:
    """One GPU, by its handle in the library."""

    def __init__(self, library: Any, handle: Any, neighbours: Neighbours = lambda: ()) -> None:
        self._nvml, self._handle, self._neighbours = library, handle, neighbours
        self._seen_until_us = 0
        self._power_set_mw: int | None = None
        """None: it is not ours."""
        self.blind = ""

    def other_user(self) -> str:
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        computing = {process.pid for process in self._listed()}
        # In a container the driver may list programs by numbers that mean nothing here.
        self.blind = "" if computing & ours else "the driver does not list this program"
        if self.blind:
            return ""
        others = self._users(computing) - ours - set(self._neighbours())
        return _name(min(others)) if others else ""

    def limit_power(self, watts: float | None) -> None:
        if watts is None and self._power_set_mw is None:
            return
        try:
            if watts is None:
                self._lift_power()
            else:
                self._set_power(round(1000 * watts))
        except self._nvml.NVMLError as refusal:
            raise DeviceError(
                f"the driver does not let us limit the GPU's power: {refusal}", _POWER_HINT
            ) from None

    def _set_power(self, wanted_mw: int) -> None:
        nvml, handle = self._nvml, self._handle
        least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        if not least <= wanted_mw <= most:
            raise DeviceError(
                f"{wanted_mw / 1000:.0f} W: this GPU's power can be limited to "
                f"{least / 1000:.0f} W … {most / 1000:.0f} W",
                "choose another [device] power",
            )
        nvml.nvmlDeviceSetPowerManagementLimit(handle, wanted_mw)
        self._power_set_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)

    def _lift_power(self) -> None:
        """Unless somebody else's limit holds by now, which is theirs to lift."""
        nvml, handle = self._nvml, self._handle
        if nvml.nvmlDeviceGetPowerManagementLimit(handle) == self._power_set_mw:
            usual = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, usual)
        self._power_set_mw = None

    def _listed(self) -> list[Any]:
        with contextlib.suppress(self._nvml.NVMLError):
            return list(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return []

    def _users(self, computing: set[int]) -> set[int]:
        """Where the driver does not count (some laptops, WSL2): all that compute, busy or not."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_until_us)
        except nvml.NVMLError as refusal:
            return set() if refusal.value == nvml.NVML_ERROR_NOT_FOUND else computing
        self._seen_until_us = max([self._seen_until_us, *(each.timeStamp for each in samples)])
        return {each.pid for each in samples if each.smUtil >= IN_USE_PERCENT}


def open_gpu(device: torch.device, neighbours: Neighbours = lambda: ()) -> Gpu:
    """The one that this device is, as the driver knows it. `neighbours`: programs that are no
    others: they take turns with us."""
    if device.type != "cuda":
        return UnseenGpu("no GPU")
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return UnseenGpu(f"the driver's library for Python is missing: {install_extra('gpu')}")
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), neighbours)
    except nvml.NVMLError as refusal:
        return UnseenGpu(f"the driver says: {refusal}")


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return f"process {pid}"

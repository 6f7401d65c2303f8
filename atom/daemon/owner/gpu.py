"""What the driver says of a GPU: which programs use it, and how much power it may draw.

Through NVIDIA's management library (the extra `gpu`).
"""

import contextlib
import os
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from atom.base.errors import DeviceError
from atom.daemon.owner.power_mark import PowerMark
from atom.models.installing import install_extra

IN_USE_PERCENT = 10
"""Of its multiprocessors' time, in the driver's latest samples. A desktop that draws windows takes
less, a game or another training much more."""
Neighbours = Callable[[], Collection[int]]
"""Ids of this user's other daemons' processes, as they are now."""
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
        """None: as it was found. Raises: DeviceError, and nothing is changed."""
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

    def __init__(
        self, library: Any, handle: Any, mark: PowerMark, neighbours: Neighbours = lambda: ()
    ) -> None:
        self._nvml, self._handle, self._neighbours = library, handle, neighbours
        self._mark = mark
        self._seen_until_us = 0
        self._power_before_mw: int | None = None
        self._power_set_mw = 0
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
        nvml, handle = self._nvml, self._handle
        if watts is None and self._power_before_mw is None:
            return
        try:
            now = nvml.nvmlDeviceGetPowerManagementLimit(handle)
            if watts is None and now != self._power_set_mw:
                self._power_before_mw = None  # somebody else's limit holds, and is theirs to lift
                return
            before = self._power_before_mw or self._mark.before(now)
            least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            wanted = before if watts is None else round(1000 * watts)
            if not least <= wanted <= most:
                raise DeviceError(
                    f"{wanted / 1000:.0f} W: this GPU's power can be limited to "
                    f"{least / 1000:.0f} W … {most / 1000:.0f} W",
                    "choose another [device] power",
                )
            nvml.nvmlDeviceSetPowerManagementLimit(handle, wanted)
            self._power_before_mw = before
            self._power_set_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
            if watts is None:
                self._mark.remove()
            else:
                self._mark.put(before, self._power_set_mw)
        except nvml.NVMLError as refusal:
            raise DeviceError(
                f"the driver does not let us limit the GPU's power: {refusal}", _POWER_HINT
            ) from None

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


def open_gpu(device: torch.device, folder: Path, neighbours: Neighbours = lambda: ()) -> Gpu:
    """The one that this device is, as the driver knows it. `folder`: of those who share this
    machine's devices in turns; `neighbours`: programs that are no others, with which they do."""
    if device.type != "cuda":
        return UnseenGpu("no GPU")
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return UnseenGpu(f"the driver's library for Python is missing: {install_extra('gpu')}")
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        mark = PowerMark(folder / uuid / "power.json")
        return NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), mark, neighbours)
    except nvml.NVMLError as refusal:
        return UnseenGpu(f"the driver says: {refusal}")


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return f"process {pid}"

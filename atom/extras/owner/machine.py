"""Whether this machine runs on battery, how long nobody has sat at it, as far as logind knows, and
who else uses its GPU."""

import contextlib
import math
import os
import subprocess
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch

from atom.models.installing import install_extra

SUPPLIES = Path("/sys/class/power_supply")
_STORES = ("Battery", "UPS")
_SINCE = "IdleSinceHintMonotonic"
_LOGINCTL = ("loginctl", "show-session", "--property=IdleHint", f"--property={_SINCE}")
_LOGINCTL_S = 2.0


def sessions_idle_s() -> float:
    """What logind says of all its sessions; infinite where there is none to ask."""
    try:
        said = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S)
    except (OSError, subprocess.TimeoutExpired):
        return math.inf
    return idle_hint_s(said.stdout, time.monotonic()) if said.returncode == 0 else math.inf


def idle_hint_s(said: str, now_s: float) -> float:
    """Of logind's properties, one "Key=value" per line; `now_s`: `time.monotonic`. Pure."""
    told = dict(line.partition("=")[::2] for line in said.splitlines())
    if told.get("IdleHint") == "no":
        return 0.0
    since_us = told.get(_SINCE, "0")
    if told.get("IdleHint") != "yes" or not since_us.isdigit() or int(since_us) == 0:
        return math.inf
    return now_s - int(since_us) / 1e6


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Nothing feeds it from outside, and a battery of its own is being emptied. False where nobody
    can tell. Of the kernel itself: psutil takes a wireless mouse's battery for the machine's."""
    try:
        own = [each for each in supplies.iterdir() if _said(each / "scope") != "Device"]
    except OSError:  # there is none, or it goes just now
        return False
    if any(_said(each / "online") == "1" for each in own if _said(each / "type") not in _STORES):
        return False
    emptied = (each for each in own if _said(each / "status") == "Discharging")
    return any(_said(each / "type") in _STORES for each in emptied)


def _said(file: Path) -> str:
    """Empty: it is not there, or does not say."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


IN_USE_PERCENT = 10
"""Of its multiprocessors' time, in the driver's latest samples. A desktop that draws windows takes
less, a game or another training much more."""


class Gpu:
    """One GPU, by its handle in the driver's library. From one thread at a time."""

    def __init__(self, blind: str, library: Any = None, handle: Any = None) -> None:
        self.blind = blind
        """Why programs on it cannot be seen; empty: they can."""
        self._nvml, self._handle = library, handle
        self._seen_until_us = 0

    def other_user(self) -> str:
        """Name of a program that is not ours and used it since the last call; empty: none is
        seen."""
        if self._nvml is None:
            return ""
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        computing = {process.pid for process in self._listed()}
        # In a container the driver may list programs by numbers that mean nothing here.
        self.blind = "" if computing & ours else "the driver does not list this program"
        if self.blind:
            return ""
        others = self._users(computing) - ours
        return _name(min(others)) if others else ""

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


def open_gpu(device: torch.device) -> Gpu:
    """The one that this device is, as the driver knows it."""
    if device.type != "cuda":
        return Gpu("no GPU")
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return Gpu(f"the driver's library for Python is missing: {install_extra('gpu')}")
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return Gpu("", nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError as refusal:
        return Gpu(f"the driver says: {refusal}")


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return f"process {pid}"

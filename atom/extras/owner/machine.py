"""Observations of this machine: does it run on battery, and how long has no session been in use."""

import math
import subprocess
import time
from pathlib import Path

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

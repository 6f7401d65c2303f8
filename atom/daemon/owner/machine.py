"""Observations of this machine: whether it runs on battery, and since when it is idle."""

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
    """Return the seconds since any session was in use, by logind; infinite without logind."""
    try:
        said = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S)
    except (OSError, subprocess.TimeoutExpired):
        return math.inf
    return idle_hint_s(said.stdout, time.monotonic()) if said.returncode == 0 else math.inf


def idle_hint_s(said: str, now_s: float) -> float:
    """Return the idle seconds in logind's properties. Pure.

    Args:
        said: output of loginctl, one "Key=value" per line.
        now_s: seconds of `time.monotonic`.
    """
    fields = dict(line.partition("=")[::2] for line in said.splitlines())
    if fields.get("IdleHint") == "no":
        return 0.0
    since_us = fields.get(_SINCE, "0")
    if fields.get("IdleHint") != "yes" or not since_us.isdigit() or int(since_us) == 0:
        return math.inf
    return now_s - int(since_us) / 1e6


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Return True if no supply feeds the machine and one of its batteries discharges.

    Return False if this is unknown. The kernel is asked directly, because psutil mistakes the
    battery of a wireless mouse for the machine's.
    """
    try:
        own = [each for each in supplies.iterdir() if _said(each / "scope") != "Device"]
    except OSError:  # none exists, or one is being unplugged
        return False
    if any(_said(each / "online") == "1" for each in own if _said(each / "type") not in _STORES):
        return False
    emptied = (each for each in own if _said(each / "status") == "Discharging")
    return any(_said(each / "type") in _STORES for each in emptied)


def _said(file: Path) -> str:
    """Return the content of the file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

"""Whether this machine runs on battery, as the kernel tells of what feeds it.

Read from the kernel itself: psutil takes a wireless mouse's battery for the machine's where that
has none, and raises where the kernel has no such folder.
"""

from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")
_STORES = ("Battery", "UPS")


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Nothing feeds it from outside, and a battery of its own is being emptied. False where nobody
    can tell."""
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

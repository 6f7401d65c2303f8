"""Windows' Subsystem for Linux: what is wrong here is often mended in Windows. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from atom.daemon.doctor.finding import Finding, Level

MEMORY = "memory= under [wsl2] in %UserProfile%\\.wslconfig"
_MIRRORED = "networkingMode=mirrored under [wsl2] in %UserProfile%\\.wslconfig"
_AGAIN = "then wsl --shutdown"


def wsl_of(system: str) -> int | None:
    """1 or 2, by what the kernel calls itself ("5.15.153.1-microsoft-standard-WSL2"); None: this
    is no WSL."""
    name = system.lower()
    if "microsoft" not in name:
        return None
    return 2 if "microsoft-standard" in name or "wsl2" in name else 1


def in_wsl(findings: Iterable[Finding], system: str) -> list[Finding]:
    """The findings as they are mended there, and a line of its own; elsewhere as they are."""
    version = wsl_of(system)
    found = list(findings)
    if version is None:
        return found
    place = 1 + next(n for n, finding in enumerate(found) if finding.topic == "Host memory")
    mended = [_mended(finding) for finding in found]
    return [*mended[:place], _line(version), *mended[place:]]


def _line(version: int) -> Finding:
    if version == 1:
        said = "version 1 only imitates Linux' kernel, and knows no GPU"
        return Finding("WSL", Level.WARNING, said, "in PowerShell: wsl --set-version NAME 2")
    said = f"version 2: Windows gives it half of its memory, unless {MEMORY} says more"
    return Finding("WSL", Level.OK, said)


def _mended(finding: Finding) -> Finding:
    if finding.level not in (Level.WARNING, Level.FAILURE) or finding.topic not in _FIXES:
        return finding
    return replace(finding, fix=_FIXES[finding.topic](finding))


def _gpu(finding: Finding) -> str:
    if not finding.said.startswith("none"):
        return "end what uses it, in Windows: its Task Manager shows it under GPU"
    return f"install NVIDIA's driver in Windows, none in here; {finding.fix}"


def _clock(finding: Finding) -> str:
    return "sudo hwclock --hctosys takes Windows' time: this clock stands while Windows sleeps"


def _from_outside(finding: Finding) -> str:
    return f"{_MIRRORED}, {_AGAIN}; open the ports in Windows' firewall; {finding.fix}"


def _memory(finding: Finding) -> str:
    if "host memory" not in finding.said:
        return finding.fix
    return f"{finding.fix}; or more {MEMORY}, {_AGAIN}"


def _disk(finding: Finding) -> str:
    if "/mnt/" not in finding.said:
        return finding.fix
    return "keep it on Linux' own disk, not under /mnt: --state ~/atom"


_FIXES: dict[str, Callable[[Finding], str]] = {
    "GPU": _gpu,
    "Disk": _disk,
    "Clock": _clock,
    "From outside": _from_outside,
    "Largest model": _memory,
    "This run": _memory,
}

"""What a box's own daemon takes is no fault of the box: what is seen beside it says so. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from atom.daemon.doctor.finding import Finding, Level

_MEASURED = ("PCIe", "Optimizer", "Disk", "Largest model")
"""Topics whose warnings are about what is free, or fast, at this moment."""


def beside_daemon(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as they are to be read while a daemon of ours is at work."""
    return [_read(finding) for finding in findings]


def _read(finding: Finding) -> Finding:
    if finding.level is not Level.WARNING or finding.topic not in _MEASURED:
        return finding
    said = f"{finding.said}; your daemon is at work, ask again without it"
    return replace(finding, level=Level.UNCHECKED, said=said, fix="")

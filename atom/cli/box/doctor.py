"""`atom doctor`: one page of findings, each problem with its remedy."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Group
from rich.text import Text

from atom.cli.shell.failures import ExitCode
from atom.cli.shell.terminal import facts, print_plainly, stderr_console
from atom.extras.doctor.examination import examine
from atom.extras.doctor.this_box import Finding, Level

_SHOWN = {
    Level.FAILURE: ("✗", "bad", "failed"),
    Level.WARNING: ("!", "warning", "to review"),
    Level.OK: ("✓", "good", "ok"),
    Level.UNCHECKED: ("·", "quiet", "not checked"),
}
"""Mark, style, and word in the summary, by level."""


def show_diagnosis(
    address: str | None, peer_file: Path | None, state: Path | None, as_json: bool
) -> ExitCode:
    """Examine this machine and print the findings.

    Args:
        address: Join address of a run to examine too.
        peer_file: Peer file, if the command line names one.
        state: State directory, if the command line names one.
        as_json: If True, print JSON instead of a page.

    Returns:
        DIAGNOSIS if a check failed, else OK.

    Raises:
        ConfigError: The peer file cannot be used.
        AddressError: The address is malformed.
    """
    with stderr_console().status("checking") as status:
        findings = examine(address, peer_file, state, status.update)
    if as_json:
        said = {"findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(said, indent=2))
    else:
        print_plainly(page(findings))
    failed = any(finding.level is Level.FAILURE for finding in findings)
    return ExitCode.DIAGNOSIS if failed else ExitCode.OK


def page(findings: list[Finding]) -> Group:
    """Return a line for each finding, and below each problem its remedy."""
    rows = list[tuple[Text, Text]]()
    for finding in findings:
        mark, style, _ = _SHOWN[finding.level]
        topic = Text.assemble((f"{mark} ", style), (finding.topic, "bold"))
        tone = "quiet" if finding.level is Level.UNCHECKED else ""
        rows.append((topic, Text(finding.said, tone)))
        if finding.fix:
            rows.append((Text(), Text(f"→ {finding.fix}", "hint")))
    counts = Counter(finding.level for finding in findings)
    parts = [f"{counts[level]} {word}" for level, (*_, word) in _SHOWN.items() if counts[level]]
    can = "cannot train yet" if counts[Level.FAILURE] else "can train"
    summary = Text(f"this machine {can}\n{', '.join(parts)}")
    return Group(facts(rows), Text(), summary)

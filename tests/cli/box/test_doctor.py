"""`atom doctor`: a page that fits its terminal, an object for programs, and an exit code."""

import json

import pytest
from rich.console import Console

from atom.cli.app import main
from atom.cli.box import doctor
from atom.cli.box.doctor import page
from atom.cli.shell.failures import ExitCode
from atom.cli.shell.terminal import THEME
from atom.extras.doctor.this_box import Finding, Level, failure, ok, warning

FOUND = [ok("GPU", "none found"), warning("Clock", "nothing keeps it right", "set it")]
LONG = [
    Finding("Port of data_port", Level.FAILURE, "0.0.0.0:31338: " + "somebody listens " * 12, "do"),
    Finding("Clock", Level.UNCHECKED, "the kernel does not tell"),
    Finding("GPU", Level.WARNING, "none", "install one: " + "nvidia-smi " * 12),
]


def shown(findings: list[Finding], width: int) -> str:
    console = Console(width=width, theme=THEME, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(page(findings))
    return captured.get()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_page_is_as_wide_as_its_terminal(width: int) -> None:
    text = shown(LONG, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].lstrip().startswith("✗ Port of data_port ")
    assert lines[-1].strip() == "1 failed, 1 to review, 1 not checked"
    assert lines[-2].strip() == "this machine cannot train yet"
    assert "".join(text.split()).count("nvidia-smi") == 12, "nothing is cut off"


def test_a_page_for_people_and_an_object_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = list(FOUND)
    monkeypatch.setattr(doctor, "examine", lambda address, peer_file, state, note: findings)
    assert main(["doctor"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "→ set it" in out
    findings.append(failure("Disk", "/data: read-only", "choose another folder: --state DIR"))
    assert main(["doctor", "--json"]) == ExitCode.DIAGNOSIS
    told = json.loads(capsys.readouterr().out)
    assert [each["topic"] for each in told["findings"]] == ["GPU", "Clock", "Disk"]
    assert told["findings"][-1]["level"] == "failure"
    assert told["findings"][-1]["fix"] == "choose another folder: --state DIR"

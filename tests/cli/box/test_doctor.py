"""`atom doctor`: a page that fits its terminal, an object for programs, and an exit code."""

import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from atom.cli.app import main
from atom.cli.box import doctor
from atom.cli.box.doctor import page
from atom.cli.shell.exit_codes import ExitCode
from atom.cli.shell.terminal import THEME
from atom.daemon.doctor.facts import (
    Capacity,
    Clock,
    Disk,
    Facts,
    Machine,
    Memory,
    Port,
    Software,
)
from atom.daemon.doctor.finding import Finding, Level
from atom.daemon.doctor.findings import findings_of

FACTS = Facts(
    Software((3, 11), (), None),
    Machine("Linux 6.8", "A processor", 2, None, "PyTorch finds no driver", False),
    Memory(2**34, 2**33, 2**23, 4e8),
    Disk("/data", 2**36, 7e8),
    (Port("listen", "0.0.0.0", 31337),),
    Clock(True),
    Capacity(None, None),
)
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
    assert lines[0].startswith("✗ Port of data_port ")
    assert lines[-1].strip() == "1 failed, 1 to look at, 1 not checked"
    assert "".join(text.split()).count("nvidia-smi") == 12, "nothing is cut off"


def examined(monkeypatch: pytest.MonkeyPatch, facts: Facts) -> None:
    monkeypatch.setattr(doctor, "examine", lambda request, note: facts)


def test_a_box_that_can_train_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examined(monkeypatch, FACTS)
    assert main(["doctor"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "none found; trains on the CPU" in out
    assert "→ free memory" in out


def test_programs_read_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = dataclasses.replace(FACTS, disk=Disk("/data", 0, None, "read-only"))
    examined(monkeypatch, broken)
    assert main(["doctor", "--json"]) == ExitCode.DIAGNOSIS
    told = json.loads(capsys.readouterr().out)
    assert told["facts"]["disk"]["problem"] == "read-only"
    assert len(told["findings"]) == len(findings_of(broken))
    (disk,) = [finding for finding in told["findings"] if finding["topic"] == "Disk"]
    assert disk == {
        "topic": "Disk",
        "level": "failure",
        "said": "/data: read-only",
        "fix": "choose another folder: --state DIR",
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("nonsense",), ExitCode.ADDRESS), (("--peer", "none.toml"), ExitCode.CONFIG)],
)
def test_a_wrong_question_is_no_finding(
    arguments: tuple[str, ...], code: ExitCode, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", *arguments]) == code
    streams = capsys.readouterr()
    assert streams.err.startswith("error: ")
    assert streams.out == ""

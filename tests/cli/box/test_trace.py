"""`atom trace` against a daemon that is played."""

import json
from pathlib import Path
from typing import Any

import pytest

from atom.cli.app import main
from atom.cli.box import control as trace_command
from atom.cli.shell.failures import ExitCode
from atom.swap.schedule import Load
from atom.swap.timeline import Span

SPANS = [Span(Load(0, 1), 0.0, 0.5).to_json(["blocks.0"])]


class Daemon:
    """Ends a pass when it is asked for the n-th time."""

    def __init__(self, asked_before_it_ends: int) -> None:
        self.left = asked_before_it_ends
        self.tickets: list[int] = []
        self.shown: dict[str, object] = {
            "run": "tiny",
            "paused": None,
            "last_pass": {"pass_seconds": 41.26},
        }

    def info(self) -> dict[str, object]:
        return self.shown

    def trace(self, ticket: int = 0) -> tuple[int, list[dict[str, Any]], str]:
        self.tickets.append(ticket)
        self.left -= 1
        return (7, [], "") if self.left >= 0 else (7, SPANS, "it computes")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    played = Daemon(2)
    monkeypatch.setattr(trace_command, "control_client", lambda state: played)
    monkeypatch.setattr(trace_command, "_ASK_AGAIN_S", 0.0)
    return played


def test_the_next_pass_is_saved(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pass.json"
    assert main(["trace", str(file)]) == ExitCode.OK
    events = json.loads(file.read_text())["traceEvents"]
    assert (events[0]["args"], events[-1]["name"]) == ({"name": "tiny: one pass"}, "load blocks.0")
    assert list(tmp_path.iterdir()) == [file]
    assert daemon.tickets == [0, 7, 7]
    assert capsys.readouterr().out == "it computes\n"


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({}, "recording the next pass; the last took 41.3 s"),
        ({"last_pass": None}, "waiting until the next pass has begun and ended"),
        ({"paused": "outside its hours"}, "no pass begins: the daemon is paused outside its hours"),
    ],
)
def test_who_waits_is_told_for_what(daemon: Daemon, info: dict[str, object], said: str) -> None:
    assert trace_command.waiting_words(daemon.shown | info) == said


def test_no_pass_before_the_deadline(
    daemon: Daemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_command, "TRACE_DEADLINE_S", 0.001)
    daemon.left = 10**9
    file = tmp_path / "pass.json"
    assert main(["trace", str(file)]) == ExitCode.CONTROL
    said = capsys.readouterr().err
    assert "error: no pass began and ended" in said
    assert "atom info" in said
    assert not file.exists()

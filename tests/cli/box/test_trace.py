"""`atom trace` against a daemon that is played."""

import json
from pathlib import Path
from typing import Any

import pytest

from atom.cli.app import main
from atom.cli.box import control
from atom.cli.shell.failures import ExitCode
from atom.swap.schedule import Load
from atom.swap.timeline import Span

SPANS = [Span(Load(0, 1), 0.0, 0.5).to_json(["blocks.0"])]


def told(monkeypatch: pytest.MonkeyPatch, trace: tuple[list[Any], str]) -> None:
    answers = {"trace": trace, "info": {"run": "tiny"}}
    monkeypatch.setattr(control, "ask_daemon", lambda state, command: answers[command])


def test_the_pass_recorded_last_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, (SPANS, "it computes"))
    file = tmp_path / "pass.json"
    assert main(["trace", str(file)]) == ExitCode.OK
    events = json.loads(file.read_text())["traceEvents"]
    assert (events[0]["args"], events[-1]["name"]) == ({"name": "tiny: one pass"}, "load blocks.0")
    assert list(tmp_path.iterdir()) == [file]
    assert capsys.readouterr().out == "it computes\n"


def test_before_any_pass_there_is_none_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, ([], ""))
    file = tmp_path / "pass.json"
    assert main(["trace", str(file)]) == ExitCode.CONTROL
    said = capsys.readouterr().err
    assert "error: no pass has begun and ended" in said
    assert "atom info" in said
    assert not file.exists()

"""Several daemons on one box: a row for each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import ControlError
from atom.cli.box import control
from atom.cli.box.control import show_info
from atom.daemon.state_directory import StateDirectory


def info_of(run: str, root: Path, turn: str, since_s: float) -> dict[str, Any]:
    row = {"run": run, "turn": turn, "since_s": since_s, "state_directory": str(root)}
    other = {**row, "run": "other", "state_directory": "/elsewhere"}
    turns = {"device": "cpu", "runs": [other, row]}
    base = {"run": run, "state": "accumulating", "round": 1204, "state_directory": str(root)}
    return {**base, "device_turns": turns}


class SmallDaemon:
    """Answers, unless it is frozen."""

    def __init__(self, info: Mapping[str, Any] | None) -> None:
        self._info = info

    def info(self) -> Mapping[str, Any]:
        if self._info is None:
            raise ControlError("no daemon answers", "is one running?")
        return self._info


@pytest.fixture
def daemons(tmp_path: Path) -> list[tuple[Path, SmallDaemon]]:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    return [
        (one, SmallDaemon(info_of("one", one, "waits", 2280.4))),
        (two, SmallDaemon(None)),
        (three, SmallDaemon(info_of("three", three, "has the device", 62.4))),
    ]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch, daemons: list[tuple[Path, SmallDaemon]]) -> None:
    there = dict(daemons)
    monkeypatch.setattr(control, "find_daemons", lambda state: list(map(StateDirectory, there)))
    monkeypatch.setattr(control, "control_client", lambda state: there[state])


def test_a_row_for_each(
    daemons: list[tuple[Path, SmallDaemon]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_info(None, as_json=False)
    title, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    one, two, three = (str(root) for root, _ in daemons)
    assert title == ["run", "state", "round", "turn", "--state"]
    assert rows == [
        ["one", "accumulating", "1,204", "waits", one],
        ["-", "no", "answer", "-", "-", two],
        ["three", "accumulating", "1,204", "has", "the", "device", three],
    ]


def test_a_narrow_terminal_cuts_no_folder(
    daemons: list[tuple[Path, SmallDaemon]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    show_info(None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == [str(root) for root, _ in daemons]


def test_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_info(None, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert [each["run"] for each in said["daemons"]] == ["one", "three"]

"""Programs read the event log: each line is valid JSON for all measured values."""

import json
import math
from pathlib import Path

import pytest

from atom.base.events import EventLog, older_log
from tests.event_file import read_events


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    EventLog(log).emit("round", loss=math.nan, rates=(1.5, math.inf), of={"a": -math.inf, "b": 2})
    line = log.read_text()
    assert json.loads(line, parse_constant=lambda name: f"not JSON: {name}")["loss"] is None
    (event,) = read_events(log)
    assert event["rates"] == [1.5, None]
    assert event["of"] == {"a": None, "b": 2}


@pytest.mark.parametrize("left", ['{"event": "tw', "\0" * 100_000, ""])
def test_what_a_crash_left_of_a_line_does_not_spoil_the_next(left: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(left)
    for kind, behind in (("one", left), ("three", left), ("four", "")):
        EventLog(log).emit(kind)
        with log.open("a") as file:
            file.write(behind)
    lines = log.read_bytes().split(b"\n")
    assert [json.loads(line)["event"] for line in lines[:-1]] == ["one", "three", "four"]
    assert lines[-1] == b""


def test_what_finds_no_room_is_written_later(tmp_path: Path) -> None:
    log, folder = tmp_path / "in" / "events.jsonl", tmp_path / "in"
    events = EventLog(log)
    events.emit("one")
    folder.mkdir()
    events.emit("two")
    assert [event["event"] for event in read_events(log)] == ["one", "two"]


def test_a_full_log_is_set_aside_and_one_of_them_kept(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    events = EventLog(log, max_bytes=150)
    for number in range(10):
        events.emit("round", number=number)
    kept = [event["number"] for path in (older_log(log), log) for event in read_events(path)]
    assert kept == list(range(kept[0], 10)), "whole lines, in order, up to the last"
    assert 3 <= len(kept) < 10
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "events.1.jsonl"}

import json
from pathlib import Path

from atom.cli.demo.record import EventTail, merge, mini_batches, rounds_of, write_events
from tests.event_file import read_events


def test_a_tail_reads_each_finished_line_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    path.write_text('{"event": "a"}\n{"event": "b"')
    assert tail.read() == [{"event": "a"}]
    with path.open("a") as file:
        file.write('}\n{"event": "c"}\n')
    assert tail.read() == [{"event": "b"}, {"event": "c"}]
    assert tail.read() == []
    assert [event["event"] for event in tail.events] == ["a", "b", "c"]


def test_a_round_told_twice_counts_once() -> None:
    events = [
        {"event": "round", "round": 2, "loss": 1.0},
        {"event": "other"},
        {"event": "round", "round": 1, "loss": 2.0},
        {"event": "round", "round": 2, "loss": 3.0},
    ]
    assert [event["loss"] for event in rounds_of(events)] == [2.0, 3.0]


def test_a_share() -> None:
    event = {"members": ["A", "B", "A"], "contributed": [3, 0, 2]}
    assert [mini_batches(event, peer) for peer in "ABC"] == [5, 0, 0]


def test_merged_in_the_order_of_time(tmp_path: Path) -> None:
    merged = merge(
        {
            "peer 1": [{"time": 1.0, "event": "a"}, {"time": 3.0, "event": "c"}],
            "demo": [{"time": 2.0, "event": "b"}],
        }
    )
    path = tmp_path / "events.jsonl"
    write_events(path, merged)
    told = list(read_events(path))
    assert [(event["source"], event["event"]) for event in told] == [
        ("peer 1", "a"),
        ("demo", "b"),
        ("peer 1", "c"),
    ]
    assert all(json.loads(line) for line in path.read_text().splitlines())

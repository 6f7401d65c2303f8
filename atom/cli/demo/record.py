"""What the peers wrote down: read while they write, summed up, merged into one file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventTail:
    """The events of one log; `read` takes in the lines that were finished since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """The new events."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.events += new
        return new


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """The committed rounds in order; of a round told twice (after a catch-up) the later telling."""
    last = {int(event["round"]): event for event in events if event.get("event") == "round"}
    return [last[number] for number in sorted(last)]


def mini_batches(event: Event, peer_id: str) -> int:
    """What this peer contributed to a round (sequences)."""
    parts = zip(event["members"], event["contributed"], strict=True)
    return sum(sequences for member, sequences in parts if member == peer_id)


def merge(sources: Mapping[str, Sequence[Event]]) -> list[Event]:
    """All events in the order of time, each with its `source`."""
    tagged = [{"source": name, **event} for name, events in sources.items() for event in events]
    return sorted(tagged, key=lambda event: float(event.get("time", 0.0)))


def write_events(path: Path, events: Iterable[Event]) -> None:
    """One JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)

"""Rounds, triggers and faults by the event logs of real peers. Pure."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Round:
    """Times of one round from all logs, in Unix seconds of one machine; None: no log has it."""

    reached: float | None
    """Time at which all counts together reached the global batch."""
    asked: float | None
    """Time of the first PREPARE."""
    ringing: float | None
    """Time at which the last member started the last exchange."""

    @property
    def late_s(self) -> float | None:
        """Delay of the trigger; below zero if a pass ended while the PREPARE was under way."""
        if self.reached is None or self.asked is None:
            return None
        return self.asked - self.reached

    @property
    def forming_s(self) -> float | None:
        """Seconds from PREPARE to the exchange."""
        return None if self.asked is None or self.ringing is None else self.ringing - self.asked


def rounds_of(logs: Iterable[Sequence[Event]], global_batch: int, since: float) -> list[Round]:
    """Return all rounds since a time, from the logs of all peers."""
    told: dict[str, dict[str, list[tuple[float, int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for peer, log in enumerate(logs):
        for event in log:
            if event["event"] in ("counted", "asked", "ringing") and event["time"] >= since:
                entry = event["time"], peer, event.get("sequences", 0)
                told[event["head"]][event["event"]].append(entry)
    return [
        Round(
            reached=_reached(parts["counted"], global_batch),
            asked=min((at for at, _, _ in parts["asked"]), default=None),
            ringing=max((at for at, _, _ in parts["ringing"]), default=None),
        )
        for parts in told.values()
        if "counted" in parts
    ]


def _reached(counted: Iterable[tuple[float, int, int]], global_batch: int) -> float | None:
    latest: dict[int, int] = {}
    for at, peer, sequences in sorted(counted):
        latest[peer] = sequences
        if sum(latest.values()) >= global_batch:
            return at
    return None


def commits(log: Iterable[Event]) -> list[float]:
    """Return the times at which this peer committed."""
    return [event["time"] for event in log if event["event"] == "round"]


def gaps(times: Sequence[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(times)]


def median_gap(times: Sequence[float]) -> float:
    return statistics.median(gaps(times) or [float("nan")])


def triggers(logs: Iterable[Iterable[Event]], since: float) -> list[int]:
    """Return the promised sequences of each exchange that began, by any log."""
    begun = {
        (event["head"], event["ballot"]): event["sequences"]
        for log in logs
        for event in log
        if event["event"] == "ringing" and event["time"] >= since
    }
    return list(begun.values())

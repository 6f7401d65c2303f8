"""What the event logs of real peers say about their rounds. Pure."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

RING_ENDS = ("round", "ring-broken", "attempt-ended")
NAMES_IT = ("ring-broken", "exchange-judged", "nack", "attempt-ended")


@dataclass(frozen=True)
class Round:
    """One round, from the logs of all. Unix seconds of one machine; None: nobody wrote it."""

    reached: float | None
    """All counts together are the global batch."""
    asked: float | None
    """The first PREPARE."""
    ringing: float | None
    """The last member starts the last ring."""

    @property
    def late_s(self) -> float | None:
        """Of the trigger. Below zero it came early: or a peer's pass ended under way to it."""
        if self.reached is None or self.asked is None:
            return None
        return self.asked - self.reached

    @property
    def forming_s(self) -> float | None:
        """From PREPARE to the ring."""
        return None if self.asked is None or self.ringing is None else self.ringing - self.asked


def rounds_of(logs: Iterable[Sequence[Event]], global_batch: int, since: float) -> list[Round]:
    """The rounds that all of `logs` (one per peer) tell of, from `since` on, by their parents."""
    told: dict[str, dict[str, list[tuple[float, int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for peer, log in enumerate(logs):
        for event in log:
            if event["event"] in ("counted", "asked", "ringing") and event["time"] >= since:
                entry = event["time"], peer, event.get("sequences", 0)
                told[event["head"]][event["event"]].append(entry)
    return [_round(parts, global_batch) for parts in told.values() if "counted" in parts]


def _round(parts: Mapping[str, list[tuple[float, int, int]]], global_batch: int) -> Round:
    asked = [at for at, _, _ in parts.get("asked", ())]
    ringing = [at for at, _, _ in parts.get("ringing", ())]
    return Round(
        reached=_reached(parts["counted"], global_batch),
        asked=min(asked, default=None),
        ringing=max(ringing, default=None),
    )


def _reached(counted: Iterable[tuple[float, int, int]], global_batch: int) -> float | None:
    latest: dict[int, int] = {}
    for at, peer, sequences in sorted(counted):
        latest[peer] = sequences
        if sum(latest.values()) >= global_batch:
            return at
    return None


def commits(log: Iterable[Event]) -> list[float]:
    """When this peer stepped."""
    return [event["time"] for event in log if event["event"] == "round"]


def gaps(times: Sequence[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(times)]


def median_gap(times: Sequence[float]) -> float:
    return statistics.median(gaps(times) or [float("nan")])


def named_at(log: Iterable[Event], victim: str, since: float) -> list[float]:
    """When this peer wrote an event that names the victim."""
    return [
        event["time"]
        for event in log
        if event["event"] in NAMES_IT and event["time"] >= since and victim in str(event)
    ]


def rings(log: Iterable[Event]) -> bool:
    """Whether this peer is in a ring, by its log."""
    told = [event["event"] for event in log if event["event"] in (*RING_ENDS, "ringing")]
    return bool(told) and told[-1] == "ringing"


def triggers(logs: Iterable[Iterable[Event]], since: float) -> list[int]:
    """Of each all-reduce that was begun, by anybody's log: the sequences promised for it."""
    begun = {
        (event["head"], event["ballot"]): event["sequences"]
        for log in logs
        for event in log
        if event["event"] == "ringing" and event["time"] >= since
    }
    return list(begun.values())


def found_short(log: Iterable[Event], since: float) -> int:
    """Attempts of this coordinator that found less than the leases had said, and began nothing."""
    return sum(
        event["event"] == "attempt-ended" and event["reason"] == "early" and event["time"] >= since
        for event in log
    )

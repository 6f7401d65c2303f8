"""What the logs of a home swarm and the counters of its lines come to. Pure.

Times are Unix seconds of one machine, from one peer's log or another's.
"""

import itertools
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from home_scale import HEADER_BYTES

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """Of time."""

    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    def shared(self, other: "Span") -> float:
        """Seconds that both have in common."""
        return max(0.0, min(self.stop, other.stop) - max(self.start, other.start))


@dataclass(frozen=True)
class Reading:
    """Of a line's counters, since it is there."""

    time: float
    count: int
    """Bytes, headers included."""
    packets: int

    @property
    def payload(self) -> int:
        """Bytes without the packets' headers; a packet that only acknowledges has none."""
        return self.count - HEADER_BYTES * self.packets


def commits(log: Iterable[Event]) -> list[float]:
    """When this peer stepped."""
    return [event["time"] for event in log if event["event"] == "round"]


def passes(log: Iterable[Event]) -> list[Span]:
    """Those that counted."""
    return [Span(event["began"], event["time"]) for event in log if event["event"] == "passed"]


def share(spans: Iterable[Span], window: Span) -> float:
    """Of the window's time."""
    return sum(span.shared(window) for span in spans) / window.seconds


def neither(log: Sequence[Event], window: Span) -> float:
    """Seconds of the window with no pass and no averaging: calls, handshakes, votes, steps, waiting
    for others' passes."""
    spans = sorted((*passes(log), *_averaging(log)), key=lambda span: span.start)
    left, at = 0.0, window.start
    for span in spans:
        left += max(0.0, min(span.start, window.stop) - at)
        at = max(at, min(span.stop, window.stop))
    return left + window.stop - at


def _averaging(log: Iterable[Event]) -> list[Span]:
    """Of the committed rounds: as long as it took, from when it was begun."""
    found, began = list[Span](), None
    for event in log:
        if event["event"] == "ringing":
            began = event["time"]
        elif event["event"] == "round" and began is not None:
            found.append(Span(began, began + event["reduce_seconds"]))
            began = None
    return found


def sequences(log: Iterable[Event], window: Span) -> int:
    """Of the rounds that this peer committed after the window's start, until its end."""
    rounds = (event for event in log if event["event"] == "round")
    return sum(e["sequences"] for e in rounds if window.start < e["time"] <= window.stop)


def exchange_seconds(log: Iterable[Event], window: Span) -> float:
    """The median of the rounds in the window."""
    rounds = (event for event in log if event["event"] == "round")
    return statistics.median(
        e["reduce_seconds"] for e in rounds if window.start < e["time"] <= window.stop
    )


def payload(readings: Sequence[Reading], span: Span) -> float:
    """Bytes of the span; between two readings as if they had been even."""
    return _payload_until(readings, span.stop) - _payload_until(readings, span.start)


def _payload_until(readings: Sequence[Reading], time: float) -> float:
    place = bisect_left(readings, time, key=lambda reading: reading.time)
    before, after = readings[max(place - 1, 0)], readings[min(place, len(readings) - 1)]
    if after.time <= before.time:
        return before.payload
    share_of_it = min(max((time - before.time) / (after.time - before.time), 0.0), 1.0)
    return before.payload + share_of_it * (after.payload - before.payload)


def longest_gap(times: Sequence[float], since: float) -> float:
    """Between two commits, of which the second comes after `since`."""
    pairs = itertools.pairwise(times)
    return max(later - sooner for sooner, later in pairs if later > since)


def compared_states(logs: Iterable[Iterable[Event]]) -> tuple[int, int]:
    """Heads of which at least two peers told the state's digest, and those told differently."""
    told: dict[str, list[str]] = defaultdict(list)
    for log in logs:
        digests = {e["head"]: e["digest"] for e in log if e.get("head") and e.get("digest")}
        for head, digest in digests.items():
            told[head].append(digest)
    compared = [digests for digests in told.values() if len(digests) > 1]
    return len(compared), sum(len(set(digests)) > 1 for digests in compared)

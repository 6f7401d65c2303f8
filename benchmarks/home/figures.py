"""Figures from the logs of a home swarm and from the counters of its lines. Pure.

Times are Unix seconds of one machine, in the logs of all peers.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.home.small_round import HEADER_BYTES

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """Span of time."""

    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    def shared(self, other: "Span") -> float:
        """Return the seconds that two spans have in common."""
        return max(0.0, min(self.stop, other.stop) - max(self.start, other.start))


def passes(log: Iterable[Event]) -> list[Span]:
    """Return the passes that counted."""
    return [Span(event["began"], event["time"]) for event in log if event["event"] == "passed"]


def share(spans: Iterable[Span], window: Span) -> float:
    """Return the share of the window's time that the spans take."""
    return sum(span.shared(window) for span in spans) / window.seconds


def neither(log: Sequence[Event], window: Span) -> float:
    """Return seconds of the window without pass and averaging: calls, handshakes, votes, steps, and
    waits for other peers' passes."""
    spans = sorted((*passes(log), *_averaging(log)), key=lambda span: span.start)
    left, at = 0.0, window.start
    for span in spans:
        left += max(0.0, min(span.start, window.stop) - at)
        at = max(at, min(span.stop, window.stop))
    return left + window.stop - at


def _averaging(log: Iterable[Event]) -> list[Span]:
    """Return the exchanges of committed rounds."""
    found, began = list[Span](), None
    for event in log:
        if event["event"] == "ringing":
            began = event["time"]
        elif event["event"] == "round" and began is not None:
            found.append(Span(began, began + event["reduce_seconds"]))
            began = None
    return found


def sequences(log: Iterable[Event], window: Span) -> int:
    """Count the sequences of rounds that this peer committed within the window."""
    rounds = (event for event in log if event["event"] == "round")
    return sum(e["sequences"] for e in rounds if window.start < e["time"] <= window.stop)


def exchange_seconds(log: Iterable[Event], window: Span) -> float:
    """Return the median seconds of exchanges in the window."""
    rounds = (event for event in log if event["event"] == "round")
    return statistics.median(
        e["reduce_seconds"] for e in rounds if window.start < e["time"] <= window.stop
    )


def payload(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return bytes without headers between two readings of bytes and packets."""
    count, packets = (later - sooner for sooner, later in zip(before, after, strict=True))
    return count - HEADER_BYTES * packets


def longest_gap(times: Sequence[float], since: float) -> float:
    """Return the longest gap between two commits that ends after `since`."""
    pairs = itertools.pairwise(times)
    return max(later - sooner for sooner, later in pairs if later > since)


def compared_states(logs: Iterable[Iterable[Event]]) -> tuple[int, int]:
    """Count heads whose state digest several peers logged, and those with different digests."""
    told: dict[str, list[str]] = defaultdict(list)
    for log in logs:
        digests = {e["head"]: e["digest"] for e in log if e.get("head") and e.get("digest")}
        for head, digest in digests.items():
            told[head].append(digest)
    compared = [digests for digests in told.values() if len(digests) > 1]
    return len(compared), sum(len(set(digests)) > 1 for digests in compared)

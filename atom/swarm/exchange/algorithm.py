"""How a group averages: in a ring, or with everybody directly. Which of them is faster. Pure.

With N members, B bytes of an average on the wire, a rate r of each member's own line, a one-way
latency l and c seconds of computing for one more connection's handshakes:

    ring      = 2 (N − 1) / N · B / r  +  2 (N − 1) · l
    one-shot  = 2 (N − 1) / N · B / r  +  2 · l  +  (N − 2) · c

The same bytes leave every member. A ring's go over one path, whose ends may be chosen, and need two
connections; they wait at every member for the one before. So the one-shot exchange is for small
averages on long ways: it is taken if it saves a tenth of a ring's time, and at least 50 ms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atom.swarm.exchange.order import Place

MAX_MEMBERS = 16
"""Of a one-shot exchange: each has a connection and a thread to and from every other."""
HANDSHAKES_S = 0.01
"""For one more connection out and one more in: measured, on one core, rounded up."""
ASSUMED_LATENCY_S = 0.0005
"""One way, between peers that nobody has measured: next to each other, so that a ring is kept."""
ASSUMED_BYTES_PER_S = 12.5e6
"""Of a line that nobody has measured: 100 Mbit/s."""
WORTHWHILE = 0.9
WORTHWHILE_S = 0.05


class Algorithm(StrEnum):
    """Part of an attempt: its coordinator chooses, and every member does as told."""

    RING = "ring"
    ONE_SHOT = "one-shot"


@dataclass(frozen=True)
class Ways:
    """What is known of the group's network; None: nobody has measured it."""

    latency_s: float | None = None
    """One way, between two members."""
    bytes_per_s: float | None = None
    """Of a member's line."""
    all_meet: bool = True
    """Whether any two members can be connected, without a relay."""


@dataclass(frozen=True)
class Choice:
    """The algorithm, and why."""

    algorithm: Algorithm
    ring_s: float
    one_shot_s: float
    reason: str

    def story(self) -> dict[str, Any]:
        """For the event log."""
        return {
            "algorithm": self.algorithm.value,
            "ring_s": round(self.ring_s, 4),
            "one_shot_s": round(self.one_shot_s, 4),
            "reason": self.reason,
        }


def measured(places: Sequence[Place]) -> Ways:
    """What the members' links tell: the median way, and the slowest line."""
    peers = {place.peer_id for place in places}
    links = [link for place in places for name, link in place.links.items() if name in peers]
    round_trips = sorted(link.round_trip_s for link in links)
    rates = [link.bytes_per_s for link in links if math.isfinite(link.bytes_per_s)]
    return Ways(
        latency_s=round_trips[len(round_trips) // 2] / 2 if round_trips else None,
        bytes_per_s=min(rates, default=None),
        all_meet=sum(place.dials_out for place in places) < 2
        and not any(place.apart & peers for place in places),
    )


def choose(members: int, average_bytes: float, ways: Ways) -> Choice:
    """For one average of `average_bytes` on the wire among `members`."""
    latency_s = ASSUMED_LATENCY_S if ways.latency_s is None else ways.latency_s
    bytes_per_s = ways.bytes_per_s or ASSUMED_BYTES_PER_S
    transfer_s = 2 * (members - 1) / members * average_bytes / bytes_per_s
    ring_s = transfer_s + 2 * (members - 1) * latency_s
    one_shot_s = transfer_s + 2 * latency_s + max(members - 2, 0) * HANDSHAKES_S
    worthwhile = one_shot_s < min(WORTHWHILE * ring_s, ring_s - WORTHWHILE_S)
    reason = _against(members, ways) or ("" if worthwhile else "a one-shot exchange saves little")
    if reason:
        return Choice(Algorithm.RING, ring_s, one_shot_s, reason)
    return Choice(Algorithm.ONE_SHOT, ring_s, one_shot_s, "latency is most of a ring's time")


def _against(members: int, ways: Ways) -> str:
    """What speaks against a one-shot exchange whatever it would save."""
    if members < 3:
        return "two members are each other's neighbours either way"
    if members > MAX_MEMBERS:
        return f"more than {MAX_MEMBERS} members"
    return "" if ways.all_meet else "some members cannot meet, or only through a relay"

"""Which exchange a group uses, a ring or parts with owners, and how large each part is. Pure.

With N members, B bytes of an average on the wire, a line of r(i) bytes per second for each member
in each direction, a one-way latency l, c seconds of computing for one more connection's handshakes,
and w(i) for the share of the arena that member i owns (they add up to 1): a member sends the
owners all but its own share, and N - 1 others the sum of its own; and receives as much. So

    ring  = 2 (N - 1) / N · B / min r(i)                   +  2 (N - 1) · l
    parts = max over i of B · (1 + (N - 2) · w(i)) / r(i)  +  2 · l  +  (N - 2) · c

Shares are best when all lines are busy for the same time T, and those own nothing that need T or
longer for the B bytes that everybody has to send and to receive:

    w(i) = max(0, T · r(i) / B - 1) / (N - 2),    T such that they add up to 1

With equal lines that is 1 / N each, and both exchanges move the same bytes. The ring needs fewer
connections, so parts are taken where they save a tenth of its time and at least 50 ms. Where a
member cannot be dialled, or the codec cannot be encoded again at every hop, parts are taken anyway:
a member that cannot be dialled owns nothing, and dials the owners itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.swarm.chain.succession import MAX_SIGNATURES

MOST_MEMBERS = 64
"""Of parts with owners: an owner has two connections, and two threads, for each other member."""
MOST_IN_A_RING = MAX_SIGNATURES
MOST_OWNERS = 16
HANDSHAKES_S = 0.01
"""For one more connection out and one more in: measured, on one core, rounded up."""
ASSUMED_LATENCY_S = 0.0005
"""One way, between peers that nobody has measured."""
ASSUMED_BYTES_PER_S = 12.5e6
"""Of a line that nobody has measured: 100 Mbit/s."""
TIMES_FASTER = 4.0
"""Than any that was measured a line is taken to be that never held an exchange up."""
ALIKE = 0.75
"""Lines that explain so much of what the slowest one does are slow like it."""
WORTHWHILE = 0.9
WORTHWHILE_S = 0.05
SHARES = 1000
"""Shares are told in parts of about so many."""


@dataclass(frozen=True)
class Choice:
    """The exchange, and why."""

    shares: tuple[int, ...]
    """Of each member, relative to each other; empty: a ring."""
    ring_s: float
    parts_s: float
    reason: str

    def story(self) -> dict[str, Any]:
        """For the event log."""
        return {
            "exchange": "parts" if self.shares else "ring",
            "shares": list(self.shares),
            "ring_s": round(self.ring_s, 4),
            "parts_s": round(self.parts_s, 4),
            "reason": self.reason,
        }


def choose(
    lines: Sequence[float | None],
    may_own: Sequence[bool],
    average_bytes: float,
    latency_s: float | None = None,
    ring_possible: bool = True,
) -> Choice:
    """`lines`: of each member in bytes per second, in each direction; None: nobody has measured it.
    `may_own`: a part, so that every other member is to be connected with it; some member may.
    `ring_possible`: the codec allows it, and no ring of these members broke a moment ago without a
    culprit."""
    members, rates = len(lines), _rates(lines)
    latency_s = ASSUMED_LATENCY_S if latency_s is None else latency_s
    shares = part_shares(rates, may_own)
    busiest_s = max(
        average_bytes * averages_moved(shares, rank) / rate for rank, rate in enumerate(rates)
    )
    parts_s = busiest_s + 2 * latency_s + max(members - 2, 0) * HANDSHAKES_S
    ring_s = 2 * (members - 1) * (average_bytes / members / min(rates) + latency_s)
    if members > MOST_MEMBERS:
        return Choice((), ring_s, parts_s, f"more than {MOST_MEMBERS} members")
    if members > 1 and not all(may_own):
        return Choice(shares, ring_s, parts_s, "not everybody may own a part")
    if members > 1 and not ring_possible:
        return Choice(shares, ring_s, parts_s, "no ring is possible")
    if members > 2 and parts_s < min(WORTHWHILE * ring_s, ring_s - WORTHWHILE_S):
        return Choice(shares, ring_s, parts_s, "parts save time")
    return Choice((), ring_s, parts_s, "parts save little")


def averages_moved(shares: Sequence[int], rank: int) -> float:
    """How many averages a member sends, and receives, in an exchange by parts."""
    return 1 + (len(shares) - 2) * shares[rank] / sum(shares)


def part_shares(rates: Sequence[float], may_own: Sequence[bool]) -> tuple[int, ...]:
    """Of each member, relative to each other. Some member may own a part."""
    members = len(rates)
    able = [rank for rank in range(members) if may_own[rank]]
    owners = sorted(able, key=lambda rank: (-rates[rank], rank))[:MOST_OWNERS]
    if members < 3:
        return tuple(int(rank in owners) for rank in range(members))
    slowest_s = 1 / min(rates)
    while True:
        time_s = (members - 2 + len(owners)) / sum(rates[rank] for rank in owners)
        time_s = max(time_s, slowest_s)
        if len(owners) == 1 or time_s * rates[owners[-1]] > 1 + 0.5 / SHARES:
            break
        owners.pop()
    weights = {rank: time_s * rates[rank] - 1 for rank in owners}
    total = sum(weights.values())
    told = {rank: round(SHARES * weight / total) for rank, weight in weights.items()}
    return tuple(told.get(rank, 0) for rank in range(members))


def line_rates(ways: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """By peer id the speed of each line that is known to be slow, in bytes per second. `ways`: by
    sender and receiver, how fast a way went where it held an exchange up.

    One such way says nothing about the two at its ends; a line is slow if it explains two or more.
    The lines that explain most come first, all that are alike: a way to them says nothing about the
    other end.
    """
    left, found = dict(ways), dict[str, float]()
    while True:
        touching = {peer: [left[w] for w in left if peer in w] for way in left for peer in way}
        explains = {p: sum(1 / r for r in rates) for p, rates in touching.items() if len(rates) > 1}
        if not explains:
            return found
        least = ALIKE * max(explains.values())
        worst = {peer for peer, explained in explains.items() if explained >= least}
        found |= {peer: _slower_direction(peer, left) for peer in worst}
        left = {way: rate for way, rate in left.items() if worst.isdisjoint(way)}


def _slower_direction(peer: str, ways: Mapping[tuple[str, str], float]) -> float:
    """The faster way of each direction; what was measured down says nothing of up."""
    directions = ([rate for way, rate in ways.items() if way[end] == peer] for end in (0, 1))
    return min(max(rates) for rates in directions if rates)


def _rates(lines: Sequence[float | None]) -> list[float]:
    """Lines that nobody has measured never held an exchange up: they are faster than any other."""
    unknown = max([ASSUMED_BYTES_PER_S, *(TIMES_FASTER * rate for rate in lines if rate)])
    return [rate or unknown for rate in lines]

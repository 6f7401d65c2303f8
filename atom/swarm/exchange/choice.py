"""Choice of the exchange of a group, a ring or parts with owners, and of the parts' sizes. Pure.

Let there be N members, B bytes of an average on the wire, a line of r(i) bytes per second for each
member in each direction, a one-way latency l, c seconds of computing for the handshakes of one more
connection, and let w(i) be the share of the arena that member i owns (all shares add up to 1). A
member sends the owners all but its own share, and N - 1 others the sum of the share that it owns.
It receives as much. A ring reduces b buckets of 16 MiB one after the other, each in 2 (N - 1) hops
of a segment, which takes s = B / (b N min r(i)) seconds. A hop lasts until the segment is sent, or,
if that is later, until the first of its four chunks has arrived. So

    ring  = 2 (N - 1) · b · max(s, s / 4 + l)
    parts = max over i of B · (1 + (N - 2) · w(i)) / r(i)  +  2 · l  +  (N - 2) · c

Shares are best if all lines are busy for the same time T, and if a member owns nothing that needs T
or longer for the B bytes that every member has to send and to receive:

    w(i) = max(0, T · r(i) / B - 1) / (N - 2),    T such that they add up to 1

With equal lines that is 1 / N each, and both exchanges move the same bytes. The ring needs fewer
connections, so parts are chosen if they save a tenth of its time and at least 50 ms. If a member
cannot be dialled, or if the codec cannot encode again at every hop, parts are chosen in any case: a
member that cannot be dialled owns nothing, and dials the owners itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.swarm.exchange.plans import BUCKET_BYTES, CHUNKS

MOST_MEMBERS = 64
"""Bound of members of an exchange. In parts, an owner has two connections, each with a thread, for
each other member; in a ring, a transfer passes through all members. All members may own a part."""
HANDSHAKES_S = 0.01
"""Computing time of the handshakes of one more outgoing and one more incoming connection; measured
on one core, rounded up."""
ASSUMED_LATENCY_S = 0.0005
"""One-way latency assumed between peers without a measurement."""
ASSUMED_BYTES_PER_S = 12.5e6
"""Speed assumed of a line without a measurement: 100 Mbit/s."""
TIMES_FASTER = 4.0
"""Assumed speed of a line that never held up an exchange, relative to the fastest measured line."""
ALIKE = 0.75
"""Lines that explain this fraction of the delay that the slowest line explains count as slow."""
WORTHWHILE = 0.9
WORTHWHILE_S = 0.05
SHARES = 1000
"""Approximate sum of the integer shares of all members."""


@dataclass(frozen=True)
class Choice:
    """Chosen exchange, with the estimated times and the reason."""

    shares: tuple[int, ...]
    """Relative size of each member's part, by rank; empty: the exchange is a ring."""
    ring_s: float
    parts_s: float
    reason: str

    def story(self) -> dict[str, Any]:
        """Return the choice in JSON types, for the event log."""
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
    """Choose the exchange for a group of members.

    Args:
        lines: Speed of each member's line in bytes per second and direction, by rank; None if no
            peer has measured it.
        may_own: True for each member that may own a part: every other member must be able to
            connect to it. At least one is True.
        average_bytes: Bytes of the average on the wire.
        latency_s: One-way latency between members; None if not measured.
        ring_possible: False if the codec cannot be used in a ring, or if a ring of these members
            has just failed without a suspect.
    """
    members, rates = len(lines), _rates(lines)
    latency_s = ASSUMED_LATENCY_S if latency_s is None else latency_s
    shares = part_shares(rates, may_own)
    busiest_s = max(
        average_bytes * averages_moved(shares, rank) / rate for rank, rate in enumerate(rates)
    )
    parts_s = busiest_s + 2 * latency_s + max(members - 2, 0) * HANDSHAKES_S
    buckets = max(math.ceil(average_bytes / BUCKET_BYTES), 1)
    segment_s = average_bytes / buckets / members / min(rates)
    hop_s = max(segment_s, segment_s / CHUNKS + latency_s)
    ring_s = 2 * (members - 1) * buckets * hop_s
    if members > 1 and not all(may_own):
        return Choice(shares, ring_s, parts_s, "some members may not own a part")
    if members > 1 and not ring_possible:
        return Choice(shares, ring_s, parts_s, "no ring is possible")
    if members > 2 and parts_s < min(WORTHWHILE * ring_s, ring_s - WORTHWHILE_S):
        return Choice(shares, ring_s, parts_s, "parts save time")
    return Choice((), ring_s, parts_s, "parts save little")


def averages_moved(shares: Sequence[int], rank: int) -> float:
    """Return the traffic of a member in an exchange by parts, as a multiple of the average's bytes.

    The member sends that many bytes, and receives as many.
    """
    return 1 + (len(shares) - 2) * shares[rank] / sum(shares)


def part_shares(rates: Sequence[float], may_own: Sequence[bool]) -> tuple[int, ...]:
    """Return the best relative part size of each member, by rank (see the top of this file).

    Args:
        rates: Speed of each member's line, bytes per second in each direction.
        may_own: True for each member that may own a part; at least one is True.
    """
    members = len(rates)
    able = [rank for rank in range(members) if may_own[rank]]
    owners = sorted(able, key=lambda rank: (-rates[rank], rank))
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
    shares = {rank: round(SHARES * weight / total) for rank, weight in weights.items()}
    return tuple(shares.get(rank, 0) for rank in range(members))


def line_rates(links: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Estimate which lines are slow from the connections that held up an exchange.

    A slow connection alone does not show which of its two ends is slow: a line counts as slow if it
    is an end of two or more. The lines that explain the greatest delay are found first, with all
    similar ones. Their connections are then ignored: they say nothing about the other ends.

    Args:
        links: Speed of each connection that held up an exchange, in bytes per second, by the peer
            ids of sender and receiver.

    Returns:
        Speed of each line that is known to be slow, in bytes per second, by peer id.
    """
    left, found = dict(links), dict[str, float]()
    while True:
        touching = {peer: [left[w] for w in left if peer in w] for link in left for peer in link}
        explains = {p: sum(1 / r for r in rates) for p, rates in touching.items() if len(rates) > 1}
        if not explains:
            return found
        least = ALIKE * max(explains.values())
        worst = {peer for peer, explained in explains.items() if explained >= least}
        found |= {peer: _slower_direction(peer, left) for peer in worst}
        left = {link: rate for link, rate in left.items() if worst.isdisjoint(link)}


def _slower_direction(peer: str, links: Mapping[tuple[str, str], float]) -> float:
    """Return the speed of the slower direction of a peer's line.

    A direction is as fast as its fastest connection. A direction without measurements is left out.
    """
    directions = ([rate for link, rate in links.items() if link[end] == peer] for end in (0, 1))
    return min(max(rates) for rates in directions if rates)


def _rates(lines: Sequence[float | None]) -> list[float]:
    """Replace unknown speeds: a line without a measurement never held up an exchange, so it counts
    as faster than all measured ones."""
    unknown = max([ASSUMED_BYTES_PER_S, *(TIMES_FASTER * rate for rate in lines if rate)])
    return [rate or unknown for rate in lines]

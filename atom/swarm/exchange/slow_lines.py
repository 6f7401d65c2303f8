"""Whose line is too slow for a ring, by what everybody measured of the ways to others. Pure.

A slow way says nothing about the two at its ends: the order of seats avoids it. Whose line is slow
says itself that its sending held rings up to two others; or two others say that theirs did to it:
its line is slow in the other direction.

What others say may be a lie. Their word counts of one peer at most, the one to which they are far
slower than to any other; and not if as many others were faster. So two liars make one peer slow,
if nobody else showed a speed to it. That nothing was slow does not speak for it: it is what
everybody says who has met it and never sent to it in a ring.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from atom.swarm.exchange.order import Place

WAYS = 2
"""On so many, in one direction, a leaf must have held rings up."""
ALIKE = 2.0
"""Rates up to so many times apart may be one line's: who was sending for half of a ring's time held
it up, so what it measured is half its line's speed at the least."""


@dataclass(frozen=True)
class SlowLines:
    """By peer id the bytes per second at which its sending, or what it receives, held rings up."""

    sending: Mapping[str, float]
    receiving: Mapping[str, float]

    def slowest_first(self) -> list[str]:
        rates = dict(self.receiving)
        for peer, rate in self.sending.items():
            rates[peer] = min(rate, rates.get(peer, math.inf))
        return sorted(rates, key=lambda peer: (rates[peer], peer))


def slow_lines(places: Sequence[Place]) -> SlowLines:
    """Who would explain most of the slow ways comes first: a way to somebody whose line is slow
    anyhow says nothing about who sends there. What a peer says of its own sending counts twice as
    much as what others say."""
    out = finite_rates(places)
    into = _words(out)

    def slowness(peer: str) -> float:
        told = sum(1 / rate for rate, _ in into[peer])
        return sum(1 / rate for rate in _explained(out[peer].values())) + told / 2

    sending, receiving = dict[str, float](), dict[str, float]()
    for peer in sorted(out, key=lambda peer: (-slowness(peer), peer)):
        known = sending.keys() | receiving.keys()
        own = [rate for other, rate in out[peer].items() if other not in known]
        if len(own) >= WAYS:
            sending[peer] = max(own)
        told = _told(into[peer])
        if told is not None:
            receiving[peer] = told
    return SlowLines(sending, receiving)


def _words(out: Mapping[str, Mapping[str, float]]) -> dict[str, list[tuple[float, bool]]]:
    """What was measured of the ways to each peer, and whether it speaks against that peer: its
    sender was not as slow to anybody else."""
    into: dict[str, list[tuple[float, bool]]] = {peer: [] for peer in out}
    for rates in out.values():
        for other, rate in rates.items():
            as_slow = sum(one <= ALIKE * rate for one in rates.values())
            into[other].append((rate, as_slow < WAYS))
    return into


def _explained(rates: Collection[float]) -> list[float]:
    """By a slow line of who sends: it is as fast as the fastest shows."""
    fastest = max(rates, default=0.0)
    return [rate for rate in rates if ALIKE * rate >= fastest]


def _told(words: Sequence[tuple[float, bool]]) -> float | None:
    """The speed of a peer's line by what was measured of the ways to it; None: too few speak
    against it, or as many were faster, whatever their own lines are."""
    slow = sorted(rate for rate, against in words if against)
    if len(slow) < WAYS:
        return None
    limit = ALIKE * slow[len(slow) // 2]
    agreed = [rate for rate in slow if rate <= limit]
    faster = sum(rate > limit for rate, _ in words)
    return max(agreed) if len(agreed) > faster else None


def finite_rates(places: Sequence[Place]) -> dict[str, dict[str, float]]:
    """Of each one's sending to others here, where it held rings up."""
    here = {place.peer_id for place in places}
    return {
        place.peer_id: {
            peer: link.bytes_per_s
            for peer, link in place.links.items()
            if peer in here and peer != place.peer_id and math.isfinite(link.bytes_per_s)
        }
        for place in places
    }

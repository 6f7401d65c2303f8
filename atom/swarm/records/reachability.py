"""Whether others can dial us. Nobody can know that of itself: they are asked to try. Pure.

One peer's answer is not enough: somebody in the same home reaches us where nobody else can. So the
latest answers of a few are kept, and half of them saying no means no: that costs a connection to
those who could have dialled us, while a wrong yes makes peers that cannot reach each other.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from blake3 import blake3

from atom.swarm.records.lease import Reached

WITNESSES = 3
RETRY_S = 1.0
"""After an answer that is none, and until the first."""
SETTLE_S = 5.0
"""Between answers until there are enough of them."""
AGAIN_S = 60.0
MAX_LINES = 64


@dataclass(frozen=True)
class Answers:
    """The latest answers, oldest first, at most one per witness."""

    given: tuple[tuple[str, Reached], ...] = ()

    def with_answer(self, peer_id: str, reached: Reached) -> "Answers":
        others = [entry for entry in self.given if entry[0] != peer_id]
        if reached is Reached.UNKNOWN:
            return Answers(tuple(others))
        return Answers((*others, (peer_id, reached))[-WITNESSES:])

    def verdict(self) -> Reached:
        """No, unless more than half of those who tried could."""
        if not self.given:
            return Reached.UNKNOWN
        yes = sum(reached is Reached.YES for _, reached in self.given)
        return Reached.YES if 2 * yes > len(self.given) else Reached.NO

    def pause_s(self, candidates: Collection[str]) -> float:
        """How long until the next question."""
        if not self.given:
            return RETRY_S
        return SETTLE_S if len(self.given) < min(WITNESSES, len(candidates)) else AGAIN_S


def next_witness(candidates: Collection[str], asked_at: Mapping[str, float]) -> str | None:
    """Whom to ask: whoever was not asked for the longest time, whatever came of it."""
    return min(candidates, key=lambda peer: (asked_at.get(peer, -math.inf), peer), default=None)


def lines_to(me: str, reached: Mapping[str, Reached]) -> frozenset[str]:
    """Whom a peer that cannot be dialled keeps lines to: everybody who can, or an arbitrary but
    steady choice of them if they are many (the rest comes through relays)."""
    able = [peer for peer, can in reached.items() if can is not Reached.NO]
    able.sort(key=lambda peer: blake3(f"{me}{peer}".encode()).digest())
    return frozenset(able[:MAX_LINES])

"""Whom to leave out of an exchange, from those that broke before. Pure.

A broken exchange names pairs: a member, and the peer that it saw fail; or itself. One of the two
is at fault, or the way between them. A peer that is in several pairs is taken for the culprit in
all of them, and a peer that was only named together with it is forgiven. Of a single pair it is
the accused. From the third broken exchange of a round on, everybody named in that round is left
out: so with f bad members at most f + 2 break.

Nobody leaves itself out. But a member that alone is in all pairs of a round is most likely at
fault, and does well to let others lead (`in_all_pairs`).
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from atom.swarm.transport.quarantine import hold_s

REMEMBERED_S = 600.0
MOST_REMEMBERED = 64
FIRST_HOLD_S = 10.0
"""How long a peer that spoilt a round's exchanges stays out of the next rounds': twice as long each
time."""
PATIENT_WITH = 2
"""Broken exchanges of a round, before everybody named is left out."""

Accusation = tuple[str, str]
"""By whom, of whom: peer ids, which may be the same."""


@dataclass(frozen=True)
class _Broken:
    at: float
    head: bytes
    accusations: frozenset[Accusation]

    @property
    def named(self) -> frozenset[str]:
        return frozenset(peer for pair in self.accusations for peer in pair)


class Suspicions:
    """One coordinator's memory of broken exchanges."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._broken: deque[_Broken] = deque(maxlen=MOST_REMEMBERED)
        self._explained = tuple[_Broken, ...]()
        self._culprits = dict[str, list[_Broken]]()
        """Of `_explained`: asked several times in each tick, and seldom another answer."""

    def add(self, head: bytes, found: frozenset[Accusation], now: float) -> None:
        """An exchange of the round after `head` broke at `now` (seconds)."""
        self._broken.append(_Broken(now, head, found))

    def broken_in(self, head: bytes) -> int:
        """How many exchanges of this round broke."""
        return len(self._of_round(head))

    def unexplained(self, now: float) -> bool:
        """Whether an exchange broke lately and nobody saw why: by parts, somebody would."""
        return any(not broken.accusations for broken in self._recent(now))

    def own_fault(self, head: bytes) -> bool:
        """Whether the last exchange of this round broke because of us, by our own word."""
        last = self._broken[-1] if self._broken else None
        return last is not None and last.head == head and last.named == {self._me}

    def in_all_pairs(self, head: bytes) -> bool:
        """Whether all pairs of this round have us in them, and nobody else."""
        pairs = [set(pair) for broken in self._of_round(head) for pair in broken.accusations]
        return bool(pairs) and set.intersection(*pairs) == {self._me}

    def at_odds(self, now: float) -> frozenset[frozenset[str]]:
        """Pairs that an exchange broke between lately. Perhaps neither is bad, and only the way
        between them is: then both do well where they are not connected."""
        pairs = (frozenset(pair) for broken in self._recent(now) for pair in broken.accusations)
        return frozenset(pair for pair in pairs if len(pair) == 2)

    def left_out(self, head: bytes, now: float, earlier: bool = True) -> frozenset[str]:
        """Who is not to be in the next exchange of this round. Never ourselves: we would know.
        `earlier`: also culprits of rounds before it only."""
        recent = self._recent(now)
        if recent != self._explained:
            self._explained, self._culprits = recent, self._explain(recent)
        out = {
            culprit
            for culprit, spoilt in self._culprits.items()
            if any(broken.head == head for broken in spoilt)
            or (earlier and now < spoilt[-1].at + _hold_s(spoilt))
        }
        if self.broken_in(head) > PATIENT_WITH:
            out |= {peer for broken in self._of_round(head) for peer in broken.named}
        return frozenset(out - {self._me})

    def _recent(self, now: float) -> tuple[_Broken, ...]:
        return tuple(broken for broken in self._broken if now - broken.at < REMEMBERED_S)

    def _of_round(self, head: bytes) -> list[_Broken]:
        return [broken for broken in self._broken if broken.head == head]

    def _explain(self, exchanges: Iterable[_Broken]) -> dict[str, list[_Broken]]:
        """A few peers that explain all accusations, with the exchanges that each has spoilt."""
        left = [(broken, pair) for broken in exchanges for pair in broken.accusations]
        found = dict[str, list[_Broken]]()
        while True:
            named = Counter(peer for _, pair in left for peer in {*pair} - {self._me})
            if not named:
                return found
            accused = Counter(whom for _, (_, whom) in left)
            worst = max(named, key=lambda peer: (named[peer], accused[peer], peer))
            found[worst] = [broken for broken, pair in left if worst in pair]
            left = [(broken, pair) for broken, pair in left if worst not in pair]


def _hold_s(spoilt: Iterable[_Broken]) -> float:
    return hold_s(FIRST_HOLD_S, len({broken.head for broken in spoilt}))

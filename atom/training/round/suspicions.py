"""Whom to leave out of a ring, from the rings that broke before. Pure.

Each broken ring names pairs of which at least one is at fault (`blame`). A peer that is in several
pairs is taken for the culprit in all of them, and who was only named together with it is
forgiven. Of a single pair it is the accused. From the third broken ring of a round on,
everybody named in that round is left out.

So with one bad member at most two rings of a round break: the first may cost an innocent its
place, the second has only the culprit in common with it. With f bad members at most f + 2 break:
after three everybody named is out, at least one of them bad, and each further one adds another.

Nobody leaves itself out. But who alone is in all pairs of a round is most likely at fault, and
does well to let others lead (`in_all_pairs`).

What we saw in rings that others compose is weaker: whoever leads them can tell some members and not
the others, and so make each see its neighbour fail as often as it likes. So of each coordinator's
rings only the last one counts, in its round and for a short while.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from atom.swarm.transport.quarantine import hold_s
from atom.training.round.blame import Accusation

REMEMBERED_S = 600.0
MOST_REMEMBERED = 64
FIRST_HOLD_S = 10.0
"""How long who spoilt a round's rings stays out of the next rounds': twice as long each time."""
PATIENT_WITH = 2
"""Broken rings of a round, before everybody named is left out."""


@dataclass(frozen=True)
class _Broken:
    at: float
    head: bytes
    accusations: frozenset[Accusation]

    @property
    def named(self) -> frozenset[str]:
        return frozenset(peer for pair in self.accusations for peer in pair)


@dataclass(frozen=True)
class _Seen:
    at: float
    head: bytes
    suspect: str


class Suspicions:
    """One coordinator's memory of broken rings."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._broken: deque[_Broken] = deque(maxlen=MOST_REMEMBERED)
        self._explained = tuple[_Broken, ...]()
        self._culprits = dict[str, list[_Broken]]()
        """Of `_explained`: asked several times in each tick, and seldom another answer."""
        self._seen = dict[str, _Seen]()
        """The last of each other coordinator's rings that broke beside us, by coordinator."""

    def saw(self, head: bytes, coordinator: str, suspect: str, now: float) -> None:
        """In a ring of that coordinator's, this neighbour failed us."""
        self._seen = {who: seen for who, seen in self._seen.items() if seen.head == head}
        self._seen[coordinator] = _Seen(now, head, suspect)

    def seen_failing(self, head: bytes, now: float) -> frozenset[str]:
        """Our neighbours in others' rings of this round that broke a moment ago."""
        seen = [s for s in self._seen.values() if s.head == head and now < s.at + FIRST_HOLD_S]
        return frozenset(s.suspect for s in seen) - {self._me}

    def add(self, head: bytes, found: frozenset[Accusation], now: float) -> None:
        """A ring of the round after `head` broke at `now` (seconds)."""
        self._broken.append(_Broken(now, head, found))

    def own_fault(self, head: bytes) -> bool:
        """Whether the last ring of this round broke because of us, by our own word."""
        last = self._broken[-1] if self._broken else None
        return last is not None and last.head == head and last.named == {self._me}

    def in_all_pairs(self, head: bytes) -> bool:
        """Whether all pairs of this round have us in them, and nobody else."""
        rings = [ring for ring in self._broken if ring.head == head]
        pairs = [set(pair) for ring in rings for pair in ring.accusations]
        return bool(pairs) and set.intersection(*pairs) == {self._me}

    def broken_in(self, head: bytes) -> int:
        """How many rings of this round broke."""
        return sum(ring.head == head for ring in self._broken)

    def at_odds(self, now: float) -> frozenset[frozenset[str]]:
        """Pairs that a ring broke between lately. Perhaps neither is bad, and only the way between
        them is: then both do well when they are no neighbours."""
        recent = (ring for ring in self._broken if now - ring.at < REMEMBERED_S)
        pairs = (frozenset(pair) for ring in recent for pair in ring.accusations)
        return frozenset(pair for pair in pairs if len(pair) == 2)

    def left_out(self, head: bytes, now: float, earlier: bool = True) -> frozenset[str]:
        """Who is not to be in the next ring of this round. Never ourselves: we would know.
        `earlier`: also who spoilt rings of rounds before it only."""
        if not self._broken:
            return frozenset()
        recent = tuple(ring for ring in self._broken if now - ring.at < REMEMBERED_S)
        if recent != self._explained:
            self._explained, self._culprits = recent, self._explain(recent)
        out = {
            culprit
            for culprit, rings in self._culprits.items()
            if any(ring.head == head for ring in rings)
            or (earlier and now < rings[-1].at + hold_s(FIRST_HOLD_S, len({r.head for r in rings})))
        }
        of_round = [ring for ring in recent if ring.head == head]
        if len(of_round) > PATIENT_WITH:
            out |= _named(of_round)
        return frozenset(out - {self._me})

    def _explain(self, rings: Iterable[_Broken]) -> dict[str, list[_Broken]]:
        """A few peers that explain all accusations, with the rings that each has spoilt."""
        left = [(ring, pair) for ring in rings for pair in ring.accusations]
        found = dict[str, list[_Broken]]()
        while True:
            named = Counter(peer for _, pair in left for peer in {*pair} - {self._me})
            if not named:
                return found
            accused = Counter(whom for _, (_, whom) in left)
            worst = max(named, key=lambda peer: (named[peer], accused[peer], peer))
            found[worst] = [ring for ring, pair in left if worst in pair]
            left = [(ring, pair) for ring, pair in left if worst not in pair]


def _named(rings: Iterable[_Broken]) -> set[str]:
    return {peer for ring in rings for peer in ring.named}

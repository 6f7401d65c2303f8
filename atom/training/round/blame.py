"""Who may have spoilt a ring, from what its members say of it. Pure.

Only neighbours in a ring see each other, and a leaf and its carrier; in a one-shot exchange
everybody sees everybody. So whoever accuses anybody else, or nobody, accuses itself, and hearsay is
followed to who said it first. What comes out are pairs that see each other (or one alone) of which
at least one is at fault, whatever the others say: an honest member only accuses a neighbour that
failed it.

A ring that is too slow as a whole has a member that could have sent and did not, or a pair of which
one says that a chunk was sent and the other that it never came. Everybody else waits for its left
neighbour. So the search goes left, from who lacks a chunk to who should have sent it: each time to
an earlier step, so it ends (`RingPlan`: a step sends on what came in the step before).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from atom.base.reasons import Reason
from atom.swarm.chain.messages import Suspect
from atom.swarm.chain.ring_standing import RingStanding

Accusation = tuple[str, str]
"""Who says so, of whom: peer ids, which may be the same."""


def is_eyewitness(words: Suspect) -> bool:
    """Whether it saw a fault itself, at a certain place: nothing more is to be waited for."""
    return not words.told_by and (words.reason != Reason.TOO_SLOW or words.peer_id != "")


def accusations(
    members: Sequence[str],
    testimonies: Mapping[str, Suspect],
    one_shot: bool = False,
    carried: Mapping[str, str] | None = None,
) -> frozenset[Accusation]:
    """At least one pair, given at least one testimony. `members`: peer ids in ring order;
    `carried`: leaves and their carriers."""
    ring = _Ring(tuple(members), testimonies, one_shot, carried or {})
    seen = [ring.seen_by(peer) for peer, words in testimonies.items() if is_eyewitness(words)]
    if seen:
        return frozenset(seen)
    slow = [peer for peer, words in testimonies.items() if not words.told_by]
    found = Counter(ring.held_up(peer) for peer in sorted(slow))
    if found:
        return frozenset({found.most_common(1)[0][0]})
    return frozenset({ring.first_to_say(min(testimonies))})


class _Ring:
    """Members in order, and what they say."""

    def __init__(
        self,
        members: tuple[str, ...],
        testimonies: Mapping[str, Suspect],
        one_shot: bool,
        carried: Mapping[str, str],
    ) -> None:
        self._members = members
        self._carried = carried
        self._one_shot = one_shot
        self._testimonies = testimonies

    def seen_by(self, peer: str) -> Accusation:
        accused = self._testimonies[peer].peer_id
        return (peer, accused) if accused in self._seen_from(peer) else (peer, peer)

    def held_up(self, peer: str) -> Accusation:
        """Goes left from `peer` to who keeps the ring waiting. A leaf knows whom it waits for."""
        if peer in self._carried:
            return peer, peer
        for _ in range(2 * len(self._members)):
            mine = self._standing(peer)
            if mine is None:
                return peer, peer
            if not mine.starves(len(self._members)):
                return (peer, self._beside(peer)[1]) if mine.blocked else (peer, peer)
            left = self._beside(peer)[0]
            theirs = self._standing(left)
            if theirs is None or theirs.unsent > mine.lacks:
                return peer, left
            peer = left
        return peer, peer  # not reached by the words of an honest member

    def first_to_say(self, peer: str) -> Accusation:
        """Follows hearsay to who has nobody to refer to."""
        heard = {peer}
        while True:
            teller = self._testimonies[peer].told_by
            if teller not in self._seen_from(peer):
                return peer, peer
            if teller not in self._testimonies or teller in heard:
                return peer, teller
            heard.add(teller)
            peer = teller

    def _standing(self, peer: str) -> RingStanding | None:
        words = self._testimonies.get(peer)
        return words.standing if words is not None else None

    def _seen_from(self, peer: str) -> tuple[str, ...]:
        """To whom it is connected."""
        if peer in self._carried:
            return (self._carried[peer],)
        leaves = tuple(leaf for leaf, carrier in self._carried.items() if carrier == peer)
        return self._members if self._one_shot else self._beside(peer) + leaves

    def _beside(self, peer: str) -> tuple[str, str]:
        at = self._members.index(peer)
        return self._members[at - 1], self._members[(at + 1) % len(self._members)]

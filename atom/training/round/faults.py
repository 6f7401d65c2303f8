"""What a replica remembers of peers that failed it, and what it expects of them from then on.

It is one replica's own memory and decides only when and with whom to try, never what is true.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.records.lease import claims_better, preferred
from atom.swarm.transport.limits import FORGOTTEN_S, MOST_REMEMBERED, Backoff
from atom.training.round.attempt import Stage, Way
from atom.training.round.electorate import hidden_peers
from atom.training.round.events import CaughtUp, View
from atom.training.round.round_state import RoundContext

FIRST_ASIDE_S, LONGEST_ASIDE_S = 20.0, 600.0
MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
FIRST_DOUBT_S, LONGEST_DOUBT_S = 5.0, 20.0
_ORDER = list(Stage)


class UnreliablePeers:
    """Peers that owed an attempt of ours something and did not bring it: an answer, a promise,
    their part of an exchange, a vote. Each is *aside* for a time that doubles: it is asked, and not
    waited for; what it counted is not counted on; it is in no exchange, and its promise counts only
    where there is no quorum without it. It is forgiven when it does what it owed, or has averaged
    with us. A fresh lease is no excuse."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._aside = Backoff(FIRST_ASIDE_S, LONGEST_ASIDE_S)
        self._owes: dict[str, tuple[Stage, float, bytes]] = {}
        """Peer id → at which stage it failed, when it did so last, and its incarnation then."""
        self._broken: list[Way] = []
        """Where exchanges of this round broke, as far as no culprit explains it."""
        self._ways: dict[Way, float] = {}
        """Where exchanges broke, and when."""
        self._broke_at = float("-inf")
        self._anew_at = context.now

    def new_head(self, averaged: Collection[str]) -> None:
        """`averaged`: who was in the exchange of its commit, with us."""
        self._broken.clear()
        self.ask_anew()
        for peer in averaged:
            self.forgive(peer, Stage.ACCEPT)

    # ---- what they owe

    def fail(self, peers: Iterable[str], stage: Stage) -> None:
        """They did not bring what they owe at this stage. Who is aside fails no further."""
        now, held = self._context.now, self._aside.held(self._context.now)
        for peer in peers:
            if peer not in held:
                self._aside.fail(peer, now)
            lease = self._context.view.fresh.get(peer)
            owed, *_ = self._owes.pop(peer, (stage,))
            worst = max(owed, stage, key=_ORDER.index)
            self._owes[peer] = worst, now, lease.incarnation if lease else b""
            while len(self._owes) > MOST_REMEMBERED:
                del self._owes[next(iter(self._owes))]

    def forgive(self, peer: str, stage: Stage) -> None:
        """It did what is asked for at this stage."""
        owed, *_ = self._owes.get(peer, (stage,))
        if _ORDER.index(owed) <= _ORDER.index(stage):
            self._owes.pop(peer, None)
            self._aside.forgive(peer)

    def ask_anew(self) -> None:
        """What they owe by now is no reason any more to go on without them."""
        self._anew_at = self._context.now

    @property
    def owing(self) -> set[Voter]:
        """Who has failed at this head, and not made it good; in what process."""
        return {Voter(peer, i) for peer, (_, at, i) in self._owes.items() if at >= self._anew_at}

    @property
    def aside(self) -> frozenset[str]:
        """Offenders with them; never ourselves. If we leave and have nothing counted, only they:
        whoever stays may need the work of the others, for the last round that we see."""
        context = self._context
        idle = context.leaving and not context.view.sequences
        held = frozenset[str]() if idle else self._aside.held(context.now)
        return (held | context.view.aside) - {context.me.peer_id}

    @property
    def we_fail(self) -> bool:
        """Whether exchanges broke because of us, it seems."""
        return self._context.me.peer_id in self._aside.held(self._context.now)

    # ---- exchanges

    def broke(self, ways: Collection[Way], members: int) -> None:
        """An exchange of so many broke there; empty: nobody saw where. Two have no other way."""
        now = self._broke_at = self._context.now
        self._ways = {way: at for way, at in self._ways.items() if now < at + FORGOTTEN_S}
        self._ways |= dict.fromkeys(ways, now)
        self._broken += [*ways, *ways] if members == 2 else ways
        found = culprits(self._broken, self._context.me.peer_id)
        self._broken = [way for way in self._broken if found.isdisjoint(way)]
        self.fail(found, Stage.RING)

    @property
    def apart(self) -> list[Way]:
        """Where an exchange broke lately. Perhaps neither of the two is bad, and only the way
        between them is: then both do well where they are not connected."""
        return [way for way, at in self._ways.items() if self._context.now < at + FORGOTTEN_S]

    @property
    def by_parts(self) -> bool:
        """Whether an exchange broke lately: by parts, somebody sees where."""
        return self._context.now < self._broke_at + FORGOTTEN_S


def culprits(ways: Iterable[Way], me: str) -> set[str]:
    """Peers that two or more of these broken ways have in common, who explains most of them first;
    of several that explain as much, not us."""
    left, found = list(ways), set[str]()
    while True:
        named = Counter(peer for way in left for peer in way)
        worst = max(named, key=lambda peer: (named[peer], peer != me, peer), default="")
        if named[worst] < 2:
            return found
        found.add(worst)
        left = [way for way in left if worst not in way]


def in_turn(peers: Iterable[str], view: View, head: Head, doubts: Backoff) -> list[str]:
    """In which order to ask them for what they claim: those we know first, then those that failed
    us least often, so that a crowd that claims the most hides nobody for ever. Those that cannot be
    dialled come last: perhaps we have no line."""
    hidden = hidden_peers(view)
    return sorted(peers, key=lambda p: (p not in head.known, doubts.failures(p), p in hidden))


class HeadCandidates:
    """Which leases that claim a better head are worth leaving the round for.

    None, until the chain behind one of them was fetched and checked. Voters and last members are
    asked before strangers, and a peer that could not help is left alone for a time that doubles.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)

    def better(self) -> list[str]:
        """Peer ids whose leases claim a preferred head, in the order to ask them."""
        head, view, doubted = self._context.head, self._context.view, self.doubted
        found = [
            lease
            for lease in view.fresh.values()
            if claims_better(lease, head) and lease.peer_id not in doubted
        ]
        if all(lease.peer_id in view.unproven for lease in found):
            return []
        return self._in_turn([lease.peer_id for lease in preferred(found, head)])

    def any_state(self) -> list[str]:
        """Whom to ask for a peer that has no state at all. A peer that is aside or doubted will do
        if nobody else offers one: what it serves is checked like everything else."""
        view = self._context.view
        ranked = preferred(view.fresh.values(), self._context.head)
        offering = [lease.peer_id for lease in ranked if lease.state_digest]
        trusted = [peer for peer in offering if peer not in view.aside] or offering
        ready = [peer for peer in trusted if peer not in self.doubted]
        return self._in_turn(ready or trusted)

    def _in_turn(self, ranked: list[str]) -> list[str]:
        """Those that have proven what they claim first, then as `in_turn`."""
        view, head = self._context.view, self._context.head
        ranked = in_turn(ranked, view, head, self._doubts)
        return sorted(ranked, key=lambda peer: peer in view.unproven)

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them. At another head everybody is believed anew."""
        if event.head.digest != self._context.head.digest:
            self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
            return
        for peer in event.failed:
            self._doubts.fail(peer, self._context.now)

    @property
    def doubted(self) -> frozenset[str]:
        """Whose claims are not believed for now."""
        return self._doubts.held(self._context.now) | self._context.view.aside

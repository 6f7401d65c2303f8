"""What a replica remembers of peers that failed it, and what it expects of them from then on.

It is one replica's own memory and decides only when and with whom to try, never what is true.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.records.lease import Lease, claims_better, preferred
from atom.swarm.transport.limits import FORGOTTEN_S, MOST_REMEMBERED, Backoff
from atom.training.round.attempt import Stage, Way
from atom.training.round.events import CaughtUp, ChainFetched, FetchChain
from atom.training.round.round_state import RoundContext

FIRST_ASIDE_S, LONGEST_ASIDE_S = 20.0, 600.0
MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
_UNSEEN: Way = ("", "")
FIRST_DOUBT_S, LONGEST_DOUBT_S = 5.0, 20.0
AT_ONCE = 2
"""Chains that are fetched beside the training."""


class UnreliablePeers:
    """Peers that owed an attempt of ours something and did not bring it: an answer, a promise,
    their part of an exchange, a vote. Each is *aside* for a time that doubles: it is asked, and not
    waited for; what it counted is not counted on; it is in no exchange, and its promise counts only
    where there is no quorum without it. It is forgiven when it does what it owed, or has averaged
    with us. A fresh lease is no excuse."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._aside = Backoff(FIRST_ASIDE_S, LONGEST_ASIDE_S)
        self._owes: dict[str, Stage] = {}
        """Peer id → at which stage it failed."""
        self.owing = set[Voter]()
        """Who has failed since all were asked anew, in what process, and not made it good."""
        self._broken: list[Way] = []
        """Where exchanges of this round broke, as far as no culprit explains it."""
        self._ways: dict[Way, float] = {}
        """Where exchanges broke, and when; `_UNSEEN` if nobody saw where."""

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
            self._owes[peer] = max(self._owes.pop(peer, stage), stage)
            if (lease := self._context.view.fresh.get(peer)) is not None:
                self.owing.add(Voter(peer, lease.incarnation))
            while len(self._owes) > MOST_REMEMBERED:
                del self._owes[next(iter(self._owes))]

    def forgive(self, peer: str, stage: Stage) -> None:
        """It did what is asked for at this stage."""
        if self._owes.get(peer, stage) <= stage:
            self._owes.pop(peer, None)
            self.owing = {voter for voter in self.owing if voter.peer_id != peer}
            self._aside.forgive(peer)

    def ask_anew(self) -> None:
        """What they owe by now is no reason any more to go on without them."""
        self.owing.clear()

    @property
    def aside(self) -> frozenset[str]:
        """Offenders with them; never ourselves. If we leave and have nothing counted, only they:
        whoever stays may need the work of the others, for the last round that we see."""
        context = self._context
        idle = context.leaving and not context.view.sequences
        held = frozenset[str]() if idle else self._aside.held(context.now)
        return (held | context.view.quarantined) - {context.me.peer_id}

    @property
    def we_fail(self) -> bool:
        """Whether exchanges broke because of us, it seems."""
        return self._context.me.peer_id in self._aside.held(self._context.now)

    # ---- exchanges

    def broke(self, ways: Collection[Way], members: int) -> None:
        """An exchange of so many broke there; empty: nobody saw where. Two have no other way, and
        if at this head others do not answer us either, it is we that broke it."""
        me, owing = self._context.me.peer_id, {voter.peer_id for voter in self.owing}
        self._ways = {way: self._ways[way] for way in self.apart}
        self._ways |= dict.fromkeys(ways or [_UNSEEN], self._context.now)
        silent = [(me, peer) for peer in owing if self._owes.get(peer) is not Stage.RING]
        self._broken += [*ways, *ways, *silent] if members == 2 else ways
        found = culprits(self._broken, me)
        self._broken = [way for way in self._broken if found.isdisjoint(way)]
        self.fail(found, Stage.RING)

    @property
    def apart(self) -> list[Way]:
        """Where an exchange broke lately: the next is by parts, where somebody sees it. Perhaps
        neither of the two is bad, and only the way between them is: then both do well where they
        are not connected."""
        return [way for way, at in self._ways.items() if self._context.now < at + FORGOTTEN_S]


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


class HeadCandidates:
    """Peers that claim a better head. A claim costs nothing until it is proven: until the chain
    behind it was fetched and checked, beside the training, and led as far as was claimed.

    Who proved nothing, or did not bring us there, is left alone for a time that doubles. Voters and
    last members are asked before strangers, and who failed us less often before others, so that a
    crowd that claims the most hides nobody for ever.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asked: dict[str, Lease] = {}
        """Whose chains are being fetched, and what they claimed."""
        self._proven: dict[str, Head] = {}
        """Peer id → the head that its chain led to, if that is better than ours."""
        self._claimed_since = float("inf")

    def better(self) -> list[str]:
        """Peer ids that claim a preferred head, in the order to ask them: those first that have
        proven the best. Empty until one of them has proven what it claims: the chains are fetched
        of those that claim more than anybody has proven yet."""
        context, head = self._context, self._context.head
        self._proven = {p: proven for p, proven in self._proven.items() if proven.prefers(head)}
        claims = self._claims()
        self._claimed_since = min(self._claimed_since, context.now) if claims else float("inf")
        if context.now >= self._claimed_since + context.patience.behind:
            self._look_into(claims)
        peers = [lease.peer_id for lease in claims]
        if self._proven.keys().isdisjoint(peers):
            return []
        ranks = {peer: self._proven.get(peer, head).rank for peer in peers}
        return sorted(self._in_turn(peers), key=ranks.__getitem__, reverse=True)

    def _look_into(self, claims: Iterable[Lease]) -> None:
        context = self._context
        best = max([context.head, *self._proven.values()], key=lambda proven: proven.rank)
        more = [lease.peer_id for lease in claims if claims_better(lease, best)]
        ready = [peer for peer in self._in_turn(more) if peer not in self._asked]
        for peer in ready[: AT_ONCE - len(self._asked)]:
            self._asked[peer] = context.view.fresh[peer]
            context.out.append(FetchChain(peer, self._asked[peer].round))

    def on_chain(self, fetched: ChainFetched) -> None:
        """A chain that ends before what its peer claims proves nothing: else who serves the true
        chain piece by piece could have us follow it round after round."""
        peer, claim = fetched.donor, self._asked.pop(fetched.donor)
        if fetched.head is None or claims_better(claim, fetched.head):
            self._doubts.fail(peer, self._context.now)
        else:
            self._proven[peer] = fetched.head

    def any_state(self) -> list[str]:
        """Whom to ask for a peer that has no state at all: who is aside or doubted comes last, what
        it serves is checked like everything else."""
        leases = preferred(self._context.view.fresh.values(), self._context.head)
        offering = [lease.peer_id for lease in leases if lease.state_digest]
        return sorted(self._in_turn(offering), key=self.doubted.__contains__)

    def _claims(self) -> list[Lease]:
        """Of a preferred head, best first, as far as they are believed."""
        head, leases = self._context.head, self._context.view.fresh.values()
        better = [lease for lease in leases if claims_better(lease, head)]
        doubted = self.doubted if better else frozenset[str]()
        return preferred((lease for lease in better if lease.peer_id not in doubted), head)

    def _in_turn(self, peers: Iterable[str]) -> list[str]:
        """Those that cannot be dialled come last: perhaps we have no line."""
        known, failures = self._context.head.known, self._doubts.failures
        hidden = self._context.view.hidden
        return sorted(peers, key=lambda p: (p not in known, failures(p), p in hidden))

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them. Who brought us on, though not there, may go on with it."""
        if event.head.digest == self._context.head.digest:
            for peer in event.failed:
                self._proven.pop(peer, None)
                self._doubts.fail(peer, self._context.now)

    @property
    def doubted(self) -> frozenset[str]:
        """Whose claims are not believed for now."""
        return self._doubts.held(self._context.now) | self._context.view.quarantined

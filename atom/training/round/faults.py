"""Memory of peers that failed this replica's attempts, and of peers that answered them.

Each replica has its own memory. It decides only when to try and with which peers, never what is
true.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from atom.swarm.chain.commit import Voter
from atom.swarm.chain.tenure import ROUNDS_TO_LOSE
from atom.swarm.transport.limits import FORGOTTEN_S, MOST_REMEMBERED, Backoff
from atom.training.round.attempt import Pair, Stage
from atom.training.round.round_state import RoundContext

FIRST_EXCLUSION_S, LONGEST_EXCLUSION_S = 20.0, 600.0
FIRST_SUSPENSION_S, LONGEST_SUSPENSION_S = 20.0, 80.0
"""Seconds without newcomers in exchanges after a failure with newcomers; the time doubles."""
_UNSEEN: Pair = ("", "")
_NEWCOMERS = "newcomers"


class UnreliablePeers:
    """Peers that failed an attempt of ours, by answer, promise, exchange or vote.

    Such a peer is *excluded* for a time that doubles: it is still asked, but not waited for; its
    counts are ignored; it is in no exchange; and its promise counts only if there is no quorum
    without it. A late answer clears the penalty, and so does an exchange with us. A fresh lease
    does not.

    *Newcomers* are peers without a recent contribution. Identities are free, so each of many
    newcomers could break one exchange, or make us wait once. After such a failure newcomers are in
    no exchange and are not waited for, for a time that doubles. Then they are admitted one at a
    time, in the order in which they first answered us.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._excluded = Backoff(FIRST_EXCLUSION_S, LONGEST_EXCLUSION_S)
        self._owes: dict[str, Stage] = {}
        """Latest stage at which each peer failed, by peer id."""
        self.owing = set[Voter]()
        """Processes that failed since `ask_all_again` and have not cleared their penalty."""
        self._refused = set[str]()
        """Peers that claimed work at this head and have already refused once to promise it."""
        self._broken: list[Pair] = []
        """Connections on which exchanges of this round broke, unless a culprit explains them."""
        self._pairs: dict[Pair, float] = {}
        """Connections on which exchanges broke, with the time; `_UNSEEN` if no member saw where."""
        self._answers: dict[str, int] = {}
        """Round of the head at which each peer last answered an attempt of ours, by peer id.

        The peers are in the order of their first answers.
        """
        self._suspension = Backoff(FIRST_SUSPENSION_S, LONGEST_SUSPENSION_S)

    def new_head(self, averaged: Collection[str]) -> None:
        """Forget failures that concern only the old head, and forgive the exchange's members.

        Args:
            averaged: Members of the exchange that led to the new head, if we were one of them.
        """
        self._broken.clear()
        self._refused.clear()
        self.ask_all_again()
        for peer in averaged:
            self.forgive(peer, Stage.ACCEPT)

    # ---- answers

    def has_answered(self, peer: str) -> None:
        """Note that a peer answered an attempt: it may be counted and waited for from now on."""
        self._answers[peer] = self._context.head.round
        if len(self._answers) > MOST_REMEMBERED:
            self._answers = {peer: self._answers[peer] for peer in self._lately()}
        if len(self._answers) > MOST_REMEMBERED:
            self._answers.popitem()

    def _to_the_end(self, peers: AbstractSet[str]) -> None:
        """Move these newcomers to the end of the line, so that others are admitted first."""
        moved = {peer: at for peer, at in self._answers.items() if peer in peers}
        self._answers = {p: at for p, at in self._answers.items() if p not in peers} | moved

    def _lately(self) -> list[str]:
        oldest = self._context.head.round - ROUNDS_TO_LOSE
        return [peer for peer, number in self._answers.items() if number > oldest]

    @property
    def answered(self) -> frozenset[str]:
        """Peers that answered an attempt of ours recently, without newcomers that must wait."""
        context, lately = self._context, self._lately()
        if not self._suspension.failures(_NEWCOMERS):
            return frozenset(lately)
        newcomers = [peer for peer in lately if peer not in context.head.recent]
        there = context.view.fresh.keys() - self.excluded
        present = [peer for peer in newcomers if peer in there]
        first = [] if self._suspension.held(context.now) else present[:1]
        return frozenset(lately) - frozenset(newcomers) | frozenset(first)

    # ---- debts

    def fail(self, peers: Iterable[str], stage: Stage) -> None:
        """Exclude peers that did not deliver what this stage asks for.

        The exclusion of a peer that is already excluded is not extended.
        """
        now, held = self._context.now, self._excluded.held(self._context.now)
        peers = set(peers)
        if stage is Stage.PREPARE and (newcomers := peers - self._context.head.recent):
            self._suspend_newcomers()
            self._to_the_end(newcomers)
        for peer in peers:
            if peer not in held:
                self._excluded.fail(peer, now)
            self._owes[peer] = max(self._owes.pop(peer, stage), stage)
            if (lease := self._context.view.fresh.get(peer)) is not None:
                self.owing.add(Voter(peer, lease.incarnation))
            while len(self._owes) > MOST_REMEMBERED:
                del self._owes[next(iter(self._owes))]

    def claimed_in_vain(self, peers: AbstractSet[str], refused: AbstractSet[str]) -> None:
        """Exclude peers whose leases made a round due with work that they did not promise.

        A peer may be busy once, so a peer that refuses is only excluded the second time.

        Args:
            peers: Peers that promised less than they claimed, or refused.
            refused: Peers that refused.
        """
        self.fail(peers - refused | peers & self._refused, Stage.RING)
        self._refused |= peers & refused

    def forgive(self, peer: str, stage: Stage) -> None:
        """Clear the penalty of a peer that did what this stage asks for."""
        if self._owes.get(peer, stage) <= stage:
            self._owes.pop(peer, None)
            self.owing = {voter for voter in self.owing if voter.peer_id != peer}
            self._excluded.forgive(peer)

    def ask_all_again(self) -> None:
        """Forget the failures that would justify a branch without some voters."""
        self.owing.clear()

    @property
    def excluded(self) -> frozenset[str]:
        """Peers that are not relied on, quarantined ones included; never ourselves.

        If we leave and have counted nothing, only quarantined peers are excluded, because the last
        round that we see may need the other ones.
        """
        context = self._context
        idle = context.leaving and not context.view.sequences
        held = frozenset[str]() if idle else self._excluded.held(context.now)
        return (held | context.view.quarantined) - {context.me.peer_id}

    @property
    def we_fail(self) -> bool:
        """True if exchanges seem to break because of us."""
        return self._context.me.peer_id in self._excluded.held(self._context.now)

    # ---- exchanges

    def newcomers_broke(self, members: Collection[str], named: Collection[str]) -> bool:
        """Record a broken exchange; return True if newcomers took part, which explains the failure.

        Args:
            members: Peer ids of the exchange's members.
            named: Peers that members saw fail; only the newcomers among them are excluded.
        """
        newcomers = set(members) - self._context.head.recent - {self._context.me.peer_id}
        if newcomers:
            self._suspend_newcomers()
        self._to_the_end(newcomers)
        self.fail(newcomers.intersection(named), Stage.RING)
        return bool(newcomers)

    def _suspend_newcomers(self) -> None:
        """Admit no newcomer for a while."""
        if not self._suspension.held(self._context.now):
            self._suspension.fail(_NEWCOMERS, self._context.now)

    def broke(self, pairs: Collection[Pair], members: int) -> None:
        """Record a broken exchange, and exclude the peers that explain it.

        Two members have no other connection. So if peers other than the second member did not
        answer us at this head either, the exchange broke because of us.

        Args:
            pairs: Connections on which members saw it break; empty if no member saw where.
            members: Number of members of the exchange.
        """
        me, owing = self._context.me.peer_id, {voter.peer_id for voter in self.owing}
        self._pairs = {pair: self._pairs[pair] for pair in self.apart}
        self._pairs |= dict.fromkeys(pairs or [_UNSEEN], self._context.now)
        silent = [(me, peer) for peer in owing if self._owes.get(peer) is not Stage.RING]
        self._broken += [*pairs, *pairs, *silent] if members == 2 else pairs
        found = culprits(self._broken, me)
        self._broken = [pair for pair in self._broken if found.isdisjoint(pair)]
        self.fail(found, Stage.RING)

    def own_alone(self, members: Collection[str]) -> None:
        """Record that members of an exchange had different results.

        An owner of parts, or a member of a ring, must have sent different bytes to them. Until this
        is forgotten, none of these members owns a part in our exchanges, so results that differ
        again show which peer is at fault.
        """
        others = set(members) - {self._context.me.peer_id}
        self._pairs |= dict.fromkeys([(peer, peer) for peer in others], self._context.now)

    @property
    def apart(self) -> list[Pair]:
        """Connections on which an exchange broke recently.

        The next exchange is by parts, where a failure has a witness. If only the connection is at
        fault, both peers succeed in an exchange that does not connect them.
        """
        return [pair for pair, at in self._pairs.items() if self._context.now < at + FORGOTTEN_S]


def culprits(pairs: Iterable[Pair], me: str) -> set[str]:
    """Return the peers that explain these broken connections.

    The peer with the most broken connections (at least two) explains them; then the same is asked
    of the remaining ones. If both ends of a connection have equally many, both are returned,
    because one end may accuse the other falsely. This peer is only returned if no other peer
    explains a connection.
    """
    left, found = list(pairs), set[str]()
    while True:
        named = Counter(peer for pair in left for peer in pair)
        worst = max(named, key=lambda peer: (named[peer], peer != me, peer), default="")
        if named[worst] < 2:
            return found
        near = (peer for pair in left if worst in pair for peer in pair)
        tied = {peer for peer in near if named[peer] == named[worst]}
        found |= tied - {me} or tied
        left = [pair for pair in left if found.isdisjoint(pair)]

"""What a replica remembers of peers that failed it, and what it expects of them from then on.

Peers that do not answer, peers that rings broke on, heads at which nothing is decided, and claims
of better heads. All of it is one replica's own memory and decides only when and with whom to try.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from atom.swarm.chain.commit import Voter
from atom.swarm.chain.membership import is_quorum
from atom.swarm.records.lease import Lease, PeerState, claims_better, preferred
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.electorate import (
    Electorate,
    alive_voters,
    electorate,
    hidden_peers,
    leaves_them_stuck,
    same_head,
)
from atom.training.round.events import CaughtUp, Phase
from atom.training.round.round_state import RoundContext

MUTE_S, LONGEST_MUTE_S = 30.0, 600.0
FIRST_HOLD_S, LONGEST_HOLD_S = 10.0, 600.0
"""How long a peer that spoilt a round's rings stays out of the next rounds'."""
FORGOTTEN_S = 600.0
"""After the last hold has ended: then the next failure is the first again."""
PATIENT_WITH = 2
"""Broken rings of a round, before everybody named is left out."""
HOLD_OUT = 5
"""Times the grace time, what promises take, and a ring: until a head is overdue."""
MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
FIRST_DOUBT_S = 5.0
LONGEST_DOUBT_S = 20.0
_STRANGERS = ""
"""The name under which all strangers together are doubted."""
_MOST_REMEMBERED = 4096
_ORDER = list(Stage)

Accusation = tuple[str, str]
"""By whom, of whom: peer ids, which may be the same."""


class Backoff:
    """Names that are set aside for a time which doubles with each failure in a row."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._failed: dict[str, tuple[int, float]] = {}
        """Name → how often in a row it failed, and until when it is set aside."""

    def fail(self, name: str, now: float) -> None:
        times, until = self._failed.pop(name, (0, now))
        times = times + 1 if now < until + FORGOTTEN_S else 1
        seconds = min(self._first_s * 2.0 ** min(times - 1, 30), self._longest_s)
        self._failed[name] = times, now + seconds
        while len(self._failed) > _MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]

    def forgive(self, name: str) -> None:
        self._failed.pop(name, None)

    def failures(self, name: str) -> int:
        return self._failed.get(name, (0, 0.0))[0]

    def holds(self, name: str, now: float) -> bool:
        """Whether it is set aside."""
        return now < self._failed.get(name, (0, now))[1]

    def held(self, now: float) -> frozenset[str]:
        """All that are."""
        return frozenset([name for name, (_, until) in self._failed.items() if now < until])


class UnresponsivePeers:
    """Peers that gave no answer. What such a peer has counted does not come to the ring: it is not
    counted on until it renews its lease. A peer that lets a coordinator wait in vain is *mute*:
    asked again, but not waited for, for a time that doubles. A fresh lease is no excuse."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._mute = Backoff(MUTE_S, LONGEST_MUTE_S)
        self._unheard: dict[str, int] = {}
        """Peer id → the serial of the lease that it showed when it gave no answer."""

    def new_head(self) -> None:
        self._unheard.clear()

    def silent(self, peers: Iterable[str]) -> None:
        """They gave no answer to what we asked last."""
        fresh = self._context.view.fresh
        self._unheard.update({peer: fresh[peer].serial for peer in peers if peer in fresh})

    def answered(self, peer_id: str) -> None:
        self._mute.forgive(peer_id)

    def after_promises(self, attempt: Attempt, promised: AbstractSet[str]) -> None:
        """All have answered, or the time is over."""
        me, now = self._context.me.peer_id, self._context.now
        late = attempt.expected - promised - {me}  # we wait for our own pass
        self.silent(late)
        for peer in late:
            self._mute.fail(peer, now)

    @property
    def mute(self) -> frozenset[str]:
        """None, if we leave and the others can decide nothing without us: no work of our own is to
        come, so that the round which they need may need that of the mute."""
        context = self._context
        if context.leaving and leaves_them_stuck(
            context.head, context.me, context.view, context.signers
        ):
            return frozenset()
        return self._mute.held(context.now)

    def worth_waiting(self, chosen: Electorate, invited: AbstractSet[str]) -> set[str]:
        """Of those invited, all but the mute; all, if the others could not decide."""
        others = set(invited - self.mute)
        without = chosen.can_do_with(others, self._context.me, self._context.view)
        return others if without else set(invited)

    def counted_on(self, leases: Mapping[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` whose owners will answer, as far as we know."""
        mute = self.mute
        return {
            peer_id: lease
            for peer_id, lease in leases.items()
            if self._unheard.get(peer_id) != lease.serial and peer_id not in mute
        }


class RingFaults:
    """Peers to leave out of rings. A broken ring names two peers of which at least one is at fault:
    the accused is left out of the next ring of this round. When a second ring breaks, the peer that
    is in both pairs is, and the other is forgiven; after that, everybody named. A culprit stays out
    of the next rounds' rings as well, for a time that doubles, while others are there."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._broken: list[frozenset[Accusation]] = []
        """The exchanges of this round that broke: pairs of a member and the peer it saw fail."""
        self._recent: deque[tuple[float, frozenset[Accusation]]] = deque(maxlen=64)
        """The same over all rounds, with the time."""
        self._culprits = Backoff(FIRST_HOLD_S, LONGEST_HOLD_S)
        self._unserved = set[str]()
        """Peers that accepted a value at this head and cannot hand us its result."""

    def new_head(self) -> None:
        for culprit in self._of_this_round():
            self._culprits.fail(culprit, self._context.now)
        self._broken.clear()
        self._unserved.clear()

    def broke(self, found: frozenset[Accusation]) -> None:
        """An exchange of this round broke between these; empty: nobody saw why."""
        self._broken.append(found)
        self._recent.append((self._context.now, found))

    def at_odds(self) -> frozenset[frozenset[str]]:
        """Pairs that an exchange broke between lately. Perhaps neither is bad, and only the way
        between them is: then both do well where they are not connected."""
        pairs = (frozenset(pair) for found in self._lately() for pair in found)
        return frozenset(pair for pair in pairs if len(pair) == 2)

    def unexplained(self) -> bool:
        """Whether an exchange broke lately and nobody saw why: by parts, somebody would."""
        return any(not found for found in self._lately())

    def _lately(self) -> list[frozenset[Accusation]]:
        return [found for at, found in self._recent if self._context.now < at + FORGOTTEN_S]

    def not_served(self, holders: AbstractSet[Voter]) -> None:
        """A result that these have was not to be had from them: they are cut off from us."""
        self._unserved |= {voter.peer_id for voter in holders - {self._context.me}}

    def left_out(self) -> frozenset[str]:
        """Peers that are not to be in the next ring; never ourselves."""
        context, out = self._context, self._of_this_round() | self._unserved
        earlier = out | self._culprits.held(context.now)
        if self._others_than(earlier) or (len(earlier) == 1 and not self._broken):
            out = earlier  # else those are tried once more that failed in earlier rounds only
        at_head = same_head(context.head, context.view)
        working = {peer for peer, lease in at_head.items() if lease.sequences}
        if working and working <= out and not context.view.sequences:
            out = set()  # nobody else has anything to average
        return (frozenset(out) | context.view.aside) - {context.me.peer_id}

    def dispensable(self, chosen: Electorate, invited: AbstractSet[str]) -> frozenset[str]:
        """A peer that is left out need not promise either, unless a quorum needs it. What it has
        accepted meets any quorum of the rest as well, if a quorum has accepted it."""
        context, left_out = self._context, self.left_out()
        without = chosen.can_do_with(invited - left_out, context.me, context.view)
        return left_out if without else frozenset()

    @property
    def our_fault_it_seems(self) -> bool:
        """Whether the rings of this round all broke with us in them and had nobody else in common,
        or several broke so that nobody is left but us."""
        if not self._pairs:
            return False
        alone = len(self._broken) > 1 and not self._others_than(self.left_out())
        return (
            alone
            or self.our_own_word
            or set.intersection(*map(set, self._pairs)) == {self._context.me.peer_id}
        )

    @property
    def our_own_word(self) -> bool:
        """Whether the last ring broke because of us, as we say ourselves."""
        me = self._context.me.peer_id
        return bool(self._broken) and self._broken[-1] == {(me, me)}

    @property
    def promising(self) -> bool:
        """Whether to try again at once: each of the first broken rings leaves somebody out."""
        return len(self._broken) <= PATIENT_WITH + 1

    def _others_than(self, left_out: AbstractSet[str]) -> bool:
        """Whether anybody else is at this head."""
        return not left_out >= same_head(self._context.head, self._context.view).keys()

    @property
    def _pairs(self) -> list[Accusation]:
        return [pair for found in self._broken for pair in sorted(found)]

    def _of_this_round(self) -> set[str]:
        """A few peers that explain all pairs; after many pairs, everybody named."""
        me = self._context.me.peer_id
        if len(self._broken) > PATIENT_WITH:
            return {peer for pair in self._pairs for peer in pair} - {me}
        found, left = set[str](), list(self._pairs)
        while named := Counter(peer for pair in left for peer in {*pair} - {me}):
            accused = Counter(accused for _, accused in left)
            culprit = max(named, key=lambda peer: (named[peer], accused[peer], peer))
            found.add(culprit)
            left = [pair for pair in left if culprit not in pair]
        return found


class StallDetector:
    """Says when our head is overdue, and whom to go on without. Leases may show a quorum that never
    decides: its members cannot reach each other, or not us. Nobody waits for that for ever. It
    costs a branch, which a quorum's round beats whenever it comes."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._ticked_at = context.now
        self._stalled_s = 0.0
        """How long it could have been decided and was not, as far as we can tell."""
        self._failed: dict[Voter, Stage] = {}
        """Voters that gave no answer to an attempt of ours, and at which stage."""

    def new_head(self) -> None:
        self._stalled_s = 0.0
        self._failed.clear()

    def tick(self, cause: bool, leading: bool) -> None:
        """`cause`: there is something to decide. Time in which we looked away does not count, nor
        does any while we see nobody (for the silent there is the grace time), nor that of a ring,
        ours or the others': it makes progress, or ends by limits of its own."""
        context, passed = self._context, self._context.now - self._ticked_at
        self._ticked_at = context.now
        engaged = leading or context.phase in (Phase.PROMISED, Phase.HOLDING)
        if not context.view.fresh or passed > context.patience.thaw_gap or not (cause or engaged):
            return
        if context.phase is Phase.REDUCING or (not engaged and self._others_average()):
            return
        self._stalled_s += passed
        least_s = HOLD_OUT * (context.patience.grace + context.ring_s)
        if self._stalled_s >= 0.5 * least_s:
            limit_s = least_s + HOLD_OUT * context.promise_patience()
            before, context.state.overdue = context.state.overdue, self._stalled_s / limit_s
            if before < 1.0 <= context.state.overdue:
                names = sorted(voter.peer_id for voter in self.given_up())
                context.report("held-up", seconds=round(self._stalled_s), given_up=names)

    def _others_average(self) -> bool:
        context = self._context
        averaging = {
            Voter(lease.peer_id, lease.incarnation)
            for voter in context.head.voters
            if (lease := context.view.fresh.get(voter.peer_id)) is not None
            and (lease.state, lease.head) == (PeerState.REDUCING, context.head.digest)
        }
        return is_quorum(context.head.voters, averaging)

    def learn(self, attempt: Attempt) -> None:
        """An attempt of ours ended in vain: which of its electors owe us the stage it ended at? A
        peer that refused has answered. Survivors that do not agree to go on without the given up
        perhaps know better: then all are asked once more."""
        present, me = attempt.present(), self._context.me
        if attempt.electorate.survivors:
            self._failed.clear()
        for voter in present:
            self.forgive(voter, attempt.stage)
        owing = set(attempt.electorate.voters) - present
        if attempt.stage is Stage.ACCEPT and me not in present:
            # For want of the result: others that could not vote either are not to blame.
            assert attempt.value is not None
            owing = attempt.holders(attempt.value.result_digest)
        for voter in owing - {me}:
            if voter.peer_id not in attempt.refused:
                self._failed[voter] = attempt.stage

    def forgive(self, voter: Voter, stage: Stage) -> None:
        """It did at last what it is asked for at this stage."""
        at = self._failed.get(voter)
        if at is not None and _ORDER.index(at) <= _ORDER.index(stage):
            del self._failed[voter]

    def chosen(self) -> Electorate | None:
        """Whom to ask for the next commit."""
        context = self._context
        return electorate(
            context.head,
            context.me,
            context.view,
            context.patience.grace,
            context.terms.branches,
            self.given_up(),
        )

    def given_up(self) -> frozenset[Voter]:
        """Voters on whom nothing depends any more: of an overdue head those that failed us, those
        at another head, and all of them for a peer that may not lead itself."""
        context = self._context
        if context.patience_lost < 1.0:
            return frozenset()
        here = same_head(context.head, context.view)
        alive = alive_voters(context.head, context.me, context.view) - {context.me}
        elsewhere = {voter for voter in alive if voter.peer_id not in here}
        led_by_others = alive if context.me not in context.head.voters else set()
        return frozenset(elsewhere | led_by_others | self._failed.keys())


class HeadCandidates:
    """Which leases that claim a better head are worth leaving the round for.

    A claim proves nothing until the chain behind it was fetched. So voters and last members are
    asked before strangers, and a peer that could not help is left alone for a time that doubles.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asked: tuple[str, ...] = ()

    def better(self) -> list[str]:
        """Peer ids whose leases claim a preferred head, in the order to ask them."""
        head = self._context.head
        found = [lease for lease in self._context.view.fresh.values() if self.believes(lease)]
        if self._context.me.peer_id in head.known and self._is_doubted(_STRANGERS):
            found = [lease for lease in found if lease.peer_id in head.known]
        ranked = [lease.peer_id for lease in preferred(found, head)]
        return self._in_turn(ranked)

    def donors(self, claimants: list[str]) -> tuple[str, ...]:
        """Whom of them to ask now."""
        self._asked = tuple(claimants[:MOST_DONORS])
        return self._asked

    def any_state(self) -> tuple[str, ...]:
        """Whom to ask for a peer that has no state at all. A peer that is aside or doubted will do
        if nobody else offers one: what it serves is checked like everything else."""
        view = self._context.view
        ranked = preferred(view.fresh.values(), self._context.head)
        offering = [lease.peer_id for lease in ranked if lease.state_digest]
        trusted = [peer for peer in offering if peer not in view.aside] or offering
        ready = [peer for peer in trusted if not self._is_doubted(peer)]
        return self.donors(self._in_turn(ready or trusted))

    def _in_turn(self, ranked: list[str]) -> list[str]:
        """Those we know first, then those that failed us least often: a crowd that claims the most
        hides nobody for ever. Those that cannot be dialled come last: perhaps we have no line."""
        known, hidden = self._context.head.known, hidden_peers(self._context.view)
        return sorted(ranked, key=lambda p: (p not in known, self._doubts.failures(p), p in hidden))

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them."""
        for peer in (*event.failed, *event.shunned):
            self._doubts.fail(peer, self._context.now)
        if event.head.digest != self._context.head.digest:
            for peer in (_STRANGERS, *self._asked):
                self._doubts.forgive(peer)
        elif self._asked and not self._context.head.known.intersection(self._asked):
            self._doubts.fail(_STRANGERS, self._context.now)
        self._asked = ()

    def believes(self, lease: Lease) -> bool:
        """Whether it claims a preferred head, and its owner is not doubted. From any thread."""
        if not claims_better(lease, self._context.head):
            return False
        return not self._is_doubted(lease.peer_id) and lease.peer_id not in self._context.view.aside

    def _is_doubted(self, peer: str) -> bool:
        return self._doubts.holds(peer, self._context.now)

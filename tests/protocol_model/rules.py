"""Rules of the code that runs in the daemon: quorums, electorates, slots, values to finish, next
voters. A mutant overrides one of these rules."""

from functools import cache
from itertools import chain, combinations

from atom.swarm.chain.commit import MemberCount
from atom.swarm.chain.messages import Accepted as RealAccepted
from atom.swarm.chain.messages import Promise
from atom.swarm.chain.succession import Evidence, next_voters
from atom.swarm.records.lease import Lease
from atom.training.round.attempt import value_to_finish
from atom.training.round.electorate import Electorate, electorate
from atom.training.round.round_state import Acceptor
from tests.training.round.shown_leases import lease, view

from . import cast
from .cast import BallotKey, VoterKey
from .ledger import Ledger
from .state import (
    ALIVE,
    LEFT,
    Accepted,
    Attempt,
    Peer,
    Peers,
    Promised,
    Slot,
    Survivors,
    Voters,
)

Slotted = tuple[Slot, ...]
GRACE_SECONDS = 12.0
Seen = tuple[tuple[int, int, int], ...]
"""Leases: peer, incarnation, head."""


class Rules:
    """The protocol as it is."""

    def __init__(self, ledger: Ledger, branches: bool) -> None:
        """`branches`: silence for the grace time may found a branch (`survivors = "branch"`)."""
        self.ledger = ledger
        self._branches = branches
        self._electorates: dict[tuple, tuple[Survivors, ...]] = {}

    # ---- who decides

    def decides(self, a: Attempt, present: Voters, peers: Peers) -> bool:
        """Return True if the present peers are enough for that attempt. `peers` only matters to
        mutants."""
        return _decides(self.ledger.electors(a), a.survivors, present)

    def certified(self, a: Attempt) -> bool:
        """Return True if replicas would take the commit."""
        return self.ledger.certified(a)

    def votes(self, a: Attempt, who: VoterKey) -> bool:
        """Return True if ACCEPT is for `who`, and its vote counts."""
        return who in self.ledger.electors(a)

    def electorates(self, head: int, me: VoterKey, peers: Peers) -> tuple[Survivors, ...]:
        """All that `me` may take for the electorate, whatever part of the living it sees."""
        alive, gone = others_alive(me, peers), self.gone(head, peers)
        key = head, me, alive, gone
        if key not in self._electorates:
            views = chain.from_iterable(combinations(alive, n) for n in range(len(alive) + 1))
            found = {self.electorate(head, me, seen, gone) for seen in views}
            self._electorates[key] = tuple(sorted(e for e in found if e is not None))
        return self._electorates[key]

    def gone(self, head: int, peers: Peers) -> Voters:
        """Voters of that head that are confirmed dead."""
        return tuple(v for v in self.ledger.heads[head].voters if is_confirmed_dead(v, peers))

    def electorate(self, head: int, me: VoterKey, seen: Seen, gone: Voters) -> Survivors | None:
        """Return the peers that `me` asks if it sees only these leases for the grace time:
        survivors, empty for a quorum of the voters, None for no peer yet."""
        record = self.ledger.heads[head]
        shown = view(
            *(self._lease(*each) for each in seen),
            silent=dict.fromkeys(cast.voters(record.voters), GRACE_SECONDS),
            dead=cast.voters(gone),
        )
        chosen = electorate(record.head, cast.voter(me), shown, GRACE_SECONDS, self._branches)
        return None if chosen is None else tuple(cast.key_of(v) for v in chosen.survivors)

    def _lease(self, peer: int, incarnation: int, head: int) -> Lease:
        real = self.ledger.heads[head].head
        voter, branches = cast.voter((peer, incarnation)), tuple(real.branches)
        return lease(voter, real.digest, round=real.round, branches=branches)

    # ---- what binds an acceptor

    def slot_of(self, survivors: Survivors) -> Survivors:
        """Return the slot in which an attempt of these survivors is promised and accepted."""
        return survivors

    def promise(self, slots: Slotted, survivors: Survivors, ballot: BallotKey) -> Slotted | None:
        """The slots with that promise in them; None if it is refused."""
        return _promised(slots, self.slot_of(survivors), ballot)

    def accept(
        self, slots: Slotted, survivors: Survivors, ballot: BallotKey, value: int
    ) -> Slotted | None:
        """The slots with that value accepted; None if it may not be."""
        return _accepted(slots, self.slot_of(survivors), ballot, value)

    def takes_part(self, peer: Peer, head: int) -> bool:
        """Return True if a call at that head concerns this peer."""
        return peer.head == head

    # ---- what is proposed

    def to_finish(self, promises: tuple[Promised, ...]) -> int | None:
        """The value that these promises oblige to finish."""
        return _to_finish(promises)

    def voters_next(
        self, head: int, survivors: Survivors, members: Voters, leaving: frozenset[int]
    ) -> tuple:
        """Return the real electorate after a round of these members, with its absences."""
        counts = [MemberCount(v.peer_id, v.incarnation, 1, 1.0) for v in cast.voters(members)]
        leavers = {cast.voter((peer, 0)).peer_id for peer in leaving}
        real = self.ledger.heads[head].head
        leader = "another one each time"  # so each absence counts, as if voters led in turn
        return next_voters(real, cast.voters(survivors), counts, frozenset(), leavers, leader)

    # ---- which chain

    def prefers(self, one: int, other: int) -> bool:
        heads = self.ledger.heads
        return heads[one].head.prefers(heads[other].head)

    # ---- gradients, results, states

    def offers_what_it_accepted(self) -> bool:
        """Return True if others can fetch the result of a value before any peer has stepped with
        it."""
        return True

    def tag_after_fetch(self, tag: int, head: int) -> int:
        return head

    def result_applied(self, peer: Peer, value: int) -> int:
        """The value whose result a step on `value` really takes."""
        return value


@cache
def _decides(electors: Voters, survivors: Survivors, present: Voters) -> bool:
    real = Electorate(cast.voters(electors), cast.voters(survivors))
    return real.satisfied_by(set(cast.voters(present)))


def others_alive(me: VoterKey, peers: Peers) -> Seen:
    return tuple(
        (q, peer.incarnation, peer.head)
        for q, peer in enumerate(peers)
        if peer.status == ALIVE and q != me[0]
    )


def is_confirmed_dead(voter: VoterKey, peers: Peers) -> bool:
    """Said goodbye, or lives on as another incarnation: what `View.dead` truthfully holds."""
    peer = peers[voter[0]]
    return peer.status == LEFT or (peer.status == ALIVE and peer.incarnation != voter[1])


# ---- the real acceptor, asked with the model's tuples: it only compares ballots and keeps values


@cache
def _promised(slots: Slotted, which: Survivors, ballot: BallotKey) -> Slotted | None:
    real = _thaw(slots)
    return _frozen(real) if real.promise(which, ballot) else None


@cache
def _accepted(slots: Slotted, which: Survivors, ballot: BallotKey, value: int) -> Slotted | None:
    real = _thaw(slots)
    if real.survivors_of(ballot) != which:
        return None
    real.accept(ballot, value, Evidence())
    return _frozen(real)


@cache
def highest_promised(slots: Slotted) -> BallotKey | tuple[()]:
    return _thaw(slots).highest_promised or ()


def accepted_in(slots: Slotted, which: Survivors) -> Accepted:
    return next((slot[2] for slot in slots if slot[0] == which), ())


def _thaw(slots: Slotted) -> Acceptor:
    real = Acceptor()
    for which, promised, accepted in slots:
        if promised:
            real.promised[which] = promised
        if accepted:
            real.accepted[which] = RealAccepted(*accepted, Evidence())
    return real


def _frozen(real: Acceptor) -> Slotted:
    accepted = {which: (each.ballot, each.value) for which, each in real.accepted.items()}
    slots = real.promised.keys() | accepted
    return tuple(
        sorted((which, real.promised.get(which, ()), accepted.get(which, ())) for which in slots)
    )


@cache
def _to_finish(promises: tuple[Promised, ...]) -> int | None:
    real = {cast.voter(p.voter): _real_promise(p) for p in promises}
    accepted = value_to_finish(real)
    return None if accepted is None else accepted.value


def _real_promise(promised: Promised) -> Promise:
    before, after = promised.before_branch, promised.accepted
    return Promise(
        parent=b"",
        ballot=(),
        accepted=RealAccepted(*after, Evidence()) if after else None,
        accepted_before_branch=RealAccepted(*before, Evidence()) if before else None,
        sequences=1,
        loss_sum=1.0,
        state_digest=b"",
        leaving=promised.leaving,
        signature=b"",
    )

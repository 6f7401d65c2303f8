"""Record of one attempt at a round, and pure functions for the decisions of its coordinator."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import IntEnum

from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount, Value, Vote, Voter, standing
from atom.swarm.chain.messages import Accepted, Promise, Vouched
from atom.swarm.chain.succession import Evidence, next_voters
from atom.swarm.exchange.choice import Choice, choose, line_rates
from atom.swarm.records.lease import MOST_PUNCHED, Lease, Link, short_name
from atom.training.round.electorate import Electorate
from atom.training.round.events import View

Pair = tuple[str, str]
"""Connection between two peers, by peer id, the lower id first."""


class Stage(IntEnum):
    """Stages of an attempt, in order; an answer at a stage also clears debts of earlier stages."""

    PREVOTE = 0
    PREPARE = 1
    RING = 2
    ACCEPT = 3


@dataclass
class Attempt:
    """Attempt to decide the round: the peers that were asked, their answers, and the deadline."""

    electorate: Electorate
    stage: Stage
    deadline: float
    """End of this stage; infinite for an exchange until it breaks or gives us its result."""
    ballot: Ballot | None = None
    invited: set[str] = field(default_factory=set)
    """Peers whose promise counts."""
    expected: set[str] = field(default_factory=set)
    """Peers whose promise is waited for, even if there is a quorum without it."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Sequences that leases showed when the peers were called, by peer id."""
    agreeable: set[Voter] = field(default_factory=set)
    """Voters that answered the pre-vote with yes."""
    promises: dict[Voter, Promise] = field(default_factory=dict)
    answered: dict[str, Voter] = field(default_factory=dict)
    """First process of each peer that promised, by peer id: later ones are ignored."""
    refused: set[str] = field(default_factory=set)
    """Peers that refused, or cannot be reached."""
    members: tuple[MemberCount, ...] = ()
    shares: tuple[int, ...] = ()
    """Relative size of the part that each member sums; empty: the members form a ring."""
    averages_since: float = 0.0
    """Time at which the exchange was called for."""
    testimonies: dict[str, str] = field(default_factory=dict)
    """Peer that each member saw fail in the broken exchange, by the member's peer id."""
    vouched: dict[Voter, Vouched] = field(default_factory=dict)
    """Value that each voter vouched for at this ballot."""
    value: Value | None = None
    evidence: Evidence = field(default_factory=Evidence)
    vouched_at: Ballot | None = None
    """Ballot at which a quorum vouched for the value; None while none has."""
    votes: dict[Voter, bytes] = field(default_factory=dict)

    def broken_pairs(self, me: str) -> set[Pair]:
        """Return the connections on which members saw the exchange fail.

        A member that blames itself is paired with itself, and so is a member that names no other
        member while our own exchange goes on.

        Args:
            me: Peer id of the coordinator.
        """
        members = {member.peer_id for member in self.members}
        words = dict(self.testimonies)
        if me not in words:
            words = {peer: other if other in members else peer for peer, other in words.items()}
        return {(min(pair), max(pair)) for pair in filter(members.issuperset, words.items())}

    # ---- answers

    def take(self, sender: Voter, promise: Promise) -> bool:
        """Record a promise; return False if another process of that peer promised before."""
        if self.answered.setdefault(sender.peer_id, sender) != sender:
            return False
        self.promises[sender] = promise
        return True

    def leave_out(self, excluded: AbstractSet[str]) -> None:
        """Drop the promises of these peers if the others are a quorum without them."""
        rest = {voter: p for voter, p in self.promises.items() if voter.peer_id not in excluded}
        if self.electorate.satisfied_by(set(rest)):
            self.promises = rest

    def owing(self, me: Voter, view: View) -> set[str]:
        """Return the peers that are present and did not do what this stage asks for in time.

        A peer that refused has answered. In the last stage, our own missing vote means that the
        peers with the result did not deliver it.
        """
        there = {Voter(i, lease.incarnation) for i, lease in view.fresh.items()}
        voters, owing = there.intersection(self.electorate.voters), set[str]()
        if self.stage is Stage.PREVOTE:
            owing = {voter.peer_id for voter in voters - self.agreeable}
        elif self.stage is Stage.PREPARE:
            owing = self.expected | ({v.peer_id for v in voters} if not self.decidable() else set())
            owing -= self.answered.keys()
        elif self.stage is Stage.RING:
            owing = {voter.peer_id for voter in voters & self.awaited()}
        elif me in self.votes:
            owing = {voter.peer_id for voter in voters - self.votes.keys()}
        elif me in self.vouched:
            owing = {voter.peer_id for voter in voters & self.awaited()}
        elif self.value is not None:
            owing = self.holders(self.value.result_digest)
        return owing - self.refused - {me.peer_id}

    def is_complete(self) -> bool:
        """Return True if no more promises are waited for: with a quorum, only expected ones are."""
        if len(self.answered) + len(self.refused) < len(self.expected):
            return False  # a cheap check first, because every promise calls this method
        coming = self.invited - self.answered.keys() - self.refused
        return not (coming & self.expected if self.decidable() else coming)

    def decidable(self) -> bool:
        """Return True if enough voters have promised to decide the round."""
        return self.electorate.satisfied_by(set(self.promises))

    def overstated(self) -> set[str]:
        """Return the peers that promised less work than their leases claimed, or refused.

        The count of an honest peer only grows.
        """
        promised = {voter.peer_id: each.sequences for voter, each in self.promises.items()}
        answered = self.claimed.keys() & (self.answered.keys() | self.refused)
        return {peer for peer in answered if promised.get(peer, 0) < self.claimed[peer]}

    # ---- the exchange's members

    def contributors(
        self, me: str, excluded: AbstractSet[str], head: Head, most: int
    ) -> tuple[MemberCount, ...]:
        """Return the members of the exchange, in an order that depends on the head.

        Members are all peers that promised work, except excluded ones; the coordinator, which has
        to know the result; and as many other voters as a quorum lacks, because a quorum has to
        vouch for the result: idle voters first, then excluded ones. Other idle voters fetch it.

        Args:
            me: Peer id of the coordinator.
            excluded: Peer ids that do not take part, unless no quorum would.
            head: Head that the exchange follows.
            most: Members at most. Voters come first, then peers with tenure, then larger counts.
        """
        able = {v for v in self.promises if v.peer_id not in excluded}
        working = {v for v in able if self.promises[v].sequences > 0 or v.peer_id == me}
        members = working | self._lacking(working, able)
        counts = [
            MemberCount(v.peer_id, v.incarnation, p.sequences, p.loss_sum)
            for v in standing(members, head.digest)
            for p in [self.promises[v]]
        ]
        voters, tenured = {v.peer_id for v in self.electorate.voters}, head.tenured
        ranked = sorted(
            (c.peer_id != me, c.peer_id not in voters, c.peer_id not in tenured, -c.sequences, n)
            for n, c in enumerate(counts)
        )
        chosen = {place for *_, place in ranked[:most]}
        return tuple(count for place, count in enumerate(counts) if place in chosen)

    def _lacking(self, working: set[Voter], able: set[Voter]) -> set[Voter]:
        others = [v for v in self.electorate.voters if v in self.promises and v not in working]
        lacking = set[Voter]()
        for voter in sorted(others, key=lambda voter: voter not in able):
            if self.electorate.satisfied_by(working | lacking):
                break
            lacking.add(voter)
        return lacking

    # ---- the value

    def awaited(self) -> set[Voter]:
        """Return the voters that have not vouched for any value at this ballot.

        In an exchange only its members can vouch; if an older value is finished, all voters can.
        """
        able = {member.voter for member in self.members} or self.electorate.voters
        return set(self.electorate.voters).intersection(able) - self.vouched.keys()

    def with_other_results(self, me: Voter) -> set[str]:
        """Return the voters that vouched for another value than this process did."""
        ours = self.vouched.get(me)
        if ours is None:
            return set()
        return {v.peer_id for v, each in self.vouched.items() if each.value != ours.value}

    def sole_owner(self) -> str:
        """Return the peer that summed all parts; empty in a ring or if several peers did."""
        pairs = zip(self.members, self.shares, strict=False)
        owners = [member.peer_id for member, share in pairs if share]
        return owners[0] if len(owners) == 1 else ""

    def call(self, head: Head, members: tuple[MemberCount, ...]) -> tuple[Voter, ...]:
        """Set the exchange's members, collect the evidence, and return the next round's voters.

        Args:
            head: Head that the exchange follows.
            members: Members of the exchange, all of which have promised.
        """
        assert self.ballot is not None
        self.members, them = members, {member.voter for member in members}
        idle = {v for v in self.electorate.voters if v in self.promises and v not in them}
        idle = {voter for voter in idle if not self.promises[voter].sequences}
        leaving = {voter.peer_id for voter in them | idle if self.promises[voter].leaving}
        self.evidence = Evidence(
            promises=tuple(self.promises[member.voter].signature for member in members),
            idle=tuple(Vote(voter, self.promises[voter].signature) for voter in sorted(idle)),
            leaving=tuple(sorted(leaving)),
        )
        leader = self.ballot.coordinator
        return next_voters(head, self.electorate.survivors, members, idle, leaving, leader)

    def certify(self, value: Value | None) -> bool:
        """Set the value to propose if enough voters vouched for it; return True if so.

        Args:
            value: Value of our exchange, or accepted value to finish; None if its result is not
                here yet.
        """
        named = value and value.digest()
        votes = {v: each.signature for v, each in self.vouched.items() if each.value == named}
        if not self.electorate.satisfied_by(votes.keys()):
            return False
        self.value, self.vouched_at = value, self.ballot
        vouched = tuple(Vote(voter, votes[voter]) for voter in sorted(votes))
        self.evidence = replace(self.evidence, vouched=vouched)
        return True

    def finish(self, head: Head, accepted: Accepted) -> None:
        """Set the value to propose to a value that was accepted before.

        In a branch attempt the value becomes the survivors' branch: its result stays the same, and
        it records that no quorum decided it.
        """
        value, survivors = accepted.value, self.electorate.survivors
        if value.survivors != survivors:
            idle = {vote.voter for vote in accepted.evidence.idle}
            leaving = set(accepted.evidence.leaving)
            members, leader = value.contributions, value.origin.coordinator
            voters = next_voters(head, survivors, members, idle, leaving, leader)
            value = replace(value, voters_next=voters, survivors=survivors)
        self.value, self.evidence, self.vouched_at = value, accepted.evidence, accepted.ballot

    def to_finish(self) -> Accepted | None:
        """Return the accepted value that this attempt must finish; None if there is none."""
        voters = self.electorate.voters
        return value_to_finish({v: p for v, p in self.promises.items() if v in voters})

    def holders(self, result_digest: bytes) -> set[str]:
        """Return the voters that accepted a value with this result, and so have the result."""
        return {
            voter.peer_id
            for voter in self.electorate.voters
            if (promise := self.promises.get(voter)) is not None
            for accepted in (promise.accepted, promise.accepted_before_branch)
            if accepted is not None and accepted.value.result_digest == result_digest
        }

    def commit(self) -> Commit:
        """Return the value with the voters' signatures."""
        assert self.ballot is not None
        assert self.value is not None
        votes = tuple(Vote(voter, self.votes[voter]) for voter in sorted(self.votes))
        return Commit(self.value, self.ballot, votes)


def value_to_finish(promises: Mapping[Voter, Promise]) -> Accepted | None:
    """Return the accepted value with the highest ballot among the promises: it must be finished.

    In a branch attempt, values that were accepted in this branch come first. Otherwise it is a
    value that survivors accepted in the ordinary round, because missing voters may have committed
    this value.
    """
    own = [p.accepted for p in promises.values() if p.accepted is not None]
    before = [
        p.accepted_before_branch for p in promises.values() if p.accepted_before_branch is not None
    ]
    return max(own or before, key=lambda accepted: accepted.ballot, default=None)


def odd_states_out(states: Mapping[Voter, bytes], electors: Sequence[Voter]) -> set[Voter]:
    """Return the peers whose state digest differs from the electors' most common one.

    Peers at the same head must have the same bytes, so a peer with another state fetches it again.
    Only electors count: many free identities could otherwise make honest peers fetch a state that
    the attacker offers. In a tie, the digest of the first elector wins. At least one elector's
    digest must be known.
    """
    held = [states[voter] for voter in electors if voter in states]
    best = max(held, key=held.count)
    return {voter for voter, state in states.items() if state != best}


def state_is_odd(states: Mapping[Voter, bytes], electors: Sequence[Voter], mine: bytes) -> bool:
    """Return True if the electors' own digests confirm that `mine` is not the run's.

    More than half of the electors have to show one other digest, so a single liar is not enough.
    Otherwise all electors must be visible: then the most common digest decides.

    Args:
        states: State digests at our head, of the electors that show one.
        electors: Voters of the head, or the survivors of a branch.
        mine: Digest of our own state.
    """
    held = [states[voter] for voter in electors if voter in states]
    if not held:
        return False
    best = max(held, key=held.count)
    return best != mine and (2 * held.count(best) > len(electors) or len(held) == len(electors))


# ---- the exchange


def choose_exchange(
    members: Sequence[MemberCount],
    view: View,
    average_bytes: int,
    ring_possible: bool,
    apart: Collection[Pair],
    tenured: AbstractSet[str],
) -> Choice:
    """Choose whether the members of an attempt average in a ring or by parts, and the parts' sizes.

    A member without tenure is in no ring and owns no part, so it cannot change the contributions of
    other members. Members that cannot be dialled own parts only if each of them is steady, since
    other members then connect to them by punching, and if at most `MOST_PUNCHED` members are there.
    Leases describe the lines; they are hints, so the choice may be slow, never wrong.

    Args:
        members: Members of the exchange.
        view: Leases of all peers, with the links that they measured.
        average_bytes: Size of one average on the wire.
        ring_possible: True if a ring may be chosen.
        apart: Connections on which an exchange broke recently; neither end owns a part.
        tenured: Peer ids with tenure.
    """
    peers = [member.peer_id for member in members]
    links = _links(peers, view.leases)
    round_trips = [link.round_trip_s for link in links.values()]
    latency_s = statistics.median_low(round_trips) / 2 if round_trips else None
    rates = {pair: link.bytes_per_s for pair, link in links.items()}
    slow = line_rates({pair: rate for pair, rate in rates.items() if math.isfinite(rate)})
    unsteady = view.unsteady.intersection(peers) or len(peers) > MOST_PUNCHED
    undialled = view.undialled if unsteady else set[str]()
    owners = _able_to_own(members, undialled, apart, tenured)
    lines, may_own = [slow.get(peer) for peer in peers], [peer in owners for peer in peers]
    ring_possible = ring_possible and tenured >= set(peers)
    return choose(lines, may_own, average_bytes, latency_s, ring_possible)


def _able_to_own(
    members: Sequence[MemberCount],
    undialled: set[str],
    apart: Collection[Pair],
    tenured: AbstractSet[str],
) -> set[str]:
    """Return the members that may own a part; all other members connect to an owner.

    An owner has tenure, is not `undialled`, has no broken connection to another member, and has
    work to contribute. If no member meets all conditions, the last conditions are dropped first. If
    no member has tenure (peers without it opened a branch), tenure is not required.
    """
    together = {member.peer_id for member in members}
    peers = together & tenured or together
    broken = {peer for pair in apart if together.issuperset(pair) for peer in pair}
    idle = {member.peer_id for member in members if not member.sequences}
    able = [peers - undialled - broken - idle, peers - undialled - broken, peers - undialled, peers]
    return next(filter(None, able))


def _links(peers: Collection[str], leases: Mapping[str, Lease]) -> dict[tuple[str, str], Link]:
    """Return the links between these peers that they measured, by sender and receiver."""
    names = {short_name(peer): peer for peer in peers}
    return {
        (peer_id, names[link.peer]): link
        for peer_id, lease in leases.items()
        if peer_id in names.values()
        for link in lease.links
        if link.peer in names and names[link.peer] != peer_id
    }

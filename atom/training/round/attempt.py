"""A coordinator's notebook for one ballot, and the decisions taken from it. Pure."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import IntEnum

from atom.swarm.chain.commit import (
    Ballot,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    standing,
    voters_next,
)
from atom.swarm.chain.messages import Accepted, Promise
from atom.swarm.exchange.choice import Choice, choose, line_rates
from atom.swarm.records.lease import Lease, Link, short_name
from atom.training.round.electorate import Electorate
from atom.training.round.events import View

Way = tuple[str, str]
"""Between two peers, by peer id, the lower one first."""


class Stage(IntEnum):
    """In their order. Who does what one asks for could do what those before it asked for."""

    PREVOTE = 0
    PREPARE = 1
    RING = 2
    ACCEPT = 3


@dataclass
class Attempt:
    """One try to decide the round: who was asked, who answered what, until when we wait."""

    electorate: Electorate
    stage: Stage
    deadline: float
    """Of this stage; an exchange has one once it broke."""
    ballot: Ballot | None = None
    invited: set[str] = field(default_factory=set)
    """Peers whose promise counts."""
    expected: set[str] = field(default_factory=set)
    """Peers whose promise we wait for, even where there is a quorum without it."""
    agreeable: set[Voter] = field(default_factory=set)
    """Voters that answered the pre-vote with yes."""
    promises: dict[Voter, Promise] = field(default_factory=dict)
    answered: dict[str, Voter] = field(default_factory=dict)
    """Who promised under which peer id: one process of each peer, the first that did."""
    refused: set[str] = field(default_factory=set)
    """Who said no, or cannot be reached, by peer id."""
    members: tuple[MemberCount, ...] = ()
    shares: tuple[int, ...] = ()
    """Of each member, the part that it sums; empty: they average in a ring."""
    testimonies: dict[str, str] = field(default_factory=dict)
    """Whom members saw fail in the broken exchange, by peer id."""
    value: Value | None = None
    votes: dict[Voter, bytes] = field(default_factory=dict)

    def broken_ways(self) -> set[Way]:
        """Between which peers members saw the exchange fail. Of one that blames itself: itself."""
        members = {member.peer_id for member in self.members}
        pairs = filter(members.issuperset, self.testimonies.items())
        return {(min(pair), max(pair)) for pair in pairs}

    def take(self, sender: Voter, promise: Promise) -> bool:
        """Notes a promise; False if another process of that peer was before it."""
        if self.answered.setdefault(sender.peer_id, sender) != sender:
            return False
        self.promises[sender] = promise
        return True

    def leave_out(self, aside: AbstractSet[str]) -> None:
        """What these promised counts only where there is no quorum without it."""
        rest = {voter: p for voter, p in self.promises.items() if voter.peer_id not in aside}
        if self.electorate.satisfied_by(set(rest)):
            self.promises = rest

    def owing(self, me: Voter, view: View) -> set[str]:
        """Who is there and did not do what is asked for at this stage, when its time is over. Who
        refused has answered; and what we lack is only our own pass."""
        there = {Voter(i, lease.incarnation) for i, lease in view.fresh.items()}
        voters, owing = there.intersection(self.electorate.voters), set[str]()
        if self.stage is Stage.PREVOTE:
            owing = {voter.peer_id for voter in voters - self.agreeable}
        elif self.stage is Stage.PREPARE:
            owing = self.expected | ({v.peer_id for v in voters} if not self.decidable() else set())
            owing -= self.answered.keys()
        elif self.stage is Stage.ACCEPT and me in self.votes:
            owing = {voter.peer_id for voter in voters - self.votes.keys()}
        elif self.value is not None:  # the result is not here: who has it did not give it
            owing = self.holders(self.value.result_digest)
        return owing - self.refused - {me.peer_id}

    def is_complete(self) -> bool:
        """Whether to wait for no more promises: where there is a quorum, of those expected."""
        if len(self.answered) + len(self.refused) < len(self.expected):
            return False  # told soon: each of a thousand promises asks
        coming = self.invited - self.answered.keys() - self.refused
        return not (coming & self.expected if self.decidable() else coming)

    def decidable(self) -> bool:
        return self.electorate.satisfied_by(set(self.promises))

    def contributors(
        self, me: str, left_out: AbstractSet[str], salt: bytes, most: int
    ) -> tuple[MemberCount, ...]:
        """Who averages: all that promised work but those left out, in the order that `salt` deals;
        the coordinator, which has to know the result; and as many idle voters as a quorum lacks,
        since a result that a slow line has to fetch may not be there in time to vote. Other idle
        voters fetch it. Of more than `most` members: those that counted most.
        """
        able = [voter for voter in standing(self.promises, salt) if voter.peer_id not in left_out]
        working = {v for v in able if self.promises[v].sequences > 0 or v.peer_id == me}
        members = working | self._idle_but_needed(working, able)
        parts = [
            MemberCount(v.peer_id, v.incarnation, p.sequences, p.loss_sum)
            for v in able
            if v in members
            for p in [self.promises[v]]
        ]
        by_work = sorted(parts, key=lambda p: (p.peer_id != me, p.sequences > 0, -p.sequences))
        chosen = {part.peer_id for part in by_work[:most]}
        return tuple(part for part in parts if part.peer_id in chosen)

    def _idle_but_needed(self, working: set[Voter], able: Sequence[Voter]) -> set[Voter]:
        needed = set[Voter]()
        for voter in standing(self.electorate.voters):
            if self.electorate.satisfied_by(working | needed):
                break
            if voter in able and voter not in working:
                needed.add(voter)
        return needed

    def to_finish(self) -> Accepted | None:
        """What has to be finished. Only those that decide have accepted anything."""
        voters = self.electorate.voters
        return value_to_finish({v: p for v, p in self.promises.items() if v in voters})

    def holders(self, result_digest: bytes) -> set[str]:
        """Electors that accepted a value with this result, and so have the result."""
        return {
            voter.peer_id
            for voter in self.electorate.voters
            if (promise := self.promises.get(voter)) is not None
            for accepted in (promise.accepted, promise.accepted_before_branch)
            if accepted is not None and accepted.value.result_digest == result_digest
        }

    def commit(self) -> Commit:
        """The certificate of what was voted for."""
        assert self.ballot is not None
        assert self.value is not None
        votes = tuple(Vote(voter, self.votes[voter]) for voter in sorted(self.votes))
        return Commit(self.value, self.ballot, votes)

    def voters_next(self, members: Sequence[Voter], dead: AbstractSet[Voter]) -> tuple[Voter, ...]:
        """Who decides after the round that `members` made."""
        leaving = {voter.peer_id for voter, promise in self.promises.items() if promise.leaving}
        idle = {voter for voter, promise in self.promises.items() if not promise.sequences}
        return voters_next(self.electorate.voters, members, leaving, dead, idle)

    def averaged(
        self, head: Head, state_digest: bytes, result: bytes, norm: float, dead: AbstractSet[Voter]
    ) -> Value:
        """What the ring of this ballot made, to follow `head`, whose state has that digest."""
        assert self.ballot is not None
        members = [Voter(member.peer_id, member.incarnation) for member in self.members]
        return Value(
            parent=head.digest,
            round=head.round + 1,
            origin=self.ballot,
            result_digest=result,
            gradient_norm=norm,
            parent_state_digest=state_digest,
            contributions=self.members,
            voters_next=self.voters_next(members, dead),
            survivors=self.electorate.survivors,
        )

    def finished(self, value: Value, dead: AbstractSet[Voter]) -> Value:
        """What was accepted, as these electors may decide it: survivors sign it as their branch.
        Its bytes stay the same, and its name says that no quorum vouched for it."""
        survivors = self.electorate.survivors
        if value.survivors == survivors:
            return value
        parts = [Voter(part.peer_id, part.incarnation) for part in value.contributions]
        voters = self.voters_next([voter for voter in parts if voter in survivors], dead)
        return replace(value, voters_next=voters, survivors=survivors)


def value_to_finish(promises: dict[Voter, Promise]) -> Accepted | None:
    """The accepted value with the highest ballot among the promises: it must be finished.

    In a branch attempt the slot's own accepted value comes first; else what the survivors
    accepted in the ordinary round, since the missing half may have committed just that.
    """
    own = [p.accepted for p in promises.values() if p.accepted is not None]
    before = [
        p.accepted_before_branch for p in promises.values() if p.accepted_before_branch is not None
    ]
    return max(own or before, key=lambda accepted: accepted.ballot, default=None)


def odd_states_out(states: Mapping[Voter, bytes], electors: Sequence[Voter]) -> set[Voter]:
    """Whose state digest differs from the electors' most common one; some elector's must be known.

    Equal heads must mean equal bytes; whoever differs refetches its state. Only electors count:
    identities are free, and a crowd of them would have the run's own fetch what it offers. A tie
    goes to the digest of the first in `electors`, in order of standing.
    """
    held = [states[voter] for voter in electors if voter in states]
    best = max(held, key=held.count)
    return {voter for voter, state in states.items() if state != best}


# ---- the exchange


def choose_exchange(
    members: Sequence[MemberCount],
    view: View,
    average_bytes: int,
    ring_possible: bool,
    apart: Collection[Way],
) -> Choice:
    """How the members of an attempt average, by what leases say of the ways between them: hints, so
    the choice may be poor, never wrong. Where an exchange broke lately (`apart`), neither of the
    two owns a part."""
    peers = [member.peer_id for member in members]
    links = _links(peers, view.leases)
    round_trips = [link.round_trip_s for link in links.values()]
    latency_s = statistics.median_low(round_trips) / 2 if round_trips else None
    slow = known_lines(peers, view.leases)
    owners = _able_to_own(members, view.hidden, apart)
    lines, may_own = [slow.get(peer) for peer in peers], [peer in owners for peer in peers]
    return choose(lines, may_own, average_bytes, latency_s, ring_possible)


def _able_to_own(
    members: Sequence[MemberCount], hidden: set[str], apart: Collection[Way]
) -> set[str]:
    """Owners are dialled by all others: who can be, has no broken way to another member, and has
    work to give. If there is nobody like that, the last wish goes first."""
    peers = {member.peer_id for member in members}
    broken = {peer for way in apart if peers.issuperset(way) for peer in way}
    idle = {member.peer_id for member in members if not member.sequences}
    able = [peers - hidden - broken - idle, peers - hidden - broken, peers - hidden, peers]
    return next(filter(None, able))


def known_lines(peers: Collection[str], leases: Mapping[str, Lease]) -> dict[str, float]:
    """Of these peers by what they measured of each other: see `line_rates`."""
    rates = {way: link.bytes_per_s for way, link in _links(peers, leases).items()}
    return line_rates({way: rate for way, rate in rates.items() if math.isfinite(rate)})


def _links(peers: Collection[str], leases: Mapping[str, Lease]) -> dict[tuple[str, str], Link]:
    """What these measured of their ways to each other, by sender and receiver."""
    names = {short_name(peer): peer for peer in peers}
    return {
        (peer_id, names[link.peer]): link
        for peer_id, lease in leases.items()
        if peer_id in names.values()
        for link in lease.links
        if link.peer in names and names[link.peer] != peer_id
    }

"""The liar's alphabet: well-formed messages, each possible at any time.

It signs only its own name. It hears what is sent to it, sees how honest voters voted, and serves
bytes for any result that it proposes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    MAX_SEQUENCES,
    Ballot,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    is_quorum,
)
from atom.swarm.chain.messages import (
    Abort,
    Accept,
    Accepted,
    AcceptedVote,
    CommitNotice,
    Message,
    Prepare,
    Promise,
    Ring,
)

from . import actors
from .actors import BATCH, Place, norm_of, value_of, vote_of, voter

FORGED = b"f" * 32


@dataclass(frozen=True)
class Lead:
    """A ballot of the liar, and the promises that it got for it."""

    me: Voter
    place: Place
    ballot: Ballot
    promises: Mapping[Voter, Promise]

    def members(self, *without: Voter) -> tuple[MemberCount, ...]:
        """Return all that promised, and the liar."""
        kept = {who: p for who, p in self.promises.items() if who not in without}
        counts = [_count(who, p.sequences, p.loss_sum) for who, p in kept.items()]
        return tuple(sorted([*counts, _count(self.me)], key=lambda each: each.peer_id))

    def value(self, members: tuple[MemberCount, ...] | None = None, **lies: object) -> Value:
        """Return the value of an exchange of these members, with some fields replaced."""
        counts = self.members() if members is None else members
        value = value_of(self.place, self.ballot, counts, self.promises)
        return replace(value, **lies)  # type: ignore[arg-type]


def _count(who: Voter, sequences: int = BATCH, loss: float = 1.0) -> MemberCount:
    return MemberCount(who.peer_id, who.incarnation, sequences, loss)


def _other_counts(lead: Lead) -> Value:
    """Return a value in which each honest member has one sequence more than it promised."""
    more = (
        replace(each, sequences=each.sequences + (each.peer_id != lead.me.peer_id))
        for each in lead.members()
    )
    return lead.value(tuple(more))


def _huge_count(lead: Lead) -> Value:
    """Return a value in which the liar counts as much as a message may say."""
    others = (each for each in lead.members() if each.peer_id != lead.me.peer_id)
    return lead.value((*others, _count(lead.me, MAX_SEQUENCES)))


def _crowd(me: Voter) -> tuple[Voter, ...]:
    return tuple(Voter(me.peer_id, bytes([life]) * 16) for life in range(5))


VALUES: dict[str, Callable[[Lead], Value]] = {
    "all that promised": Lead.value,
    "another result": lambda lead: lead.value(result_digest=FORGED, gradient_norm=norm_of(FORGED)),
    "only itself": lambda lead: lead.value((_count(lead.me),)),
    "nobody contributed": lambda lead: lead.value(contributions=()),
    "a norm of 1e-30": lambda lead: lead.value(gradient_norm=1e-30),
    "the last round": lambda lead: lead.value(round=actors.LAST_ROUND),
    "an old round": lambda lead: lead.value(round=0),
    "no voters next": lambda lead: lead.value(voters_next=()),
    "itself as the only next voter": lambda lead: lead.value(voters_next=(lead.me,)),
    "itself as five next voters": lambda lead: lead.value(voters_next=_crowd(lead.me)),
    "counts that nobody promised": _other_counts,
    "members that did not promise": lambda lead: lead.value(
        tuple(_count(who) for who in lead.place.head.voters)
    ),
    "each member twice": lambda lead: lead.value(lead.members() * 2),
    "a count of 2**24": _huge_count,
    "an origin that never was": lambda lead: lead.value(origin=replace(lead.ballot, attempt=0)),
    "another state": lambda lead: lead.value(parent_state_digest=FORGED),
    "another parent": lambda lead: lead.value(parent=FORGED),
}
"""Values that the liar may propose, by name. An honest coordinator proposes the first."""


class Liar:
    """Everything that one lying voter may say."""

    def __init__(self, number: int, attempts: int, values: Iterable[str]) -> None:
        """`attempts`: ballots that it begins. `values`: names of its proposals (`VALUES`)."""
        self.me = voter(number)
        self._number, self._attempts, self._values = number, attempts, tuple(values)
        self._highest = (2**63 - 1,) if attempts else ()
        self.results = {FORGED}
        """Digests of the results that it serves."""

    def messages(
        self,
        to: Voter,
        place: Place,
        heard: Iterable[tuple[Voter, Message]],
        votes: Iterable[tuple[Voter, Ballot, Value]],
    ) -> Iterator[Message]:
        """Yield all that it may say to a peer at that place, some of it more than once.

        Args:
            heard: messages that came to the liar, with their senders.
            votes: votes of honest voters at this head.
        """
        heard = list(heard)
        numbers = (*range(1, self._attempts + 1), *self._highest)
        for attempt in numbers:
            ballot = Ballot(attempt, self.me.peer_id, self.me.incarnation)
            yield from self._calls(to, place, ballot, heard)
        for sender, message in heard:
            if sender == to:
                yield from self._answers(place, message)
        yield from self._commits(place.head, votes)

    def _calls(
        self, to: Voter, place: Place, ballot: Ballot, heard: list[tuple[Voter, Message]]
    ) -> Iterator[Message]:
        parent = place.head.digest
        yield Prepare(parent, ballot)
        promises = {
            sender: message
            for sender, message in heard
            if isinstance(message, Promise) and message.ballot == ballot
        }
        if ballot.attempt > self._attempts:
            return
        lead = Lead(self.me, place, ballot, promises)
        if to in promises:
            yield Ring(parent, ballot, lead.members())
            yield Abort(parent, ballot, Reason.STATE_MISMATCH)
            yield Abort(parent, ballot, Reason.NO_QUORUM)
        for name in self._values:
            value = VALUES[name](lead)
            self.results.add(value.result_digest)
            yield Accept(parent, ballot, value)
            ours = (vote_of(self._number, value, ballot),)
            yield from (CommitNotice(Commit(value, ballot, ours * often)) for often in (1, 3))

    def _answers(self, place: Place, message: Message) -> Iterator[Message]:
        """Yield its answers to an honest coordinator."""
        parent = place.head.digest
        if isinstance(message, Prepare) and message.parent == parent:
            forged = Lead(self.me, place, replace(message.ballot, attempt=99), {})
            value = forged.value()
            self.results.add(value.result_digest)
            state = place.state_digest
            for accepted in (None, Accepted(forged.ballot, value)):
                yield Promise(parent, message.ballot, accepted, None, BATCH, 1.0, state)
        if isinstance(message, Accept) and message.parent == parent:
            signed = vote_of(self._number, message.value, message.ballot)
            for signature in (signed.signature, b"f" * 64):
                yield AcceptedVote(parent, message.ballot, signature)

    def _commits(
        self, head: Head, votes: Iterable[tuple[Voter, Ballot, Value]]
    ) -> Iterator[Message]:
        """Yield a certificate for each value that its vote completes."""
        signed: dict[tuple[Ballot, Value], list[Vote]] = {}
        for who, ballot, value in votes:
            number = actors.NUMBERS[who.peer_id]
            vote = vote_of(number, value, ballot, who.incarnation[0])
            signed.setdefault((ballot, value), []).append(vote)
        for (ballot, value), found in signed.items():
            everything = (*found, vote_of(self._number, value, ballot))
            if is_quorum(head.voters, {vote.voter for vote in everything}):
                yield CommitNotice(Commit(value, ballot, everything))

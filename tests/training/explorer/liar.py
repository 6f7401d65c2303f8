"""The liar's alphabet: well-formed messages, each possible at any time.

It signs only its own name. It hears what is sent to it, sees how honest voters voted, and serves
bytes for any result that it proposes. With each value it sends the best evidence that it can make.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from atom.base.errors import Reason
from atom.swarm.chain import messages
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
    signed_by,
)
from atom.swarm.chain.messages import Message
from atom.swarm.chain.succession import (
    PROMISE_DOMAIN,
    VOUCH_DOMAIN,
    Evidence,
    promise_payload,
    vouch_payload,
)

from . import actors
from .actors import BATCH, Place, averaged, norm_of, sign, value_of, vote_of, voter

FORGED = b"f" * 32


@dataclass(frozen=True)
class Lead:
    """A ballot of the liar, and the answers that it got to it."""

    me: Voter
    place: Place
    ballot: Ballot
    promises: Mapping[Voter, messages.Promise]
    vouched: Mapping[Voter, messages.Vouched]
    first: "Lead | None" = None
    """The liar's first ballot; None if this is it."""

    def without(self, who: Voter) -> "Lead":
        """Return the same ballot as if this voter had not answered."""
        promises = {each: p for each, p in self.promises.items() if each != who}
        return replace(self, promises=promises, first=self.first and self.first.without(who))

    def half(self, who: Voter) -> "Lead | None":
        """Return the same ballot as if only this half of the voters had answered; None until all of
        it has."""
        others = [each for each in self.place.head.voters if each != self.me]
        middle = len(others) // 2
        half = others[:middle] if who in others[:middle] else others[middle:]
        if not self.promises.keys() >= set(half):
            return None
        return replace(self, promises={each: self.promises[each] for each in half})

    def ring(self) -> messages.Ring:
        """Return a call for the exchange of all that promised."""
        voters = self.value().voters_next
        return messages.Ring(self.place.head.digest, self.ballot, self.members(), (), voters)

    def members(self) -> tuple[MemberCount, ...]:
        """Return all that promised, and the liar."""
        counts = [_count(who, p.sequences, p.loss_sum) for who, p in self.promises.items()]
        return tuple(sorted([*counts, _count(self.me)], key=lambda each: each.peer_id))

    def value(self, members: tuple[MemberCount, ...] | None = None, **lies: object) -> Value:
        """Return the value of an exchange of these members, with some fields replaced."""
        counts = self.members() if members is None else members
        value = value_of(self.place, self.ballot, counts, self.promises)
        return replace(value, **lies)  # type: ignore[arg-type]

    def evidence(self, value: Value) -> Evidence:
        """Return true signatures of others where there are any, and our own under everything."""
        if self.first is not None and value.origin == self.first.ballot:
            return self.first.evidence(value)
        stay = {each.peer_id for each in value.voters_next}
        leaving = {part.peer_id for part in value.contributions} - stay
        promises = tuple(
            self._promise(part, value, part.peer_id in leaving) for part in value.contributions
        )
        return Evidence(promises, (), tuple(sorted(leaving)), self.vouchers(value))

    def vouchers(self, value: Value) -> tuple[Vote, ...]:
        """Return the signatures that vouch for a value at this ballot, its own among them."""
        digest = value.digest()
        found = {v: each.signature for v, each in self.vouched.items() if each.value == digest}
        found[self.me] = self._sign(VOUCH_DOMAIN, vouch_payload(value.parent, self.ballot, digest))
        return tuple(Vote(who, found[who]) for who in sorted(found))

    def finishing(self) -> Iterator[messages.Accept]:
        """Yield requests to vouch, and to vote, for each value that was reported as accepted."""
        for promise in self.promises.values():
            if (old := promise.accepted) is not None:
                named = self.place.head.digest, self.ballot, old.value
                newer = replace(old.evidence, vouched=self.vouchers(old.value))
                yield messages.Accept(*named, old.evidence, old.ballot)
                yield messages.Accept(*named, newer, self.ballot)

    def _promise(self, part: MemberCount, value: Value, leaves: bool) -> bytes:
        if part.peer_id != self.me.peer_id:
            given = self.promises.get(part.voter)
            return FORGED * 2 if given is None else given.signature
        work = part.sequences, part.loss_sum
        state = value.parent_state_digest
        payload = promise_payload(value.parent, value.origin, *work, state, leaves)
        return self._sign(PROMISE_DOMAIN, payload)

    def _sign(self, domain: str, payload: bytes) -> bytes:
        return sign(actors.NUMBERS[self.me.peer_id], domain, signed_by(self.me, payload))


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


def _drops_another(lead: Lead) -> Value:
    """Return a value as if one honest member had said that it leaves."""
    value = lead.value()
    others = {part.peer_id for part in value.contributions} - {lead.me.peer_id}
    dropped = min(others, default="")
    stay = tuple(each for each in value.voters_next if each.peer_id != dropped)
    return replace(value, voters_next=stay)


def _without_itself(lead: Lead) -> Value:
    """Return a value as if the liar had promised that it leaves: true, too, once it signs so."""
    value = lead.value()
    stay = tuple(each for each in value.voters_next if each.peer_id != lead.me.peer_id)
    return replace(value, voters_next=stay)


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
    "counts that no peer promised": _other_counts,
    "members that did not promise": lambda lead: lead.value(
        tuple(_count(who) for who in lead.place.head.voters)
    ),
    "a member that is said to leave": _drops_another,
    "its first exchange": lambda lead: (lead.first or lead).value(),
    "its first exchange, and it leaves": lambda lead: _without_itself(lead.first or lead),
    "each member twice": lambda lead: lead.value(lead.members() * 2),
    "a count of 2**24": _huge_count,
    "an origin that never was": lambda lead: lead.value(origin=replace(lead.ballot, attempt=0)),
    "another state": lambda lead: lead.value(parent_state_digest=FORGED),
    "another parent": lambda lead: lead.value(parent=FORGED),
}
"""Values that the liar may propose, by name. An honest coordinator proposes the first."""


class Liar:
    """Everything that one lying voter may say."""

    def __init__(
        self, number: int, attempts: int, values: Iterable[str], splits: bool = False
    ) -> None:
        """Make a liar.

        Args:
            number: Which of the voters it is.
            attempts: Ballots that it begins.
            values: Names of its proposals (`VALUES`).
            splits: Whether it has each half of the others average apart, with itself.
        """
        self.me, self._splits = voter(number), splits
        self._number, self._attempts, self._values = number, attempts, tuple(values)
        self._highest = (2**63 - 1,) if attempts and not splits else ()
        self.results = {FORGED}
        """Digests of the results that it serves."""

    def may_say(
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
        yield messages.Prepare(parent, ballot)
        if ballot.attempt > self._attempts:
            return
        lead = self._lead(place, ballot, heard)
        if ballot.attempt > 1:
            lead = replace(lead, first=self._lead(place, replace(ballot, attempt=1), heard))
        if self._splits:
            if (crew := lead.half(to)) is not None:
                yield crew.ring()
                yield messages.Accept(
                    parent, ballot, crew.value(), crew.evidence(crew.value()), ballot
                )
            return
        if to in lead.promises:
            yield lead.ring()
            yield messages.Abort(parent, ballot, Reason.STATE_MISMATCH)
            yield messages.Abort(parent, ballot, Reason.NO_QUORUM)
        yield from lead.finishing()
        for name, crew in product(self._values, (lead, lead.without(to))):
            value = VALUES[name](crew)
            self.results.add(value.result_digest)
            at = min(ballot, value.origin)
            yield messages.Accept(parent, ballot, value, crew.evidence(value), at)
            ours = (vote_of(self._number, value, ballot),)
            yield from (
                messages.CommitNotice(Commit(value, ballot, ours * often)) for often in (1, 3)
            )

    def _lead(self, place: Place, ballot: Ballot, heard: list[tuple[Voter, Message]]) -> Lead:
        promises, vouched = dict[Voter, messages.Promise](), dict[Voter, messages.Vouched]()
        for sender, message in heard:
            if isinstance(message, messages.Promise) and message.ballot == ballot:
                promises[sender] = message
            elif isinstance(message, messages.Vouched) and message.ballot == ballot:
                vouched[sender] = message
        return Lead(self.me, place, ballot, promises, vouched)

    def _answers(self, place: Place, message: Message) -> Iterator[Message]:
        """Yield its answers to an honest coordinator."""
        parent = place.head.digest
        if isinstance(message, messages.Prepare) and message.parent == parent:
            forged = Lead(self.me, place, replace(message.ballot, attempt=99), {}, {})
            value, state = forged.value(), place.state_digest
            self.results.add(value.result_digest)
            payload = promise_payload(parent, message.ballot, BATCH, 1.0, state, False)
            signature = self._sign(PROMISE_DOMAIN, payload)
            for accepted in (None, messages.Accepted(forged.ballot, value, forged.evidence(value))):
                given = BATCH, 1.0, state, signature
                yield messages.Promise(parent, message.ballot, accepted, None, *given)
        if isinstance(message, messages.Ring) and message.parent == parent:
            value = averaged(place, message)
            for each in (value, replace(value, result_digest=FORGED)):
                yield self._vouched(message.ballot, each)
        if isinstance(message, messages.Accept) and message.parent == parent:
            yield self._vouched(message.ballot, message.value)
            signed = vote_of(self._number, message.value, message.ballot)
            for signature in (signed.signature, b"f" * 64):
                yield messages.AcceptedVote(parent, message.ballot, signature)

    def _vouched(self, ballot: Ballot, value: Value) -> messages.Vouched:
        digest = value.digest()
        payload = vouch_payload(value.parent, ballot, digest)
        return messages.Vouched(value.parent, ballot, digest, self._sign(VOUCH_DOMAIN, payload))

    def _sign(self, domain: str, payload: bytes) -> bytes:
        return sign(self._number, domain, signed_by(self.me, payload))

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
                yield messages.CommitNotice(Commit(value, ballot, everything))

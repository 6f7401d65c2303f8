"""Any well-formed message from any voter: the machine never raises, says only well-formed things,
and applies only values that catch-up accepts.

All voters may lie at once here, and the network delivers anything in any order. Everything is drawn
from small pools of heads, ballots and voters, so messages often concern the same attempt.
"""

import math
import random
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from scene import (
    GONE,
    HEAD,
    KEYS,
    MATE,
    NORM,
    RESULT,
    STATE,
    VOTERS,
    Scene,
    promise,
    signed,
    supported,
    vouched,
)

from atom.base.errors import PeerRefused
from atom.swarm.chain import messages
from atom.swarm.chain.commit import (
    MAX_LOSS,
    MAX_SEQUENCES,
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    vote_payload,
)
from atom.swarm.chain.commit_chain import parse_commits, record_of, verified_heads
from atom.swarm.chain.messages import Message
from atom.swarm.chain.succession import Evidence, next_voters
from atom.training.round import events
from atom.training.round.events import Action, Event

OFFERED, LAST_ROUND = 32, HEAD.round + 3
RESTARTED = Voter(MATE.peer_id, b"r" * 16)
"""A peer that the head knows, in a process that has no vote."""
PEERS = (*VOTERS, RESTARTED)
WORDS = ("", "ballot-too-low", "voter-alive", "state-mismatch", "busy", "?")
HONEST = tuple(MemberCount(v.peer_id, v.incarnation, OFFERED, 1.0) for v in VOTERS)
FAR = 2**63 - 1
"""The highest attempt that a message may name."""


class Forger:
    """Draws well-formed messages. Each draw prefers what an honest peer would say."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def one(self, usual: Any, *others: Any) -> Any:
        return usual if self.dice.random() < 0.7 else self.dice.choice(others)

    def voter(self) -> Voter:
        return self.dice.choice(PEERS)

    def some(self, most: int = 4) -> tuple[Voter, ...]:
        return tuple(self.voter() for _ in range(self.dice.randrange(most + 1)))

    def parent(self) -> bytes:
        return self.one(HEAD.digest, b"p" * 32)

    def digest(self) -> bytes:
        return self.one(RESULT, b"x" * 32)

    def ballot(self) -> Ballot:
        who = self.voter()
        return Ballot(self.one(1, 2, 3, FAR), who.peer_id, who.incarnation)

    def count(self, who: Voter) -> MemberCount:
        sequences = self.one(OFFERED, 0, 1, MAX_SEQUENCES)
        loss = self.one(1.0, 0.0, -MAX_LOSS, MAX_LOSS)
        return MemberCount(who.peer_id, who.incarnation, sequences, loss)

    def members(self) -> tuple[MemberCount, ...]:
        return self.one(HONEST, (), tuple(map(self.count, self.some())))

    def value(self) -> Value:
        members, survivors = self.members(), self.one((), self.some())
        origin = self.ballot()
        due = next_voters(HEAD, survivors, members, set(), set(), origin.coordinator)
        return Value(
            parent=self.parent(),
            round=self.one(HEAD.round + 1, 0, LAST_ROUND, 2**40),
            origin=origin,
            result_digest=self.digest(),
            gradient_norm=self.one(NORM, 0.0, 1e-30, 1e300),
            parent_state_digest=self.one(STATE, b"", b"t" * 32),
            contributions=members,
            voters_next=self.one(due, (), self.some()),
            survivors=survivors,
        )

    def evidence(self, value: Value, ballot: Ballot) -> Evidence:
        """Draw true signatures, mostly with vouchers at that ballot."""
        true = supported(value, self.one(VOTERS, self.some()), self.one(ballot, value.origin))
        return self.one(true, Evidence(), replace(true, leaving=(MATE.peer_id,)))

    def accepted(self) -> messages.Accepted | None:
        value, ballot = self.value(), self.ballot()
        return self.one(None, messages.Accepted(ballot, value, self.evidence(value, ballot)))

    def commit(self) -> Commit:
        """Draw true signatures, mostly of all voters, and perhaps a false one."""
        value, ballot = self.value(), self.ballot()
        payload = vote_payload(value.parent, ballot, value.digest(), value.survivors)
        votes = [
            Vote(voter, signed(voter, VOTE_DOMAIN, payload))
            for voter in self.one(VOTERS, self.some())
        ]
        votes += self.one([], [Vote(self.voter(), b"f" * 64)])
        return Commit(value, ballot, tuple(votes))

    def promise(self, sender: Voter) -> messages.Promise:
        """Draw a promise of the sender; its signature may be under another state."""
        count = self.count(sender)
        given = promise(
            self.ballot(), count.sequences, self.one(STATE, b"t" * 32), sender, count.loss_sum
        )
        return replace(
            given,
            parent=self.parent(),
            accepted=self.accepted(),
            accepted_before_branch=self.accepted(),
            state_digest=self.one(given.state_digest, b""),
            leaving=self.one(False, True),
        )

    def vouched(self, sender: Voter) -> messages.Vouched:
        given = vouched(self.ballot(), sender, self.value())
        return replace(given, parent=self.parent(), signature=self.one(given.signature, b"f" * 64))

    def accept(self, sender: Voter) -> messages.Accept:
        ballot, value = self.ballot(), self.value()
        at = self.one(ballot, value.origin, self.ballot())
        return messages.Accept(self.parent(), ballot, value, self.evidence(value, at), at)

    def message(self, sender: Voter) -> Message:
        kind = self.dice.choice(get_args(Message))
        if kind in (messages.Promise, messages.Vouched, messages.Accept):
            return getattr(self, kind.__name__.lower())(sender)
        return kind(**{field.name: self.field(field.name) for field in fields(kind)})

    def field(self, name: str) -> Any:
        match name:
            case "survivors":
                return self.one((), self.some())
            case "voters_next":
                return self.one(VOTERS, self.some())
            case "promised":
                return self.one(None, self.ballot())
            case "refusal" | "reason":
                return self.dice.choice(WORDS)
            case "peer_id":
                return self.dice.choice(["", *KEYS])
            case "shares":
                return ()
            case "signature":
                return b"f" * 64
        return getattr(self, name)()


def is_well_formed(message: Message) -> bool:
    try:
        return messages.decode(messages.encode(message)) == message
    except PeerRefused:
        return False


class Peer(Scene):
    """A machine, and an executor that at once does its work or fails to."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(last_round=LAST_ROUND)
        self._dice, self.applied = dice, 0
        self.show([GONE, MATE], OFFERED)

    def tell(self, event: Event) -> list[Action]:
        head = self.machine.head
        for action in self.machine.handle(event, self.now):
            self._execute(action, head)
        return []

    def _execute(self, action: Any, head: Head) -> None:
        works = self._dice.random() < 0.8
        match action:
            case events.Send(_, message):
                assert is_well_formed(message), f"others refuse what it says: {message}"
            case events.Freeze(ballot):
                self.tell(events.Frozen(ballot, OFFERED, 1.0))
            case events.StartExchange(_, ballot) if works:
                self.tell(events.ExchangeFinished(ballot, RESULT, NORM))
            case events.StartExchange(_, ballot):
                self.tell(events.ExchangeFailed(ballot, "", "ring-broken"))
            case events.FetchResult(digest):
                self.tell(events.ResultFetched(digest, works, NORM))
            case events.FetchChain(donor):
                self.tell(events.ChainFetched(donor, None))
            case events.CatchUp():
                self.tell(events.CaughtUp(self.machine.head, STATE))
            case events.Apply(commit):
                self._check_applied(head, commit)
                self.tell(events.Stepped(head.after(commit.value).digest, STATE))

    def _check_applied(self, head: Head, commit: Commit) -> None:
        """Do what a peer that catches up, the journal and the ledger do with a commit."""
        verified_heads(head, [commit])
        assert math.isfinite(commit.value.loss)
        record = record_of(commit)
        assert parse_commits(record) == ([commit], len(record))
        self.applied += 1


@pytest.mark.parametrize("seed", range(8))
def test_any_message_from_any_voter_is_survived(seed: int) -> None:
    applied = 0
    for history in range(60):
        forger = Forger(1000 * seed + history)
        peer = Peer(forger.dice)
        for _ in range(40):
            sender = forger.voter()
            if forger.dice.random() < 0.2:
                peer.tick(forger.dice.choice([0.1, 1.0, 5.0, 30.0]))
            elif is_well_formed(message := forger.message(sender)):
                peer.hear(message, sender)
        applied += peer.applied
    assert applied > 0, "else nothing was compared with catch-up"

"""One real machine, a mate that plays along as far as a test lets it, and a third peer, which shows
its count and says nothing. All three are voters with tenure, and sign with real keys."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from simulated_seat import identity

from atom.base.errors import Reason
from atom.swarm.chain.commit import (
    Ballot,
    ChainRules,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    signed_by,
)
from atom.swarm.chain.messages import (
    Message,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Vouched,
)
from atom.swarm.chain.succession import (
    PROMISE_DOMAIN,
    VOUCH_DOMAIN,
    Evidence,
    next_voters,
    promise_payload,
    vouch_payload,
)
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round import events
from atom.training.round.events import Action, Event, View
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundTerms
from tests.swarm.chain_samples import a_commit, voter_of

US, THEM, NOBODY = (identity(number) for number in (2, 1, 3))  # the mate leads first
KEYS = {key.peer_id: key for key in (US, THEM, NOBODY)}
ME, MATE, GONE = map(voter_of, (US, THEM, NOBODY))
VOTERS = tuple(sorted([ME, MATE, GONE]))
BATCH = 96
HEAD = Head(
    digest=b"h" * 32,
    round=7,
    work=700,
    cursor=700,
    voters=VOTERS,
    members=tuple(voter.peer_id for voter in VOTERS),
    tenures=from_the_start(voter.peer_id for voter in VOTERS),
    rules=ChainRules(BATCH),
)
STATE, RESULT, NORM = b"d" * 32, b"r" * 32, 1.0
BALLOT = Ballot(1, MATE.peer_id, MATE.incarnation)

Kind = TypeVar("Kind")


def lease(voter: Voter, sequences: int) -> Lease:
    return Lease(
        voter.peer_id, voter.incarnation, 1, 0.0, PeerState.ACCUMULATING, HEAD.digest, HEAD.round,
        sequences, 1.0, 1.0, 0.1, None, STATE, (),
    )  # fmt: skip


@lru_cache(1 << 12)
def signed(voter: Voter, domain: str, payload: bytes) -> bytes:
    """Return the signature of a voter under a payload."""
    return KEYS[voter.peer_id].sign(domain, signed_by(voter, payload))


def promise(
    ballot: Ballot,
    sequences: int,
    state: bytes = STATE,
    voter: Voter = MATE,
    loss_sum: float = 1.0,
) -> Promise:
    """Return a signed promise at the head, of the mate or another voter."""
    work = sequences, loss_sum, state
    payload = promise_payload(HEAD.digest, ballot, *work, False)
    signature = signed(voter, PROMISE_DOMAIN, payload)
    return Promise(HEAD.digest, ballot, None, None, *work, signature)


def vouched(ballot: Ballot, voter: Voter, value: Value) -> Vouched:
    """Return a message of a voter that vouches for a value at a ballot."""
    payload = vouch_payload(HEAD.digest, ballot, value.digest())
    return Vouched(HEAD.digest, ballot, value.digest(), signed(voter, VOUCH_DOMAIN, payload))


def averaged(ring: Ring) -> Value:
    """Return the value of an exchange at the head."""
    named = HEAD.digest, HEAD.round + 1, ring.ballot, RESULT, NORM, STATE
    return Value(*named, ring.members, ring.voters_next)


def decided(
    parent: Head, result: bytes, *signers: Voter, survivors: tuple[Voter, ...] = ()
) -> Commit:
    """Return a commit of the mate's work, with votes of the signers, the first of which leads."""
    keys, alone = ([KEYS[voter.peer_id] for voter in each] for each in (signers, survivors))
    named = {"result_digest": result, "gradient_norm": NORM, "parent_state_digest": STATE}
    return a_commit(parent, {THEM: BATCH}, keys, survivors=alone, **named)


def part(voter: Voter, sequences: int) -> MemberCount:
    """Return a voter's contribution."""
    return MemberCount(voter.peer_id, voter.incarnation, sequences, 1.0)


def proposed(*parts: MemberCount, result: bytes = RESULT) -> Value:
    """Return the value of an exchange of these members, which the mate led."""
    value = decided(HEAD, result, MATE).value
    voters = next_voters(HEAD, (), parts, set(), set(), value.origin.coordinator)
    return replace(value, contributions=parts, voters_next=voters)


def supported(
    value: Value, by: tuple[Voter, ...] = (MATE, ME), ballot: Ballot | None = None
) -> Evidence:
    """Return true evidence for a value whose contributors all have keys here.

    Args:
        value: Value that the evidence is about.
        by: Voters that vouch for it.
        ballot: Ballot at which they do; None: the value's origin.
    """
    parts = value.contributions
    promises = [
        promise(value.origin, part.sequences, STATE, part.voter, part.loss_sum).signature
        for part in parts
    ]
    idle = {v for v in value.voters_next if not v.absences} - {part.voter for part in parts}
    empty = [Vote(v, promise(value.origin, 0, STATE, v, 0.0).signature) for v in sorted(idle)]
    vouchers = [Vote(v, vouched(ballot or value.origin, v, value).signature) for v in by]
    return Evidence(tuple(promises), tuple(empty), (), tuple(vouchers))


def strangers(count: int) -> dict[str, Voter]:
    """Return new peers by peer id, in order. Their keys are known here."""
    keys = {key.peer_id: key for key in (Identity.create() for _ in range(count))}
    KEYS.update(keys)
    return {peer_id: Voter(peer_id, b"s" * 16) for peer_id in sorted(keys)}


class Scene:
    def __init__(
        self,
        head: Head = HEAD,
        state: bytes = STATE,
        mate_counts: int = 64,
        last_round: int | None = None,
    ) -> None:
        self.now = 0.0
        terms = RoundTerms(BATCH, last_round)
        self.machine = RoundMachine(ME, head, state, terms, US.sign, self.now)
        self.leases = {voter.peer_id: lease(voter, 32) for voter in (MATE, GONE)}
        self.own, self.mate_counts = 32, mate_counts
        self.mate_reports = True
        self.all: list[Action] = []
        self._answered = 0

    def tell(self, event: Event) -> list[Action]:
        """Return the actions that answer an event, without the answers to its own freezing."""
        actions = self.machine.handle(event, self.now)
        self.all += actions
        for action in actions:
            if isinstance(action, events.Freeze):
                self.tell(events.Frozen(action.ballot, self.own, 1.0))
        return actions

    def hear(self, message: Message, sender: Voter = MATE) -> list[Action]:
        return self.tell(events.Received(sender.peer_id, sender.incarnation, message))

    def tick(self, seconds: float = 0.1, **view: Any) -> list[Action]:
        self.now += seconds
        return self.tell(events.Tick(View(fresh=self.leases, sequences=self.own, **view)))

    def show(self, voters: Iterable[Voter], sequences: int) -> None:
        """Let the directory show leases of these peers with a count."""
        self.leases |= {voter.peer_id: lease(voter, sequences) for voter in voters}

    def play(self, seconds: float) -> None:
        """Let time pass while the mate answers calls."""
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.tick()
            new, self._answered = self.all[self._answered :], len(self.all)
            for action in new:
                if isinstance(action, events.Send) and action.to == MATE.peer_id:
                    self._answer(action.message)

    def _answer(self, message: Message) -> None:
        if isinstance(message, Prevote):
            self.hear(PrevoteAnswer(message.parent))
        elif isinstance(message, Prepare):
            self.hear(promise(message.ballot, self.mate_counts))
        elif isinstance(message, Ring) and self.mate_reports:
            self.hear(vouched(message.ballot, MATE, averaged(message)))

    def done(self, kind: type[Kind]) -> list[Kind]:
        """Return the machine's actions of one kind, in order."""
        return [action for action in self.all if isinstance(action, kind)]

    def sent(self, kind: type[Kind]) -> list[Kind]:
        messages = [action.message for action in self.done(events.Send)]
        return [message for message in messages if isinstance(message, kind)]

    def until_sent(self, kind: type[Kind]) -> Kind:
        """Play until the machine has sent a message of this kind; return the last one."""
        for _ in range(200):
            if found := self.sent(kind):
                return found[-1]
            self.play(0.1)
        raise AssertionError(f"no {kind.__name__} in 20 s")

    @property
    def refusals(self) -> list[str]:
        """Reasons for which the machine refused calls, in order."""
        return [refusal.reason for refusal in self.sent(Nack)]

    @property
    def offences(self) -> list[tuple[str, Reason]]:
        return [(offence.peer_id, offence.reason) for offence in self.done(events.Offence)]

    @property
    def reports(self) -> list[str]:
        """Kinds of the machine's reports, with their reasons."""
        told = [(report.kind, report.fields.get("reason")) for report in self.done(events.Report)]
        return [f"{kind} {reason}" if reason else kind for kind, reason in told]

"""One real machine, a mate that plays along as far as a test lets it, and a third peer, which shows
its count and says nothing."""

from typing import Any, TypeVar

from simulated_seat import identity

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    signed_by,
    vote_payload,
)
from atom.swarm.chain.messages import Message, Prepare, Prevote, PrevoteAnswer, Promise
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round import RoundMachine, RoundTerms
from atom.training.round.events import (
    Action,
    Event,
    Freeze,
    Frozen,
    Offence,
    Received,
    Report,
    Send,
    Tick,
    View,
)

US, THEM, NOBODY = (identity(number) for number in (2, 1, 3))  # the mate leads first
KEYS = {key.peer_id: key for key in (US, THEM, NOBODY)}
ME = Voter(US.peer_id, b"m" * 16)
MATE, GONE = Voter(THEM.peer_id, b"a" * 16), Voter(NOBODY.peer_id, b"g" * 16)
VOTERS = tuple(sorted([ME, MATE, GONE]))
HEAD = Head(b"h" * 32, 7, 700, 700, VOTERS, tuple(v.peer_id for v in VOTERS))
STATE, RESULT = b"d" * 32, b"r" * 32
BATCH = 96
BALLOT = Ballot(1, MATE.peer_id, MATE.incarnation)

Kind = TypeVar("Kind")


def lease(voter: Voter, sequences: int) -> Lease:
    return Lease(
        voter.peer_id, voter.incarnation, 1, 0.0, PeerState.ACCUMULATING, HEAD.digest, HEAD.round,
        sequences, 1.0, 1.0, 0.1, None, STATE, (),
    )  # fmt: skip


def promise(ballot: Ballot, sequences: int, state: bytes = STATE) -> Promise:
    return Promise(HEAD.digest, ballot, None, None, sequences, 1.0, state)


def decided(
    parent: Head, result: bytes, *signers: Voter, survivors: tuple[Voter, ...] = ()
) -> Commit:
    """What the mate has worked for, signed by these."""
    parts = (MemberCount(MATE.peer_id, MATE.incarnation, BATCH, 1.0),)
    rest = 1.0, STATE, parts, survivors or parent.voters, survivors
    return certified(Value(parent.digest, parent.round + 1, BALLOT, result, *rest), *signers)


def certified(value: Value, *signers: Voter) -> Commit:
    payload = vote_payload(value.parent, BALLOT, value.digest(), value.survivors)
    votes = [Vote(v, KEYS[v.peer_id].sign(VOTE_DOMAIN, signed_by(v, payload))) for v in signers]
    return Commit(value, BALLOT, tuple(votes))


def strangers(count: int) -> dict[str, Voter]:
    ids = sorted(Identity.create().peer_id for _ in range(count))
    return {peer_id: Voter(peer_id, b"s" * 16) for peer_id in ids}


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
        self.all: list[Action] = []
        self._answered = 0

    def tell(self, event: Event) -> list[Action]:
        """What it does, but for what comes of freezing."""
        actions = self.machine.handle(event, self.now)
        self.all += actions
        for action in actions:
            if isinstance(action, Freeze):
                self.tell(Frozen(action.ballot, self.own, 1.0))
        return actions

    def hear(self, message: Message, sender: Voter = MATE) -> list[Action]:
        return self.tell(Received(sender.peer_id, sender.incarnation, message))

    def tick(self, seconds: float = 0.1, **view: Any) -> list[Action]:
        self.now += seconds
        return self.tell(Tick(View(fresh=self.leases, sequences=self.own, **view)))

    def play(self, seconds: float) -> None:
        """The mate answers what it is asked."""
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.tick()
            new, self._answered = self.all[self._answered :], len(self.all)
            for action in new:
                if isinstance(action, Send) and action.to == MATE.peer_id:
                    self._answer(action.message)

    def _answer(self, message: Message) -> None:
        if isinstance(message, Prevote):
            self.hear(PrevoteAnswer(message.parent))
        elif isinstance(message, Prepare):
            self.hear(promise(message.ballot, self.mate_counts))

    def done(self, kind: type[Kind]) -> list[Kind]:
        """What it was asked to do, of that kind."""
        return [action for action in self.all if isinstance(action, kind)]

    def sent(self, kind: type[Kind]) -> list[Kind]:
        messages = [action.message for action in self.done(Send)]
        return [message for message in messages if isinstance(message, kind)]

    def until_sent(self, kind: type[Kind]) -> Kind:
        """Until we lead and have said this to somebody; what we said."""
        for _ in range(200):
            if found := self.sent(kind):
                return found[-1]
            self.play(0.1)
        raise AssertionError(f"no {kind.__name__} in 20 s")

    @property
    def offences(self) -> list[tuple[str, Reason]]:
        return [(offence.peer_id, offence.reason) for offence in self.done(Offence)]

    @property
    def reports(self) -> list[str]:
        """Kinds, and of those that have one the reason."""
        told = [(report.kind, report.fields.get("reason")) for report in self.done(Report)]
        return [f"{kind} {reason}" if reason else kind for kind, reason in told]

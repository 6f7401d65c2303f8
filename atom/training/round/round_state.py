"""What the parts of one machine share: the run's terms, the head's state, the time, the outbox.

The `Acceptor` is the only memory that binds: what was promised and accepted for one parent head. It
is kept in memory only: a restarted process is a new incarnation, hence no voter. A branch attempt
has a slot of its own, so that accepting in it can never complete an ordinary quorum.
"""

import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Commit, Head, Value, Voter
from atom.swarm.chain.messages import Accept, Accepted, Message, Nack
from atom.training.round.electorate import Survivors, same_head
from atom.training.round.events import Action, Offence, Phase, Report, Send, View

_HEADS_REMEMBERED = 64
_GUEST_PASS_S, _PROMISE_S = 10.0, 60.0
"""A pass of a peer that has not been in a round yet, and a promise, are waited for at most so long:
or for a usual pass, and five."""
_USUAL_PASSES = 5


@dataclass(frozen=True)
class RoundPatience:
    """How long to wait for what, in seconds. Decides when to try, never what is true."""

    prevote: float = 1.0
    promise: float = 1.0
    """At least; more when the slowest peer's accumulation pass takes longer."""
    testimony: float = 0.5
    """After the first word of a broken exchange, for the others' part of the story."""
    quiet: float = 3.0
    """Silence after which another coordinator takes over."""
    rank: float = 1.0
    holding: float = 5.0
    behind: float = 0.5
    """A better head must be claimed this long: its commit notice may be under way."""
    standstill: float = 2.0
    """A gap between ticks that means our process stood still: stop leading, look first."""
    retry: float = 0.5
    grace: float = 12.0


@dataclass(frozen=True)
class RoundTerms:
    """The run's numbers. `branches` False: never go on without a quorum of silent voters."""

    global_batch: int
    """A round is due when the sum of all counts reaches it. Leases are hints of that; a round is
    decided by the promises."""
    last_round: int | None = None
    branches: bool = True
    patience: RoundPatience = RoundPatience()
    average_bytes: int = 0
    """Of one average on the wire: how much the speed of links counts beside their length."""
    ring_possible: bool = True
    """Whether the run's codec may be encoded again at every hop of a ring."""


@dataclass
class Acceptor:
    """Of one parent head. By survivors: each slot, the ordinary one and one per branch attempt, is
    one single-decree acceptor. Ballots only grow; an accepted value is never forgotten.

    It accepts only at a ballot that the slot promised: a vote that strayed into another slot would
    count where its coordinator never asked what was accepted before.
    """

    promised: dict[Survivors, Ballot] = field(default_factory=dict)
    accepted: dict[Survivors, Accepted] = field(default_factory=dict)

    def promise(self, survivors: Survivors, ballot: Ballot) -> bool:
        """Promises to ignore lower ballots; False unless this one is higher than any before."""
        before = self.promised.get(survivors)
        if before is not None and ballot <= before:
            return False
        self.promised[survivors] = ballot
        return True

    def survivors_of(self, ballot: Ballot) -> Survivors | None:
        """Which slot still promises exactly this ballot; None if it is unknown or outdone."""
        return next((slot for slot, at in self.promised.items() if at == ballot), None)

    def accept(self, ballot: Ballot, value: Value) -> None:
        survivors = self.survivors_of(ballot)
        assert survivors is not None, "promised, and not outdone"
        self.accepted[survivors] = Accepted(ballot, value)

    @property
    def highest_promised(self) -> Ballot | None:
        """Over all slots: what a new attempt has to surpass to be heard in any of them."""
        return max(self.promised.values(), default=None)


@dataclass
class RoundState:
    """Everything that is true only while `head` is our head. A step throws it away whole."""

    head: Head
    state_digest: bytes
    entered: float
    acceptor: Acceptor = field(default_factory=Acceptor)
    ballot: Ballot | None = None
    """The ballot we promised, reduced or hold a result for."""
    since: float = 0.0
    """When the present phase began."""
    led_at: float = float("-inf")
    """When another coordinator last gave a sign, and which."""
    led_by: str = ""
    promised: dict[Ballot, int] = field(default_factory=dict)
    """How many sequences we offered to each ballot."""
    averaged: dict[Ballot, bytes] = field(default_factory=dict)
    """Exchanges that we entered, none of them twice, and the digest of what each made here; empty:
    nothing."""
    held: set[bytes] = field(default_factory=set)
    """Digests of the averaged results in memory."""
    fetching: set[bytes] = field(default_factory=set)
    """Results asked for."""
    pending_accept: tuple[Voter, Accept] | None = None
    pending_commit: Commit | None = None
    overdue: float = 0.0
    """How many times over the time is up in which it could have been decided."""


class RoundContext:
    """Shared by the parts of one machine; carries no rule of its own."""

    def __init__(
        self,
        me: Voter,
        terms: RoundTerms,
        sign: Callable[[str, bytes], bytes],
        state: RoundState,
    ) -> None:
        self.me = me
        self.terms = terms
        self.patience = terms.patience
        self.sign = sign
        self.state = state
        self.phase = Phase.ACCUMULATING
        self.view = View()
        self.leaving = False
        self.highest_attempt = 0
        """The number of one: our next is above it, at whatever head, so that late word of an old
        ballot is never taken for a new one's."""
        self.now = state.entered
        self.out: list[Action] = []
        self.inbox: deque[Message] = deque()
        """Messages to ourselves: handled after the present event."""
        self.jitter = random.Random(me.incarnation)
        self._left: dict[bytes, Acceptor] = {}

    @property
    def head(self) -> Head:
        return self.state.head

    def enter_head(self, head: Head, state_digest: bytes) -> None:
        """Another head is ours. What was promised or accepted at any head binds this process for
        good: a failed catch-up may bring us back to one that we had left."""
        self._left[self.state.head.digest] = self.state.acceptor
        while len(self._left) > _HEADS_REMEMBERED:
            del self._left[next(iter(self._left))]
        acceptor = self._left.pop(head.digest, None) or Acceptor()
        self.state = RoundState(head, state_digest, self.now, acceptor=acceptor, since=self.now)

    def enter_phase(self, phase: Phase) -> None:
        self.phase = phase
        self.state.since = self.now

    def promise_patience(self, aside: AbstractSet[str] = frozenset()) -> float:
        """A peer answers a prepare at its next pass boundary: wait for the slowest, but not for
        those aside, and not much longer than the known ones' passes usually take."""
        leases = same_head(self.head, self.view)
        passes = {peer_id: leases[peer_id].pass_seconds for peer_id in leases.keys() - aside}
        known = [self.view.pass_seconds, *(passes[p] for p in passes.keys() & self.head.known)]
        guests = [passes[peer_id] for peer_id in passes.keys() - self.head.known]
        usual = statistics.median_low(known)
        slowest = max(*known, min(max(guests, default=0.0), max(_GUEST_PASS_S, usual)))
        most = max(_PROMISE_S, _USUAL_PASSES * usual)
        return max(self.patience.promise, min(2 * slowest + 0.5, most))

    def send(self, peer_id: str, message: Message) -> None:
        """To a peer; what is for ourselves waits in the inbox."""
        if peer_id == self.me.peer_id:
            self.inbox.append(message)
        else:
            self.out.append(Send(peer_id, message))

    def tell(self, peers: Iterable[str], message: Message) -> None:
        """To several, in an order that does not depend on who asks."""
        for peer_id in sorted(set(peers)):
            self.send(peer_id, message)

    def nack(
        self, sender: Voter, ballot: Ballot, reason: Reason, parent: bytes | None = None
    ) -> None:
        """Refuses a call by name; to ourselves there is nothing to say."""
        if sender == self.me:
            return
        promised = self.state.acceptor.highest_promised
        answer = Nack(parent or self.head.digest, ballot, promised, reason.value)
        self.send(sender.peer_id, answer)

    def offence(self, voter: Voter, reason: Reason) -> None:
        """A peer did what no honest one does; never ourselves, whatever we are told."""
        if voter.peer_id != self.me.peer_id:
            self.out.append(Offence(voter.peer_id, reason))

    def report(self, kind: str, **fields: Any) -> None:
        self.out.append(Report(kind, {"round": self.head.round, **fields}))

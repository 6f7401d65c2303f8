"""What the parts of one machine share: the run's terms, the head's state, the time, the outbox."""

import random
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Commit, Contribution, Head, Voter
from atom.swarm.chain.messages import Accept, Message, Nack
from atom.training.round.acceptor import Acceptor
from atom.training.round.batch_policy import BatchPolicy
from atom.training.round.electorate import Signers, same_head
from atom.training.round.events import Action, Offence, Phase, Report, Send, View

_HEADS_REMEMBERED = 64
_GUEST_PASS_S = 10.0
"""How long a pass of a peer that has not been in a round yet is waited for."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds. Decides when to try, never what is true."""

    prevote: float = 1.0
    promise: float = 1.0
    """At least; more when the slowest peer's accumulation pass takes longer."""
    testimony: float = 0.5
    """After the first word of a broken ring, for the others' part of the story."""
    votes: float = 1.0
    """Wait for all living voters; then a quorum suffices."""
    quiet: float = 3.0
    """Silence after which another coordinator takes over."""
    rank: float = 1.0
    holding: float = 5.0
    behind: float = 1.5
    """A better head must be visible this long: its commit notice may be under way."""
    behind_bystander: float = 0.3
    """The same for a peer that had no part in the round: a joiner must not stay a round behind."""
    thaw_gap: float = 2.0
    """A gap between ticks that means we were frozen ourselves: stop leading, look first."""
    thaw_rest: float = 4.0
    retry: float = 0.5
    stand_back: float = 20.0
    """Others lead first after rings that broke because of us."""
    grace: float = 12.0


@dataclass(frozen=True)
class Terms:
    """The run's numbers. `branches` False: never go on without a quorum of silent voters."""

    policy: BatchPolicy
    """When a round is due."""
    last_round: int | None = None
    branches: bool = True
    patience: Patience = Patience()
    average_bytes: int = 0
    """Of one average on the wire: how much the speed of links counts beside their length."""
    ring_possible: bool = True
    """Whether the run's codec may be encoded again at every hop of a ring."""


@dataclass
class OwnRing:
    """Our part in the ring of one ballot."""

    counted: int
    """Sequences, as we promised them."""
    members: tuple[Contribution, ...] = ()
    """Empty until we entered it: none is entered twice."""
    result: bytes = b""
    """Digest of the average that it made here."""


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
    highest_seen: int = 0
    """The number of an attempt: our next one is above it."""
    led_at: float = float("-inf")
    """When another coordinator last gave a sign, and which."""
    led_by: str = ""
    rings: dict[Ballot, OwnRing] = field(default_factory=dict)
    held: set[bytes] = field(default_factory=set)
    """Digests of the averaged results in memory."""
    fetching: dict[bytes, bool] = field(default_factory=dict)
    """Results asked for, and whether because they were committed."""
    pending_accept: tuple[Voter, Accept] | None = None
    pending_commit: Commit | None = None
    deferred: list[tuple[Voter, Message]] = field(default_factory=list)
    """Messages about this head that came before its step had ended."""
    overdue: float = 0.0
    """How many times over the time is up in which it could have been decided."""


class RoundContext:
    """Shared by the parts of one machine; carries no rule of its own."""

    def __init__(
        self,
        me: Voter,
        terms: Terms,
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
        self.behind = False
        """A preferred head is claimed somewhere: neither lead nor branch before that is known."""
        self.now = state.entered
        self.applied: Commit | None = None
        """By which we came to our head, if by a step."""
        self.ring_s = 0.0
        """How long the last ring took that ended well here."""
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

    @property
    def signers(self) -> Signers | None:
        """Of the commit by which we came to the head. None: we have it from others. Any thread."""
        state, step = self.state, self.applied
        if step is None or step.value.round != state.head.round:
            return None
        peer_ids = frozenset(vote.voter.peer_id for vote in step.votes)
        return Signers(peer_ids, self.now - state.entered)

    @property
    def round_s(self) -> float:
        """Since the head is ours."""
        return self.now - self.state.entered

    @property
    def patience_lost(self) -> float:
        """How often over our head should have been decided; an owner may want us to wait on."""
        return self.state.overdue if self.terms.branches else 0.0

    def promise_patience(self, mute: AbstractSet[str] = frozenset()) -> float:
        """A peer answers a prepare at its next pass boundary: wait for the slowest, bounded, but
        not for the mute."""
        known = self.head.known
        passes = [
            lease.pass_seconds if peer_id in known else min(lease.pass_seconds, _GUEST_PASS_S)
            for peer_id, lease in same_head(self.head, self.view).items()
            if peer_id not in mute
        ]
        slowest = max([self.view.pass_seconds, *passes])
        return max(self.patience.promise, min(2 * slowest + 0.5, 60.0))

    @property
    def composing_patience(self) -> float:
        """How long a peer that promised waits for the ring to be composed."""
        return 2 * self.promise_patience() + 3

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

"""What member and coordinator of one replica share: the head's state, the time, the outbox."""

import random
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Commit, Contribution, Head, Voter
from atom.swarm.chain.messages import Accept, Message, Nack
from atom.training.round.electorate import same_head
from atom.training.round.events import Action, Offence, Phase, Report, Send, View
from atom.training.round.slots import Slots
from atom.training.round.succession import Signers
from atom.training.round.terms import Patience, Terms

_HEADS_REMEMBERED = 64
_GUEST_PASS_S = 10.0
"""How long a pass of a peer that has not been in a round yet is waited for."""


@dataclass
class HeadState:
    """Everything that is true only while `head` is our head. A step throws it away whole."""

    head: Head
    state_digest: bytes
    entered: float
    slots: Slots = field(default_factory=Slots)
    ballot: Ballot | None = None
    """The ballot we promised, reduced or hold a result for."""
    since: float = 0.0
    """When the present phase began."""
    highest_seen: int = 0
    """The number of an attempt."""
    active_at: float = float("-inf")
    """When another coordinator last gave a sign, and which."""
    active_by: str = ""
    frozen_counts: dict[Ballot, int] = field(default_factory=dict)
    held: set[bytes] = field(default_factory=set)
    """Digests of the averaged results in memory."""
    ring_results: dict[Ballot, bytes] = field(default_factory=dict)
    fetching: dict[bytes, bool] = field(default_factory=dict)
    """Results asked for, and whether because they were committed."""
    pending_accept: tuple[Voter, Accept] | None = None
    pending_commit: Commit | None = None
    composed: dict[Ballot, tuple[Contribution, ...]] = field(default_factory=dict)
    """Who was in the exchanges that we entered, with which counts."""
    reduced: Ballot | None = None
    """The last ballot whose ring we entered: none is entered twice."""
    deferred: list[tuple[Voter, Message]] = field(default_factory=list)
    held_up_s: float = 0.0
    """How long it could have been decided and was not, as far as we can tell."""
    overdue: float = 0.0
    """How many times over the time for that is up (`HoldUp`)."""

    def see(self, attempt: int) -> None:
        """Notes an attempt's number: our next one is above it."""
        self.highest_seen = max(self.highest_seen, attempt)


class Desk:
    """Shared by the parts of one machine; carries no rule of its own."""

    def __init__(
        self,
        me: Voter,
        terms: Terms,
        sign: Callable[[str, bytes], bytes],
        state: HeadState,
    ) -> None:
        self.me = me
        self.terms = terms
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
        self.jitter = random.Random(me.incarnation)
        self._left: dict[bytes, Slots] = {}
        self.deliver: Callable[[Voter, Message], None]

    @property
    def head(self) -> Head:
        return self.state.head

    def enter(self, head: Head, state_digest: bytes) -> None:
        """Another head is ours. What was promised or accepted at any head binds this process for
        good: a failed catch-up may bring us back to one that we had left."""
        self._left[self.state.head.digest] = self.state.slots
        while len(self._left) > _HEADS_REMEMBERED:
            del self._left[next(iter(self._left))]
        slots = self._left.pop(head.digest, None) or Slots()
        self.state = HeadState(head, state_digest, self.now, slots=slots, since=self.now)

    @property
    def signers(self) -> Signers | None:
        """Of the commit by which we came to the head. None: we have it from others. Any thread."""
        state, step = self.state, self.applied
        if step is None or step.value.round != state.head.round:
            return None
        peer_ids = frozenset(vote.voter.peer_id for vote in step.votes)
        return Signers(peer_ids, self.now - state.entered)

    @property
    def patience(self) -> Patience:
        return self.terms.patience

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
        """How long who promised waits for the ring to be composed."""
        return 2 * self.promise_patience() + 3

    def send(self, peer_id: str, message: Message) -> None:
        """To a peer; to ourselves at once, without a wire."""
        if peer_id == self.me.peer_id:
            self.deliver(self.me, message)
        else:
            self.out.append(Send(peer_id, message))

    def tell(self, peers: Iterable[str], message: Message) -> None:
        """To several, ourselves last: our own answer may change the phase."""
        ordered = sorted(set(peers), key=lambda peer_id: (peer_id == self.me.peer_id, peer_id))
        for peer_id in ordered:
            self.send(peer_id, message)

    def nack(
        self, sender: Voter, ballot: Ballot, reason: Reason, parent: bytes | None = None
    ) -> None:
        if sender == self.me:
            return
        promised = self.state.slots.highest_promised
        answer = Nack(parent or self.head.digest, ballot, promised, reason.value)
        self.send(sender.peer_id, answer)

    def offence(self, voter: Voter, reason: Reason) -> None:
        """Somebody did what no honest peer does; never ourselves, whatever we are told."""
        if voter.peer_id != self.me.peer_id:
            self.out.append(Offence(voter.peer_id, reason))

    def report(self, kind: str, **fields: Any) -> None:
        self.out.append(Report(kind, {"round": self.head.round, **fields}))

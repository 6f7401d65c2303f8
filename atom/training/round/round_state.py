"""State that the parts of one machine share: terms of the run, head, time, outbox, held results.

The `Acceptor` is the only binding memory: the promises and accepted values at one parent head. It
is kept in memory only, because a restarted process is a new incarnation and therefore no voter. A
branch attempt has a separate slot, so accepting in it can never complete an ordinary quorum.
"""

import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from atom.base.errors import Reason
from atom.swarm.chain.commit import MAX_VOTERS, Ballot, Commit, Head, Value, Voter
from atom.swarm.chain.messages import Accept, Accepted, Message, Nack, Ring
from atom.swarm.chain.succession import Evidence
from atom.swarm.exchange.choice import MOST_MEMBERS
from atom.training.round.electorate import ORDINARY, Survivors, alive_voters, same_head
from atom.training.round.events import Action, FetchResult, Offence, Phase, Report, Send, View

_HEADS_REMEMBERED = 64
_LARGEST_LEAP = 2**20
"""Largest number of attempt numbers that one message may skip.

Without the limit a malicious peer could use up all numbers for the other voters.
"""
_LEAST_HELD_S, _LONGEST_PAUSE = 2.0, 32
"""Least cost of a failed call in seconds, and the longest pause after it in units of its cost.

During the pause the coordinator of the call is ignored, so failed calls of one coordinator take
only a small part of the time.
"""
_PROMISE_S, _USUAL_PASSES, _GUEST_PASSES = 60.0, 5, 2
"""Limits of the wait for a promise.

The wait is at most the first (seconds) or the second (usual passes), whichever is longer. The third
is the largest number of usual passes to which a peer without tenure may raise the expected pass.
"""


@dataclass(frozen=True)
class RoundPatience:
    """Time limits in seconds. They decide when to try again, never what is true."""

    prevote: float = 1.0
    promise: float = 1.0
    """Least wait for promises; longer if the slowest peer's accumulation pass takes longer."""
    testimony: float = 0.5
    """Wait for the other members' reports, after the first report of a broken exchange."""
    quiet: float = 3.0
    """Silence after which another coordinator takes over."""
    rank: float = 1.0
    """Wait of a voter for each voter before it in the order of coordinators."""
    holding: float = 5.0
    """Longest wait for vote and commit once the result of the exchange is here."""
    behind: float = 0.5
    """Wait before a claim of a better head is examined: its commit may be on its way to us."""
    standstill: float = 2.0
    """Gap between ticks that means that this process was suspended; it then stops leading."""
    retry: float = 0.5
    """Shortest wait after a failed attempt."""
    grace: float = 12.0
    """Silence of a missing voter after which survivors may go on without it."""


@dataclass(frozen=True)
class RoundTerms:
    """Parameters of the run that the round machine needs."""

    global_batch: int
    """Number of sequences that make a round due. Leases are hints; the promises decide."""
    last_round: int | None = None
    branches: bool = True
    """False: without a quorum, survivors only go on if all missing voters are confirmed dead."""
    patience: RoundPatience = RoundPatience()
    average_bytes: int = 0
    """Bytes of one average on the wire, used to weigh the speed of links against their latency."""
    ring_possible: bool = True
    """True if the run's codec allows encoding the sums again at every hop of a ring."""
    most_members: int = MOST_MEMBERS
    """Largest number of members of one exchange."""

    @property
    def counted_peers(self) -> int:
        """Largest number of peers whose sequences make a round due.

        An exchange has a place for each of them, and for voters that a quorum lacks. (Simulations
        with fewer places than voters count half of the places.)
        """
        return max(self.most_members - MAX_VOTERS, self.most_members // 2)


@dataclass
class Acceptor:
    """Promises and accepted values of one parent head, in slots by survivors.

    Each slot, the ordinary one and one per branch attempt, is one single-decree acceptor. Ballots
    only grow; an accepted value is never forgotten. A slot accepts only at a ballot that it
    promised: a vote in another slot would count where its coordinator never asked for accepted
    values.
    """

    promised: dict[Survivors, Ballot] = field(default_factory=dict)
    accepted: dict[Survivors, Accepted] = field(default_factory=dict)
    averaging: dict[Ballot, Ring] = field(default_factory=dict)
    """Calls of the exchanges that this replica entered, none of them twice."""
    vouched: dict[Ballot, Value] = field(default_factory=dict)
    """Value that this replica vouched for, at each ballot: never two at one ballot."""

    def promise(self, survivors: Survivors, ballot: Ballot) -> bool:
        """Promise to ignore lower ballots; return False unless `ballot` is the highest so far.

        In the slot of a branch it must exceed the ordinary promise, too: each promise reports the
        value that was accepted in the ordinary slot, and only a value of a lower ballot is believed
        (`Coordinator._may_be_accepted`). To refuse is always safe, and tells the coordinator the
        number that its next attempt has to exceed.
        """
        before = (self.promised.get(slot) for slot in (survivors, ORDINARY))
        if any(each is not None and ballot <= each for each in before):
            return False
        self.promised[survivors] = ballot
        return True

    def binds(self, survivors: Survivors) -> Accepted | None:
        """Return the accepted value that a promise in this slot reports."""
        return self.accepted.get(survivors) or self.accepted.get(ORDINARY)

    def survivors_of(self, ballot: Ballot) -> Survivors | None:
        """Return the slot that still promises exactly this ballot; None if there is none."""
        return next((slot for slot, at in self.promised.items() if at == ballot), None)

    def accept(self, ballot: Ballot, value: Value, evidence: Evidence) -> None:
        """Accept a value at a ballot that a slot promises."""
        survivors = self.survivors_of(ballot)
        assert survivors is not None, "promised, and not outdone"
        self.accepted[survivors] = Accepted(ballot, value, evidence)

    @property
    def highest_promised(self) -> Ballot | None:
        """Highest ballot promised in any slot; a new attempt must surpass it to be accepted."""
        return max(self.promised.values(), default=None)


@dataclass(frozen=True)
class FailedCalls:
    """Record of one coordinator's calls that occupied us and led to no commit, at any head."""

    count: float = 0.0
    """Number of calls; one is forgotten after each `longest_s`."""
    ended: float = float("-inf")
    """Time at which the last call ended."""
    pause_s: float = 0.0
    """Seconds after `ended` for which the coordinator is ignored."""
    longest_s: float = 1.0
    """Longest such pause; also the time after which one call is forgotten."""


_NO_CALLS = FailedCalls()


@dataclass
class RoundState:
    """State that is valid only while `head` is our head. A step discards it as a whole."""

    head: Head
    state_digest: bytes
    entered: float
    acceptor: Acceptor = field(default_factory=Acceptor)
    ballot: Ballot | None = None
    """Ballot that we promised, average for, or hold a result for."""
    since: float = 0.0
    """Time at which the present phase began."""
    led_at: float = float("-inf")
    """Time of the last message from another coordinator."""
    led_by: str = ""
    promised: dict[Ballot, int] = field(default_factory=dict)
    """Sequences that we offered to each ballot."""
    held: dict[bytes, float] = field(default_factory=dict)
    """Norms of the averaged results in memory, by the results' digests."""
    fetching: set[bytes] = field(default_factory=set)
    """Digests of the results that are being fetched."""
    pending_accept: tuple[Voter, Accept] | None = None
    pending_commit: Commit | None = None
    overdue: float = 0.0
    """Share of the time limit for deciding this head that has passed; at 1 the head is overdue."""


class RoundContext:
    """State that the parts of one machine share; it contains no rules of the protocol."""

    def __init__(
        self, me: Voter, terms: RoundTerms, sign: Callable[[str, bytes], bytes], state: RoundState
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
        """Highest attempt number seen at any head.

        Our next one is higher, so that a late message about an old ballot is never mistaken for a
        message about a new ballot.
        """
        self.now = state.entered
        self.out: list[Action] = []
        self.inbox: deque[Message] = deque()
        """Messages to ourselves, handled after the present event."""
        self.jitter = random.Random(me.incarnation)
        self.callers: dict[str, FailedCalls] = {}
        """Failed calls of coordinators, ourselves included, by peer id.

        Because of the peer id, a coordinator cannot clear its record by a restart.
        """
        self.call = "", self.now
        """Coordinator whose call occupies us (empty: none), and the time at which it began."""
        self._left: dict[bytes, Acceptor] = {}

    @property
    def head(self) -> Head:
        """Head of the chain at which this member is."""
        return self.state.head

    def enter_head(self, head: Head, state_digest: bytes) -> None:
        """Move to another head.

        Promises and accepted values at the old head are kept, because they bind this process
        forever, and a failed catch-up may bring it back to that head.
        """
        self.call = "", self.now
        self._left[self.state.head.digest] = self.state.acceptor
        while len(self._left) > _HEADS_REMEMBERED:
            del self._left[next(iter(self._left))]
        acceptor = self._left.pop(head.digest, None) or Acceptor()
        self.state = RoundState(head, state_digest, self.now, acceptor=acceptor, since=self.now)

    def enter_phase(self, phase: Phase) -> None:
        """Change the phase, and note the time."""
        self.phase = phase
        self.state.since = self.now

    # ---- other coordinators

    def heard_attempt(self, number: int) -> bool:
        """Record another coordinator's attempt number, so that our next one is higher.

        Returns:
            False if the number leaps too far. Our number then follows part of the way, so that
            honest peers reach the same number after some tries.
        """
        most = self.highest_attempt + _LARGEST_LEAP
        self.highest_attempt = max(self.highest_attempt, min(number, most))
        return number <= most

    def held_by(self, leader: str = "") -> None:
        """Record which coordinator's call occupies us from now on, and that the last call failed.

        If the new call ended the last one, the coordinator with more failures is blamed.

        Args:
            leader: Peer id of the coordinator; empty: no call occupies us.
        """
        before, since = self.call
        self.call = leader, self.now
        if not before:
            return
        blamed = max(leader or before, before, key=self._failures)
        held_s, count = max(self.now - since, _LEAST_HELD_S), self._failures(blamed) + 1
        longest_s, first_s = _LONGEST_PAUSE * held_s, self.patience.retry * max(held_s / 32, 1.0)
        pause_s = min(first_s * 2.0 ** (count - 1), longest_s)
        self.callers = {peer: self.callers[peer] for peer in filter(self._failures, self.callers)}
        self.callers[blamed] = FailedCalls(count, self.now, pause_s, longest_s)

    def _failures(self, leader: str) -> float:
        """Return the failed calls of a coordinator that are not forgotten yet."""
        calls = self.callers.get(leader, _NO_CALLS)
        return max(calls.count - (self.now - calls.ended) / calls.longest_s, 0.0)

    def free_at(self, leader: Voter) -> float:
        """Return the time until which the other peers ignore a coordinator.

        The pause is short if no other voter could lead.
        """
        calls = self.callers.get(leader.peer_id, _NO_CALLS)
        others = alive_voters(self.head, self.me, self.view) - {leader}
        return calls.ended + min(calls.pause_s, float("inf") if others else self.patience.quiet)

    def ignores(self, leader: Voter) -> bool:
        """Return True while another coordinator has to wait after failed calls."""
        return leader != self.me and self.now < self.free_at(leader)

    def promise_patience(
        self, excluded: AbstractSet[str] = frozenset(), answered: AbstractSet[str] = frozenset()
    ) -> float:
        """Return how long to wait for promises, in seconds.

        A peer answers at its next pass boundary, so the slowest peer's pass counts, within limits.

        Args:
            excluded: Peers that are not waited for.
            answered: Peers that are waited for although they have not been in a recent round.
        """
        leases = same_head(self.head, self.view)
        passes = {peer_id: leases[peer_id].pass_seconds for peer_id in leases.keys() - excluded}
        voters = {voter.peer_id for voter in self.head.voters}
        trusted = passes.keys() & (self.head.tenured | voters)
        known = [self.view.pass_seconds, *(passes[peer] for peer in trusted)]
        guests = passes.keys() & (self.head.recent | answered) - trusted
        usual = statistics.median_low(known)
        slowest_guest = max((passes[peer] for peer in guests), default=0.0)
        slowest = max(*known, min(slowest_guest, _GUEST_PASSES * usual))
        most = max(_PROMISE_S, _USUAL_PASSES * usual)
        return max(self.patience.promise, min(2 * slowest + 0.5, most))

    # ---- outbox

    def send(self, peer_id: str, message: Message) -> None:
        """Send a message to a peer; a message to ourselves waits in the inbox."""
        if peer_id == self.me.peer_id:
            self.inbox.append(message)
        else:
            self.out.append(Send(peer_id, message))

    def send_all(self, peers: Iterable[str], message: Message) -> None:
        """Send a message to several peers, in an order that does not depend on the caller."""
        for peer_id in sorted(set(peers)):
            self.send(peer_id, message)

    def nack(
        self, sender: Voter, ballot: Ballot, reason: Reason, parent: bytes | None = None
    ) -> None:
        """Refuse another voter's call for the named reason; do nothing if the call is our own.

        Args:
            sender: Voter that called.
            ballot: Ballot of the call.
            reason: Reason of the refusal.
            parent: Digest of the head that the call names; None: our head.
        """
        if sender == self.me:
            return
        promised = self.state.acceptor.highest_promised
        answer = Nack(parent or self.head.digest, ballot, promised, reason.value)
        self.send(sender.peer_id, answer)

    def offence(self, voter: Voter, reason: Reason) -> None:
        """Report a peer that did what no honest peer does, unless it is this peer."""
        if voter.peer_id != self.me.peer_id:
            self.out.append(Offence(voter.peer_id, reason))

    def report(self, kind: str, **fields: Any) -> None:
        """Write a line to the event log."""
        self.out.append(Report(kind, {"round": self.head.round, **fields}))


def result_in_memory(
    context: RoundContext, value: Value, vouchers: tuple[Voter, ...], committed: bool
) -> bool:
    """Return True if the result of a value is in memory; otherwise request it if necessary.

    Contributors, some of which may have left, and peers that accepted the value are asked for it,
    unless our own exchange is about to deliver it.

    Args:
        context: Shared state of the round; gets the request.
        value: Value whose result is needed.
        vouchers: Voters that may hold the result although they did not contribute.
        committed: True if the value is decided, so that the result is worth a longer wait.
    """
    state = context.state
    if value.result_digest in state.held:
        return True
    coming = context.phase is Phase.REDUCING and state.ballot == value.origin
    if not coming and value.result_digest not in state.fetching:
        keep = results_in_use(context)
        state.fetching.add(value.result_digest)
        contributors = [part.peer_id for part in value.contributions]
        holders = dict.fromkeys(contributors + [voter.peer_id for voter in vouchers])
        holders.pop(context.me.peer_id, None)
        context.out.append(FetchResult(value.result_digest, tuple(holders), committed, keep))
    return False


def results_in_use(context: RoundContext) -> frozenset[bytes] | None:
    """Return the digests of the results that stay in memory, and forget the others: each is large.

    Peers that accepted a value hold its result, because it may still be committed. During an
    exchange the return value is None, and all results stay: the new one may be here already, and
    its digest is not known yet.
    """
    state = context.state
    if context.phase is Phase.REDUCING:
        return None
    values = [accepted.value for accepted in state.acceptor.accepted.values()]
    if state.pending_accept is not None:
        values.append(state.pending_accept[1].value)
    if state.pending_commit is not None:
        values.append(state.pending_commit.value)
    wanted = {value.result_digest for value in values}
    state.held = {digest: state.held[digest] for digest in state.held.keys() & wanted}
    return frozenset(wanted | state.fetching)

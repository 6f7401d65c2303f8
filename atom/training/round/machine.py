"""Pure state machine of one replica's round: voter, contributor and (in turn) coordinator.

`handle(event, now)` returns actions and touches nothing outside the machine: no clock, no socket,
no tensor. Safety rests on three rules alone: promises and accepted values are never forgotten
within a head; a value that any voter of a quorum has accepted is completed, not computed again; and
a contribution counts only for the head at which it was promised. Timeouts and leases decide when to
try, never what is true; so a wrong timeout costs time, not correctness.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.messages import Message
from atom.training.round import events
from atom.training.round.coordinator import Coordinator
from atom.training.round.events import Action, Phase, View
from atom.training.round.head_candidates import HeadCandidates
from atom.training.round.participant import Participant
from atom.training.round.round_state import RoundContext, RoundState, RoundTerms

_MOST_AHEAD, _MOST_AHEAD_OF_ONE = 64, 8


class RoundMachine:
    """Round of one replica. One loop owns it; any thread may read its properties."""

    def __init__(
        self,
        me: Voter,
        head: Head,
        state_digest: bytes,
        terms: RoundTerms,
        sign: Callable[[str, bytes], bytes],
        now: float,
    ) -> None:
        """Begin at a head.

        Args:
            me: This process.
            head: Head of our chain.
            state_digest: Digest of our state at `head`; empty if we have no state of this run yet.
            terms: The run's numbers.
            sign: Signs bytes in a domain with this peer's key.
            now: Time in seconds, monotonic.
        """
        self._context = RoundContext(me, terms, sign, RoundState(head, state_digest, now))
        self._seek_at = now
        if not state_digest:
            self._context.phase = Phase.SYNCING
        self._coordinator = Coordinator(self._context)
        self._participant = Participant(self._context, self._coordinator)
        self._candidates = HeadCandidates(self._context)
        self._at_our_head: dict[type[Message], Callable[[Voter, Any], None]] = {
            messages.Prepare: self._participant.on_prepare,
            messages.Ring: self._participant.on_ring,
            messages.Accept: self._participant.on_accept,
            messages.Abort: self._participant.on_abort,
            messages.PrevoteAnswer: self._coordinator.on_prevote_answer,
            messages.Promise: self._coordinator.on_promise,
            messages.Nack: self._coordinator.on_nack,
            messages.Suspect: self._coordinator.on_suspect,
            messages.Vouched: self._coordinator.on_vouched,
            messages.AcceptedVote: self._coordinator.on_vote,
        }
        self._last_tick = float("inf")  # the first tick ends no gap
        self._ahead = deque[tuple[Voter, Message]]()
        """Calls and commits that arrived before we reached their parent head.

        Without them a joiner would miss every commit of a fast swarm and never catch up.
        """

    # ---- properties

    @property
    def me(self) -> Voter:
        """Peer id and incarnation of this process, as a voter."""
        return self._context.me

    @property
    def phase(self) -> Phase:
        """Present activity of this member."""
        return self._context.phase

    @property
    def head(self) -> Head:
        """Head of the chain at which this member is."""
        return self._context.head

    @property
    def state_digest(self) -> bytes:
        """Digest of the state at `head`; empty while stepping."""
        return self._context.state.state_digest

    @property
    def global_batch(self) -> int:
        """Sequences per round, over all peers."""
        return self._context.terms.global_batch

    @property
    def counted_peers(self) -> int:
        """Largest number of peers whose sequences make a round due."""
        return self._context.terms.counted_peers

    @property
    def finished(self) -> bool:
        """True if the run's last round is committed here."""
        last = self._context.terms.last_round
        return last is not None and self.head.round >= last

    @property
    def excluded(self) -> frozenset[str]:
        """Peers that are not relied on: they failed an attempt of ours, or are quarantined."""
        return self._coordinator.peers.excluded

    @property
    def answered(self) -> frozenset[str]:
        """Peers that answered an attempt of ours recently."""
        return self._coordinator.peers.answered

    @property
    def doubted(self) -> frozenset[str]:
        """Peers whose claims of a preferred head are not believed for now."""
        return self._candidates.doubted

    @property
    def waiting_for(self) -> frozenset[str]:
        """Missing voters without which no round can be decided; empty if none is missing."""
        here = self.phase is Phase.ACCUMULATING
        return self._coordinator.election.waiting_for if here else frozenset()

    # ---- events

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Handle one event, then our messages to ourselves; return the resulting actions.

        Args:
            event: Event to handle.
            now: Time in seconds, monotonic.
        """
        context = self._context
        context.now, context.out = now, []
        self._on_event(event)
        while context.inbox:
            self._on_message(context.me, context.inbox.popleft())
        return context.out

    def _on_event(self, event: events.Event) -> None:
        participant = self._participant
        match event:
            case events.Tick(view):
                self._on_tick(view)
            case events.Received(sender, incarnation, message):
                self._on_message(Voter(sender, incarnation), message)
            case events.Frozen():
                participant.on_frozen(event)
            case events.ExchangeFinished(ballot, digest, norm):
                participant.on_exchange_finished(ballot, digest, norm)
            case events.ExchangeFailed():
                participant.on_exchange_failed(event)
            case events.ResultFetched():
                participant.on_fetched(event)
            case events.ChainFetched():
                self._candidates.on_chain(event)
            case events.Stepped(head, state_digest):
                self._on_stepped(head, state_digest)
            case events.CaughtUp():
                self._on_caught_up(event)
            case events.Unreachable(peer_id):
                self._coordinator.on_unreachable(peer_id)
            case events.LeaveRequested():
                self._context.leaving = True

    # ---- time

    def _on_tick(self, view: View) -> None:
        context = self._context
        gap, self._last_tick = max(context.now - self._last_tick, 0.0), context.now
        context.view = view
        if gap > context.patience.standstill:
            context.report("stood-still", seconds=round(gap, 1))
            self._coordinator.rest()
        if self.phase is Phase.SYNCING and not self.state_digest:
            self._seek_state()
        if self.phase not in events.BETWEEN_STATES and not self._look_for_better_head():
            if not self.finished:  # first, so other peers learn that an attempt of ours has ended
                self._coordinator.tick(gap)
            self._participant.tick()

    def _seek_state(self) -> None:
        """Fetch the state of any peer if we have none of our own."""
        context = self._context
        donors = self._candidates.any_state()
        if donors and context.now >= self._seek_at:
            self._seek_at = float("inf")
            self._participant.catch_up(donors, "no usable state here", discard=True, forks=None)

    def _look_for_better_head(self) -> bool:
        """Start catching up once a preferred head is proven; return True if so."""
        better = self._candidates.better()
        if not better or self._context.state.pending_commit is not None:
            return False  # the pending commit needs one result, which is less than a state
        forks = self._candidates.forks()
        self._participant.catch_up(better, "another peer has a preferred head", forks=forks)
        return True

    # ---- messages

    def _on_message(self, sender: Voter, message: Message) -> None:
        if isinstance(message, messages.Prevote):
            self._participant.on_prevote(sender, message)
        elif isinstance(message, messages.CommitNotice):
            self._on_commit(sender, message)
        elif isinstance(message, messages.Prepare | messages.Ring | messages.Accept):
            self._on_call(sender, message)
        elif message.parent == self.head.digest:
            self._at_our_head[type(message)](sender, message)

    def _on_commit(self, sender: Voter, message: messages.CommitNotice) -> None:
        value = message.commit.value
        if value.parent == self.head.digest and self.phase not in events.BETWEEN_STATES:
            self._participant.on_commit(sender, message.commit)
        elif value.round > self.head.round:
            self._keep(sender, message)

    def _keep(self, sender: Voter, message: Message) -> None:
        """Keep a message until this replica reaches the next head.

        Only the last few messages of each sender are kept. If there are too many in total, messages
        of peers that the head does not know are dropped first.
        """
        theirs = [kept for kept in self._ahead if kept[0].peer_id == sender.peer_id]
        if len(theirs) == _MOST_AHEAD_OF_ONE:
            self._ahead.remove(theirs[0])
        self._ahead.append((sender, message))
        if len(self._ahead) > _MOST_AHEAD:
            strangers = (kept for kept in self._ahead if kept[0].peer_id not in self.head.known)
            self._ahead.remove(next(strangers, self._ahead[0]))

    def _take_up(self) -> None:
        """Handle the kept messages, which may belong to the head that was just reached.

        Each message is handled once: a commit whose result no peer serves would otherwise make this
        replica catch up again and again.
        """
        heard, self._ahead = self._ahead, deque()
        for sender, message in heard:
            self._on_message(sender, message)

    def _on_call(
        self, sender: Voter, message: messages.Prepare | messages.Ring | messages.Accept
    ) -> None:
        """Handle a request that only the coordinator of its ballot may send."""
        ballot, ours = message.ballot, message.parent == self.head.digest
        if Voter(ballot.coordinator, ballot.incarnation) != sender:
            return
        if self.phase in events.BETWEEN_STATES:
            if self.phase is Phase.STEPPING and ours and sender.peer_id in self.head.known:
                self._keep(sender, message)
            return
        if not ours:
            self._context.nack(sender, ballot, Reason.WRONG_HEAD, message.parent)
            return
        self._at_our_head[type(message)](sender, message)

    # ---- states

    def _on_stepped(self, head: bytes, state_digest: bytes) -> None:
        context = self._context
        if context.phase is not Phase.STEPPING or head != self.head.digest:
            return
        context.phase = Phase.ACCUMULATING
        context.state.state_digest = state_digest
        context.out.append(events.Thaw())
        self._take_up()

    def _on_caught_up(self, event: events.CaughtUp) -> None:
        context = self._context
        if context.phase is not Phase.SYNCING:
            return
        self._candidates.learn(event)
        if not event.state_digest:
            context.state.state_digest = b""
            self._seek_at = context.now + context.patience.quiet
            return
        if event.head.digest == self.head.digest:
            context.state.state_digest = event.state_digest  # promises at this head still bind us
            # The results may have left memory; a fetch first looks whether they are still there.
            context.state.held.clear()
        else:
            context.enter_head(event.head, event.state_digest)
            self._coordinator.new_head()
        context.phase = Phase.ACCUMULATING
        context.out.append(events.Thaw())
        self._take_up()

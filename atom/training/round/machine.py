"""The round of one replica: voter, contributor and (in turn) coordinator. Pure.

`handle(event, now)` returns actions and touches nothing outside the machine: no clock, no socket,
no tensor. Safety rests on three rules alone: promises and accepted values are never forgotten
within a head; a value accepted by anybody in a quorum is finished rather than recomputed; and
gradients count only for the head they were computed on. Timeouts and leases decide when to try,
never what is true; so a wrong timeout costs time, not correctness.
"""

from collections import deque
from collections.abc import Callable

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.messages import (
    Abort,
    Accept,
    AcceptedVote,
    CommitNotice,
    Message,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
)
from atom.swarm.records.lease import Lease
from atom.training.round.coordinator import Coordinator
from atom.training.round.decision import Decision
from atom.training.round.desk import Desk, HeadState
from atom.training.round.engagement import Engagement
from atom.training.round.events import (
    BETWEEN_STATES,
    Action,
    CaughtUp,
    Event,
    Fetched,
    FetchFailed,
    Frozen,
    LeaveRequested,
    Phase,
    Received,
    RingFailed,
    RingFinished,
    Stepped,
    Thaw,
    Tick,
    Unreachable,
    View,
)
from atom.training.round.head_candidates import HeadCandidates
from atom.training.round.member import Member
from atom.training.round.succession import Signers
from atom.training.round.terms import Terms

_MAX_DEFERRED_PER_PEER = 8
_MAX_AHEAD = 16


class RoundMachine:
    """See the module. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        me: Voter,
        head: Head,
        state_digest: bytes,
        terms: Terms,
        sign: Callable[[str, bytes], bytes],
        now: float,
    ) -> None:
        """An empty `state_digest` says that we have no state of this run yet."""
        self._desk = Desk(me, terms, sign, HeadState(head, state_digest, now))
        self._desk.deliver = self._on_message
        self._adrift = not state_digest
        self._seek_at = now
        if self._adrift:
            self._desk.phase = Phase.SYNCING
        self._coordinator = Coordinator(self._desk)
        self._engagement = Engagement(self._desk, self._coordinator)
        self._decision = Decision(self._desk, self._coordinator, self._engagement)
        self._member = Member(self._desk, self._coordinator, self._engagement, self._decision)
        self._last_tick = now
        self._behind_since: float | None = None
        self._candidates = HeadCandidates(self._desk)
        self._ahead: deque[tuple[Voter, CommitNotice]] = deque(maxlen=_MAX_AHEAD)
        """Commits heard before we stood where they start: else a joiner, who gets to a head when
        the next commit has been said already, would chase a fast swarm for ever."""

    # ---- what others may see

    @property
    def phase(self) -> Phase:
        return self._desk.phase

    @property
    def head(self) -> Head:
        return self._desk.head

    @property
    def state_digest(self) -> bytes:
        """Digest of the state at `head`; empty while stepping."""
        return self._desk.state.state_digest

    @property
    def leaving(self) -> bool:
        return self._desk.leaving

    @property
    def global_batch(self) -> int:
        """Sequences per round; no single lease counts for more."""
        return self._desk.terms.global_batch

    @property
    def in_doubt(self) -> bool:
        """Whether it looks as if others did not reach us. Any thread."""
        return self._coordinator.in_doubt

    @property
    def waiting_for(self) -> frozenset[str]:
        """Voters that would have to be back for a round to be decided; empty: it can be, or there
        is nothing to decide. Any thread."""
        accumulating = self._desk.phase is Phase.ACCUMULATING
        return self._coordinator.waiting_for if accumulating else frozenset()

    @property
    def signers(self) -> Signers | None:
        """As of the desk. Any thread."""
        return self._desk.signers

    @property
    def finished(self) -> bool:
        """The run's last round is committed here."""
        last = self._desk.terms.last_round
        return last is not None and self.head.round >= last

    def believes(self, lease: Lease) -> bool:
        """Whether it claims a preferred head, and was not asked in vain lately. Any thread."""
        return self._candidates.believes(lease)

    def answering(self, leases: dict[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` whose counts will come to the next ring, as far as we know."""
        return self._coordinator.answering(leases)

    # ---- the door

    def handle(self, event: Event, now: float) -> list[Action]:
        """The machine's answer to one event at time `now` (seconds, monotonic)."""
        desk, member, decision = self._desk, self._member, self._decision
        desk.now, desk.out = now, []
        match event:
            case Tick(view):
                self._on_tick(view)
            case Received(sender, incarnation, message):
                self._on_message(Voter(sender, incarnation), message)
            case Frozen(ballot, sequences, loss_sum):
                member.on_frozen(ballot, sequences, loss_sum)
            case RingFinished(ballot, digest, norm):
                member.on_ring_finished(ballot, digest, norm)
            case RingFailed():
                member.on_ring_failed(event)
            case Fetched(digest):
                decision.on_fetched(digest)
            case FetchFailed(digest):
                decision.on_fetch_failed(digest)
            case Stepped(head, state_digest):
                self._on_stepped(head, state_digest)
            case CaughtUp():
                self._on_caught_up(event)
            case Unreachable(peer_id):
                self._coordinator.on_unreachable(peer_id)
                member.on_unreachable(peer_id)
            case LeaveRequested():
                desk.leaving = True
        return desk.out

    # ---- time

    def _on_tick(self, view: View) -> None:
        desk = self._desk
        gap, self._last_tick = desk.now - self._last_tick, desk.now
        desk.view = view
        if gap > desk.patience.thaw_gap:
            desk.report("thawed", seconds=round(gap, 1))
            self._behind_since = None
            self._coordinator.rest()
        if self._adrift:
            self._seek_state()
        if desk.phase in BETWEEN_STATES or self._look_for_better_head():
            return
        desk.behind = self._behind_since is not None
        if not self.finished:
            self._coordinator.tick()
        self._member.tick()

    def _seek_state(self) -> None:
        """Without a state of our own, anybody's will do."""
        desk = self._desk
        donors = self._candidates.any_state()
        if donors and desk.now >= self._seek_at:
            self._seek_at = float("inf")
            self._engagement.catch_up(donors, "no usable state here", discard=True)

    def _look_for_better_head(self) -> bool:
        """Starts catching up once a preferred head was visible for a while; True if so."""
        desk = self._desk
        better = self._candidates.better()
        if desk.state.pending_commit is not None:
            better = []  # one result is less to fetch than a state
        if not better:
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = desk.now
        took_part = desk.state.ballot is not None
        patience = desk.patience.behind if took_part else desk.patience.behind_bystander
        if desk.now - self._behind_since < patience:
            return False
        self._behind_since = None
        donors = self._candidates.donors(better)
        self._engagement.catch_up(donors, "a preferred head is out there")
        return True

    # ---- messages

    def _on_message(self, sender: Voter, message: Message) -> None:
        if isinstance(message, Prevote):
            self._member.on_prevote(sender, message)
        elif isinstance(message, CommitNotice):
            self._on_commit(sender, message)
        elif isinstance(message, Prepare | Ring | Accept):
            self._on_call(sender, message)
        elif getattr(message, "parent", None) == self.head.digest:
            self._on_answer(sender, message)

    def _on_commit(self, sender: Voter, message: CommitNotice) -> None:
        value = message.commit.value
        if value.parent != self.head.digest or self.phase is Phase.SYNCING:
            if value.round > self.head.round:
                self._ahead.append((sender, message))
        elif self._may_handle(sender, message, value.parent):
            self._decision.on_commit(sender, message.commit)

    def _take_up_commits(self) -> None:
        """We stand at a head: perhaps what follows it was heard before. Each is taken up once: if
        its result is nowhere to be had, it would send us catching up again and again."""
        here = self.head
        heard = [(who, m.commit) for who, m in self._ahead if m.commit.value.round > here.round]
        later = ((who, commit) for who, commit in heard if commit.value.parent != here.digest)
        self._ahead = deque(((who, CommitNotice(commit)) for who, commit in later), _MAX_AHEAD)
        for sender, commit in heard:
            if commit.value.parent == here.digest:
                self._decision.on_commit(sender, commit)

    def _on_call(self, sender: Voter, message: Prepare | Ring | Accept) -> None:
        """What only the ballot's own coordinator may say."""
        ballot = message.ballot
        if Voter(ballot.coordinator, ballot.incarnation) != sender:
            return
        if not self._may_handle(sender, message, message.parent):
            return
        if message.parent != self.head.digest:
            self._desk.nack(sender, ballot, Reason.WRONG_HEAD, message.parent)
            return
        match message:
            case Prepare():
                self._member.on_prepare(sender, message)
            case Ring():
                self._member.on_ring(sender, message)
            case Accept():
                self._decision.on_accept(sender, message)

    def _may_handle(self, sender: Voter, message: Message, parent: bytes) -> bool:
        """Between two states nothing is decided; what concerns the next one waits for it."""
        phase = self.phase
        if phase is Phase.STEPPING and parent == self.head.digest:
            deferred = self._desk.state.deferred
            theirs = sum(who.peer_id == sender.peer_id for who, _ in deferred)
            if sender.peer_id in self.head.known and theirs < _MAX_DEFERRED_PER_PEER:
                deferred.append((sender, message))
        return phase not in BETWEEN_STATES

    def _on_answer(self, sender: Voter, message: Message) -> None:
        match message:
            case PrevoteAnswer():
                self._coordinator.on_prevote_answer(sender, message)
            case Promise():
                self._coordinator.on_promise(sender, message)
            case Nack():
                self._coordinator.on_nack(sender, message)
            case Suspect():
                self._coordinator.on_suspect(sender, message)
            case AcceptedVote():
                self._coordinator.on_vote(sender, message)
            case Abort():
                self._member.on_abort(sender, message)
            case _:
                pass

    # ---- states

    def _on_stepped(self, head: bytes, state_digest: bytes) -> None:
        desk = self._desk
        if desk.phase is not Phase.STEPPING or head != self.head.digest:
            return
        desk.phase = Phase.ACCUMULATING
        desk.state.state_digest = state_digest
        desk.out.append(Thaw())
        waiting, desk.state.deferred = desk.state.deferred, []
        for sender, message in waiting:
            self._on_message(sender, message)
        self._take_up_commits()

    def _on_caught_up(self, event: CaughtUp) -> None:
        desk = self._desk
        if desk.phase is not Phase.SYNCING:
            return
        self._candidates.learn(event)
        self._adrift = not event.state_digest
        if self._adrift:
            self._seek_at = desk.now + desk.patience.behind
            return
        if event.head.digest == self.head.digest:
            desk.state.state_digest = event.state_digest  # promises at this head still bind us
            desk.state.held.clear()  # perhaps not there any more: a fetch looks here first
        else:
            desk.enter(event.head, event.state_digest)
            self._coordinator.reset()
        desk.phase = Phase.ACCUMULATING
        desk.out.append(Thaw())
        self._take_up_commits()

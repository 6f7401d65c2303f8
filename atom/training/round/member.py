"""Taking part in a ring: promise, freeze, reduce. Voters and contributors alike."""

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Voter
from atom.swarm.chain.messages import (
    Abort,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
)
from atom.swarm.exchange.choice import is_possible
from atom.training.round.coordinator import Coordinator
from atom.training.round.decision import Decision
from atom.training.round.desk import Desk
from atom.training.round.engagement import Engagement
from atom.training.round.events import (
    Freeze,
    OfferResult,
    Phase,
    RingFailed,
    StartRing,
)
from atom.training.round.scrutiny import objects_to_branch
from atom.training.round.slots import Survivors

REMIND_S = 2.0
"""Between two times that a promise is sent while its ballot's coordinator says nothing."""


class Member:
    """This replica's part in attempts that somebody (perhaps itself) coordinates."""

    def __init__(
        self, desk: Desk, coordinator: Coordinator, engagement: Engagement, decision: Decision
    ) -> None:
        self._desk = desk
        self._coordinator = coordinator
        self._engagement = engagement
        self._decision = decision
        self._said: Promise | None = None
        self._said_at = 0.0
        self._shown: Ballot | None = None
        """The last one whose coordinator's lease we saw."""
        self._owns_a_part = True

    def tick(self) -> None:
        """Nobody is waited for without end: then counting goes on, promises stay."""
        desk = self._desk
        self._decision.go_on()
        waited = desk.now - desk.state.since
        if desk.phase is Phase.PROMISED:
            if waited > desk.composing_patience or self._has_lapsed():
                self._engagement.let_go()
            else:
                self._remind()
        if desk.phase is Phase.HOLDING and waited > desk.patience.holding:
            self._engagement.let_go()

    def _has_lapsed(self) -> bool:
        """The process that coordinates showed a lease, and does not any more, while others do."""
        fresh, ballot = self._desk.view.fresh, self._desk.state.ballot
        if ballot is None or ballot.coordinator == self._desk.me.peer_id:
            return False
        lease = fresh.get(ballot.coordinator)
        if lease is not None and lease.incarnation == ballot.incarnation:
            self._shown = ballot
            return False
        return bool(fresh) and self._shown == ballot

    def _remind(self) -> None:
        """Says the promise again: it may be lost, or nobody there any more to hear it."""
        desk, said = self._desk, self._said
        if said is None or said.ballot != desk.state.ballot or desk.now - self._said_at < REMIND_S:
            return
        self._said_at = desk.now
        desk.send(said.ballot.coordinator, said)

    def on_unreachable(self, peer_id: str) -> None:
        """Whoever would compose the ring is gone: it is waited for no longer."""
        desk = self._desk
        ballot = desk.state.ballot
        if desk.phase is Phase.PROMISED and ballot is not None and ballot.coordinator == peer_id:
            self._engagement.let_go()

    # ---- promising

    def on_prevote(self, sender: Voter, message: Prevote) -> None:
        desk = self._desk
        state, attempt = desk.state, self._coordinator.attempt
        recent = desk.now < state.active_at + desk.patience.quiet
        led = recent and state.active_by != sender.peer_id
        engaged = attempt is not None and attempt.ballot is not None
        # a ring that runs makes progress, or says within seconds that it does not
        idle = desk.phase not in (Phase.SYNCING, Phase.STEPPING, Phase.REDUCING)
        refusal: Reason | None = None
        if message.parent != desk.head.digest:
            refusal = Reason.WRONG_HEAD
        elif engaged or led or not idle:
            refusal = Reason.BUSY
        else:
            refusal = self._objection(sender, message.survivors)
        word = "" if refusal is None else refusal.value
        desk.send(sender.peer_id, PrevoteAnswer(message.parent, message.serial, word))

    def on_prepare(self, sender: Voter, message: Prepare) -> None:
        desk, ballot, survivors = self._desk, message.ballot, message.survivors
        state = desk.state
        if (objection := self._objection(sender, survivors)) is not None:
            desk.nack(sender, ballot, objection)
            return
        if ballot == state.slots.known(survivors).promised:
            return  # a duplicate: our answer to the first is under way
        other = state.ballot is None or state.ballot.coordinator != sender.peer_id
        if desk.phase is Phase.REDUCING and other:
            desk.nack(sender, ballot, Reason.BUSY)  # a ring ends well, or soon
            return
        state.see(ballot.attempt)
        if not state.slots.slot(survivors).promise(ballot):
            desk.nack(sender, ballot, Reason.BALLOT_TOO_LOW)
            return
        self._engagement.notice(sender, ballot)
        self._engagement.stop_ring()
        self._engagement.enter(Phase.PROMISED)
        state.ballot = ballot
        desk.out.append(Freeze(ballot))

    def _objection(self, sender: Voter, survivors: Survivors) -> Reason | None:
        """Why this peer may not lead, or not with these."""
        desk = self._desk
        strangers = {voter.peer_id for voter in survivors} - desk.head.known
        if sender not in (survivors or desk.head.voters) or strangers:
            return Reason.NOT_A_VOTER
        if survivors and objects_to_branch(desk, survivors):
            return Reason.VOTER_ALIVE
        return None

    def on_frozen(self, ballot: Ballot, sequences: int, loss_sum: float) -> None:
        desk, state = self._desk, self._desk.state
        if desk.phase is not Phase.PROMISED or state.ballot != ballot:
            return
        state.since = desk.now
        state.frozen_counts[ballot] = sequences
        survivors = state.slots.survivors_of(ballot)
        if survivors is None:
            return
        promise = Promise(
            parent=desk.head.digest,
            ballot=ballot,
            accepted=state.slots.slot(survivors).accepted,
            accepted_before_branch=state.slots.ordinary.accepted if survivors else None,
            sequences=sequences,
            loss_sum=loss_sum,
            state_digest=state.state_digest,
            leaving=desk.leaving,
        )
        for accepted in (promise.accepted, promise.accepted_before_branch):
            if accepted is not None:  # it will be proposed again: to all, but its ring may be dead
                desk.out.append(OfferResult(accepted.value.result_digest))
        self._said, self._said_at = promise, desk.now
        desk.send(ballot.coordinator, promise)

    def on_abort(self, sender: Voter, message: Abort) -> None:
        desk = self._desk
        ours = desk.state.ballot == message.ballot
        if not ours or desk.phase is Phase.SYNCING or sender.peer_id != message.ballot.coordinator:
            return
        if message.reason == Reason.STATE_MISMATCH:
            there = set(desk.view.fresh) - {desk.me.peer_id} - desk.view.aside
            voters = there & {voter.peer_id for voter in desk.head.voters}
            donors = tuple(sorted(voters or there))  # the majority decides: of the run's own
            self._engagement.catch_up(donors, "our state differs from the others'", discard=True)
        else:
            self._engagement.let_go()

    # ---- reducing

    def on_ring(self, sender: Voter, message: Ring) -> None:
        desk, state = self._desk, self._desk.state
        if desk.phase is not Phase.PROMISED or message.ballot != state.ballot:
            return
        if state.reduced == message.ballot:
            return  # frames of its first run may still be about
        counted = state.frozen_counts.get(message.ballot)
        peers = [member.peer_id for member in message.members]
        mine = [m.sequences for m in message.members if m.peer_id == desk.me.peer_id]
        if mine != [counted] or len(set(peers)) != len(peers):
            desk.nack(sender, message.ballot, Reason.BAD_WEIGHT)
            return
        if not is_possible(message.shares, len(peers)):
            desk.nack(sender, message.ballot, Reason.MALFORMED)
            return
        self._tell_whether_we_own_a_part(message)
        self._decision.make_room()
        self._engagement.enter(Phase.REDUCING)
        state.reduced = message.ballot
        state.composed[message.ballot] = message.members
        desk.out.append(StartRing(message.parent, message.ballot, message.members, message.shares))

    def _tell_whether_we_own_a_part(self, message: Ring) -> None:
        """In the event log, when it changes."""
        ranks = [member.peer_id for member in message.members]
        owns = not message.shares or message.shares[ranks.index(self._desk.me.peer_id)] > 0
        if owns != self._owns_a_part:
            self._desk.report("owns-a-part" if owns else "owns-no-part", shares=[*message.shares])
        self._owns_a_part = owns

    def on_ring_finished(self, ballot: Ballot, digest: bytes, norm: float) -> None:
        desk, state = self._desk, self._desk.state
        if desk.phase is not Phase.REDUCING or state.ballot != ballot:
            return
        desk.ring_s = desk.now - state.since
        self._engagement.enter(Phase.HOLDING)
        state.held.add(digest)
        state.ring_results[ballot] = digest
        self._coordinator.on_own_result(ballot, digest, norm)
        self._decision.go_on()

    def on_ring_failed(self, failed: RingFailed) -> None:
        desk, ballot = self._desk, failed.ballot
        if desk.phase is not Phase.REDUCING or desk.state.ballot != ballot:
            return
        self._engagement.enter(Phase.PROMISED)
        desk.report("ring-broken", suspect=failed.suspect, reason=failed.reason)
        words = Suspect(desk.head.digest, ballot, failed.suspect, failed.reason)
        desk.send(ballot.coordinator, words)
        self._coordinator.on_broken_ring(failed)
        if failed.suspect == ballot.coordinator != desk.me.peer_id:
            self._engagement.let_go()
        self._decision.go_on()  # what waited for this ring's result has to fetch it now

"""Taking part in a round: promise, freeze, reduce, accept, step. Voters and contributors alike."""

from atom.base.reasons import Reason
from atom.swarm.algorithm import MAX_MEMBERS
from atom.swarm.chain import VOTE_DOMAIN, Ballot, Commit, Value, Voter, vote_payload
from atom.swarm.composition import well_composed
from atom.swarm.fork_choice import least_backing, too_weak
from atom.swarm.membership import certificate_problem, could_follow, signed_by
from atom.swarm.messages import (
    Abort,
    Accept,
    AcceptedVote,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
)
from atom.training.round.coordinator import Coordinator
from atom.training.round.desk import Desk
from atom.training.round.electorate import objection_to_branch
from atom.training.round.slots import Survivors
from atom.training.round.vocabulary import (
    BETWEEN_STATES,
    Apply,
    CatchUp,
    FetchResult,
    Freeze,
    OfferResult,
    Phase,
    RingFailed,
    StartRing,
    StopRing,
    Thaw,
)

_VIEW_SLACK_S = 2.0
"""Two peers' views of the same lease may differ by a renewal: how much sooner we agree."""
_NORM_TOLERANCE = 1e-6


class Member:
    """This replica's part in attempts that somebody (perhaps itself) coordinates."""

    def __init__(self, desk: Desk, coordinator: Coordinator) -> None:
        self._desk = desk
        self._coordinator = coordinator

    def tick(self) -> None:
        """Nobody is waited for without end: then counting goes on, promises stay."""
        desk = self._desk
        self.go_on()
        waited = desk.now - desk.state.since
        if desk.phase is Phase.PROMISED and waited > 2 * desk.promise_patience() + 3:
            self.let_go()
        if desk.phase is Phase.HOLDING and waited > desk.patience.holding:
            self.let_go()

    def let_go(self) -> None:
        """Back to accumulating. What was promised, accepted or held stays."""
        desk = self._desk
        self._coordinator.attempt = None
        self._stop_ring()
        if desk.phase in (Phase.PROMISED, Phase.REDUCING, Phase.HOLDING):
            desk.phase = Phase.ACCUMULATING
            desk.out.append(Thaw())

    def catch_up(self, donors: tuple[str, ...], reason: str, discard: bool = False) -> None:
        """Out of the rounds until the state is right again."""
        self.let_go()
        desk = self._desk
        desk.phase = Phase.SYNCING
        least = least_backing(desk.head, desk.me, desk.view.fresh)
        desk.out.append(CatchUp(donors, reason, discard, least))

    def _stop_ring(self) -> None:
        desk = self._desk
        if desk.phase is Phase.REDUCING:
            assert desk.state.ballot is not None
            desk.out.append(StopRing(desk.state.ballot))

    # ---- promising

    def on_prevote(self, sender: Voter, message: Prevote) -> None:
        desk = self._desk
        state, attempt = desk.state, self._coordinator.attempt
        recent = desk.now < state.active_at + desk.patience.quiet
        engaged = attempt is not None and attempt.ballot is not None
        # a ring that runs makes progress, or says within seconds that it does not
        idle = desk.phase not in (Phase.SYNCING, Phase.STEPPING, Phase.REDUCING)
        if message.parent != desk.head.digest:
            refusal = Reason.WRONG_HEAD.value
        elif engaged or not idle or (recent and state.active_by != sender.peer_id):
            refusal = Reason.BUSY.value
        else:
            refusal = ""
        desk.send(sender.peer_id, PrevoteAnswer(message.parent, message.serial, refusal))

    def on_prepare(self, sender: Voter, message: Prepare) -> None:
        desk, ballot, survivors = self._desk, message.ballot, message.survivors
        state = desk.state
        if sender not in (survivors or desk.head.voters):
            desk.nack(sender, ballot, Reason.NOT_A_VOTER)
            return
        state.see(ballot.attempt)
        if survivors and self._objects_to_branch(survivors):
            desk.nack(sender, ballot, Reason.VOTER_ALIVE)
            return
        if ballot == state.slots.slot(survivors).promised:
            return  # a duplicate: our answer to the first is under way
        if sender != desk.me and not state.calls(sender.peer_id).allow(desk.now):
            desk.nack(sender, ballot, Reason.BUSY)  # it had its chances: let others try
            return
        if not state.slots.slot(survivors).promise(ballot):
            desk.nack(sender, ballot, Reason.BALLOT_TOO_LOW)
            return
        self._notice(sender, ballot)
        self._stop_ring()
        self._enter(Phase.PROMISED)
        state.ballot = ballot
        desk.out.append(Freeze(ballot))

    def _objects_to_branch(self, survivors: Survivors) -> bool:
        desk = self._desk
        patience = desk.patience.grace - _VIEW_SLACK_S if desk.terms.branches else float("inf")
        known_better = objection_to_branch(
            desk.head, desk.me, desk.view, survivors, max(patience, 0.0)
        )
        return known_better or desk.behind

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
            self.catch_up(donors, "our state differs from the others'", discard=True)
        else:
            self.let_go()

    # ---- reducing

    def on_ring(self, sender: Voter, message: Ring) -> None:
        desk, state = self._desk, self._desk.state
        if desk.phase is not Phase.PROMISED or message.ballot != state.ballot:
            return
        if state.reduced == message.ballot:
            return  # frames of its first run may still be about
        counted = state.frozen_counts.get(message.ballot)
        mine = [m for m in message.members if m.peer_id == desk.me.peer_id]
        composed = well_composed(message.members, message.one_shot)
        if not composed or len(mine) != 1 or mine[0].sequences != counted:
            desk.nack(sender, message.ballot, Reason.BAD_WEIGHT)
            return
        if message.one_shot and len(message.members) > MAX_MEMBERS:  # so many connections each
            desk.nack(sender, message.ballot, Reason.TOO_LARGE)
            return
        self._enter(Phase.REDUCING)
        state.reduced = message.ballot
        state.composed[message.ballot] = message.members
        desk.out.append(
            StartRing(message.parent, message.ballot, message.members, message.one_shot)
        )

    def on_ring_finished(self, ballot: Ballot, digest: bytes, norm: float) -> None:
        desk, state = self._desk, self._desk.state
        if desk.phase is not Phase.REDUCING or state.ballot != ballot:
            return
        self._enter(Phase.HOLDING)
        state.held[digest] = norm
        state.ring_results[ballot] = digest
        self._coordinator.on_own_result(ballot, digest, norm)
        self.go_on()

    def on_ring_failed(self, failed: RingFailed) -> None:
        desk, ballot = self._desk, failed.ballot
        if desk.phase is not Phase.REDUCING or desk.state.ballot != ballot:
            return
        self._enter(Phase.PROMISED)
        seen = (failed.suspect, failed.reason, failed.told_by)
        desk.report("ring-broken", suspect=seen[0], reason=seen[1], told_by=seen[2])
        desk.send(ballot.coordinator, Suspect(desk.head.digest, ballot, *seen, failed.standing))
        self.go_on()  # what waited for this ring's result has to fetch it now

    # ---- accepting

    def on_accept(self, sender: Voter, message: Accept) -> None:
        desk, slots = self._desk, self._desk.state.slots
        if slots.survivors_of(message.ballot) is None:
            highest = slots.highest_promised
            outdone = highest is not None and highest > message.ballot
            desk.nack(
                sender, message.ballot, Reason.BALLOT_TOO_LOW if outdone else Reason.NOT_FOUND
            )
            return
        self._notice(sender, message.ballot)
        if not self._refused(sender, message):
            desk.state.pending_accept = (sender, message)
            self.go_on()

    def _refused(self, sender: Voter, message: Accept) -> bool:
        problem = self._objection(message.value)
        if message.value.survivors != self._desk.state.slots.survivors_of(message.ballot):
            problem = Reason.BAD_VOTERS  # a vote that no certificate could use
        if self._desk.state.slots.accepted_other(message.ballot, message.value):
            problem = Reason.EQUIVOCATION
            self._desk.offence(sender, problem)
        if problem is not None:
            self._desk.report("value-refused", reason=problem.value)
            self._desk.nack(sender, message.ballot, problem)
        return problem is not None

    def _objection(self, value: Value) -> Reason | None:
        """Why we do not vouch for `value`, as far as we can tell by ourselves."""
        desk, state = self._desk, self._desk.state
        if value.parent != desk.head.digest or value.round != desk.head.round + 1:
            return Reason.WRONG_HEAD
        composed = well_composed(value.contributions)
        if not composed or value.sequences <= 0 or not value.voters_next:
            return Reason.BAD_WEIGHT
        if state.composed.get(value.origin, value.contributions) != value.contributions:
            return Reason.BAD_WEIGHT  # not whom its ring averaged, or not as it did
        if not self._could_follow(value):
            return Reason.BAD_VOTERS
        counted = state.frozen_counts.get(value.origin)
        mine = [c.sequences for c in value.contributions if c.peer_id == desk.me.peer_id]
        if counted is not None and sum(mine) not in (0, counted):
            return Reason.BAD_WEIGHT
        ours = state.ring_results.get(value.origin)
        if ours is not None and ours != value.result_digest:
            return Reason.DIGEST_MISMATCH
        norm = state.held.get(value.result_digest)
        if norm is not None and not abs(norm - value.gradient_norm) <= _NORM_TOLERANCE * norm:
            return Reason.DIGEST_MISMATCH
        return None

    def _could_follow(self, value: Value) -> bool:
        desk = self._desk
        electors = value.survivors or desk.head.voters
        contributors = {Voter(part.peer_id, part.incarnation) for part in value.contributions}
        staying = None if desk.leaving else desk.me
        return could_follow(electors, contributors, value.voters_next, staying)

    def _accept(self, message: Accept) -> None:
        desk, slots = self._desk, self._desk.state.slots
        survivors = slots.survivors_of(message.ballot)
        if survivors is None:
            return
        slots.slot(survivors).accept(message.ballot, message.value)
        digest = message.value.digest()
        payload = vote_payload(desk.head.digest, message.ballot, digest, survivors)
        signature = desk.sign(VOTE_DOMAIN, signed_by(desk.me, payload))
        vote = AcceptedVote(desk.head.digest, message.ballot, digest, signature)
        desk.send(message.ballot.coordinator, vote)

    # ---- committing

    def on_commit(self, sender: Voter, commit: Commit) -> None:
        desk = self._desk
        value = commit.value
        if value.parent != desk.head.digest or value.round != desk.head.round + 1:
            return
        problem = certificate_problem(desk.head, commit)
        if problem is None and (value.sequences <= 0 or not value.voters_next):
            problem = Reason.BAD_WEIGHT
        if problem is None and self._knows_better_than(commit):
            problem = Reason.VOTER_ALIVE
        if problem is not None:
            desk.report("commit-refused", reason=problem.value, peer=sender.peer_id)
            if problem is not Reason.VOTER_ALIVE:
                desk.offence(sender, problem)
            return
        desk.state.pending_commit = commit
        self.go_on()

    def _knows_better_than(self, commit: Commit) -> bool:
        """Nobody steps on a branch while the voters here can do better, a voter on none that it
        would not have agreed to: if it is the better chain in the end, fork choice tells."""
        desk = self._desk
        if not commit.survivors:
            return False
        accepted = desk.state.slots.slot(commit.survivors).accepted
        if accepted is not None and accepted.value == commit.value:
            return False
        if desk.me in desk.head.voters and self._objects_to_branch(commit.survivors):
            return True
        branches = desk.head.after(commit.value).branches
        return too_weak(desk.head, desk.me, desk.view.fresh, branches)

    def go_on(self) -> None:
        """A result arrived, or is asked for: continue with whatever waits for it."""
        state = self._desk.state
        if self._desk.phase in BETWEEN_STATES:
            return  # the state itself is being written: once it is whole, a tick asks again
        commit = state.pending_commit
        if commit is not None:
            vouchers = tuple(vote.voter for vote in commit.votes)
            if self._at_hand(commit.value, vouchers):
                self._apply(commit)
                return
        # The commit's result may never come: whoever made it alone may be frozen, with the only
        # copy. Those who agreed to go on without it do not wait for it.
        if state.pending_accept is not None:
            sender, message = state.pending_accept
            vouchers = state.slots.survivors_of(message.ballot) or self._desk.head.voters
            if self._at_hand(message.value, vouchers):
                state.pending_accept = None
                if not self._refused(sender, message):
                    self._accept(message)

    def _at_hand(self, value: Value, vouchers: tuple[Voter, ...]) -> bool:
        """Whether the value's result is in memory; asks for it if no ring of ours brings it.

        Whoever averaged it may be gone by now; whoever accepted it holds it too.
        """
        desk, state = self._desk, self._desk.state
        if value.result_digest in state.held:
            return True
        coming = desk.phase is Phase.REDUCING and state.ballot == value.origin
        if not coming and value.result_digest not in state.fetching:
            state.fetching.add(value.result_digest)
            contributors = [part.peer_id for part in value.contributions]
            holders = dict.fromkeys(contributors + [voter.peer_id for voter in vouchers])
            holders.pop(desk.me.peer_id, None)
            desk.out.append(FetchResult(value.result_digest, tuple(holders)))
        return False

    def on_fetched(self, digest: bytes, norm: float) -> None:
        state = self._desk.state
        state.fetching.discard(digest)
        state.held[digest] = norm
        self.go_on()

    def on_fetch_failed(self, digest: bytes) -> None:
        state = self._desk.state
        if digest not in state.fetching:
            return
        state.fetching.discard(digest)
        accept, commit = state.pending_accept, state.pending_commit
        if accept is not None and accept[1].value.result_digest == digest:
            state.pending_accept = None
        if commit is None or commit.value.result_digest != digest:
            return
        state.pending_commit = None
        if self._desk.phase is not Phase.SYNCING:
            self._fetch_state_instead(commit)

    def _fetch_state_instead(self, commit: Commit) -> None:
        donors = [part.peer_id for part in commit.value.contributions]
        others = tuple(peer for peer in donors if peer != self._desk.me.peer_id)
        self.catch_up(others, "the committed result could not be fetched")

    def _apply(self, commit: Commit) -> None:
        desk = self._desk
        self._stop_ring()
        head = desk.head.after(commit.value)
        desk.out.append(Apply(commit, head))
        desk.enter(head, b"")
        desk.phase = Phase.STEPPING
        self._coordinator.reset()

    # ---- small things

    def _enter(self, phase: Phase) -> None:
        self._desk.phase = phase
        self._desk.state.since = self._desk.now

    def _notice(self, sender: Voter, ballot: Ballot) -> None:
        if sender != self._desk.me:
            self._desk.state.active_at = self._desk.now
            self._desk.state.active_by = sender.peer_id
            self._coordinator.step_aside(ballot)

"""This replica's part in attempts that a coordinator (perhaps itself) leads: promise, freeze,
reduce, vote, step. Voters and contributors alike."""

from collections.abc import Collection

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Value,
    Voter,
    certificate_problem,
    signed_by,
    vote_payload,
)
from atom.swarm.chain.messages import (
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
from atom.swarm.records.lease import LEASE_SECONDS
from atom.training.round.attempt import Stage
from atom.training.round.coordinator import Coordinator
from atom.training.round.election import objects_to_branch
from atom.training.round.electorate import ORDINARY, Survivors
from atom.training.round.events import (
    BETWEEN_STATES,
    Apply,
    CatchUp,
    ExchangeFailed,
    FetchResult,
    Freeze,
    Phase,
    StartExchange,
    Thaw,
)
from atom.training.round.faults import MOST_DONORS
from atom.training.round.round_state import RoundContext


class Participant:
    """See the module. It tells the coordinator beside it what happened here; the coordinator asks
    it for something by messages to itself, like every other participant."""

    def __init__(self, context: RoundContext, coordinator: Coordinator) -> None:
        self._context = context
        self._coordinator = coordinator

    def tick(self) -> None:
        """Nobody is waited for without end: then counting goes on, promises stay."""
        context = self._context
        self.go_on()
        waited = context.now - context.state.since
        if context.phase is Phase.PROMISED:
            alone = waited > LEASE_SECONDS and not self._coordinator_is_shown()
            if alone or waited > 2 * context.promise_patience() + 3:
                self._let_go()
        elif context.phase is Phase.HOLDING and waited > context.patience.holding:
            self._let_go()

    def _coordinator_is_shown(self) -> bool:
        """By a lease, or nobody is: then we are blind."""
        fresh, ballot = self._context.view.fresh, self._context.state.ballot
        if ballot is None or not fresh or ballot.coordinator == self._context.me.peer_id:
            return True
        lease = fresh.get(ballot.coordinator)
        return lease is not None and lease.incarnation == ballot.incarnation

    # ---- in and out of attempts

    def _notice(self, sender: Voter, ballot: Ballot) -> None:
        """Somebody leads an attempt: ours, if it is lower, is over."""
        if sender != self._context.me:
            self._context.state.led_at = self._context.now
            self._context.state.led_by = sender.peer_id
            self._coordinator.step_aside(ballot)

    def _let_go(self) -> None:
        """Back to accumulating. What was promised, accepted or held stays."""
        context = self._context
        self._coordinator.attempt = None
        if context.phase in (Phase.PROMISED, Phase.REDUCING, Phase.HOLDING):
            context.enter_phase(Phase.ACCUMULATING)
            context.out.append(Thaw())

    def catch_up(self, donors: Collection[str], reason: str, discard: bool = False) -> None:
        """Out of the rounds until the state is right again. Few are asked, those in sight first:
        whoever does not answer takes seconds, in which we vote for nothing."""
        fresh = self._context.view.fresh
        asked = tuple(sorted(donors, key=lambda peer: peer not in fresh)[:MOST_DONORS])
        self._let_go()
        self._context.phase = Phase.SYNCING
        self._context.out.append(CatchUp(asked, reason, discard))

    # ---- promising

    def on_prevote(self, sender: Voter, message: Prevote) -> None:
        context = self._context
        state, attempt = context.state, self._coordinator.attempt
        recent = context.now < state.led_at + context.patience.quiet
        led = recent and state.led_by != sender.peer_id
        engaged = attempt is not None and attempt.ballot is not None
        # a ring that runs makes progress, or says within seconds that it does not
        idle = context.phase not in (Phase.SYNCING, Phase.STEPPING, Phase.REDUCING)
        refusal: Reason | None = None
        if message.parent != context.head.digest:
            refusal = Reason.WRONG_HEAD
        elif engaged or led or not idle:
            refusal = Reason.BUSY
        else:
            refusal = self._problem_of_call(sender, message.survivors)
        word = "" if refusal is None else refusal.value
        context.send(sender.peer_id, PrevoteAnswer(message.parent, word))

    def _problem_of_call(self, sender: Voter, survivors: Survivors) -> Reason | None:
        """Why this peer may not lead, or not with these survivors."""
        head = self._context.head
        strangers = {voter.peer_id for voter in survivors} - head.known
        if sender not in (survivors or head.voters) or strangers:
            return Reason.NOT_A_VOTER
        objected = survivors and objects_to_branch(self._context, survivors)
        return Reason.VOTER_ALIVE if objected else None

    def on_prepare(self, sender: Voter, message: Prepare) -> None:
        context, ballot, survivors = self._context, message.ballot, message.survivors
        state = context.state
        if (problem := self._problem_of_call(sender, survivors)) is not None:
            context.nack(sender, ballot, problem)
            return
        if ballot == state.acceptor.promised.get(survivors):
            return  # a duplicate: our answer to the first is under way
        other = state.ballot is None or state.ballot.coordinator != sender.peer_id
        if context.phase is Phase.REDUCING and other:
            context.nack(sender, ballot, Reason.BUSY)  # a ring ends well, or soon
            return
        context.highest_attempt = max(context.highest_attempt, ballot.attempt)
        if not state.acceptor.promise(survivors, ballot):
            context.nack(sender, ballot, Reason.BALLOT_TOO_LOW)
            return
        self._notice(sender, ballot)
        context.enter_phase(Phase.PROMISED)
        state.ballot = ballot
        last = context.head.round + 1 == context.terms.last_round
        context.out.append(Freeze(ballot, goes_on=not (context.leaving or last)))

    def on_frozen(self, ballot: Ballot, sequences: int, loss_sum: float) -> None:
        """What is offered stands still: now the promise can be said."""
        context, state = self._context, self._context.state
        if context.phase is not Phase.PROMISED or state.ballot != ballot:
            return
        state.since = context.now
        state.promised[ballot] = sequences
        survivors = state.acceptor.survivors_of(ballot)
        if survivors is None:
            return
        promise = Promise(
            parent=context.head.digest,
            ballot=ballot,
            accepted=state.acceptor.accepted.get(survivors),
            accepted_before_branch=state.acceptor.accepted.get(ORDINARY) if survivors else None,
            sequences=sequences,
            loss_sum=loss_sum,
            state_digest=state.state_digest,
            leaving=context.leaving,
        )
        context.send(ballot.coordinator, promise)

    def on_abort(self, sender: Voter, message: Abort) -> None:
        context = self._context
        ours = context.state.ballot == message.ballot
        if not ours or context.phase is Phase.SYNCING:
            return
        if sender.peer_id != message.ballot.coordinator:
            return
        if message.reason == Reason.STATE_MISMATCH:
            there = set(context.view.fresh) - {context.me.peer_id} - context.view.quarantined
            voters = there & {voter.peer_id for voter in context.head.voters}
            donors = sorted(voters or there)  # the majority decides: of the run's own
            self.catch_up(donors, "our state differs from the others'", discard=True)
        else:
            self._let_go()

    # ---- reducing

    def on_ring(self, sender: Voter, message: Ring) -> None:
        context, state = self._context, self._context.state
        if context.phase is not Phase.PROMISED or message.ballot != state.ballot:
            return
        if message.ballot in state.averaged:
            return  # frames of its first run may still be about
        ours = [m.sequences for m in message.members if m.peer_id == context.me.peer_id]
        if ours != [state.promised.get(message.ballot)]:
            context.nack(sender, message.ballot, Reason.BAD_WEIGHT)
            return
        keep = self._kept()
        context.enter_phase(Phase.REDUCING)
        state.averaged[message.ballot] = b""
        context.out.append(
            StartExchange(message.parent, message.ballot, message.members, message.shares, keep)
        )

    def on_exchange_finished(self, ballot: Ballot, digest: bytes, norm: float) -> None:
        context, state = self._context, self._context.state
        if context.phase is not Phase.REDUCING or state.ballot != ballot:
            return
        context.enter_phase(Phase.HOLDING)
        state.held.add(digest)
        state.averaged[ballot] = digest
        self._coordinator.on_own_result(ballot, digest, norm)
        self.go_on()

    def on_exchange_failed(self, failed: ExchangeFailed) -> None:
        context, ballot = self._context, failed.ballot
        if context.phase is not Phase.REDUCING or context.state.ballot != ballot:
            return
        context.enter_phase(Phase.PROMISED)
        context.report("ring-broken", suspect=failed.suspect, reason=failed.reason)
        context.send(ballot.coordinator, Suspect(context.head.digest, ballot, failed.suspect))
        suspected = {failed.suspect} - {"", context.me.peer_id}
        self._coordinator.peers.fail(suspected, Stage.PREVOTE)  # what it has counted will not come
        if failed.suspect == ballot.coordinator != context.me.peer_id:
            self._let_go()
        self.go_on()  # what waited for this ring's result has to fetch it now

    # ---- accepting

    def on_accept(self, sender: Voter, message: Accept) -> None:
        context, acceptor = self._context, self._context.state.acceptor
        if acceptor.survivors_of(message.ballot) is None:
            highest = acceptor.highest_promised
            outdone = highest is not None and highest > message.ballot
            reason = Reason.BALLOT_TOO_LOW if outdone else Reason.NOT_FOUND
            context.nack(sender, message.ballot, reason)
            return
        self._notice(sender, message.ballot)
        context.state.pending_accept = (sender, message)
        self.go_on()

    def _vote(self, sender: Voter, message: Accept) -> None:
        """With the value's result at hand, unless a higher ballot was promised meanwhile."""
        context, acceptor = self._context, self._context.state.acceptor
        survivors = acceptor.survivors_of(message.ballot)
        if survivors is None:
            return
        if (problem := self._problem_of_value(message.value)) is not None:
            context.report("value-refused", reason=problem.value)
            context.nack(sender, message.ballot, problem)
            return
        acceptor.accept(message.ballot, message.value)
        parent, digest = context.head.digest, message.value.digest()
        payload = vote_payload(parent, message.ballot, digest, survivors)
        signature = context.sign(VOTE_DOMAIN, signed_by(context.me, payload))
        vote = AcceptedVote(parent, message.ballot, signature)
        context.send(message.ballot.coordinator, vote)

    def _problem_of_value(self, value: Value) -> Reason | None:
        """Why we do not vote for it: a memory, ours or the coordinator's, is damaged."""
        state = self._context.state
        if value.parent_state_digest != state.state_digest:
            return Reason.STATE_MISMATCH  # nobody could load a true state of our head any more
        ours = state.averaged.get(value.origin)
        return Reason.DIGEST_MISMATCH if ours and ours != value.result_digest else None

    # ---- committing

    def on_commit(self, sender: Voter, commit: Commit) -> None:
        """It continues our head."""
        problem = certificate_problem(self._context.head, commit)
        if problem is not None:
            self._context.offence(sender, problem)
        elif not self._leaves_a_quorums_round(commit):
            self._context.state.pending_commit = commit
            self.go_on()

    def _leaves_a_quorums_round(self, commit: Commit) -> bool:
        """A quorum's round comes first, until its result is known to be nowhere; unless we have
        agreed to go on without it."""
        state = self._context.state
        pending, accepted = state.pending_commit, state.acceptor.accepted.get(commit.survivors)
        if pending is None or pending.survivors or not commit.survivors:
            return False
        return accepted is None or accepted.value != commit.value

    def go_on(self) -> None:
        """A result arrived, or is asked for: continue with whatever waits for it."""
        state = self._context.state
        if self._context.phase in BETWEEN_STATES:
            return  # the state itself is being written: once it is whole, a tick asks again
        commit = state.pending_commit
        if commit is not None:
            vouchers = tuple(vote.voter for vote in commit.votes)
            if self._is_at_hand(commit.value, vouchers, committed=True):
                self._apply(commit)
                return
        # The commit's result may never come: a peer that made it alone may be frozen, with the
        # only copy. Those who agreed to go on without it do not wait for it.
        if state.pending_accept is not None:
            sender, message = state.pending_accept
            vouchers = state.acceptor.survivors_of(message.ballot) or self._context.head.voters
            if self._is_at_hand(message.value, vouchers, committed=False):
                state.pending_accept = None
                self._vote(sender, message)

    def _is_at_hand(self, value: Value, vouchers: tuple[Voter, ...], committed: bool) -> bool:
        """Whether the value's result is in memory; asks for it if no ring of ours brings it.

        A peer that averaged it may be gone by now; one that accepted it holds it too.
        """
        context, state = self._context, self._context.state
        if value.result_digest in state.held:
            return True
        coming = context.phase is Phase.REDUCING and state.ballot == value.origin
        if not coming and value.result_digest not in state.fetching:
            keep = self._kept()
            state.fetching.add(value.result_digest)
            contributors = [part.peer_id for part in value.contributions]
            holders = dict.fromkeys(contributors + [voter.peer_id for voter in vouchers])
            holders.pop(context.me.peer_id, None)
            context.out.append(FetchResult(value.result_digest, tuple(holders), committed, keep))
        return False

    def _kept(self) -> frozenset[bytes] | None:
        """Before another result comes: each is as large as the model. What we have not accepted,
        and do not wait for, is held by those that accepted it, if it is committed after all."""
        context, state = self._context, self._context.state
        if context.phase is Phase.REDUCING:
            return None  # its result may be there already, and we do not know its name
        values = [accepted.value for accepted in state.acceptor.accepted.values()]
        if state.pending_accept is not None:
            values.append(state.pending_accept[1].value)
        if state.pending_commit is not None:
            values.append(state.pending_commit.value)
        wanted = {value.result_digest for value in values}
        state.held &= wanted
        return frozenset(wanted | state.fetching)

    def on_fetched(self, digest: bytes, is_here: bool) -> None:
        state = self._context.state
        if digest not in state.fetching:
            return  # asked for at another head
        state.fetching.remove(digest)
        if is_here:
            state.held.add(digest)
            self.go_on()
        else:
            self._on_missing(digest)

    def _on_missing(self, digest: bytes) -> None:
        state = self._context.state
        accept, commit = state.pending_accept, state.pending_commit
        if accept is not None and accept[1].value.result_digest == digest:
            state.pending_accept = None
        if commit is None or commit.value.result_digest != digest:
            return
        state.pending_commit = None
        if self._context.phase is not Phase.SYNCING:
            donors = [part.peer_id for part in commit.value.contributions]
            others = [peer for peer in donors if peer != self._context.me.peer_id]
            self.catch_up(others, "the committed result could not be fetched")

    def _apply(self, commit: Commit) -> None:
        context = self._context
        head = context.head.after(commit.value)
        context.out.append(Apply(commit, head))
        context.enter_head(head, b"")
        context.phase = Phase.STEPPING
        self._coordinator.new_head(commit)

"""Participant of attempts, as voter or contributor: promise, freeze, average, vote, step.

A coordinator, perhaps this replica itself, leads the attempts.
"""

from collections.abc import Collection

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Value,
    Voter,
    signed_by,
    vote_payload,
)
from atom.swarm.chain.succession import (
    PROMISE_DOMAIN,
    VOUCH_DOMAIN,
    commit_problem,
    follows,
    promise_payload,
    unsupported,
    vouch_payload,
)
from atom.swarm.records.lease import LEASE_SECONDS
from atom.training.round import events
from atom.training.round.attempt import Stage, state_is_odd
from atom.training.round.coordinator import Coordinator
from atom.training.round.election import objects_to_branch
from atom.training.round.electorate import ORDINARY, Survivors, same_head
from atom.training.round.events import Phase
from atom.training.round.head_candidates import MOST_DONORS
from atom.training.round.round_state import RoundContext, result_in_memory, results_in_use


class Participant:
    """Answers of this replica to coordinators.

    The participant calls this replica's own coordinator directly. The coordinator asks the
    participant by messages to itself, as it asks all other peers.
    """

    def __init__(self, context: RoundContext, coordinator: Coordinator) -> None:
        self._context = context
        self._coordinator = coordinator

    def tick(self) -> None:
        """Stop waiting for a coordinator after a time limit; promises stay in force."""
        context = self._context
        self.go_on()
        waited = context.now - context.state.since
        if context.phase is Phase.PROMISED:
            alone = waited > LEASE_SECONDS and not self._coordinator_is_shown()
            if alone or waited > 2 * context.promise_patience() + 3:
                self._let_go()
        elif context.phase is Phase.HOLDING and waited > context.patience.holding:
            attempt = self._coordinator.attempt
            if attempt is None or attempt.ballot != context.state.ballot:
                self._let_go()  # our own attempt ends by its own limits, and judges its members

    def _coordinator_is_shown(self) -> bool:
        """Return True if the coordinator has a fresh lease, or if we see no fresh lease at all."""
        fresh, ballot = self._context.view.fresh, self._context.state.ballot
        if ballot is None or not fresh or ballot.coordinator == self._context.me.peer_id:
            return True
        lease = fresh.get(ballot.coordinator)
        return lease is not None and lease.incarnation == ballot.incarnation

    # ---- in and out of attempts

    def _notice(self, sender: Voter, ballot: Ballot) -> None:
        """Record that another peer leads an attempt; end ours if our ballot is lower."""
        if sender != self._context.me:
            self._context.state.led_at = self._context.now
            self._context.state.led_by = sender.peer_id
            self._coordinator.yield_to(ballot)

    def _let_go(self) -> None:
        """Go back to accumulating. Promises, accepted values and results stay."""
        context = self._context
        self._coordinator.attempt = None
        if context.phase in (Phase.PROMISED, Phase.REDUCING, Phase.HOLDING):
            context.held_by()
            context.enter_phase(Phase.ACCUMULATING)
            context.out.append(events.Thaw())

    def catch_up(
        self,
        donors: Collection[str],
        reason: str,
        discard: bool = False,
        forks: frozenset[bytes] | None = frozenset(),
    ) -> None:
        """Leave the rounds until the state is right again.

        Few donors are asked, visible ones first: each donor that does not answer costs seconds in
        which this replica does not vote.

        Args:
            donors: Peers to ask.
            reason: Explanation for the event log.
            discard: True if our own state must not be trusted.
            forks: Digests of the heads from which the donors' chain may branch; None: from any.
        """
        fresh = self._context.view.fresh
        asked = tuple(sorted(donors, key=lambda peer: peer not in fresh)[:MOST_DONORS])
        self._let_go()
        self._context.phase = Phase.SYNCING
        self._context.out.append(events.CatchUp(asked, reason, discard, forks))

    # ---- promising

    def on_prevote(self, sender: Voter, message: messages.Prevote) -> None:
        """Answer whether we would take part in an attempt of the sender; a refusal has a reason."""
        context = self._context
        state, attempt = context.state, self._coordinator.attempt
        recent = context.now < state.led_at + context.patience.quiet
        led = recent and state.led_by != sender.peer_id
        engaged = attempt is not None and attempt.ballot is not None
        # a running exchange makes progress, or fails within seconds
        idle = context.phase not in (Phase.SYNCING, Phase.STEPPING, Phase.REDUCING)
        refusal: Reason | None = None
        if message.parent != context.head.digest:
            refusal = Reason.WRONG_HEAD
        elif engaged or led or not idle or context.ignores(sender):
            refusal = Reason.BUSY
        else:
            refusal = self._problem_of_call(sender, message.survivors)
        word = "" if refusal is None else refusal.value
        context.send(sender.peer_id, messages.PrevoteAnswer(message.parent, word))

    def _problem_of_call(self, sender: Voter, survivors: Survivors) -> Reason | None:
        """Return why this peer may not lead, or not with these survivors; None if it may."""
        head = self._context.head
        strangers = {voter.peer_id for voter in survivors} - head.known
        if sender not in (survivors or head.voters) or strangers:
            return Reason.NOT_A_VOTER
        objected = survivors and objects_to_branch(self._context, survivors)
        return Reason.VOTER_ALIVE if objected else None

    def on_prepare(self, sender: Voter, message: messages.Prepare) -> None:
        """Promise a ballot and freeze our contribution, or refuse with a reason."""
        context, ballot, survivors = self._context, message.ballot, message.survivors
        state = context.state
        if (problem := self._problem_of_call(sender, survivors)) is not None:
            context.nack(sender, ballot, problem)
            return
        if ballot == state.acceptor.promised.get(survivors):
            return  # a duplicate: our answer to the first message is under way
        other = state.ballot is None or state.ballot.coordinator != sender.peer_id
        if (context.phase is Phase.REDUCING and other) or context.ignores(sender):
            context.nack(sender, ballot, Reason.BUSY)  # an exchange succeeds or fails soon
            return
        if not context.heard_attempt(ballot.attempt) or not state.acceptor.promise(
            survivors, ballot
        ):
            context.nack(sender, ballot, Reason.BALLOT_TOO_LOW)
            return
        context.held_by(sender.peer_id)
        self._notice(sender, ballot)
        context.enter_phase(Phase.PROMISED)
        state.ballot = ballot
        last = context.head.round + 1 == context.terms.last_round
        context.out.append(events.Freeze(ballot, goes_on=not (context.leaving or last)))

    def on_frozen(self, frozen: events.Frozen) -> None:
        """Send the promise, because the contribution no longer changes."""
        context, state, ballot = self._context, self._context.state, frozen.ballot
        if context.phase is not Phase.PROMISED or state.ballot != ballot:
            return
        state.since = context.now
        state.promised[ballot] = frozen.sequences
        survivors = state.acceptor.survivors_of(ballot)
        if survivors is None:
            return
        parent, digest, leaving = context.head.digest, state.state_digest, context.leaving
        work = frozen.sequences, frozen.loss_sum
        payload = promise_payload(parent, ballot, *work, digest, leaving)
        promise = messages.Promise(
            parent=parent,
            ballot=ballot,
            accepted=state.acceptor.accepted.get(survivors),
            accepted_before_branch=state.acceptor.accepted.get(ORDINARY) if survivors else None,
            sequences=frozen.sequences,
            loss_sum=frozen.loss_sum,
            state_digest=digest,
            signature=self._signed(PROMISE_DOMAIN, payload),
            leaving=leaving,
        )
        context.send(ballot.coordinator, promise)

    def _signed(self, domain: str, payload: bytes) -> bytes:
        return self._context.sign(domain, signed_by(self._context.me, payload))

    def on_abort(self, sender: Voter, message: messages.Abort) -> None:
        """Withdraw from our ballot, which its coordinator gave up; catch up if our state is odd."""
        context = self._context
        ours = context.state.ballot == message.ballot
        if not ours or context.phase is Phase.SYNCING:
            return
        if sender.peer_id != message.ballot.coordinator:
            return
        if message.reason == Reason.STATE_MISMATCH and self._state_is_odd(message.ballot):
            there = set(context.view.fresh) - {context.me.peer_id} - context.view.quarantined
            voters = there & {voter.peer_id for voter in context.head.voters}
            self.catch_up(sorted(voters or there), "our state differs from the others'", True)
        else:
            self._let_go()

    def _state_is_odd(self, ballot: Ballot) -> bool:
        """Return True if the leases of the voters confirm that our state is not the run's.

        A coordinator's claim alone is not enough reason to fetch a whole state.
        """
        context, state = self._context, self._context.state
        electors = state.acceptor.survivors_of(ballot) or context.head.voters
        shown = {
            Voter(peer_id, lease.incarnation): lease.state_digest
            for peer_id, lease in same_head(context.head, context.view).items()
            if lease.state_digest
        }
        return state_is_odd({**shown, context.me: state.state_digest}, electors, state.state_digest)

    # ---- averaging

    def on_ring(self, sender: Voter, message: messages.Ring) -> None:
        """Start the exchange that the coordinator composed, if our promise and sequences agree."""
        context, state = self._context, self._context.state
        if context.phase is not Phase.PROMISED or message.ballot != state.ballot:
            return
        if message.ballot in state.acceptor.averaging:
            return  # a repeated exchange could meet late frames of the first one
        if self._must_finish(message.ballot):
            context.nack(sender, message.ballot, Reason.BALLOT_TOO_LOW)
            return
        if len(message.members) > context.terms.most_members:
            context.nack(sender, message.ballot, Reason.TOO_LARGE)
            return
        ours = [m.sequences for m in message.members if m.peer_id == context.me.peer_id]
        if ours != [state.promised.get(message.ballot)]:
            context.nack(sender, message.ballot, Reason.BAD_WEIGHT)
            return
        keep = results_in_use(context)
        context.enter_phase(Phase.REDUCING)
        state.acceptor.averaging[message.ballot] = message
        context.out.append(
            events.StartExchange(
                message.parent, message.ballot, message.members, message.shares, keep
            )
        )

    def _must_finish(self, ballot: Ballot) -> bool:
        """Return True if our promise to this ballot reported an accepted value.

        A voter with an accepted value enters no new exchange, so no quorum vouches for a new result
        after a decision.
        """
        state = self._context.state
        survivors = state.acceptor.survivors_of(ballot)
        electors = survivors or self._context.head.voters
        reported = survivors is not None and state.acceptor.binds(survivors) is not None
        return reported and self._context.me in electors

    def on_exchange_finished(self, ballot: Ballot, digest: bytes, norm: float) -> None:
        """Hold the result of our exchange, and vouch for its value."""
        context, state = self._context, self._context.state
        if context.phase is not Phase.REDUCING or state.ballot != ballot:
            return
        context.enter_phase(Phase.HOLDING)
        state.held[digest] = norm
        ring = state.acceptor.averaging[ballot]
        value = Value(
            parent=context.head.digest,
            round=context.head.round + 1,
            origin=ballot,
            result_digest=digest,
            gradient_norm=norm,
            parent_state_digest=state.state_digest,
            contributions=ring.members,
            voters_next=ring.voters_next,
            survivors=state.acceptor.survivors_of(ballot) or ORDINARY,
        )
        self._vouch(ballot, value)
        self.go_on()

    def _vouch(self, ballot: Ballot, value: Value) -> None:
        """Vouch for a value whose result is here, unless we vouched for another one at this ballot.

        Why two values are never decided, with at most one liar from four voters on. Say a quorum
        accepted v at ballot b: a quorum had vouched for v at b. Let w be the first other value for
        which a quorum vouches at a ballot from b on. That ballot is not b, because an honest voter
        is in both quorums of vouchers and vouches once per ballot. So it is higher, and an honest
        voter that vouched for w had accepted v, before it promised that ballot. It entered no
        exchange there (`_must_finish`), and vouched against what it had accepted only because a
        quorum had vouched for w between b and that ballot (`_problem_of_value`): then w was not the
        first at that ballot.
        """
        context = self._context
        if context.state.acceptor.vouched.setdefault(ballot, value) != value:
            return
        digest = value.digest()
        payload = vouch_payload(context.head.digest, ballot, digest)
        signature = self._signed(VOUCH_DOMAIN, payload)
        context.send(
            ballot.coordinator, messages.Vouched(context.head.digest, ballot, digest, signature)
        )

    def on_exchange_failed(self, failed: events.ExchangeFailed) -> None:
        """Report the suspect of a broken exchange to the coordinator, and wait for a new one."""
        context, ballot = self._context, failed.ballot
        if context.phase is not Phase.REDUCING or context.state.ballot != ballot:
            return
        context.enter_phase(Phase.PROMISED)
        context.report("ring-broken", suspect=failed.suspect, reason=failed.reason)
        context.send(
            ballot.coordinator, messages.Suspect(context.head.digest, ballot, failed.suspect)
        )
        suspected = {failed.suspect} - {"", context.me.peer_id}
        members = context.state.acceptor.averaging[ballot].members
        peers = self._coordinator.peers
        if not peers.newcomers_broke([member.peer_id for member in members], suspected):
            peers.fail(suspected, Stage.PREVOTE)  # its counted sequences cannot be relied on
        if failed.suspect == ballot.coordinator != context.me.peer_id:
            self._let_go()
        self.go_on()  # a vote that waited for this exchange's result has to fetch it now

    # ---- accepting

    def on_accept(self, sender: Voter, message: messages.Accept) -> None:
        """Vote for a proposed value, refuse it, or fetch its result first."""
        context, acceptor = self._context, self._context.state.acceptor
        if acceptor.survivors_of(message.ballot) is None:
            highest = acceptor.highest_promised
            outdone = highest is not None and highest > message.ballot
            reason = Reason.BALLOT_TOO_LOW if outdone else Reason.NOT_FOUND
            context.nack(sender, message.ballot, reason)
            return
        # Only while holding, which has a time limit: repeated values could block us for ever.
        if context.phase is Phase.HOLDING:
            self._notice(sender, message.ballot)
        if (problem := self._problem_of_value(message)) is not None:
            self._refuse(sender, message, problem)
            return
        context.state.pending_accept = (sender, message)
        self.go_on()

    def _refuse(self, sender: Voter, message: messages.Accept, problem: Reason) -> None:
        self._context.report("value-refused", reason=problem.value)
        self._context.nack(sender, message.ballot, problem)

    def _vote(self, sender: Voter, message: messages.Accept) -> None:
        """Vote for a value whose result is here, unless we have promised a higher ballot since.

        If no quorum has vouched for the value at this ballot, vouch for it instead.
        """
        context, acceptor, value = self._context, self._context.state.acceptor, message.value
        survivors = acceptor.survivors_of(message.ballot)
        if survivors is None:
            return
        entered = acceptor.averaging.get(value.origin)
        members = value.contributions if entered is None else entered.members
        ours = acceptor.vouched.get(value.origin, value).result_digest
        found = members, ours, context.state.held[value.result_digest]
        if found != (value.contributions, value.result_digest, value.gradient_norm):
            self._refuse(sender, message, Reason.DIGEST_MISMATCH)
            return
        if message.vouched_at != message.ballot:
            self._vouch(message.ballot, value)
            return
        acceptor.accept(message.ballot, value, message.evidence)
        payload = vote_payload(context.head.digest, message.ballot, value.digest(), survivors)
        vote = self._signed(VOTE_DOMAIN, payload)
        answer = messages.AcceptedVote(context.head.digest, message.ballot, vote)
        context.send(message.ballot.coordinator, answer)

    def _problem_of_value(self, message: messages.Accept) -> Reason | None:
        """Return why we may not vote for a value; None if we may. Its result is not checked."""
        state, value = self._context.state, message.value
        other_slot = value.survivors != state.acceptor.survivors_of(message.ballot)
        if other_slot or message.vouched_at > message.ballot:
            return Reason.BAD_CERTIFICATE
        if value.parent_state_digest != state.state_digest:
            return Reason.STATE_MISMATCH  # else no true state of our head could be loaded later
        accepted = state.acceptor.accepted.get(value.survivors)
        if accepted and accepted.value != value and message.vouched_at <= accepted.ballot:
            return Reason.SUPERSEDED  # the value that we accepted may have been decided
        return self._problem_of_claims(message)

    def _problem_of_claims(self, message: messages.Accept) -> Reason | None:
        """Compare the value with the rules, its evidence, and the exchange that we took part in."""
        context, value = self._context, message.value
        if (problem := follows(context.head, value)) is not None:
            return problem
        if problem := unsupported(context.head, value, message.evidence, message.vouched_at):
            return problem
        ours = context.state.acceptor.averaging.get(value.origin)
        if ours is None:
            counted = context.me in {member.voter for member in value.contributions}
            return Reason.BAD_WEIGHT if counted else None
        return Reason.BAD_WEIGHT if ours.members != value.contributions else None

    # ---- committing

    def on_commit(self, sender: Voter, commit: Commit) -> None:
        """Take a commit that names our head as its parent."""
        problem = commit_problem(self._context.head, commit)
        if problem is not None:
            self._context.offence(sender, problem)
        elif self._may_follow(commit):
            self._context.state.pending_commit = commit
            self.go_on()

    def _may_follow(self, commit: Commit) -> bool:
        """Return False for a branch that we object to, and did not accept.

        We object if a quorum has decided the round or may still decide it. Otherwise any single
        contributor to the last round could open a branch.
        """
        state = self._context.state
        accepted = state.acceptor.accepted.get(commit.survivors)
        if not commit.survivors or (accepted is not None and accepted.value == commit.value):
            return True
        pending = state.pending_commit
        decided = pending is not None and not pending.survivors
        return not decided and not objects_to_branch(self._context, commit.survivors)

    def go_on(self) -> None:
        """Continue with the commit or the vote that waits for a result, if the result is here."""
        context, state = self._context, self._context.state
        if context.phase in events.BETWEEN_STATES:
            return  # the state is being written; a later tick tries again
        commit = state.pending_commit
        if commit is not None:
            vouchers = tuple(vote.voter for vote in commit.votes)
            if result_in_memory(context, commit.value, vouchers, committed=True):
                self._apply(commit)
                return
        # The commit's result may never come: the peer with the only copy may be frozen. Peers that
        # agreed to go on without it do not wait for it.
        if state.pending_accept is not None:
            sender, message = state.pending_accept
            vouchers = state.acceptor.survivors_of(message.ballot) or context.head.voters
            if result_in_memory(context, message.value, vouchers, committed=False):
                state.pending_accept = None
                self._vote(sender, message)

    def on_fetched(self, fetched: events.ResultFetched) -> None:
        """Take a result that was fetched, and go on with the decisions that waited for it."""
        state = self._context.state
        if fetched.digest not in state.fetching:
            return  # it was requested at another head
        state.fetching.remove(fetched.digest)
        if fetched.in_memory:
            state.held[fetched.digest] = fetched.norm
            self.go_on()
        else:
            self._on_missing(fetched.digest)

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
            forks = frozenset({commit.value.parent} if commit.survivors else ())
            self.catch_up(others, "the committed result could not be fetched", forks=forks)

    def _apply(self, commit: Commit) -> None:
        context = self._context
        context.out.append(events.Apply(commit))
        context.enter_head(context.head.after(commit.value), b"")
        context.phase = Phase.STEPPING
        self._coordinator.new_head(commit)

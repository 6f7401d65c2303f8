"""Leading an attempt: pre-vote, prepare, ring, accept, commit. Anyone may, in turn; nobody must.

A coordinator holds no authority over what is true. It may only propose a result that the ring of
its own ballot made, or finish a value that somebody in a quorum accepted before.
"""

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Value, Voter
from atom.swarm.chain.membership import standing
from atom.swarm.chain.messages import (
    Abort,
    Accept,
    AcceptedVote,
    CommitNotice,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
)
from atom.swarm.records.lease import Lease
from atom.training.round.attempt import Attempt, Stage, odd_states_out
from atom.training.round.desk import Desk
from atom.training.round.electorate import Electorate, same_head
from atom.training.round.events import RingFailed
from atom.training.round.hold_up import HoldUp
from atom.training.round.ring_watch import RingWatch
from atom.training.round.scrutiny import objects_to_branch, problem_with_vote
from atom.training.round.silence import Silence
from atom.training.round.turn import Turn

MOST_ONLOOKERS_TOLD = 32
"""Of a commit, of those that neither were at its parent nor had a part in it. Leases are free; who
hears nothing sees the new head in others' leases."""


class Coordinator:
    """This replica's attempts, at most one at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._serial = 0
        self._last_attempt = 0
        """Over all heads: late word of an old ballot must never be taken for a new one's."""
        self._rings = RingWatch(desk)
        self._silence = Silence(desk)
        self._hold_up = HoldUp(desk)
        self._turn = Turn(desk, self._rings, self._silence, self._hold_up)
        self.reset()

    def reset(self) -> None:
        """A new head: no attempt, no patience lost, nobody suspected."""
        self.attempt: Attempt | None = None
        self._turn.new_head()
        self._silence.new_head()
        self._hold_up.new_head()

    # ---- when

    def tick(self) -> None:
        if self.attempt is not None:
            self._watch(self.attempt)
        if self.attempt is None:
            chosen = self._turn.come()
            if chosen is not None:
                self._begin(chosen)
        self._hold_up.tick(self._turn.caused, self.attempt is not None)

    def rest(self) -> None:
        """We were frozen: what we know is old, and others lead by now."""
        self._turn.rest()
        if self.attempt is not None:
            self.give_up(Reason.SUPERSEDED)

    def answering(self, leases: dict[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` to count on: whose work will come to the next ring."""
        return self._turn.answering(leases)

    @property
    def waiting_for(self) -> frozenset[str]:
        return self._turn.waiting_for

    @property
    def in_doubt(self) -> bool:
        """Whether the others may not reach us: no call of ours is answered, no ring holds."""
        return self._silence.unanswered or self._turn.stood_back

    def _watch(self, attempt: Attempt) -> None:
        now = self._desk.now
        if attempt.stage is Stage.PREVOTE and now >= attempt.deadline:
            self._silence.after_prevotes(attempt)
            self.give_up(Reason.NO_QUORUM)
        elif attempt.stage is Stage.PREPARE:
            self._check_promises()
        elif attempt.stage is Stage.RING:
            self._check_ring(attempt)
        elif attempt.stage is Stage.ACCEPT:
            self._check_votes()
            late = now - attempt.since > self._desk.patience.holding
            if late and self.attempt is attempt:
                self.give_up(Reason.NO_QUORUM)

    # ---- pre-vote and prepare

    def _begin(self, chosen: Electorate) -> None:
        desk = self._desk
        self._serial += 1
        deadline = desk.now + desk.patience.prevote
        self.attempt = Attempt(chosen, Stage.PREVOTE, desk.now, deadline, self._serial)
        self.attempt.agreeable.add(desk.me)
        others = [voter.peer_id for voter in chosen.voters if voter != desk.me]
        desk.tell(others, Prevote(desk.head.digest, self._serial, chosen.survivors))
        self._check_prevotes(self.attempt)

    def on_prevote_answer(self, sender: Voter, message: PrevoteAnswer) -> None:
        attempt = self.attempt
        if attempt is None or attempt.stage is not Stage.PREVOTE:
            return
        if message.serial != attempt.serial:
            return
        if message.refusal:
            attempt.refused.add(sender.peer_id)
            return
        attempt.agreeable.add(sender)
        self._hold_up.forgive(sender, Stage.PREVOTE)
        self._check_prevotes(attempt)

    def _check_prevotes(self, attempt: Attempt) -> None:
        if not attempt.electorate.satisfied_by(attempt.agreeable):
            return
        survivors = attempt.electorate.survivors
        if self._turn.has_cause() and not (survivors and objects_to_branch(self._desk, survivors)):
            self._prepare(attempt.electorate)
        else:  # while we asked, whoever made up the batch has gone, or a voter has come back
            self.attempt = None

    def _prepare(self, chosen: Electorate) -> None:
        desk = self._desk
        if chosen.survivors:
            desk.report("branch-attempt", survivors=[v.peer_id for v in chosen.survivors])
        promised = desk.state.slots.highest_promised
        seen = max(promised.attempt if promised else 0, desk.state.highest_seen)
        self._last_attempt = number = max(seen, self._last_attempt) + 1
        ballot = Ballot(number, desk.me.peer_id, desk.me.incarnation)
        invited = set(same_head(desk.head, desk.view)) | {desk.me.peer_id}
        invited -= self._rings.dispensable(chosen, invited)
        invited -= self._hold_up.dispensable(chosen, invited)
        deadline = desk.now + desk.promise_patience(self._silence.mute)
        self.attempt = Attempt(chosen, Stage.PREPARE, desk.now, deadline, ballot=ballot)
        self.attempt.invited = invited
        self.attempt.expected = self._silence.worth_waiting(chosen, invited)
        desk.tell(invited, Prepare(desk.head.digest, ballot, chosen.survivors))

    def on_promise(self, sender: Voter, message: Promise) -> None:
        attempt = self._attempt_of(message.ballot, Stage.PREPARE)
        lease = self._desk.view.fresh.get(sender.peer_id)
        outlived = lease is not None and lease.incarnation != sender.incarnation
        if attempt is None or outlived or sender.peer_id not in attempt.invited:
            return
        self._silence.broken_by(sender.peer_id)
        attempt.expected.add(sender.peer_id)
        self._hold_up.forgive(sender, Stage.PREPARE)
        if attempt.take(sender, message):
            self._check_promises()

    def _check_promises(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        if not attempt.all_answered() and self._desk.now < attempt.deadline:
            return
        promised = {voter.peer_id for voter in attempt.promises}
        self._silence.after_promises(attempt, promised)
        if not attempt.decidable() or self._desk.me not in attempt.promises:
            self.give_up(Reason.NO_QUORUM)
            return
        accepted = attempt.to_finish()
        members = self._rings.members(attempt)
        if accepted is not None:
            self._desk.report("finishing-accepted", attempt=accepted.ballot.attempt)
            self._propose(attempt, attempt.finished(accepted.value, self._desk.view.dead))
        elif sum(member.sequences for member in members) < self._desk.terms.global_batch:
            silent = attempt.invited - promised
            self.give_up(Reason.TIMEOUT if silent else Reason.EARLY, silent=sorted(silent))
        elif not self._part_with_odd_states(attempt):
            self._call_ring(attempt)

    def _part_with_odd_states(self, attempt: Attempt) -> bool:
        desk = self._desk
        states = {voter: promise.state_digest for voter, promise in attempt.promises.items()}
        odd = odd_states_out(states, standing(attempt.electorate.voters))
        if not odd:
            return False
        desk.report("state-mismatch", peers=sorted(voter.peer_id for voter in odd))
        assert attempt.ballot is not None
        message = Abort(desk.head.digest, attempt.ballot, Reason.STATE_MISMATCH)
        attempt.part_with(odd)
        for voter in odd:
            desk.offence(voter, Reason.STATE_MISMATCH)
        if desk.me not in odd:
            self.give_up(Reason.SUPERSEDED)
        desk.tell([voter.peer_id for voter in odd], message)
        return True

    # ---- ring

    def _call_ring(self, attempt: Attempt) -> None:
        desk = self._desk
        assert attempt.ballot is not None
        self._rings.compose(attempt)
        attempt.stage = Stage.RING
        attempt.since = desk.now
        ring = Ring(desk.head.digest, attempt.ballot, attempt.members, attempt.shares)
        desk.tell([member.peer_id for member in attempt.members], ring)

    def on_suspect(self, sender: Voter, message: Suspect) -> None:
        attempt = self._attempt_of(message.ballot, Stage.RING)
        if attempt is None or all(m.peer_id != sender.peer_id for m in attempt.members):
            return
        self._rings.hear(attempt, sender.peer_id, message)
        self._check_ring(attempt)

    def _check_ring(self, attempt: Attempt) -> None:
        if not self._rings.is_over(attempt):
            return
        self._rings.judge(attempt)
        self.give_up(Reason.RING_BROKEN)
        own_word = self._rings.own_fault
        if own_word or (self._rings.our_fault_it_seems and not self._turn.stood_back):
            self._turn.stand_back(own_word)
        elif self._rings.promising:
            self._turn.at_once()

    def on_own_result(self, ballot: Ballot, digest: bytes, norm: float) -> None:
        """Our ring finished: if it was our attempt's, propose what it made."""
        attempt = self._attempt_of(ballot, Stage.RING)
        if attempt is None:
            return
        state, dead = self._desk.state.state_digest, self._desk.view.dead
        self._propose(attempt, attempt.averaged(self._desk.head, state, digest, norm, dead))

    # ---- accept and commit

    def on_result_missing(self, digest: bytes) -> None:
        """It could not be fetched."""
        if self.attempt is not None:
            self._hold_up.not_served(self.attempt.holders(digest))

    def _propose(self, attempt: Attempt, value: Value) -> None:
        assert attempt.ballot is not None
        attempt.stage = Stage.ACCEPT
        attempt.value = value
        attempt.since = self._desk.now
        message = Accept(self._desk.head.digest, attempt.ballot, value)
        self._desk.tell([voter.peer_id for voter in attempt.electorate.voters], message)

    def on_vote(self, sender: Voter, message: AcceptedVote) -> None:
        attempt = self._attempt_of(message.ballot, Stage.ACCEPT)
        if attempt is None or attempt.value is None or sender not in attempt.electorate.voters:
            return
        survivors = attempt.electorate.survivors
        reason = problem_with_vote(self._desk, attempt.value, survivors, sender, message)
        if reason is not None:
            self._desk.report("vote-refused", peer=sender.peer_id, reason=reason.value)
            self._desk.offence(sender, reason)
            return
        attempt.votes[sender] = message.signature
        self._hold_up.forgive(sender, Stage.ACCEPT)
        self._check_votes()

    def _check_votes(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        voted = set(attempt.votes)
        if not attempt.electorate.satisfied_by(voted):
            return
        waited = self._desk.now - attempt.since
        if voted >= attempt.voters_waited_for() or waited >= self._desk.patience.votes:
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        desk, commit = self._desk, attempt.commit()
        audience = set(same_head(desk.head, desk.view)) | {desk.me.peer_id}
        audience |= {member.peer_id for member in commit.value.contributions}
        audience |= {voter.peer_id for voter in attempt.electorate.voters}
        others = sorted(desk.view.fresh.keys() - audience)  # joiners about to arrive, or a crowd
        audience |= set(desk.jitter.sample(others, min(MOST_ONLOOKERS_TOLD, len(others))))
        self.attempt = None
        desk.tell(audience, CommitNotice(commit))

    # ---- giving up

    def on_nack(self, sender: Voter, message: Nack) -> None:
        desk = self._desk
        attempt = self.attempt
        if attempt is None or attempt.ballot != message.ballot:
            return
        if sender.peer_id not in attempt.invited:
            return
        first = sender.peer_id not in attempt.refused
        if first and message.promised is not None and sender in attempt.electorate.voters:
            desk.state.see(message.promised.attempt)
        stage = attempt.stage.value
        desk.report("nack", peer=sender.peer_id, reason=message.reason, stage=stage)
        attempt.refused.add(sender.peer_id)
        ends = message.reason in (Reason.BALLOT_TOO_LOW, Reason.VOTER_ALIVE)
        if ends and sender in attempt.electorate.voters:
            self.give_up(Reason.SUPERSEDED)
        elif attempt.stage is Stage.RING:
            refusal = Suspect(message.parent, message.ballot, sender.peer_id, message.reason)
            self.on_suspect(sender, refusal)
        else:
            self.on_unreachable(sender.peer_id)

    def on_broken_ring(self, failed: RingFailed) -> None:
        """We were in it. What its suspect has counted will not come."""
        self._silence.of([failed.suspect])

    def on_unreachable(self, peer_id: str) -> None:
        """Nobody there, or nothing to be had from it: stop waiting for its answer."""
        self._silence.of([peer_id])
        attempt = self.attempt
        if attempt is None:
            return
        attempt.expected.discard(peer_id)
        if attempt.stage is Stage.PREPARE:
            self._check_promises()
        elif attempt.stage is Stage.ACCEPT:
            self._check_votes()

    def step_aside(self, ballot: Ballot) -> None:
        """A higher ballot of somebody else ends our attempt, silently."""
        attempt = self.attempt
        if attempt is not None and (attempt.ballot is None or attempt.ballot < ballot):
            self.attempt = None
            self._turn.back_off()

    def give_up(self, reason: Reason, **details: object) -> None:
        """Ends the attempt; whoever took part goes back to accumulating."""
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        story = {"reason": reason.value, "stage": attempt.stage.value, **details}
        self._desk.report("attempt-ended", round=self._desk.head.round + 1, **story)
        self._hold_up.learn(attempt, reason)
        unheeded = reason is Reason.NO_QUORUM and attempt.stage is Stage.PREPARE
        self._turn.back_off(unheeded)
        if attempt.ballot is not None:
            asked = attempt.invited | {voter.peer_id for voter in attempt.promises}
            self._desk.tell(asked, Abort(self._desk.head.digest, attempt.ballot, reason))

    def _attempt_of(self, ballot: Ballot, stage: Stage) -> Attempt | None:
        attempt = self.attempt
        if attempt is None or attempt.ballot != ballot or attempt.stage is not stage:
            return None
        return attempt

"""Coordinator of attempts: pre-vote, prepare, exchange, accept, commit.

Any voter may lead, in turn. A coordinator cannot decide alone. It may only propose a value that a
quorum of voters vouches for: the result of the exchange that it called, or a value that a voter
accepted before.
"""

import math
from collections.abc import Set as AbstractSet

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    MemberCount,
    Vote,
    Voter,
    signature_holds,
    vote_payload,
)
from atom.swarm.chain.succession import (
    PROMISE_DOMAIN,
    VOUCH_DOMAIN,
    follows,
    promise_payload,
    unsupported,
    vouch_payload,
)
from atom.swarm.records.lease import PeerState
from atom.training.round.attempt import Attempt, Stage, choose_exchange, odd_states_out
from atom.training.round.election import LeaderElection
from atom.training.round.electorate import Electorate, same_head, trusted_peers_rest
from atom.training.round.faults import UnreliablePeers
from atom.training.round.round_state import RoundContext

MOST_ONLOOKERS_NOTIFIED = 32
"""Largest number of peers outside the round that get a notice of its commit.

These peers are neither at the commit's parent nor in its exchange. The number is limited because
anyone can publish leases; a peer without a notice sees the new head in other leases.
"""


class Coordinator:
    """Attempts of this replica, at most one at a time."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self.peers = UnreliablePeers(context)
        self.election = LeaderElection(context, self.peers)
        self.attempt: Attempt | None = None

    def new_head(self, commit: Commit | None = None) -> None:
        """Forget the attempt of the last head.

        Args:
            commit: Commit that led to the new head; None if this replica caught up.
        """
        self.attempt = None
        me, parts = self._context.me.peer_id, commit.value.contributions if commit else ()
        members = {part.peer_id for part in parts}
        self.peers.new_head(members if me in members else set())
        self.election.new_head()

    # ---- time

    def tick(self, passed: float) -> None:
        """Advance the attempt, or begin one.

        Args:
            passed: Seconds since the last tick.
        """
        if self.attempt is not None:
            self._watch(self.attempt)
        if self.attempt is None:
            chosen = self.election.come()
            if chosen is not None:
                self._begin(chosen)
        self.election.watch(self.attempt is not None, passed)

    def rest(self) -> None:
        """Stop leading after this process stood still: another voter leads by now."""
        if self.attempt is not None:
            self._give_up(Reason.SUPERSEDED)
        self.election.rest()

    def _watch(self, attempt: Attempt) -> None:
        if attempt.stage is Stage.PREPARE:
            self._check_promises(attempt)
        elif self._context.now < attempt.deadline:
            return
        elif attempt.stage is Stage.RING:
            if attempt.testimonies or not self._still_average(attempt):
                self._judge(attempt)
        else:
            self._give_up(Reason.NO_QUORUM)

    def _still_average(self, attempt: Attempt) -> bool:
        """Return True if a voter whose report is missing says that its exchange continues.

        The voter is believed for as long as the exchange has taken here.
        """
        context = self._context
        took_s = attempt.deadline - context.patience.holding - attempt.averages_since
        if context.now >= attempt.deadline + took_s:
            return False
        fresh = context.view.fresh
        leases = [fresh.get(voter.peer_id) for voter in attempt.awaited()]
        return any(lease is not None and lease.state is PeerState.REDUCING for lease in leases)

    # ---- pre-vote and prepare

    def _begin(self, chosen: Electorate) -> None:
        context = self._context
        deadline = context.now + context.patience.prevote
        attempt = self.attempt = Attempt(chosen, Stage.PREVOTE, deadline)
        attempt.agreeable.add(context.me)
        others = [voter.peer_id for voter in chosen.voters if voter != context.me]
        context.send_all(others, messages.Prevote(context.head.digest, chosen.survivors))
        self._check_prevotes(attempt)

    def on_prevote_answer(self, sender: Voter, message: messages.PrevoteAnswer) -> None:
        """Count a voter's answer to our call for an attempt; prepare once enough voters agree."""
        self.peers.forgive(sender.peer_id, Stage.PREVOTE)
        attempt = self.attempt
        if attempt is None or attempt.stage is not Stage.PREVOTE:
            return
        if message.refusal:
            attempt.refused.add(sender.peer_id)
            return
        attempt.agreeable.add(sender)
        self._check_prevotes(attempt)

    def _check_prevotes(self, attempt: Attempt) -> None:
        if attempt.electorate.satisfied_by(attempt.agreeable):
            self._prepare(attempt.electorate, attempt.agreeable)

    def _prepare(self, chosen: Electorate, agreeable: AbstractSet[Voter]) -> None:
        """Ask all peers at this head for a promise.

        A peer is at this head if its lease or its pre-vote answer says so. Strangers are waited for
        only while no voter and no peer with tenure works (`trusted_peers_rest`).
        """
        context = self._context
        if chosen.survivors:
            context.report("branch-attempt", survivors=[v.peer_id for v in chosen.survivors])
        context.highest_attempt += 1
        ballot = Ballot(context.highest_attempt, context.me.peer_id, context.me.incarnation)
        there = same_head(context.head, context.view)
        invited = set(there)
        invited |= {voter.peer_id for voter in agreeable}
        excluded, counted = self.peers.excluded, context.head.recent | self.peers.answered
        if trusted_peers_rest(context.head, context.view):
            counted |= invited
        self.attempt = Attempt(
            chosen,
            Stage.PREPARE,
            context.now + context.promise_patience(excluded, self.peers.answered),
            ballot=ballot,
            invited=invited,
            expected=invited & counted - excluded,
            claimed={peer: lease.sequences for peer, lease in there.items()},
        )
        context.send_all(invited, messages.Prepare(context.head.digest, ballot, chosen.survivors))

    def on_promise(self, sender: Voter, message: messages.Promise) -> None:
        """Check and count a promise; go on with the attempt once enough promises are here."""
        attempt = self._attempt_of(message.ballot, Stage.PREPARE)
        work, state = (message.sequences, message.loss_sum), message.state_digest
        payload = promise_payload(message.parent, message.ballot, *work, state, message.leaving)
        if not signature_holds(PROMISE_DOMAIN, Vote(sender, message.signature), payload):
            self._context.offence(sender, Reason.BAD_SIGNATURE)
            return
        if attempt is not None and not self._may_be_accepted(message):
            self._context.offence(sender, Reason.BAD_CERTIFICATE)
            return
        self.peers.forgive(sender.peer_id, Stage.PREPARE)  # a late answer clears the penalty
        self.peers.has_answered(sender.peer_id)
        if attempt is None or sender.peer_id not in attempt.invited:
            return
        if attempt.take(sender, message):
            self._check_promises(attempt)

    def _may_be_accepted(self, promise: messages.Promise) -> bool:
        """Return False if the promise reports an accepted value that cannot have been accepted.

        Such a value does not follow our head, its evidence does not hold, or its ballot is not
        lower than the promise's.
        """
        head, reports = self._context.head, (promise.accepted, promise.accepted_before_branch)
        return all(
            each.ballot < promise.ballot
            and follows(head, each.value) is None
            and unsupported(head, each.value, each.evidence, each.ballot) is None
            for each in reports
            if each is not None
        )

    def _check_promises(self, attempt: Attempt) -> None:
        context = self._context
        if not attempt.is_complete() and context.now < attempt.deadline:
            return
        self.peers.fail(attempt.owing(context.me, context.view), attempt.stage)
        if not attempt.decidable() or context.me not in attempt.promises:
            self._give_up(Reason.NO_QUORUM)
            return
        attempt.leave_out(self.peers.excluded)
        self._part_with_odd_states(attempt)
        if not attempt.decidable() or context.me not in attempt.promises:
            self._give_up(Reason.SUPERSEDED)
            return
        accepted, members = attempt.to_finish(), self._members(attempt)
        counted = sum(member.sequences for member in members)
        if accepted is not None:
            context.report("finishing-accepted", attempt=accepted.ballot.attempt)
            attempt.finish(context.head, accepted)
            self._propose(attempt)
        elif counted < context.terms.global_batch:
            self.peers.claimed_in_vain(attempt.overstated(), attempt.refused)
            silent = attempt.invited - attempt.answered.keys()
            self._give_up(Reason.TIMEOUT if silent else Reason.EARLY, silent=sorted(silent))
        else:
            self._call_exchange(attempt, members)

    def _part_with_odd_states(self, attempt: Attempt) -> None:
        """Drop the promises of peers whose state differs, and tell these peers to fetch it again.

        The attempt goes on with the other peers.
        """
        context = self._context
        states = {voter: promise.state_digest for voter, promise in attempt.promises.items()}
        odd = odd_states_out(states, attempt.electorate.voters)
        if not odd:
            return
        assert attempt.ballot is not None
        peers = sorted(voter.peer_id for voter in odd)
        context.report("state-mismatch", peers=peers)
        for voter in odd:
            context.offence(voter, Reason.STATE_MISMATCH)
            del attempt.promises[voter]
        context.send_all(
            peers, messages.Abort(context.head.digest, attempt.ballot, Reason.STATE_MISMATCH)
        )

    # ---- exchange

    def _members(self, attempt: Attempt) -> tuple[MemberCount, ...]:
        """Choose the members of an exchange among the peers that promised."""
        context, me = self._context, self._context.me.peer_id
        promised = {voter.peer_id for voter in attempt.promises}
        admitted = context.head.recent | self.peers.answered | {me}
        left_out = self.peers.excluded | promised - admitted
        return attempt.contributors(me, left_out, context.head, context.terms.most_members)

    def _call_exchange(self, attempt: Attempt, members: tuple[MemberCount, ...]) -> None:
        context = self._context
        assert attempt.ballot is not None
        voters_next = attempt.call(context.head, members)
        self._compose(attempt)
        attempt.stage, attempt.deadline = Stage.RING, math.inf
        attempt.averages_since = context.now
        ring = messages.Ring(
            context.head.digest, attempt.ballot, attempt.members, attempt.shares, voters_next
        )
        context.send_all([member.peer_id for member in attempt.members], ring)

    def _compose(self, attempt: Attempt) -> None:
        """Choose whether the attempt's members average in a ring or by parts."""
        context, peers = self._context, self.peers
        choice = choose_exchange(
            attempt.members,
            context.view,
            context.terms.average_bytes,
            context.terms.ring_possible and not peers.apart,
            peers.apart,
            context.head.tenured,
        )
        attempt.shares = choice.shares
        members = [member.peer_id for member in attempt.members]
        context.report("exchange-chosen", members=members, **choice.story())

    def on_suspect(self, sender: Voter, message: messages.Suspect) -> None:
        """Record a member's report that the exchange broke.

        The attempt ends a short time later, in which other members may report as well.
        """
        attempt = self._attempt_of(message.ballot, Stage.RING)
        if attempt is None or all(m.peer_id != sender.peer_id for m in attempt.members):
            return
        attempt.testimonies[sender.peer_id] = message.peer_id
        soon = self._context.now + self._context.patience.testimony
        attempt.deadline = min(attempt.deadline, soon)
        if len(attempt.testimonies) == len(attempt.members):
            self._judge(attempt)

    def _judge(self, attempt: Attempt) -> None:
        """End the attempt of a broken exchange, and decide which peers are at fault."""
        if not attempt.testimonies:
            self.peers.fail(attempt.owing(self._context.me, self._context.view), Stage.RING)
        me, members = self._context.me.peer_id, [member.peer_id for member in attempt.members]
        pairs = attempt.broken_pairs(me)
        if others := attempt.with_other_results(self._context.me):
            if attempt.sole_owner() == me:
                self.peers.fail(others, Stage.RING)  # the result came from us
            else:
                self.peers.own_alone(members)
        if not self.peers.newcomers_broke(members, {peer for pair in pairs for peer in pair}):
            self.peers.broke(pairs, len(members))
        excluded = sorted(self.peers.excluded)
        self._context.report("exchange-judged", ways=sorted(pairs), excluded=excluded)
        self._give_up(Reason.RING_BROKEN)

    def on_vouched(self, sender: Voter, message: messages.Vouched) -> None:
        """Record that a voter vouches for a value; propose the value once a quorum does so."""
        context, attempt, ballot = self._context, self.attempt, message.ballot
        if attempt is None or attempt.ballot != ballot or attempt.vouched_at == ballot:
            return
        if attempt.stage < Stage.RING or sender not in attempt.awaited():
            return
        payload = vouch_payload(message.parent, ballot, message.value)
        if not signature_holds(VOUCH_DOMAIN, Vote(sender, message.signature), payload):
            context.offence(sender, Reason.BAD_SIGNATURE)
            return
        attempt.vouched[sender] = message
        self.peers.forgive(sender.peer_id, attempt.stage)
        if sender == context.me:
            attempt.deadline = min(attempt.deadline, context.now + context.patience.holding)
        if attempt.certify(context.state.acceptor.vouched.get(ballot)):
            self._propose(attempt)
        elif attempt.stage is Stage.RING and not attempt.awaited():
            self._judge(attempt)  # all results are known, and they differ

    # ---- accept and commit

    def _propose(self, attempt: Attempt) -> None:
        assert attempt.ballot is not None
        assert attempt.value is not None
        assert attempt.vouched_at is not None
        attempt.stage = Stage.ACCEPT
        attempt.deadline = self._context.now + self._context.patience.holding
        proposed = attempt.ballot, attempt.value, attempt.evidence, attempt.vouched_at
        message = messages.Accept(self._context.head.digest, *proposed)
        self._context.send_all([voter.peer_id for voter in attempt.electorate.voters], message)

    def on_vote(self, sender: Voter, message: messages.AcceptedVote) -> None:
        """Check and count a vote for our value; commit the value once a quorum has voted."""
        attempt = self._attempt_of(message.ballot, Stage.ACCEPT)
        if attempt is None or attempt.value is None or sender not in attempt.electorate.voters:
            return
        digest, survivors = attempt.value.digest(), attempt.electorate.survivors
        payload = vote_payload(message.parent, message.ballot, digest, survivors)
        if not signature_holds(VOTE_DOMAIN, Vote(sender, message.signature), payload):
            self._context.offence(sender, Reason.BAD_SIGNATURE)
            return
        attempt.votes[sender] = message.signature
        self.peers.forgive(sender.peer_id, Stage.ACCEPT)
        if attempt.electorate.satisfied_by(set(attempt.votes)):
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        context, commit = self._context, attempt.commit()
        audience = set(same_head(context.head, context.view)) | {context.me.peer_id}
        audience |= {member.peer_id for member in commit.value.contributions}
        audience |= {voter.peer_id for voter in attempt.electorate.voters}
        others = sorted(context.view.fresh.keys() - audience)  # joiners, or any number of strangers
        count = min(MOST_ONLOOKERS_NOTIFIED, len(others))
        audience |= set(context.jitter.sample(others, count))
        self.attempt = None
        context.send_all(audience, messages.CommitNotice(commit))

    # ---- giving up

    def on_nack(self, sender: Voter, message: messages.Nack) -> None:
        """Count a refusal, and give up the attempt if the remaining voters are no quorum.

        A member that refuses during an exchange counts as the suspect of its failure.
        """
        context, attempt = self._context, self.attempt
        if attempt is None or attempt.ballot != message.ballot:
            return
        if sender.peer_id not in attempt.invited:
            return
        elector = sender in attempt.electorate.voters
        if message.promised is not None and elector:
            context.heard_attempt(message.promised.attempt)
        stage, peer = attempt.stage.name.lower(), sender.peer_id
        context.report("nack", peer=peer, reason=message.reason, stage=stage)
        attempt.refused.add(sender.peer_id)
        others = {v for v in attempt.electorate.voters if v.peer_id not in attempt.refused}
        if elector and not attempt.electorate.satisfied_by(others):
            self._give_up(Reason.SUPERSEDED)
        elif attempt.stage is Stage.RING:
            self.on_suspect(
                sender, messages.Suspect(message.parent, message.ballot, sender.peer_id)
            )
        elif attempt.stage is Stage.PREPARE:
            self._check_promises(attempt)

    def on_unreachable(self, peer_id: str) -> None:
        """Stop waiting for the promise of a peer that no address reaches."""
        self.peers.fail([peer_id], Stage.PREVOTE)
        attempt = self.attempt
        if attempt is not None and attempt.stage is Stage.PREPARE:
            attempt.refused.add(peer_id)
            self._check_promises(attempt)

    def yield_to(self, ballot: Ballot) -> None:
        """End our attempt silently if another coordinator's ballot is higher.

        If we have had a result for long, voters that have not reported it are excluded. Otherwise
        coordinators that interrupt each other in turn would never exclude a voter that withholds
        its report.
        """
        context, attempt = self._context, self.attempt
        if attempt is not None and (attempt.ballot is None or attempt.ballot < ballot):
            late = context.now >= attempt.deadline - context.patience.holding / 2
            if late and attempt.stage is Stage.RING and context.me in attempt.vouched:
                self.peers.fail(attempt.owing(context.me, context.view), attempt.stage)
            self.attempt = None
            self.election.back_off()

    def _give_up(self, reason: Reason, **details: object) -> None:
        """End the attempt; its participants go back to accumulating."""
        context, attempt, self.attempt = self._context, self.attempt, None
        assert attempt is not None
        story = {"reason": reason.value, "stage": attempt.stage.name.lower(), **details}
        context.report("attempt-ended", round=context.head.round + 1, **story)
        if attempt.electorate.survivors:  # the others may know better than to go on alone
            self.peers.ask_all_again()
        if reason is Reason.NO_QUORUM:
            self.peers.fail(attempt.owing(context.me, context.view), attempt.stage)
        self.election.back_off()
        if attempt.ballot is not None:
            asked = attempt.invited | {voter.peer_id for voter in attempt.promises}
            context.send_all(asked, messages.Abort(context.head.digest, attempt.ballot, reason))

    def _attempt_of(self, ballot: Ballot, stage: Stage) -> Attempt | None:
        attempt = self.attempt
        if attempt is None or attempt.ballot != ballot or attempt.stage is not stage:
            return None
        return attempt

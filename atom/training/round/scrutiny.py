"""What this replica does not vouch for, as far as it can tell by itself."""

from collections.abc import Sequence

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Commit, Contribution, Value, Voter, vote_payload
from atom.swarm.chain.membership import (
    certificate_problem,
    could_follow,
    reported,
    standing,
    voted,
)
from atom.swarm.chain.messages import Accept, AcceptedVote, Promise
from atom.swarm.records.fork_choice import too_weak
from atom.swarm.records.lease import Lease
from atom.swarm.ring.composition import well_composed
from atom.swarm.ring.sum_limits import SumLimits
from atom.training.round.attempt import odd_states_out
from atom.training.round.desk import Desk
from atom.training.round.electorate import objection_to_branch, same_head
from atom.training.round.slots import Survivors

_VIEW_SLACK_S = 2.0
"""Two peers' views of the same lease may differ by a renewal: how much sooner we agree."""
_OVERDUE_SLACK = 0.8
"""And on how long a head is held up: who proposes must have waited for all of it."""
_NORM_TOLERANCE = 1e-6
MOST_BATCHES = 2
"""Of one peer in a round: the one that its lease shows, and one more."""


def objects_to_branch(desk: Desk, survivors: Survivors) -> bool:
    """Whether we know better than these survivors that they have to go on alone."""
    if desk.patience_lost >= _OVERDUE_SLACK:
        return desk.behind  # who is left out may live: it does not help us
    patience = desk.patience.grace - _VIEW_SLACK_S if desk.terms.branches else float("inf")
    known_better = objection_to_branch(desk.head, desk.me, desk.view, survivors, max(patience, 0.0))
    return known_better or desk.behind


def problem_with_value(desk: Desk, value: Value) -> Reason | None:
    """Why we do not vote for `value`."""
    state = desk.state
    flaw = _flaw(desk, value)
    if flaw is not None:
        return flaw
    if state.composed.get(value.origin, value.contributions) != value.contributions:
        return Reason.BAD_WEIGHT  # not whom its ring averaged, or not as it did
    if not _could_follow(desk, value):
        return Reason.BAD_VOTERS
    counted = state.frozen_counts.get(value.origin)
    mine = [c.sequences for c in value.contributions if c.peer_id == desk.me.peer_id]
    if counted is not None and sum(mine) not in (0, counted):
        return Reason.BAD_WEIGHT
    ours = state.ring_results.get(value.origin)
    if ours is not None and ours != value.result_digest:
        return Reason.DIGEST_MISMATCH
    return problem_with_result(desk, value)


def problem_with_result(desk: Desk, value: Value) -> Reason | None:
    """Why no ring made this: told from the result itself, if it is in memory."""
    held = desk.state.held.get(value.result_digest)
    if held is None:
        return None
    if not abs(held.norm - value.gradient_norm) <= _NORM_TOLERANCE * held.norm:
        return Reason.DIGEST_MISMATCH
    return Reason.NOT_FINITE if held.largest > _largest_mean(desk, value) else None


def _largest_mean(desk: Desk, value: Value) -> float:
    """No ring of these makes a mean with a larger number: it would end first."""
    limits = SumLimits(desk.part_limit.of(value.sequences))
    return limits.mean(len(value.contributions), 1.0 / value.sequences)


def _flaw(desk: Desk, value: Value) -> Reason | None:
    """Why nobody votes for it."""
    if value.parent != desk.head.digest or value.round != desk.head.round + 1:
        return Reason.WRONG_HEAD
    composed = well_composed(value.contributions)
    if not composed or not makes_a_round(desk, value.contributions) or not value.voters_next:
        return Reason.BAD_WEIGHT
    if value.parent_state_digest != desk.state.state_digest:
        return Reason.STATE_MISMATCH  # nobody could load a true state of our head any more
    return None


def is_odd(desk: Desk, ballot: Ballot) -> bool:
    """Whether our state is another than most have of those who decide at that ballot, as their
    leases say. At one coordinator's word everybody would fetch it anew, as often as it calls."""
    electors = standing(desk.state.slots.survivors_of(ballot) or desk.head.voters)
    here = same_head(desk.head, desk.view)
    shown = {Voter(peer, lease.incarnation): lease.state_digest for peer, lease in here.items()}
    states = {voter: shown[voter] for voter in electors if shown.get(voter)}
    if not states:
        return False
    return desk.me in odd_states_out({**states, desk.me: desk.state.state_digest}, electors)


def problem_with_reports(desk: Desk, sender: Voter, promise: Promise) -> Reason | None:
    """Why this promise is none: nobody accepts such a value, or it does not stand by its word."""
    for said in (promise.accepted, promise.accepted_before_branch):
        if said is None:
            continue
        if _flaw(desk, said.value) is not None:
            return Reason.BAD_WEIGHT
        if not reported(sender, desk.head.digest, said.value.result_digest, said.signature):
            return Reason.BAD_SIGNATURE
    return None


def makes_a_round(desk: Desk, members: Sequence[Contribution]) -> bool:
    """Whether they counted a batch, and nobody more than any coordinator lets in: else one of them
    would have the swarm step on a sequence at a time, as often as it calls."""
    counts, batch = [member.sequences for member in members], desk.terms.global_batch
    return sum(counts) >= batch and max(counts) <= MOST_BATCHES * batch


def claims_too_much(desk: Desk, promise: Promise, lease: Lease | None) -> bool:
    """Nobody needs more than a whole batch beyond what its lease showed a moment ago; and a lease,
    which says what it likes, is good for one batch."""
    shown = batch = desk.terms.global_batch
    if lease is not None and lease.head == desk.head.digest:
        shown = min(lease.sequences, batch)
    return promise.sequences > shown + batch


def problem_with_vote(
    desk: Desk, value: Value, survivors: Survivors, sender: Voter, vote: AcceptedVote
) -> Reason | None:
    """Why this is no vote of `sender` for `value`."""
    digest = value.digest()
    payload = vote_payload(desk.head.digest, vote.ballot, digest, survivors)
    genuine = vote.value_digest == digest and voted(sender, payload, vote.signature)
    return None if genuine else Reason.BAD_SIGNATURE


def reporters(desk: Desk, accept: Accept) -> set[Voter]:
    """Who has signed that it accepted a value with this result."""
    parent, digest = desk.head.digest, accept.value.result_digest
    return {
        report.voter
        for report in accept.reports
        if report.voter in desk.head.voters
        and reported(report.voter, parent, digest, report.signature)
    }


def _could_follow(desk: Desk, value: Value) -> bool:
    electors = value.survivors or desk.head.voters
    contributors = {Voter(part.peer_id, part.incarnation) for part in value.contributions}
    staying = None if desk.leaving else desk.me
    return could_follow(electors, contributors, value.voters_next, staying)


def problem_with_commit(desk: Desk, commit: Commit) -> Reason | None:
    """Why we do not step with `commit`; VOTER_ALIVE: perhaps later, and nobody is to blame."""
    value = commit.value
    problem = certificate_problem(desk.head, commit)
    if problem is None and (value.sequences <= 0 or not value.voters_next):
        problem = Reason.BAD_WEIGHT
    if problem is None and _knows_better_than(desk, commit):
        problem = Reason.VOTER_ALIVE
    return problem


def _knows_better_than(desk: Desk, commit: Commit) -> bool:
    """Nobody steps on a branch while the voters here can do better, a voter on none that it would
    not have agreed to: if it is the better chain in the end, fork choice tells."""
    if not commit.survivors:
        return False
    accepted = desk.state.slots.known(commit.survivors).accepted
    if accepted is not None and accepted.value == commit.value:
        return False
    if desk.me in desk.head.voters and objects_to_branch(desk, commit.survivors):
        return True
    branches = desk.head.after(commit.value).branches
    return too_weak(desk.head, desk.me, desk.view.fresh, branches, desk.patience_lost)

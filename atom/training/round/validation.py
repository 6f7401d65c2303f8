"""What this replica does not vouch for: each refusal has a name. Pure."""

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Contribution, Value, Voter, vote_payload
from atom.swarm.chain.membership import certificate_problem, voted
from atom.swarm.chain.messages import AcceptedVote, Ring
from atom.swarm.exchange.choice import is_possible
from atom.training.round.electorate import Survivors, objection_to_branch
from atom.training.round.round_state import RoundContext

_VIEW_SLACK_S = 2.0
"""Two peers' views of the same lease may differ by a renewal: how much sooner we agree."""
_OVERDUE_SLACK = 0.8
"""And on how long a head is overdue: who proposes must have waited for all of it."""


def objects_to_branch(context: RoundContext, survivors: Survivors) -> bool:
    """Whether we know better than these survivors that they have to go on alone."""
    if context.behind:
        return True
    if context.state.overdue >= _OVERDUE_SLACK:
        return False  # a voter that was left out may live: it does not help us
    grace_s = context.patience.grace - _VIEW_SLACK_S if context.terms.branches else float("inf")
    return objection_to_branch(context.head, context.me, context.view, survivors, max(grace_s, 0.0))


def call_problem(context: RoundContext, sender: Voter, survivors: Survivors) -> Reason | None:
    """Why this peer may not lead, or not with these survivors."""
    strangers = {voter.peer_id for voter in survivors} - context.head.known
    if sender not in (survivors or context.head.voters) or strangers:
        return Reason.NOT_A_VOTER
    if survivors and objects_to_branch(context, survivors):
        return Reason.VOTER_ALIVE
    return None


def exchange_problem(context: RoundContext, ring: Ring, counted: int | None) -> Reason | None:
    """Why we do not enter this ring; `counted`: our sequences at its ballot."""
    mine = [m.sequences for m in ring.members if m.peer_id == context.me.peer_id]
    if mine != [counted] or _named_twice(ring.members):
        return Reason.BAD_WEIGHT
    return None if is_possible(ring.shares, len(ring.members)) else Reason.MALFORMED


def _named_twice(members: tuple[Contribution, ...]) -> bool:
    return len({member.peer_id for member in members}) != len(members)


def value_problem(context: RoundContext, value: Value, survivors: Survivors) -> Reason | None:
    """Why we do not vote for `value` in an attempt of these survivors."""
    state = context.state
    if value.parent != context.head.digest or value.round != context.head.round + 1:
        return Reason.WRONG_HEAD
    if value.survivors != survivors:
        return Reason.BAD_VOTERS  # a vote that no certificate could use
    if _named_twice(value.contributions) or not value.sequences or not value.voters_next:
        return Reason.BAD_WEIGHT
    if value.parent_state_digest != state.state_digest:
        return Reason.STATE_MISMATCH  # nobody could load a true state of our head any more
    ours = state.rings.get(value.origin)
    if ours is not None and ours.members and ours.members != value.contributions:
        return Reason.BAD_WEIGHT
    if ours is not None and ours.result and ours.result != value.result_digest:
        return Reason.DIGEST_MISMATCH
    return None


def vote_problem(
    context: RoundContext, value: Value, survivors: Survivors, sender: Voter, vote: AcceptedVote
) -> Reason | None:
    """Why this is no vote of `sender` for `value`."""
    digest = value.digest()
    payload = vote_payload(context.head.digest, vote.ballot, digest, survivors)
    genuine = vote.value_digest == digest and voted(sender, payload, vote.signature)
    return None if genuine else Reason.BAD_SIGNATURE


def commit_problem(context: RoundContext, commit: Commit) -> Reason | None:
    """Why we do not step with `commit`; VOTER_ALIVE: perhaps later, and nobody is to blame."""
    problem = certificate_problem(context.head, commit)
    if problem is None and commit.survivors and _would_not_agree(context, commit):
        problem = Reason.VOTER_ALIVE
    return problem


def _would_not_agree(context: RoundContext, commit: Commit) -> bool:
    """No voter steps on a branch that it would not have agreed to: if it is the better chain in the
    end, fork choice tells."""
    if context.me not in context.head.voters:
        return False
    accepted = context.state.acceptor.known(commit.survivors).accepted
    if accepted is not None and accepted.value == commit.value:
        return False
    return objects_to_branch(context, commit.survivors)

"""What this replica does not vouch for, as far as it can tell by itself."""

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Value, Voter, vote_payload
from atom.swarm.chain.membership import certificate_problem, voted
from atom.swarm.chain.messages import AcceptedVote
from atom.training.round.desk import Desk
from atom.training.round.electorate import objection_to_branch
from atom.training.round.slots import Survivors

_VIEW_SLACK_S = 2.0
"""Two peers' views of the same lease may differ by a renewal: how much sooner we agree."""
_OVERDUE_SLACK = 0.8
"""And on how long a head is held up: who proposes must have waited for all of it."""


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
    counted = state.frozen_counts.get(value.origin)
    mine = [c.sequences for c in value.contributions if c.peer_id == desk.me.peer_id]
    if counted is not None and sum(mine) not in (0, counted):
        return Reason.BAD_WEIGHT
    ours = state.ring_results.get(value.origin)
    if ours is not None and ours != value.result_digest:
        return Reason.DIGEST_MISMATCH
    return None


def _flaw(desk: Desk, value: Value) -> Reason | None:
    """Why nobody votes for it."""
    if value.parent != desk.head.digest or value.round != desk.head.round + 1:
        return Reason.WRONG_HEAD
    peers = {part.peer_id for part in value.contributions}
    named_twice = len(peers) != len(value.contributions)
    if named_twice or not value.sequences or not value.voters_next:
        return Reason.BAD_WEIGHT
    if value.parent_state_digest != desk.state.state_digest:
        return Reason.STATE_MISMATCH  # nobody could load a true state of our head any more
    return None


def problem_with_vote(
    desk: Desk, value: Value, survivors: Survivors, sender: Voter, vote: AcceptedVote
) -> Reason | None:
    """Why this is no vote of `sender` for `value`."""
    digest = value.digest()
    payload = vote_payload(desk.head.digest, vote.ballot, digest, survivors)
    genuine = vote.value_digest == digest and voted(sender, payload, vote.signature)
    return None if genuine else Reason.BAD_SIGNATURE


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
    return desk.me in desk.head.voters and objects_to_branch(desk, commit.survivors)

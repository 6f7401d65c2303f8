"""Whom a coordinator goes without: nobody whose vote the rest would lack."""

import pytest
from test_electorate import A, B, C, head_of, lease, view

from atom.swarm.chain.commit import Ballot, Contribution, Voter
from atom.swarm.chain.messages import Suspect
from atom.training.round import Terms
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.desk import Desk, HeadState
from atom.training.round.electorate import Electorate
from atom.training.round.ring_watch import RingWatch

HEAD = head_of(A, B, C)
CHOSEN = Electorate(HEAD.voters)


def watch_of(mate: Voter) -> RingWatch:
    """A's, after a ring that broke because of C, with `mate` in the place of B."""
    desk = Desk(A, Terms(8), lambda domain, payload: b"", HeadState(HEAD, b"s" * 32, 0.0))
    desk.view = view(lease(mate), lease(C))
    watch, ballot = RingWatch(desk), Ballot(1, A.peer_id, A.incarnation)
    attempt = Attempt(CHOSEN, Stage.RING, 0.0, 9.0, ballot=ballot)
    attempt.members = tuple(Contribution(v.peer_id, v.incarnation, 4, 1.0) for v in (A, mate, C))
    watch.hear(attempt, A.peer_id, Suspect(HEAD.digest, ballot, C.peer_id, "closed"))
    watch.judge(attempt)
    assert watch.left_out() == {C.peer_id}
    return watch


@pytest.mark.parametrize(
    ("mate", "without"), [(B, {C.peer_id}), (Voter(B.peer_id, b"n" * 16), set())]
)
def test_who_was_restarted_has_no_vote_to_make_another_s_needless(
    mate: Voter, without: set[str]
) -> None:
    invited = {A.peer_id, B.peer_id, C.peer_id}
    assert watch_of(mate).dispensable(CHOSEN, invited) == without

"""Who leaves last, or alone has what the others need, stays until they can go on."""

from dataclasses import replace

import pytest
from shown_leases import A, B, C, D, E, head_of, lease, view

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import leaves_them_stuck


@pytest.mark.parametrize(
    ("others", "stuck"),
    [
        ((), False),
        (((D, "accumulating"),), True),
        (((D, "syncing"),), True),
        (((D, "paused"),), False),
        (((D, "leaving"),), False),
        (((D, "paused"), (E, "starting")), True),
        (((D, "accumulating"), (B, "paused")), False),
        (((D, "accumulating"), (B, "leaving")), True),
        (((D, "accumulating"), (C, "accumulating")), False),
    ],
)
def test_who_goes_last_leaves_newcomers_stuck(
    others: tuple[tuple[Voter, str], ...], stuck: bool
) -> None:
    """A and B vote, C was in the round; D and E have only arrived."""
    head = replace(head_of(A, B), members=(A.peer_id, B.peer_id, C.peer_id))
    seen = view(*(lease(voter, state=PeerState(state)) for voter, state in others))
    assert leaves_them_stuck(head, A, seen) is stuck
    assert not leaves_them_stuck(head, Voter("f", b"f" * 16), seen), "on it nobody depends"


@pytest.mark.parametrize(
    ("shown", "round_number", "stuck"),
    [(b"o", 3, True), (b"h", 4, False), (b"o", 5, False)],
    ids=["behind", "here", "ahead"],
)
def test_who_has_not_shown_that_it_has_the_state_cannot_go_on(
    shown: bytes, round_number: int, stuck: bool
) -> None:
    seen = view(replace(lease(B, shown * 32), round=round_number))
    assert leaves_them_stuck(head_of(A, B), A, seen) is stuck

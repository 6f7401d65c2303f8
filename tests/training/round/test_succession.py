"""Who leaves last, or alone has what the others need, stays until they can go on."""

from dataclasses import replace

import pytest
from shown_leases import A, B, C, D, E, head_of, lease, view

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import UNSEEN_S, Signers, leaves_them_stuck


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
    assert leaves_them_stuck(head, A, seen, None) is stuck
    assert not leaves_them_stuck(head, Voter("f", b"f" * 16), seen, None), "on it nobody depends"


def signed_by(*voters: Voter, age_s: float = 0.0) -> Signers:
    return Signers(frozenset(voter.peer_id for voter in voters), age_s)


@pytest.mark.parametrize(
    ("keepers", "head", "stuck"),
    [((A,), b"o", True), ((A, B), b"o", False), ((A,), b"h", False), (None, b"o", False)],
)
def test_who_alone_has_a_rounds_result_leaves_the_others_without_it(
    keepers: tuple[Voter, ...] | None, head: bytes, stuck: bool
) -> None:
    seen = view(replace(lease(B, head * 32), round=3))
    signers = None if keepers is None else signed_by(*keepers)
    assert leaves_them_stuck(head_of(A, B), A, seen, signers) is stuck


def test_a_preferred_head_is_not_waited_with() -> None:
    seen = view(replace(lease(B, b"o" * 32), round=5))
    assert not leaves_them_stuck(head_of(A, B), A, seen, signed_by(A))


def test_who_signed_just_now_is_at_work_whatever_the_directory_shows() -> None:
    """C comes after A and B, one of which is gone: who is blind and leaves would end the run."""
    head, blind = head_of(A, B), view()
    assert leaves_them_stuck(head, A, blind, signed_by(A, C))
    assert not leaves_them_stuck(head, A, blind, signed_by(A, C, age_s=UNSEEN_S))
    assert not leaves_them_stuck(head, A, blind, signed_by(A, B, C)), "B goes on with it"
    assert not leaves_them_stuck(head, A, view(lease(C, state=PeerState.LEAVING)), signed_by(A, C))


def test_who_signed_just_now_and_left_does_not_go_on() -> None:
    """B has left, so that nobody shows its lease; D has only arrived."""
    head, seen = head_of(A, B), view(lease(D), dead=[B])
    assert leaves_them_stuck(head, A, seen, signed_by(A, B))
    assert not leaves_them_stuck(head, A, view(lease(D)), signed_by(A, B)), "as far as we know"
    assert not leaves_them_stuck(head, A, view(dead=[B]), signed_by(A, B)), "nobody is left"


def test_who_said_with_its_promise_that_it_leaves_does_not_go_on() -> None:
    head = replace(head_of(A), members=(A.peer_id, B.peer_id))
    assert leaves_them_stuck(head, A, view(lease(D)), signed_by(A, B))
    assert not leaves_them_stuck(head, A, view(), signed_by(A, B)), "nobody is left"

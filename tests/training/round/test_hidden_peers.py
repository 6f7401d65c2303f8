"""Peers that nobody can dial lead last, own a part last and are asked last: two of them cannot
speak to each other."""

from dataclasses import replace

import pytest
from shown_leases import A, B, C, head_of, lease, view

from atom.swarm.chain.commit import Contribution, Voter
from atom.swarm.records.lease import Reached
from atom.training.round.attempt import choose_exchange
from atom.training.round.electorate import rank
from atom.training.round.events import View

HEAD = head_of(A, B, C)


def seen_by_a(*hidden: Voter) -> View:
    """What A sees, its own lease with it."""
    reached = {voter: Reached.NO if voter in hidden else Reached.YES for voter in (A, B, C)}
    leases = [replace(lease(voter), reached=reached[voter]) for voter in (B, C)]
    return replace(view(*leases), mine=replace(lease(A), reached=reached[A]))


@pytest.mark.parametrize(
    ("hidden", "idle", "first"),
    [({A, B}, set[Voter](), {C}), ({A}, {B}, {C}), ({A, B}, {C}, {C}), ({A, B, C}, {C}, {A, B})],
)
def test_who_can_be_dialled_leads_first(
    hidden: set[Voter], idle: set[Voter], first: set[Voter]
) -> None:
    known = seen_by_a(*hidden).hidden
    assert known == {voter.peer_id for voter in hidden}
    places = {v: rank(HEAD.voters, v, HEAD, {A, B, C}, idle, known) for v in (A, B, C)}
    assert min(places, key=places.__getitem__) in first


@pytest.mark.parametrize(
    ("hidden", "idle", "odds", "owners"),
    [
        ({A}, set[Voter](), (), {B, C}),
        ({A}, {C}, (), {B}),
        ({A, B}, {C}, (), {C}),
        ({A}, {B}, ((A, B),), {C}),
        ({A}, set[Voter](), ((B, C),), {B, C}),
        (set[Voter](), set[Voter](), ((A, B),), {C}),
    ],
)
def test_owners_are_dialled_by_all_others(
    hidden: set[Voter],
    idle: set[Voter],
    odds: tuple[tuple[Voter, Voter], ...],
    owners: set[Voter],
) -> None:
    members = [Contribution(v.peer_id, v.incarnation, int(v not in idle), 0.0) for v in (A, B, C)]
    apart = [(one.peer_id, other.peer_id) for one, other in odds]
    choice = choose_exchange(members, seen_by_a(*hidden), 10**6, True, apart)
    assert {v for v, share in zip((A, B, C), choice.shares, strict=True) if share} == owners

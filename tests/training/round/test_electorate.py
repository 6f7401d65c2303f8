"""Whom to ask, given what the directory shows: the voters while they can be a quorum, else who is
left, and only when the others are gone for good."""

from dataclasses import replace

import pytest
from shown_leases import VOTERS, A, B, C, D, E, head_of, lease, view

from atom.swarm.chain.commit import MAX_VOTERS, Branch, Head, Voter
from atom.swarm.records.lease import SHOWN, PeerState
from atom.training.round.electorate import (
    Electorate,
    alive_voters,
    electorate,
    gone_for_good,
    objection_to_branch,
    rank,
    same_head,
)
from atom.training.round.events import View

GRACE = 12.0


def choose(head: Head, me: Voter, seen: View, branches: bool = True) -> Electorate | None:
    return electorate(head, me, seen, GRACE, branches)


def test_the_voters_of_the_head_while_a_quorum_may_be_alive() -> None:
    head = head_of(A, B, C)
    assert choose(head, A, view(lease(B))) == Electorate(head.voters)
    assert choose(head, D, view(lease(A), lease(B))) is None, "a stranger leads nobody"


def test_without_a_quorum_silence_has_to_last_the_grace_time() -> None:
    head = head_of(A, B, C)
    for seconds in (0.0, 8.0, 11.9):
        assert choose(head, B, view(silent={A: seconds, C: 99.0})) is None
    assert choose(head, B, view(silent={A: 12.0, C: 99.0})) == Electorate((B,), (B,))


def test_a_blind_view_says_nothing_about_the_dead() -> None:
    assert choose(head_of(A, B), B, view()) is None


def test_confirmed_deaths_need_no_grace() -> None:
    head = head_of(A, B, C)
    assert choose(head, B, view(dead={A, C})) == Electorate((B,), (B,))
    assert choose(head, B, view(dead={A}, silent={C: 3.0})) is None


def test_an_owner_without_branches_waits_for_the_silent_but_not_for_the_dead() -> None:
    head = head_of(A, B)
    assert choose(head, B, view(silent={A: 1e6}), branches=False) is None
    assert choose(head, B, view(dead={A}), branches=False) == Electorate((B,), (B,))


def test_a_restarted_last_peer_goes_on_from_its_own_old_incarnation() -> None:
    reborn = Voter(A.peer_id, b"n" * 16)
    assert choose(head_of(A), reborn, view()) == Electorate((reborn,), (reborn,))


def test_a_restarted_peer_does_not_pass_over_living_voters() -> None:
    reborn = Voter(A.peer_id, b"n" * 16)
    chosen = choose(head_of(A, B), reborn, view(lease(B)))
    assert chosen == Electorate(tuple(sorted([reborn, B])), tuple(sorted([reborn, B])))


def test_no_branch_while_a_living_voter_is_elsewhere() -> None:
    head = head_of(A, B, C, D, E)
    gone = {A, C, D}
    away = (lease(E, head=b"x" * 32), lease(E, state=PeerState.SYNCING))
    for elsewhere in away:
        assert choose(head, B, view(elsewhere, dead=gone)) is None
    assert choose(head, B, view(lease(E), dead=gone)) == Electorate((B, E), (B, E))


def test_who_has_opened_a_branch_itself_is_not_waited_for() -> None:
    """Two of five are gone, one went off alone: the two that are left do without it."""
    head = head_of(A, B, C, D, E)
    off = replace(lease(C, b"x" * 32), round=9, branches=(Branch(5, 1, b"x" * 8),))
    seen = view(lease(B), off, silent={D: 12.0, E: 12.0})
    assert choose(head, A, seen) == Electorate(*[tuple(sorted((A, B)))] * 2)
    assert not objection_to_branch(head, A, seen, tuple(sorted((A, B))), GRACE)
    elsewhere = replace(off, branches=(Branch(4, 1, b"x" * 8),))
    assert choose(head, A, view(lease(B), elsewhere, silent={D: 12.0, E: 12.0})) == Electorate(
        head.voters
    ), "where it is now says nothing about this head"


def test_who_left_so_long_ago_that_its_lease_has_no_room_for_it_is_not_waited_for() -> None:
    """Its chain begins, at our head, with a branch too weak to be followed: if it also counted as
    a voter that is alive, the two that are back could neither follow nor go on."""
    head = head_of(A, B, C)
    newest = tuple(Branch(20 + n, 1, b"x" * 8) for n in range(SHOWN))
    off = replace(lease(C, b"x" * 32), round=40, branches=newest, branches_before=1)
    reborn = [Voter(voter.peer_id, b"n" * 16) for voter in (A, B)]
    seen = view(lease(reborn[1]), off, dead={A, B})
    assert choose(head, reborn[0], seen) == Electorate(*[tuple(sorted(reborn))] * 2)


def test_a_crowd_of_guests_founds_no_branch_with_us() -> None:
    """They would have to agree, and have not been here long enough to know who is silent."""
    guests = [Voter(f"guest {n}", b"g" * 16) for n in range(20)]
    head = head_of(A, B, C, D, E)
    seen = view(lease(E), *(lease(guest) for guest in guests), dead={A, C, D})
    assert choose(head, B, seen) == Electorate((B, E), (B, E))
    assert choose(head, guests[0], seen) is None


def test_of_a_crowd_of_members_nine_found_a_branch_and_voters_are_among_them() -> None:
    members = [Voter(f"member {n}", b"m" * 16) for n in range(20)]
    names = tuple(voter.peer_id for voter in members)
    head = replace(head_of(A, B, C, D, E), members=names)
    seen = view(lease(E), *(lease(member) for member in members), dead={A, C, D})
    chosen = choose(head, B, seen)
    assert chosen is not None
    assert {B, E} <= set(chosen.survivors)
    assert len(chosen.survivors) == MAX_VOTERS


def test_who_is_given_up_counts_as_gone_whatever_it_shows() -> None:
    head = replace(head_of(A, B, C, D, E), members=("m",))
    member = Voter("m", b"m" * 16)
    seen = view(*(lease(voter) for voter in (B, C, D, E, member)))
    assert electorate(head, A, seen, GRACE, True, {D, E}) == Electorate(head.voters)
    pair = tuple(sorted((A, B)))
    assert electorate(head, A, seen, GRACE, True, {C, D, E, member}) == Electorate(pair, pair)
    away = view(lease(B, head=b"x" * 32), dead={C, D, E})
    assert electorate(head, A, away, GRACE, True) is None
    assert electorate(head, A, away, GRACE, True, {B}) == Electorate((A,), (A,))


def test_all_survivors_or_none() -> None:
    branch = Electorate((A, B), (A, B))
    assert branch.satisfied_by({A, B, C})
    assert not branch.satisfied_by({A, C})
    assert Electorate((A, B, C)).satisfied_by({A, C})


@pytest.mark.parametrize(
    ("survivors", "seen", "objects"),
    [
        ((B, C), view(lease(C), dead={A}, silent={D: 20.0, E: 20.0}), False),
        ((B,), view(lease(C), dead={A}, silent={D: 20.0, E: 20.0}), True),
        ((C,), view(lease(C), dead={A, D, E}), True),
        ((B, C), view(lease(C), lease(A), silent={D: 20.0, E: 20.0}), True),
        ((B, C), view(lease(C), dead={A}, silent={D: 5.0, E: 20.0}), True),
        ((B, C), view(lease(C), lease(A), lease(D)), True),
    ],
    ids=["agrees", "left out a living", "left us out", "sees another", "too soon", "sees a quorum"],
)
def test_who_knows_better_objects(survivors: tuple[Voter, ...], seen: View, objects: bool) -> None:
    head = head_of(A, B, C, D, E)
    assert objection_to_branch(head, B, seen, survivors, GRACE) is objects


def test_leases_of_another_incarnation_are_nobody_s() -> None:
    head = head_of(A, B)
    seen = view(lease(Voter(B.peer_id, b"n" * 16)))
    assert alive_voters(head, A, seen) == {A}
    assert not gone_for_good(head, A, seen, GRACE)


def test_only_active_peers_on_our_head_can_take_part() -> None:
    seen = view(
        lease(A), lease(B, head=b"x" * 32), lease(C, state=PeerState.SYNCING),
        lease(D, state=PeerState.LEFT), lease(E, state=PeerState.LEAVING),
    )  # fmt: skip
    assert set(same_head(head_of(A), seen)) == {A.peer_id, E.peer_id}


def test_every_head_deals_the_line_anew_and_the_absent_are_passed_over() -> None:
    firsts = set()
    for number in range(30):
        head = Head(bytes([number]) * 32, 4, 96, 96, VOTERS, ())
        places = [rank(VOTERS, voter, head, set(VOTERS)) for voter in VOTERS]
        assert sorted(places) == [0, 1, 2, 3, 4]
        firsts.add(VOTERS[places.index(0)])
        assert rank(VOTERS, A, head, {A}) == 0
    assert len(firsts) > 1

"""Choice of the peers to ask, by the leases in the directory: the voters while they can be a
quorum, else the survivors, and only if the others are gone."""

from dataclasses import replace

import pytest
from shown_leases import VOTERS, A, B, C, D, E, head_of, lease, view

from atom.swarm.chain.commit import MAX_VOTERS, Branch, Head, Voter
from atom.swarm.chain.tenure import Tenure
from atom.swarm.records.lease import SHOWN, PeerState
from atom.training.round.electorate import (
    Electorate,
    batch_of,
    believed,
    electorate,
    leaves_them_stuck,
    objection_to_branch,
    place_in_line,
)
from atom.training.round.events import View

GRACE = 12.0


def choose(head: Head, me: Voter, seen: View, branches: bool = True) -> Electorate | None:
    return electorate(head, me, seen, GRACE, branches)


REBORN, REBORN_B = (Voter(voter.peer_id, b"n" * 16) for voter in (A, B))
PAIR, THREE, FIVE = head_of(A, B), head_of(A, B, C), head_of(A, B, C, D, E)
ELSEWHERE = b"x" * 32
OFF_ALONE, AT_ANOTHER = (
    replace(lease(C, ELSEWHERE), round=9, branches=(Branch(opened, 1, b"x" * 8),))
    for opened in (5, 4)
)
LONG_OFF = replace(
    lease(C, ELSEWHERE),
    round=40,
    branches=tuple(Branch(20 + n, 1, b"x" * 8) for n in range(SHOWN)),
    branches_before=1,
)
"""Lease of a peer whose chain begins, at our head, with a branch that the lease has no room for."""
GUESTS = [Voter(f"guest {n}", b"g" * 16) for n in range(20)]
TWO_LEFT = view(lease(E), *map(lease, GUESTS), dead={A, C, D})


def test_the_batch_is_that_of_the_peers_that_an_exchange_admits_first() -> None:
    counts = {A.peer_id: 1, B.peer_id: 0, "tenured": 5, "other": 6, "guest": 7}
    head = replace(PAIR, tenures=tuple(Tenure(name, 8, 1, 1) for name in ("tenured", "other")))
    sums = [batch_of(head, counts, most) for most in range(1, 6)]
    assert sums == [1, 7, 12, 19, 19], "voters, tenure, then the larger counts; idle voters are out"
    guest = replace(lease(C), sequences=99)
    assert believed(PAIR, {A.peer_id: guest, "c": guest}, 12, 5) == {A.peer_id: 12, "c": 4}


def branch_of(*voters: Voter) -> Electorate:
    survivors = tuple(sorted(voters))
    return Electorate(survivors, survivors)


@pytest.mark.parametrize(
    ("head", "me", "seen", "chosen"),
    [
        # a quorum may be alive
        (THREE, A, view(lease(B)), Electorate(THREE.voters)),
        # a stranger leads no peer
        (THREE, D, view(lease(A), lease(B)), None),
        # silent, not long enough
        (THREE, B, view(silent={A: 11.9, C: 99.0}), None),
        # silent for the grace time
        (THREE, B, view(silent={A: 12.0, C: 99.0}), branch_of(B)),
        # blind, which says nothing about the dead
        (PAIR, B, view(), None),
        # confirmed deaths need no grace
        (THREE, B, view(dead={A, C}), branch_of(B)),
        # one of two deaths is confirmed: the other peer may be alive
        (THREE, B, view(dead={A}, silent={C: 3.0}), None),
        # the last peer, restarted
        (head_of(A), REBORN, view(), branch_of(REBORN)),
        # restarted, beside a living voter
        (PAIR, REBORN, view(lease(B)), branch_of(REBORN, B)),
        # two are left
        (FIVE, B, view(lease(E), dead={A, C, D}), branch_of(B, E)),
        # a living one is elsewhere
        (FIVE, B, view(lease(E, head=ELSEWHERE), dead={A, C, D}), None),
        # a living one is still on its way to our head
        (FIVE, B, view(lease(E, state=PeerState.SYNCING), dead={A, C, D}), None),
        # a peer that opened a branch itself is not waited for
        (FIVE, A, view(lease(B), lease(D), OFF_ALONE, silent={E: 12.0}), branch_of(A, B, D)),
        # where it is now says nothing
        (FIVE, A, view(lease(B), lease(D), AT_ANOTHER, silent={E: 12.0}), Electorate(FIVE.voters)),
        # a peer that left long ago is not waited for
        (THREE, REBORN, view(lease(REBORN_B), LONG_OFF, dead={A, B}), branch_of(REBORN, REBORN_B)),
        # guests have seen no peer fall silent
        (FIVE, B, TWO_LEFT, branch_of(B, E)),
        # guests found no branch
        (FIVE, GUESTS[0], TWO_LEFT, None),
    ],
)  # fmt: skip
def test_whom_to_ask(head: Head, me: Voter, seen: View, chosen: Electorate | None) -> None:
    assert choose(head, me, seen) == chosen


def test_an_owner_without_branches_waits_for_the_silent_but_not_for_the_dead() -> None:
    assert choose(PAIR, B, view(silent={A: 1e6}), branches=False) is None
    assert choose(PAIR, B, view(dead={A}), branches=False) == branch_of(B)


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
    assert electorate(head, A, seen, GRACE, True, {E}) == Electorate(head.voters)
    assert electorate(head, A, seen, GRACE, True, {D, E}) == branch_of(A, B, C, member)
    assert electorate(head, A, seen, GRACE, True, {C, D, E, member}) == branch_of(A, B)
    away = view(lease(B, head=b"x" * 32), dead={C, D, E})
    assert electorate(head, A, away, GRACE, True) is None
    assert electorate(head, A, away, GRACE, True, {B}) == branch_of(A)


@pytest.mark.parametrize(
    ("survivors", "seen", "objects"),
    [
        # agrees
        ((B, C), view(lease(C), dead={A}, silent={D: 20.0, E: 20.0}), False),
        # left out a living
        ((B,), view(lease(C), dead={A}, silent={D: 20.0, E: 20.0}), True),
        # left us out
        ((C,), view(lease(C), dead={A, D, E}), True),
        # sees another
        ((B, C), view(lease(C), lease(A), silent={D: 20.0, E: 20.0}), True),
        # too soon
        ((B, C), view(lease(C), dead={A}, silent={D: 5.0, E: 20.0}), True),
        # sees a quorum
        ((B, C), view(lease(C), lease(A), lease(D)), True),
        # it went off alone
        ((A, B), view(lease(A), OFF_ALONE, silent={D: 12.0, E: 12.0}), False),
    ],
)  # fmt: skip
def test_who_knows_better_objects(survivors: tuple[Voter, ...], seen: View, objects: bool) -> None:
    assert objection_to_branch(FIVE, B, seen, survivors, GRACE) is objects


def test_every_head_deals_the_line_anew_and_the_absent_are_passed_over() -> None:
    firsts = set()
    for number in range(30):
        head = Head(bytes([number]) * 32, 4, 96, 96, VOTERS, ())
        places = [place_in_line(VOTERS, voter, head, set(VOTERS)) for voter in VOTERS]
        assert sorted(places) == [0, 1, 2, 3, 4]
        firsts.add(VOTERS[places.index(0)])
        assert place_in_line(VOTERS, A, head, {A}) == 0
    assert len(firsts) > 1


# ---- leaving


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
    leases = (lease(voter, state=PeerState(state)) for voter, state in others)
    seen = view(*(replace(each, sequences=0) for each in leases))
    assert leaves_them_stuck(head, A, seen) is stuck
    assert not leaves_them_stuck(head, Voter("f", b"f" * 16), seen), "no peer depends on it"


@pytest.mark.parametrize(
    ("counted", "stays", "stuck"), [(0, False, False), (8, False, True), (8, True, False)]
)
def test_who_has_nothing_left_waits_for_the_work_of_others_that_leave(
    counted: int, stays: bool, stuck: bool
) -> None:
    """A leaver with nothing left need not wait if a staying peer can take the work."""
    leaving = replace(lease(B, state=PeerState.LEAVING), sequences=counted)
    state = PeerState.ACCUMULATING if stays else PeerState.PAUSED
    staying = lease(C, b"h" if stays else ELSEWHERE, state=state)
    assert leaves_them_stuck(head_of(A, B, C), A, view(leaving, staying)) is stuck


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

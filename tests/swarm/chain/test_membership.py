"""Who may decide: quorums that always meet, electorates that change slowly, votes that bind."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    MAX_VOTERS,
    Commit,
    Head,
    Value,
    Vote,
    Voter,
    certificate_problem,
    is_quorum,
    standing,
    voters_next,
)
from atom.swarm.identity import Identity
from tests.swarm.chain_samples import a_commit, vote, voter_of

KEYS = [Identity.create() for _ in range(6)]
PEERS = tuple(map(voter_of, KEYS))
AGAIN = tuple(Voter(peer.peer_id, b"n" * 16) for peer in PEERS)
"""The same, restarted."""


# ---- quorums


@given(st.integers(1, 6))
def test_any_two_quorums_share_a_voter(count: int) -> None:
    voters = PEERS[:count]
    subsets = [set(c) for n in range(count + 1) for c in itertools.combinations(voters, n)]
    quorums = [subset for subset in subsets if is_quorum(voters, subset)]
    assert quorums
    assert all(one & other for one, other in itertools.combinations(quorums, 2))


def test_exactly_half_needs_the_tie_breaker() -> None:
    first, second = standing(PEERS[:2])
    assert is_quorum(PEERS[:2], {first})
    assert not is_quorum(PEERS[:2], {second})


def test_another_incarnation_is_nobody_and_no_voters_no_quorum() -> None:
    assert not is_quorum(PEERS[:3], set(AGAIN[:3]))
    assert not is_quorum((), set(PEERS))


def test_the_order_depends_on_salt_and_not_on_the_order_of_asking() -> None:
    assert standing(PEERS, b"a") == standing(PEERS[::-1], b"a")
    orders = {tuple(standing(PEERS, bytes([salt]))) for salt in range(20)}
    assert len(orders) > 1


# ---- the next electorate

A, B, C = PEERS[:3]
ONCE = replace(C, absences=1)


@pytest.mark.parametrize(
    ("voters", "contributors", "leaving", "dead", "idle", "after"),
    [
        ([A, B, C], [A, B], "", "", "", [A, B, ONCE]),
        ([A, B, ONCE], [A, B], "", "", "", [A, B]),
        ([A, B, ONCE], [A, B, C], "", "", "", [A, B, C]),
        ([A, B, ONCE], [A, B], "", "", [C], [A, B, C]),
        ([A, B, C], [A, B, C], [A], "", "", [B, C]),
        ([A, B, C], [B, C], "", [A], "", [B, C]),
        ([A, B], [AGAIN[0], B], "", "", "", [AGAIN[0], B]),
        ([A], [A], [A], "", "", [A]),
        (PEERS[:4], PEERS, "", "", "", PEERS),
    ],
    ids=[
        "one absence is forgiven", "two are not", "an absence is forgotten by taking part",
        "nothing to give is no absence", "goodbye", "confirmed death", "another incarnation",
        "there is always a voter", "newcomers",
    ],
)  # fmt: skip
def test_who_decides_next(
    voters: Sequence[Voter],
    contributors: Sequence[Voter],
    leaving: Collection[Voter],
    dead: Collection[Voter],
    idle: Collection[Voter],
    after: Sequence[Voter],
) -> None:
    gone = {voter.peer_id for voter in leaving}
    found = voters_next(voters, contributors, gone, set(dead), set(idle))
    assert {voter: voter.absences for voter in found} == {each: each.absences for each in after}


def test_newcomers_enter_at_most_half_as_many_at_a_time_and_never_too_many() -> None:
    crowd = [Voter(f"peer {n}", b"i" * 16) for n in range(30)]
    voters, counts = tuple(crowd[:1]), list[int]()
    for _ in range(6):
        voters = voters_next(voters, crowd, set(), set())
        counts.append(len(voters))
    assert counts == [2, 3, 4, 6, 9, MAX_VOTERS]


# ---- certificates


def head_of(*voters: Voter) -> Head:
    return Head(b"h" * 32, 4, 96, 96, voters, tuple(v.peer_id for v in voters))


HEAD = head_of(A, B, C)
GOOD = a_commit(HEAD, dict.fromkeys(KEYS[:3], 8), KEYS[:3])
VALUE, BALLOT = GOOD.value, GOOD.ballot
OF_A = GOOD.votes[0]


def problem(votes: Sequence[Vote], value: Value = VALUE, head: Head = HEAD) -> Reason | None:
    return certificate_problem(head, Commit(value, BALLOT, tuple(votes)))


def test_a_quorum_of_genuine_votes_binds() -> None:
    assert certificate_problem(HEAD, GOOD) is None
    assert problem(GOOD.votes[:2]) is None


@pytest.mark.parametrize(
    "votes",
    [
        [],
        [OF_A],
        [OF_A, OF_A],
        [OF_A, *(vote(key, VALUE, BALLOT) for key in KEYS[4:])],
        [OF_A, vote(KEYS[0], VALUE, BALLOT, voter=B)],
        [OF_A, vote(KEYS[1], VALUE, replace(BALLOT, attempt=4))],
        [OF_A, vote(KEYS[1], replace(VALUE, gradient_norm=2.0), BALLOT)],
        [OF_A, vote(KEYS[1], VALUE, BALLOT, survivors=(A, B))],
        [OF_A, vote(KEYS[1], VALUE, BALLOT, voter=AGAIN[1])],
        [OF_A, Vote(B, b"x" * 64)],
        [OF_A, Vote(B, b"")],
    ],
    ids=[
        "none", "one of three", "one twice", "strangers", "signed by another", "another ballot",
        "another value", "for a branch", "another incarnation", "nonsense", "empty",
    ],
)  # fmt: skip
def test_anything_less_does_not(votes: list[Vote]) -> None:
    assert problem(votes) is Reason.BAD_CERTIFICATE


def test_an_old_incarnation_cannot_vote_for_its_peer() -> None:
    assert problem(GOOD.votes[:2], head=head_of(A, AGAIN[1], C)) is Reason.BAD_CERTIFICATE


def branch(survivors: Sequence[Identity]) -> Commit:
    return a_commit(HEAD, dict.fromkeys(survivors, 8), survivors, survivors=survivors)


def test_a_branch_needs_all_its_survivors_and_their_votes_for_a_branch() -> None:
    commit = branch(KEYS[:2])
    assert certificate_problem(HEAD, commit) is None
    assert problem(commit.votes[:1], commit.value) is Reason.BAD_CERTIFICATE
    ordinary = [vote(key, commit.value, BALLOT, survivors=()) for key in KEYS[:2]]
    assert problem(ordinary, commit.value) is Reason.BAD_CERTIFICATE


@pytest.mark.parametrize("value", [VALUE, branch(KEYS[1:2]).value])
def test_survivors_sign_nothing_but_what_names_them(value: Value) -> None:
    """Else a head would not say whether a quorum decided it."""
    signed = vote(KEYS[0], value, BALLOT, survivors=(A,))
    assert problem([signed], value) is Reason.BAD_CERTIFICATE


def test_strangers_found_no_branch_but_a_restarted_voter_may() -> None:
    theirs = branch(KEYS[5:])
    assert certificate_problem(HEAD, theirs) is Reason.BAD_CERTIFICATE
    assert certificate_problem(head_of(AGAIN[5]), theirs) is None

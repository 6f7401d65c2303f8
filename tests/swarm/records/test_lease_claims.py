"""Of two chains the one that a quorum vouches for, whatever the other counts."""

import itertools
from dataclasses import replace

import pytest
from swarm_samples import a_lease

from atom.swarm.chain.commit import (
    Ballot,
    Branch,
    Contribution,
    Head,
    Value,
    Voter,
    genesis,
    rank,
)
from atom.swarm.records.lease import SHOWN, Lease, claims_better, has_left, preferred

PEERS = tuple(Voter(name * 8, name.encode() * 16) for name in "abcde")
START = replace(genesis(b"m" * 32, b"s" * 32, PEERS[0]), voters=PEERS)


def grown(head: Head, sequences: int = 8, survivors: tuple[Voter, ...] = ()) -> Head:
    """One round further; its result is named after the count, so that rivals differ."""
    part = Contribution(PEERS[0].peer_id, PEERS[0].incarnation, sequences, 1.0)
    ballot = Ballot(1, PEERS[0].peer_id, PEERS[0].incarnation)
    digest = sequences.to_bytes(32)
    voters = survivors or head.voters
    value = Value(
        head.digest, head.round + 1, ballot, digest, 1.0, b"s" * 32, (part,), voters, survivors
    )
    return head.after(value)


def lease_at(head: Head) -> Lease:
    newest, before = head.branches[-SHOWN:], len(head.branches[:-SHOWN])
    return a_lease(head=head.digest, round=head.round, branches=newest, branches_before=before)


QUORUM = grown(START)
BRANCH_OF_TWO = grown(START, 10, PEERS[:2])
BRANCH_OF_ONE = grown(START, 10**9, PEERS[4:])
STRANGERS = grown(START, 10**9, (Voter("x", b"x" * 16),))


LOW, HIGH = b"a" * 8, b"b" * 8
ALONE, BACKED = Branch(5, 1, LOW), Branch(5, 2, HIGH)
BEST_FIRST = [
    rank(b"x" * 32, 9, (Branch(9, 0, HIGH),)),  # quorums up to round 8
    rank(b"x" * 32, 7, ()),
    rank(b"y" * 32, 7, ()),  # the lower name
    rank(b"x" * 32, 6, (BACKED, Branch(6, 1, LOW))),
    rank(b"x" * 32, 5, (BACKED,)),
    rank(b"x" * 32, 99, (ALONE,)),
    rank(b"x" * 32, 99, (ALONE, Branch(7, 9, LOW))),  # a quorum decided until 98 there
    rank(b"x" * 32, 99, (Branch(5, 1, HIGH),)),
    rank(b"x" * 32, 4, ()),  # which all of these continue
]


def test_heads_are_ordered_by_where_their_chains_part() -> None:
    for better, worse in itertools.combinations(BEST_FIRST, 2):
        assert better > worse
    assert not QUORUM.prefers(QUORUM)


def test_a_branch_counts_its_parent_s_voters_in_whatever_incarnation() -> None:
    assert [branch.backing for branch in BRANCH_OF_TWO.branches] == [2]
    restarted = tuple(Voter(voter.peer_id, b"n" * 16) for voter in PEERS[:3])
    head = grown(START, 9, restarted)
    assert head.branches == (Branch(1, 3, head.digest[:8]),)
    assert [branch.backing for branch in STRANGERS.branches] == [0]


@pytest.mark.parametrize("old", [0, 3, SHOWN + 4])
def test_a_lease_says_enough_however_many_branches_there_were(old: int) -> None:
    trunk = START
    for number in range(old):
        trunk = grown(trunk, number + 1, PEERS)
        trunk = replace(trunk, voters=PEERS)
    rivals = [grown(trunk), grown(trunk, 10, PEERS[:2]), grown(trunk, 11, PEERS[4:]), trunk]
    for ours, theirs in itertools.permutations(rivals, 2):
        assert claims_better(lease_at(theirs), ours) == theirs.prefers(ours)
    claims = [lease_at(head) for head in reversed(rivals)]
    assert [each.head for each in preferred(claims, rivals[0])] == [h.digest for h in rivals]


@pytest.mark.parametrize(
    ("theirs", "ours", "gone"),
    [
        (BRANCH_OF_TWO, START, True),
        (grown(grown(BRANCH_OF_TWO)), START, True),
        (grown(BRANCH_OF_TWO, 9, PEERS[:1]), BRANCH_OF_TWO, True),
        (QUORUM, START, False),
        (grown(QUORUM, 9, PEERS[:2]), START, False),
        (grown(BRANCH_OF_ONE, 9, PEERS[:1]), BRANCH_OF_TWO, False),
        (START, BRANCH_OF_TWO, False),
        (BRANCH_OF_TWO, BRANCH_OF_TWO, False),
    ],
)
def test_who_left_our_head_by_a_branch_has_left_it(theirs: Head, ours: Head, gone: bool) -> None:
    assert has_left(lease_at(theirs), ours) == gone


def test_who_tells_of_so_many_branches_that_ours_have_no_room_has_left_too() -> None:
    far = START
    for number in range(SHOWN + 1):
        far = replace(grown(far, number + 1, PEERS), voters=PEERS)
    assert has_left(lease_at(far), START)

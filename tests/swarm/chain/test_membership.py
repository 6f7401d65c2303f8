"""Who may decide: quorums that always meet, electorates that change slowly, votes that bind."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    MAX_VOTERS,
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    vote_payload,
)
from atom.swarm.chain.membership import (
    certificate_problem,
    is_quorum,
    signed_by,
    standing,
    voters_next,
)
from atom.swarm.identity import Identity

KEYS = [Identity.create() for _ in range(6)]
PEERS = tuple(Voter(key.peer_id, bytes([n]) * 16) for n, key in enumerate(KEYS))
BALLOT = Ballot(3, PEERS[0].peer_id, PEERS[0].incarnation)


def head_of(*voters: Voter) -> Head:
    return Head(b"h" * 32, 4, 96, 96, voters, tuple(v.peer_id for v in voters))


def value_on(head: Head, *members: Voter, survivors: tuple[Voter, ...] = ()) -> Value:
    parts = tuple(Contribution(v.peer_id, v.incarnation, 8, 8.0) for v in members)
    return Value(
        head.digest, head.round + 1, BALLOT, b"r" * 32, 1.0, b"s" * 32, parts, members, survivors
    )


def vote(
    voter: Voter,
    value: Value,
    ballot: Ballot = BALLOT,
    survivors: tuple[Voter, ...] = (),
    signer: Voter | None = None,
) -> Vote:
    payload = vote_payload(value.parent, ballot, value.digest(), survivors)
    key = KEYS[PEERS.index(signer or replace(voter, incarnation=_born(voter)))]
    return Vote(voter, key.sign(VOTE_DOMAIN, signed_by(signer or voter, payload)))


def _born(voter: Voter) -> bytes:
    return next(peer.incarnation for peer in PEERS if peer.peer_id == voter.peer_id)


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
    reborn = {Voter(v.peer_id, b"n" * 16) for v in PEERS[:3]}
    assert not is_quorum(PEERS[:3], reborn)
    assert not is_quorum((), set(PEERS))


def test_the_order_depends_on_salt_and_not_on_the_order_of_asking() -> None:
    assert standing(PEERS, b"a") == standing(PEERS[::-1], b"a")
    orders = {tuple(standing(PEERS, bytes([salt]))) for salt in range(20)}
    assert len(orders) > 1


# ---- the next electorate


def test_who_took_part_stays_and_one_absence_is_forgiven() -> None:
    after = voters_next(PEERS[:3], PEERS[:2], set(), set())
    assert {v: v.absences for v in after} == {PEERS[0]: 0, PEERS[1]: 0, PEERS[2]: 1}
    again = voters_next(after, PEERS[:2], set(), set())
    assert set(again) == set(PEERS[:2])


def test_an_absence_is_forgotten_by_taking_part() -> None:
    once = voters_next(PEERS[:3], PEERS[:2], set(), set())
    back = voters_next(once, PEERS[:3], set(), set())
    assert [v.absences for v in back] == [0, 0, 0]


def test_goodbye_and_confirmed_death_remove_a_voter_at_once() -> None:
    assert set(voters_next(PEERS[:3], PEERS[:3], {PEERS[0].peer_id}, set())) == set(PEERS[1:3])
    assert set(voters_next(PEERS[:3], PEERS[1:3], set(), {PEERS[0]})) == set(PEERS[1:3])


def test_newcomers_enter_at_most_half_as_many_at_a_time() -> None:
    assert len(voters_next(PEERS[:1], PEERS, set(), set())) == 2
    assert len(voters_next(PEERS[:2], PEERS, set(), set())) == 3
    after = voters_next(PEERS[:4], PEERS, set(), set())
    assert set(after) == set(PEERS)


def test_a_new_incarnation_replaces_its_old_one() -> None:
    reborn = Voter(PEERS[0].peer_id, b"n" * 16)
    after = voters_next(PEERS[:2], (reborn, PEERS[1]), set(), set())
    assert set(after) == {reborn, PEERS[1]}


def test_there_is_always_a_voter_and_never_too_many() -> None:
    assert voters_next(PEERS[:1], PEERS[:1], {PEERS[0].peer_id}, set()) == PEERS[:1]
    crowd = [Voter(f"peer {n}", b"i" * 16) for n in range(30)]
    voters = voters_next(crowd[:1], crowd, set(), set())
    for _ in range(8):
        voters = voters_next(voters, crowd, set(), set())
    assert len(voters) == MAX_VOTERS


SOME = st.sets(st.sampled_from(PEERS))


# ---- certificates

HEAD = head_of(*PEERS[:3])
VALUE = value_on(HEAD, *PEERS[:3])


def certificate(*votes: Vote, value: Value = VALUE) -> Commit:
    return Commit(value, BALLOT, votes)


def test_a_quorum_of_genuine_votes_binds() -> None:
    votes = [vote(v, VALUE) for v in PEERS[:3]]
    assert certificate_problem(HEAD, certificate(*votes)) is None
    assert certificate_problem(HEAD, certificate(*votes[:2])) is None


@pytest.mark.parametrize(
    "votes",
    [
        [],
        [vote(PEERS[0], VALUE)],
        [vote(PEERS[0], VALUE), vote(PEERS[0], VALUE)],
        [vote(PEERS[0], VALUE), vote(PEERS[4], VALUE), vote(PEERS[5], VALUE)],
        [vote(PEERS[0], VALUE), vote(PEERS[1], VALUE, signer=PEERS[0])],
        [vote(PEERS[0], VALUE), vote(PEERS[1], VALUE, replace(BALLOT, attempt=4))],
        [vote(PEERS[0], VALUE), vote(PEERS[1], replace(VALUE, gradient_norm=2.0))],
        [vote(PEERS[0], VALUE), vote(PEERS[1], VALUE, survivors=PEERS[:2])],
        [vote(PEERS[0], VALUE), vote(Voter(PEERS[1].peer_id, b"n" * 16), VALUE)],
        [vote(PEERS[0], VALUE), Vote(PEERS[1], b"x" * 64)],
        [vote(PEERS[0], VALUE), Vote(PEERS[1], b"")],
    ],
    ids=[
        "none", "one of three", "one twice", "strangers", "signed by another", "another ballot",
        "another value", "for a branch", "another incarnation", "nonsense", "empty",
    ],
)  # fmt: skip
def test_anything_less_does_not(votes: list[Vote]) -> None:
    assert certificate_problem(HEAD, certificate(*votes)) is Reason.BAD_CERTIFICATE


def test_an_old_incarnation_cannot_vote_for_its_peer() -> None:
    reborn = Voter(PEERS[1].peer_id, b"n" * 16)
    head = head_of(PEERS[0], reborn, PEERS[2])
    votes = [vote(v, VALUE) for v in PEERS[:2]]
    assert certificate_problem(head, certificate(*votes)) is Reason.BAD_CERTIFICATE


def test_a_branch_needs_all_its_survivors() -> None:
    survivors = PEERS[:2]
    value = value_on(HEAD, *survivors, survivors=survivors)
    votes = [vote(v, value, survivors=survivors) for v in survivors]
    assert certificate_problem(HEAD, certificate(*votes, value=value)) is None
    short = certificate(votes[0], value=value)
    assert certificate_problem(HEAD, short) is Reason.BAD_CERTIFICATE


def test_survivors_sign_nothing_but_what_names_them() -> None:
    """Else a head would not say whether a quorum decided it."""
    survivors, others = PEERS[:1], PEERS[1:2]
    for value in (VALUE, value_on(HEAD, *others, survivors=others)):
        votes = vote(PEERS[0], value, survivors=survivors)
        signed = certificate(votes, value=value)
        assert certificate_problem(HEAD, signed) is Reason.BAD_CERTIFICATE


def test_a_branch_value_is_no_ordinary_commit() -> None:
    value = value_on(HEAD, *PEERS[:3], survivors=PEERS[:3])
    votes = [vote(v, value) for v in PEERS[:3]]
    assert certificate_problem(HEAD, certificate(*votes, value=value)) is Reason.BAD_CERTIFICATE


def test_strangers_found_no_branch_but_a_restarted_voter_may() -> None:
    stranger = (PEERS[5],)
    value = value_on(HEAD, *stranger, survivors=stranger)
    theirs = certificate(vote(PEERS[5], value, survivors=stranger), value=value)
    assert certificate_problem(HEAD, theirs) is Reason.BAD_CERTIFICATE
    old = head_of(Voter(PEERS[5].peer_id, b"o" * 16))
    assert certificate_problem(old, theirs) is None

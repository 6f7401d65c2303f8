"""Valid successors of a head: quorums that always meet, electorates that change slowly, values with
evidence, and certificates that bind."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from atom.base.errors import Reason
from atom.swarm.chain.commit import (
    MAX_VOTERS,
    Ballot,
    ChainRules,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    is_quorum,
    signed_by,
    standing,
)
from atom.swarm.chain.succession import (
    PROMISE_DOMAIN,
    Evidence,
    commit_problem,
    follows,
    next_voters,
    promise_payload,
    unsupported,
)
from atom.swarm.chain.tenure import Tenure, from_the_start
from atom.swarm.identity import Identity
from tests.swarm.chain_samples import a_commit, vote, voter_of, vouch

KEYS = sorted((Identity.create() for _ in range(6)), key=lambda key: key.peer_id)
PEERS = tuple(map(voter_of, KEYS))
AGAIN = tuple(Voter(peer.peer_id, b"n" * 16) for peer in PEERS)
"""New incarnations of `PEERS`, after a restart."""


def head_of(*voters: Voter, tenured: Collection[Voter] = PEERS, **changes: Any) -> Head:
    members = tuple(voter.peer_id for voter in voters)
    tenures = from_the_start(voter.peer_id for voter in tenured)
    return replace(Head(b"h" * 32, 4, 96, 96, voters, members, tenures=tenures), **changes)


# ---- quorums


@pytest.mark.parametrize("count", range(1, MAX_VOTERS + 1))
def test_any_two_quorums_share_a_voter_and_from_four_voters_on_an_honest_one(count: int) -> None:
    voters = [Voter(f"peer {number}", b"i" * 16) for number in range(count)]
    subsets = [set(c) for n in range(count + 1) for c in itertools.combinations(voters, n)]
    quorums = [subset for subset in subsets if is_quorum(voters, subset)]
    assert quorums
    shared = 2 if count >= 4 else 1
    assert all(len(one & other) >= shared for one, other in itertools.product(quorums, repeat=2))


def test_no_fewer_voters_than_needed_decide() -> None:
    """One of three and of four may be missing; a larger quorum would stop rounds for nothing."""
    voters = [Voter(f"peer {number}", b"i" * 16) for number in range(MAX_VOTERS)]
    least = [
        min(n for n in range(count + 1) if is_quorum(voters[:count], set(voters[:n])))
        for count in range(1, MAX_VOTERS + 1)
    ]
    assert least == [1, 1, 2, 3, 4, 4, 5, 5, 6]


@pytest.mark.parametrize(
    ("voters", "present", "decide"),
    [
        (PEERS[:2], PEERS[:1], True),
        (PEERS[:2], PEERS[1:2], False),  # of two voters the first decides
        (PEERS[:3], AGAIN[:3], False),  # another incarnation has no vote
        ((), PEERS, False),
    ],
)
def test_which_voters_are_a_quorum(
    voters: Sequence[Voter], present: Sequence[Voter], decide: bool
) -> None:
    assert is_quorum(voters, set(present)) is decide


def test_the_order_depends_on_the_salt_and_not_on_the_order_of_asking() -> None:
    assert standing(PEERS, b"a") == standing(PEERS[::-1], b"a")
    orders = {tuple(standing(PEERS, bytes([salt]))) for salt in range(20)}
    assert len(orders) > 1


# ---- the next electorate

A, B, C, D = PEERS[:4]
LEADER = A.peer_id
ONCE = replace(C, absences=1)


def counts(contributors: Sequence[Voter], sequences: int = 8) -> tuple[MemberCount, ...]:
    return tuple(MemberCount(v.peer_id, v.incarnation, sequences, 1.0) for v in contributors)


@pytest.mark.parametrize(
    ("voters", "contributors", "leaving", "idle", "after"),
    [
        ([A, B, C], [A, B], "", "", [A, B, ONCE]),
        ([A, B, ONCE], [A, B], "", "", [A, B]),
        ([A, B, ONCE], [A, B, C], "", "", [A, B, C]),
        ([A, B, ONCE], [A, B], "", [C], [A, B, C]),
        ([A, B, C], [A, B, C], [A], "", [B, C]),
        ([A, B], [AGAIN[0], B], "", "", [AGAIN[0], B]),
        ([A], [A], [A], "", [A]),
        ([A], [A, B], [A, B], "", [A]),
        ([A], [A, B], [A], "", [B]),
        ([A], [A, D], "", "", [A, D]),
    ],
    ids=[
        "one absence is forgiven", "two are not", "taking part clears an absence",
        "an idle voter is not absent", "a leaving voter goes", "another incarnation takes over",
        "there is always a voter", "even if all leave", "a successor takes over",
        "a newcomer joins",
    ],
)  # fmt: skip
def test_next_voters(
    voters: Sequence[Voter],
    contributors: Sequence[Voter],
    leaving: Collection[Voter],
    idle: Collection[Voter],
    after: Sequence[Voter],
) -> None:
    gone = {voter.peer_id for voter in leaving}
    found = next_voters(head_of(*voters), (), counts(contributors), set(idle), gone, LEADER)
    assert [(voter, voter.absences) for voter in found] == [(v, v.absences) for v in after]


def test_one_coordinator_alone_drops_no_voter_however_often_it_leads() -> None:
    head = head_of(A, B, C)
    for leader, absences in (A, 1), (A, 1), (A, 1), (B, None):
        members = counts([A, B])
        voters = next_voters(head, (), members, set(), set(), leader.peer_id)
        found = {voter: voter.absences for voter in voters}
        assert found.get(C) == absences
        head = replace(head, voters=voters, led_by=leader.peer_id)


def test_one_newcomer_joins_per_round_in_an_order_salted_by_the_head() -> None:
    firsts = set()
    for salt in range(20):
        head = head_of(A, digest=bytes([salt]) * 32)
        found = next_voters(head, (), counts(PEERS), set(), set(), LEADER)
        assert len(found) == 2
        firsts |= {*found} - {A}
    assert len(firsts) > 1


def test_an_electorate_never_grows_beyond_its_bound() -> None:
    crowd = [Voter(f"peer {n:02}", b"i" * 16) for n in range(30)]
    head = head_of(crowd[0], tenured=crowd)
    for _ in range(12):
        head = replace(head, voters=next_voters(head, (), counts(crowd), set(), set(), LEADER))
    assert len(head.voters) == MAX_VOTERS


def test_only_peers_with_tenure_join_and_the_longest_tenure_breaks_ties() -> None:
    head = head_of(C, tenured=[C])
    assert next_voters(head, (), counts([A, B, C, D]), set(), set(), LEADER) == (C,)
    late = Tenure(A.peer_id, 8, 0, 30)
    head = replace(head, tenures=(late, *head.tenures))
    assert next_voters(head, (), counts([A, B, C, D]), set(), set(), LEADER) == (C, A)


def test_a_peer_that_gave_nothing_does_not_join() -> None:
    idle = (*counts([A]), *counts([B], sequences=0))
    assert next_voters(head_of(A), (), idle, set(), set(), LEADER) == (A,)


def test_a_voter_that_lost_its_tenure_goes_if_others_have_it() -> None:
    head = head_of(A, B, C, tenured=[B, C])
    assert next_voters(head, (), counts([A, B, C]), set(), set(), LEADER) == (B, C)
    head = head_of(A, B, C, tenured=[D])
    assert next_voters(head, (), counts([A, B, C]), set(), set(), LEADER) == (A, B, C)


# ---- valid successors

HEAD = head_of(A, B, C, rules=ChainRules(global_batch=24, last_round=9))
GOOD = a_commit(HEAD, dict.fromkeys(KEYS[:3], 8), KEYS[:3])
VALUE, BALLOT = GOOD.value, GOOD.ballot
OF_A = GOOD.votes[0]


CONTRIBUTIONS = VALUE.contributions
LIES: Mapping[str, tuple[Reason, Mapping[str, Any]]] = {
    "another parent": (Reason.WRONG_HEAD, {"parent": b"x" * 32}),
    "a round is skipped": (Reason.WRONG_HEAD, {"round": 6}),
    "the last round": (Reason.WRONG_HEAD, {"round": 9}),
    "no contributions": (Reason.BAD_WEIGHT, {"contributions": ()}),
    "less than a batch": (Reason.BAD_WEIGHT, {"contributions": CONTRIBUTIONS[:2]}),
    "a peer twice": (Reason.BAD_WEIGHT, {"contributions": (*CONTRIBUTIONS, *counts([A]))}),
    "no number": (Reason.BAD_WEIGHT, {"gradient_norm": float("inf")}),
    "no voters": (Reason.NOT_A_VOTER, {"voters_next": ()}),
    "two newcomers": (Reason.NOT_A_VOTER, {"voters_next": (A, B, C, *PEERS[3:5])}),
    "a stranger votes": (Reason.NOT_A_VOTER, {"voters_next": (A, B, C, Voter("x", b"i" * 16))}),
    "another order": (Reason.NOT_A_VOTER, {"voters_next": (B, A, C)}),
    "an absence too few": (Reason.NOT_A_VOTER, {"voters_next": (A, B, replace(C, absences=1))}),
    "a stranger led": (Reason.NOT_A_VOTER, {"origin": replace(BALLOT, coordinator=D.peer_id)}),
    "strangers survive": (Reason.NOT_A_VOTER, {"survivors": (Voter("x", b"i" * 16),)}),
    "a survivor twice": (Reason.NOT_A_VOTER, {"survivors": (A, A)}),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_other_value_follows_even_if_a_quorum_signs_it(lie: str) -> None:
    reason, changes = LIES[lie]
    commit = a_commit(HEAD, dict.fromkeys(KEYS[:3], 8), KEYS[:3], **changes)
    assert commit_problem(HEAD, commit) is reason


def test_nothing_follows_the_last_round() -> None:
    head = replace(HEAD, round=9)
    assert follows(head, replace(VALUE, round=10)) is Reason.WRONG_HEAD


def test_only_listed_peers_contribute_to_a_run_with_a_list() -> None:
    listed = replace(HEAD.rules, listed=frozenset(v.peer_id for v in (A, B, C)))
    head = replace(HEAD, rules=listed)
    assert follows(head, VALUE) is None
    guest = a_commit(head, dict.fromkeys(KEYS[:4], 8), KEYS[:3]).value
    assert follows(head, guest) is Reason.BAD_WEIGHT


# ---- certificates


def problem(votes: Sequence[Vote], value: Value = VALUE, head: Head = HEAD) -> Reason | None:
    return commit_problem(head, Commit(value, BALLOT, tuple(votes)))


def test_a_quorum_of_genuine_votes_binds() -> None:
    assert follows(HEAD, VALUE) is None
    assert commit_problem(HEAD, GOOD) is None
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
def test_any_smaller_set_of_votes_does_not(votes: list[Vote]) -> None:
    assert problem(votes) is Reason.BAD_CERTIFICATE


def branch(survivors: Sequence[Identity], head: Head = HEAD) -> Commit:
    return a_commit(head, dict.fromkeys(survivors, 24), survivors, survivors=survivors)


def test_a_branch_needs_all_its_survivors_and_their_votes_for_a_branch() -> None:
    commit = branch(KEYS[:2])
    assert commit_problem(HEAD, commit) is None
    assert problem(commit.votes[:1], commit.value) is Reason.BAD_CERTIFICATE
    ordinary = [vote(key, commit.value, BALLOT, survivors=()) for key in KEYS[:2]]
    assert problem(ordinary, commit.value) is Reason.BAD_CERTIFICATE


def test_strangers_open_no_branch_but_a_restarted_voter_may() -> None:
    alone, (old,) = branch(KEYS[5:]), AGAIN[5:]
    assert commit_problem(head_of(A, B, C, tenured=[]), alone) is Reason.NOT_A_VOTER
    head = head_of(old, tenured=[])
    assert commit_problem(head, branch(KEYS[5:], head)) is None


# ---- evidence


def promised(
    key: Identity, sequences: int = 8, loss: float = 16.0, leaving: bool = False, **changes: Any
) -> bytes:
    value = replace(VALUE, **changes)
    state = value.parent_state_digest
    payload = promise_payload(value.parent, value.origin, sequences, loss, state, leaving)
    return key.sign(PROMISE_DOMAIN, signed_by(voter_of(key), payload))


def vouched(
    keys: Sequence[Identity], value: Value = VALUE, at: Ballot = BALLOT
) -> tuple[Vote, ...]:
    return tuple(vouch(key, value, at) for key in keys)


def problem_of(value: Value, evidence: Evidence) -> Reason | None:
    """Return why the evidence does not support the value, if a quorum is to have vouched at its
    origin."""
    return unsupported(HEAD, value, evidence, value.origin)


PROMISES = tuple(map(promised, KEYS[:3]))
VOUCHED = vouched(KEYS[:3])
TRUE = Evidence(PROMISES, vouched=VOUCHED)


def test_true_evidence_supports_a_value_also_with_a_quorum_of_vouchers() -> None:
    assert problem_of(VALUE, TRUE) is None
    assert problem_of(VALUE, replace(TRUE, vouched=VOUCHED[1:])) is None


def test_idle_and_leaving_voters_are_told_by_their_own_promises() -> None:
    pair = dict.fromkeys(KEYS[:2], 12)
    value = a_commit(HEAD, pair, KEYS[:3]).value
    promises = tuple(promised(key, 12, 24.0) for key in KEYS[:2])
    by_two = vouched(KEYS[:2], value)
    idle = (Vote(C, promised(KEYS[2], 0, 0.0)),)
    assert problem_of(value, Evidence(promises, idle, vouched=by_two)) is None
    assert problem_of(value, Evidence(promises, vouched=by_two)) is Reason.NOT_A_VOTER
    gone = replace(value, voters_next=(A, B))
    assert follows(HEAD, gone) is None
    says_so = (Vote(C, promised(KEYS[2], 0, 0.0, leaving=True)),)
    leaving = (C.peer_id,)
    by_two = vouched(KEYS[:2], gone)
    assert problem_of(gone, Evidence(promises, says_so, leaving, by_two)) is None
    assert problem_of(gone, Evidence(promises, idle, leaving, by_two)) is Reason.BAD_SIGNATURE
    assert problem_of(gone, Evidence(promises, (), leaving, by_two)) is Reason.NOT_A_VOTER


LATER = replace(BALLOT, attempt=4)
FALSE: Mapping[Reason, Mapping[str, Mapping[str, Any]]] = {
    Reason.BAD_SIGNATURE: {
        "no promises": {"promises": ()},
        "one promise too few": {"promises": PROMISES[:2]},
        "a promise of another": {"promises": (PROMISES[1], *PROMISES[1:])},
        "another count": {"promises": (promised(KEYS[0], 7), *PROMISES[1:])},
        "another ballot": {"promises": (promised(KEYS[0], origin=LATER), *PROMISES[1:])},
        "another state": {
            "promises": (promised(KEYS[0], parent_state_digest=b"x" * 32), *PROMISES[1:])
        },
    },
    Reason.DIGEST_MISMATCH: {
        "no vouchers": {"vouched": ()},
        "one voter vouches": {"vouched": VOUCHED[:1]},
        "one voter vouches three times": {"vouched": VOUCHED[:1] * 3},
        "another norm": {"vouched": vouched(KEYS[:3], replace(VALUE, gradient_norm=1e-30))},
        "vouchers at another ballot": {"vouched": vouched(KEYS[:3], at=LATER)},
        "peers without a vote vouch": {"vouched": vouched(KEYS[3:])},
    },
}


@pytest.mark.parametrize(
    ("reason", "lie"), [(reason, lie) for reason, lies in FALSE.items() for lie in lies]
)
def test_false_evidence_is_refused_by_name(reason: Reason, lie: str) -> None:
    assert problem_of(VALUE, replace(TRUE, **FALSE[reason][lie])) is reason


def test_vouchers_for_an_ordinary_round_support_its_branch_as_well() -> None:
    """Survivors finish a value that one of them accepted before the others died."""
    electorate = next_voters(HEAD, (A,), VALUE.contributions, set(), set(), LEADER)
    finished = replace(VALUE, survivors=(A,), voters_next=electorate)
    assert follows(HEAD, finished) is None
    assert problem_of(finished, TRUE) is None
    assert problem_of(finished, replace(TRUE, vouched=())) is Reason.DIGEST_MISMATCH

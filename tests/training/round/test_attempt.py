"""Record of an attempt: the promises that count, the members of the exchange, and its form."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from shown_leases import A, B, C, head_of, lease, view

from atom.swarm.chain.commit import Ballot, MemberCount, Voter, standing
from atom.swarm.chain.messages import Promise
from atom.swarm.exchange.choice import MOST_MEMBERS
from atom.swarm.records.lease import HowReached, Lease, Reached
from atom.training.round.attempt import Attempt, Stage, choose_exchange, odd_states_out
from atom.training.round.electorate import Electorate, place_in_line
from atom.training.round.events import View

PEERS = [Voter(f"peer {number}", bytes([number]) * 16) for number in range(100)]


def asking(*peers: Voter) -> Attempt:
    attempt = Attempt(Electorate(tuple(peers[:9])), Stage.PREPARE, 1.0)
    attempt.expected = {peer.peer_id for peer in peers}
    return attempt


def promise() -> Promise:
    return Promise(b"h" * 32, Ballot(1, "c", b"i" * 16), None, None, 8, 1.0, b"s" * 32, bytes(64))


def test_one_process_of_each_peer_promises() -> None:
    first = PEERS[0]
    again = Voter(first.peer_id, b"x" * 16)
    attempt = asking(first)
    assert attempt.take(first, promise())
    assert attempt.take(first, promise()), "the same one may repeat itself"
    assert not attempt.take(again, promise())
    assert set(attempt.promises) == {first}


def test_members_of_a_full_exchange_are_those_that_counted_most() -> None:
    attempt, fast = asking(*PEERS[:9]), PEERS[: MOST_MEMBERS - 1]
    slow = [Voter(f"slow {number}", b"i" * 16) for number in range(MOST_MEMBERS)]
    for peer in (*fast, *slow):
        attempt.take(peer, replace(promise(), sequences=8 if peer in fast else 1))
    me = slow[-1].peer_id
    members = attempt.contributors(me, frozenset(), HEAD, MOST_MEMBERS)
    assert {part.peer_id for part in members} == {me, *(peer.peer_id for peer in fast)}


@pytest.mark.parametrize(
    ("voters", "workers", "members"),
    [(3, {0, 1}, {0, 1}), (3, {2}, {0, 2}), (2, {0}, {0}), (2, {1}, {0, 1})],
    ids=["enough work", "as many as a quorum lacks", "it breaks ties", "the other breaks ties"],
)
def test_an_idle_voter_averages_only_where_a_quorum_needs_it(
    voters: int, workers: set[int], members: set[int]
) -> None:
    """A result that it would have to fetch over a slow line may not be there in time to vote."""
    line = standing(PEERS[:voters])
    attempt = asking(*line)
    for place, peer in enumerate(line):
        attempt.take(peer, replace(promise(), sequences=8 * (place in workers)))
    me = line[max(workers)].peer_id
    parts = attempt.contributors(me, frozenset(), HEAD, MOST_MEMBERS)
    assert {part.peer_id for part in parts} == {line[place].peer_id for place in members}


@pytest.mark.parametrize(
    ("states", "odd"),
    [
        # all agree
        ("aaa", set[int]()),
        # the last
        ("aab", {2}),
        # the first
        ("abb", {0}),
        # a tie: the first stands
        ("ab", {1}),
        # a tie of two and two: the first stands
        ("abba", {1, 2}),
        # the fifth is one of the crowd, so it does not decide the tie
        ("aabbb", {2, 3, 4}),
    ],
)
def test_whose_state_differs_from_most_electors_has_to_fetch_it(states: str, odd: set[int]) -> None:
    """The first four peers decide; the states of a crowd count for nothing."""
    held = {peer: state.encode() for peer, state in zip(PEERS, states, strict=False)}
    assert odd_states_out(held, PEERS[:4]) == {PEERS[place] for place in odd}


# ---- peers that cannot be dialled lead last and own a part last: two of them cannot connect


HEAD = head_of(A, B, C)


def seen_by_a(*hidden: Voter, steady: Collection[Voter] = ()) -> View:
    """Return the view of A, with its own lease."""

    def shown(voter: Voter) -> Lease:
        reached = Reached.NO if voter in hidden else Reached.YES
        reach = HowReached.PUNCHED if voter in steady else HowReached.UNKNOWN
        return replace(lease(voter), reached=reached, reach=reach)

    return replace(view(shown(B), shown(C)), mine=shown(A))


@pytest.mark.parametrize(
    ("hidden", "idle", "first"),
    [({A, B}, set[Voter](), {C}), ({A}, {B}, {C}), ({A, B}, {C}, {C}), ({A, B, C}, {C}, {A, B})],
)
def test_who_can_be_dialled_leads_first_and_of_these_who_has_work(
    hidden: set[Voter], idle: set[Voter], first: set[Voter]
) -> None:
    known = seen_by_a(*hidden).undialled
    places = {v: place_in_line(HEAD.voters, v, HEAD, {A, B, C}, idle, known) for v in (A, B, C)}
    assert min(places, key=places.__getitem__) in first


def owners_among(
    voters: Collection[Voter],
    seen: View,
    idle: Collection[Voter] = (),
    odds: Collection[tuple[Voter, Voter]] = (),
) -> set[Voter]:
    """Return the members that own a part; these pairs could not connect before."""
    members = [MemberCount(v.peer_id, v.incarnation, int(v not in idle), 0.0) for v in voters]
    apart = [(one.peer_id, other.peer_id) for one, other in odds]
    tenured = {member.peer_id for member in members}
    shares = choose_exchange(members, seen, 10**6, False, apart, tenured).shares
    return {v for v, share in zip(voters, shares, strict=True) if share}


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
    hidden: set[Voter], idle: set[Voter], odds: tuple[tuple[Voter, Voter], ...], owners: set[Voter]
) -> None:
    assert owners_among((A, B, C), seen_by_a(*hidden), idle, odds) == owners


@pytest.mark.parametrize(
    ("hidden", "steady", "members", "owners"),
    [
        ({A, B}, {A, B}, (A, B, C), {A, B, C}),
        ({A, B, C}, {A, B, C}, (A, B, C), {A, B, C}),
        ({A, B}, {A}, (A, B, C), {C}),
        ({A}, set[Voter](), (A, B, C), {B, C}),
        ({A, B}, {A}, (A, C), {A, C}),
        ({A, B}, {B}, (B, C), {B, C}),
    ],
)
def test_steady_members_own_parts_if_all_others_are_steady_or_dialled(
    hidden: set[Voter], steady: set[Voter], members: tuple[Voter, ...], owners: set[Voter]
) -> None:
    assert owners_among(members, seen_by_a(*hidden, steady=steady)) == owners


def test_members_without_tenure_are_in_no_ring() -> None:
    members = [MemberCount(v.peer_id, v.incarnation, 8, 0.0) for v in (A, B, C)]
    for tenured, owners in (({A, B, C}, []), ({A, C}, [True, False, True])):
        known = {voter.peer_id for voter in tenured}
        shares = choose_exchange(members, seen_by_a(), 10, True, (), known).shares
        assert list(map(bool, shares)) == owners

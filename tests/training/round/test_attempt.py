"""A coordinator's notebook: each answer is looked at once, however many there are."""

from collections.abc import Iterator
from dataclasses import replace

from atom.swarm.chain.commit import Ballot, Voter
from atom.swarm.chain.membership import standing
from atom.swarm.chain.messages import Promise
from atom.swarm.exchange.choice import MOST_IN_A_RING
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.electorate import Electorate

PEERS = [Voter(f"peer {number}", bytes([number]) * 16) for number in range(100)]


class Watched(dict[Voter, Promise]):
    """Counts how often somebody looks through all of it."""

    looks = 0

    def __iter__(self) -> Iterator[Voter]:
        self.looks += 1
        return super().__iter__()


def asking(*peers: Voter) -> Attempt:
    attempt = Attempt(Electorate(tuple(peers[:9])), Stage.PREPARE, 0.0, 1.0)
    attempt.expected = {peer.peer_id for peer in peers}
    return attempt


def promise() -> Promise:
    return Promise(b"h" * 32, Ballot(1, "c", b"i" * 16), None, None, 8, 1.0, b"s" * 32)


def test_a_promise_does_not_look_through_the_others() -> None:
    attempt = asking(*PEERS)
    attempt.promises = Watched()
    for peer in PEERS:
        assert not attempt.all_answered()
        assert attempt.take(peer, promise())
    assert attempt.all_answered()
    assert attempt.promises.looks == 0


def test_one_process_of_each_peer_promises() -> None:
    first = PEERS[0]
    again = Voter(first.peer_id, b"x" * 16)
    attempt = asking(first)
    assert attempt.take(first, promise())
    assert attempt.take(first, promise()), "the same one may repeat itself"
    assert not attempt.take(again, promise())
    assert set(attempt.promises) == {first}


def test_of_more_than_a_ring_can_have_those_that_counted_most() -> None:
    attempt = asking(*PEERS[:9])
    slow = [Voter(f"slow {number}", b"i" * 16) for number in range(MOST_IN_A_RING)]
    for peer in (*PEERS, *slow):
        attempt.take(peer, replace(promise(), sequences=8 if peer in PEERS else 1))
    me = slow[-1].peer_id
    ring = attempt.contributors(me, frozenset(), b"salt", MOST_IN_A_RING)
    assert len(ring) == MOST_IN_A_RING
    assert {me, *(peer.peer_id for peer in PEERS)} <= {part.peer_id for part in ring}


def members_of(attempt: Attempt, me: Voter) -> set[str]:
    parts = attempt.contributors(me.peer_id, frozenset(), b"salt", MOST_IN_A_RING)
    return {part.peer_id for part in parts}


def test_an_idle_voter_averages_only_where_a_quorum_needs_it() -> None:
    """A result that it would have to fetch over a slow line may not be there in time to vote."""
    first, second, third = standing(PEERS[:3])
    attempt = asking(first, second, third)
    for peer, sequences in ((first, 8), (second, 8), (third, 0)):
        attempt.take(peer, replace(promise(), sequences=sequences))
    assert members_of(attempt, first) == {first.peer_id, second.peer_id}

    alone = asking(first, second, third)
    for peer, sequences in ((first, 0), (second, 0), (third, 8)):
        alone.take(peer, replace(promise(), sequences=sequences))
    assert members_of(alone, third) == {first.peer_id, third.peer_id}


def test_of_two_voters_the_idle_one_averages_if_it_breaks_ties() -> None:
    first, second = standing(PEERS[:2])
    for worker, expected in ((first, {first}), (second, {first, second})):
        attempt = asking(first, second)
        for peer in (first, second):
            attempt.take(peer, replace(promise(), sequences=8 if peer == worker else 0))
        assert members_of(attempt, worker) == {peer.peer_id for peer in expected}

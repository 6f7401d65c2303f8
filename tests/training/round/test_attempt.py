"""A coordinator's notebook: each answer is looked at once, however many there are."""

from collections.abc import Iterator
from dataclasses import replace

from atom.swarm.chain.commit import Ballot, Voter
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

"""Ring channels that wait to be asked for: one peer's crowd does not shut the others out."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from threaded_ring import PARENT, SOON, Swarm, swarm_of

from atom.base.errors import PeerRefused
from atom.swarm.exchange.allreduce import open_ring
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.transport.ring_pool import RingPool
from tests.swarm.memory_stream import MemoryStream

__all__ = ["swarm_of"]


class Pool:
    """A pool of 4 places, 3 per peer, and threads whose channels wait in it."""

    def __init__(self) -> None:
        self.rings = RingPool(4, 3)
        self.threads = ThreadPoolExecutor(16)
        self.offered: dict[tuple[str, bytes], Future[bool]] = {}

    def offer(self, peer_id: str, tag: bytes) -> Future[bool]:
        channel = Channel(MemoryStream.pair()[0])
        channel.peer_id, channel.tag = peer_id, tag
        self.offered[peer_id, tag] = self.threads.submit(self.rings.offer, channel, SOON)
        return self.offered[peer_id, tag]

    def taken(self, peer_id: str, tag: bytes) -> bool:
        claimed = self.rings.claim(peer_id, tag, SOON)
        return (claimed.peer_id, claimed.tag) == (peer_id, tag)


@pytest.fixture
def pool() -> Iterator[Pool]:
    before = set(threading.enumerate())
    pool = Pool()
    yield pool
    pool.rings.close()
    pool.threads.shutdown()
    assert set(threading.enumerate()) <= before


def refused(pool: Pool, peer_id: str, tag: bytes) -> bool:
    return pool.offer(peer_id, tag).result(SOON) is False


def waiting(pool: Pool, *keys: tuple[str, bytes]) -> None:
    """Offers, and returns when all of them have a place."""
    for key in keys:
        pool.offer(*key)
    with pool.rings._changed:
        pool.rings._changed.wait_for(lambda: set(keys) <= set(pool.rings._waiting), SOON)


def test_a_peer_has_its_share_and_no_more(pool: Pool) -> None:
    waiting(pool, *(("greedy", bytes([number])) for number in range(3)))
    assert refused(pool, "greedy", b"more")
    waiting(pool, ("other", b"x"))
    assert pool.taken("other", b"x")


def test_who_has_most_gives_way(pool: Pool) -> None:
    waiting(pool, *(("greedy", bytes([number])) for number in range(3)), ("a", b"x"))
    waiting(pool, ("b", b"y"))
    assert pool.offered["greedy", bytes([0])].result(SOON) is False, "its oldest"
    assert pool.taken("a", b"x")
    assert pool.taken("b", b"y")


def test_equals_do_not_push_each_other_out(pool: Pool) -> None:
    waiting(pool, *((name, b"x") for name in "abcd"))
    assert refused(pool, "e", b"x")
    assert all(pool.taken(name, b"x") for name in "abcd")


def test_what_is_waited_for_always_comes_in(pool: Pool) -> None:
    waiting(pool, *((name, b"x") for name in "abcd"))
    claim = pool.threads.submit(pool.taken, "e", b"x")
    while not claim.done():
        pool.offer("e", b"x").result(SOON)
    assert claim.result(SOON)


def test_a_ring_opens_in_time_whatever_a_stranger_leaves_at_the_door(
    swarm_of: Callable[[str, int], Swarm],
) -> None:
    """Over real sockets: a fourth peer opens as many ring connections to all as it is let."""
    swarm = swarm_of("tcp", 4)
    *honest, hostile = swarm.transports
    left_there = []
    for victim in honest:
        for number in range(16):
            try:
                channel = hostile.connect(victim.peer_id, Purpose.RING, bytes([number]) * 8, SOON)
            except (OSError, PeerRefused):
                break
            left_there.append(channel)
    assert len(left_there) >= 3
    order = swarm.order[:3]
    work = [
        swarm.pool.submit(open_ring, transport, order, PARENT, swarm.ballot, SOON, 4)
        for transport in honest
    ]
    for opened in work:
        opened.result(SOON).close()
    for channel in left_there:
        channel.close()

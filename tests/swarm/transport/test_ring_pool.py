"""Ring channels that wait to be asked for: a stranger's crowd does not shut the others out."""

from collections.abc import Callable

from threaded_ring import SOON, Swarm, swarm_of

from atom.base.errors import PeerRefused
from atom.swarm.exchange.allreduce import open_exchange
from atom.swarm.stream.frames import Purpose

__all__ = ["swarm_of"]


def test_a_ring_opens_in_time_whatever_a_stranger_leaves_at_the_door(
    swarm_of: Callable[..., Swarm],
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
        swarm.pool.submit(open_exchange, transport, swarm.terms(rank, members=order), SOON)
        for rank, transport in enumerate(honest)
    ]
    for opened in work:
        opened.result(SOON).close()
    for channel in left_there:
        channel.close()

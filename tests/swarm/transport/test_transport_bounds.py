"""However much somebody sends or dials: it is bounded, and others are still served."""

import dataclasses
import socket
from collections.abc import Callable

import pytest
from transport_peers import QUICK, RUN, SOON, Peer, check_still_serving, make_tcp_peer, shake

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Patience
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.endpoint import Doorkeeper, TransportLimits

__all__ = ["make_tcp_peer"]


def test_an_oversized_message_frame_ends_the_connection(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    peer = make_tcp_peer()
    channel = shake(peer, Local(Identity.create(), RUN, bytes(16)))
    channel.stream.send_all(memoryview(b"\xff\xff\xff\xff\x10"), Patience(SOON))
    peer.events.wait("connection-dropped", reason="too-large")
    with pytest.raises(ConnectionError):
        channel.recv_header(10, Patience(SOON))
    channel.close()


def test_connections_per_peer_are_bounded(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer(limits=dataclasses.replace(QUICK, connections_per_peer=2))
    local = Local(Identity.create(), RUN, bytes(16))
    channels = [shake(peer, local), shake(peer, local)]
    with pytest.raises(PeerRefused) as refused:
        shake(peer, local)
    assert refused.value.reason is Reason.TOO_MANY_CONNECTIONS
    check_still_serving(peer)
    for channel in channels:
        channel.close()


def test_unproven_connections_are_bounded_per_host(make_tcp_peer: Callable[..., Peer]) -> None:
    limits = dataclasses.replace(QUICK, handshake_s=60.0, handshakes_per_host=2)
    peer = make_tcp_peer(limits=limits)
    silent = [socket.create_connection(peer.transport.address) for _ in range(3)]
    peer.events.wait("connection-refused", reason="too-many-connections")
    for plain in silent:
        plain.close()


def test_doorkeeper_counts_come_back_to_zero() -> None:
    door = Doorkeeper(TransportLimits(connections=3, handshakes=2, connections_per_peer=1))
    assert door.enter("a")
    assert door.identify("a", "one")
    assert door.enter("a")
    assert not door.identify("a", "one")
    assert door.enter("b")
    assert not door.enter("c")  # three in all
    door.leave("a", "")
    door.leave("b", "")
    door.leave("a", "one")
    assert door.enter("c")
    assert door.enter("c")
    assert not door.enter("c")  # two unproven

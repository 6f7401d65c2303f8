"""However much somebody sends or dials: it is bounded, and others are still served."""

import dataclasses
import socket
from collections.abc import Callable

import pytest
from transport_peers import (
    QUICK,
    RUN,
    SOON,
    Peer,
    check_still_serving,
    make_tcp_peer,
    shake,
)

from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Kind, Patience
from atom.swarm.stream.handshake import Local
from atom.swarm.transport import limits, listener
from atom.swarm.transport.limits import ConnectionLimiter, KnownPeers, TransportLimits
from atom.swarm.transport.transport import Transport
from tests.swarm.refusals import refusal

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


def test_what_strangers_do_wrong_does_not_fill_the_log(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOLD_PER_S", 1e-9)
    monkeypatch.setattr(limits, "TOLD_AT_ONCE", 3.0)
    peer = make_tcp_peer()
    for _ in range(6):
        channel = shake(peer, Local(Identity.create(), RUN, bytes(16)))
        channel.send_frame(Kind.WAITING, patience=Patience(SOON))
        with pytest.raises(ConnectionError):
            channel.recv_header(10, Patience(SOON))
        channel.close()
    told = [e for e in peer.events.events if e["event"] == "connection-dropped"]
    assert len(told) == 3


def test_connections_per_peer_are_bounded(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer(limits=dataclasses.replace(QUICK, connections_per_peer=2))
    local = Local(Identity.create(), RUN, bytes(16))
    channels = [shake(peer, local), shake(peer, local)]
    assert refusal(shake, peer, local) is Reason.TOO_MANY_CONNECTIONS
    check_still_serving(peer)
    for channel in channels:
        channel.close()


def test_unproven_connections_are_bounded_per_host(make_tcp_peer: Callable[..., Peer]) -> None:
    few = dataclasses.replace(QUICK, handshake_s=60.0, handshakes_per_host=2)
    peer = make_tcp_peer(limits=few)
    silent = [socket.create_connection(peer.transport.address) for _ in range(3)]
    peer.events.wait("connection-refused", reason="too-many-connections")
    for plain in silent:
        plain.close()


def test_connection_counts_come_back_to_zero() -> None:
    limits = TransportLimits(connections=2, handshakes=2, connections_per_peer=1)
    known = KnownPeers()
    known.at_head({"one", "two", "three"})
    door = ConnectionLimiter(limits, known)
    assert door.enter("a")
    assert door.identify("a", "one")
    assert door.enter("a")
    assert not door.identify("a", "one")
    assert door.enter("b")
    assert not door.enter("c")  # two unproven
    assert door.identify("b", "two")
    assert not door.identify("a", "three")  # two in all
    door.leave("a", "")
    door.leave("a", "one")
    assert door.enter("c")
    assert door.identify("c", "three")
    assert door.enter("c")
    assert door.enter("c")
    assert not door.enter("c")


def test_strangers_take_their_part_of_the_places_and_no_more() -> None:
    known = KnownPeers()
    known.at_head({"voter", "member"})
    limits = TransportLimits(connections=4, connections_per_peer=2)
    door = ConnectionLimiter(limits, known)
    assert all(door.enter("a") for _ in range(8))
    came = ["one", "two", "three", "voter", "two", "voter", "voter", "member"]
    let_in = [door.identify("a", peer_id) for peer_id in came]
    assert let_in == [True, True, False, True, False, True, False, False]
    door.leave("a", "voter")
    assert not door.identify("a", "three")
    known.in_ring({"two", "three"})
    assert door.identify("a", "three")
    door.leave("a", "three")
    known.at_head(())
    assert not door.identify("a", "four"), "one and voter are strangers now"


def test_known_peers_get_in_beside_a_crowd_of_strangers(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    few = dataclasses.replace(QUICK, connections=4)
    peer = make_tcp_peer(limits=few)
    voter, *strangers = (Local(Identity.create(), RUN, bytes(16)) for _ in range(4))
    peer.transport.known.at_head([voter.identity.peer_id])
    channels = [shake(peer, local) for local in strangers[:2]]
    assert refusal(shake, peer, strangers[2]) is Reason.TOO_MANY_CONNECTIONS
    channels += [shake(peer, voter), shake(peer, voter)]
    for channel in channels:
        channel.close()


def test_messages_of_a_connection_are_read_at_a_bounded_rate(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a message costs more than sending it: a flood waits in its sender's own buffers."""
    monkeypatch.setattr(listener, "MESSAGES_BYTES_PER_S", 1000.0)
    monkeypatch.setattr(listener, "MESSAGES_BURST_BYTES", 1000.0)
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    assert isinstance(two.transport, Transport)
    two.transport.known.at_head([one.peer_id])
    waits = list[float]()
    monkeypatch.setattr(two.transport._endpoint.closing, "wait", waits.append)
    for _ in range(100):
        one.transport.send(two.peer_id, b"x" * 1000)
    for _ in range(100):
        two.heard.get(timeout=SOON)
    assert waits[0] < 1.0
    assert waits[-1] > 100.0 - SOON


def test_messages_of_all_strangers_share_one_rate(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MESSAGES_BYTES_PER_S", 1000.0)
    monkeypatch.setattr(listener, "MESSAGES_BURST_BYTES", 1000.0)
    peer, waits = make_tcp_peer(), list[float]()
    assert isinstance(peer.transport, Transport)
    channels = [shake(peer, Local(Identity.create(), RUN, bytes(16))) for _ in range(4)]
    monkeypatch.setattr(peer.transport._endpoint.closing, "wait", waits.append)
    for channel in channels * 5:
        channel.send_frame(Kind.MESSAGE, b"x" * 1000, patience=Patience(SOON))
    for _ in range(20):
        peer.heard.get(timeout=SOON)
    assert max(waits) > 20.0 - SOON / 2, "of one alone it would be 5 s"
    for channel in channels:
        channel.close()

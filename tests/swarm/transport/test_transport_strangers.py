"""Who does not prove to be who it says, of our run, is refused by name."""

import socket
import ssl
from collections.abc import Callable

import pytest
from transport_peers import RUN, Peer, check_still_serving, make_tcp_peer, shake

from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Kind, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import TransportLimits
from tests.swarm.refusals import refusal

__all__ = ["make_tcp_peer"]


def test_another_run_is_refused_by_name(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer(run=b"q" * 32)
    one.knows(two)
    assert refusal(one.transport.connect, two.peer_id, Purpose.RING, b"tag") is Reason.WRONG_RUN
    two.events.wait("connection-refused", reason="wrong-run")


def test_another_identity_is_refused_by_the_client(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(limits=TransportLimits(handshake_s=600.0)), make_tcp_peer()
    host, port = two.transport.address
    expected = Identity.create().peer_id
    one.transport.set_addresses(expected, [f"{host}:{port}"])
    assert refusal(one.transport.connect, expected, Purpose.RING, b"tag") is Reason.WRONG_IDENTITY


def test_a_signature_for_another_server_is_refused(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    local = Local(Identity.create(), RUN, bytes(16))
    assert refusal(shake, peer, local, Identity.create().peer_id) is Reason.BAD_SIGNATURE


def test_claiming_another_peers_name_is_refused(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    impostor = Identity.create()
    impostor.peer_id = Identity.create().peer_id
    assert refusal(shake, peer, Local(impostor, RUN, bytes(16))) is Reason.BAD_SIGNATURE


def test_another_version_is_refused_by_both_sides(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = make_tcp_peer()
    local = Local(Identity.create(), RUN, bytes(16))
    hello = handshake.wire.Hello(version=handshake.PROTOCOL_VERSION + 1)
    assert refusal(handshake._check_hello, hello, local) is Reason.WRONG_VERSION
    monkeypatch.setattr(handshake.wire, "Challenge", lambda **_: NewerChallenge())
    assert refusal(shake, peer, local) is Reason.WRONG_VERSION


class NewerChallenge:
    """Stands in for the message of a later version, at both ends."""

    version, nonce = handshake.PROTOCOL_VERSION + 1, bytes(32)

    def SerializeToString(self) -> bytes:
        return b""

    def ParseFromString(self, raw: bytes) -> None:
        pass


def test_garbage_is_refused_and_logged(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    with socket.create_connection(peer.transport.address) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        peer.events.wait("connection-refused", reason="bad-handshake")
    check_still_serving(peer)


def test_a_silent_stranger_is_cut_in_time(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    with socket.create_connection(peer.transport.address):
        peer.events.wait("connection-refused", reason="timeout")
    check_still_serving(peer)


def test_an_oversized_hello_is_refused_by_name(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(peer.transport.address) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        wrapped.sendall((1 << 20).to_bytes(4, "big") + bytes([Kind.HELLO]))
        event = peer.events.wait("connection-refused")
    assert event["reason"] == "bad-handshake"
    assert "1048576" in str(event["detail"])

"""Who drips its bytes, one now and one later: refused by name, and nobody else waits for it."""

import contextlib
import dataclasses
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from transport_peers import QUICK, RUN, SOON, Peer, check_still_serving, make_tcp_peer, shake, until

from atom.base.errors import PeerRefused
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import SocketStream, TlsStream, make_credentials

__all__ = ["make_tcp_peer"]

BETWEEN_S = 0.02
ENDLESS = bytes(10_000)


@contextlib.contextmanager
def dripping(send: Callable[[bytes], object], text: bytes) -> Iterator[list[bytes]]:
    """Sends a byte at a time for as long as the other end takes them; yields those so far."""
    sent, stop = list[bytes](), threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for place in range(len(text)):
                sent.append(text[place : place + 1])
                send(sent[-1])
                if stop.wait(BETWEEN_S):
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(SOON)
        assert not thread.is_alive()


def client_hello() -> bytes:
    """As TLS begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def serves(peer: Peer) -> bool:
    try:
        check_still_serving(peer)
    except (OSError, PeerRefused):  # no place is free yet
        return False
    return True


@pytest.mark.parametrize("at_once", [0, 100])
def test_a_stranger_that_drips_its_first_words(
    make_tcp_peer: Callable[..., Peer], at_once: int
) -> None:
    two_places = dataclasses.replace(QUICK, handshakes_per_host=2)
    peer, hello = make_tcp_peer(limits=two_places), client_hello()
    with contextlib.ExitStack() as stack:
        for number in range(2):
            plain = stack.enter_context(socket.create_connection(peer.transport.address))
            plain.sendall(hello[:at_once])
            sent = stack.enter_context(dripping(plain.sendall, hello[at_once:]))
            if number == 0:
                check_still_serving(peer)
        for _ in range(2):
            peer.events.wait("connection-refused", reason="timeout")
        until(lambda: serves(peer))
    assert 1 < len(sent) < len(hello) - at_once, "it was dripping until it was cut"


def test_a_stranger_that_drips_its_proof(make_tcp_peer: Callable[..., Peer]) -> None:
    """Behind a TLS handshake as it should be."""
    one_place = dataclasses.replace(QUICK, handshakes_per_host=1)
    peer = make_tcp_peer(limits=one_place)
    plain = socket.create_connection(peer.transport.address)
    client = make_credentials(Identity.create()).client
    stream = TlsStream(SocketStream(plain), client, server_side=False)
    stream.handshake(Patience.within(SOON))
    channel = Channel(stream)
    channel.recv_frame(Kind.CHALLENGE, 1024, Patience(SOON))
    frame = (1000).to_bytes(4, "big") + bytes([Kind.HELLO]) + ENDLESS

    def send(byte: bytes) -> None:
        stream.send_all(memoryview(byte), Patience(SOON))

    with dripping(send, frame) as sent:
        peer.events.wait("connection-refused", reason="timeout", detail="handshake")
        until(lambda: serves(peer))
    assert len(sent) > 1
    channel.close()


def test_a_peer_that_drips_a_message(make_tcp_peer: Callable[..., Peer]) -> None:
    """Who has proved to be a peer may be idle for long, but not in the middle of a frame."""
    limits = dataclasses.replace(QUICK, frame_s=0.5, connections_per_peer=1)
    peer, local = make_tcp_peer(limits=limits), Local(Identity.create(), RUN, bytes(16))
    channel = shake(peer, local)
    channel.send_header(Kind.MESSAGE, 1000, Patience(SOON))

    def send(byte: bytes) -> None:
        channel.stream.send_all(memoryview(byte), Patience(SOON))

    with dripping(send, ENDLESS) as sent:
        check_still_serving(peer)
        who = local.identity.peer_id
        dropped = peer.events.wait("connection-dropped", reason="timeout", peer_id=who)
    assert dropped["detail"] == "a frame of 1000 bytes takes longer than 0.5 s"
    assert 1 < len(sent) < 1000
    channel.close()
    again = list[Channel]()

    def has_a_place() -> bool:
        with contextlib.suppress(OSError, PeerRefused):
            again.append(shake(peer, local))
        return bool(again)

    until(has_a_place)
    again[0].send_frame(Kind.MESSAGE, b"whole", patience=Patience(SOON))
    assert peer.heard.get(timeout=SOON)[2] == b"whole"
    again[0].close()

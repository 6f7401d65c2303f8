"""Peers find and hear each other over loopback, and are told in time whom they cannot reach."""

import socket
import threading
from collections.abc import Callable

import pytest
from transport_peers import RUN, SOON, Peer, make_peer, make_tcp_peer

from atom.base.errors import AddressError, PortInUseError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.bandwidth import ThrottledStream
from atom.swarm.stream.frames import Interrupted, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import TlsStream
from atom.swarm.transport.dialer import CALL, Contact, ContactBook, parse_address
from atom.swarm.transport.limits import TransportLimits, Unreachable
from atom.swarm.transport.listener import listening
from atom.swarm.transport.transport import Transport
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.refusals import refusal

__all__ = ["make_peer", "make_tcp_peer"]


def test_messages_arrive_with_sender_and_incarnation(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    two.knows(one)
    for number in range(20):
        assert one.transport.send(two.peer_id, b"message %d" % number)
    for number in range(20):
        sender, incarnation, raw = two.heard.get(timeout=SOON)
        assert (sender, incarnation) == (one.peer_id, bytes([0]) * 16)
        assert raw == b"message %d" % number
    two.transport.send(one.peer_id, b"x" * (256 << 10))
    assert one.heard.get(timeout=SOON) == (
        two.peer_id,
        bytes([1]) * 16,
        b"x" * (256 << 10),
    )


def test_a_peer_that_closed_is_refused_by_its_host(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    one.transport.send(two.peer_id, b"hello")
    two.heard.get(timeout=SOON)
    two.transport.close()
    one.transport.send(two.peer_id, b"are you there?")
    assert one.lost.get(timeout=SOON) == (two.peer_id, True)


def test_an_unknown_peer_is_unreachable_but_not_refused(make_tcp_peer: Callable[[], Peer]) -> None:
    one = make_tcp_peer()
    stranger = Identity.create().peer_id
    one.transport.send(stranger, b"hello")
    assert one.lost.get(timeout=SOON) == (stranger, False)
    with pytest.raises(Unreachable) as unreachable:
        one.transport.connect(stranger, Purpose.RING, b"tag")
    assert not unreachable.value.refused


def test_ring_channels_meet_by_peer_and_tag(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    early = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    claimed = two.transport.accept_ring(one.peer_id, b"tag", SOON)
    early.send_frame(Kind.CHUNK, b"data", patience=Patience(SOON))
    assert claimed.recv_frame(Kind.CHUNK, 10, Patience(SOON)) == b"data"
    assert (claimed.peer_id, claimed.tag) == (one.peer_id, b"tag")
    assert (early.peer_id, early.incarnation) == (two.peer_id, bytes([1]) * 16)
    claimed.close()
    with pytest.raises(ConnectionError):
        early.recv_header(10, Patience(SOON))


def test_rings_travel_in_tls_and_the_handshake_measures_the_way(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    here = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    there = two.transport.accept_ring(one.peer_id, b"tag", SOON)
    for end in (here, there):
        assert 0.0 < end.round_trip_s < SOON
        assert isinstance(end.stream, ThrottledStream)
        assert end.stream.ring
        assert isinstance(end.stream.below, TlsStream)


def test_a_mute_host_is_given_up_in_the_callers_time(make_tcp_peer: Callable[..., Peer]) -> None:
    """It takes connections, as a frozen peer's kernel does, and never says a word."""
    one = make_tcp_peer(limits=TransportLimits(handshake_s=600.0))
    mute = Identity.create().peer_id
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        one.transport.set_addresses(mute, [f"{host}:{port}"])
        with pytest.raises(Unreachable):
            one.transport.connect(mute, Purpose.RING, b"tag", timeout_s=0.2)


def test_a_dial_is_given_up_when_it_is_stopped(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    """Its kernel has no room for us: what asks to be let in gets no answer at all."""
    one, nowhere, unwanted = make_tcp_peer(), Identity.create().peer_id, threading.Event()
    unwanted.set()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        host, port = listening.getsockname()
        with socket.create_connection((host, port)):
            one.transport.set_addresses(nowhere, [f"{host}:{port}"])
            with pytest.raises(Interrupted):
                one.transport.connect(nowhere, Purpose.BLOBS, stop=unwanted)


def test_a_mute_address_leaves_time_for_the_next(make_tcp_peer: Callable[..., Peer]) -> None:
    """Another machine has taken over the first address, and says nothing."""
    one, two = make_tcp_peer(limits=TransportLimits(handshake_s=600.0)), make_tcp_peer()
    host, port = two.transport.address
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mute = f"{host}:{listening.getsockname()[1]}"
        one.transport.set_addresses(two.peer_id, [mute, f"{host}:{port}"])
        one.transport.connect(two.peer_id, Purpose.RING, b"tag", timeout_s=2.0)


def test_a_stale_tag_is_never_claimed_and_ends(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    stale = one.transport.connect(two.peer_id, Purpose.RING, b"old")
    assert refusal(two.transport.accept_ring, one.peer_id, b"new", 0.05) is Reason.TIMEOUT
    two.events.wait("connection-dropped", reason="not-found", peer_id=one.peer_id)
    with pytest.raises(ConnectionError):
        stale.recv_header(10, Patience(SOON))


def test_close_frees_a_waiting_accept(make_peer: Callable[[], Peer]) -> None:
    one = make_peer()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(ConnectionError):
            one.transport.accept_ring(Identity.create().peer_id, b"tag", 60.0)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    one.transport.close()
    assert ended.wait(SOON)
    thread.join(SOON)


def test_blobs_are_refused_without_a_blob_server(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    assert refusal(one.transport.connect, two.peer_id, Purpose.BLOBS) is Reason.NOT_FOUND


def test_a_port_in_use_is_the_users_to_mend(make_tcp_peer: Callable[..., Peer]) -> None:
    host, port = make_tcp_peer().transport.address
    second = Transport(Local(Identity.create(), RUN, bytes(16)), (host, port), EventList())
    with pytest.raises(PortInUseError):
        second.start()
    second.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "h:1:x",
        "h:²",
        "h\0:1",
        "h:000001" + 30 * "9",
    ],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)port|is not a host"):
        parse_address(text)


def test_addresses_are_well_formed_and_the_good_one_first() -> None:
    book = ContactBook()
    book.set("p", Contact(("nonsense", "[::1]:7", *(f"h:{n}" for n in range(1, 7)))))
    dialled = [way for way in book.ways("p") if way != CALL]
    assert dialled == ["[::1]:7", *(f"h:{n}" for n in range(1, 7))]
    book.worked("p", dialled[3])
    assert book.ways("p")[0] == dialled[3]
    assert parse_address("[::1]:7") == ("::1", 7)


def test_a_cut_pair_is_unreachable_until_healed() -> None:
    network = LocalNetwork()
    identities = [Identity.create(), Identity.create()]
    one, two = (LocalTransport(network, i, bytes(16), EventList()) for i in identities)
    one.start()
    two.start()
    channel = one.connect(two.peer_id, Purpose.RING, b"tag")
    network.cut(one.peer_id, two.peer_id)
    with pytest.raises(ConnectionError):
        channel.recv_header(10, Patience(SOON))
    with pytest.raises(Unreachable) as unreachable:
        one.connect(two.peer_id, Purpose.RING, b"tag")
    assert not unreachable.value.refused
    network.heal(one.peer_id, two.peer_id)
    one.connect(two.peer_id, Purpose.RING, b"tag").close()
    one.close()
    two.close()


def test_a_door_that_cannot_be_opened_says_what_to_write_instead() -> None:
    with pytest.raises(AddressError, match=r"cannot listen on 203\.0\.113\.7:0: Cannot") as refused:
        listening(("203.0.113.7", 0))
    assert "[network] data_port" in refused.value.hint

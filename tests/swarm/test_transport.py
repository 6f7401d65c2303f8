"""Peers find, prove and hear each other over loopback; strangers are refused by name."""

import dataclasses
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from atom.base.errors import PeerRefused, PortInUseError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm import handshake
from atom.swarm.contacts import Contact, ContactBook, Unreachable, parse_address
from atom.swarm.endpoint import Doorkeeper, TransportLimits
from atom.swarm.frames import Channel, Interrupted, Kind, Patience, Purpose
from atom.swarm.handshake import Local
from atom.swarm.identity import Identity
from atom.swarm.local_transport import LocalNetwork, LocalTransport
from atom.swarm.protection import RingProtection
from atom.swarm.record_stream import RecordStream
from atom.swarm.socket_stream import SocketStream
from atom.swarm.throttle import RingStream
from atom.swarm.tls import make_credentials, wrap
from atom.swarm.tls_stream import TlsStream
from atom.swarm.transport import PeerTransport, Transport

RUN = b"r" * 32
SOON = 10.0
QUICK = TransportLimits(handshake_s=0.5, connect_s=1.0, unclaimed_ring_s=0.2)


class EventQueue(EventList):
    """Events that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: queue.Queue[dict[str, object]] = queue.Queue()

    def emit(self, kind: str, **fields: object) -> None:
        super().emit(kind, **fields)
        self._queue.put(self.events[-1])

    def wait(self, kind: str, **fields: object) -> dict[str, object]:
        while True:
            event = self._queue.get(timeout=SOON)
            if event["event"] == kind and fields.items() <= event.items():
                return event


class Peer:
    """A transport with its log and what it was told."""

    def __init__(self, transport: PeerTransport, events: EventQueue) -> None:
        self.transport = transport
        self.events = events
        self.heard: queue.Queue[tuple[str, bytes, bytes]] = queue.Queue()
        self.lost: queue.Queue[tuple[str, bool]] = queue.Queue()
        transport.set_handlers(
            on_message=lambda *heard: self.heard.put(heard),
            on_unreachable=lambda *lost: self.lost.put(lost),
        )

    def knows(self, *others: "Peer") -> None:
        for other in others:
            host, port = other.transport.address
            self.transport.set_addresses(other.transport.peer_id, [f"{host}:{port}"])


@pytest.fixture(params=["tcp", "local"])
def make_peer(request: pytest.FixtureRequest) -> Iterator[Callable[[], Peer]]:
    yield from peers(request.param)


@pytest.fixture
def make_tcp_peer() -> Iterator[Callable[..., Peer]]:
    yield from peers("tcp")


def peers(kind: str) -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []
    network = LocalNetwork()

    def make(
        run: bytes = RUN,
        limits: TransportLimits = QUICK,
        ring_protection: RingProtection = RingProtection.TLS,
    ) -> Peer:
        identity, incarnation, events = Identity.create(), bytes([len(made)]) * 16, EventQueue()
        transport: PeerTransport
        if kind == "tcp":
            where = ("127.0.0.1", 0)
            local = Local(identity, run, incarnation, ring_protection)
            transport = Transport(local, where, events, limits=limits)
        else:
            transport = LocalTransport(network, identity, incarnation, events, limits)
        made.append(Peer(transport, events))
        transport.start()
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for peer in made:
        peer.transport.close()
    assert set(threading.enumerate()) <= before
    assert not any(e["event"] == "thread-failed" for peer in made for e in peer.events.events)


def test_messages_arrive_with_sender_and_incarnation(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    two.knows(one)
    for number in range(20):
        assert one.transport.send(two.transport.peer_id, b"message %d" % number)
    for number in range(20):
        sender, incarnation, raw = two.heard.get(timeout=SOON)
        assert (sender, incarnation) == (one.transport.peer_id, bytes([0]) * 16)
        assert raw == b"message %d" % number
    two.transport.send(one.transport.peer_id, b"x" * (256 << 10))
    assert one.heard.get(timeout=SOON) == (
        two.transport.peer_id,
        bytes([1]) * 16,
        b"x" * (256 << 10),
    )


def test_a_peer_that_closed_is_refused_by_its_host(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    one.transport.send(two.transport.peer_id, b"hello")
    two.heard.get(timeout=SOON)
    two.transport.close()
    one.transport.send(two.transport.peer_id, b"are you there?")
    assert one.lost.get(timeout=SOON) == (two.transport.peer_id, True)


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
    early = one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag")
    claimed = two.transport.accept_ring(one.transport.peer_id, b"tag", SOON)
    early.send_frame(Kind.CHUNK, b"data", patience=Patience(SOON))
    assert claimed.recv_frame(Kind.CHUNK, 10, Patience(SOON)) == b"data"
    assert (claimed.peer_id, claimed.tag) == (one.transport.peer_id, b"tag")
    assert (early.peer_id, early.incarnation) == (two.transport.peer_id, bytes([1]) * 16)
    claimed.close()
    with pytest.raises(ConnectionError):
        early.recv_header(10, Patience(SOON))


def test_a_handshake_measures_the_way(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    assert one.transport.links.links(4) == {}
    one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag")
    (link,) = one.transport.links.links(4).values()
    assert 0.0 < link.round_trip_s < SOON
    assert two.transport.links.links(4) == {}


def test_a_mute_host_is_given_up_in_the_callers_time(make_tcp_peer: Callable[..., Peer]) -> None:
    """It takes connections, as a frozen peer's kernel does, and never says a word."""
    one = make_tcp_peer(limits=TransportLimits(handshake_s=600.0))
    mute = Identity.create().peer_id
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        one.transport.set_addresses(mute, [f"{host}:{port}"])
        with pytest.raises(Unreachable):
            one.transport.connect(mute, Purpose.RING, b"tag", timeout_s=0.2)


def test_an_address_that_leads_nowhere_is_given_up_when_nobody_wants_it_any_more(
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
        one.transport.set_addresses(two.transport.peer_id, [mute, f"{host}:{port}"])
        one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag", timeout_s=2.0)


@pytest.mark.parametrize("protection", RingProtection)
def test_rings_travel_as_the_owner_says(
    make_tcp_peer: Callable[..., Peer], protection: RingProtection
) -> None:
    one, two = (make_tcp_peer(ring_protection=protection) for _ in range(2))
    one.knows(two)
    outgoing = one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag")
    incoming = two.transport.accept_ring(one.transport.peer_id, b"tag", SOON)
    streams = {RingProtection.TLS: TlsStream, RingProtection.AES_GCM: RecordStream}
    expected = streams.get(protection, SocketStream)
    data = bytes(range(256)) * 3000
    for here, there in ((outgoing, incoming), (incoming, outgoing)):
        assert isinstance(here.stream, RingStream)
        capped = here.stream.below
        assert isinstance(capped.below, expected)
        send = threading.Thread(
            target=here.send_frame, args=(Kind.CHUNK, data), kwargs={"patience": Patience(SOON)}
        )
        send.start()
        assert there.recv_frame(Kind.CHUNK, len(data), Patience(SOON)) == data
        send.join()
    one.transport.send(two.transport.peer_id, b"in TLS as ever")
    assert two.heard.get(timeout=SOON)[2] == b"in TLS as ever"


@pytest.mark.parametrize("there", [RingProtection.TLS, RingProtection.AES_GCM])
def test_ends_that_disagree_about_records_part_in_the_handshake(
    make_tcp_peer: Callable[..., Peer], there: RingProtection
) -> None:
    here = next(p for p in (RingProtection.AES_GCM, RingProtection.TLS) if p is not there)
    one, two = make_tcp_peer(ring_protection=here), make_tcp_peer(ring_protection=there)
    one.knows(two)
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag")
    assert refused.value.reason is Reason.BAD_HANDSHAKE
    two.events.wait("connection-refused", reason="bad-handshake")


def test_a_stale_tag_is_never_claimed_and_ends(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    stale = one.transport.connect(two.transport.peer_id, Purpose.RING, b"old")
    with pytest.raises(PeerRefused) as refused:
        two.transport.accept_ring(one.transport.peer_id, b"new", 0.05)
    assert refused.value.reason is Reason.TIMEOUT
    two.events.wait("ring-unclaimed", peer_id=one.transport.peer_id)
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


def test_blobs_are_refused_where_nobody_serves_them(make_peer: Callable[[], Peer]) -> None:
    one, two = make_peer(), make_peer()
    one.knows(two)
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.transport.peer_id, Purpose.BLOBS)
    assert refused.value.reason is Reason.NOT_FOUND


def test_another_run_is_refused_by_name(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer(run=b"q" * 32)
    one.knows(two)
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.transport.peer_id, Purpose.RING, b"tag")
    assert refused.value.reason is Reason.WRONG_RUN
    two.events.wait("connection-refused", reason="wrong-run")


def test_another_identity_is_refused_by_the_client(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(limits=TransportLimits(handshake_s=600.0)), make_tcp_peer()
    host, port = two.transport.address
    expected = Identity.create().peer_id
    one.transport.set_addresses(expected, [f"{host}:{port}"])
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(expected, Purpose.RING, b"tag")
    assert refused.value.reason is Reason.WRONG_IDENTITY


def shake(peer: Peer, local: Local, server: str | None = None) -> Channel:
    """A client that follows the protocol except where the test bends it."""
    plain = socket.create_connection(peer.transport.address)
    stream = wrap(plain, make_credentials(local.identity), server_side=False)
    stream.handshake(Patience.within(SOON))
    channel = Channel(stream)
    certificate = stream.certificate()
    assert certificate is not None
    name = server or peer.transport.peer_id
    try:
        handshake.greet(channel, local, name, certificate, Patience.within(SOON))
    except BaseException:
        channel.close()
        raise
    return channel


def test_a_signature_for_another_server_is_refused(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    local = Local(Identity.create(), RUN, bytes(16))
    with pytest.raises(PeerRefused) as refused:
        shake(peer, local, server=Identity.create().peer_id)
    assert refused.value.reason is Reason.BAD_SIGNATURE


def test_claiming_another_peers_name_is_refused(make_tcp_peer: Callable[..., Peer]) -> None:
    peer = make_tcp_peer()
    impostor = Identity.create()
    impostor.peer_id = Identity.create().peer_id
    with pytest.raises(PeerRefused) as refused:
        shake(peer, Local(impostor, RUN, bytes(16)))
    assert refused.value.reason is Reason.BAD_SIGNATURE


def test_another_version_is_refused_by_both_sides(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = make_tcp_peer()
    local = Local(Identity.create(), RUN, bytes(16))
    with pytest.raises(PeerRefused) as refused:
        handshake._check_hello(handshake.wire.Hello(version=handshake.PROTOCOL_VERSION + 1), local)
    assert refused.value.reason is Reason.WRONG_VERSION
    monkeypatch.setattr(handshake.wire, "Challenge", lambda **_: NewerChallenge())
    with pytest.raises(PeerRefused) as refused:
        shake(peer, local)
    assert refused.value.reason is Reason.WRONG_VERSION


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
    assert "127.0.0.1" in peer.transport.quarantine.aside(time.monotonic())
    check_still_serving(peer)


def test_hanging_up_is_no_offence_of_a_host(make_tcp_peer: Callable[..., Peer]) -> None:
    """Peers behind one address that give up on a slow peer must not keep each other out."""
    peer = make_tcp_peer()
    with socket.create_connection(peer.transport.address) as plain:
        plain.sendall(b"\x16\x03\x01")  # as a handshake begins
    peer.events.wait("connection-refused", detail="closed by the other end")
    assert not peer.transport.quarantine.aside(time.monotonic())
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


def test_a_port_in_use_is_the_users_to_mend(make_tcp_peer: Callable[..., Peer]) -> None:
    host, port = make_tcp_peer().transport.address
    second = Transport(Local(Identity.create(), RUN, bytes(16)), (host, port), EventList())
    with pytest.raises(PortInUseError):
        second.start()
    second.close()


def check_still_serving(peer: Peer) -> None:
    channel = shake(peer, Local(Identity.create(), RUN, bytes(16)))
    channel.send_frame(Kind.MESSAGE, b"still there", patience=Patience(SOON))
    assert peer.heard.get(timeout=SOON)[2] == b"still there"
    channel.close()


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


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "h:1:x", "h:²"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|port"):
        parse_address(text)


def test_addresses_are_few_well_formed_and_the_good_one_first() -> None:
    book = ContactBook()
    book.set("p", Contact(("nonsense", "[::1]:7", *(f"h:{n}" for n in range(1, 20)))))
    assert book.addresses("p") == ["[::1]:7", *(f"h:{n}" for n in range(1, 7))]
    book.worked("p", "h:3")
    assert book.addresses("p")[0] == "h:3"
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

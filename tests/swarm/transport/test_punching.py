"""Two peers that cannot be dialled connect to each other: a third peer introduces them."""

import contextlib
import errno
import ipaddress
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from atom.base.errors import Reason
from atom.swarm.stream.bandwidth import Rate
from atom.swarm.stream.frames import NO_ADDRESS, Address, Channel, Kind, Patience, Purpose
from atom.swarm.stream.tls import SocketStream
from atom.swarm.transport import limits, punching, reverse_connections
from atom.swarm.transport.limits import Unreachable
from atom.swarm.transport.punching import check_target, punch, receive_address, shared_port
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import stream_pair
from tests.swarm.transport_peers import SOON, Make, Peer, keep_lines, reaches, until

HOME = "192.168.1.2"
NEVER_DIALLED = [
    "10.0.0.1", "172.16.5.4", "192.168.1.1", "198.18.0.1", "100.64.0.9", "127.0.0.1", "0.0.0.0",
    "169.254.169.254", "192.0.0.8", "224.0.0.251", "255.255.255.255", "::", "::1", "fe80::1",
    "fd00::1", "ff02::1", "::ffff:192.168.1.1", "64:ff9b::7f00:1", "2002:c0a8:101::1",
]  # fmt: skip


@pytest.fixture
def make(make_peer: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make peers on loopback that are introduced to each other all the same."""
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    monkeypatch.setattr(punching, "check_target", lambda target, own_host: None)
    monkeypatch.setattr(punching, "host_group", lambda host: object())
    monkeypatch.setattr(limits, "FIRST_HOLD_S", 0.01)

    def make(listens: bool = True, **given: Any) -> Peer:
        return make_peer(listens=listens, **{"HANDSHAKE_S": 3.0} | given)

    return make


def homes(make: Make, count: int = 2) -> tuple[Peer, list[Peer]]:
    """Return a peer that can be dialled, and peers with a line to it that know each other."""
    host, guests = make(), [make(listens=False) for _ in range(count)]
    for guest in guests:
        keep_lines(guest, host)
        guest.knows(*(other for other in guests if other is not guest))
    return host, guests


@pytest.fixture
def lost_packets(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Address]]:
    """Return a function that loses all later packets, and returns the list of addresses tried.

    A router that takes another port for each destination looks like this.
    """

    def begin() -> list[Address]:
        tried = list[Address]()

        def fails(local: Address, target: Address, patience: Patience) -> None:
            tried.append(target)
            raise TimeoutError("no packet came through")

        monkeypatch.setattr(punching, "punch", fails)
        return tried

    return begin


def packed(host: str, port: int) -> bytes:
    return ipaddress.ip_address(host).packed + port.to_bytes(2)


def is_introduced(asker: Peer, host: Peer, other: str) -> bool:
    channel = asker.transport.connect(host.peer_id, Purpose.INTRODUCE, other.encode("latin-1"))
    with contextlib.closing(channel), contextlib.suppress(OSError):
        receive_address(channel, Patience.within(SOON))
        return True
    return False


def introduced_by(host: Peer, guest: Peer, kind: Kind, raw: bytes) -> None:
    """Call a guest and send it a frame, as an introducer does; return when it hangs up."""
    transport = host.transport
    channel = transport._dial_to_introduce(guest.peer_id, Purpose.MEET, b"", SOON)
    with contextlib.closing(channel), contextlib.suppress(OSError):
        channel.send_frame(kind, raw, patience=Patience.within(SOON))
        channel.recv_header(0, Patience.within(SOON))


# ---- what it is for


def test_two_peers_that_cannot_be_dialled_connect(make: Make) -> None:
    _, (one, two) = homes(make)
    assert not one.transport.is_steady
    for asker, other in ((one, two), (two, one)):
        assert asker.transport.send(other.peer_id, b"are you there?")
        assert other.heard.get(timeout=SOON)[::2] == (asker.peer_id, b"are you there?")
        outgoing = asker.transport.connect(other.peer_id, Purpose.RING, b"tag")
        incoming = other.transport.accept_ring(asker.peer_id, b"tag", SOON)
        assert (outgoing.peer_id, incoming.peer_id) == (other.peer_id, asker.peer_id)
        assert outgoing.local == incoming.remote
        assert incoming.local == outgoing.remote
        incoming.close()
        outgoing.close()
        assert asker.transport.is_steady


def test_several_connections_at_a_time(make: Make) -> None:
    _, (one, two) = homes(make)
    threads = [threading.Thread(target=reaches, args=pair) for pair in [(one, two), (two, one)] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.transport.is_steady
    assert two.transport.is_steady


def test_a_failed_punch_is_not_repeated_at_once_and_the_peer_is_not_steady(
    make: Make, monkeypatch: pytest.MonkeyPatch, lost_packets: Callable[[], list[Address]]
) -> None:
    monkeypatch.setattr(limits, "FIRST_HOLD_S", 1000.0)
    _, (one, two) = homes(make)
    assert reaches(one, two)
    assert one.transport.is_steady
    tried = lost_packets()
    for _ in range(3):
        with pytest.raises(Unreachable):
            one.transport.connect(two.peer_id, Purpose.MESSAGES)
    until(lambda: len(tried) == 2)  # one at each end
    assert not one.transport.is_steady


def test_a_wrong_peer_at_the_address_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The introducer sends the peer that asks to an accomplice, which proves another id."""
    _, (one, two) = homes(make)
    accomplice = make()

    def sent_elsewhere(channel: Channel, patience: Patience) -> Address:
        receive_address(channel, patience)
        return accomplice.transport.address

    monkeypatch.setattr(punching, "receive_address", sent_elsewhere)
    reason = refusal(one.transport.connect, two.peer_id, Purpose.MESSAGES)
    assert reason is Reason.WRONG_IDENTITY
    assert not one.transport.is_steady


def test_a_peer_that_reaches_no_other_one_any_more_is_not_steady(
    make: Make, lost_packets: Callable[[], list[Address]]
) -> None:
    """A laptop that has moved to another router looks like this: the peer that it met has left."""
    _, (one, met, *others) = homes(make, 5)
    assert reaches(one, met)
    lost_packets()
    for number, other in enumerate(others, start=1):
        assert not reaches(one, other)
        assert one.transport.is_steady == (number < punching.MOST_MISSED)


def test_an_introducer_that_fails_is_not_the_fault_of_the_other_peer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_HOLD_S", 1000.0)
    _, (one, two) = homes(make)
    assert reaches(one, two)
    with monkeypatch.context() as lying:
        lying.setattr(
            punching, "receive_address", lambda channel, patience: check_target((HOME, 1), HOME)
        )
        lying.setattr(punching, "check_target", check_target)
        for _ in range(12):  # of failures of the other peer, each would double the next hold
            assert not reaches(one, two)
    assert one.transport.is_steady
    until(lambda: reaches(one, two))


def test_of_several_introducers_one_with_a_line_of_the_other_peer_is_found(make: Make) -> None:
    able, (one, two) = homes(make)
    keep_lines(one, able, make())
    for _ in range(4):
        assert reaches(one, two)


# ---- an introducer introduces only peers with a line to it, within a rate


def test_only_peers_with_a_line_are_introduced(make: Make) -> None:
    host, (one, two) = homes(make)
    stranger = make(listens=False)
    stranger.knows(host)
    assert is_introduced(one, host, two.peer_id)
    assert not is_introduced(stranger, host, two.peer_id)
    host.events.wait("connection-dropped", reason="not-found", peer_id=stranger.peer_id)
    for name in (stranger.peer_id, host.peer_id, one.peer_id, "", "x" * 64, "\xff" * 64):
        assert not is_introduced(one, host, name)
        host.events.wait("connection-dropped", reason="not-found", peer_id=one.peer_id)
    assert not one.transport.offenders.held(0.0)


def test_peers_behind_one_address_are_not_introduced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, (one, two) = homes(make)
    monkeypatch.setattr(punching, "host_group", lambda host: host)
    assert not is_introduced(one, host, two.peer_id)
    host.events.wait("connection-dropped", reason="not-found", peer_id=one.peer_id)


def test_introductions_of_each_asking_peer_are_limited(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punching, "FOR_KNOWN", Rate(1e-6, 3.0))
    monkeypatch.setattr(punching, "FOR_STRANGER", Rate(1e-6, 1.0))
    monkeypatch.setattr(punching, "FOR_ALL_STRANGERS", Rate(1e-6, 1.0))
    host, (one, two, three) = homes(make, 3)
    for each in (host, two, three):
        each.transport.known.at_head([host.peer_id, two.peer_id, three.peer_id])
    answers = [is_introduced(one, host, two.peer_id) for _ in range(3)]
    assert answers == [True, True, False], "its own one, and the pool's"
    host.events.wait("connection-dropped", reason="busy", peer_id=one.peer_id)
    assert is_introduced(three, host, two.peer_id), "a known peer does not wait for strangers"
    assert two.events.events == []
    is_introduced(three, host, two.peer_id)  # one more than two accepts of this introducer
    two.events.wait("connection-dropped", reason="busy", peer_id=host.peer_id)


# ---- an introducer lies


@pytest.mark.parametrize(
    ("target", "own"),
    [
        *(((host, 40000), HOME) for host in NEVER_DIALLED),
        (NO_ADDRESS, NO_ADDRESS[0]),
        (("8.8.8.8", 1023), HOME), (("8.8.8.8", 22), HOME), (("8.8.8.8", 0), HOME),
        (("8.8.3.4", 40000), "8.8.8.8"), (("2600:1:2:3::9", 40000), "2600:1:2:3::1"),
    ],
)  # fmt: skip
def test_no_introducer_sends_us_into_a_private_network_to_services_or_to_neighbours(
    target: Address, own: str
) -> None:
    assert refusal(check_target, target, own) is Reason.ADDRESS_NOT_DIALLED


def test_public_addresses_are_tried() -> None:
    for target, own in ((("8.8.8.8", 1024), HOME), (("2600::9", 65535), "2600:1::1")):
        check_target(target, own)


def sent(kind: Kind, raw: bytes) -> Channel:
    """Return the end of a channel at which this frame arrives."""
    here, there = map(Channel, stream_pair())
    here.send_frame(kind, raw, patience=Patience.within(SOON))
    there.local = HOME, 5000
    return there


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        *((Kind.SEEN, bytes(size), Reason.MALFORMED) for size in (0, 1, 2, 3, 5, 7, 17)),
        (Kind.SEEN, bytes(19), Reason.TOO_LARGE),
        *(
            (kind, packed("8.8.8.8", 4000), Reason.MALFORMED)
            for kind in (Kind.CALL, Kind.MESSAGE, Kind.REFUSED)
        ),
    ],
)
def test_a_frame_without_an_address_is_refused_by_name(
    kind: Kind, raw: bytes, reason: Reason
) -> None:
    assert refusal(receive_address, sent(kind, raw), Patience.within(SOON)) is reason


def test_a_lying_introducer_opens_no_connection(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, (one, _) = homes(make)
    monkeypatch.setattr(punching, "check_target", check_target)
    tried = list[Address]()
    monkeypatch.setattr(punching, "punch", lambda local, target, patience: tried.append(target))
    with shared_port(2, ("127.0.0.1", 0)) as victim:
        victim.listen()
        port = victim.getsockname()[1]
        for raw in (packed("127.0.0.1", port), packed("192.168.1.1", 8080), packed("8.8.8.8", 80)):
            introduced_by(host, one, Kind.SEEN, raw)
            one.events.wait("connection-dropped", reason="address-not-dialled")
        introduced_by(host, one, Kind.SEEN, b"12345")
        one.events.wait("connection-dropped", reason="malformed", peer_id=host.peer_id)
        victim.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            victim.accept()
    assert tried == []


def test_only_peers_with_our_line_introduce(make: Make) -> None:
    host, (guest,) = homes(make, 1)
    other, listening = make(), make()
    other.knows(listening)
    with contextlib.closing(other.transport.connect(listening.peer_id, Purpose.MEET)):
        listening.events.wait("connection-dropped", reason="not-found", peer_id=other.peer_id)
    introduced_by(host, guest, Kind.SEEN, b"12345")
    guest.events.wait("connection-dropped", reason="malformed", peer_id=host.peer_id)


def test_one_introduction_means_one_address_for_a_bounded_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that refuses is tried until the time is over, and no other one is."""
    monkeypatch.setattr(punching, "PUNCH_S", 0.5)
    host, (one, _) = homes(make)
    tried = list[tuple[Address, float]]()

    def seen(local: Address, target: Address, patience: Patience) -> object:
        tried.append((target, patience.left_s()))
        return punch(local, target, patience)

    monkeypatch.setattr(punching, "punch", seen)
    with shared_port(2, ("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        introduced_by(host, one, Kind.SEEN, packed("127.0.0.1", port))
        until(lambda: tried)
        until(lambda: not [t for t in threading.enumerate() if t.name == "atom-answer"])
    [(target, left_s)] = tried
    assert target == ("127.0.0.1", port)
    assert left_s <= 0.5


# ---- the sockets


def test_a_connection_that_is_gone_has_no_address_to_dial() -> None:
    with contextlib.closing(SocketStream(shared_port(2))) as stream:
        assert stream.ends() == (NO_ADDRESS, NO_ADDRESS)


def test_no_other_port_gets_in_by_the_open_door() -> None:
    """A connection from another port than the expected one is closed."""
    here = ("127.0.0.1", 0)
    with shared_port(2, here) as held, shared_port(2, here) as other, ThreadPoolExecutor() as pool:
        one, two = held.getsockname(), other.getsockname()
        waiting = pool.submit(punch, one, two, Patience.within(SOON))
        with shared_port(2, here) as intruder:
            until(lambda: intruder.connect_ex(one) in (0, errno.EISCONN))
            intruder.settimeout(SOON)
            assert intruder.recv(1) == b"", "hung up"
            assert not waiting.done()
        ends = punch(two, one, Patience.within(SOON)), waiting.result(SOON)
        assert [end.ends() for end in ends] == [(two, one), (one, two)]
        for end in ends:
            end.close()

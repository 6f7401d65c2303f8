"""Peers find and hear each other over loopback, and are told in time whom they cannot reach."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from atom.base.errors import AddressError, Reason
from atom.swarm.identity import Identity
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Interrupted, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import TlsStream
from atom.swarm.transport import dialer
from atom.swarm.transport.dialer import CALL, MOST_LOOKUPS, AddressInfo, ContactBook, Hint, resolve
from atom.swarm.transport.limits import Unreachable
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList
from tests.swarm.refusals import refusal
from tests.swarm.transport_peers import RUN, SOON, Make, Peer, until


@pytest.fixture
def two(make_peer: Make) -> tuple[Peer, Peer]:
    one, other = make_peer(), make_peer()
    one.knows(other)
    other.knows(one)
    return one, other


def test_messages_arrive_with_sender_and_incarnation(two: tuple[Peer, Peer]) -> None:
    for number, (here, there) in enumerate((two, two[::-1])):
        sent = [b"message %d" % number for number in range(20)] + [b"x" * (256 << 10)]
        assert all(here.transport.send(there.peer_id, raw) for raw in sent)
        heard = [there.heard.get(timeout=SOON) for _ in sent]
        assert heard == [(here.peer_id, bytes([number]) * 16, raw) for raw in sent]


def test_a_hint_that_is_lost_is_not_reported_but_a_message_behind_it_is(
    two: tuple[Peer, Peer],
) -> None:
    one, other = two
    assert refusal(one.transport.connect, other.peer_id, Purpose.BLOBS) is Reason.NOT_FOUND
    one.transport.send(other.peer_id, Hint(b"hint"))
    assert other.heard.get(timeout=SOON)[2] == b"hint"
    other.transport.close()
    one.transport.send(other.peer_id, Hint(b"another"))
    until(lambda: not one.transport._lanes._queues)
    assert one.lost.empty()
    one.transport.send(other.peer_id, b"are you there?")
    assert one.lost.get(timeout=SOON) == other.peer_id
    assert one.lost.empty()
    one.events.wait("peer-unreachable", peer_id=other.peer_id)
    assert not [e for e in one.events.events if e["event"] == "peer-unreachable"]


def test_ring_channels_meet_by_peer_and_tag(two: tuple[Peer, Peer]) -> None:
    one, other = two
    older = one.transport.connect(other.peer_id, Purpose.RING, b"tag")
    early = one.transport.connect(other.peer_id, Purpose.RING, b"tag")
    stale = one.transport.connect(other.peer_id, Purpose.RING, b"old")
    claimed = other.transport.accept_ring(one.peer_id, b"tag", SOON)
    early.send_frame(Kind.CHUNK, b"data", patience=Patience(SOON))
    assert claimed.recv_frame(Kind.CHUNK, 10, Patience(SOON)) == b"data"
    assert (claimed.peer_id, claimed.tag) == (one.peer_id, b"tag")
    assert (early.peer_id, early.incarnation) == (other.peer_id, bytes([1]) * 16)
    claimed.close()
    assert refusal(other.transport.accept_ring, one.peer_id, b"new", 0.05) is Reason.TIMEOUT
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.transport.accept_ring, other.peer_id, b"tag", 60.0)
        one.transport.close()
        assert isinstance(waiting.exception(SOON), ConnectionError)
    other.events.wait("connection-dropped", reason="not-found", peer_id=one.peer_id)
    for ended in (older, early, stale):
        with pytest.raises(ConnectionError):
            ended.recv_header(10, Patience(SOON))


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.BLOBS, Purpose.RING, Purpose.TEXT])
def test_a_peer_that_is_aside_may_connect_in_tls_and_its_way_is_measured(
    make_peer: Make, purpose: Purpose
) -> None:
    """A quorum may need its vote, and of two the other one is the only donor."""
    one, two = make_peer(), make_peer(serve=lambda channel: None)
    one.knows(two)
    assert two.transport.offenders.fail(one.peer_id, 0.0) > 0
    channel = one.transport.connect(two.peer_id, purpose, b"tag")
    ends = [channel]
    if purpose is Purpose.RING:
        ends.append(two.transport.accept_ring(one.peer_id, b"tag", SOON))
    for end in ends:
        assert 0.0 < end.round_trip_s < SOON
        assert isinstance(end.stream, TlsStream)
        assert end.bandwidth in (one.transport.bandwidth, two.transport.bandwidth)
        end.close()


# ---- absent peers


def test_a_mute_address_is_given_up_in_time_and_leaves_some_for_the_next(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mute address accepts connections, like the kernel of a frozen peer, and never answers.
    The next address answers after a moment."""
    receive = handshake.receive

    def slowly(*given: Any) -> None:
        threading.Event().wait(0.1)
        receive(*given)

    monkeypatch.setattr(handshake, "receive", slowly)
    two, one = make_peer(), make_peer(HANDSHAKE_S=600.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mute, good = (
            "{}:{}".format(*at) for at in (listening.getsockname(), two.transport.address)
        )
        one.transport.set_addresses(two.peer_id, [mute])
        with pytest.raises(Unreachable):
            one.transport.connect(two.peer_id, Purpose.RING, b"tag", timeout_s=0.2)
        one.transport.set_addresses(two.peer_id, [mute, good])
        one.transport.connect(two.peer_id, Purpose.RING, b"tag", timeout_s=2.0).close()


def test_a_dial_is_given_up_when_it_is_stopped(make_peer: Make) -> None:
    """The kernel at the other end has no room for a connection: it gets no answer at all."""
    one, nowhere, unwanted = make_peer(), Identity.create().peer_id, threading.Event()
    unwanted.set()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        host, port = listening.getsockname()
        with socket.create_connection((host, port)):
            one.transport.set_addresses(nowhere, [f"{host}:{port}"])
            with pytest.raises(Interrupted):
                one.transport.connect(nowhere, Purpose.BLOBS, stop=unwanted)


def test_a_door_that_cannot_be_opened_says_what_to_write_instead() -> None:
    with pytest.raises(AddressError, match=r"cannot listen on 203\.0\.113\.7:0: Cannot") as refused:
        Transport(Local(Identity.create(), RUN, bytes(16)), ("203.0.113.7", 0), EventList()).start()
    assert "[network] data_port" in refused.value.hint


# ---- ways to a peer

ONE, TWO = "host:1", "[::1]:7"
WAY_ONE, WAY_TWO = ("host", 1), ("::1", 7)


def test_malformed_addresses_are_no_ways() -> None:
    book = ContactBook()
    odd = ["", "host", "host:", ":1", "host:0", "host:65536", "h:1:x", "h:²", "h\0:1"]
    book.set("a", (*odd, "h:000001" + 30 * "9", TWO))
    assert book.routes("a") == [WAY_TWO, CALL]


@pytest.mark.parametrize("dials_out", [False, True])
def test_a_way_that_worked_is_the_first_and_one_that_failed_the_last(dials_out: bool) -> None:
    book, contact = ContactBook(), ((ONE, TWO), dials_out)
    book.set("a", *contact)
    ways = [CALL, WAY_ONE, WAY_TWO] if dials_out else [WAY_ONE, WAY_TWO, CALL]
    assert book.routes("a") == ways
    book.tried("a", CALL, worked=True)
    assert book.routes("a") == ways, "a call is no better for having worked"
    book.tried("a", WAY_TWO, worked=True)
    assert book.routes("a")[0] == WAY_TWO, "it may sit next door"
    book.tried("a", WAY_TWO, worked=False)
    book.set("a", *contact)
    assert book.routes("a") == [*[way for way in ways if way != WAY_TWO], WAY_TWO]
    book.set("a", ("host:3", ONE))
    assert book.routes("a") == [("host", 3), WAY_ONE, CALL], "new addresses deserve a try"


def test_the_contact_heard_of_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "MOST_KNOWN", 3)
    book = ContactBook()
    for name in "abcad":
        book.set(name, (ONE, TWO))
    assert [name for name in "abcd" if book.routes(name) != [CALL]] == ["a", "c", "d"]


# ---- host names: found, unknown, or given up in time


NAME, FOUND = "somewhere.example", ("192.0.2.9", 80)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Event before which the network is down."""
    answer, under_way = threading.Event(), list[threading.Thread]()

    def slow(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
        if flags == socket.AI_NUMERICHOST:
            raise socket.gaierror("not a number")
        under_way.append(threading.current_thread())
        assert answer.wait(SOON)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", FOUND)]

    monkeypatch.setattr(dialer, "_lookup", slow)
    yield answer
    answer.set()
    for thread in under_way:
        thread.join(SOON)


def test_lookups_that_hang_are_given_up_and_bounded(
    answer: threading.Event, refused: Counter[str]
) -> None:
    """A system that has no thread to give costs no place."""
    refused["atom-lookup"] = 2
    for _ in range(2):
        with pytest.raises(OSError, match="no thread to look up"):
            resolve(NAME, 80, SOON)
    for _ in range(MOST_LOOKUPS):
        with pytest.raises(TimeoutError, match="takes too long"):
            resolve(NAME, 80, 0.01)
    with pytest.raises(TimeoutError, match="too many"):
        resolve(NAME, 80, 0.01)
    answer.set()
    assert [info[4] for info in resolve(NAME, 80, SOON)] == [FOUND]


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 70])
def test_malformed_host_names_are_unknown_to_the_real_one(host: str) -> None:
    with pytest.raises(OSError, match="is not a host name"):
        resolve(host, 80, SOON)
    found = {info[4][0] for info in resolve("localhost", 80, SOON)}
    assert found
    assert found <= {"127.0.0.1", "::1"}

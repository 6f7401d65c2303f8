"""Peers of a test with a transport each, over loopback, and what each was told."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pytest

from atom.base.errors import PeerRefused
from atom.swarm.dial_rules import dialled_classes
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import Listed
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import SocketStream, TlsStream
from atom.swarm.transport import limits
from atom.swarm.transport.limits import Handlers, Unreachable
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList

RUN = b"r" * 32
SOON = 10.0
STRANGER = Identity.create()
Found = TypeVar("Found")
QUICK = {"HANDSHAKE_S": 0.5, "UNCLAIMED_RING_S": 0.2}


class Story(EventList):
    """Events that a test can wait for."""

    def wait(self, kind: str, **fields: object) -> None:
        """Wait for an event of this kind with these fields, and remove it."""
        wanted = {"event": kind, **fields}.items()
        self.events.remove(until(lambda: next((e for e in self.events if wanted <= e.items()), {})))


class Peer:
    """Transport with its log, and the messages that it received."""

    def __init__(
        self,
        local: Local,
        listens: bool,
        serve: Callable[[Channel], None] | None,
        announced: Sequence[str],
        host: str,
    ) -> None:
        self.events = Story()
        self.heard: queue.Queue[tuple[str, bytes, bytes]] = queue.Queue()
        self.lost: queue.Queue[str] = queue.Queue()
        handlers = Handlers(lambda *heard: self.heard.put(heard), self.lost.put, serve)
        where = (host, 0) if listens else None
        dialled = partial(dialled_classes, announced)
        self.transport = Transport(local, where, self.events, handlers=handlers, dialled=dialled)

    @property
    def peer_id(self) -> str:
        return self.transport.peer_id

    def knows(self, *others: "Peer") -> None:
        for other in others:
            listens = other.transport.listens
            addresses = ("{}:{}".format(*other.transport.address),) if listens else ()
            self.transport.set_addresses(other.peer_id, addresses, not listens)


Make = Callable[..., Peer]


def until(find: Callable[[], Found]) -> Found:
    """Call a function until its result is true, and return the result."""
    waited = threading.Event()
    for _ in range(int(SOON / 0.01)):
        if found := find():
            return found
        waited.wait(0.01)
    raise AssertionError("not in time")


def reaches(one: Peer, two: Peer) -> bool:
    """Return False if no known way leads to the other peer. Every other error is raised."""
    try:
        one.transport.connect(two.peer_id, Purpose.MESSAGES).close()
    except Unreachable:
        return False
    return True


def keep_lines(guest: Peer, *hosts: Peer) -> None:
    """Let a peer that cannot be dialled keep a line to each of the hosts."""
    guest.knows(*hosts)
    for host in hosts:
        host.knows(guest)
    guest.transport.keep_lines([host.peer_id for host in hosts])
    until(lambda: all(reaches(host, guest) for host in hosts))


@pytest.fixture
def make_peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Peer] = []

    def make(
        run: bytes = RUN,
        identity: Identity | None = None,
        listed: Listed = None,
        listens: bool = True,
        serve: Callable[[Channel], None] | None = None,
        announced: Sequence[str] = ("127.0.0.1",),
        host: str = "127.0.0.1",
        **bounds: float,
    ) -> Peer:
        """`serve`: blobs. `announced`: hosts that the daemon around it announces. `host`: where it
        listens. `bounds`: of all peers, from now on."""
        for name, value in (QUICK | bounds).items():
            monkeypatch.setattr(limits, name, value)
        incarnation = bytes([len(made)]) * 16
        local = Local(identity or Identity.create(), run, incarnation, listed)
        made.append(Peer(local, listens, serve, announced, host))
        made[-1].transport.start()
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for peer in made:
        peer.transport.close()
    assert set(threading.enumerate()) <= before
    assert not any(e["event"] == "thread-failed" for peer in made for e in peer.events.events)


def newcomer(run: bytes = RUN) -> Local:
    return Local(Identity.create(), run, bytes(16))


def before_tls(peer: Peer, host: str = "127.0.0.1") -> SocketStream:
    """A connection from this address of the machine, on which nothing has been said."""
    return SocketStream(socket.create_connection(peer.transport.address, source_address=(host, 0)))


def in_tls(peer: Peer, host: str = "127.0.0.1") -> TlsStream:
    """A connection on which nothing is proven."""
    stream = TlsStream(before_tls(peer, host))
    try:
        stream.handshake(Patience.within(SOON))
    except BaseException:
        stream.close()
        raise
    return stream


def shake(
    peer: Peer,
    local: Local,
    server: str | None = None,
    host: str = "127.0.0.1",
    purpose: Purpose = Purpose.MESSAGES,
) -> Channel:
    """A client that follows the protocol except where the test bends it."""
    stream = in_tls(peer, host)
    channel = Channel(stream)
    channel.purpose = purpose
    name = server or peer.transport.peer_id
    try:
        certificate = stream.certificate()
        assert certificate is not None
        handshake.greet(channel, local, name, certificate, Patience.within(SOON))
    except BaseException:
        channel.close()
        raise
    return channel


def still_serves(peer: Peer) -> bool:
    """Return True if the peer admits a newcomer and receives its message."""
    try:
        channel = shake(peer, newcomer())
    except (OSError, PeerRefused):  # no place is free
        return False
    with contextlib.closing(channel):
        channel.send_frame(Kind.MESSAGE, b"still there", patience=Patience(SOON))
        return peer.heard.get(timeout=SOON)[2] == b"still there"

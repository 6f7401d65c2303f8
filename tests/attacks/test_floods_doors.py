"""Attack: a few machines keep so many connections open that no one else can come in."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atom.base.errors import PeerRefused
from atom.swarm.addresses import host_group
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import SocketStream, TlsStream
from atom.swarm.transport.limits import ConnectionLimiter, KnownPeers
from tests.swarm.stream_pairs import stream_pair
from tests.swarm.transport_peers import (
    SOON,
    Make,
    Peer,
    before_tls,
    newcomer,
    reaches,
    shake,
    still_serves,
    until,
)

LONG = {"HANDSHAKE_S": 600.0}
"""Nothing ends because its time is over."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def silent(stack: ExitStack, peer: Peer, host: str, count: int) -> None:
    """Open connections from that address of this machine on which nothing is said."""
    for _ in range(count):
        stack.callback(before_tls(peer, host).close)


def unproven(peer: Peer) -> int:
    return len(peer.transport._listener._limiter._unproven)


def test_two_silent_hosts_keep_no_third_one_out(make_peer: Make, stack: ExitStack) -> None:
    peer = make_peer(**LONG)
    for host in ("127.0.0.2", "127.0.0.3"):
        silent(stack, peer, host, 16)
    until(lambda: unproven(peer) == 32)
    assert still_serves(peer)


def test_one_host_with_many_lines_leaves_a_place_to_another_host(
    make_peer: Make, stack: ExitStack
) -> None:
    """A newcomer that cannot be dialled is called over its line, or takes part in no exchange."""
    peer, ours = make_peer(PLACES_FOR_LINES=8), newcomer()
    reverse = peer.transport._reverse

    def keep_line(host: str, local: Local) -> None:
        stack.callback(shake(peer, local, host=host, purpose=Purpose.LINE).close)

    for _ in range(8):
        keep_line("127.0.0.2", newcomer())
    until(lambda: len(reverse._lines) == 4)
    keep_line("127.0.0.3", ours)
    until(lambda: reverse.has_line(ours.identity.peer_id))
    until(lambda: len(reverse._lines) == 4)


def test_one_host_with_many_identities_keeps_no_other_host_out(
    make_peer: Make, stack: ExitStack
) -> None:
    """The attacker has all places of strangers; another stranger takes one of these."""
    peer = make_peer(MAX_CONNECTIONS=8, **LONG)
    crowd = [shake(peer, newcomer(), host="127.0.0.2") for _ in range(4)]
    for channel in crowd:
        stack.callback(channel.close)
    with pytest.raises(PeerRefused, match="too-many-connections"):
        shake(peer, newcomer(), host="127.0.0.2")
    assert still_serves(peer)


def test_one_ipv6_network_is_one_host() -> None:
    """The owner of the network has 2**64 addresses."""
    door = ConnectionLimiter(KnownPeers())
    crowd = [Channel(stream_pair()[0]) for _ in range(40)]
    entered = [door.enter(each, f"2001:db8::{n:x}") for n, each in enumerate(crowd)]
    assert sum(entered) == 16
    assert door.enter(Channel(stream_pair()[0]), "2001:db8:0:1::1")


@pytest.mark.parametrize(
    ("ip", "group"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("peer.example.org", "peer.example.org"),
    ],
)
def test_host_groups(ip: str, group: str) -> None:
    assert host_group(ip) == group


@pytest.mark.parametrize("known", [True, False])
def test_after_a_restart_known_peers_that_we_dialled_find_their_places_and_strangers_do_not(
    make_peer: Make, stack: ExitStack, known: bool
) -> None:
    """The server remembers no earlier peer, and 32 hosts take all places of strangers."""
    peer, other = make_peer(**LONG), make_peer(**LONG)
    peer.transport.known.at_head([other.peer_id] if known else [])
    peer.knows(other)
    peer.transport.connect(other.peer_id, Purpose.MESSAGES).close()
    for number in range(32):
        silent(stack, peer, f"127.0.1.{number}", 1)
    until(lambda: unproven(peer) == 32)
    other.knows(peer)
    assert reaches(other, peer) is known


def test_one_deadline_bounds_a_whole_handshake(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines, receive = set[float](), SocketStream.recv_some

    def recv_some(
        stream: SocketStream, view: memoryview, patience: Patience, wanted: int = 1
    ) -> int:
        deadlines.add(patience.deadline)
        return receive(stream, view, patience, wanted)

    peer = make_peer(HANDSHAKE_S=60.0)
    certificate = peer.transport._listener._certificate
    monkeypatch.setattr(SocketStream, "recv_some", recv_some)
    patience = Patience.within(SOON)
    stream = TlsStream(before_tls(peer))
    with contextlib.closing(Channel(stream)) as channel:
        stream.handshake(patience)
        handshake.greet(channel, newcomer(), peer.peer_id, certificate, patience)
        monkeypatch.undo()
    finite = {each for each in deadlines if each < math.inf}
    assert len(finite - {patience.deadline}) == 1

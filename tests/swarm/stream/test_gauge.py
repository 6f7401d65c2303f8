"""A way is gauged by a few bursts: seldom, one at a time, in bounds; and where we come from."""

import socket
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from transport_peers import Peer, make_tcp_peer

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.records.lease import Reached
from atom.swarm.stream.courtesy import Courtesy
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.gauge import (
    AT_ONCE,
    BUDGET_BYTES,
    ENOUGH_S,
    FIRST_BYTES,
    MOST_BYTES,
    PEER_REST_S,
    REST_S,
    GaugeServer,
    _rate,
    gauge,
)
from atom.swarm.transport.endpoint import TransportLimits
from atom.swarm.transport.transport import Transport
from tests.swarm.memory_stream import MemoryStream

__all__ = ["make_tcp_peer"]
SOON = 10.0


def transport(peer: Peer) -> Transport:
    assert isinstance(peer.transport, Transport)
    return peer.transport


def test_over_real_sockets(make_tcp_peer: Callable[..., Peer]) -> None:
    """From one port to two peers: without a router between, both see what we see."""
    ours = make_tcp_peer(limits=TransportLimits(from_one_port=True))
    others = [make_tcp_peer(), make_tcp_peer()]
    ours.knows(*others)
    found = [transport(ours).gauge(other.transport.peer_id) for other in others]
    for gauged, near in found:
        assert gauged.upload_bytes_per_s > 0
        assert gauged.download_bytes_per_s > 0
        assert gauged.seen == near
    assert found[0][1] == found[1][1]
    for other in others:
        with pytest.raises(PeerRefused) as refused:
            transport(ours).gauge(other.transport.peer_id)
        assert refused.value.reason is Reason.TOO_OFTEN
        event = other.events.wait("connection-refused", reason="too-often")
        assert event["peer_id"] == ours.transport.peer_id
        assert not other.transport.quarantine.aside(0.0), "to ask too often is no offence"


def test_who_listens_is_dialled_where_it_comes_from(make_tcp_peer: Callable[..., Peer]) -> None:
    ours, other = make_tcp_peer(), make_tcp_peer()
    ours.knows(other)
    gauged, _ = transport(ours).gauge(other.transport.peer_id)
    assert gauged.reached is Reached.YES


def test_a_port_where_nobody_listens_or_somebody_else(make_tcp_peer: Callable[..., Peer]) -> None:
    other, stranger = make_tcp_peer(), make_tcp_peer()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    for port, reached in (
        (closed, Reached.NO),
        (transport(stranger).address[1], Reached.NO),
        (None, Reached.UNKNOWN),
    ):
        asker = make_tcp_peer()
        asker.knows(other)
        with closing(asker.transport.connect(other.transport.peer_id, Purpose.GAUGE)) as channel:
            assert gauge(channel, port).reached is reached


def test_whoever_sends_what_is_no_burst_is_put_aside(make_tcp_peer: Callable[..., Peer]) -> None:
    ours, other = make_tcp_peer(), make_tcp_peer()
    ours.knows(other)
    channel = ours.transport.connect(other.transport.peer_id, Purpose.GAUGE)
    channel.send_frame(Kind.MESSAGE, b"hello", patience=Patience(SOON))
    other.events.wait("connection-dropped", reason="malformed")
    channel.close()


def channel_of(peer_id: str) -> Channel:
    channel = Channel(MemoryStream.pair()[0])
    channel.peer_id = peer_id
    return channel


class Served:
    """A server, asked at given times."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server = GaugeServer(Courtesy(), now=lambda: self.now)

    def ask(self, peer_id: str) -> Reason | None:
        """Once, to the end; why it was refused."""
        channel = channel_of(peer_id)
        try:
            self.server.reserve(channel)
        except PeerRefused as refused:
            return refused.reason
        finally:
            self.server.leave(channel)
        return None


def test_one_at_a_time() -> None:
    served = Served()
    first = channel_of("a")
    served.server.reserve(first)
    assert served.ask("b") is Reason.BUSY
    served.server.leave(channel_of("a"))
    assert served.ask("b") is Reason.BUSY
    served.server.leave(first)
    assert served.ask("b") is None


def test_each_peer_seldom_and_all_together_too() -> None:
    served = Served()
    assert served.ask("a") is None
    served.now += PEER_REST_S - 1.0
    assert served.ask("a") is Reason.TOO_OFTEN
    served.now += 1.0
    assert served.ask("a") is None
    served.now += 1000.0
    answers = [served.ask(f"new {number}") for number in range(AT_ONCE + 2)]
    assert answers == [None] * AT_ONCE + [Reason.TOO_OFTEN] * 2
    served.now += REST_S
    assert served.ask("another") is None


@pytest.mark.parametrize("bytes_per_s", [1e4, 1e5, 3e6, 1e12])
def test_bursts_grow_until_one_takes_long(bytes_per_s: float) -> None:
    sizes = list[int]()

    def now() -> float:
        return sum(sizes) / bytes_per_s

    assert _rate(sizes.append, now) == pytest.approx(bytes_per_s)
    assert sizes[0] == FIRST_BYTES
    assert sizes[-1] == MOST_BYTES or sizes[-1] / bytes_per_s > ENOUGH_S
    assert all(size / bytes_per_s <= ENOUGH_S for size in sizes[:-1])
    assert sum(sizes) < BUDGET_BYTES


def test_over_one_channel_somebody_is_dialled_once() -> None:
    asked = list[int]()

    def dial_back(channel: Channel, port: int) -> Reached:
        asked.append(port)
        return Reached.YES

    near, far = MemoryStream.pair()
    asking, channel, patience = Channel(near), Channel(far), Patience(SOON)
    refusals = list[Reason]()

    def serve() -> None:
        try:
            GaugeServer(Courtesy(), dial_back).serve(channel)
        except PeerRefused as refused:
            refusals.append(refused.reason)

    thread = threading.Thread(target=serve)
    thread.start()
    asking.recv_frame(Kind.SEEN, 64, patience)
    for _ in range(2):
        asking.send_frame(Kind.DIAL_BACK, b"\x01\x02", patience=patience)
    assert asking.recv_frame(Kind.REACHED, 1, patience) == Reached.YES.to_wire()
    thread.join(SOON)
    assert (asked, refusals) == ([0x0102], [Reason.MALFORMED])


def test_more_than_the_budget_is_not_served() -> None:
    near, far = MemoryStream.pair(8 * MOST_BYTES)
    asking, channel = Channel(near), Channel(far)
    channel.peer_id, channel.seen_at = "a", "203.0.113.7:4711"
    patience = Patience(SOON)
    thread = threading.Thread(target=GaugeServer(Courtesy()).serve, args=(channel,))
    thread.start()
    assert asking.recv_frame(Kind.SEEN, 64, patience) == b"203.0.113.7:4711"
    for _ in range(BUDGET_BYTES // MOST_BYTES):
        asking.send_frame(Kind.FETCH, (2**32 - 1).to_bytes(4, "big"), patience=patience)
        assert len(asking.recv_frame(Kind.BURST, MOST_BYTES, patience)) == MOST_BYTES
    thread.join(SOON)
    assert not thread.is_alive()

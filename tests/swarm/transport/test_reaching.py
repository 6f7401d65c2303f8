"""Peers that nobody can dial take part all the same: they are called, or joined by a relay."""

import dataclasses
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from transport_peers import until

from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Reached
from atom.swarm.stream.bandwidth import SLICE_BYTES
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.transport.contacts import Contact, Unreachable, WayKind
from atom.swarm.transport.limits import TransportLimits
from atom.swarm.transport.reverse_connections import _MOST_ANSWERS, ANSWER, TOKEN_BYTES, Pair
from atom.swarm.transport.transport import Transport

RUN = b"r" * 32
SOON = 10.0
LIMITS = TransportLimits(handshake_s=3.0, connect_s=2.0)


class Peer:
    """A transport that listens on loopback, or nowhere, and what it heard."""

    def __init__(self, limits: TransportLimits, listens: bool) -> None:
        self.events = EventList()
        local = Local(Identity.create(), RUN, bytes(16))
        bind = ("127.0.0.1", 0) if listens else None
        self.transport = Transport(local, bind, self.events, limits=limits)
        self.heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.transport.set_handlers(
            on_message=lambda peer_id, _, raw: self.heard.put((peer_id, raw)),
            on_blobs=lambda channel: channel.send_frame(
                Kind.BLOB, b"a blob", patience=Patience(SOON)
            ),
        )
        self.transport.start()

    @property
    def peer_id(self) -> str:
        return self.transport.peer_id

    def contact(self, *relays: "Peer") -> Contact:
        listens = self.transport.listens
        addresses = ("{}:{}".format(*self.transport.address),) if listens else ()
        return Contact(addresses, not listens, tuple(relay.peer_id for relay in relays))

    def knows(self, *others: "Peer", through: "tuple[Peer, ...]" = ()) -> None:
        for other in others:
            relays = () if other.transport.listens else through
            self.transport.set_contact(other.peer_id, other.contact(*relays))

    def keeps_lines_to(self, *others: "Peer") -> None:
        self.knows(*others)
        self.transport.keep_lines([other.peer_id for other in others])
        for other in others:
            until(lambda other=other: other.transport._reverse.has_line(self.peer_id))  # type: ignore[misc]
            until(lambda other=other: other.peer_id in self.transport.lines())  # type: ignore[misc]


@pytest.fixture
def make() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(
        listens: bool = True,
        limits: TransportLimits = LIMITS,
    ) -> Peer:
        made.append(Peer(limits, listens))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for peer in made:
        peer.transport.close()
    assert set(threading.enumerate()) <= before
    assert not any(e["event"] == "thread-failed" for peer in made for e in peer.events.events)


def ring_between(one: Peer, two: Peer) -> None:
    """`one` opens a ring channel to `two`; bytes pass both ways."""
    outgoing = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    incoming = two.transport.accept_ring(one.peer_id, b"tag", SOON)
    data = bytes(range(256)) * 2000
    for here, there in ((outgoing, incoming), (incoming, outgoing)):
        send = threading.Thread(
            target=here.send_frame, args=(Kind.CHUNK, data), kwargs={"patience": Patience(SOON)}
        )
        send.start()
        assert there.recv_frame(Kind.CHUNK, len(data), Patience(SOON)) == data
        send.join()
    assert outgoing.peer_id == two.peer_id
    assert incoming.peer_id == one.peer_id
    outgoing.close()
    incoming.close()


def test_a_peer_that_cannot_be_dialled_is_called(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.keeps_lines_to(host)
    assert host.transport.send(guest.peer_id, b"are you there?")
    assert guest.heard.get(timeout=SOON) == (host.peer_id, b"are you there?")
    assert guest.transport.send(host.peer_id, b"I am")
    assert host.heard.get(timeout=SOON) == (guest.peer_id, b"I am")
    ring_between(host, guest)
    ring_between(guest, host)
    blobs = host.transport.connect(guest.peer_id, Purpose.BLOBS)
    assert blobs.recv_frame(Kind.BLOB, 100, Patience(SOON)) == b"a blob"


def test_two_that_cannot_be_dialled_meet_through_a_relay(make: Callable[..., Peer]) -> None:
    relay = make()
    one, two = (make(listens=False) for _ in range(2))
    relay.knows(one, two)
    for here, there in ((one, two), (two, one)):
        here.keeps_lines_to(relay)
        here.knows(there, through=(relay,))
    ring_between(one, two)
    assert two.transport.send(one.peer_id, b"through a third")
    assert one.heard.get(timeout=SOON) == (two.peer_id, b"through a third")
    assert relay.transport._relay.passed_bytes > 2 * 256 * 2000
    assert relay.heard.empty()


def test_a_doubted_relayed_connection_is_replaced_by_a_dialled_one(
    make: Callable[..., Peer],
) -> None:
    """The third may be frozen: its kernel takes what we send, and nobody gets it."""
    relay, one, two = make(), make(listens=False), make()
    relay.knows(one, two)
    two.keeps_lines_to(relay)
    one.knows(relay)
    one.transport.set_contact(two.peer_id, Contact((), False, (relay.peer_id,)))
    message = bytes(50_000)

    def passed() -> float:
        """Messages through the third; what it counts, it may count after the message is heard."""
        return relay.transport._relay.passed_bytes / len(message)

    def say(times: int) -> None:
        for _ in range(times):
            assert one.transport.send(two.peer_id, message)
            assert two.heard.get(timeout=SOON) == (one.peer_id, message)

    say(2)
    until(lambda: passed() >= 2)
    one.knows(two)
    say(2)
    until(lambda: passed() >= 4)  # a connection that serves is kept
    one.transport.doubt([two.peer_id])
    say(3)
    assert passed() < 5


def test_a_relay_that_swallows_is_not_the_only_way(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes every handshake on, and then nothing."""
    mute, relay = make(), make()
    one, two = make(listens=False), make(listens=False)
    for each in (mute, relay):
        each.knows(two, one)
    two.keeps_lines_to(mute, relay)
    one.knows(mute, relay)
    one.knows(two, through=(mute, relay))
    passed, freed = Counter[int](), threading.Event()

    def swallow(count: int, pair: Pair) -> None:
        passed[id(pair)] += count
        if passed[id(pair)] > 10_000:
            freed.wait(SOON)
            raise ConnectionError("swallowed")

    monkeypatch.setattr(mute.transport._relay, "_take_turn", swallow)
    try:
        assert one.transport.send(two.peer_id, bytes(50_000))
        until(lambda: any(count > 10_000 for count in passed.values()))
        one.transport.doubt([two.peer_id])
        assert one.transport.send(two.peer_id, bytes(50_000))
        assert two.heard.get(timeout=SOON) == (one.peer_id, bytes(50_000))
        ring_between(one, two)
    finally:
        freed.set()


def test_a_relay_never_sees_what_passes(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, one, two = make(), make(listens=False), make(listens=False)
    relay.knows(one, two)
    for here, there in ((one, two), (two, one)):
        here.keeps_lines_to(relay)
        here.knows(there, through=(relay,))
    seen = bytearray()
    receive = SocketStream.recv_some

    def recv_some(self: SocketStream, view: memoryview, patience: Patience, wanted: int = 1) -> int:
        count = receive(self, view, patience, wanted)
        if threading.current_thread().name == "atom-relay":
            seen.extend(view[:count])
        return count

    monkeypatch.setattr(SocketStream, "recv_some", recv_some)
    secret = b"nobody else's business" * 50
    outgoing = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    incoming = two.transport.accept_ring(one.peer_id, b"tag", SOON)
    incoming.send_frame(Kind.CHUNK, secret, patience=Patience(SOON))
    assert outgoing.recv_frame(Kind.CHUNK, len(secret), Patience(SOON)) == secret
    assert len(seen) > len(secret)
    assert b"nobody" not in seen


def test_strangers_are_not_relayed(make: Callable[..., Peer]) -> None:
    """Who belongs to another run does not get in at all; who shows no lease is refused as well."""
    relay, known, stranger = make(), make(listens=False), make(listens=False)
    relay.knows(known)
    known.keeps_lines_to(relay)
    stranger.knows(relay)
    stranger.knows(known, through=(relay,))
    with pytest.raises(PeerRefused) as refused:
        stranger.transport.connect(known.peer_id, Purpose.RING, b"tag")
    assert refused.value.reason is Reason.NOT_FOUND


def test_a_volunteer_may_relay_nothing(make: Callable[..., Peer]) -> None:
    relay = make(limits=dataclasses.replace(LIMITS, relay_bytes_per_s=0.0))
    one, two = make(listens=False), make(listens=False)
    relay.knows(one, two)
    two.keeps_lines_to(relay)
    one.knows(relay)
    one.knows(two, through=(relay,))
    assert not relay.transport.relays
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    assert refused.value.reason is Reason.NOT_FOUND


def test_relayed_connections_are_few(make: Callable[..., Peer]) -> None:
    relay = make(limits=dataclasses.replace(LIMITS, relay_pairs=2))
    one, two = make(listens=False), make(listens=False)
    relay.knows(one, two)
    two.keeps_lines_to(relay)
    one.knows(relay)
    one.knows(two, through=(relay,))
    first = one.transport.connect(two.peer_id, Purpose.RING, b"first")
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.peer_id, Purpose.RING, b"second")
    assert refused.value.reason is Reason.BUSY
    first.close()
    until(lambda: not relay.transport._relay._far)
    one.transport.connect(two.peer_id, Purpose.RING, b"third").close()


def test_strangers_do_not_take_all_relayed_connections(make: Callable[..., Peer]) -> None:
    relay = make(limits=dataclasses.replace(LIMITS, relay_pairs=2))
    one, two, member = make(listens=False), make(listens=False), make(listens=False)
    relay.knows(one, two, member)
    relay.transport.known.at_head([member.peer_id])
    two.keeps_lines_to(relay)
    for caller in (one, member):
        caller.knows(relay)
        caller.knows(two, through=(relay,))
    one.transport.connect(two.peer_id, Purpose.RING, b"first")
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(two.peer_id, Purpose.RING, b"second")
    assert refused.value.reason is Reason.BUSY
    member.transport.connect(two.peer_id, Purpose.RING, b"third").close()


def test_strangers_do_not_take_all_lines(make: Callable[..., Peer]) -> None:
    host = make(limits=dataclasses.replace(LIMITS, lines=2))
    one, two, member = make(listens=False), make(listens=False), make(listens=False)
    host.knows(one, two, member)
    host.transport.known.at_head([member.peer_id])
    one.keeps_lines_to(host)
    two.knows(host)
    turned_away = two.transport.connect(host.peer_id, Purpose.LINE)
    with pytest.raises(ConnectionError):
        turned_away.recv_header(TOKEN_BYTES, Patience(SOON))
    member.keeps_lines_to(host)
    lines = host.transport._reverse
    assert [lines.has_line(p.peer_id) for p in (one, two, member)] == [True, False, True]


def test_relayed_connections_that_end_leave_no_debt_to_the_box(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One end floods, the other hangs up: what is never passed on keeps nobody waiting."""
    relay, one, two = make(), make(listens=False), make(listens=False)
    relay.knows(one, two)
    two.keeps_lines_to(relay)
    one.knows(relay)
    slice_s, (bandwidth, passing) = 0.25, (relay.transport.bandwidth, relay.transport._relay)
    bandwidth.change(8 * SLICE_BYTES / slice_s, None)
    brought = threading.Semaphore(0)

    class Flooding(SocketStream):
        def recv_some(self, view: memoryview, patience: Patience, wanted: int = 1) -> int:
            count = super().recv_some(view, patience, wanted)
            brought.release()
            return count

    def flooding(peer_id: str, seconds: float) -> SocketStream:
        far, near = socket.socketpair()
        with far:
            far.setblocking(False)
            far.send(bytes(8 * SLICE_BYTES))
        return Flooding(near)

    monkeypatch.setattr(relay.transport._reverse, "call", flooding)
    for _ in range(8):
        asking = one.transport._dialer.dial_directly(
            relay.peer_id, Purpose.RELAY, two.peer_id.encode()
        )
        assert brought.acquire(timeout=SOON)
        asking.close()
        until(lambda: not passing._far)
    assert bandwidth.upload.take(0.0, time.monotonic()) <= 2 * slice_s


def test_both_ends_learn_that_the_relay_is_gone(make: Callable[..., Peer]) -> None:
    relay, one, two = make(), make(listens=False), make(listens=False)
    relay.knows(one, two)
    two.keeps_lines_to(relay)
    one.knows(relay)
    one.knows(two, through=(relay,))
    outgoing = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
    incoming = two.transport.accept_ring(one.peer_id, b"tag", SOON)
    relay.transport.close()
    for end in (outgoing, incoming):
        with pytest.raises(ConnectionError):
            end.recv_header(10, Patience(SOON))


def test_a_line_that_breaks_is_dialled_anew(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.keeps_lines_to(host)
    (line,) = guest.transport._lines._up.values()
    line.close()
    until(lambda: guest.transport._lines._up.get(host.peer_id) not in (None, line))
    until(lambda: host.transport._reverse.has_line(guest.peer_id))
    ring_between(host, guest)
    guest.transport.keep_lines([])
    until(lambda: not guest.transport.lines())


def test_a_line_whose_thread_ended_is_begun_anew(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.knows(host)

    def odd(*_: object) -> Channel:
        raise OverflowError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(guest.transport._dialer, "dial_directly", odd)
        guest.transport.keep_lines([host.peer_id])
        until(lambda: any(e["event"] == "thread-failed" for e in guest.events.events))
    guest.events.events.clear()
    guest.keeps_lines_to(host)
    ring_between(host, guest)


def test_a_call_outlives_the_line_it_went_over(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.keeps_lines_to(host)
    answers, reverse = guest.transport._lines._answers, host.transport._reverse
    while answers.acquire(blocking=False):  # it hears the call, and has no hands for it
        pass
    reached: queue.Queue[Channel | OSError] = queue.Queue()

    def connect() -> None:
        try:
            reached.put(host.transport.connect(guest.peer_id, Purpose.RING, b"tag", timeout_s=SOON))
        except OSError as error:
            reached.put(error)

    caller = threading.Thread(target=connect)
    caller.start()
    until(lambda: reverse._expected and not reverse._lines[guest.peer_id])
    for _ in range(_MOST_ANSWERS):
        answers.release()
    guest.transport._lines._up[host.peer_id].close()
    channel = reached.get(timeout=SOON)
    caller.join()
    assert isinstance(channel, Channel), channel
    channel.close()


def test_without_a_line_nobody_is_reached(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    with pytest.raises(Unreachable):
        host.transport.connect(guest.peer_id, Purpose.RING, b"tag")


def test_a_called_peer_that_does_not_come_is_given_up(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.keeps_lines_to(host)
    for _ in range(40):  # it answers no further calls
        guest.transport._lines._answers.acquire(blocking=False)
    with pytest.raises(Unreachable):
        host.transport.connect(guest.peer_id, Purpose.RING, b"tag", timeout_s=0.2)


def test_a_token_that_nobody_waits_for_leads_nowhere(make: Callable[..., Peer]) -> None:
    host = make()
    with socket.create_connection(host.transport.address) as plain:
        plain.settimeout(SOON)
        plain.sendall(ANSWER + bytes(16))
        assert plain.recv(1) == b""


def test_others_say_whether_they_can_dial_us(make: Callable[..., Peer]) -> None:
    witness, open_peer, closed = make(), make(), make(listens=False)
    open_peer.knows(witness)
    assert open_peer.transport.probe(witness.peer_id) is Reached.UNKNOWN  # it has no address of us
    witness.knows(open_peer)
    assert open_peer.transport.probe(witness.peer_id) is Reached.YES
    with socket.create_server(("127.0.0.1", 0)) as somebody_else:
        host, port = somebody_else.getsockname()
        witness.transport.set_addresses(closed.peer_id, [f"{host}:{port}"])
    closed.keeps_lines_to(witness)
    assert closed.transport.probe(witness.peer_id) is Reached.NO
    closed.knows(witness)
    assert witness.transport.probe(closed.peer_id) is Reached.YES, "who is shut in can dial, too"


def test_where_an_earlier_process_of_a_peer_listened_says_nothing_of_this_one(
    make: Callable[..., Peer],
) -> None:
    """It was killed and started again, and the witness has not read its new lease yet."""
    witness, again = make(), make()
    again.knows(witness)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        addresses = ("{}:{}".format(*gone.getsockname()),)
    before = Contact(addresses, incarnation=b"b" * 16)
    witness.transport.set_contact(again.peer_id, before)
    assert again.transport.probe(witness.peer_id) is Reached.UNKNOWN
    now = dataclasses.replace(before, incarnation=bytes(16))
    witness.transport.set_contact(again.peer_id, now)
    assert again.transport.probe(witness.peer_id) is Reached.NO


def test_an_address_that_worked_is_dialled_before_a_call(make: Callable[..., Peer]) -> None:
    """A peer that says it cannot be dialled may sit in the same home."""
    host, neighbour = make(), make()
    contact = dataclasses.replace(neighbour.contact(), dials_out=True)
    host.transport.set_contact(neighbour.peer_id, contact)
    ring_between(host, neighbour)  # no line: its addresses are tried in the end
    first = host.transport._dialer.contacts.ways(neighbour.peer_id)[0]
    assert first.kind is WayKind.DIALLED


def test_garbage_through_a_relay_does_not_keep_the_relay_out(make: Callable[..., Peer]) -> None:
    relay, shut = make(), make(listens=False)
    relay.knows(shut)
    shut.keeps_lines_to(relay)
    stream = relay.transport._reverse.call(shut.peer_id, SOON)
    stream.send_all(memoryview(b"GET / HTTP/1.1\r\n\r\n" * 10), Patience(SOON))
    until(lambda: any(e["event"] == "connection-refused" for e in shut.events.events))
    stream.close()
    (refused,) = [e for e in shut.events.events if e["event"] == "connection-refused"]
    assert refused["reason"] == "bad-handshake"
    ring_between(relay, shut)


def test_a_full_house_is_asked_for_a_line_less_and_less_often(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets everybody in, and hangs up on whom it has no room for."""
    full, guest = make(limits=dataclasses.replace(LIMITS, lines=0)), make(listens=False)
    guest.knows(full)
    pauses: list[float] = []
    lines = guest.transport._lines
    monkeypatch.setattr(lines, "_over", lambda peer_id: len(pauses) >= 8)
    monkeypatch.setattr(
        lines._changed, "wait_for", lambda condition, seconds=0.0: pauses.append(seconds)
    )
    guest.transport.keep_lines([full.peer_id])
    until(lambda: len(pauses) >= 8)
    assert pauses[:8] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]

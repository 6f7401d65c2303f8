"""Peers that nobody can dial take part all the same: they are called."""

import dataclasses
import socket
import threading
from collections.abc import Callable

import pytest
from transport_peers import SOON, Peer, make_tcp_peer, until

from atom.swarm.records.lease import Reached
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.transport.dialer import Contact
from atom.swarm.transport.limits import Backoff, TransportLimits, Unreachable
from atom.swarm.transport.reverse_connections import ANSWER, TOKEN_BYTES

__all__ = ["make_tcp_peer"]

LIMITS = TransportLimits(handshake_s=3.0, connect_s=2.0)


@pytest.fixture
def make(make_tcp_peer: Callable[..., Peer]) -> Callable[..., Peer]:
    def make(listens: bool = True, limits: TransportLimits = LIMITS) -> Peer:
        made = make_tcp_peer(limits=limits, listens=listens)
        made.transport.set_handlers(
            on_message=lambda *heard: made.heard.put(heard),
            on_blobs=lambda channel: channel.send_frame(
                Kind.BLOB, b"a blob", patience=Patience(SOON)
            ),
        )
        return made

    return make


def keep_lines(guest: Peer, *others: Peer) -> None:
    guest.knows(*others)
    names = {other.peer_id for other in others}

    def stand() -> bool:
        guest.transport.keep_lines(names)
        called = all(other.transport._reverse.has_line(guest.peer_id) for other in others)
        return called and lines(guest).keys() == names and all(lines(guest).values())

    until(stand)


def lines(guest: Peer) -> dict[str, Channel | None]:
    """Its own."""
    return guest.transport._lines._up


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
    keep_lines(guest, host)
    assert host.transport.send(guest.peer_id, b"are you there?")
    assert guest.heard.get(timeout=SOON)[::2] == (host.peer_id, b"are you there?")
    assert guest.transport.send(host.peer_id, b"I am")
    assert host.heard.get(timeout=SOON)[::2] == (guest.peer_id, b"I am")
    ring_between(host, guest)
    ring_between(guest, host)
    blobs = host.transport.connect(guest.peer_id, Purpose.BLOBS)
    assert blobs.recv_frame(Kind.BLOB, 100, Patience(SOON)) == b"a blob"


def test_strangers_do_not_take_all_lines(make: Callable[..., Peer]) -> None:
    host = make(limits=dataclasses.replace(LIMITS, lines=2))
    one, two, member = make(listens=False), make(listens=False), make(listens=False)
    host.knows(one, two, member)
    host.transport.known.at_head([member.peer_id])
    keep_lines(one, host)
    two.knows(host)
    turned_away = two.transport.connect(host.peer_id, Purpose.LINE)
    with pytest.raises(ConnectionError):
        turned_away.recv_header(TOKEN_BYTES, Patience(SOON))
    keep_lines(member, host)
    reverse = host.transport._reverse
    assert [reverse.has_line(p.peer_id) for p in (one, two, member)] == [True, False, True]


def test_a_line_that_breaks_is_dialled_anew(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    keep_lines(guest, host)
    (line,) = lines(guest).values()
    assert line is not None
    line.close()
    until(lambda: line not in lines(guest).values())
    until(lambda: not host.transport._reverse.has_line(guest.peer_id))
    keep_lines(guest, host)
    ring_between(host, guest)
    guest.transport.keep_lines([])
    until(lambda: not lines(guest))


def test_a_newer_line_takes_the_place_of_one_that_nobody_saw_break(
    make: Callable[..., Peer],
) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    keep_lines(guest, host)
    newer = guest.transport.connect(host.peer_id, Purpose.LINE)
    until(lambda: not lines(guest))
    assert host.transport._reverse.has_line(guest.peer_id)
    newer.close()


def test_a_line_whose_thread_ended_is_begun_anew(
    make: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    guest.knows(host)

    def odd(*_: object, **__: object) -> Channel:
        raise OverflowError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(guest.transport._dialer, "dial", odd)
        guest.transport.keep_lines([host.peer_id])
        until(lambda: any(e["event"] == "thread-failed" for e in guest.events.events))
    guest.events.events.clear()
    keep_lines(guest, host)
    ring_between(host, guest)


def test_without_a_line_nobody_is_reached(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    with pytest.raises(Unreachable):
        host.transport.connect(guest.peer_id, Purpose.RING, b"tag")


def test_a_called_peer_that_does_not_come_is_given_up(make: Callable[..., Peer]) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    keep_lines(guest, host)
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
    keep_lines(closed, witness)
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
    now = dataclasses.replace(before, incarnation=bytes([1]) * 16)
    witness.transport.set_contact(again.peer_id, now)
    assert again.transport.probe(witness.peer_id) is Reached.NO


def test_garbage_instead_of_a_handshake_does_not_keep_the_caller_out(
    make: Callable[..., Peer],
) -> None:
    caller, shut = make(), make(listens=False)
    caller.knows(shut)
    keep_lines(shut, caller)
    stream = caller.transport._reverse.call(shut.peer_id, SOON)
    stream.send_all(memoryview(b"GET / HTTP/1.1\r\n\r\n" * 10), Patience(SOON))
    until(lambda: any(e["event"] == "connection-refused" for e in shut.events.events))
    stream.close()
    (refused,) = [e for e in shut.events.events if e["event"] == "connection-refused"]
    assert refused["reason"] == "bad-handshake"
    ring_between(caller, shut)


def test_a_full_house_is_asked_for_a_line_after_a_while(make: Callable[..., Peer]) -> None:
    """It lets everybody in, and hangs up on whom it has no room for."""
    full, guest = make(limits=dataclasses.replace(LIMITS, lines=0)), make(listens=False)
    guest.knows(full)
    own = guest.transport._lines
    for pauses in (Backoff(0.01, 0.02), Backoff(60.0, 60.0)):
        own._pauses = pauses

        def asked(pauses: Backoff = pauses) -> bool:
            guest.transport.keep_lines([full.peer_id])
            return not lines(guest) and pauses.failures(full.peer_id) > 0

        until(asked)
    guest.transport.keep_lines([full.peer_id])
    assert not lines(guest)

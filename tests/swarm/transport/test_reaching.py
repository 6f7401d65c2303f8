"""Peers that cannot be dialled take part all the same: they are called."""

import threading
from collections import Counter

import pytest

from atom.swarm.records.lease import Reached
from atom.swarm.stream.frames import Kind, Patience, Purpose
from atom.swarm.transport import reverse_connections, transport
from atom.swarm.transport.reverse_connections import TOKEN_BYTES
from tests.swarm.transport_peers import SOON, Make, Peer, keep_lines, reaches, until


@pytest.fixture
def make(make_peer: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    monkeypatch.setattr(transport, "_PROBE_S", 0.2)

    def make(listens: bool = True, **bounds: float) -> Peer:
        return make_peer(listens=listens, HANDSHAKE_S=3.0, MAX_HANDSHAKES_PER_HOST=2, **bounds)

    return make


def test_a_peer_that_cannot_be_dialled_is_called(make: Make) -> None:
    host, guest = make(), make(listens=False)
    host.knows(guest)
    assert not reaches(host, guest)
    keep_lines(guest, host)
    data = bytes(range(256)) * 2000
    for one, two in ((host, guest), (guest, host)):
        assert one.transport.send(two.peer_id, b"are you there?")
        assert two.heard.get(timeout=SOON)[::2] == (one.peer_id, b"are you there?")
        outgoing = one.transport.connect(two.peer_id, Purpose.RING, b"tag")
        incoming = two.transport.accept_ring(one.peer_id, b"tag", SOON)
        assert (outgoing.peer_id, incoming.peer_id) == (two.peer_id, one.peer_id)
        for here, there in ((outgoing, incoming), (incoming, outgoing)):
            send = threading.Thread(
                target=here.send_frame, args=(Kind.CHUNK, data), kwargs={"patience": Patience(SOON)}
            )
            send.start()
            assert there.recv_frame(Kind.CHUNK, len(data), Patience(SOON)) == data
            send.join()
        outgoing.close()
        incoming.close()
    guest.transport.keep_lines([])
    until(lambda: not reaches(host, guest))


def test_strangers_do_not_take_all_lines(make: Make) -> None:
    host = make(PLACES_FOR_LINES=2)
    one, two, member = (make(listens=False) for _ in range(3))
    host.transport.known.at_head([member.peer_id])
    keep_lines(one, host)
    two.knows(host)
    turned_away = two.transport.connect(host.peer_id, Purpose.LINE)
    with pytest.raises(ConnectionError):
        turned_away.recv_header(TOKEN_BYTES, Patience(SOON))
    assert not reaches(host, two)
    keep_lines(member, host)
    assert reaches(host, one)


def test_a_newer_line_ends_the_older_which_is_dialled_anew(make: Make) -> None:
    host, guest = make(), make(listens=False)
    keep_lines(guest, host)
    newer = guest.transport.connect(host.peer_id, Purpose.LINE)
    with pytest.raises(ConnectionError):
        newer.recv_header(TOKEN_BYTES, Patience(SOON))
    assert reaches(host, guest)
    guest.transport.set_addresses(host.peer_id, ["127.0.0.1:1"])
    assert reaches(host, guest), "it answers where the line stands"


def test_others_say_whether_they_can_dial_us(make: Make) -> None:
    witness, open_peer, closed = make(), make(), make(listens=False)
    open_peer.knows(witness)
    assert open_peer.transport.probe(witness.peer_id) is Reached.UNKNOWN  # it has no address of us
    witness.knows(open_peer)
    assert open_peer.transport.probe(witness.peer_id) is Reached.YES
    assert open_peer.transport.probe(witness.peer_id, from_outside=True) is Reached.UNKNOWN
    keep_lines(closed, witness)
    assert closed.transport.probe(witness.peer_id) is Reached.UNKNOWN
    assert witness.transport.probe(closed.peer_id) is Reached.YES, "a peer behind NAT can dial, too"


# ---- a system that has no thread to give right now gets them later


@pytest.mark.parametrize(
    ("name", "times"), [("atom-inbound", 5), ("atom-lane", 1), ("atom-line", 1), ("atom-answer", 1)]
)
def test_messages_get_through_later(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch, refused: Counter[str], name: str, times: int
) -> None:
    """The guest cannot be dialled, so a line is used too. A refused connection holds no place."""
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    host, guest = make_peer(MAX_HANDSHAKES_PER_HOST=4), make_peer(listens=False)
    host.knows(guest)
    guest.knows(host)
    refused[name] = times

    def arrives() -> bool:
        guest.transport.keep_lines([host.peer_id])
        return host.transport.send(guest.peer_id, b"hello") and not guest.heard.empty()

    until(arrives)
    assert refused[name] == 0
    assert guest.heard.get(timeout=SOON)[2] == b"hello"

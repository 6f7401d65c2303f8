"""Strangers that send any bytes, at once or one by one, are refused with a named reason. They keep
no place, and other peers are served in the meantime."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from atom.base.errors import PeerRefused, Reason
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import listed_peers, seen_from_outside
from atom.swarm.stream.frames import Kind, Patience, Purpose, Stream
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.reverse_connections import ANSWER, TOKEN_BYTES
from tests.swarm.refusals import refusal
from tests.swarm.swarm_samples import TINY_RUN, a_manifest
from tests.swarm.transport_peers import (
    RUN,
    SOON,
    STRANGER,
    Make,
    Peer,
    before_tls,
    in_tls,
    newcomer,
    shake,
    still_serves,
    until,
)

BETWEEN_S = 0.05
FEW = {"MAX_HANDSHAKES_PER_HOST": 2, "MAX_CONNECTIONS_PER_PEER": 1, "FRAME_S": 0.5}
ENDLESS = bytes(10_000)


def header(kind: Kind, length: int) -> bytes:
    return length.to_bytes(4, "big") + bytes([kind])


def proven(peer: Peer) -> Stream:
    """Return a stream that has passed the handshake as a peer of the run."""
    return shake(peer, Local(STRANGER, RUN, bytes(16))).stream


def enters(peer: Peer) -> bool:
    """Return True if the only place for this peer is free."""
    try:
        proven(peer).close()
    except PeerRefused:
        return False
    return True


def impostor() -> Local:
    local = newcomer()
    local.identity.peer_id = Identity.create().peer_id
    return local


HELLO = b"\x16\x03\x01\x02\x00" + bytes(512)
"""Beginning of a TLS handshake that never ends."""
SENT: dict[str, tuple[Callable[[Peer], Stream], bytes, bytes, Reason]] = {
    "nothing": (before_tls, b"", b"", Reason.TIMEOUT),
    "HTTP": (before_tls, b"GET / HTTP/1.1\r\n\r\n" * 10, b"", Reason.BAD_HANDSHAKE),
    "drips": (before_tls, b"", HELLO, Reason.TIMEOUT),
    "drips later": (before_tls, HELLO[:100], HELLO[100:], Reason.TIMEOUT),
    "a dripping token": (before_tls, ANSWER, bytes(TOKEN_BYTES), Reason.TIMEOUT),
    "a long proof": (in_tls, header(Kind.HELLO, 1 << 20), b"", Reason.BAD_HANDSHAKE),
    "a dripping proof": (in_tls, header(Kind.HELLO, 1000), ENDLESS, Reason.TIMEOUT),
    "a long message": (proven, header(Kind.MESSAGE, 0xFFFFFFFF), b"", Reason.TOO_LARGE),
    "no message": (proven, header(Kind.WAITING, 0), b"", Reason.MALFORMED),
    "a dripping message": (proven, header(Kind.MESSAGE, 1000), ENDLESS, Reason.TIMEOUT),
}
"""Stage that a stranger reaches, bytes sent at once, bytes sent one by one, and the reason of the
refusal."""


def speak(stream: Stream, at_once: bytes, drip: bytes, cut: threading.Event) -> None:
    with contextlib.suppress(OSError):
        stream.send_all(memoryview(at_once), Patience(SOON))
        for place in range(len(drip)):
            stream.send_all(memoryview(drip)[place : place + 1], Patience(SOON))
            if cut.wait(BETWEEN_S):
                return


@pytest.mark.parametrize("sent", SENT)
def test_what_a_stranger_sends_is_refused_by_name(make_peer: Make, sent: str) -> None:
    """One of two places stays free for other peers, and the stranger's own place becomes free."""
    comes, at_once, drip, reason = SENT[sent]
    peer = make_peer(**FEW)
    stream, cut = comes(peer), threading.Event()
    speaking = threading.Thread(target=speak, args=(stream, at_once, drip, cut))
    speaking.start()
    until(lambda: still_serves(peer))
    kind = "connection-dropped" if comes is proven else "connection-refused"
    peer.events.wait(kind, reason=reason.value)
    cut.set()
    speaking.join(SOON)
    with pytest.raises(ConnectionError):
        stream.recv_into(memoryview(bytearray(1 << 16)), Patience(SOON))
    stream.close()
    with contextlib.closing(before_tls(peer)):
        until(lambda: still_serves(peer) and enters(peer))
    aside = peer.transport.offenders.held(0.0)
    assert aside == ({STRANGER.peer_id} if comes is proven else frozenset())


@pytest.mark.parametrize(
    ("local", "server", "reason"),
    [
        (newcomer(run=b"q" * 32), None, Reason.WRONG_RUN),
        (newcomer(), Identity.create().peer_id, Reason.BAD_SIGNATURE),
        (impostor(), None, Reason.BAD_SIGNATURE),
    ],
)
def test_a_client_is_told_why_it_is_refused(
    make_peer: Make, local: Local, server: str | None, reason: Reason
) -> None:
    peer = make_peer()
    assert refusal(shake, peer, local, server) is reason
    peer.events.wait("connection-refused", reason=reason.value, peer_id="")


def test_another_identity_is_refused_by_the_client(make_peer: Make) -> None:
    two, one = make_peer(), make_peer(HANDSHAKE_S=600.0)
    host, port = two.transport.address
    expected = Identity.create().peer_id
    one.transport.set_addresses(expected, [f"{host}:{port}"])
    assert refusal(one.transport.connect, expected, Purpose.RING, b"tag") is Reason.WRONG_IDENTITY


def test_a_token_that_nobody_waits_for_leads_nowhere(make_peer: Make) -> None:
    stream = before_tls(make_peer())
    stream.send_all(memoryview(ANSWER + bytes(TOKEN_BYTES)), Patience(SOON))
    with pytest.raises(ConnectionError):
        stream.recv_into(memoryview(bytearray(1)), Patience(SOON))
    stream.close()


# ---- crowds


def test_known_peers_get_in_beside_a_crowd_and_each_has_its_places(make_peer: Make) -> None:
    peer = make_peer(MAX_CONNECTIONS=5, MAX_CONNECTIONS_PER_PEER=2)
    voter, member, *strangers = (newcomer() for _ in range(5))
    peer.transport.known.at_head([voter.identity.peer_id, member.identity.peer_id])
    channels = [shake(peer, local) for local in strangers[:2]]
    assert refusal(shake, peer, strangers[2]) is Reason.TOO_MANY_CONNECTIONS
    channels += [shake(peer, voter), shake(peer, voter)]
    assert refusal(shake, peer, voter) is Reason.TOO_MANY_CONNECTIONS, "two are its own"
    channels.append(shake(peer, member))
    assert refusal(shake, peer, member) is Reason.TOO_MANY_CONNECTIONS, "five are all"
    for channel in channels:
        channel.close()


# ---- peers of a run with a list of members connect to each other only


OWNER, ANN, BOB = (Identity.create() for _ in range(3))
NAMES = (ANN.peer_id, BOB.peer_id)
LIST = listed_peers(OWNER.peer_id, NAMES)


def test_the_owner_is_on_every_list_and_everybody_on_none() -> None:
    assert {OWNER.peer_id, *NAMES} == LIST
    assert listed_peers(OWNER.peer_id, None) is None
    run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = {list(NAMES)}\n")
    for run_file, seen in ((normalised_run_text(run), LIST), ('{"of": "a newer version"}', None)):
        assert seen_from_outside(a_manifest(OWNER, run_file=run_file)) == seen


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS, Purpose.TEXT])
def test_door_and_dialler_refuse_who_is_not_on_the_list(make_peer: Make, purpose: Purpose) -> None:
    peers = [
        make_peer(identity=identity, listed=listed, HANDSHAKE_S=5.0, serve=lambda channel: None)
        for identity, listed in ((ANN, LIST), (OWNER, LIST), (STRANGER, None))
    ]
    for peer in peers:
        peer.knows(*peers)
    member, owner, stranger = (peer.transport for peer in peers)
    for caller, called in ((member, owner), (owner, member)):
        caller.connect(called.peer_id, purpose, b"t" * 8, SOON).close()
    call = stranger.connect, member.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call) is Reason.NOT_ON_THE_LIST
    assert not member.offenders.held(0.0), "no offence: it may not know"
    call = member.connect, stranger.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call, match="^(?!.*by the other end)") is Reason.NOT_ON_THE_LIST
    assert all(peer.heard.empty() for peer in peers)

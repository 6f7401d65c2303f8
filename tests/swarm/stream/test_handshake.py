"""Handshakes of liars, of other versions, and refusals; attacks/fuzz_wire.py mutates all bytes."""

import secrets

import pytest

from atom.base.errors import PeerRefused, Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import PROTOCOL_VERSION, Local, greet, receive
from atom.wire import transport_pb2 as wire
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import stream_pair

OWNER, RUN = Identity.create(), "shakespeare"
LOCAL = Local(OWNER, b"r" * 32, b"i" * 16)
CERTIFICATE = b"certificate"
CHALLENGE = wire.Challenge(version=PROTOCOL_VERSION, nonce=bytes(32)).SerializeToString()
HELLO = wire.Hello(
    version=PROTOCOL_VERSION,
    run_id=LOCAL.run_id,
    peer_id=OWNER.peer_id,
    incarnation=LOCAL.incarnation,
    purpose=Purpose.MESSAGES,
    signature=bytes(64),
).SerializeToString()


def spoken(kind: Kind, raw: bytes) -> tuple[Channel, Channel]:
    """A channel at whose other end this frame was said; both ends."""
    here, there = map(Channel, stream_pair())
    there.send_frame(kind, raw, patience=Patience(1.0))
    return here, there


def said_to_the_door(raw: bytes) -> None:
    receive(spoken(Kind.HELLO, raw)[0], LOCAL, CERTIFICATE, Patience(1.0))


def said_to_the_caller(raw: bytes) -> None:
    here, there = spoken(Kind.CHALLENGE, raw)
    there.close()
    greet(here, LOCAL, OWNER.peer_id, CERTIFICATE, Patience(1.0))


def test_a_proof_is_worth_nothing_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = spoken(Kind.CHALLENGE, CHALLENGE)
    there.send_frame(Kind.REFUSED, b"", patience=Patience(1.0))
    assert refusal(greet, here, LOCAL, OWNER.peer_id, CERTIFICATE, Patience(1.0))
    proof = there.recv_frame(Kind.HELLO, 1024, Patience(1.0))
    assert refusal(said_to_the_door, proof) is Reason.BAD_SIGNATURE
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    said_to_the_door(proof)


def test_another_version_is_refused_by_both_ends() -> None:
    newer = PROTOCOL_VERSION + 1
    hello = wire.Hello(version=newer).SerializeToString()
    assert refusal(said_to_the_door, hello) is Reason.WRONG_VERSION
    challenge = wire.Challenge(version=newer).SerializeToString()
    assert refusal(said_to_the_caller, challenge) is Reason.WRONG_VERSION


def test_a_refusal_says_nothing_to_our_terminal() -> None:
    here, there = spoken(Kind.CHALLENGE, CHALLENGE)
    here.purpose = Purpose.MESSAGES
    said = wire.Refused(reason=Reason.BUSY.value, detail="\x1b[2Jall is well")
    there.send_frame(Kind.REFUSED, said.SerializeToString(), patience=Patience(1.0))
    with pytest.raises(PeerRefused, match="all is well") as refused:
        greet(here, LOCAL, OWNER.peer_id, CERTIFICATE, Patience(1.0))
    assert refused.value.reason is Reason.BUSY
    assert str(refused.value).isprintable()

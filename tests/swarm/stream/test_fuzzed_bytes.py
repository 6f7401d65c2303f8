"""Damaged bytes at every decoder: the named refusal and nothing else, in little memory."""

import random
import secrets
import tracemalloc
from collections.abc import Callable

import pytest
from swarm_samples import a_lease, a_manifest, payload_of, signed

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain import messages
from atom.swarm.chain.commit_chain import parse_commits, record_of
from atom.swarm.chain.messages import Accept
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import (
    LEASE_DOMAIN,
    decode_lease,
    encode_lease,
    encode_manifest,
    read_claim,
)
from atom.swarm.records.manifest import decode_manifest as decode_run
from atom.swarm.state.arenas import (
    ArenaManifest,
    BlobManifest,
    chunk_digest,
    decode_manifest,
)
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import PROTOCOL_VERSION, Local, greet, receive
from atom.wire import transport_pb2 as wire
from tests.swarm.chain_samples import COMMIT, EVIDENCE
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import stream_pair

OWNER, RUN = Identity.create(), "shakespeare"
TRIES = 200
MOST_BYTES = 8 * 1024 * 1024
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

BLOB = schema.encode(
    BlobManifest((ArenaManifest("weights", "float32", 1000, chunk_digest(bytes(4000))),))
)
LEASE = encode_lease(a_lease(OWNER.peer_id), RUN, OWNER.peer_id, OWNER, 1e9)
FOUNDED = encode_manifest(a_manifest(OWNER), OWNER)
CHAIN = record_of(COMMIT) * 3


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


def sent_as_a_frame(raw: bytes) -> bytes:
    here, there = stream_pair()
    there.send_all(memoryview(raw), Patience(1.0))
    there.close()
    return Channel(here).recv_frame(Kind.MESSAGE, 1 << 16, Patience(1.0))


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """Some bytes changed, cut out, repeated or put in."""
    changed = bytearray(raw)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0 if at < len(changed):
                changed[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1])
            case 1:
                del changed[at : at + dice.randrange(1, 20)]
            case 2:
                changed[at:at] = changed[at : at + dice.randrange(1, 50)]
            case _:
                changed[at:at] = dice.randbytes(dice.randrange(1, 12))
    return bytes(changed)


ACCEPT = Accept(b"p" * 32, COMMIT.ballot, COMMIT.value, EVIDENCE, COMMIT.ballot)
DECODERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "message": (messages.encode(ACCEPT), messages.decode),
    "blob manifest": (BLOB, lambda raw: decode_manifest(raw, 1 << 20)),
    "lease": (LEASE, decode_lease),
    "lease, signed": (payload_of(LEASE), lambda raw: read_claim(signed(LEASE_DOMAIN, raw, OWNER))),
    "run": (FOUNDED, lambda raw: decode_run(raw, RUN)),
    "claim": (LEASE, read_claim),
    "chain": (CHAIN, parse_commits),
    "hello": (HELLO, said_to_the_door),
    "challenge": (CHALLENGE, said_to_the_caller),
    "frame": (b"\0\0\0\x40" + bytes([Kind.MESSAGE]) + bytes(64), sent_as_a_frame),
}


@pytest.mark.parametrize("name", DECODERS)
def test_damage_is_refused_by_name(name: str) -> None:
    whole, decode = DECODERS[name]
    dice, refused = random.Random(name), 0
    tracemalloc.start()
    try:
        for _ in range(TRIES):
            try:
                decode(damaged(whole, dice))
            except PeerRefused:
                refused += 1
            except ConnectionError:
                assert name in ("challenge", "frame"), "only there the other end hangs up"
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert refused > TRIES // 20, "accepted damage damages nothing"


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

"""Who is at the other end, for what: three frames inside TLS, bounded in size and time.

    challenge  version, then 32 random bytes: "prove who you are by signing this"
    hello      version, then `Hello`
    welcome    the server's incarnation; or `Refused`

The server is known by its certificate. The client signs the server's nonce together with the
server's identity and certificate, so the signature is worth nothing on any other connection.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from blake3 import blake3

from atom.base.errors import PeerRefused
from atom.base.printable import printable
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain.commit import Digest, Incarnation, PeerId, Signature, canonical_digest
from atom.swarm.identity import Identity, verify
from atom.swarm.records.manifest import Listed
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose

PROTOCOL_VERSION = 16
_VERSION = PROTOCOL_VERSION.to_bytes(2, "big")
HELLO_DOMAIN = "hello"
MAX_TAG_BYTES = 64
MAX_FRAME_BYTES = 1024
MAX_REASON_CHARACTERS = 64
_DETAIL_CHARACTERS = 200

ReasonName = Annotated[str, lambda text: len(text) <= MAX_REASON_CHARACTERS]
"""From the closed list of reasons, or of a newer one."""


class Hello(NamedTuple):
    """Of the client: who it is, and what this connection is for. The server is known already."""

    run_id: Digest
    peer_id: PeerId
    incarnation: Incarnation
    purpose: Annotated[int, set(Purpose).__contains__]
    tag: Annotated[bytes, lambda raw: len(raw) <= MAX_TAG_BYTES]
    signature: Signature
    """Over all of these, the server's identity and certificate, and its nonce."""


class Refused(NamedTuple):
    reason: ReasonName
    detail: Annotated[str, lambda text: len(text) <= _DETAIL_CHARACTERS]


@dataclass(frozen=True)
class Local:
    """This process, as handshakes state it."""

    identity: Identity
    run_id: bytes
    """32 bytes: the digest of the run's manifest."""
    incarnation: bytes
    """16 random bytes per process start."""
    listed: Listed = None
    """With whom the run's owner lets us speak."""

    def __post_init__(self) -> None:
        assert len(self.run_id) == 32
        assert len(self.incarnation) == 16


def greet(
    channel: Channel, local: Local, server: str, certificate: bytes, patience: Patience
) -> None:
    """The client's half, on a channel that has its purpose and tag; sets peer, incarnation and
    round trip.

    Raises: PeerRefused with the server's reason or our own; OSError.
    """
    _check_listed(server, local)
    nonce = _of_our_version(channel.recv_frame(Kind.CHALLENGE, MAX_FRAME_BYTES, patience))
    me, purpose = local.identity.peer_id, int(channel.purpose)
    said = local.run_id, me, local.incarnation, purpose, channel.tag
    payload = _signed_part(said, server, certificate, nonce)
    hello = schema.encode(Hello(*said, local.identity.sign(HELLO_DOMAIN, payload)))
    asked_at = time.monotonic()
    channel.send_frame(Kind.HELLO, _VERSION, hello, patience=patience)
    channel.incarnation = _await_welcome(channel, patience)
    channel.round_trip_s = time.monotonic() - asked_at
    channel.peer_id = server


def receive(channel: Channel, local: Local, certificate: bytes, patience: Patience) -> None:
    """The server's half up to the verdict: fills in the peer, what the channel is for and the round
    trip.

    Ends with the caller's `welcome` or `refuse`. Raises: PeerRefused, OSError.
    """
    nonce = secrets.token_bytes(32)
    asked_at = time.monotonic()
    channel.send_frame(Kind.CHALLENGE, _VERSION, nonce, patience=patience)
    try:
        raw = channel.recv_frame(Kind.HELLO, MAX_FRAME_BYTES, patience)
        channel.round_trip_s = time.monotonic() - asked_at
        hello = schema.decode(Hello, _of_our_version(raw), MAX_FRAME_BYTES)
    except PeerRefused as refused:
        if refused.reason is Reason.WRONG_VERSION:
            raise
        raise PeerRefused(Reason.BAD_HANDSHAKE, refused.detail) from refused
    if hello.run_id != local.run_id:
        raise PeerRefused(Reason.WRONG_RUN, "client belongs to another run")
    payload = _signed_part(hello[:-1], local.identity.peer_id, certificate, nonce)
    if not verify(hello.peer_id, HELLO_DOMAIN, payload, hello.signature):
        raise PeerRefused(Reason.BAD_SIGNATURE, "hello is not signed by the peer it names")
    channel.peer_id = hello.peer_id
    _check_listed(hello.peer_id, local)
    channel.incarnation = hello.incarnation
    channel.purpose = Purpose(hello.purpose)
    channel.tag = hello.tag


def welcome(channel: Channel, local: Local, patience: Patience) -> None:
    """Tells the client it is in. Raises: OSError."""
    channel.send_frame(Kind.WELCOME, local.incarnation, patience=patience)


def refuse(channel: Channel, refused: PeerRefused, patience: Patience) -> None:
    """Tells the client why not. Raises: OSError."""
    answer = Refused(refused.reason.value, refused.detail[:_DETAIL_CHARACTERS])
    channel.send_frame(Kind.REFUSED, schema.encode(answer), patience=patience)


def refusal(raw: bytes, otherwise: Reason) -> PeerRefused:
    """What the other end's `refuse` says; `otherwise`, if it names no reason that we know."""
    try:
        said = schema.decode(Refused, raw, MAX_FRAME_BYTES)
    except PeerRefused:
        said = Refused("", "")
    safe = printable(said.detail)  # people see it in a terminal
    return PeerRefused(named_reason(said.reason, otherwise), f"by the other end: {safe}")


def named_reason(text: str, otherwise: Reason) -> Reason:
    """A reason from the wire, or `otherwise` for a name we do not know."""
    try:
        return Reason(text)
    except ValueError:
        return otherwise


def _await_welcome(channel: Channel, patience: Patience) -> bytes:
    """The server's incarnation."""
    kind, length = channel.recv_header(MAX_FRAME_BYTES, patience)
    raw = channel.recv_rest(length, patience)
    if kind == Kind.REFUSED:
        raise refusal(raw, otherwise=Reason.BAD_HANDSHAKE)
    if kind != Kind.WELCOME or len(raw) != 16:
        raise PeerRefused(Reason.BAD_HANDSHAKE, "neither welcome nor refusal")
    return raw


def _check_listed(peer_id: str, local: Local) -> None:
    if local.listed is not None and peer_id not in local.listed:
        raise PeerRefused(Reason.NOT_ON_THE_LIST, f"{peer_id[:64]} is no member of the run")


def _signed_part(said: tuple[object, ...], server: str, certificate: bytes, nonce: bytes) -> bytes:
    """Everything that makes this connection this one. `said`: a hello without its signature."""
    this = [PROTOCOL_VERSION, *said, server, blake3(certificate).digest(), nonce]
    return canonical_digest("hello", this)


def _of_our_version(raw: bytes) -> bytes:
    """What follows the version. Raises: PeerRefused(WRONG_VERSION)."""
    version = int.from_bytes(raw[: len(_VERSION)], "big")
    if version != PROTOCOL_VERSION:
        raise PeerRefused(Reason.WRONG_VERSION, f"the other end speaks {version}")
    return raw[len(_VERSION) :]

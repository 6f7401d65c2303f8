"""Handshake: both ends identify each other and agree on the purpose of a connection, in three
frames inside TLS, bounded in size and time.

The certificate identifies the server. The client signs the server's nonce together with the
server's identity and certificate, so its signature is worthless on any other connection.
"""

import contextlib
import secrets
import time
from dataclasses import dataclass

from blake3 import blake3
from google.protobuf.message import DecodeError, Message

from atom.base.errors import PeerRefused, Reason
from atom.base.units import printable
from atom.swarm.chain.commit import canonical_digest
from atom.swarm.identity import Identity, is_peer_id, verify
from atom.swarm.records.lease import PROTOCOL_VERSION
from atom.swarm.records.manifest import Listed
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.wire import transport_pb2 as wire

HELLO_DOMAIN = "hello"
MAX_TAG_BYTES = 64
MAX_FRAME_BYTES = 1024
_DETAIL_CHARACTERS = 200


@dataclass(frozen=True)
class Local:
    """Facts about this process that handshakes state and check."""

    identity: Identity
    run_id: bytes
    """32 bytes: the digest of the run's manifest."""
    incarnation: bytes
    """16 random bytes per process start."""
    listed: Listed = None
    """Peers to which we may connect, if the run's owner lists its members; None: all peers."""

    def __post_init__(self) -> None:
        assert len(self.run_id) == 32
        assert len(self.incarnation) == 16


def greet(
    channel: Channel, local: Local, server: str, certificate: bytes, patience: Patience
) -> None:
    """Do the client's half of a handshake; set the channel's peer, incarnation and round trip.

    Args:
        channel: Channel whose purpose and tag are set.
        local: This process.
        server: Peer id of the server, as known from its certificate.
        certificate: Certificate of the server.
        patience: Time limits.

    Raises:
        PeerRefused: The server refuses, or its answer is refused here.
        OSError: The connection fails.
    """
    _check_listed(server, local)
    challenge = wire.Challenge()
    _parse(challenge, channel.recv_frame(Kind.CHALLENGE, MAX_FRAME_BYTES, patience))
    if challenge.version != PROTOCOL_VERSION:
        raise PeerRefused(Reason.WRONG_VERSION, f"the other end uses version {challenge.version}")
    hello = wire.Hello(
        version=PROTOCOL_VERSION,
        run_id=local.run_id,
        peer_id=local.identity.peer_id,
        incarnation=local.incarnation,
        purpose=int(channel.purpose),
        tag=channel.tag,
    )
    payload = _signed_part(hello, server, certificate, challenge.nonce)
    hello.signature = local.identity.sign(HELLO_DOMAIN, payload)
    asked_at = time.monotonic()
    channel.send_frame(Kind.HELLO, hello.SerializeToString(), patience=patience)
    answer = _await_welcome(channel, patience)
    channel.round_trip_s = time.monotonic() - asked_at
    channel.incarnation = answer.incarnation
    channel.peer_id = server


def receive(channel: Channel, local: Local, certificate: bytes, patience: Patience) -> None:
    """Do the server's half of a handshake, except the answer.

    Set the channel's peer, incarnation, purpose, tag and round trip. The caller then calls
    `welcome` or `refuse`.

    Args:
        channel: New channel.
        local: This process.
        certificate: Our own certificate.
        patience: Time limits.

    Raises:
        PeerRefused: The client is to be refused.
        OSError: The connection fails.
    """
    nonce = secrets.token_bytes(32)
    challenge = wire.Challenge(version=PROTOCOL_VERSION, nonce=nonce)
    asked_at = time.monotonic()
    channel.send_frame(Kind.CHALLENGE, challenge.SerializeToString(), patience=patience)
    hello = wire.Hello()
    try:
        _parse(hello, channel.recv_frame(Kind.HELLO, MAX_FRAME_BYTES, patience))
        channel.round_trip_s = time.monotonic() - asked_at
    except PeerRefused as error:
        raise PeerRefused(Reason.BAD_HANDSHAKE, error.detail) from error
    _check_hello(hello, local)
    payload = _signed_part(hello, local.identity.peer_id, certificate, nonce)
    if not verify(hello.peer_id, HELLO_DOMAIN, payload, hello.signature):
        raise PeerRefused(Reason.BAD_SIGNATURE, "hello is not signed by the peer that it names")
    channel.peer_id = hello.peer_id
    _check_listed(hello.peer_id, local)
    channel.incarnation = hello.incarnation
    channel.purpose = Purpose(hello.purpose)
    channel.tag = hello.tag


def welcome(channel: Channel, local: Local, patience: Patience) -> None:
    """Tell the client that it is accepted.

    Raises:
        OSError: The connection failed.
    """
    answer = wire.Welcome(incarnation=local.incarnation)
    channel.send_frame(Kind.WELCOME, answer.SerializeToString(), patience=patience)


def refuse(channel: Channel, refused: PeerRefused, patience: Patience) -> None:
    """Tell the client why it is refused.

    Raises:
        OSError: The connection failed.
    """
    answer = wire.Refused(reason=refused.reason.value, detail=refused.detail[:_DETAIL_CHARACTERS])
    channel.send_frame(Kind.REFUSED, answer.SerializeToString(), patience=patience)


def refusal(raw: bytes, otherwise: Reason) -> PeerRefused:
    """Decode a refusal of the other end.

    Args:
        raw: Payload of its REFUSED frame.
        otherwise: Reason to use if the frame names none that we know.
    """
    said = wire.Refused()
    with contextlib.suppress(DecodeError):
        said.ParseFromString(raw)
    detail = said.detail[:_DETAIL_CHARACTERS]
    safe = printable(detail)  # people see it in a terminal
    return PeerRefused(named_reason(said.reason, otherwise), f"by the other end: {safe}")


def named_reason(text: str, otherwise: Reason) -> Reason:
    """Return the reason with this name on the wire, or `otherwise` if the name is unknown."""
    try:
        return Reason(text)
    except ValueError:
        return otherwise


def _await_welcome(channel: Channel, patience: Patience) -> wire.Welcome:
    kind, length = channel.recv_header(MAX_FRAME_BYTES, patience)
    raw = channel.recv_body(length, patience)
    if kind == Kind.REFUSED:
        raise refusal(raw, otherwise=Reason.BAD_HANDSHAKE)
    answer = wire.Welcome()
    _parse(answer, raw)
    if kind != Kind.WELCOME or len(answer.incarnation) != 16:
        raise PeerRefused(Reason.BAD_HANDSHAKE, "neither welcome nor refusal")
    return answer


def _check_hello(hello: wire.Hello, local: Local) -> None:
    if hello.version != PROTOCOL_VERSION:
        raise PeerRefused(Reason.WRONG_VERSION, f"client uses version {hello.version}")
    if hello.run_id != local.run_id:
        raise PeerRefused(Reason.WRONG_RUN, "client belongs to another run")
    well_formed = (
        is_peer_id(hello.peer_id)
        and len(hello.incarnation) == 16
        and hello.purpose in set(Purpose)
        and len(hello.tag) <= MAX_TAG_BYTES
    )
    if not well_formed:
        raise PeerRefused(Reason.BAD_HANDSHAKE, "a field of hello is out of bounds")


def _check_listed(peer_id: str, local: Local) -> None:
    if local.listed is not None and peer_id not in local.listed:
        raise PeerRefused(Reason.NOT_ON_THE_LIST, f"{peer_id[:64]} is not a member of the run")


def _signed_part(hello: wire.Hello, server: str, certificate: bytes, nonce: bytes) -> bytes:
    """Return the digest of all values that identify this connection; the client signs it."""
    return canonical_digest(
        "hello",
        [
            hello.version,
            hello.run_id,
            hello.peer_id,
            hello.incarnation,
            hello.purpose,
            hello.tag,
            server,
            blake3(certificate).digest(),
            nonce,
        ],
    )


def _parse(into: Message, raw: bytes) -> None:
    try:
        into.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.BAD_HANDSHAKE, "unreadable handshake frame") from error

"""Certificates name peers, keys do not stay on disk; batches of bytes, alerts, key updates."""

import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Patience
from atom.swarm.stream.tls import SocketStream, TlsStream, make_credentials, peer_of_certificate
from tests.swarm.refusals import refusal

SOON = 5.0
PATIENCE = Patience(SOON)
IDENTITY = Identity.create()
SERVER = make_credentials(IDENTITY)


def test_the_key_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_credentials(IDENTITY)
    assert list(tmp_path.iterdir()) == []


def with_another_kind_of_key() -> bytes:
    ours = x509.load_der_x509_certificate(SERVER.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(ours.subject).issuer_name(ours.subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(ours.not_valid_before_utc)
    builder = builder.not_valid_after(ours.not_valid_after_utc)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("der", [None, b"garbage", b"0" * 5000, with_another_kind_of_key()])
def test_certificates_without_our_kind_of_key_are_a_wrong_identity(der: bytes | None) -> None:
    assert refusal(peer_of_certificate, der) is Reason.WRONG_IDENTITY
    assert peer_of_certificate(SERVER.certificate) == IDENTITY.peer_id


@pytest.fixture
def ends() -> Iterator[tuple[SocketStream, SocketStream]]:
    near, far = map(SocketStream, socket.socketpair())
    yield near, far
    near.close()
    far.close()


def test_it_is_tls_13_and_altered_bytes_end_it(ends: tuple[SocketStream, SocketStream]) -> None:
    server = TlsStream(ends[0], SERVER.server, server_side=True)
    client = TlsStream(ends[1], SERVER.client, server_side=False)
    thread = threading.Thread(target=server.handshake, args=(PATIENCE,))
    thread.start()
    client.handshake(PATIENCE)
    thread.join(SOON)
    assert client._tls.version() == "TLSv1.3"
    assert client.certificate() == SERVER.certificate
    assert server.certificate() is None, "a client proves itself inside"
    ends[1].send_all(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)), PATIENCE)
    with pytest.raises(ConnectionError, match=r"(?i)decrypt|mac"):
        server.recv_into(memoryview(bytearray(1)), PATIENCE)


def test_a_failed_handshake_is_told_to_the_other_end(
    ends: tuple[SocketStream, SocketStream],
) -> None:
    near, far = ends
    far.send_all(memoryview(b"\x16\x03\x01\x00\x05no TLS"), PATIENCE)
    with pytest.raises(ConnectionError):
        TlsStream(near, SERVER.server, server_side=True).handshake(PATIENCE)
    alert = bytearray(1)
    far.recv_into(memoryview(alert), PATIENCE)
    assert alert == b"\x15", "a TLS alert"


def test_a_batch_is_waited_for_and_what_came_is_told(
    ends: tuple[SocketStream, SocketStream],
) -> None:
    near, far = ends
    heard = bytearray(100_000)
    thread = threading.Thread(target=far.recv_into, args=(memoryview(heard), PATIENCE))
    thread.start()
    near.send_all(memoryview(b"a" * 99_999), PATIENCE)
    near.send_all(memoryview(b"b"), PATIENCE)
    thread.join(SOON)
    assert heard == b"a" * 99_999 + b"b"
    assert far.idle()
    near.send_all(memoryview(b"some"), PATIENCE)
    assert not far.idle(), "after a batch single bytes count again"
    assert far.recv_some(memoryview(heard), PATIENCE, 100_000) == 4


def test_a_stream_ends_when_key_updates_pile_up() -> None:
    """A stranger that asks for new keys again and again is not answered in memory without end."""
    outgoing = SimpleNamespace(pending=0)

    def read(*_: object) -> int:
        """As OpenSSL: no content, and an answer that waits to be sent."""
        outgoing.pending += 27
        raise ssl.SSLWantReadError

    stream: Any = TlsStream.__new__(TlsStream)
    stream._outgoing, stream._received = outgoing, memoryview(bytearray(1))
    stream._tls, stream._fill = SimpleNamespace(read=read), lambda patience, wanted: None
    with pytest.raises(ConnectionError, match="new keys"):
        stream.recv_into(memoryview(bytearray(4)), None)
    assert outgoing.pending < 64 * 1024

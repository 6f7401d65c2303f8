"""Certificates name peers, keys do not stay on disk; whole pieces arrive, alerts are told, a cut
connection frees who waits."""

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
from atom.swarm.stream.frames import Interrupted, Patience
from atom.swarm.stream.tls import SocketStream, TlsStream, make_credentials, peer_of_certificate
from tests.swarm.refusals import refusal

SOON = 5.0
SERVER = make_credentials(Identity.create())


def test_the_certificate_carries_the_peer_id() -> None:
    identity = Identity.create()
    assert peer_of_certificate(make_credentials(identity).certificate) == identity.peer_id


def test_the_key_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_credentials(Identity.create())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("der", [None, b"", b"garbage", b"0" * 5000])
def test_unreadable_certificates_are_a_wrong_identity(der: bytes | None) -> None:
    assert refusal(peer_of_certificate, der) is Reason.WRONG_IDENTITY


def test_another_kind_of_key_is_a_wrong_identity() -> None:
    ours = x509.load_der_x509_certificate(make_credentials(Identity.create()).certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(ours.subject).issuer_name(ours.subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(ours.not_valid_before_utc)
    builder = builder.not_valid_after(ours.not_valid_after_utc)
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    assert refusal(peer_of_certificate, der) is Reason.WRONG_IDENTITY


@pytest.fixture
def ends() -> Iterator[tuple[TlsStream, TlsStream]]:
    near, far = socket.socketpair()
    server = TlsStream(SocketStream(near), SERVER.server, server_side=True)
    client = TlsStream(SocketStream(far), SERVER.client, server_side=False)
    thread = threading.Thread(target=server.handshake, args=(Patience.within(SOON),))
    thread.start()
    client.handshake(Patience.within(SOON))
    thread.join(SOON)
    yield client, server
    client.close()
    server.close()


def test_two_peers_speak_tls_13_and_the_client_sees_the_server_key(
    ends: tuple[TlsStream, TlsStream],
) -> None:
    client, server = ends
    assert client._tls.version() == "TLSv1.3"
    assert client.certificate() == SERVER.certificate
    assert server.certificate() is None, "a client proves itself inside"


@pytest.mark.parametrize("size", [1, 16384, 16385, 700_001])
def test_bytes_arrive_both_ways(ends: tuple[TlsStream, TlsStream], size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    for sender, receiver in (ends, ends[::-1]):
        thread = threading.Thread(target=sender.send_all, args=(memoryview(data), Patience(SOON)))
        thread.start()
        heard = bytearray(size)
        receiver.recv_into(memoryview(heard), Patience(SOON))
        thread.join(SOON)
        assert heard == data
        assert receiver.idle()


def test_a_stream_with_decrypted_bytes_is_not_idle(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    client.send_all(memoryview(b"two parts"), Patience(SOON))
    server.recv_into(memoryview(bytearray(3)), Patience(SOON))
    assert not server.idle()


def test_a_stopped_reader_leaves_the_stream_whole(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        server.recv_into(memoryview(bytearray(4)), Patience(SOON, stop=stop))
    client.send_all(memoryview(b"late"), Patience(SOON))
    heard = bytearray(4)
    server.recv_into(memoryview(heard), Patience(SOON))
    assert heard == b"late"


def test_altered_bytes_end_the_connection(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    client._below.send_all(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)), Patience(SOON))
    with pytest.raises(ConnectionError, match=r"(?i)decrypt|mac"):
        server.recv_into(memoryview(bytearray(1)), Patience(SOON))


def test_closing_frees_a_blocked_reader(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(ConnectionError):
            server.recv_into(memoryview(bytearray(1)), Patience(60.0))
        ended.set()

    threading.Thread(target=read).start()
    server.close()
    assert ended.wait(SOON)
    with pytest.raises(ConnectionError):
        client.recv_into(memoryview(bytearray(1)), Patience(SOON))


def test_a_failed_handshake_is_told_to_the_other_end() -> None:
    near, far = socket.socketpair()
    server = TlsStream(SocketStream(near), SERVER.server, server_side=True)
    far.settimeout(SOON)
    far.sendall(b"\x16\x03\x01\x00\x05no TLS")
    with pytest.raises(ConnectionError):
        server.handshake(Patience.within(SOON))
    assert far.recv(7)[:1] == b"\x15", "a TLS alert"
    server.close()
    far.close()


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

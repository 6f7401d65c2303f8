"""Frames over every kind of stream: bytes arrive, bounds hold, `close` frees blocked threads. TLS:
certificates identify peers, keys do not stay on disk; alerts, key updates; batches of bytes."""

import ssl
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atom.base.errors import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Patience
from atom.swarm.stream.tls import SocketStream, TlsStream, peer_of_certificate, server_context
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import stream_pair

SOON = 5.0
PATIENCE = Patience(SOON)
IDENTITY = Identity.create()
SERVER, CERTIFICATE = server_context(IDENTITY)
Pair = tuple[Channel, Channel]


def in_tls(near: SocketStream, far: SocketStream) -> tuple[TlsStream, TlsStream]:
    client, server = TlsStream(near), TlsStream(far, SERVER)
    thread = threading.Thread(target=server.handshake, args=(PATIENCE,))
    thread.start()
    client.handshake(PATIENCE)
    thread.join(SOON)
    return client, server


@pytest.fixture(params=["socket", "TLS"])
def pair(request: pytest.FixtureRequest) -> Pair:
    ends = stream_pair() if request.param == "socket" else in_tls(*stream_pair())
    return Channel(ends[0]), Channel(ends[1])


def test_frames_arrive_in_order_and_whole_both_ways(pair: Pair) -> None:
    big = bytes(range(256)) * 40_000

    def send(channel: Channel) -> None:
        channel.send_frame(Kind.MESSAGE, b"a", b"b", patience=PATIENCE)
        channel.send_frame(Kind.MESSAGE, b"", patience=PATIENCE)
        channel.send_frame(Kind.CHUNK, b"head", memoryview(big), patience=PATIENCE)

    for here, there in (pair, pair[::-1]):
        sender = threading.Thread(target=send, args=(here,))
        sender.start()
        assert there.recv_frame(Kind.MESSAGE, 10, PATIENCE) == b"ab"
        assert there.recv_frame(Kind.MESSAGE, 10, PATIENCE) == b""
        assert there.recv_frame(Kind.CHUNK, len(big) + 4, PATIENCE) == b"head" + big
        sender.join(SOON)
        assert there.stream.idle()


def test_what_is_oversized_or_of_another_kind_is_refused_by_name(pair: Pair) -> None:
    here, there = pair
    here.send_frame(Kind.MESSAGE, b"x" * 11, patience=PATIENCE)
    assert refusal(there.recv_header, 10, PATIENCE) is Reason.TOO_LARGE
    there.recv_body(11, PATIENCE)
    here.send_frame(Kind.HELLO, b"", patience=PATIENCE)
    assert refusal(there.recv_frame, Kind.MESSAGE, 10, PATIENCE) is Reason.MALFORMED


def test_silence_deadlines_and_a_stop_end_a_wait_and_lose_no_bytes(pair: Pair) -> None:
    here, there = pair
    stop = threading.Event()
    stop.set()
    for patience in (Patience(0.05), Patience(SOON, time.monotonic() + 0.05)):
        with pytest.raises(TimeoutError):
            there.recv_header(10, patience)
    with pytest.raises(Interrupted):
        there.recv_header(10, Patience(SOON, stop=stop))
    here.send_frame(Kind.MESSAGE, b"after", patience=PATIENCE)
    assert there.recv_frame(Kind.MESSAGE, 10, PATIENCE) == b"after"


def test_part_of_a_frame_is_not_idle_and_no_silence(pair: Pair) -> None:
    here, there = pair
    here.stream.send_all(memoryview(b"two parts"), PATIENCE)
    there.stream.recv_into(memoryview(bytearray(3)), PATIENCE)
    assert not there.stream.idle()
    with pytest.raises(TimeoutError):
        there.recv_body(100_000, Patience(0.05))


@pytest.mark.parametrize("writes", [False, True])
def test_close_frees_who_is_blocked(pair: Pair, writes: bool) -> None:
    stream = pair[0].stream
    wait = stream.send_all if writes else stream.recv_into
    with ThreadPoolExecutor() as pool:
        blocked = pool.submit(wait, memoryview(bytearray(64 << 20)), Patience(SOON))
        stream.close()
        assert isinstance(blocked.exception(), ConnectionError)


def test_the_other_end_gets_the_last_words_and_sees_the_end(pair: Pair) -> None:
    here, there = pair
    here.send_frame(Kind.MESSAGE, b"last", patience=PATIENCE)
    here.stream.send_all(memoryview(b"unfinished"), PATIENCE)
    here.close()
    here.close()
    assert there.recv_frame(Kind.MESSAGE, 10, PATIENCE) == b"last"
    assert not there.stream.idle()
    for channel in (there, here):
        with pytest.raises(ConnectionError):
            channel.recv_body(100_000, PATIENCE)


# ---- TLS, and batches


def test_the_key_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server_context(IDENTITY)
    assert list(tmp_path.iterdir()) == []


def with_another_kind_of_key() -> bytes:
    ours = x509.load_der_x509_certificate(CERTIFICATE)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(ours.subject).issuer_name(ours.subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(ours.not_valid_before_utc)
    builder = builder.not_valid_after(ours.not_valid_after_utc)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("der", [None, b"garbage", b"0" * 5000, with_another_kind_of_key()])
def test_certificates_without_our_kind_of_key_are_a_wrong_identity(der: bytes | None) -> None:
    assert refusal(peer_of_certificate, der) is Reason.WRONG_IDENTITY
    assert peer_of_certificate(CERTIFICATE) == IDENTITY.peer_id


def test_it_is_tls_13_and_altered_bytes_end_it() -> None:
    near, far = stream_pair()
    client, server = in_tls(near, far)
    assert client._tls.version() == "TLSv1.3"
    assert client.certificate() == CERTIFICATE
    assert server.certificate() is None, "a client proves itself inside"
    near.send_all(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)), PATIENCE)
    with pytest.raises(ConnectionError, match=r"(?i)decrypt|mac"):
        server.recv_into(memoryview(bytearray(1)), PATIENCE)


def test_a_batch_is_waited_for_and_what_came_is_told() -> None:
    near, far = stream_pair()
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
        """Act like OpenSSL: read no content, and leave an answer to be sent."""
        outgoing.pending += 27
        raise ssl.SSLWantReadError

    stream: Any = TlsStream.__new__(TlsStream)
    stream._outgoing, stream._received = outgoing, memoryview(bytearray(1))
    stream._tls, stream._fill = SimpleNamespace(read=read), lambda patience, wanted: None
    with pytest.raises(ConnectionError, match="new keys"):
        stream.recv_into(memoryview(bytearray(4)), None)
    assert outgoing.pending < 64 * 1024

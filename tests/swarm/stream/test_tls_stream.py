"""TLS in memory: whole pieces arrive, alerts are told, a cut connection frees who waits."""

import socket
import threading
from collections.abc import Iterator

import pytest

from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Interrupted, Patience
from atom.swarm.stream.tls import TlsStream, make_credentials, wrap

SOON = 5.0


@pytest.fixture
def ends() -> Iterator[tuple[TlsStream, TlsStream]]:
    credentials = make_credentials(Identity.create())
    near, far = socket.socketpair()
    server = wrap(near, credentials, server_side=True)
    client = wrap(far, credentials, server_side=False)
    thread = threading.Thread(target=server.handshake, args=(Patience.within(SOON),))
    thread.start()
    client.handshake(Patience.within(SOON))
    thread.join(SOON)
    yield client, server
    client.close()
    server.close()


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
    server = wrap(near, make_credentials(Identity.create()), server_side=True)
    far.settimeout(SOON)
    far.sendall(b"\x16\x03\x01\x00\x05no TLS")
    with pytest.raises(ConnectionError):
        server.handshake(Patience.within(SOON))
    assert far.recv(7)[:1] == b"\x15", "a TLS alert"
    server.close()
    far.close()

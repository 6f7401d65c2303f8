"""Sockets as streams: who waits for a batch still gets every byte, in time."""

import socket
import threading
from collections.abc import Iterator

import pytest

from atom.swarm.stream.frames import Patience
from atom.swarm.stream.tls import SocketStream

SOON = Patience(5.0)


@pytest.fixture
def ends() -> Iterator[tuple[SocketStream, SocketStream]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    streams = SocketStream(near), SocketStream(far)
    yield streams
    for stream in streams:
        stream.close()


def wanting(stream: SocketStream, size: int) -> tuple[threading.Thread, bytearray]:
    heard = bytearray(size)
    thread = threading.Thread(target=stream.recv_into, args=(memoryview(heard), SOON))
    thread.start()
    return thread, heard


def test_bytes_below_a_batch_arrive_whole(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = ends
    thread, heard = wanting(far, 100_000)
    near.send_all(memoryview(b"a" * 99_999), SOON)
    near.send_all(memoryview(b"b"), SOON)
    thread.join(5.0)
    assert heard == b"a" * 99_999 + b"b"


def test_after_a_batch_single_bytes_count_again(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = ends
    thread, _ = wanting(far, 200_000)
    near.send_all(memoryview(bytes(200_000)), SOON)
    thread.join(5.0)
    assert far.idle()
    near.send_all(memoryview(b"x"), SOON)
    assert far.recv_some(memoryview(bytearray(10)), SOON) == 1
    near.send_all(memoryview(b"y"), SOON)
    while far.idle():
        pass
    assert far.recv_some(memoryview(bytearray(10)), SOON, 1_000_000) == 1


def test_the_end_of_the_stream_is_seen_before_a_batch(
    ends: tuple[SocketStream, SocketStream],
) -> None:
    near, far = ends
    near.send_all(memoryview(b"unfinished"), SOON)
    near.close()
    with pytest.raises(ConnectionError):
        far.recv_into(memoryview(bytearray(100_000)), SOON)


def test_fewer_bytes_than_a_batch_are_no_silence(ends: tuple[SocketStream, SocketStream]) -> None:
    """Only their absence is: whoever waits for more than comes is told what there is."""
    near, far = ends
    near.send_all(memoryview(b"some"), SOON)
    assert far.recv_some(memoryview(bytearray(100_000)), SOON, 100_000) == 4
    with pytest.raises(TimeoutError):
        far.recv_some(memoryview(bytearray(100_000)), Patience(0.05), 100_000)

"""Frames over every stream: what was sent arrives, bounds hold, close frees the blocked."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Patience, Stream
from atom.swarm.stream.tls import SocketStream, TlsStream, make_credentials
from tests.swarm.refusals import refusal

SOON = 5.0
PATIENCE = Patience(SOON)
CREDENTIALS = make_credentials(Identity.create())
Pair = tuple[Channel, Channel]


def in_tls(near: SocketStream, far: SocketStream) -> tuple[Stream, Stream]:
    client = TlsStream(near, CREDENTIALS.client, server_side=False)
    server = TlsStream(far, CREDENTIALS.server, server_side=True)
    thread = threading.Thread(target=server.handshake, args=(PATIENCE,))
    thread.start()
    client.handshake(PATIENCE)
    thread.join(SOON)
    return client, server


@pytest.fixture(params=["socket", "TLS"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = SocketStream(socket.create_connection(server.getsockname()))
        far = SocketStream(server.accept()[0])
    streams = (near, far) if request.param == "socket" else in_tls(near, far)
    channels = Channel(streams[0]), Channel(streams[1])
    yield channels
    for channel in channels:
        channel.close()


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
    there.recv_rest(11, PATIENCE)
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
        there.recv_rest(100_000, Patience(0.05))


@pytest.mark.parametrize("writes", [False, True])
def test_close_frees_who_is_blocked(pair: Pair, writes: bool) -> None:
    stream, ended = pair[0].stream, threading.Event()
    wait = stream.send_all if writes else stream.recv_into

    def block() -> None:
        with pytest.raises(ConnectionError):
            wait(memoryview(bytearray(64 << 20)), Patience(60))
        ended.set()

    threading.Thread(target=block, daemon=True).start()
    stream.close()
    assert ended.wait(SOON)


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
            channel.recv_rest(100_000, PATIENCE)

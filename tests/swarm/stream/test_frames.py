"""Frames over both streams: what was sent arrives, bounds hold, close frees the blocked."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from atom.base.reasons import Reason
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Patience
from atom.swarm.stream.tls import SocketStream
from tests.swarm.memory_stream import MemoryStream
from tests.swarm.refusals import refusal

SOON = 5.0


@pytest.fixture(params=["socket", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    if request.param == "socket":
        left, right = socket.socketpair()
        streams = SocketStream(left), SocketStream(right)
    else:
        streams = MemoryStream.pair()
    channels = Channel(streams[0]), Channel(streams[1])
    yield channels
    for channel in channels:
        channel.close()


def test_frames_arrive_in_order_and_whole(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    big = bytes(range(256)) * 40_000

    def send() -> None:
        here.send_frame(Kind.MESSAGE, b"a", b"b", patience=Patience(SOON))
        here.send_frame(Kind.MESSAGE, b"", patience=Patience(SOON))
        here.send_frame(Kind.CHUNK, b"head", memoryview(big), patience=Patience(SOON))

    sender = threading.Thread(target=send)
    sender.start()
    assert there.recv_frame(Kind.MESSAGE, 10, Patience(SOON)) == b"ab"
    assert there.recv_frame(Kind.MESSAGE, 10, Patience(SOON)) == b""
    assert there.recv_frame(Kind.CHUNK, len(big) + 4, Patience(SOON)) == b"head" + big
    sender.join(SOON)
    assert there.stream.idle()


def test_an_oversized_frame_is_refused_before_its_payload(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    here.send_frame(Kind.MESSAGE, b"x" * 11, patience=Patience(SOON))
    assert refusal(there.recv_header, 10, Patience(SOON)) is Reason.TOO_LARGE


def test_another_kind_is_malformed(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    here.send_frame(Kind.HELLO, b"", patience=Patience(SOON))
    assert refusal(there.recv_frame, Kind.MESSAGE, 10, Patience(SOON)) is Reason.MALFORMED


def test_silence_and_deadlines_end_a_wait(pair: tuple[Channel, Channel]) -> None:
    _, there = pair
    with pytest.raises(TimeoutError):
        there.recv_header(10, Patience(0.05))
    with pytest.raises(TimeoutError):
        there.recv_header(10, Patience(SOON, deadline=time.monotonic() + 0.05))


def test_stop_interrupts_without_losing_bytes(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        there.recv_header(10, Patience(SOON, stop=stop))
    here.send_frame(Kind.MESSAGE, b"after", patience=Patience(SOON))
    assert there.recv_frame(Kind.MESSAGE, 10, Patience(SOON)) == b"after"


def test_close_frees_a_blocked_reader_and_writer(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    failures: list[BaseException] = []

    def blocked(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except ConnectionError as error:
            failures.append(error)

    flood = memoryview(bytes(64 << 20))
    threads = [
        threading.Thread(target=blocked, args=(lambda: there.recv_header(9, Patience(60)),)),
        threading.Thread(
            target=blocked,
            args=(lambda: here.send_frame(Kind.CHUNK, flood, patience=Patience(60)),),
        ),
    ]
    threads[0].start()
    there.close()
    threads[1].start()
    here.close()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert len(failures) == 2


def test_the_other_end_sees_the_end(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    here.send_frame(Kind.MESSAGE, b"last", patience=Patience(SOON))
    here.close()
    here.close()
    assert there.recv_frame(Kind.MESSAGE, 10, Patience(SOON)) == b"last"
    assert not there.stream.idle()
    with pytest.raises(ConnectionError):
        there.recv_header(10, Patience(SOON))
    with pytest.raises(ConnectionError):
        here.recv_header(10, Patience(SOON))

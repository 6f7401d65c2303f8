"""Bandwidth caps: the arithmetic of waiting, and that closing frees who waits."""

import threading

import pytest

from atom.swarm.frames import Patience
from atom.swarm.memory_stream import MemoryStream
from atom.swarm.rate_limit import TokenBucket
from atom.swarm.throttle import SLICE_BYTES, Bandwidth, ThrottledStream

PATIENCE = Patience(10.0)


class Recorder(TokenBucket):
    """A bucket that never makes anybody wait, and remembers what was taken."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.0)
        self.taken: list[float] = []

    def take(self, amount: float, now: float) -> float:
        self.taken.append(amount)
        return 0.0


def test_no_caps_no_wrapper() -> None:
    stream, _ = MemoryStream.pair()
    assert Bandwidth().limit(stream) is stream
    assert isinstance(Bandwidth.of(1e6, None).limit(stream), ThrottledStream)


def test_caps_are_bits_not_bytes() -> None:
    bucket = Bandwidth.of(8_000_000.0, None).upload
    assert bucket is not None
    assert bucket.take(250_000, 0.0) == 0.0, "a quarter of a second's worth goes at once"
    assert bucket.take(1_000_000, 0.0) == pytest.approx(1.0)


def test_every_byte_passes_unchanged_in_slices_and_is_paid_for() -> None:
    one, other = MemoryStream.pair()
    up, down = Recorder(), Recorder()
    sender = Bandwidth(upload=up).limit(one)
    receiver = Bandwidth(download=down).limit(other)
    message = bytes(range(256)) * 400
    thread = threading.Thread(target=sender.send_all, args=(memoryview(message), PATIENCE))
    thread.start()
    received = bytearray(len(message))
    receiver.recv_into(memoryview(received), PATIENCE)
    thread.join(10)
    assert bytes(received) == message
    assert sum(up.taken) == sum(down.taken) == len(message)
    assert max(up.taken) <= SLICE_BYTES


def test_closing_frees_a_sender_that_waits_for_its_turn() -> None:
    one, _ = MemoryStream.pair()
    slow = Bandwidth(upload=TokenBucket(1.0, 1.0)).limit(one)
    ended = threading.Event()

    def send() -> None:
        with pytest.raises(ConnectionError):
            slow.send_all(memoryview(bytes(100_000)), PATIENCE)
        ended.set()

    threading.Thread(target=send, daemon=True).start()
    slow.close()
    assert ended.wait(10)

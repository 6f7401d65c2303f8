"""Bandwidth caps: the arithmetic of waiting, and that closing frees who waits."""

import math
import threading

import pytest

from atom.swarm.stream.bandwidth import SLICE_BYTES, Bandwidth, TokenBucket
from atom.swarm.stream.frames import Patience
from tests.swarm.memory_stream import MemoryStream

PATIENCE = Patience(10.0)


def test_a_burst_is_free_and_the_rest_waits() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert bucket.take(20, now=0.0) == 0.0
    assert bucket.take(10, now=0.0) == 1.0
    assert bucket.take(10, now=0.0) == 2.0
    assert bucket.take(10, now=3.0) == 0.0


def test_unused_tokens_stop_at_the_burst() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert bucket.take(40, now=1000.0) == 2.0


def test_over_a_long_time_the_rate_holds() -> None:
    bucket, now, sent = TokenBucket(rate_per_s=100, burst=50), 0.0, 0
    while now < 60:
        now += bucket.take(30, now)
        sent += 30
    assert 60 * 100 <= sent <= 60 * 100 + 50 + 60


def test_allow_drops_instead_of_waiting() -> None:
    bucket = TokenBucket(rate_per_s=1, burst=2)
    assert [bucket.allow(0.0) for _ in range(3)] == [True, True, False]
    assert bucket.allow(1.0)
    assert not bucket.allow(0.5)  # time that runs backwards earns nothing


def test_no_limit_and_nonsense() -> None:
    assert TokenBucket(math.inf, 1).take(1e12, 0.0) == 0.0
    for rate, burst in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="positive"):
            TokenBucket(rate, burst)


class Recorder(TokenBucket):
    """A bucket that never makes anybody wait, and remembers what was taken."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.0)
        self.taken: list[float] = []

    def take(self, amount: float, now: float) -> float:
        self.taken.append(amount)
        return 0.0


class Counted:
    """A stream that notes how much it was given at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send_all(self, view: memoryview, patience: Patience) -> None:
        self.sizes.append(len(view))

    recv_into = send_all


def test_without_caps_nothing_is_sliced_and_caps_may_come_and_go() -> None:
    below, bandwidth = Counted(), Bandwidth()
    stream = bandwidth.limit(below)  # type: ignore[arg-type]
    message = memoryview(bytearray(2 * SLICE_BYTES))
    stream.send_all(message, PATIENCE)
    bandwidth.change(1e12, None)
    stream.send_all(message, PATIENCE)
    stream.recv_into(message, PATIENCE)
    bandwidth.change(None, 1e12)
    stream.send_all(message, PATIENCE)
    stream.recv_into(message, PATIENCE)
    whole, half = 2 * SLICE_BYTES, SLICE_BYTES
    assert below.sizes == [whole, half, half, whole, whole, half, half]


def test_a_lifted_cap_forgets_its_debt() -> None:
    bandwidth = Bandwidth.of(8.0, None)
    assert bandwidth.upload.take(100_000, 0.0) > 1000
    bandwidth.change(8e6, None)
    assert bandwidth.upload.take(1000, 0.0) == 0.0


def test_caps_are_bits_not_bytes() -> None:
    bucket = Bandwidth.of(8_000_000.0, None).upload
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

"""Caps hold, rings go first, and no transfer starves."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from atom.swarm.state.fetch import SILENCE_S
from atom.swarm.stream.bandwidth import (
    PART_BYTES,
    SHARE_BEHIND,
    SLICE_BYTES,
    SMALLEST_SLICE_BYTES,
    Bandwidth,
    Precedence,
    Rank,
    TokenBucket,
    TransferThrottle,
)
from atom.swarm.stream.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.stream.tls import SocketStream
from tests.swarm.stream_pairs import stream_pair

PATIENCE = Patience(10.0)


def test_a_burst_is_free_and_the_rest_waits() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert [bucket.take(amount, 0.0) for amount in (20, 10, 10)] == [0.0, 1.0, 2.0]
    assert bucket.take(10, now=3.0) == 0.0
    assert bucket.take(40, now=1000.0) == 2.0, "unused tokens stop at the burst"


def test_allow_drops_instead_of_waiting() -> None:
    bucket = TokenBucket(rate_per_s=1, burst=2)
    assert [bucket.allow(0.0) for _ in range(3)] == [True, True, False]
    assert bucket.allow(1.0)
    assert not bucket.allow(0.0)  # time that runs backwards earns nothing


def test_caps_are_bits_come_and_go_and_forget_their_debt() -> None:
    bandwidth = Bandwidth(8_000_000.0, None)
    assert bandwidth.upload.take(250_000, 0.0) == 0.0, "a quarter of a second's worth goes at once"
    assert bandwidth.upload.take(1_000_000, 0.0) == pytest.approx(1.0)
    bandwidth.change(8e6, None)
    assert bandwidth.upload.take(1000, 0.0) == 0.0
    bandwidth.change(None, 8e6)
    assert bandwidth.upload.take(1e12, 0.0) == 0.0


def capped(
    stream: SocketStream, bandwidth: Bandwidth, purpose: Purpose = Purpose.MESSAGES
) -> Channel:
    channel = Channel(stream)
    channel.bandwidth, channel.purpose = bandwidth, purpose
    return channel


class Recorder(TokenBucket):
    """Bucket that never makes a caller wait, and records the amounts taken."""

    def __init__(self, rate_per_s: float) -> None:
        super().__init__(rate_per_s, 1.0)
        self.taken: list[float] = []

    def take(self, amount: float, now: float) -> float:
        self.taken.append(amount)
        return 0.0


@pytest.mark.parametrize(
    ("rate", "most"),
    [(math.inf, 51_200), (1e9, SLICE_BYTES), (1e5, 1500), (1.0, SMALLEST_SLICE_BYTES)],
)
def test_every_byte_passes_in_slices_if_there_is_a_cap_and_is_paid_for(
    rate: float, most: int
) -> None:
    bandwidth = Bandwidth()
    up, down = bandwidth.upload, bandwidth.download = Recorder(rate), Recorder(rate)
    one, other = (capped(stream, bandwidth) for stream in stream_pair())
    message, received = bytes(range(256)) * 200, bytearray(51_200)
    one.send_all(memoryview(message), PATIENCE)
    other.recv_into(memoryview(received), PATIENCE)
    assert bytes(received) == message
    assert sum(up.taken) == sum(down.taken) == len(message)
    assert max(up.taken) == max(down.taken) == most
    assert bandwidth.sent_bytes == bandwidth.received_bytes == len(message)


def test_closing_frees_a_sender_that_waits_for_its_turn() -> None:
    slow = capped(stream_pair()[0], Bandwidth(8.0))
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(slow.send_all, memoryview(bytes(100_000)), PATIENCE)
        slow.close()
        assert isinstance(sending.exception(), ConnectionError)


# ---- rings and state transfers


@pytest.mark.parametrize(
    ("rate", "uploads", "most_s"), [(25e6, 1, 0.02), (375e3, 2, 1.0), (375e3, 16, 0.8 * SILENCE_S)]
)
def test_beside_a_ring_transfers_get_their_share_and_none_looks_dead(
    rate: float, uploads: int, most_s: float
) -> None:
    """All uploads always want to send, and take turns."""
    throttle, now, longest, sent = TransferThrottle(), 100.0, 0.0, 0
    throttle.passes(PART_BYTES, now)  # it runs already
    heard = [now] * uploads
    for _ in range(3000):
        throttle.passes(int(rate / 100), now)
        for upload in sorted(range(uploads), key=heard.__getitem__):
            if count := throttle.take(PART_BYTES, now):
                sent, heard[upload] = sent + count, now
            longest = max(longest, now - heard[upload])
        now += 0.01
    assert longest < most_s
    assert 0.9 * SHARE_BEHIND * rate * 30 < sent < 1.1 * SHARE_BEHIND * rate * 30 + PART_BYTES


def test_a_ring_that_only_breathes_is_no_ring() -> None:
    throttle = TransferThrottle()
    for step in range(50):
        throttle.passes(5, 100.0 + step / 10)
        assert throttle.take(PART_BYTES, 100.0 + step / 10) == PART_BYTES


def test_who_missed_a_ring_has_its_result_as_soon_as_it_has_ended() -> None:
    """A peer that is in no exchange fetches the result of each round. If it had to wait, it would
    never catch up with members that begin the next round sooner."""
    throttle, now = TransferThrottle(), 100.0
    for _ in range(20):
        throttle.passes(PART_BYTES // 16, now)
        throttle.ended()
        assert throttle.take(PART_BYTES // 16, now + 0.001) == PART_BYTES // 16
        now += 0.2


def waits(precedence: Precedence, rank: Rank) -> bool:
    """After a little that passes on credit."""
    return 0 in [precedence.take(rank, PART_BYTES, time.monotonic()) for _ in range(9)]


@pytest.mark.parametrize("second", Rank)
@pytest.mark.parametrize("first", Rank)
def test_an_exchange_goes_before_states_and_both_before_a_text(first: Rank, second: Rank) -> None:
    precedence = Precedence()
    precedence.take(first, PART_BYTES, time.monotonic())
    assert waits(precedence, second) is (second > first)


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("purpose", [Purpose.RING, Purpose.BLOBS, Purpose.TEXT, Purpose.MESSAGES])
def test_what_goes_first_does_in_its_direction_until_its_channel_is_closed(
    purpose: Purpose, sends: bool
) -> None:
    bandwidth, (stream, far) = Bandwidth(), stream_pair()
    unclaimed, channel = (capped(each, bandwidth, purpose) for each in (stream_pair()[0], stream))
    raw = memoryview(bytearray(PART_BYTES // 4))
    if sends:
        channel.send_all(raw, PATIENCE)
    else:
        far.send_all(raw, PATIENCE)
        channel.recv_into(raw, PATIENCE)
    unclaimed.close()
    ways = [bandwidth.sending, bandwidth.receiving]
    used, idle = ways if sends else reversed(ways)
    assert waits(used, Rank.TEXT) is (purpose in (Purpose.RING, Purpose.BLOBS))
    assert not waits(idle, Rank.TEXT)
    channel.close()
    assert waits(used, Rank.TEXT) is (purpose is Purpose.BLOBS), "it may have others"


def test_who_waits_for_its_turn_can_be_told_to_stop() -> None:
    stop, bandwidth = threading.Event(), Bandwidth()
    channel = capped(stream_pair()[0], bandwidth, Purpose.TEXT)

    class Stopping(TransferThrottle):
        def take(self, most: int, now: float) -> int:
            stop.set()
            return 0

    bandwidth.receiving.behind[Rank.TEXT] = Stopping()
    with pytest.raises(Interrupted):
        channel.recv_into(memoryview(bytearray(9)), replace(PATIENCE, stop=stop))

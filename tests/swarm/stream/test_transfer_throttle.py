"""Rings go first, and nobody starves."""

import contextlib
import threading
import time

from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.swarm.state.fetch import SILENCE_S, Donor
from atom.swarm.stream.bandwidth import RING_SHARE, Bandwidth, TransferThrottle
from atom.swarm.stream.frames import Channel, Patience
from tests.swarm.memory_stream import MemoryStream
from tests.swarm.shelf import Shelf

PART = 256 * 1024
PATIENCE = Patience(10.0)


def sent_beside(throttle: TransferThrottle, ring_bytes_per_s: float, seconds: float) -> float:
    """Bytes of a transfer that always wants to send, beside a ring at this rate."""
    now, sent, step_s = 100.0, 0, 0.001
    for _ in range(int(seconds / step_s)):
        throttle.ring_sent(int(ring_bytes_per_s * step_s), now)
        while sent < 1 << 30 and (count := throttle.take(PART, now)):
            sent += count
        now += step_s
    return sent


def test_transfers_without_a_ring_do_not_wait() -> None:
    throttle = TransferThrottle()
    assert all(throttle.take(2 * PART, now) == PART for now in range(100))


def test_beside_a_ring_transfers_get_their_share() -> None:
    throttle, rate = TransferThrottle(), 25e6
    throttle.ring_sent(PART, 100.0)  # it runs already
    sent = sent_beside(throttle, rate, 4.0)
    assert 0.9 * RING_SHARE * rate * 4 < sent < 1.1 * RING_SHARE * rate * 4 + PART


def longest_silence_s(ring_bytes_per_s: float, uploads: int, seconds: float) -> float:
    """Of any of so many uploads that always want to send, beside such a ring; they wait in turn."""
    throttle, now, step_s = TransferThrottle(), 100.0, 0.01
    throttle.ring_sent(PART, now)
    heard, longest = [now] * uploads, 0.0
    for _ in range(int(seconds / step_s)):
        throttle.ring_sent(int(ring_bytes_per_s * step_s), now)
        for upload in sorted(range(uploads), key=heard.__getitem__):
            if throttle.take(PART, now):
                heard[upload] = now
            longest = max(longest, now - heard[upload])
        now += step_s
    return longest


def test_beside_a_slow_ring_no_upload_looks_dead() -> None:
    assert longest_silence_s(375_000, 2, 30.0) < 1.0
    assert longest_silence_s(375_000, 16, 30.0) < 0.8 * SILENCE_S


def test_beside_a_fast_ring_parts_are_large() -> None:
    throttle = TransferThrottle()
    for step in range(100):
        throttle.ring_sent(10_000_000, 100.0 + step / 100)
    assert throttle.take(PART, 101.0) == PART


def test_when_the_ring_rests_the_link_is_free_at_once() -> None:
    throttle = TransferThrottle()
    for step in range(100):
        throttle.ring_sent(PART, 100.0 + step / 100)
    while throttle.take(PART, 101.0):
        pass
    assert throttle.take(PART, 101.1) == 0
    assert throttle.take(PART, 101.3) == PART, "whatever it had sent before"


def test_a_ring_that_only_breathes_is_no_ring() -> None:
    throttle = TransferThrottle()
    for step in range(50):
        throttle.ring_sent(5, 100.0 + step / 10)
        assert throttle.take(PART, 100.0 + step / 10) == PART


def test_a_ring_stream_tells_the_throttle_what_it_sends() -> None:
    bandwidth = Bandwidth()
    ours, theirs = MemoryStream.pair()
    ring = bandwidth.limit(ours, ring=True)
    ring.send_all(memoryview(bytes(PART)), PATIENCE)
    while bandwidth.throttle.take(PART, time.monotonic()):
        pass
    into = bytearray(PART)
    theirs.recv_into(memoryview(into), PATIENCE)
    assert into == bytes(PART)
    assert ring.idle()
    ring.close()


def test_a_blob_server_waits_for_rings() -> None:
    class Watched(TransferThrottle):
        waits = 3

        def take(self, most: int, now: float) -> int:
            self.waits -= 1
            return 0 if self.waits > 0 else min(2, most)

    watched, store, content = Watched(), Shelf(), bytearray(7)
    store.contents["x"] = plain_bytes(b"content")
    near, far = map(Channel, MemoryStream.pair())
    server = BlobServer(store, throttle=watched)

    def serve() -> None:
        with contextlib.suppress(OSError):
            server.serve(near)

    thread = threading.Thread(target=serve)
    thread.start()
    donor = Donor(far, "x", PATIENCE)
    donor.ask((0, 0))
    donor.take(memoryview(content))
    far.close()
    near.close()
    thread.join(10.0)
    assert content == b"content"
    assert watched.waits == -3, "two waits before the first of four parts, none before the others"

"""A volunteer's bandwidth caps: one bucket per direction, shared by every connection.

Bytes go in small slices, so that a slow link shows steady progress instead of silence, and a
capped reader slows the sender down through TCP itself.
"""

import math
import threading
import time
from dataclasses import dataclass, field

from atom.swarm.stream.courtesy import Courtesy
from atom.swarm.stream.frames import Patience, Stream
from atom.swarm.stream.rate_limit import TokenBucket

SLICE_BYTES = 16 * 1024


@dataclass(frozen=True)
class Bandwidth:
    """Caps in bytes per second, which may change while streams are open."""

    upload: TokenBucket = field(default_factory=lambda: _bucket(None))
    download: TokenBucket = field(default_factory=lambda: _bucket(None))
    courtesy: Courtesy = field(default_factory=Courtesy)
    """What lets rings go before state transfers."""

    @classmethod
    def of(cls, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> "Bandwidth":
        """Caps from bits per second, None: no cap; a quarter of a second's worth may go at once."""
        return cls(_bucket(upload_bits_per_s), _bucket(download_bits_per_s))

    def change(self, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        """For all streams, from their next slice on. None: no cap."""
        self.upload.change(*_rate_and_burst(upload_bits_per_s))
        self.download.change(*_rate_and_burst(download_bits_per_s))

    def limit(self, stream: Stream) -> Stream:
        """`stream` within the caps, such as they are at the time."""
        return ThrottledStream(stream, self)

    def limit_ring(self, stream: Stream) -> Stream:
        """`stream` within the caps; what it sends is made room for."""
        return RingStream(self.limit(stream), self.courtesy)


class RingStream:
    """A stream whose bytes go before those of state transfers."""

    def __init__(self, stream: Stream, courtesy: Courtesy) -> None:
        self.below = stream
        self._courtesy = courtesy
        self.recv_into = stream.recv_into
        self.idle = stream.idle
        self.close = stream.close

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: as the stream below."""
        self._courtesy.ring_sent(len(view), time.monotonic())
        self.below.send_all(view, patience)


class ThrottledStream:
    """A stream that waits its turn. `close` frees whoever waits."""

    def __init__(self, stream: Stream, bandwidth: Bandwidth) -> None:
        self.below = stream
        self._bandwidth = bandwidth
        self._closed = threading.Event()

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: as the stream below."""
        upload = self._bandwidth.upload
        if upload.unlimited:
            self.below.send_all(view, patience)
            return
        for start in range(0, len(view), SLICE_BYTES):
            part = view[start : start + SLICE_BYTES]
            self._take_turn(upload, len(part))
            self.below.send_all(part, patience)

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Raises: as the stream below."""
        download = self._bandwidth.download
        if download.unlimited:
            self.below.recv_into(view, patience)
            return
        for start in range(0, len(view), SLICE_BYTES):
            part = view[start : start + SLICE_BYTES]
            self.below.recv_into(part, patience)
            self._take_turn(download, len(part))

    def idle(self) -> bool:
        return self.below.idle()

    def close(self) -> None:
        self._closed.set()
        self.below.close()

    def _take_turn(self, bucket: TokenBucket, count: int) -> None:
        self._closed.wait(bucket.take(count, time.monotonic()))


def _bucket(bits_per_s: float | None) -> TokenBucket:
    return TokenBucket(*_rate_and_burst(bits_per_s))


def _rate_and_burst(bits_per_s: float | None) -> tuple[float, float]:
    if bits_per_s is None:
        return math.inf, SLICE_BYTES
    bytes_per_s = bits_per_s / 8
    return bytes_per_s, max(bytes_per_s / 4, SLICE_BYTES)

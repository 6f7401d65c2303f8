"""Longer ways without a longer network: what a member sends leaves it some time later."""

import contextlib
import queue
import threading
import time

from atom.swarm.exchange.allreduce import Channels
from atom.swarm.stream.frames import Patience, Stream


class DelayedStream:
    """A stream whose bytes arrive `delay_s` later; it takes what it is given, without bound."""

    def __init__(self, stream: Stream, delay_s: float) -> None:
        self._stream, self._delay_s = stream, delay_s
        self._under_way: queue.SimpleQueue[tuple[float, bytes, Patience] | None]
        self._under_way = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="delay", daemon=True)
        self._sender.start()

    def send_all(self, view: memoryview, patience: Patience) -> None:
        self._under_way.put((time.monotonic() + self._delay_s, bytes(view), patience))

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        self._stream.recv_into(view, patience)

    def idle(self) -> bool:
        return self._stream.idle()

    def close(self) -> None:
        self._under_way.put(None)
        self._sender.join()  # what was sent arrives first, as if the kernel had it
        self._stream.close()

    def _send(self) -> None:
        while (parcel := self._under_way.get()) is not None:
            due, data, patience = parcel
            time.sleep(max(due - time.monotonic(), 0.0))  # this is the delay on the way
            with contextlib.suppress(OSError):
                self._stream.send_all(memoryview(data), patience)


def delay(channels: Channels, delay_s: float) -> None:
    """From now on, both ways of all channels of this member are that long for what it sends."""
    for channel in (*channels.left, *channels.right):
        channel.stream = DelayedStream(channel.stream, delay_s)

"""Lines with a delay: a frame that enters one end leaves the other some time later. Needs root."""

import contextlib
import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque

_SET_INTERFACE = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_FRAMES_ALONE = 0x0002 | 0x1000  # IFF_TAP, IFF_NO_PI
_FRAME_BYTES = 65_535
_LOOK_S = 0.05


class LongWays:
    """Pairs of network interfaces as of a veth pair, with a delay in either direction.

    The interfaces end when this object is closed.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._other_end: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._under_way: deque[tuple[float, int, bytes]] = deque()
        """Frames in order: due time, receiving end, bytes."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="long ways", daemon=True)

    def lay(self, *names: str) -> None:
        """Add a line between two interfaces of these names, before `start`."""
        near, far = (_interface(name) for name in names)
        for end, other in ((near, far), (far, near)):
            self._other_end[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for end in self._other_end:
            os.close(end)
        self._selector.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            wait_s = self._under_way[0][0] - time.monotonic() if self._under_way else _LOOK_S
            for key, _ in self._selector.select(min(max(wait_s, 0.0), _LOOK_S)):
                self._take(key.fd)
            self._deliver()

    def _take(self, end: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(end, _FRAME_BYTES)
                due = time.monotonic() + self._delay_s
                self._under_way.append((due, self._other_end[end], frame))

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, end, frame = self._under_way.popleft()
            with contextlib.suppress(OSError):  # the interface is down
                os.write(end, frame)


def _interface(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _FRAMES_ALONE))
    return end

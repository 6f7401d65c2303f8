"""Who updates which piece of a step: the host's threads, and the device beside them."""

import threading
from collections import deque
from collections.abc import Iterable


class Turns:
    """Hands out each piece once. Thread-safe.

    Each side takes its own in order, so what is needed first is done first. A host thread that
    finds none of its own left takes the device's next one: however wrong the share was chosen,
    and whatever becomes of the device, nobody waits for it while a core is idle.
    """

    def __init__(self, host: Iterable[int], device: Iterable[int] = ()) -> None:
        self._host, self._device = deque(host), deque(device)
        self._lock = threading.Lock()

    def host(self) -> int | None:
        """The next piece for a thread of the host; None: there is none left."""
        with self._lock:
            for pieces in (self._host, self._device):
                if pieces:
                    return pieces.popleft()
            return None

    def device(self) -> int | None:
        """The next piece for the device; None: there is none left."""
        with self._lock:
            return self._device.popleft() if self._device else None

    def close(self) -> None:
        """Nothing more is handed out."""
        with self._lock:
            self._host.clear()
            self._device.clear()

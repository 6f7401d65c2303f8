"""From host names to addresses, in bounded time: the system's own resolver may take half a minute.

Lookups run in threads of their own, a few at a time; whoever asked waits no longer than it wants.
Names come from strangers' leases, so the bound is on threads, not only on patience.
"""

import contextlib
import socket
import threading
import time
from collections import Counter
from typing import Any

AddressInfo = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives them."""

MOST_LOOKUPS = 16
"""Under way at a time, those that nobody waits for any more included."""
MOST_PER_PEER = 2
"""Of the names that one peer gave as its addresses."""


class Resolver:
    """Thread-safe. Nobody waits for its threads in the end: they only ever wait themselves."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: Counter[str] = Counter()

    def resolve(self, host: str, port: int, seconds: float, peer_id: str) -> AddressInfo:
        """The first address of a host that this peer named, within `seconds`. Raises: OSError
        (unknown, or not a name at all), TimeoutError."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(socket.gaierror):
            return _lookup(host, port, socket.AI_NUMERICHOST)
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(peer_id), seconds):
                raise TimeoutError("too many host names are being looked up")
            self._under_way[peer_id] += 1
        found: list[AddressInfo | OSError] = []
        done = threading.Event()

        def look() -> None:
            try:
                found.append(_lookup(host, port))
            except OSError as problem:
                found.append(OSError(str(problem)))
            finally:
                self._end(peer_id)
                done.set()

        try:
            threading.Thread(target=look, name="atom-lookup", daemon=True).start()
        except RuntimeError as problem:
            self._end(peer_id)
            raise OSError(f"no thread to look up {host}: {problem}") from problem
        if not done.wait(max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError(f"looking up {host} takes too long")
        answer = found[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _end(self, peer_id: str) -> None:
        with self._changed:
            self._under_way -= Counter([peer_id])
            self._changed.notify_all()

    def _is_free(self, peer_id: str) -> bool:
        mine, all_of_them = self._under_way[peer_id], self._under_way.total()
        return mine < MOST_PER_PEER and all_of_them < MOST_LOOKUPS


def _lookup(host: str, port: int, flags: int = 0) -> AddressInfo:
    """Raises: OSError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except UnicodeError as problem:  # an empty label, or one that is too long
        raise OSError(f"{host[:80]!r} is no host name: {problem}") from problem

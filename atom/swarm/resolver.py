"""From host names to addresses, in bounded time: the system's own resolver may take half a minute.

Lookups run in threads of their own, a few at a time; whoever asked waits no longer than it wants.
Names come from strangers' leases, so the bound is on threads, not only on patience.
"""

import contextlib
import socket
import threading
import time
from typing import Any

AddressInfo = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives them."""

MOST_LOOKUPS = 4
"""Under way at a time, those that nobody waits for any more included."""


class Resolver:
    """Thread-safe. Nobody waits for its threads in the end: they only ever wait themselves."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MOST_LOOKUPS)

    def resolve(self, host: str, port: int, seconds: float) -> AddressInfo:
        """The first address of a host, within `seconds`. Raises: OSError (unknown, or not a name at
        all), TimeoutError."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(socket.gaierror):
            return _lookup(host, port, socket.AI_NUMERICHOST)
        if not self._free.acquire(timeout=seconds):
            raise TimeoutError("too many host names are being looked up")
        found: list[AddressInfo | OSError] = []
        done = threading.Event()

        def look() -> None:
            try:
                found.append(_lookup(host, port))
            except OSError as problem:
                found.append(OSError(str(problem)))
            finally:
                self._free.release()
                done.set()

        threading.Thread(target=look, name="atom-lookup", daemon=True).start()
        if not done.wait(max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError(f"looking up {host} takes too long")
        answer = found[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def _lookup(host: str, port: int, flags: int = 0) -> AddressInfo:
    """Raises: OSError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except UnicodeError as problem:  # an empty label, or one that is too long
        raise OSError(f"{host[:80]!r} is no host name: {problem}") from problem

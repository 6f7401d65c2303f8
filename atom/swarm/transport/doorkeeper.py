"""How many connections come in at a time, and whose."""

import threading
from collections import Counter
from collections.abc import Container

from atom.swarm.transport.endpoint import TransportLimits


class Doorkeeper:
    """Counts incoming connections: unproven, per host while unproven; then in all, per peer, and of
    strangers. Thread-safe."""

    def __init__(self, limits: TransportLimits, known: Container[str]) -> None:
        """`known`: asked each time. Who is not in it is a stranger."""
        self._limits = limits
        self._known = known
        self._lock = threading.Lock()
        self._hosts: Counter[str] = Counter()
        self._peers: Counter[str] = Counter()

    def enter(self, host: str, distrusted: bool = False) -> bool:
        """Whether a connection from `host` may start its handshake; counts it if so. Of a host that
        sent garbage lately only a few at a time: others may live behind the same address.

        However many others are in: whose connection it is shows later.
        """
        limits = self._limits
        most = limits.handshakes_per_host if not distrusted else limits.handshakes_distrusted
        with self._lock:
            if self._hosts.total() >= limits.handshakes or self._hosts[host] >= most:
                return False
            self._hosts[host] += 1
            return True

    def identify(self, host: str, peer_id: str) -> bool:
        """Moves a connection from `host` to `peer_id`; False (nothing moved) if it has enough, or
        if all places are taken that it may have."""
        with self._lock:
            if not self._has_place(peer_id):
                return False
            self._drop(self._hosts, host)
            self._peers[peer_id] += 1
            return True

    def leave(self, host: str, peer_id: str) -> None:
        """A connection ended; `peer_id` is empty if it never proved one."""
        with self._lock:
            self._drop(self._peers if peer_id else self._hosts, peer_id or host)

    def _has_place(self, peer_id: str) -> bool:
        limits = self._limits
        if self._peers[peer_id] >= limits.connections_per_peer:
            return False
        if self._peers.total() >= limits.connections:
            return False
        if peer_id in self._known:
            return True
        strangers = sum(held for other, held in self._peers.items() if other not in self._known)
        return strangers < limits.connections_of_strangers

    @staticmethod
    def _drop(counts: Counter[str], key: str) -> None:
        counts[key] -= 1
        if counts[key] <= 0:
            del counts[key]

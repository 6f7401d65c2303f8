"""Whom the run knows: for them places are kept that strangers cannot take. Identities are free."""

from collections.abc import Iterable


class KnownPeers:
    """Peer ids. Thread-safe: what is read is replaced as a whole."""

    def __init__(self) -> None:
        self._of_head: frozenset[str] = frozenset()
        self._of_ring: frozenset[str] = frozenset()

    def at_head(self, peer_ids: Iterable[str]) -> None:
        """Whom our head knows, in place of whom the one before knew."""
        self._of_head = frozenset(peer_ids)

    def in_ring(self, peer_ids: Iterable[str]) -> None:
        """Members of the latest ring: a newcomer is known to no head yet."""
        self._of_ring = frozenset(peer_ids)

    def strangers(self, peer_ids: Iterable[str]) -> int:
        """How many of these are none of them."""
        return sum(peer_id not in self for peer_id in peer_ids)

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self._of_head or peer_id in self._of_ring

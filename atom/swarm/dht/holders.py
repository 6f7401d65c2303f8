"""Which nodes of the DHT hold a key, remembered for a few seconds.

hivemind looks for them anew with every record it stores: it asks up to twenty nodes, which answer
with all that lies under the key. A lease is stored every second or so, always under the same keys.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.utils import MSGPackSerializer

from atom.base.clock import Clock

KNOWN_SECONDS = 10.0
"""Nodes that came nearer since are found by readers, who ask more nodes than hold a record."""
ENOUGH_SECONDS = 0.5
"""Whoever has not answered by then may go on, but is not waited for if another has."""


@dataclass
class _Known:
    until: float
    peers: dict[Any, Any]
    """Peer ids by node id; ours is not among them."""
    busy: set[Any] = field(default_factory=set)
    """Those that owe us an answer."""


class Holders:
    """Stores records with the nodes nearest to their keys. All methods belong to one event loop."""

    def __init__(
        self, node: Any, replicas: int, beam: int, clock: Clock, enough_s: float = ENOUGH_SECONDS
    ) -> None:
        self._node = node
        self._enough_s = enough_s
        self._clock = clock
        self._replicas = replicas
        self._beam = beam
        self._known: dict[DHTID, _Known] = {}
        self._calls: set[asyncio.Task[bool]] = set()

    async def store(self, key: str, subkey: str, record: bytes, expires_at: float) -> bool:
        """Whether one of them took it."""
        key_id = DHTID.generate(key)
        known = await self._holders(key_id)
        calls = [
            asyncio.create_task(self._give(known, peer, key_id, subkey, record, expires_at))
            for peer in known.peers.values()
            if peer not in known.busy
        ]
        if not calls:
            return False
        self._calls.update(calls)
        for call in calls:
            call.add_done_callback(self._calls.discard)
        done, late = await asyncio.wait(calls, timeout=self._enough_s)
        if late and not any(call.result() for call in done):
            done, _ = await asyncio.wait(calls)
        return any(call.result() for call in done)

    async def close(self) -> None:
        """No call goes on after it."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _give(
        self, known: _Known, peer: Any, key_id: DHTID, subkey: str, record: bytes, expires_at: float
    ) -> bool:
        known.busy.add(peer)
        value = MSGPackSerializer.dumps(record)
        try:
            taken = await self._node.protocol.call_store(
                peer, [key_id], [value], expires_at, [subkey]
            )
        finally:
            known.busy.discard(peer)
        if taken is None:  # it gave no answer: others are to be found in its place
            self._node.blacklist.register_failure(peer)
            known.until = float("-inf")
            return False
        return bool(taken[0])

    async def _holders(self, key_id: DHTID) -> _Known:
        known = self._known.get(key_id)
        if known is None or self._clock.now() >= known.until:
            found = await self._node.find_nearest_nodes(
                [key_id], k_nearest=self._replicas, beam_size=self._beam, exclude_self=True
            )
            known = _Known(self._clock.now() + KNOWN_SECONDS, found[key_id])
            if not known.peers:
                known.until = float("-inf")  # a first neighbour may come at any moment
            self._known[key_id] = known
        return known

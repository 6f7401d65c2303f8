"""Under which keys of the DHT a peer stores its lease, and which of them it reads. Pure.

Every key that is read asks eight nodes. So a small swarm meets under one key, its root, where each
reading finds everybody. A large one uses the shards: one key with everybody's lease would be too
much to ask of the five nodes that hold it. Peers need not agree on how large they are: whoever
reads the root alone believes in fewer peers than those who no longer store there, and everybody
stores in its shard, which are all read, now and then, whenever a reading leaves something open.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from atom.swarm.records.keys import LEASE_SHARDS, ROOT, shard_of
from atom.swarm.records.lease import RENEW_SECONDS

READS_ALL_ABOVE, READS_ALL_FROM = 64, 48
"""Peers seen: above the first, all keys are read; and on, as long as there are the second."""
LEAVES_ROOT_ABOVE, LEAVES_ROOT_FROM = 128, 96
"""The same for storing in the shard alone. Far above the others, so that nobody is overlooked."""
IN_DOUBT_S = 10.0
"""After a reading that left something open, all shards are looked into for so long: longer than a
lease."""
SHARD_EVERY_S = RENEW_SECONDS
"""In a small swarm, a lease is stored in its shard so often; and shards are looked into: one, or,
in doubt, all. Not more often: nodes that are slow to answer are not to be asked all the more."""


class LeasePlaces:
    """One peer's (or onlooker's) choice. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._reads_all = False
        self._uses_root = True
        self._all_until: float | None = None
        self._shard = 0
        self._looked_at = self._stored_at = float("-inf")

    def to_store(self, peer_id: str, now: float) -> list[int | None]:
        """Where to put this peer's lease that is published now: in the root, in its shard."""
        places: list[int | None] = [ROOT] if self._uses_root else []
        if not self._uses_root or now - self._stored_at >= SHARD_EVERY_S:
            self._stored_at = now
            places.append(shard_of(peer_id))
        return places

    def to_read(self, now: float) -> Sequence[int]:
        """The shards to read now, beside the root."""
        if self._all_until is None:
            self._all_until = now + IN_DOUBT_S
        if self._reads_all:
            return range(LEASE_SHARDS)
        if now - self._looked_at < SHARD_EVERY_S:
            return ()
        self._looked_at, self._shard = now, (self._shard + 1) % LEASE_SHARDS
        return range(LEASE_SHARDS) if now < self._all_until else (self._shard,)

    def found(
        self, in_root: AbstractSet[str], in_shards: AbstractSet[str], complete: bool, now: float
    ) -> None:
        """What came of the last reading: whose leases, by peer id, and whether every node that was
        asked has answered."""
        if not complete or not in_shards <= in_root:
            self._all_until = now + IN_DOUBT_S
        seen = len(in_root | in_shards)
        self._reads_all = seen > READS_ALL_ABOVE or (self._reads_all and seen >= READS_ALL_FROM)
        leaves = seen > LEAVES_ROOT_ABOVE or (not self._uses_root and seen >= LEAVES_ROOT_FROM)
        self._uses_root = not leaves

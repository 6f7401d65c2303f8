"""What a node of ours keeps for the DHT: bounded, and who was there first stays.

hivemind keeps whatever is valid, and of too many keys drops those that end soonest. But identities
are free. A crowd of leases under one key makes an answer that no message holds, and whoever asks
finds nobody. And some thousand manifests of runs that nobody trains, which last for minutes, push
out every lease, which lasts for seconds.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

from atom.base.clock import Clock

MAX_KEYS = 4096
MAX_RECORDS_PER_KEY = 128
"""As many peers as a root is for, and twice those of a shard of a swarm of 1,000: every peer of a
run reads and checks them all, whoever they are. A search asks for up to four keys at once, and four
full ones of the longest leases are an answer of 1.5 MiB; more than 4 MiB are carried by nobody."""
MAX_RECORDS = 16_384
RECOUNT_S = 1.0
"""To count what is kept takes milliseconds, too long for each record of a crowd."""


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """Takes no newcomer where it is full; what it has may always be renewed. For dictionaries:
    the gate lets no other value pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._used: set[DHTID] = set()
        self._counted_at = float("-inf")
        self._keys = self._records = 0
        """Of others, when they were counted, and what came since: perhaps some have ended."""

    def use(self, key_ids: Iterable[DHTID]) -> None:
        """These keys are our own run's: whatever lies under others, there is room for them."""
        self._used.update(key_ids)

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """As hivemind's; False also if there is no room."""
        there = self._under(key)
        is_new, of_others = subkey not in there, key not in self._used
        if is_new:
            if len(there) >= MAX_RECORDS_PER_KEY:
                return False
            if of_others and not self._takes_one_more(is_new_key=not there):
                return False
        kept = self.keep(key, subkey, value, expiration_time)
        if kept and is_new and of_others:
            self._keys, self._records = self._keys + (not there), self._records + 1
        return kept

    def keep(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Our own record, for which there is always room. False if a later one is there, which
        hivemind would now drop when the earlier one ends."""
        there = self._under(key).get(subkey)
        if there is not None and there.expiration_time >= expiration_time:
            return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))

    def held(self) -> list[tuple[DHTID, Any]]:
        """All that has not ended, by key."""
        return list(super().items())

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Nothing. hivemind asks when it meets a new neighbour, and tells it all that it might keep
        in one message; a crowd's leases fit into none, and the neighbour would be given up whenever
        it is met. Authors tell it themselves, in seconds, and of a manifest within a minute."""
        return iter(())

    def clear(self) -> None:
        super().clear()
        self._counted_at = float("-inf")

    def _under(self, key: DHTID) -> DictionaryDHTValue:
        entry = self.get(key)
        return DictionaryDHTValue() if entry is None else entry.value

    def _takes_one_more(self, is_new_key: bool) -> bool:
        """Whether there is room for it, of others."""
        if self._clock.now() - self._counted_at >= RECOUNT_S:
            self._counted_at = self._clock.now()
            sizes = [len(entry.value) for key, entry in self.held() if key not in self._used]
            self._keys, self._records = len(sizes), sum(sizes)
        return self._records < MAX_RECORDS and self._keys + is_new_key <= MAX_KEYS


class NoStorage(DHTLocalStorage):  # type: ignore[misc]
    """In the place of hivemind's cache. Any node may tell ours to put a record there; then it would
    answer with that one alone, in the place of all that it keeps."""

    def store(
        self, key: DHTID, value: bytes, expiration_time: float, subkey: str | None = None
    ) -> bool:
        """False."""
        return False

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """False."""
        return False

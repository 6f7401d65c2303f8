"""What a node of ours keeps for the DHT and believes of it: well-signed records, and few.

hivemind keeps whatever is valid, and of too many keys drops those that end soonest. But identities
are free. A crowd of leases under one key makes an answer that no message holds, so that readers
find nobody. And some thousand manifests of runs that nobody trains, which last for minutes, push
out every lease, which lasts for seconds. So who was there first stays.
"""

import functools
import time
from collections.abc import Iterator
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from atom.base.errors import PeerRefused
from atom.swarm.records.codec import (
    LEASE_DOMAIN,
    MANIFEST_DOMAIN,
    MAX_RECORD_BYTES,
    Claim,
    read_claim,
)

MAX_KEYS = 128
"""Of runs that are not our own."""
MAX_RECORDS_PER_KEY = 256
"""Peers of a run, and half as many strangers again. Full of the longest leases, a key is an answer
of less than a MiB; more than 4 MiB are carried by nobody."""
MAX_RECORDS_PER_ANSWER = 2 * MAX_RECORDS_PER_KEY
"""A node of ours keeps half of that and its own record; others may keep a crowd."""
MAX_SECONDS_AHEAD = {LEASE_DOMAIN: 20.0, MANIFEST_DOMAIN: 900.0}
"""Longest time to expiry we store: a lifetime, and amply for clocks that are apart."""
_CHECKED_RECORDS = 4096
"""Whose signatures are remembered as checked."""


class RecordGate(RecordValidatorBase):  # type: ignore[misc]
    """Lets only well-signed records in their own place pass: what we store and what we are told."""

    def validate(self, record: DHTRecord) -> bool:
        blob = unpack_record(record.value)
        claim = None if blob is None else _claim(blob)
        if claim is None or record.subkey != MSGPackSerializer.dumps(claim.author):
            return False
        if claim.expires_at is not None and claim.expires_at != record.expiration_time:
            return False
        if not record.expiration_time <= time.time() + MAX_SECONDS_AHEAD[claim.kind]:
            return False  # NaN, too: under it nothing would ever end
        return record.key in _key_ids(claim.places)

    def keep_valid(self, key: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Drops what is not valid, where hivemind would refuse the whole dictionary: else one
        bad record, on a node that checks nothing, would hide every good one beside it. Of a crowd,
        the first are looked at (who was there first comes first), the rest are dropped unseen:
        a signature takes a tenth of a millisecond, and the whole node stands still meanwhile."""
        dictionary.maxsize = float("inf")
        with dictionary.freeze():
            for number, (subkey, (value, expires_at)) in enumerate(list(dictionary.items())):
                named = isinstance(subkey, str) and isinstance(value, bytes)
                if not (number < MAX_RECORDS_PER_ANSWER and named) or not self.validate(
                    DHTRecord(key, MSGPackSerializer.dumps(subkey), value, expires_at)
                ):
                    del dictionary[subkey]
        return True


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """Takes no newcomer where it is full; what it has may always be renewed. For dictionaries:
    the gate lets no other value pass."""

    def __init__(self) -> None:
        super().__init__()
        self._own: set[DHTID] = set()

    def use(self, key_id: DHTID) -> None:
        """This key is our own run's: whatever lies under others, there is room for it."""
        self._own.add(key_id)

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """As hivemind's; False also if there is no room."""
        there = self.get(key)
        others = len(self) - sum(own in self for own in self._own)
        if there is None and key not in self._own and others >= MAX_KEYS:
            return False
        is_new = there is not None and subkey not in there.value
        if is_new and len(there.value) >= MAX_RECORDS_PER_KEY:
            return False
        return self.keep(key, subkey, value, expiration_time)

    def keep(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Our own record, for which there is always room. False if a later one is there, which
        hivemind would now drop when the earlier one ends."""
        there = self.get(key)
        before = None if there is None else there.value.get(subkey)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Nothing. hivemind asks when it meets a new neighbour, and tells it all that it might keep
        in one message; a crowd's leases fit into none, and the neighbour would be given up whenever
        it is met. Authors tell it themselves, in seconds, and of a manifest within a minute."""
        return iter(())


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


def unpack_record(packed: bytes) -> bytes | None:
    """The content of a MessagePack byte string, or None for any other thing or size."""
    for marker, size_bytes in ((0xC4, 1), (0xC5, 2)):
        start = 1 + size_bytes
        if len(packed) >= start and packed[0] == marker:
            content = packed[start:]
            if len(content) == int.from_bytes(packed[1:start], "big") <= MAX_RECORD_BYTES:
                return content
    return None


@functools.lru_cache(maxsize=_CHECKED_RECORDS)
def _key_ids(places: tuple[str, ...]) -> frozenset[bytes]:
    """Of a shard or a manifest, with the other key that belongs to it: the same for many."""
    return frozenset(DHTID.generate(key).to_bytes() for key in places)


@functools.lru_cache(maxsize=_CHECKED_RECORDS)
def _claim(record: bytes) -> Claim | None:
    """Signatures are checked once per record, not once per replica that returns it."""
    try:
        return read_claim(record)
    except PeerRefused:
        return None

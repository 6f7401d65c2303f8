"""Bounded storage of our DHT node, for few and only well-signed records.

hivemind keeps every valid record; if there are too many keys, it drops the ones that expire
soonest. But identities are free. A crowd of leases under one key makes an answer that fits into no
message, so readers find no peer. And thousands of manifests of abandoned runs, which last for
minutes, push out all leases, which last for seconds. So the number of records is bounded. Peers
that a run knows always have a place at its other peers. The places for strangers are given at
random, so that no crowd can keep out a newcomer.
"""

import functools
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from atom.base.errors import PeerRefused
from atom.swarm.records.manifest import (
    LEASE_DOMAIN,
    MANIFEST_DOMAIN,
    MAX_RECORD_BYTES,
    Claim,
    read_claim,
)

MAX_KEYS = 128
"""Bound of the keys of other runs."""
MAX_STRANGERS_PER_KEY = 256
"""Bound of the strangers' records under a key. With a hundred known peers, and all leases at their
longest, the answer for a key has little more than 1 MiB; no daemon carries more than 2 MiB."""
MAX_RECORDS_PER_READING = 512
"""Bound of the records of one reading, and of one node's answer: other nodes may store a crowd.
Each record takes 0.1 ms of this process, and 0.2 ms of the process that trains."""
MAX_SECONDS_AHEAD = {LEASE_DOMAIN: 20.0, MANIFEST_DOMAIN: 900.0}
"""Longest time to expiry that is accepted, by kind of record: its lifetime, and ample room for
clocks that differ."""
_CHECKED_RECORDS = 4096
"""Number of records whose verification is cached."""


class RecordGate(RecordValidatorBase):  # type: ignore[misc]
    """Check of all records that we store or read: they must be well signed and in their place."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        """Peer ids whose records come first."""
        self.own_keys: dict[DHTID, bool] = {}
        """Keys of our run; True if only known peers may store under the key."""

    def use(self, key: DHTID, known: Iterable[str], only_known: bool) -> None:
        """Declare a key of our own run, for which there is always room.

        Args:
            key: Key of the run's leases or of its manifest.
            known: Peer ids whose records come first under all keys.
            only_known: Refuse all other peers' records under this key.
        """
        self.known = frozenset(known)
        self.own_keys[key] = only_known

    def validate(self, record: DHTRecord) -> bool:
        """Return True if this node may store a record.

        A record must be signed by the peer in its subkey and lie at the key that its content names,
        and it may not outlive the bound for its kind. At the keys of this run, the author must be
        known.
        """
        blob = unpack_record(record.value)
        claim = None if blob is None else _claim(blob)
        if claim is None or record.subkey != MSGPackSerializer.dumps(claim.author):
            return False
        if self.own_keys.get(DHTID.from_bytes(record.key)) and claim.author not in self.known:
            return False
        if claim.expires_at is not None and claim.expires_at != record.expiration_time:
            return False
        if not record.expiration_time <= time.time() + MAX_SECONDS_AHEAD[claim.kind]:
            return False  # also for NaN: such a record would never expire
        return bool(record.key == _key_id(claim.place))

    def keep_valid(self, key: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Drop the invalid records of a dictionary in another node's answer; always return True.

        hivemind would refuse the whole dictionary: one bad record on a node that checks nothing
        would hide all good ones under the same key. Records beyond the bound are dropped unchecked,
        because the node does nothing else while it verifies signatures.
        """
        dictionary.maxsize = float("inf")
        with dictionary.freeze():
            entries = dict(dictionary.items())
            first = self.first(entries)
            for subkey, (value, expires_at) in entries.items():
                named = subkey in first and isinstance(subkey, str) and isinstance(value, bytes)
                if not named or not self.validate(
                    DHTRecord(key, MSGPackSerializer.dumps(subkey), value, expires_at)
                ):
                    del dictionary[subkey]
        return True

    def first(self, subkeys: Iterable[Any]) -> list[Any]:
        """Return the subkeys to keep, up to the bound: known peers' first, then a random sample."""
        by_lot = sorted(subkeys, key=lambda each: (each not in self.known, random.random()))
        return by_lot[:MAX_RECORDS_PER_READING]


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """Storage with a bounded number of strangers' records under each key.

    Records that it has may always be renewed, and known peers always have a place. If a key is
    full, each new stranger replaces a random other one. All values are dictionaries: the gate
    refuses others.
    """

    def __init__(self, gate: RecordGate) -> None:
        super().__init__()
        self._gate = gate

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Store a record as hivemind does; return True if it was stored.

        Unlike hivemind, refuse a record if there is no room, or if a record that expires later is
        stored: hivemind would drop that record at the expiry of the earlier one.
        """
        record = self.get(key)
        if record is None:
            others = len(self) - sum(own in self for own in self._gate.own_keys)
            if key not in self._gate.own_keys and others >= MAX_KEYS:
                return False
            return bool(super().store_subkey(key, subkey, value, expiration_time))
        before = record.value.get(subkey)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        stored = bool(super().store_subkey(key, subkey, value, expiration_time))
        if stored and before is None:
            self._make_room(record.value, subkey)
        return stored

    def _make_room(self, records: DictionaryDHTValue, newcomer: str) -> None:
        known = self._gate.known
        strangers = [each for each, _ in records.items() if each not in known and each != newcomer]
        if newcomer not in known and len(strangers) >= MAX_STRANGERS_PER_KEY:
            del records[random.choice(strangers)]

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Return nothing, so that hivemind hands no records to a new neighbour.

        hivemind would send all of them in one message, into which the leases of a crowd do not fit,
        and would give up the neighbour each time. Authors store their leases there within seconds,
        and peers a manifest within a minute.
        """
        return iter(())


def unpack_record(packed: bytes) -> bytes | None:
    """Return the content of a MessagePack byte string; None for any other type or size."""
    for marker, size_bytes in ((0xC4, 1), (0xC5, 2)):
        start = 1 + size_bytes
        if len(packed) >= start and packed[0] == marker:
            content = packed[start:]
            if len(content) == int.from_bytes(packed[1:start], "big") <= MAX_RECORD_BYTES:
                return content
    return None


@functools.lru_cache(maxsize=_CHECKED_RECORDS)
def _key_id(place: str) -> bytes:
    """Return the id of a DHT key; cached, because many records share a key."""
    return bytes(DHTID.generate(place).to_bytes())


@functools.lru_cache(maxsize=_CHECKED_RECORDS)
def _claim(record: bytes) -> Claim | None:
    """Verify a record; return None if it is refused. Cached: each record is verified once, not once
    per node that returns it."""
    try:
        return read_claim(record)
    except PeerRefused:
        return None

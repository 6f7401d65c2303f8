"""What a node of ours keeps for the DHT and believes of it: well-signed records, and few.

hivemind keeps whatever is valid, and of too many keys drops those that end soonest. But identities
are free. A crowd of leases under one key makes an answer that no message holds, so that readers
find nobody. And some thousand manifests of runs that nobody trains, which last for minutes, push
out every lease, which lasts for seconds. So there are few places. Those that a run knows have
theirs at its peers; the strangers' are drawn by lot, so that no crowd keeps a newcomer out.
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
"""Of runs that are not our own."""
MAX_STRANGERS_PER_KEY = 256
"""With a hundred peers that the run knows, and all leases at their longest, a key is an answer of
little more than a MiB; more than 2 MiB are carried by nobody."""
MAX_RECORDS_PER_READING = 512
"""Of all that is found, and of one node's answer: others may keep a crowd. Each takes a tenth of a
millisecond of this process, and two of the one that trains."""
MAX_SECONDS_AHEAD = {LEASE_DOMAIN: 20.0, MANIFEST_DOMAIN: 900.0}
"""Longest time to expiry we store: a lifetime, and amply for clocks that are apart."""
_CHECKED_RECORDS = 4096
"""Whose signatures are remembered as checked."""


class RecordGate(RecordValidatorBase):  # type: ignore[misc]
    """Lets only well-signed records in their own place pass: what we store and what we are told."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        """Whose records come first."""
        self.own_keys: dict[DHTID, bool] = {}
        """Of our run; whether only those who are known may store there."""

    def use(self, key: DHTID, known: Iterable[str], only_known: bool) -> None:
        """This key is our own run's: whatever lies under others, there is room for it."""
        self.known = frozenset(known)
        self.own_keys[key] = only_known

    def validate(self, record: DHTRecord) -> bool:
        blob = unpack_record(record.value)
        claim = None if blob is None else _claim(blob)
        if claim is None or record.subkey != MSGPackSerializer.dumps(claim.author):
            return False
        if self.own_keys.get(DHTID.from_bytes(record.key)) and claim.author not in self.known:
            return False
        if claim.expires_at is not None and claim.expires_at != record.expiration_time:
            return False
        if not record.expiration_time <= time.time() + MAX_SECONDS_AHEAD[claim.kind]:
            return False  # NaN, too: under it nothing would ever end
        return bool(record.key == _key_id(claim.place))

    def keep_valid(self, key: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Drops what is not valid, where hivemind would refuse the whole dictionary: else one
        bad record, on a node that checks nothing, would hide every good one beside it. What a crowd
        has too many is dropped unseen: the whole node stands still while signatures are checked."""
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
        """Of too many those of the known, and others by lot."""
        by_lot = sorted(subkeys, key=lambda each: (each not in self.known, random.random()))
        return by_lot[:MAX_RECORDS_PER_READING]


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """What it has may always be renewed, and who is known has a place; where it is full, one of
    the strangers goes for each that comes. For dictionaries: the gate lets no other value pass."""

    def __init__(self, gate: RecordGate) -> None:
        super().__init__()
        self._gate = gate

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """As hivemind's. False also if a later record is there, which hivemind would now drop when
        the earlier one ends; and if there is no room."""
        there = self.get(key)
        if there is None:
            others = len(self) - sum(own in self for own in self._gate.own_keys)
            if key not in self._gate.own_keys and others >= MAX_KEYS:
                return False
            return bool(super().store_subkey(key, subkey, value, expiration_time))
        before = there.value.get(subkey)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        stored = bool(super().store_subkey(key, subkey, value, expiration_time))
        if stored and before is None:
            self._make_room(there.value, subkey)
        return stored

    def _make_room(self, records: DictionaryDHTValue, newcomer: str) -> None:
        known = self._gate.known
        strangers = [each for each, _ in records.items() if each not in known and each != newcomer]
        if newcomer not in known and len(strangers) >= MAX_STRANGERS_PER_KEY:
            del records[random.choice(strangers)]

    def items(self) -> Iterator[tuple[DHTID, Any]]:
        """Nothing. hivemind asks when it meets a new neighbour, and tells it all that it might keep
        in one message; a crowd's leases fit into none, and the neighbour would be given up whenever
        it is met. Authors tell it themselves, in seconds, and of a manifest within a minute."""
        return iter(())


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
def _key_id(place: str) -> bytes:
    """The same for many records."""
    return bytes(DHTID.generate(place).to_bytes())


@functools.lru_cache(maxsize=_CHECKED_RECORDS)
def _claim(record: bytes) -> Claim | None:
    """Signatures are checked once per record, not once per replica that returns it."""
    try:
        return read_claim(record)
    except PeerRefused:
        return None

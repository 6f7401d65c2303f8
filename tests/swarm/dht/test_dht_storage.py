"""Records that our DHT nodes store and accept: few, well signed, and in their place."""

import math
import random
import time
import warnings
from dataclasses import replace
from typing import Any

import pytest

from atom.swarm.identity import Identity
from atom.swarm.records.manifest import (
    MAX_LEASE_BYTES,
    encode_lease,
    encode_manifest,
    lease_key,
    manifest_key,
)
from tests.swarm.swarm_samples import a_lease, a_manifest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord
    from hivemind.utils import MSGPackSerializer, timed_storage

    from atom.swarm.dht import storage as dht_storage
    from atom.swarm.dht.storage import MAX_RECORDS_PER_READING, BoundedStorage, RecordGate

OWNER, PEER = Identity.create(), Identity.create()
NAME, FOUNDER = PEER.peer_id, OWNER.peer_id
RUN = "shakespeare"
SOON, LATER = time.time() + 3600.0, time.time() + 7200.0  # the tests may be slow; see the fixture
KEY, PLACE = lease_key(RUN, FOUNDER), manifest_key(RUN, FOUNDER)
LEASE = encode_lease(a_lease(NAME), RUN, FOUNDER, PEER, SOON)
MANIFEST = encode_manifest(a_manifest(OWNER), OWNER)
HOUR = time.time() + 600.0
FOUNDED: dict[str, Any] = {
    "key": PLACE, "subkey": FOUNDER, "value": MANIFEST, "expires_at": HOUR
}  # fmt: skip
ROOT, *OTHERS = (DHTID.generate(key) for key in (KEY, *map(str, range(40))))
LONGEST_ANSWER_BYTES = 2 * 2**20 - 65536
pack = MSGPackSerializer.dumps


@pytest.fixture(autouse=True)
def small_and_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases may last for an hour or two rather than seconds."""
    assert 8.0 < dht_storage.MAX_SECONDS_AHEAD["lease"] < 30.0
    monkeypatch.setitem(dht_storage.MAX_SECONDS_AHEAD, "lease", 5400.0)
    monkeypatch.setattr(dht_storage, "MAX_KEYS", 8)
    monkeypatch.setattr(dht_storage, "MAX_STRANGERS_PER_KEY", 16)


@pytest.fixture
def gate() -> RecordGate:
    return RecordGate()


@pytest.fixture
def storage(gate: RecordGate) -> BoundedStorage:
    return BoundedStorage(gate)


def record(
    key: str = KEY, subkey: object = NAME, value: object = LEASE, expires_at: float = SOON
) -> DHTRecord:
    return DHTRecord(DHTID.generate(key).to_bytes(), pack(subkey), pack(value), expires_at)


def believed(gate: RecordGate, entries: dict[Any, tuple[bytes, float]]) -> DictionaryDHTValue:
    """Return the entries that the gate keeps of the answer of a node that checks nothing."""
    answer = DictionaryDHTValue(maxsize=max(3, len(entries)))
    for subkey, (value, expires_at) in entries.items():
        answer.store(subkey, pack(value), expires_at)
    assert gate.keep_valid(ROOT.to_bytes(), answer)
    return answer


@pytest.mark.parametrize("changes", [{}, FOUNDED, FOUNDED | {"expires_at": HOUR - 500.0}])
def test_a_record_in_its_place_passes(gate: RecordGate, changes: dict[str, Any]) -> None:
    assert gate.validate(record(**changes))


FOREVER = encode_lease(a_lease(NAME), RUN, FOUNDER, PEER, LATER)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": lease_key("other", FOUNDER)},
        {"key": "anything"},
        {"subkey": FOUNDER},
        {"subkey": None},
        {"subkey": 7},
        {"expires_at": SOON + 1.0},
        {"value": LEASE[:-1] + bytes([LEASE[-1] ^ 1])},
        {"value": LEASE + bytes(9000)},
        {"value": b""},
        {"value": "text"},
        {"value": None},
        {"value": {"a": 1}},
        {"value": FOREVER, "expires_at": LATER},
        FOUNDED | {"subkey": NAME},
        FOUNDED | {"key": manifest_key("other", FOUNDER)},
        *(FOUNDED | {"expires_at": endless} for endless in (9e9, math.nan, math.inf)),
    ],
)
def test_a_record_out_of_place_does_not(gate: RecordGate, changes: dict[str, Any]) -> None:
    assert not gate.validate(record(**changes))


def test_bytes_that_are_no_message_are_no_record(gate: RecordGate) -> None:
    for raw in (b"", b"\xc4", b"\xc5\x00", b"\xc4\x05abc", b"\xc7\x01\x50\x90"):
        assert not gate.validate(replace(record(), value=raw))


def test_one_bad_record_does_not_hide_the_good_ones_beside_it(gate: RecordGate) -> None:
    good, noise = (LEASE, SOON), (b"noise", LATER)
    answer = believed(gate, {NAME: good, FOUNDER: noise, 7: noise})
    assert [subkey for subkey, _ in answer.items()] == [NAME]
    assert answer.maxsize > 10**6, "or a later merge would push good records out"
    answer = believed(gate, {NAME: noise})
    assert len(answer) == 0
    assert answer.store(NAME, pack(LEASE), SOON), "its author may write, whatever ended later"


def test_of_a_crowd_on_a_node_that_keeps_everything_a_few_are_checked_the_known_first(
    gate: RecordGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(gate, "validate", lambda record: checked.append(record) or True)
    gate.use(ROOT, ["ada"], only_known=False)
    crowd = [*(f"peer {number}" for number in range(3 * MAX_RECORDS_PER_READING)), "ada"]
    seen: set[str] = set()
    for _ in range(2):
        answer = believed(gate, dict.fromkeys(crowd, (b"x", SOON)))
        assert len(answer) == MAX_RECORDS_PER_READING
        assert "ada" in answer
        seen |= {subkey for subkey, _ in answer.items()}
    assert len(checked) == 2 * MAX_RECORDS_PER_READING < 2 * len(seen)


def test_in_a_closed_run_the_records_of_others_are_neither_kept_nor_believed(
    gate: RecordGate,
) -> None:
    for known, is_kept in (([FOUNDER], False), ([FOUNDER, NAME], True)):
        gate.use(ROOT, known, only_known=True)
        assert gate.validate(record()) is is_kept
        assert len(believed(gate, {NAME: (LEASE, SOON)})) == is_kept
        assert gate.validate(record(**FOUNDED))


def under(storage: BoundedStorage, key: DHTID) -> set[str]:
    entry = storage.get(key)
    return set() if entry is None else {subkey for subkey, _ in entry.value.items()}


def crowd(storage: BoundedStorage, key: DHTID, size: int = 100, ends: float = LATER) -> int:
    return sum(storage.store_subkey(key, f"stranger {n}", b"x", ends) for n in range(size))


def test_a_crowd_that_is_renewed_without_end_freezes_nobody_out_and_the_known_stay(
    gate: RecordGate, storage: BoundedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dht_storage, "random", random.Random(1))
    gate.use(ROOT, ["ada", "grace"], only_known=False)
    assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    seen = 0
    for second in range(50):
        crowd(storage, ROOT, 24, LATER + second)
        seen += "new" in under(storage, ROOT)
        assert storage.store_subkey(ROOT, "new", b"1", SOON + second)
    assert seen > 5
    assert storage.store_subkey(ROOT, "grace", b"1", SOON), "a restarted voter has its place"
    assert {"ada", "grace"} < under(storage, ROOT)
    assert len(under(storage, ROOT)) == 2 + 16


def test_what_is_there_may_be_renewed_and_ends_with_the_later_record(
    storage: BoundedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.store_subkey(ROOT, "ada", b"2", LATER)
    assert not storage.store_subkey(ROOT, "ada", b"1", SOON)
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: SOON + 1.0)
    assert under(storage, ROOT) == {"ada"}
    assert storage.store_subkey(ROOT, "ada", b"3", LATER + 1.0)
    assert storage.get(ROOT).value.get("ada").value == b"3"


@pytest.mark.parametrize("own_first", [False, True])
def test_runs_without_end_push_out_no_lease_of_our_own_and_are_bounded(
    own_first: bool, gate: RecordGate, storage: BoundedStorage
) -> None:
    own = ROOT, OTHERS[0]
    for key in own:
        gate.use(key, [], only_known=False)
    if own_first:
        assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    for key in OTHERS[1:]:
        crowd(storage, key)
    assert sum(len(under(storage, key)) for key in OTHERS[1:]) == 8 * 16
    for key in own:
        assert storage.store_subkey(key, "ada", b"1", SOON + 1.0)
        assert under(storage, key) == {"ada"}
    assert len(storage) == 10


def test_a_new_neighbour_is_handed_nothing_and_a_cache_without_places_keeps_nothing(
    storage: BoundedStorage,
) -> None:
    assert crowd(storage, ROOT)
    assert list(storage.items()) == []
    cache = DHTLocalStorage()
    cache.maxsize = 0
    cache.store_subkey(ROOT, "stranger", b"x", LATER)
    cache.store(OTHERS[0], b"x", LATER)
    assert cache.get(ROOT) is cache.get(OTHERS[0]) is None


def test_a_full_key_is_an_answer_that_is_carried(
    gate: RecordGate, storage: BoundedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    gate.use(ROOT, [f"{number:052}" for number in range(100)], only_known=False)
    for number in range(200 + dht_storage.MAX_STRANGERS_PER_KEY):
        storage.store_subkey(ROOT, f"{number:052}", bytes(MAX_LEASE_BYTES), LATER)
    assert len(pack(storage.get(ROOT).value)) < LONGEST_ANSWER_BYTES

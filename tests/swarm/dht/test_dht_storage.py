"""A crowd of identities fills what it may of a node, and pushes nobody out."""

import random
import time
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage
    from hivemind.utils import MSGPackSerializer, timed_storage

    from atom.swarm.dht import storage as dht_storage
    from atom.swarm.dht.storage import BoundedStorage

from atom.swarm.records.codec import MAX_LEASE_BYTES

SOON, LATER = time.time() + 3600.0, time.time() + 7200.0
ROOT, SHARD, *OTHERS = (DHTID.generate(f"key {number}") for number in range(40))
LONGEST_ANSWER_BYTES = 4 * 2**20


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dht_storage, "MAX_KEYS", 8)
    monkeypatch.setattr(dht_storage, "MAX_STRANGERS_PER_KEY", 16)


@pytest.fixture
def gate():
    return dht_storage.RecordGate()


@pytest.fixture
def storage(gate):
    return BoundedStorage(gate)


def under(storage, key):
    entry = storage.get(key)
    return set() if entry is None else {subkey for subkey, _ in entry.value.items()}


def crowd(storage, key, size=100):
    return sum(storage.store_subkey(key, f"stranger {n}", b"x", LATER) for n in range(size))


def test_under_a_crowd_those_who_were_there_and_those_who_are_known_stay(gate, storage):
    gate.use(ROOT, ["ada", "grace"], only_known=False)
    assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    assert storage.store_subkey(ROOT, "early", b"1", SOON)
    crowd(storage, ROOT)
    assert storage.store_subkey(ROOT, "grace", b"1", SOON), "a restarted voter has its place"
    assert {"ada", "early", "grace", *(f"stranger {n}" for n in range(7))} < under(storage, ROOT)
    crowd(storage, ROOT)
    assert {"ada", "early", "grace"} < under(storage, ROOT)
    assert len(under(storage, ROOT)) == 2 + 16


def test_a_crowd_that_is_renewed_without_end_freezes_no_newcomer_out(storage, monkeypatch):
    monkeypatch.setattr(dht_storage, "random", random.Random(1))
    crowd(storage, ROOT, 24)
    seen = 0
    for second in range(50):
        assert storage.store_subkey(ROOT, "new", b"1", SOON + second)
        for stranger in range(24):
            storage.store_subkey(ROOT, f"stranger {stranger}", b"x", LATER + 1.0 + second)
        seen += "new" in under(storage, ROOT)
    assert seen > 5
    assert len(under(storage, ROOT)) == 16


def test_what_is_there_may_be_renewed_and_ends_with_the_later_record(storage, monkeypatch):
    assert storage.store_subkey(ROOT, "ada", b"2", LATER)
    assert not storage.store_subkey(ROOT, "ada", b"1", SOON)
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: SOON + 1.0)
    assert under(storage, ROOT) == {"ada"}
    assert storage.store_subkey(ROOT, "ada", b"3", LATER + 1.0)
    assert storage.get(ROOT).value.get("ada").value == b"3"


@pytest.mark.parametrize("own_first", [False, True])
def test_runs_without_end_push_out_no_lease_of_our_own(own_first, gate, storage):
    for key in (ROOT, SHARD):
        gate.use(key, [], only_known=False)
    if own_first:
        assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    assert sum(storage.store_subkey(key, "owner", b"x", LATER) for key in OTHERS) == 8
    for key in (ROOT, SHARD):
        assert storage.store_subkey(key, "ada", b"1", SOON + 1.0)
    assert len(storage) == 10
    assert under(storage, ROOT) == under(storage, SHARD) == {"ada"}


def test_all_that_is_kept_for_others_is_bounded(storage):
    for key in OTHERS:
        crowd(storage, key)
    assert sum(len(under(storage, key)) for key in OTHERS) == 8 * 16


def test_what_is_not_kept_takes_no_place(storage):
    ended = time.time() - 1.0
    crowd(storage, ROOT)
    before = under(storage, ROOT)
    assert not any(storage.store_subkey(ROOT, f"{n}", b"1", ended) for n in range(100))
    assert not any(storage.store_subkey(OTHERS[0], "ada", b"1", ended) for _ in range(100))
    assert under(storage, ROOT) == before
    assert storage.store_subkey(OTHERS[1], "ada", b"1", LATER)


def test_a_new_neighbour_is_handed_nothing(storage):
    assert crowd(storage, ROOT)
    assert list(storage.items()) == []
    assert len(storage) == 1


def test_a_cache_without_places_keeps_nothing():
    cache = DHTLocalStorage()
    cache.maxsize = 0
    cache.store_subkey(ROOT, "stranger", b"x", LATER)
    assert cache.get(ROOT) is None
    cache.store(ROOT, b"x", LATER)
    assert cache.get(ROOT) is None


def test_a_full_key_is_an_answer_that_is_carried(gate, storage, monkeypatch):
    monkeypatch.undo()
    gate.use(ROOT, [f"{number:052}" for number in range(100)], only_known=False)
    for number in range(10_000):
        storage.store_subkey(ROOT, f"{number:052}", bytes(MAX_LEASE_BYTES), LATER)
    answer_bytes = len(MSGPackSerializer.dumps(storage.get(ROOT).value))
    assert answer_bytes < LONGEST_ANSWER_BYTES

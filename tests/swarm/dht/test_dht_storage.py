"""A crowd of identities fills what it may of a node, and pushes nobody out."""

import time
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from hivemind.dht.routing import DHTID
    from hivemind.utils import MSGPackSerializer, timed_storage

    from atom.swarm.dht import storage as dht_storage
    from atom.swarm.dht.storage import BoundedStorage, NoStorage

from atom.swarm.records.codec import MAX_LEASE_BYTES

SOON, LATER = time.time() + 3600.0, time.time() + 7200.0
ROOT, SHARD, *OTHERS = (DHTID.generate(f"key {number}") for number in range(40))
LONGEST_ANSWER_BYTES = 4 * 2**20


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dht_storage, "MAX_KEYS", 8)
    monkeypatch.setattr(dht_storage, "MAX_RECORDS_PER_KEY", 16)


def under(storage, key):
    entry = storage.get(key)
    return set() if entry is None else {subkey for subkey, _ in entry.value.items()}


def crowd(storage, key):
    return sum(storage.store_subkey(key, f"stranger {n}", b"x", LATER) for n in range(100))


def test_a_crowd_under_one_key_pushes_nobody_out_and_stays_small():
    storage = BoundedStorage()
    assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    assert crowd(storage, ROOT) == 15
    assert storage.store_subkey(ROOT, "ada", b"2", SOON + 1.0), "what is there may be renewed"
    assert not storage.store_subkey(ROOT, "ada", b"1", SOON), "by what is newer"
    assert storage.get(ROOT).value.get("ada").value == b"2"
    assert not storage.store_subkey(ROOT, "grace", b"1", SOON)
    assert storage.keep(ROOT, "grace", b"1", SOON), "our own lease always has a place"
    assert len(under(storage, ROOT)) == 17


@pytest.mark.parametrize("own_first", [False, True])
def test_runs_without_end_push_out_no_lease_of_our_own(own_first):
    storage = BoundedStorage()
    for key in (ROOT, SHARD):
        storage.use(key)
    if own_first:
        assert storage.store_subkey(ROOT, "ada", b"1", SOON)
    assert sum(storage.store_subkey(key, "owner", b"x", LATER) for key in OTHERS) == 8
    for key in (ROOT, SHARD):
        assert storage.store_subkey(key, "ada", b"1", SOON + 1.0)
    assert len(storage) == 10
    assert under(storage, ROOT) == under(storage, SHARD) == {"ada"}


def test_all_that_is_kept_for_others_is_bounded():
    storage = BoundedStorage()
    assert sum(crowd(storage, key) for key in OTHERS) == 8 * 16


def test_what_is_not_kept_takes_no_place():
    storage, ended = BoundedStorage(), time.time() - 1.0
    assert not any(storage.store_subkey(OTHERS[0], "ada", b"1", ended) for _ in range(100))
    assert storage.store_subkey(OTHERS[1], "ada", b"1", LATER)


def test_a_new_neighbour_is_handed_nothing():
    storage = BoundedStorage()
    assert crowd(storage, ROOT)
    assert list(storage.items()) == []
    assert len(storage) == 1


def test_the_place_of_one_that_has_ended_is_free(monkeypatch):
    storage = BoundedStorage()
    crowd(storage, ROOT)
    assert not storage.store_subkey(ROOT, "ada", b"1", LATER + 9.0)
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: LATER + 1.0)
    assert storage.store_subkey(ROOT, "ada", b"1", LATER + 9.0)
    assert under(storage, ROOT) == {"ada"}


def test_what_is_told_again_ends_nothing_newer(monkeypatch):
    storage = BoundedStorage()
    assert storage.store_subkey(ROOT, "ada", b"2", LATER)
    assert not storage.store_subkey(ROOT, "ada", b"1", SOON)
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: SOON + 1.0)
    assert under(storage, ROOT) == {"ada"}
    assert storage.get(ROOT).value.get("ada").value == b"2"


def test_a_stranger_puts_nothing_in_the_place_of_what_is_kept():
    nothing = NoStorage()
    assert not nothing.store_subkey(ROOT, "stranger", b"x", LATER)
    assert not nothing.store(ROOT, b"x", LATER)
    assert nothing.get(ROOT) is None


def test_a_full_key_is_an_answer_that_is_carried(monkeypatch):
    monkeypatch.undo()
    storage = BoundedStorage()
    for number in range(10_000):
        peer_id = f"{number:052}"
        storage.store_subkey(ROOT, peer_id, bytes(MAX_LEASE_BYTES), LATER)
    answer_bytes = len(MSGPackSerializer.dumps(storage.get(ROOT).value))
    assert answer_bytes < LONGEST_ANSWER_BYTES

"""What our DHT nodes store and believe: only well-signed records in their own place."""

import asyncio
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from swarm_samples import a_lease, a_manifest

from atom.swarm.dht.process import MAX_LINE_BYTES, message_line
from atom.swarm.identity import Identity
from atom.swarm.records.codec import (
    MAX_RECORD_BYTES,
    encode_lease,
    encode_manifest,
    index_key,
    lease_key,
    manifest_key,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from hivemind.utils import ValueWithExpiration

    from atom.swarm.dht import node as dht_node
    from atom.swarm.dht import storage as dht_storage


OWNER, PEER = Identity.create(), Identity.create()
RUN = "shakespeare"
SIZES_AND_KEYS = [(1, 1), (3 * 1024, 1), (MAX_RECORD_BYTES, 1), (MAX_RECORD_BYTES, 16), (400, 16)]
EXPIRES = time.time() + 3600.0  # the tests may be slow; see the fixture
KEY = lease_key(RUN, OWNER.peer_id)
LEASE = encode_lease(a_lease(PEER.peer_id), RUN, OWNER.peer_id, PEER, EXPIRES)
MANIFEST = encode_manifest(a_manifest(OWNER), OWNER)
pack = dht_node.MSGPackSerializer.dumps


def record(key=KEY, subkey=PEER.peer_id, value=LEASE, expires_at=EXPIRES):
    key_id = dht_node.DHTID.generate(key).to_bytes()
    return dht_storage.DHTRecord(key_id, pack(subkey), pack(value), expires_at)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Lets these leases last for an hour or two rather than seconds."""
    assert 8.0 < dht_storage.MAX_SECONDS_AHEAD["lease"] < 30.0
    monkeypatch.setitem(dht_storage.MAX_SECONDS_AHEAD, "lease", 7200.0)


@pytest.fixture
def gate():
    return dht_storage.RecordGate()


def test_a_record_in_its_place_passes(gate):
    assert gate.validate(record())
    for key in (manifest_key(RUN, OWNER.peer_id), index_key(RUN)):
        for lifetime_s in (1.0, 600.0):
            expires_at = time.time() + lifetime_s
            assert gate.validate(record(key, OWNER.peer_id, MANIFEST, expires_at))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": lease_key("other", OWNER.peer_id)},
        {"key": "anything"},
        {"subkey": OWNER.peer_id},
        {"subkey": None},
        {"subkey": 7},
        {"expires_at": EXPIRES + 1.0},
        {"value": LEASE[:-1] + bytes([LEASE[-1] ^ 1])},
        {"value": LEASE + bytes(9000)},
        {"value": b""},
        {"value": "text"},
        {"value": None},
        {"value": {"a": 1}},
        {"key": index_key(RUN), "subkey": PEER.peer_id, "value": MANIFEST},
        {"key": index_key("other"), "subkey": OWNER.peer_id, "value": MANIFEST},
        {"key": index_key(RUN), "subkey": OWNER.peer_id, "value": MANIFEST, "expires_at": 9e9},
    ],
)
def test_a_record_out_of_place_does_not(gate, changes):
    assert not gate.validate(record(**changes))


def test_whatever_never_ends_is_no_record(gate):
    for expires_at in (float("nan"), float("inf")):
        assert not gate.validate(record(index_key(RUN), OWNER.peer_id, MANIFEST, expires_at))


def test_a_lease_cannot_be_signed_for_a_long_time(gate):
    later = time.time() + 9000.0
    lease = encode_lease(a_lease(PEER.peer_id), RUN, OWNER.peer_id, PEER, later)
    assert not gate.validate(record(value=lease, expires_at=later))


@pytest.mark.parametrize("raw", [b"", b"\xc4", b"\xc5\x00", b"\xc4\x05abc", b"\xc7\x01\x50\x90"])
def test_bytes_that_are_no_message_are_no_record(gate, raw):
    assert not gate.validate(replace(record(), value=raw))


def test_one_bad_record_does_not_hide_the_good_ones_beside_it(gate):
    dictionary = dht_storage.DictionaryDHTValue(maxsize=3)
    dictionary.store(PEER.peer_id, pack(LEASE), EXPIRES)
    dictionary.store(OWNER.peer_id, pack(b"noise"), EXPIRES + 1e6)
    dictionary.store(7, pack(b"noise"), EXPIRES + 1.0)
    assert gate.keep_valid(dht_node.DHTID.generate(KEY).to_bytes(), dictionary)
    assert [subkey for subkey, _ in dictionary.items()] == [PEER.peer_id]
    assert dictionary.maxsize > 10**6, "or a later merge would push good records out"


def test_a_record_may_be_rewritten_by_its_author_and_nobody_else_whatever_the_expiry(gate):
    dictionary = dht_storage.DictionaryDHTValue()
    dictionary.store(PEER.peer_id, pack(b"noise"), EXPIRES + 1e6)
    key_id = dht_node.DHTID.generate(KEY).to_bytes()
    assert gate.keep_valid(key_id, dictionary)
    assert dictionary.store(PEER.peer_id, pack(LEASE), EXPIRES)
    assert gate.keep_valid(key_id, dictionary)
    assert len(dictionary) == 1


def test_of_a_crowd_on_a_node_that_keeps_everything_a_few_are_checked_the_known_first(
    gate, monkeypatch
):
    checked = []
    monkeypatch.setattr(gate, "validate", lambda record: checked.append(record) or True)
    gate.use(dht_node.DHTID.generate(KEY), ["ada"], only_known=False)
    crowd = [f"peer {number}" for number in range(3 * dht_storage.MAX_RECORDS_PER_READING)]
    seen = set()
    for _ in range(2):
        dictionary = dht_storage.DictionaryDHTValue()
        for subkey in (*crowd, "ada"):
            dictionary.store(subkey, pack(b"x"), EXPIRES)
        assert gate.keep_valid(dht_node.DHTID.generate(KEY).to_bytes(), dictionary)
        seen |= {subkey for subkey, _ in dictionary.items()}
        assert len(dictionary) == dht_storage.MAX_RECORDS_PER_READING
        assert "ada" in dictionary
    assert len(checked) == 2 * dht_storage.MAX_RECORDS_PER_READING < 2 * len(seen)


def test_in_a_closed_run_the_records_of_others_are_neither_kept_nor_believed(gate):
    for known, is_kept in (([OWNER.peer_id], False), ([OWNER.peer_id, PEER.peer_id], True)):
        gate.use(dht_node.DHTID.generate(KEY), known, only_known=True)
        assert gate.validate(record()) is is_kept
        dictionary = dht_storage.DictionaryDHTValue()
        dictionary.store(PEER.peer_id, pack(LEASE), EXPIRES)
        assert gate.keep_valid(dht_node.DHTID.generate(KEY).to_bytes(), dictionary)
        assert len(dictionary) == is_kept
        assert gate.validate(record(index_key(RUN), OWNER.peer_id, MANIFEST, time.time() + 9.0))


def test_of_all_that_is_found_a_few_go_on_the_known_first(gate):
    """Identities are free: a stranger stores as many leases as it likes."""

    async def get_many(keys, **_):
        return {key: done([*(f"stranger {n}" for n in range(2000)), "ada"]) for key in keys}

    node = dht_node.DhtNode(dht_node.NodeSettings(), Path())
    node._node = SimpleNamespace(get_many=get_many)
    found, complete = asyncio.run(node.fetch("key", 1.0, known=["ada"]))
    assert complete
    assert found[0] == ("ada", b"x")
    assert len(found) == dht_storage.MAX_RECORDS_PER_READING


def test_whatever_is_found_goes_into_one_message():
    crowd = [(f"{number:052}", bytes(MAX_RECORD_BYTES)) for number in range(512)]
    assert len(crowd) == dht_storage.MAX_RECORDS_PER_READING
    assert len(message_line({"id": 1, "answer": (crowd, True)})) < MAX_LINE_BYTES


def test_a_node_tells_where_its_neighbours_are_now():
    """A swarm whose entrance is gone is found by that alone."""
    first, now = "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"
    here, place = dht_node.PeerID.from_base58(PEER.peer_id), f"/p2p/{PEER.peer_id}"
    node = dht_node.DhtNode(dht_node.NodeSettings(contacts=(first + place,)), Path())
    table = SimpleNamespace(uid_to_peer_id={"uid": here})
    node._p2p = SimpleNamespace(
        list_peers=lambda: answer([SimpleNamespace(peer_id=here, addrs=[now])])
    )
    node._node = SimpleNamespace(protocol=SimpleNamespace(routing_table=table))
    assert asyncio.run(node.contacts()) == [now + place, first + place]


async def answer(what):
    return what


def done(names):
    value = dict.fromkeys(names, ValueWithExpiration(b"x", EXPIRES))
    future = asyncio.get_running_loop().create_future()
    future.set_result(ValueWithExpiration(value, EXPIRES))
    return future

"""Where leases are stored and read: cheap in a small swarm, and nobody is overlooked in any."""

import random

import pytest

from atom.swarm.records.keys import LEASE_SHARDS, ROOT, shard_of
from atom.swarm.records.lease import LEASE_SECONDS, RENEW_SECONDS
from atom.swarm.records.lease_places import (
    IN_DOUBT_S,
    LEAVES_ROOT_ABOVE,
    LEAVES_ROOT_FROM,
    READS_ALL_ABOVE,
    READS_ALL_FROM,
    SHARD_EVERY_S,
    LeasePlaces,
)

READ_S = 0.4
ALL = range(LEASE_SHARDS)


def names(count):
    return {f"peer {number}" for number in range(count)}


def settled(seen=3):
    places = LeasePlaces()
    places.to_read(0.0)
    places.found(names(seen), set(), True, 0.0)
    return places


def test_a_newcomer_reads_everything_then_the_root_and_now_and_then_a_shard():
    places = LeasePlaces()
    now, read = 100.0, []
    while now < 100.0 + IN_DOUBT_S + LEASE_SHARDS * (SHARD_EVERY_S + READ_S):
        shards = places.to_read(now)
        places.found(names(3), set(), True, now)
        read.append((now, tuple(shards)))
        now += READ_S
    first = [shards for at, shards in read if at < 100.0 + IN_DOUBT_S]
    later = [shards for at, shards in read if at >= 100.0 + IN_DOUBT_S]
    assert set(first) == {(), tuple(ALL)}
    assert first[0] == tuple(ALL)
    assert first.count(tuple(ALL)) >= IN_DOUBT_S // (SHARD_EVERY_S + READ_S)
    assert max(map(len, later)) == 1
    assert {shard for shards in later for shard in shards} == set(ALL), "each in its turn"
    assert sum(map(len, later)) <= len(later) * READ_S / SHARD_EVERY_S + 1


@pytest.mark.parametrize(
    ("in_root", "in_shards", "complete"),
    [({"a"}, {"b"}, True), ({"a"}, {"a"}, False), (set(), {"b"}, True)],
)
def test_whatever_is_left_open_has_everything_read(in_root, in_shards, complete):
    places = settled()
    assert places.to_read(50.0) != ALL
    places.found(in_root, in_shards, complete, 50.0)
    assert places.to_read(50.0 + SHARD_EVERY_S) == ALL
    assert places.to_read(50.0 + SHARD_EVERY_S + READ_S) == (), "now and then"
    assert places.to_read(50.0 + IN_DOUBT_S - 0.01) == ALL
    places.found({"a", "b"}, {"b"}, True, 50.0 + IN_DOUBT_S)
    assert len(places.to_read(50.0 + IN_DOUBT_S)) <= 1


def test_large_swarms_read_all_keys_and_very_large_ones_leave_the_root_to_itself():
    places = settled()
    seen_and_done = [
        (READS_ALL_ABOVE, False, True),
        (READS_ALL_ABOVE + 1, True, True),
        (LEAVES_ROOT_ABOVE, True, True),
        (LEAVES_ROOT_ABOVE + 1, True, False),
        (LEAVES_ROOT_FROM, True, False),
        (LEAVES_ROOT_FROM - 1, True, True),
        (READS_ALL_FROM, True, True),
        (READS_ALL_FROM - 1, False, True),
    ]
    for step, (seen, reads_all, uses_root) in enumerate(seen_and_done):
        now = 100.0 * (step + 1)
        places.found(names(seen), set(), True, now)
        assert (places.to_read(now) == ALL) is reads_all, seen
        assert (ROOT in places.to_store("me", now)) is uses_root, seen


def test_a_lease_is_always_alive_in_its_shard_and_what_changes_fast_goes_to_the_root():
    places, dice = settled(), random.Random(5)
    now, shard_at, shard_stores, stores = 0.0, 0.0, 0, 0
    while now < 600.0:
        chosen = places.to_store("me", now)
        assert ROOT in chosen
        stores += 1
        if shard_of("me") in chosen:
            assert now - shard_at < LEASE_SECONDS / 1.5
            shard_at, shard_stores = now, shard_stores + 1
        now += dice.uniform(0.15, RENEW_SECONDS)
    assert shard_stores < 0.7 * stores


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_overlooked_while_a_swarm_grows_and_shrinks(seed):
    """Peers come and go by dozens; whoever has been there for a moment is seen by everybody who
    has, and goes on being seen."""
    dice = random.Random(seed)
    stored = {ROOT: {}, **{shard: {} for shard in ALL}}
    peers, since, seen = {}, {}, {}
    now, wanted = 0.0, 5
    for _ in range(250):
        now += READ_S
        if dice.random() < 0.05:
            wanted = dice.choice([2, 30, 60, 70, 100, 130, 140, 200])
        while len(peers) < wanted:
            name = f"{seed} {dice.random()}"
            peers[name], since[name], seen[name] = LeasePlaces(), now, {}
        for name in dice.sample(sorted(peers), max(0, len(peers) - wanted)):
            del peers[name], since[name]
        for name, places in peers.items():
            if dice.random() < 0.5:  # on average every 0.8 s
                for place in places.to_store(name, now):
                    stored[place][name] = now
        for leases in stored.values():
            for name in [n for n, at in leases.items() if now - at > LEASE_SECONDS]:
                del leases[name]
        for name, places in peers.items():
            in_shards = {n for shard in places.to_read(now) for n in stored[shard]}
            in_root = set(stored[ROOT])
            places.found(in_root, in_shards, True, now)
            seen[name].update(dict.fromkeys(in_root | in_shards, now))
        elders = [name for name in peers if now - since[name] > LEASE_SECONDS]
        for name in elders:
            missed = [n for n in elders if now - seen[name].get(n, 0.0) > LEASE_SECONDS / 2]
            assert not missed

"""Who shall hold which part: alike, enough of them, and never fewer on the way."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.swap.held_state import MOST_PARTS
from atom.swarm.chain.commit import MAX_PARTS
from atom.training.round.holders import holders_next, mask_of, parts_in, still_held

PEERS, COUNT = "ABCDEFGH", MAX_PARTS
SOME = st.frozensets(st.integers(0, COUNT - 1))
HOLDS = st.dictionaries(st.sampled_from(PEERS), SOME, min_size=1)


@given(HOLDS, st.sets(st.sampled_from(PEERS)), st.integers(1, 3))
@settings(deadline=None)
def test_each_part_has_enough_and_nobody_much(
    before: dict[str, frozenset[int]], able: set[str], holders: int
) -> None:
    """And it stays so, whoever tells it."""
    told = holders_next(before, dict.fromkeys(able, COUNT), COUNT, holders)
    counted = Counter(part for parts in told.values() for part in parts)
    assert told.keys() == able
    if able:
        assert set(counted.values()) == {min(holders, len(able))}
        assert counted.keys() == set(range(COUNT))
        sizes = list(map(len, told.values()))
        assert max(sizes) - min(sizes) <= 1
    assert (
        holders_next(told, dict.fromkeys(sorted(able, reverse=True), COUNT), COUNT, holders) == told
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_part_that_somebody_has_is_never_lost_by_moving(seed: int) -> None:
    """Peers come, and leave when nothing is theirs alone, and fetch what they are told in any
    order. Some are not in a round."""
    dice, holds = random.Random(seed), {"A": frozenset(range(COUNT))}
    told: dict[str, frozenset[int]] = {}
    for _ in range(200):
        holds.setdefault(dice.choice(PEERS), frozenset())
        there = {peer: parts for peer, parts in holds.items() if dice.random() < 0.9}
        leaving = {peer for peer in there if dice.random() < 0.1}
        told = holders_next(told or holds, dict.fromkeys(there.keys() - leaving, COUNT), COUNT, 2)
        for peer in there:
            fetched = {part for part in told.get(peer, ()) if dice.random() < 0.3}
            holds[peer] = still_held(peer, told, there) | fetched
        for peer in leaving:
            if not holds[peer]:
                del holds[peer]
        assert frozenset.union(*holds.values()) == frozenset(range(COUNT))


def test_what_is_being_fetched_is_not_given_to_another() -> None:
    """And is given up when it is there."""
    whole, holds = frozenset(range(COUNT)), {"A": frozenset(range(COUNT))}
    holds |= {"B": whole, "C": frozenset()}
    told = holders_next(holds, dict.fromkeys("ABC", COUNT), COUNT, 2)
    assert sorted(map(len, told.values())) == [40, 40, 40]
    assert still_held("A", told, holds) == still_held("B", told, holds) == whole
    holds["C"] = some = frozenset(sorted(told["C"])[:10])
    assert holders_next(told, dict.fromkeys("CBA", COUNT), COUNT, 2) == told
    assert still_held("C", told, holds) == some
    kept = [still_held(peer, told, holds) for peer in "AB"]
    assert all(kept[n] >= whole - some and kept[n] >= told["AB"[n]] for n in (0, 1))
    assert sum(len(whole - each) for each in kept) == 10


@given(HOLDS, st.dictionaries(st.sampled_from(PEERS), st.integers(0, COUNT)), st.integers(1, 3))
@settings(deadline=None)
def test_nobody_is_told_more_than_it_has_room_for(
    before: dict[str, frozenset[int]], room: dict[str, int], holders: int
) -> None:
    """Together they hold as much as goes, and nothing twice while they lack something."""
    told = holders_next(before, room, COUNT, holders)
    assert all(len(parts) <= room[peer] for peer, parts in told.items())
    lacking = {p for p in range(COUNT) if sum(p in each for each in told.values()) < holders}
    free = [peer for peer, parts in told.items() if len(parts) < room[peer]]
    assert all(lacking <= told[peer] for peer in free)
    assert len(frozenset[int]().union(*told.values())) == min(COUNT, sum(room.values()))


@pytest.mark.parametrize(("peers", "most"), [(3, 40), (4, 40), (5, 25), (8, 17)])
def test_a_death_moves_little_beside_what_the_dead_had(peers: int, most: int) -> None:
    start = holders_next({}, dict.fromkeys(PEERS[:peers], COUNT), COUNT, 2)
    told = holders_next(start, dict.fromkeys(PEERS[1:peers], COUNT), COUNT, 2)
    moved = sum(len(told[peer] - start[peer]) for peer in told)
    assert len(start["A"]) <= moved <= most


@given(SOME)
def test_parts_go_through_a_message(parts: frozenset[int]) -> None:
    assert parts_in(mask_of(parts)) == parts
    assert MOST_PARTS == MAX_PARTS
    assert 0 <= mask_of(parts) < 1 << MAX_PARTS

"""The fewest bytes, and nothing that no commit vouches for while there is something else."""

from hypothesis import given
from hypothesis import strategies as st

from atom.training.state_sync.donors import Offer
from atom.training.state_sync.way_back import Position, Sizes, Way, ways_back

SIZES = Sizes(state=12, result=4)


def offer(number: int) -> Offer:
    return Offer(number, bytes([number]) * 32)


def test_a_short_absence_is_replayed() -> None:
    best, second = ways_back(Position(95), 98, [(offer(96), 0)], SIZES)
    assert best == Way(None, 95, 12)
    assert second == Way(offer(96), 96, 12 + 8)


def test_a_long_absence_is_not() -> None:
    best, *_ = ways_back(Position(50), 98, [(offer(60), 0), (offer(96), 0)], SIZES)
    assert best == Way(offer(96), 96, 12 + 8)


def test_results_of_one_byte_are_worth_replaying_for_longer() -> None:
    small = Sizes(state=12, result=1)
    assert ways_back(Position(88), 98, [(offer(96), 0)], small)[0] == Way(None, 88, 10)
    assert ways_back(Position(80), 98, [(offer(96), 0)], small)[0] == Way(offer(96), 96, 14)


def test_what_is_here_already_counts() -> None:
    half_fetched = [(offer(90), 11), (offer(96), 0)]
    held = range(91, 98)
    assert ways_back(Position(None, held), 98, half_fetched, SIZES)[0] == Way(offer(90), 90, 1 + 4)
    assert ways_back(Position(None), 98, half_fetched, SIZES)[0] == Way(offer(96), 96, 12 + 8)


def test_the_newest_state_of_all_comes_last() -> None:
    ways = ways_back(Position(3), 98, [(offer(98), 0), (offer(50), 0)], SIZES)
    assert [way.first_round for way in ways] == [50, 3, 98]


@given(
    st.integers(0, 40),
    st.none() | st.integers(0, 40),
    st.dictionaries(st.integers(0, 40), st.integers(0, 12)),
    st.sets(st.integers(1, 40)),
)
def test_every_way_is_there_and_costs_what_it_lacks(
    length: int, own: int | None, offers: dict[int, int], held: set[int]
) -> None:
    known = [(offer(number), here) for number, here in offers.items() if number <= length]
    position = Position(own if own is not None and own <= length else None, held)
    ways = ways_back(position, length, known, SIZES)
    assert len(ways) == len(known) + (position.round is not None)
    for way in ways:
        lacking = len(set(range(way.first_round + 1, length + 1)) - held) * 4
        state = 0 if way.base is None else 12 - offers[way.first_round]
        assert way.missing_bytes == lacking + state
    named = [way for way in ways if way.base is None or way.first_round < length]
    assert ways[: len(named)] == named
    assert [w.missing_bytes for w in named] == sorted(w.missing_bytes for w in named)

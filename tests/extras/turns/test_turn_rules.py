"""Who has the device: one run at a time, whoever waits longest next, until a round ends."""

from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from atom.extras.turns.claims import HAS_IT, NOT_NOW, WAITS, Claim, may_take, must_give

SLOT_S = 100.0
ONE = Claim("one/a", "/one", SLOT_S, WAITS, 1000.0, ("cpu",))
TWO = Claim("two/a", "/two", SLOT_S, WAITS, 1010.0, ("cpu",))
THREE = Claim("three/a", "/three", SLOT_S, WAITS, 1005.0, ("cpu",))


def has_it(claim: Claim, since_s: float) -> Claim:
    return replace(claim, turn=HAS_IT, since_s=since_s)


def test_whoever_waits_longest_is_next() -> None:
    assert may_take(ONE, [TWO, THREE], 1020.0)
    assert not may_take(ONE, [has_it(TWO, 1010.0)], 9999.0), "another run's turn is waited for"
    assert not may_take(TWO, [THREE], 1020.0)
    assert may_take(TWO, [replace(THREE, turn=NOT_NOW)], 1020.0), "who wants nothing is no rival"
    same = replace(TWO, since_s=ONE.since_s)
    assert may_take(ONE, [same], 1020.0) != may_take(same, [ONE], 1020.0)


def test_daemons_of_one_run_have_their_turns_together() -> None:
    first, second = has_it(ONE, 1000.0), replace(ONE, place="/other", since_s=1050.0)
    assert may_take(second, [first], 5000.0)
    assert may_take(second, [first, TWO], 1099.0)
    assert not may_take(second, [first, TWO], 1100.0), "that turn is over"
    assert may_take(second, [ONE, TWO], 1020.0), "one of them is next"
    late = has_it(second, 1090.0)
    assert must_give(late, [first, TWO], 1100.0, round_ended=True)
    assert not must_give(late, [first], 9999.0, round_ended=True)


def test_while_nobody_waits_nobody_gives() -> None:
    mine, others = has_it(ONE, 1000.0), [replace(TWO, turn=NOT_NOW)]
    assert not must_give(mine, others, 9999.0, round_ended=True, idle=True)
    assert must_give(mine, [TWO], 1001.0, round_ended=False, idle=True)


def test_of_two_that_have_it_the_later_one_gives() -> None:
    first, second = has_it(ONE, 1000.0), has_it(TWO, 1001.0)
    assert must_give(second, [first], 1002.0, round_ended=False)
    assert not must_give(first, [second], 1002.0, round_ended=False)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.data())
def test_the_device_is_one_run_s_and_everybody_s_in_time(
    runs: list[int], data: st.DataObject
) -> None:
    """Looks in any order: never two runs at once, and nobody who waits is passed over for ever."""
    claims = [replace(ONE, run=f"{run}/a", place=str(n)) for n, run in enumerate(runs)]
    had: set[str] = set()
    for now in count(1000, 30):
        for n in data.draw(st.permutations(range(len(claims)))):
            others = [each for m, each in enumerate(claims) if m != n]
            mine = claims[n]
            if mine.turn == WAITS and may_take(mine, others, now):
                claims[n] = has_it(mine, now)
            elif mine.turn == HAS_IT and must_give(mine, others, now, round_ended=True):
                claims[n] = replace(mine, turn=WAITS, since_s=now)
            holders = {each.run for each in claims if each.turn == HAS_IT}
            assert len(holders) <= 1
            had |= {each.place for each in claims if each.turn == HAS_IT}
        if len(had) == len(claims):
            break
        assert now < 1000 + 30 * 100, "somebody never had it"

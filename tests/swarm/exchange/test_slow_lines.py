"""Whose line is slow, by what everybody says: of a slow receiver others tell, and they may lie."""

from collections.abc import Mapping

import pytest

from atom.swarm.exchange.order import Place
from atom.swarm.exchange.slow_lines import SlowLines, slow_lines
from atom.swarm.records.lease import Link

FAST, SLOW = 50e6, 1e6


def found(**rates: Mapping[str, float]) -> SlowLines:
    """Among eight that have all met; only the rates given held a ring up."""
    names = "abcdefgh"
    return slow_lines(
        [
            Place(
                name,
                links={
                    other: Link(0.01, rates.get(name, {}).get(other, float("inf")))
                    for other in names
                    if other != name
                },
            )
            for name in names
        ]
    )


def test_two_that_were_held_up_by_the_same_peer_tell_of_its_line() -> None:
    assert found(a={"h": SLOW}) == SlowLines({}, {})
    assert found(a={"h": SLOW}, b={"h": SLOW}) == SlowLines({}, {"h": SLOW})


def test_who_was_held_up_by_another_way_as_well_is_not_taken_for_slow() -> None:
    """Its word counts: it was not as slow to anybody else."""
    tellers = {"a": {"h": SLOW, "c": FAST}, "b": {"h": SLOW, "d": FAST}}
    assert found(**tellers) == SlowLines({}, {"h": SLOW})
    assert found(**tellers, e={"h": SLOW}) == SlowLines({}, {"h": SLOW})


def test_who_is_as_slow_to_others_tells_of_its_own_line() -> None:
    tellers = {name: {"h": SLOW, "g": 1.5 * SLOW} for name in "ab"}
    assert found(**tellers) == SlowLines({"a": 1.5 * SLOW, "b": 1.5 * SLOW}, {})


@pytest.mark.parametrize("step", [1.0, 3.0])
def test_two_liars_tell_of_one_peer_at_most(step: float) -> None:
    """Whatever speeds they make up."""
    words = {peer: SLOW * step**at for at, peer in enumerate("efgh")}
    assert len(found(a=words, b=words).receiving) == (0 if step == 1.0 else 1)


def test_two_liars_do_not_count_against_two_that_were_faster() -> None:
    """These have slow lines themselves; but they did send as much to it."""
    liars = {name: {"h": SLOW} for name in "ab"}
    others = {name: dict.fromkeys("efgh", FAST) for name in "cd"}
    assert found(**liars, c=others["c"]).receiving == {"h": SLOW}, "one may be the liar"
    assert found(**liars, **others).receiving == {}


def test_one_liar_does_not_make_a_slow_receiver_fast() -> None:
    tellers = {name: {"h": SLOW} for name in "ab"}
    assert found(**tellers, c={"h": 1e3 * FAST}) == SlowLines({}, {"h": SLOW})

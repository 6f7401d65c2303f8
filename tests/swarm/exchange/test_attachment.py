"""Who is carried, and by whom: only what pays, and never by what one slow way may mean."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from atom.swarm.exchange import attachment
from atom.swarm.exchange.attachment import MOST_MEMBERS, Attachment, attach
from atom.swarm.exchange.geometry import BUCKET_BYTES
from atom.swarm.exchange.order import LONGEST_S, Place
from atom.swarm.records.lease import Link

BYTES = 1e9
FAST, SLOW = 100e6, 2e6


def swarm(size: int, slow: Mapping[str, float], ways: int = 2) -> list[Place]:
    """Peers a, b, …; the slow ones were slow with `ways` others, and nobody else was."""
    names = [chr(ord("a") + number) for number in range(size)]
    return [
        Place(
            name,
            links={
                other: Link(0.01, slow[name] if at < ways and name in slow else float("inf"))
                for at, other in enumerate(other for other in names if other != name)
            },
        )
        for name in names
    ]


def carriers(found: Attachment | None) -> dict[str, str]:
    return dict(found.carriers) if found else {}


@pytest.mark.parametrize("size", [3, 4, 8, 20])
def test_one_slow_peer_is_carried(size: int) -> None:
    found = attach(swarm(size, {"c": SLOW}), BYTES)
    assert found is not None
    assert list(found.carriers) == ["c"]
    assert found.seconds == pytest.approx((BYTES + BUCKET_BYTES) / SLOW, rel=0.01), (
        "its bytes, once"
    )
    share = 2 * (size - 1) / size
    assert found.seconds_seated == pytest.approx(share * BYTES / SLOW, rel=0.01)


def test_nothing_is_known_and_everybody_has_a_seat() -> None:
    assert attach(swarm(6, {}), BYTES) is None
    assert attach([Place(name) for name in "abcd"], BYTES) is None
    assert attach([], BYTES) is None
    assert attach([Place("a")], BYTES) is None


def test_one_slow_way_is_a_matter_of_order() -> None:
    assert attach(swarm(6, {"c": SLOW}, ways=1), BYTES) is None


def receiving_slowly(size: int, peer: str, tellers: int) -> list[Place]:
    """Some others were held up by their sending to that one."""
    told = [place.peer_id for place in swarm(size, {}) if place.peer_id != peer][:tellers]
    return [
        replace(place, links=dict(place.links) | {peer: Link(0.01, SLOW)})
        if place.peer_id in told
        else place
        for place in swarm(size, {})
    ]


@pytest.mark.parametrize("size", [3, 4, 8])
def test_who_receives_slowly_is_carried_when_two_say_so(size: int) -> None:
    assert attach(receiving_slowly(size, "c", 1), BYTES) is None
    found = attach(receiving_slowly(size, "c", 2), BYTES)
    assert found is not None
    assert list(found.carriers) == ["c"]
    assert found.seconds == pytest.approx((BYTES + BUCKET_BYTES) / SLOW, rel=0.01)


def test_those_at_the_other_end_of_a_slow_line_are_not_slow() -> None:
    """Both slow peers were so towards a and b, of whom nobody else says anything."""
    found = carriers(attach(swarm(8, {"c": SLOW, "f": SLOW}), BYTES))
    assert set(found) == {"c", "f"}
    both_ways = [
        replace(place, links=dict(place.links) | {"c": Link(0.01, SLOW), "f": Link(0.01, SLOW)})
        if place.peer_id in {"a", "b", "d"}
        else place
        for place in swarm(8, {"c": SLOW, "f": SLOW})
    ]
    assert set(carriers(attach(both_ways, BYTES))) == {"c", "f"}


def test_two_have_no_ring_to_be_carried_by() -> None:
    assert attach(swarm(2, {"a": SLOW}, ways=1), BYTES) is None


def test_equals_are_not_carried() -> None:
    """However slow they are: a carrier would send and receive more than it does in the ring."""
    for size in (3, 4, 8):
        names = [place.peer_id for place in swarm(size, {})]
        assert attach(swarm(size, dict.fromkeys(names, SLOW)), BYTES) is None


def test_a_little_slower_is_not_slow() -> None:
    speeds = dict.fromkeys("abcdef", FAST) | {"c": 0.9 * FAST}
    assert attach(swarm(6, speeds), BYTES) is None
    assert carriers(attach(swarm(6, speeds | {"c": 0.1 * FAST}), BYTES)).keys() == {"c"}


def test_what_saves_a_blink_is_left_alone() -> None:
    assert attach(swarm(6, {"c": SLOW}), 30e3) is None
    assert attach(swarm(6, {"c": SLOW}), BYTES, otherwise_s=1.0) is None, "a one-shot exchange, say"


def test_of_small_averages_nobody_is_carried() -> None:
    """The means of a bucket begin when all of its sums are there: a leaf of one bucket would take
    twice its bytes, one after the other."""
    places = swarm(6, {"c": SLOW})
    assert attach(places, BUCKET_BYTES) is None
    assert attach(places, 4 * BUCKET_BYTES) is not None


def test_several_slow_peers_have_a_carrier_each() -> None:
    half = attach(swarm(8, {"c": SLOW, "f": SLOW / 2}), BYTES)
    assert carriers(half).keys() == {"f"}, "beside it the other one costs nothing in its seat"
    found = carriers(attach(swarm(8, {"c": SLOW, "f": SLOW}), BYTES))
    assert set(found) == {"c", "f"}
    assert len(set(found.values())) == 2
    assert not set(found) & set(found.values())


def test_most_of_a_swarm_is_never_carried() -> None:
    found = carriers(attach(swarm(5, dict.fromkeys("abcd", SLOW)), BYTES))
    assert len(found) <= 2


def test_a_carrier_is_near_reachable_and_well_with_its_leaf() -> None:
    places = {place.peer_id: place for place in swarm(4, {"d": SLOW})}
    near = dict(places["d"].links) | {"c": Link(0.001)}
    places["d"] = replace(places["d"], links=near)
    places["c"] = replace(places["c"], links={"d": Link(0.001)})
    assert carriers(attach(list(places.values()), BYTES)) == {"d": "c"}
    odd = replace(places["c"], apart=frozenset("d"))
    assert carriers(attach(list((places | {"c": odd}).values()), BYTES))["d"] in "ab"
    shut = {name: replace(place, dials_out=name in "cd") for name, place in places.items()}
    assert carriers(attach(list(shut.values()), BYTES))["d"] in "ab"
    all_shut = [replace(place, dials_out=True) for place in places.values()]
    assert attach(all_shut, BYTES) is None


@pytest.mark.parametrize("rate", [1.0, 1.4e-45, 5e-324])
def test_who_claims_to_be_slower_than_anything_is_carried(rate: float) -> None:
    """Its figures stay figures, in sums as well."""
    for size in (6, 12):
        found = attach(swarm(size, {"c": rate}, ways=size - 1), BYTES)
        assert found is not None
        assert list(found.carriers) == ["c"]
        assert found.seconds < found.seconds_seated <= LONGEST_S + 1


def test_of_very_many_nobody_is_carried_and_no_order_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert carriers(attach(swarm(MOST_MEMBERS, {"c": SLOW}), BYTES)).keys() == {"c"}
    monkeypatch.setattr(attachment, "ring_order", None)
    assert attach(swarm(MOST_MEMBERS + 1, {"c": SLOW}), BYTES) is None


def test_the_choice_comes_with_its_reason() -> None:
    found = attach(swarm(4, {"d": SLOW}), BYTES)
    assert found is not None
    story = found.story()
    assert set(story) == {"carriers", "seconds", "seconds_seated"}
    assert story["seconds"] < 0.9 * story["seconds_seated"]

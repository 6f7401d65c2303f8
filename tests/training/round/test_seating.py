"""Members sit as their leases suggest; whoever shows none sits where it was dealt."""

from collections.abc import Mapping

from atom.swarm.chain.commit import Contribution
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.records.lease import Lease, Link, PeerState, Reached, short_name
from atom.training.round.events import View
from atom.training.round.seating import choose_algorithm, seat_members

DEALT = tuple(Contribution(name, name.encode() * 16, 3, 1.5) for name in "abcdef")


def lease(
    peer_id: str, links: Mapping[str, Link] | None = None, reached: Reached = Reached.YES
) -> Lease:
    named = tuple((short_name(peer), link) for peer, link in (links or {}).items())
    return Lease(
        peer_id, b"i" * 16, 1, 0.0, PeerState.ACCUMULATING, b"h" * 32, 4, 96, 3, 0, 0, 0.0, 0.0,
        1.0, None, b"", (), reached=reached, links=named,
    )  # fmt: skip


def neighbours(members: tuple[Contribution, ...]) -> set[frozenset[str]]:
    names = [member.peer_id for member in members]
    return {frozenset(pair) for pair in zip(names, [*names[1:], names[0]], strict=True)}


def test_without_leases_members_sit_as_dealt() -> None:
    members, order = seat_members(DEALT, View(), 1000)
    assert members == DEALT
    assert order.story() == {
        "members": list("abcdef"),
        "relayed": 0,
        "seconds": 0.0,
        "seconds_as_dealt": 0.0,
    }


def test_who_cannot_be_dialled_is_kept_apart_ourselves_included() -> None:
    shut = [lease(name, reached=Reached.NO) for name in "bc"]
    view = View({item.peer_id: item for item in shut}, mine=lease("a", reached=Reached.NO))
    members, order = seat_members(DEALT, view, 1000)
    assert sorted(members, key=lambda member: member.peer_id) == list(DEALT), "counts stay"
    assert order.relayed == 0
    for pair in ("ab", "ac", "bc"):
        assert frozenset(pair) not in neighbours(members)


def test_links_are_read_from_both_ends_and_by_their_speed() -> None:
    """Half a megabyte in a second and more is slow for two megabytes of average."""
    slow, quick = Link(0.01, 5e5), Link(0.01)
    view = View(
        {"a": lease("a", {"b": slow}), "d": lease("d", {"c": slow, "stranger": slow})},
        mine=lease("e", dict.fromkeys("abcdf", quick)),
    )
    members, order = seat_members(DEALT, view, 2_000_000)
    assert neighbours(members).isdisjoint({frozenset("ab"), frozenset("cd")})
    assert order.seconds < 0.1 < order.seconds_as_given


def test_far_members_with_little_to_average_do_without_a_ring() -> None:
    far = dict.fromkeys("abcdef", Link(0.2))
    view = View({"a": lease("a", far), "d": lease("d", far)}, mine=lease("e", far))
    assert choose_algorithm(DEALT, view, 100_000).algorithm is Algorithm.ONE_SHOT
    assert choose_algorithm(DEALT, view, 1_000_000_000).algorithm is Algorithm.RING
    near = View(mine=lease("e", dict.fromkeys("abcdf", Link(0.0002))))
    assert choose_algorithm(DEALT, near, 100_000).algorithm is Algorithm.RING
    assert choose_algorithm(DEALT, View(), 100_000).algorithm is Algorithm.RING


def test_members_that_cannot_all_meet_keep_the_ring() -> None:
    far = dict.fromkeys("abcdef", Link(0.2))
    shut = {name: lease(name, far, reached=Reached.NO) for name in "bc"}
    choice = choose_algorithm(DEALT, View(shut), 100_000)
    assert (choice.algorithm, "relay" in choice.reason) == (Algorithm.RING, True)


def test_two_that_a_ring_broke_between_are_no_neighbours_and_meet_nowhere() -> None:
    apart = [frozenset("ab"), frozenset("cz")]
    members, order = seat_members(DEALT, View(), 1000, apart)
    assert frozenset("ab") not in neighbours(members)
    assert order.relayed == 0
    assert choose_algorithm(members, View(), 1000, apart).reason.startswith("some members cannot")
    trio, _ = seat_members(DEALT[:3], View(), 1000, apart)
    assert trio == DEALT[:3], "of three, any two are neighbours"

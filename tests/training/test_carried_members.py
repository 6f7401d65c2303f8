"""A peer too slow for the ring is carried by a member: same bytes everywhere, its part in them.

Real connections on loopback; one peer's sending is throttled.
"""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Contribution
from atom.swarm.chain.messages import Suspect
from atom.swarm.exchange.codec import CODECS
from atom.swarm.exchange.composition import carried_by, seats_of, well_composed
from atom.swarm.exchange.geometry import BUCKET_BYTES
from atom.training.round.blame import accusations
from atom.training.round.events import RingFailed, RingFinished, View
from atom.training.round.seating import attach_leaves
from tests.training.throttled_members import (
    ELEMENTS,
    PARENT,
    WAIT_S,
    Member,
    acquainted,
    averaged,
    ballot_of,
)


@pytest.fixture
def members_of(tmp_path: Path) -> Iterator[Callable[..., list[Member]]]:
    made, before = list[Member](), set(threading.enumerate())

    def make(size: int, codec: str = "float32") -> list[Member]:
        made.extend(Member(number, tmp_path, CODECS[codec]) for number in range(size))
        acquainted(made)
        for number, member in enumerate(made):
            dice = torch.Generator().manual_seed(number)
            member.gradients = torch.randn(ELEMENTS, generator=dice)
        return made

    yield make
    for member in made:
        member.close()
    assert set(threading.enumerate()) <= before


def carried(members: list[Member], leaf: int, carrier: int) -> tuple[Contribution, ...]:
    """All of them, one carried by another."""
    seats = tuple(member.part for at, member in enumerate(members) if at != leaf)
    return (*seats, replace(members[leaf].part, carrier=members[carrier].peer_id))


def plain_mean(members: list[Member]) -> torch.Tensor:
    return torch.stack([member.gradients.double() for member in members]).sum(0) / len(members)


def test_a_slow_peer_is_measured_and_carried(members_of: Callable[..., list[Member]]) -> None:
    members = members_of(4)
    slow, parts = members[3], [member.part for member in members]
    slow.transport.slow_to = frozenset(member.peer_id for member in members)
    averaged(members, tuple(parts), attempt=1)
    averaged(members, (parts[0], parts[2], parts[3], parts[1]), attempt=2)

    view = View({m.peer_id: m.lease() for m in members[1:]}, mine=members[0].lease())
    attached = attach_leaves(parts, view, 100 * BUCKET_BYTES)
    assert attached is not None, "its links say that it slows everybody down"
    assert list(attached.carriers) == [slow.peer_id]
    assert attached.seconds < 0.9 * attached.seconds_seated
    carrier = [member.peer_id for member in members].index(attached.carriers[slow.peer_id])

    kept = [member.gradients.clone() for member in members]
    digest = averaged(members, carried(members, 3, carrier), attempt=3)
    mean = plain_mean(members)
    for member, before in zip(members, kept, strict=True):
        assert torch.equal(member.result(digest), members[0].result(digest))
        assert torch.equal(member.gradients, before), "out of place, at the carrier too"
    torch.testing.assert_close(slow.result(digest).double(), mean, rtol=1e-5, atol=1e-6)
    slow.transport.slow_to = frozenset()
    assert averaged(members, carried(members, 3, carrier), attempt=4) == digest, "at any speed"
    without = plain_mean(members[:3])
    assert (members[0].result(digest).double() - without).abs().max() > 0.1


@pytest.mark.parametrize("codec", ["bfloat16", "int8"])
def test_a_leaf_speaks_the_runs_codec(members_of: Callable[..., list[Member]], codec: str) -> None:
    members = members_of(3, codec)
    digest = averaged(members, carried(members, 1, 2), attempt=1)
    mean = plain_mean(members)
    error = (members[1].result(digest).double() - mean).abs().max()
    assert 0 < error < 0.1 * mean.abs().max()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -3e38])
def test_a_leaf_that_sends_what_no_sum_is_is_blamed_itself(
    members_of: Callable[..., list[Member]], poison: float
) -> None:
    members = members_of(3)
    members[2].gradients[ELEMENTS // 2] = poison
    composed = carried(members, 2, 1)
    for member in members:
        member.start(composed, ballot_of(members, 1))
    seen = {member.peer_id: member.outcome() for member in members}
    words = seen[members[1].peer_id]
    assert isinstance(words, RingFailed)
    honest = Reason.NOT_FINITE.value
    assert (words.suspect, words.reason) == (members[2].peer_id, honest)
    assert _accused(composed, seen) == {members[2].peer_id}
    assert averaged(members[:2], composed[:2], attempt=2), "the carrier's own sums are as before"


def test_the_death_of_a_carrier_is_seen_by_all_and_the_next_attempt_is_without_it(
    members_of: Callable[..., list[Member]],
) -> None:
    members = members_of(4)
    leaf, carrier = members[3], members[1]
    leaf.transport.slow_to = frozenset({carrier.peer_id})
    composed = carried(members, 3, 1)
    for member in members:
        member.start(composed, ballot_of(members, 1))
    assert carrier.averages.wait(WAIT_S)  # and the leaf needs a quarter of a second
    carrier.transport.close()
    rest = [member for member in members if member is not carrier]
    seen = {member.peer_id: member.outcome() for member in rest}
    assert all(isinstance(outcome, RingFailed) for outcome in seen.values()), seen
    assert carrier.peer_id in _accused(composed, seen)
    digest = averaged(rest, tuple(member.part for member in rest), attempt=2)
    torch.testing.assert_close(
        rest[0].result(digest).double(), plain_mean(rest), rtol=1e-5, atol=1e-6
    )


def _accused(
    composed: tuple[Contribution, ...], seen: dict[str, RingFinished | RingFailed]
) -> set[str]:
    said = {
        peer: Suspect(
            PARENT, failed.ballot, failed.suspect, failed.reason, failed.told_by, failed.standing
        )
        for peer, failed in seen.items()
        if isinstance(failed, RingFailed)
    }
    found = accusations(seats_of(composed), said, carried=carried_by(composed))
    return {whom for _, whom in found}


def test_a_composition_with_leaves_is_what_it_is_said_to_be() -> None:
    a, b, c, d = (Contribution(name, bytes(16), 1, 1.0) for name in "abcd")
    on_a = replace(d, carrier="a")
    assert well_composed((a, b, c, on_a))
    assert well_composed((a, b, c, d), one_shot=True)
    assert not well_composed((a, b, c, on_a), one_shot=True)
    assert not well_composed((a, b, c, d, on_a)), "twice"
    assert not well_composed((a, b, replace(d, carrier="z"))), "by a stranger"
    assert not well_composed((a, b, on_a, replace(c, carrier="d"))), "by a leaf"
    assert not well_composed((a, b, on_a, replace(c, carrier="a"))), "two on one"
    assert not well_composed((a, on_a)), "a ring of one seat"
    assert not well_composed((on_a, a, b)), "seats come first"
    assert not well_composed((a, b, replace(c, carrier="c"))), "itself"

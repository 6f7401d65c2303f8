"""A slow way between two peers is measured by the ring that uses it, told, and avoided by the next.

Real connections on loopback; one of them is throttled.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.training.round.events import View
from atom.training.round.seating import seat_members
from tests.training.throttled_members import (
    ELEMENTS,
    SLOW_BYTES_PER_S,
    Member,
    acquainted,
    averaged,
)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    before = set(threading.enumerate())
    four = [Member(number, tmp_path) for number in range(4)]
    acquainted(four)
    yield four
    for member in four:
        member.close()
    assert set(threading.enumerate()) <= before


def test_a_slow_way_is_measured_told_and_avoided(members: list[Member]) -> None:
    slow, right = members[1], members[2]
    slow.transport.slow_to = frozenset({right.transport.peer_id})
    dealt = tuple(member.part for member in members)
    digest = averaged(members, dealt, attempt=1)

    measured = slow.transport.links.links(16)[right.transport.peer_id]
    assert 0 < measured.bytes_per_s < 1.1 * SLOW_BYTES_PER_S
    view = View({m.transport.peer_id: m.lease() for m in members[1:]}, mine=members[0].lease())
    order, why = seat_members(dealt, view, 4 * ELEMENTS)
    seats = [part.peer_id for part in order]
    apart = seats.index(slow.transport.peer_id) - seats.index(right.transport.peer_id)
    assert abs(apart) == 2, "across, in a ring of four"
    assert why.seconds < why.seconds_as_given
    assert averaged(members, order, attempt=2) == digest

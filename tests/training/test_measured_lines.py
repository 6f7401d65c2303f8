"""A slow line is measured by the exchange that it holds up, told in leases, and owns no part of the
next. Real connections on loopback; what one member sends is throttled.
"""

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.swarm.exchange.choice import Line, choose, line_rates
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
    three = [Member(number, tmp_path) for number in range(3)]
    acquainted(three)
    yield three
    for member in three:
        member.close()
    assert set(threading.enumerate()) <= before


def rates_told(members: list[Member]) -> dict[str, float]:
    """Of lines that leases show as slow."""
    return line_rates(
        {
            (member.peer_id, peer_id): link.bytes_per_s
            for member in members
            for peer_id, link in member.transport.links.links(16).items()
            if math.isfinite(link.bytes_per_s)
        }
    )


@pytest.mark.parametrize("shares", [(), (1, 1, 1)])
def test_exchange_measures_a_slow_line_and_gives_it_no_part(
    members: list[Member], shares: tuple[int, ...]
) -> None:
    slow = members[1]
    slow.transport.slow_to = frozenset({members[0].peer_id, members[2].peer_id})
    one_way = tuple(member.part for member in members)
    other_way = one_way[::-1]
    digest = averaged(members, one_way, 1, shares)
    assert averaged(members, other_way, 2, shares) == digest

    rates = rates_told(members)
    assert rates.keys() == {slow.peer_id}
    assert rates[slow.peer_id] < 2.5 * SLOW_BYTES_PER_S, "each connection is throttled by itself"
    lines = [Line(rates.get(member.peer_id)) for member in members]
    choice = choose(lines, 4 * ELEMENTS)
    assert choice.shares == (500, 0, 500)
    assert averaged(members, one_way, 3, choice.shares) == digest

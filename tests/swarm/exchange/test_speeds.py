"""Speeds of lines measured in exchanges, bounds of them, and the slowest next pace."""

import math
from typing import Any

import pytest

from atom.swarm.exchange.allreduce import (
    FRACTION,
    KEPT,
    LEAST_BYTES,
    RATE_KEPT_S,
    REMEMBERED,
    Channels,
    SpeedBook,
)
from atom.swarm.exchange.reduction import Terms
from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S
from atom.swarm.stream.frames import SLOWEST_BYTES_PER_S, Channel
from tests.manual_clock import ManualClock

MANY = 100 * LEAST_BYTES
"""Two members of a ring send as many as the average has."""


class Book(SpeedBook):
    """Speed book of a member that exchanges with one other member at a time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(self.clock.now)

    def ring(
        self, seconds: float, sending_s: float = 0.0, count: int = MANY, peer: str = "p"
    ) -> None:
        nowhere: Any = None
        right = Channel(nowhere)
        right.peer_id, right.sending_s, right.round_trip_s = peer, sending_s, 1e9
        self.finished(Terms(("us", peer), 0, b"", 1.0), Channels((), (right,)), count // 4, seconds)


@pytest.mark.parametrize(
    ("rings", "seconds"),
    [
        ([(10.0, 3.0)], 0.0),  # it waited for others
        ([(10.0, 9.0)], 10.0),
        ([(10.0, 9.0), (20.0, 19.0)], 20.0),  # it held up again
        ([(20.0, 19.0), (5.0, 0.1)], 5.0),  # the line is faster than it seemed
        ([(5.0, 4.0), (10.0, 9.0, LEAST_BYTES - 64), (40.0, 1.0)], 5.0),  # neither says anything
    ],
)
def test_a_member_busy_sending_rates_its_line(
    rings: list[tuple[float, ...]], seconds: float
) -> None:
    book = Book()
    for ring in rings:
        book.ring(*ring)  # type: ignore[arg-type]
    assert book.links(1)["p"].bytes_per_s == (MANY / seconds if seconds else math.inf)
    book.clock.advance(RATE_KEPT_S + 1)
    assert math.isinf(book.links(1)["p"].bytes_per_s), "it is looked at again one day"


def test_it_remembers_few_and_tells_of_fewer() -> None:
    book = Book()
    for number in range(KEPT + 10):
        book.ring(1.0, peer=f"{number}")
    assert list(book.links(KEPT + 10)) == [f"{n}" for n in range(10, KEPT + 10)]
    book.ring(1.0, peer="10")
    assert list(book.links(2)) == [f"{KEPT + 9}", "10"]
    assert book.links(1)["10"].round_trip_s == LONGEST_ROUND_TRIP_S


def test_an_exchange_is_measured_against_the_best_of_the_last() -> None:
    """A member therefore cannot slow exchanges down step by step."""
    book = Book()
    assert book.pace().bytes_per_s == SLOWEST_BYTES_PER_S
    book.ring(1.0)
    for _ in range(REMEMBERED - 1):
        book.ring(4.0)
        assert book.pace().bytes_per_s == MANY / FRACTION
    book.ring(4.0)
    assert book.pace().bytes_per_s == MANY / 4 / FRACTION
    assert book.pace().due_s(MANY) == book.pace().slack_s + 4 * FRACTION


def test_what_was_too_slow_for_all_is_quick_enough_in_the_end() -> None:
    book = Book()
    book.ring(1.0)
    for times in range(1, 100):
        book.too_slow()
        slower = MANY / FRACTION / 2**times
        assert book.pace().bytes_per_s == max(slower, SLOWEST_BYTES_PER_S)
    book.ring(1.0)
    assert book.pace().bytes_per_s == MANY / FRACTION
